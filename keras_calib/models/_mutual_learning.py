"""Networks that learn from one another, in one `fit`."""

import inspect

import keras
from keras import ops

from keras_calib.inputs.rows import as_rows
from keras_calib.keras_graph.heads import output_kind
from keras_calib.keras_private import additional_loss
from keras_calib.keras_private import compile_loss
from keras_calib.keras_private import forward_losses
from keras_calib.keras_private import keras_mask
from keras_calib.models._mutual_optimizer import combined
from keras_calib.models._mutual_optimizer import is_mutual
from keras_calib.models._mutual_optimizer import mark
from keras_calib.models._networks import check_class_counts
from keras_calib.models._networks import check_distinct
from keras_calib.models._networks import check_networks
from keras_calib.models._networks import check_told
from keras_calib.models._networks import from_the_left
from keras_calib.models._networks import gives_logits
from keras_calib.models._networks import log_probabilities
from keras_calib.ops.replicas import num_replicas

TRAINING_ONLY = (
    "supervised_loss",
    "peer_divergence",
    "auxiliary_loss",
    "auxiliary_accuracy",
)


def kl_divergence(peer, own):
    """`KL(p || q) = sum_k p_k (log p_k - log q_k)`; the peer is a constant.

    Args:
        peer: `log p`, shape `(..., num_classes)`; no gradient flows into it.
        own: `log q`, of the same shape.

    Returns:
        One value per row, in nats, shape `(...)`.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> peer, own = np.log([[0.5, 0.5]]), np.log([[0.9, 0.1]])
        >>> round(float(kc.models.kl_divergence(peer, own)[0]), 4)
        0.5108

    Reference:
        Zhang et al., "Deep Mutual Learning", CVPR 2018, eq. 4.
    """
    peer = ops.stop_gradient(ops.convert_to_tensor(peer))
    return ops.sum(ops.exp(peer) * (peer - own), axis=-1)


