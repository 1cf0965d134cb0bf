"""Networks that learn from one another, in one `fit`."""

import keras
from keras import ops

from keras_calib.models.mutual_optimizer import MutualOptimizer
from keras_calib.models.mutual_optimizer import mark
from keras_calib.models.networks import check_class_counts
from keras_calib.models.networks import check_networks
from keras_calib.models.networks import log_probabilities
from keras_calib.ops.replicas import num_replicas

TRAINING_ONLY = ("supervised_loss", "peer_divergence", "auxiliary_loss")


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


class _Divergence(keras.losses.Loss):
    """`kl_divergence`, weighted and reduced as `compile`'s loss is."""

    def call(self, y_true, y_pred):
        return kl_divergence(y_true, y_pred)


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
    (the mean KL from its peers) and `auxiliary_loss` (summed over auxiliaries);
    `loss` is the primary's objective.

    Args:
        primary: a `keras.Model`, a classifier with one output of shape
            `(..., num_classes)`.
        auxiliaries: one such network, or a list of them, built apart from the
            primary. Architectures may differ.
        weight: float, what the divergence from the peers is multiplied by.
        from_logits: whether the networks give logits. By default the loss
            knows, or the last layer of the networks tells. Given, it is
            trusted and the networks are not looked at.
        **kwargs: `name`, as in Keras.

    Raises:
        ValueError: if networks share weights, differ in the number of classes,
            or if one gives logits and another probabilities.

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
        self, primary, auxiliaries, weight=1.0, from_logits=None, **kwargs
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
        found = check_networks(networks, from_logits)
        # Inputs reach each network as they are, whatever its policy.
        kwargs = {"dtype": primary.dtype_policy, "autocast": False, **kwargs}
        super().__init__(**kwargs)
        self.weight = weight
        self.from_logits = from_logits
        self._found_logits = found
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
        check_networks(_named(self.primary, self.auxiliaries), self.from_logits)
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
            ValueError: if there is not exactly one loss, or the loss and the
                networks differ in `from_logits`.
        """
        if loss is None or isinstance(loss, list | tuple | dict):
            raise ValueError(
                "Mutual learning needs one supervised loss. "
                f"Received: loss={loss}."
            )
        loss = keras.losses.get(loss)
        self._logits = self._resolve_from_logits(loss)
        reduction = getattr(loss, "reduction", None) or "sum_over_batch_size"
        self._divergence = _Divergence(
            name="peer_divergence", reduction=reduction
        )
        super().compile(
            self._optimizer(optimizer, auxiliary_optimizer), loss, **kwargs
        )

    def _optimizer(self, optimizer, auxiliary):
        optimizer = keras.optimizers.get(optimizer)
        if auxiliary is None or _is_mutual(optimizer):
            return optimizer
        return MutualOptimizer(optimizer, auxiliary)

    def _resolve_from_logits(self, loss):
        declared = getattr(loss, "from_logits", None)
        if declared is None and hasattr(loss, "get_config"):
            declared = loss.get_config().get("from_logits")
        known = self._found_logits
        if self.from_logits is not None:
            known = self.from_logits
        if None not in (declared, known) and bool(declared) != known:
            given = "logits" if known else "probabilities"
            raise ValueError(
                f"The networks give {given}. Received: a loss with "
                f"from_logits={declared}. Pass `from_logits={known}` to the "
                "loss, or, if the networks were misread, "
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

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        # Weight penalties of the auxiliaries are in `self.losses` too.
        penalty = self._total(self.losses) - sum(
            self._total(network.losses) for network in self.auxiliaries
        )
        if not training:
            return self._compile_loss(y, y_pred, sample_weight) + penalty
        outputs = [y_pred]
        outputs += [network(x, training=True) for network in self.auxiliaries]
        penalties = [penalty]
        penalties += [
            self._total(network.losses) for network in self.auxiliaries
        ]
        check_class_counts(
            _named(outputs[0].shape, [o.shape for o in outputs[1:]])
        )
        logs = [log_probabilities(o, self._logits) for o in outputs]
        supervised, divergences, objectives = [], [], []
        for i, output in enumerate(outputs):
            supervised.append(0.0)
            factor = self._label_weight(i)
            # A tensor may be 0 now and 1 later; the number 0.0 stays 0.
            if not (isinstance(factor, float) and factor == 0):
                loss = self._compile_loss(y, output, sample_weight)
                supervised[i] = factor * loss
            peers = self._peers_of(i)
            divergences.append(
                sum(
                    self._divergence(logs[j], logs[i], sample_weight)
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
        # The value is the primary's objective, the gradient everyone's.
        return objectives[0] + (auxiliary - ops.stop_gradient(auxiliary))

    def _weight_of(self, i):
        return self.weight

    def _total(self, losses):
        """Sum of penalties, scaled as Keras does it for replicas."""
        return sum(map(self._aggregate_additional_loss, losses))

    def _track(self, y_pred, *values):
        batch = ops.shape(y_pred)[0]
        # Keras divides losses by the replicas of a strategy: undo it.
        replicas = num_replicas()
        for tracker, value in zip(self._trackers.values(), values, strict=True):
            tracker.update_state(value * replicas, sample_weight=batch)

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
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        def deserialize(part):
            return keras.saving.deserialize_keras_object(
                part, custom_objects=custom_objects
            )

        config = dict(config)
        config["primary"] = deserialize(config["primary"])
        config["auxiliaries"] = [
            deserialize(part) for part in config["auxiliaries"]
        ]
        return cls(**config)


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


def _is_mutual(optimizer):
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return isinstance(inner, MutualOptimizer)
