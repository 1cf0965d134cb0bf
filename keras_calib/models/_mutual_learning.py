"""Networks that learn from each other, in one `fit`."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_calib import keras_private
from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import is_number
from keras_calib.inputs.masks import beside_metrics
from keras_calib.inputs.rows import as_rows
from keras_calib.inputs.tensors import from_the_left
from keras_calib.inputs.tensors import total
from keras_calib.inputs.tensors import unwrapped
from keras_calib.inputs.tensors import wide_floatx
from keras_calib.keras_graph.endings import output_kind
from keras_calib.losses._arguments import setting_of
from keras_calib.models import _mutual_optimizer
from keras_calib.models import _networks
from keras_calib.models._divergence import reduced_divergence
from keras_calib.models._shared_layers import from_config
from keras_calib.models._shared_layers import to_config
from keras_calib.models._wrapped import check_trains_by_its_loss
from keras_calib.ops.replicas import num_replicas

TRAINING_ONLY = (
    "supervised_loss",
    "peer_divergence",
    "auxiliary_loss",
    "auxiliary_accuracy",
)


@keras.saving.register_keras_serializable(package="keras_calib")
class MutualLearning(_mutual_optimizer.OwnedNetworks):
    r"""Deep mutual learning (DML): networks that learn from each other.

    For K networks with predictions `p_1 ... p_K`, each minimizes

        L_i = supervised_i + weight / (K - 1) * sum_{j != i} KL(p_j || p_i)

    where the peers `p_j` are held constant. All networks are trained on the
    same batch, each runs once, and all are updated together.

    `predict`, `evaluate`, `export`, validation and metrics run the primary
    only, and `pair.primary` is the network to keep. The logs of `fit` also
    contain `supervised_loss` (of the primary), `peer_divergence` (the mean KL
    from its peers), `auxiliary_loss` (the sum over auxiliaries) and
    `auxiliary_accuracy` (the mean over auxiliaries, from the predictions of the
    training step). `loss` is the objective of the primary.

    Sample weights and masks act in every term, aligned from the left:
    `(batch,)` weights whole sequences and images. `axis` and `reduction` are
    those of the loss. Rows with the label `ignore_class` of the loss count in
    the divergence, which needs no label.

    Args:
        primary: a `keras.Model`, a classifier with one output of shape
            `(..., num_classes)`, or `(..., 1)` for one sigmoid unit.
        auxiliaries: one such network, or a list of them. Architectures may
            differ. Layers without trainable weights may be shared, others not.
        weight: float, factor of the divergence from the peers. (One number as
            `loss_weights` of `compile` is a factor of the supervised loss.)
        from_logits: whether the networks return logits. By default this is
            read from the loss, or from the last layer of the networks.
        **kwargs: `name`, as in Keras.

    Raises:
        ValueError: if networks share trainable weights, differ in the number
            of classes, if one returns logits and another probabilities, or if
            one has several sigmoid units.

    Example:
        >>> import numpy as np, keras, keras_calib as kc
        >>> x = np.random.default_rng(0).normal(size=(64, 4))
        >>> y = np.arange(64) % 3
        >>> def network():
        ...     return keras.Sequential([keras.Input((4,)),
        ...                              keras.layers.Dense(3)])
        >>> pair = kc.models.MutualLearning(network(), network())
        >>> pair.compile("sgd", keras.losses.SparseCategoricalCrossentropy(
        ...     from_logits=True), metrics=["accuracy"])
        >>> history = pair.fit(x, y, verbose=0)
        >>> pair.primary.predict(x, verbose=0).shape
        (64, 3)

    Reference:
        Zhang, Xiang, Hospedales, Lu, "Deep Mutual Learning", CVPR 2018,
        eqs. 5 to 8. The mean over peers is the paper's; the authors' code
        sums, and updates the networks one after another.
    """

    parts = ("primary", "auxiliaries")
    settings: tuple[str, ...] = ("weight", "from_logits")

    def __init__(
        self,
        primary: keras.Model,
        auxiliaries: keras.Model | Sequence[keras.Model],
        *,
        weight: float = 1.0,
        from_logits: bool | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(auxiliaries, list | tuple):
            auxiliaries = [auxiliaries]
        networks = _networks.named([primary, *auxiliaries])
        if not auxiliaries or not (is_number(weight) and weight >= 0):
            raise ValueError(
                "Mutual learning: at least one auxiliary, and `weight` >= 0. "
                f"Received: {len(auxiliaries)} auxiliaries, weight={weight!r}."
            )
        kinds = _networks.check_networks(networks, from_logits=from_logits)
        for network in networks.values():
            check_trains_by_its_loss(network)
        super().__init__(primary, **kwargs)
        self.weight = weight
        self.from_logits = from_logits
        self._kinds = kinds
        self.primary = primary
        self.num_auxiliaries = len(auxiliaries)
        self._hold("auxiliary", auxiliaries)
        self._evaluating = False
        self._trackers = {
            name: keras.metrics.Mean(name=name, dtype=wide_floatx())
            for name in TRAINING_ONLY
        }
        if all(network.built for network in self.networks):
            self.mark_owners()
            self.built = True

    @property
    def output_kind(self):
        """What the primary returns, for `kc.calibrate`; `None` if unknown."""
        if self.from_logits is not None:
            return "logits" if self.from_logits else "probabilities"
        return output_kind(self.primary)

    @property
    def auxiliaries(self):
        """The auxiliary networks, a list."""
        return self._held("auxiliary", self.num_auxiliaries)

    @property
    def networks(self):
        """All networks, the primary first."""
        return [self.primary, *self.auxiliaries]

    def build(self, input_shape: Any) -> None:
        for network in self.networks:
            if not network.built:
                network(_networks.symbolic(input_shape, network.input_dtype))
        _networks.check_distinct(_networks.named(self.networks))
        self.mark_owners()
        self.built = True

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        *,
        auxiliary_optimizer: Any = None,
        **kwargs: Any,
    ) -> None:
        """Compile as in Keras, with an optimizer for the auxiliaries.

        Args:
            optimizer: the optimizer of the primary.
            loss: one supervised loss; of a function Keras takes the mean.
            auxiliary_optimizer: the optimizer of the auxiliaries. By default
                `optimizer` and its schedule apply to all networks, whose
                gradients a `global_clipnorm` then clips together.
            **kwargs: `metrics` and the rest, as in Keras.

        Raises:
            ValueError: if there is not exactly one loss; if the loss and the
                networks differ in `from_logits`, or neither shows it; if
                networks share trainable weights.
        """
        if loss is None or isinstance(loss, list | tuple | dict):
            raise ValueError(
                "Mutual learning needs one supervised loss. "
                f"Received: loss={loss}."
            )
        loss = keras.losses.get(loss)
        # Layers may have been unfrozen, or have got weights of LoRA.
        _networks.check_distinct(_networks.named(self.networks))
        self.mark_owners()
        from_logits = self._resolve_from_logits(loss)
        optimizer = self._optimizer(optimizer, auxiliary_optimizer)
        super().compile(optimizer, loss, **kwargs)
        self._gives_logits = from_logits  # after all that may be refused
        self._axis = setting_of(loss, "axis", -1)
        self._ignore_class = setting_of(loss, "ignore_class")
        self._reduction = setting_of(loss, "reduction", "sum_over_batch_size")

    def _optimizer(self, optimizer, auxiliary):
        optimizer = keras.optimizers.get(optimizer)
        if auxiliary is None:
            return optimizer
        if _mutual_optimizer.is_mutual(optimizer):
            raise ValueError(
                "A `MutualOptimizer` is the optimizer of the auxiliaries too. "
                "Received: an `auxiliary_optimizer` beside it. Leave it out."
            )
        return _mutual_optimizer.combined(optimizer, auxiliary)

    def _resolve_from_logits(self, loss):
        declared = setting_of(loss, "from_logits")
        known = _networks.gives_logits(self._kinds)
        if self.from_logits is not None:
            known = _networks.check_told(self._kinds, self.from_logits)
        if None not in (declared, known) and bool(declared) != known:
            given = "logits" if known else "probabilities"
            raise ValueError(
                f"The networks give {given}. Received: a loss with "
                f"from_logits={declared}. Pass `from_logits={known}` to the "
                "loss."
            )
        if declared is None and known is None:
            raise ValueError(
                "Neither the loss nor the networks show whether these give "
                f"logits or probabilities. Received: loss={loss}. Pass "
                "`from_logits=` to the constructor."
            )
        return bool(declared if known is None else known)

    def call(self, inputs: Any, training: bool | None = None) -> Tensor:
        return self.primary(inputs, training=training)

    def _objective(self, i):
        """`L_i = supervised_i + weight * mean over j != i of KL(p_j || p_i)`.

        Returns the two factors and the peers `j`; network 0 is the primary.
        """
        peers = [j for j in range(len(self.networks)) if j != i]
        return 1.0, self.weight, peers

    @property
    def losses(self):
        """Penalties of the primary: regularizers and `add_loss`."""
        return keras_private.forward_losses(self) or self.primary.losses

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Tensor:
        sample_weight = self._aligned(unwrapped(sample_weight), y_pred)
        if not training:
            loss = keras_private.compile_loss(self, y, y_pred, sample_weight)
            return ops.add(loss, self._total(self.losses))
        outputs, penalties = self._run_all(x, y_pred)
        terms = self._terms(y, outputs, penalties, sample_weight)
        supervised, divergence, primary = terms[0]
        auxiliary = total(value for _, _, value in terms[1:])
        self._track(
            y_pred,
            supervised_loss=supervised,
            peer_divergence=divergence,
            auxiliary_loss=auxiliary,
        )
        self._track_accuracy(y, outputs[1:], sample_weight)
        # The value of the primary's objective, the gradients of all.
        nothing = ops.subtract(auxiliary, ops.stop_gradient(auxiliary))
        return ops.add(primary, nothing)

    def _terms(self, y, outputs, penalties, sample_weight):
        """Supervised loss, divergence, and objective `L_i` of each network.

        divergence_i = mean over peers j of KL(p_j || p_i)
        L_i = label_weight * supervised_i + divergence_weight * divergence_i
              + penalty_i
        """
        log_p = [
            _networks.log_probabilities(o, self._gives_logits, self._axis)
            for o in outputs
        ]
        masks = [keras_private.keras_mask(output) for output in outputs]
        terms = []
        for i, output in enumerate(outputs):
            factor, weight, peers = self._objective(i)
            with beside_metrics(i > 0):  # those are of the primary
                supervised = self._on_labels(factor, y, output, sample_weight)
            divergence = self._divergence(i, peers, log_p, masks, sample_weight)
            value = total([supervised, weight * divergence, penalties[i]])
            terms.append((supervised, divergence, value))
        return terms

    def _run_all(self, x, y_pred):
        """The output and the penalty of each network."""
        outputs, penalties = [y_pred], [self._total(self.losses)]
        for network in self.auxiliaries:
            output, losses = _networks.outputs_and_losses(network, x)
            outputs.append(output)
            penalties.append(self._total(losses))
        shapes = [output.shape for output in outputs]
        _networks.check_class_counts(_networks.named(shapes), self._axis)
        _networks.check_units(self.loss, y_pred.shape[self._axis])
        return outputs, penalties

    def _on_labels(self, factor, y, output, sample_weight):
        """The loss of `compile`, times its factor."""
        # A tensor of value 0 may have another value in the next step.
        if isinstance(factor, float) and factor == 0:
            return 0.0
        loss = keras_private.compile_loss(self, y, output, sample_weight)
        # For an empty batch, Keras returns an array of no value.
        return ops.multiply(factor, ops.sum(loss))

    def _divergence(self, i, peers, log_p, masks, sample_weight):
        """The mean over the peers `j` of `KL(p_j || p_i)`."""

        def of(j):
            pair = masks[j], masks[i]
            return reduced_divergence(
                log_p[j], log_p[i], sample_weight, pair, self._reduction
            )

        return total(map(of, peers)) / len(peers)

    def _total(self, losses):
        """Sum of penalties, scaled as Keras does it for replicas."""
        scaled = keras_private.additional_loss
        return total(scaled(self, loss) for loss in losses)

    def _aligned(self, sample_weight, y_pred):
        """One weight for each row of class scores, aligned from the left.

        Keras' losses would align weights `(batch,)` with the last axis.
        """
        if sample_weight is None or not ops.is_tensor(y_pred):
            return sample_weight
        batch, lead = list(ops.shape(y_pred)), list(y_pred.shape)
        del batch[self._axis], lead[self._axis]
        return from_the_left(sample_weight, tuple(batch), tuple(lead))

    def _track(self, y_pred, **values):
        batch, replicas = ops.shape(y_pred)[0], num_replicas()
        for name, value in values.items():
            # As Keras shows a loss: means were divided by the number of
            # replicas, and sums are of one of them.
            tracker = self._trackers[name]
            tracker.update_state(value * replicas, sample_weight=batch)

    def _track_accuracy(self, y, outputs, sample_weight):
        for output in outputs:
            rows = as_rows(
                y,
                output,
                sample_weight,
                from_logits=self._gives_logits,
                axis=self._axis,
                ignore_class=self._ignore_class,
                check=False,
            )
            correct = ops.equal(rows.predicted, rows.labels)
            self._trackers["auxiliary_accuracy"].update_state(
                ops.cast(correct, "float32"), sample_weight=rows.weights
            )

    # The metrics of training must not appear as `val_...: 0`. A flag, because
    # `evaluate` reads the results inside the step and at the end.
    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        self._evaluating = True
        try:
            return super().evaluate(*args, **kwargs)
        finally:
            self._evaluating = False

    def test_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        self._evaluating = True
        try:
            return super().test_on_batch(*args, **kwargs)
        finally:
            self._evaluating = False

    def get_metrics_result(self) -> dict[str, Any]:
        results = super().get_metrics_result()
        if self._evaluating:
            for name in TRAINING_ONLY:
                results.pop(name, None)
        return results

    def export(self, *args: Any, **kwargs: Any) -> None:
        """Export the primary, as `keras.Model.export` does."""
        return self.primary.export(*args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        return to_config(super().get_config(), self.parts, self.networks)

    @classmethod
    def _with_models(cls, config, custom_objects=None):
        config = super()._with_models(config, custom_objects)
        return from_config(config, cls.parts)