@keras.saving.register_keras_serializable(package="keras_calib")
class MutualLearning(keras.Model):
    r"""Deep mutual learning (DML): networks that teach one another.

    For K networks with predictions `p_1 ... p_K`, each minimises

        L_i = supervised_i + weight / (K - 1) * sum_{j != i} KL(p_j || p_i)

    where a peer `p_j` is a constant. All networks see the same batch, each
    runs once, and all are updated together.

    The pair is its primary: `predict`, `evaluate`, `export`, validation and
    metrics run the primary only, and `pair.primary` is the network to keep.
    The logs of `fit` add `supervised_loss` (the primary's), `peer_divergence`
    (the mean KL from its peers), `auxiliary_loss` (summed over auxiliaries)
    and `auxiliary_accuracy` (the mean over auxiliaries, of the predictions
    that the step trains on); `loss` is the primary's objective.

    Sample weights and masks act in every part, aligned from the left:
    `(batch,)` weighs whole sequences and images. `axis` and `reduction` are
    those of the loss. A label that it ignores is a row without a label: the
    divergence, which needs none, counts it.

    Args:
        primary: a `keras.Model`, a classifier with one output of shape
            `(..., num_classes)`, or `(..., 1)` for one sigmoid unit.
        auxiliaries: one such network, or a list of them. Architectures may
            differ. Layers without trainable weights may be shared, others not.
        weight: float, what the divergence from the peers is multiplied by.
        from_logits: whether the networks give logits. By default the loss
            knows, or the last layer of the networks tells.
        **kwargs: `name`, as in Keras.

    Raises:
        ValueError: if networks share trainable weights, differ in the number
            of classes, if one gives logits and another probabilities, or if
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

    def __init__(
        self, primary, auxiliaries, *, weight=1.0, from_logits=None, **kwargs
    ):
        if not isinstance(auxiliaries, list | tuple):
            auxiliaries = [auxiliaries]
        networks = _named(primary, auxiliaries)
        if not auxiliaries or not weight >= 0:
            raise ValueError(
                "Mutual learning needs at least one auxiliary network and "
                f"`weight` >= 0. Received: {len(auxiliaries)} auxiliaries, "
                f"weight={weight}."
            )
        # Inputs reach each network as they are, whatever its policy.
        kwargs = {"dtype": primary.dtype_policy, "autocast": False, **kwargs}
        kinds = check_networks(networks)
        super().__init__(**kwargs)
        self.weight = weight
        self.from_logits = from_logits
        self._kinds = kinds
        self.primary = primary
        # An attribute each: in a list, PyTorch would find only one of several
        # equally named weights, and not reset the gradients of the others.
        self.num_auxiliaries = len(auxiliaries)
        for i, network in enumerate(auxiliaries):
            setattr(self, f"auxiliary_{i}", network)
        self._evaluating = False
        self._trackers = {
            name: keras.metrics.Mean(name=name) for name in TRAINING_ONLY
        }
        if all(network.built for network in self.networks):
            self._mark()
            self.built = True

    @property
    def output_kind(self):
        """What the primary gives, for `kc.calibrate`; `None` if unknown."""
        if self.from_logits is not None:
            return "logits" if self.from_logits else "probabilities"
        return output_kind(self.primary)

    @property
    def auxiliaries(self):
        """The auxiliary networks, a list."""
        return [
            getattr(self, f"auxiliary_{i}") for i in range(self.num_auxiliaries)
        ]

    @property
    def networks(self):
        """All networks, the primary first."""
        return [self.primary, *self.auxiliaries]

    def build(self, input_shape):
        for network in self.networks:
            if not network.built:
                network(_symbolic(input_shape, network.input_dtype))
        check_distinct(_named(self.primary, self.auxiliaries))
        self._mark()
        self.built = True

    def _mark(self):
        mark(self.primary, "primary")
        for network in self.auxiliaries:
            mark(network, "auxiliary")

    def compile(
        self,
        optimizer="rmsprop",
        loss=None,
        *,
        auxiliary_optimizer=None,
        **kwargs,
    ):
        """Compile as in Keras, with an optimizer for the auxiliaries.

        Args:
            optimizer: the optimizer of the primary.
            loss: the supervised loss, any one loss of Keras or of ours.
            auxiliary_optimizer: the optimizer of the auxiliaries. By default
                `optimizer`, its schedule and its callbacks drive all networks.
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
        # Layers may have been unfrozen since the networks were given.
        check_distinct(_named(self.primary, self.auxiliaries))
        self._logits = self._resolve_from_logits(loss)
        self._axis = _setting(loss, "axis", -1)
        self._ignore_class = _setting(loss, "ignore_class")
        self._reduction = getattr(loss, "reduction", None)
        super().compile(
            self._optimizer(optimizer, auxiliary_optimizer), loss, **kwargs
        )

    def _optimizer(self, optimizer, auxiliary):
        optimizer = keras.optimizers.get(optimizer)
        if auxiliary is None:
            return optimizer
        if is_mutual(optimizer):
            raise ValueError(
                "A `MutualOptimizer` is the optimizer of the auxiliaries too. "
                "Received: an `auxiliary_optimizer` beside it. Leave it out."
            )
        return combined(optimizer, auxiliary)

    def _resolve_from_logits(self, loss):
        declared = _setting(loss, "from_logits")
        known = gives_logits(self._kinds)
        if self.from_logits is not None:
            known = check_told(self._kinds, self.from_logits)
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

    def compile_from_config(self, config):
        config = keras.saving.deserialize_keras_object(config)
        self.compile(**config)
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)

    def call(self, inputs, training=None):
        return self.primary(inputs, training=training)

    def _label_weight(self, i):
        """Factor of the supervised loss of network `i` (0 is the primary)."""
        return 1.0

    def _peers_of(self, i):
        """Which networks network `i` learns from."""
        return [j for j in range(len(self.networks)) if j != i]

    @property
    def losses(self):
        """Penalties of the primary: regularizers and `add_loss`."""
        return forward_losses(self) or self.primary.losses

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        sample_weight = self._aligned(sample_weight, y_pred)
        penalties = [self._total(self.losses)]
        if not training:
            loss = compile_loss(self, y, y_pred, sample_weight)
            return loss + penalties[0]
        outputs = [y_pred]
        for network in self.auxiliaries:
            output, losses = _train(network, x)
            outputs.append(output)
            penalties.append(self._total(losses))
        check_class_counts(
            _named(outputs[0].shape, [o.shape for o in outputs[1:]]), self._axis
        )
        self._check_units(y_pred)
        logs = [log_probabilities(o, self._logits, self._axis) for o in outputs]
        masks = [keras_mask(output) for output in outputs]
        supervised, divergences, objectives = [], [], []
        for i, output in enumerate(outputs):
            supervised.append(0.0)
            factor = self._label_weight(i)
            # A tensor may be 0 now and 1 later; the number 0.0 stays 0.
            if not (isinstance(factor, float) and factor == 0):
                # Keras gives no number for an empty batch, but none at all.
                loss = compile_loss(self, y, output, sample_weight)
                supervised[i] = factor * ops.sum(loss)
            peers = self._peers_of(i)
            divergences.append(
                sum(
                    self._divergence(
                        logs[j], logs[i], sample_weight, (masks[j], masks[i])
                    )
                    for j in peers
                )
                / len(peers)
            )
            objectives.append(
                supervised[i]
                + self._weight_of(i) * divergences[i]
                + penalties[i]
            )
        auxiliary = sum(objectives[1:])
        self._track(y_pred, supervised[0], divergences[0], auxiliary)
        self._track_accuracy(y, outputs[1:], sample_weight)
        # The value is the primary's objective, the gradient everyone's.
        return objectives[0] + (auxiliary - ops.stop_gradient(auxiliary))

    def _weight_of(self, i):
        return self.weight

    def _total(self, losses):
        """Sum of penalties, scaled as Keras does it for replicas."""
        return sum(additional_loss(self, loss) for loss in losses)

    def _aligned(self, sample_weight, y_pred):
        """Weights from the left, one for each row of class scores.

        Keras' losses would take `(batch,)` for a row of the last axis. A loss
        that is no classification loss may give what it likes: its weights stay
        as they are, unless the shape of the outputs leaves no choice.
        """
        if sample_weight is None or not ops.is_tensor(y_pred):
            return sample_weight
        shape = list(ops.shape(y_pred))
        del shape[self._axis]
        return from_the_left(sample_weight, tuple(shape))

    def _check_units(self, y_pred):
        binary = keras.losses.BinaryCrossentropy
        binary = (binary, keras.losses.BinaryFocalCrossentropy)
        units = y_pred.shape[self._axis]
        if isinstance(self.loss, binary) and units > 1:
            raise ValueError(
                "Networks that learn together give a distribution over "
                f"classes. Received: {units} outputs with "
                f"{type(self.loss).__name__}, a label each. Use a softmax and "
                "a categorical loss, or one sigmoid unit."
            )

    def _divergence(self, peer, own, sample_weight, masks):
        """`kl_divergence`, weighted and reduced as the loss of `compile` is."""
        values = kl_divergence(peer, own)
        counts = ops.ones_like(values)
        for mask in masks:
            if mask is not None:
                mask = from_the_left(mask, ops.shape(values))
                counts = counts * ops.cast(mask, values.dtype)
        weights = counts
        if sample_weight is not None:
            weights = counts * ops.cast(sample_weight, values.dtype)
        # What does not count may be NaN.
        total = ops.sum(ops.where(weights == 0, 0.0, values * weights))
        if self._reduction == "sum":
            return total
        if self._reduction == "mean_with_sample_weight":
            counts = weights
        mean = ops.divide_no_nan(total, ops.sum(counts))
        # As Keras does: replicas add their losses up.
        return mean / num_replicas()

    def _track(self, y_pred, *values):
        batch = ops.shape(y_pred)[0]
        # Keras divides means by the replicas of a strategy: undo it.
        replicas = 1 if self._reduction == "sum" else num_replicas()
        trackers = list(self._trackers.values())[: len(values)]
        for tracker, value in zip(trackers, values, strict=True):
            tracker.update_state(value * replicas, sample_weight=batch)

    def _track_accuracy(self, y, outputs, sample_weight):
        for output in outputs:
            rows = as_rows(
                y,
                output,
                sample_weight,
                from_logits=self._logits,
                axis=self._axis,
                ignore_class=self._ignore_class,
                check=False,
            )
            correct = ops.equal(rows.predicted, rows.labels)
            self._trackers["auxiliary_accuracy"].update_state(
                ops.cast(correct, "float32"), sample_weight=rows.weights
            )

    # What exists in training only must not appear as `val_...: 0`. `evaluate`
    # reads the results twice, inside the step and at the end: a flag reaches
    # both.
    def evaluate(self, *args, **kwargs):
        self._evaluating = True
        try:
            return super().evaluate(*args, **kwargs)
        finally:
            self._evaluating = False

    def test_on_batch(self, *args, **kwargs):
        self._evaluating = True
        try:
            return super().test_on_batch(*args, **kwargs)
        finally:
            self._evaluating = False

    def get_metrics_result(self):
        results = super().get_metrics_result()
        if self._evaluating:
            for name in TRAINING_ONLY:
                results.pop(name, None)
        return results

    def export(self, *args, **kwargs):
        """Export the primary, as `keras.Model.export` does."""
        return self.primary.export(*args, **kwargs)

    def get_config(self):
        serialize = keras.saving.serialize_keras_object
        return {
            "name": self.name,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "primary": serialize(self.primary),
            "auxiliaries": [serialize(part) for part in self.auxiliaries],
            "weight": self.weight,
            "from_logits": self.from_logits,
            "shared": _shared_layers(self.networks),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        def deserialize(part):
            return keras.saving.deserialize_keras_object(
                part, custom_objects=custom_objects
            )

        config = dict(config)
        config["primary"], *config["auxiliaries"] = _sharing(
            [
                deserialize(part)
                for part in (config["primary"], *config["auxiliaries"])
            ],
            config.pop("shared", []),
        )
        return cls(**config)


def _shared_layers(networks):
    """Layers with a state that networks share, for the config.

    Returns:
        A list of `[i, j, name]`: network `i` has a layer of network `j < i`.

    Raises:
        ValueError: if a layer is shared that a file cannot share again.
    """
    found, owner, covered = [], {}, set()
    for i, network in enumerate(networks):
        for layer in network.layers:
            if id(layer) in owner and getattr(network, "outputs", None):
                found.append([i, owner[id(layer)], layer.name])
                covered |= {id(variable) for variable in layer.variables}
            elif layer.variables:
                owner[id(layer)] = i
    seen = {}
    for i, network in enumerate(networks):
        for variable in network.variables:
            first = seen.setdefault(id(variable), i)
            if first != i and id(variable) not in covered:
                raise ValueError(
                    "Networks that are saved together can share layers of "
                    "Functional and Sequential models, not layers deeper "
                    f"inside. Received: the shared state {variable.path!r}. "
                    "Save `pair.primary`, or share the outermost layer."
                )
    return found


def _sharing(networks, shared):
    """Networks read from a file, which share layers again."""
    networks = list(networks)
    for i in sorted({entry[0] for entry in shared}):
        layers = {
            name: networks[j].get_layer(name)
            for owner, j, name in shared
            if owner == i
        }

        def again(layer, layers=layers):
            return layers.get(layer.name, layer)

        networks[i] = keras.models.clone_model(
            networks[i], clone_function=again
        )
    return networks


def _named(primary, auxiliaries):
    names = [f"auxiliary {i}" for i in range(len(auxiliaries))]
    return dict(
        zip(["the primary", *names], [primary, *auxiliaries], strict=True)
    )


def _symbolic(shape, dtype):
    """Symbolic inputs: building a subclassed model creates no weights."""
    if isinstance(shape, dict):
        return {key: _symbolic(part, dtype) for key, part in shape.items()}
    if isinstance(shape, list | tuple) and any(
        isinstance(part, list | tuple | dict) for part in shape
    ):
        return [_symbolic(part, dtype) for part in shape]
    return keras.KerasTensor(shape, dtype=dtype)


def _setting(loss, name, default=None):
    """An argument of a loss object, or the default of a loss function's."""
    if hasattr(loss, name):
        return getattr(loss, name)
    if hasattr(loss, "get_config"):
        return loss.get_config().get(name, default)
    parameter = inspect.signature(loss).parameters.get(name)
    if parameter is None or parameter.default is parameter.empty:
        return default
    return parameter.default


def _train(network, x):
    """Outputs of a network in training, and its penalties.

    Where Keras computes a step without side effects, as on JAX, a scope must
    ask for what layers add by `add_loss`, or it is dropped.
    """
    if keras.backend.backend() != "jax":
        return network(x, training=True), network.losses
    before = [(variable, variable.value) for variable in network.variables]
    with keras.StatelessScope(before, collect_losses=True) as scope:
        output = network(x, training=True)
        losses = network.losses
    for variable, value in before:
        after = scope.get_current_value(variable)
        if after is not value:
            variable.assign(after)
    return output, losses
