"""Differentiated deep mutual learning: auxiliaries that keep their distance."""

import keras
from keras import ops

from keras_calib.models.mutual_learning import MutualLearning
from keras_calib.models.mutual_learning import _is_mutual
from keras_calib.models.mutual_optimizer import MutualOptimizer
from keras_calib.models.mutual_optimizer import at_fixed_rate

# The paper gives no value: a fixed rate, lower than the primary's first one.
AUXILIARY_RATE = 0.1


@keras.saving.register_keras_serializable(package="keras_calib")
class DiffDML(MutualLearning):
    """Differentiated deep mutual learning (Diff-DML): accurate and calibrated.

    A primary `f` and auxiliaries `g_1 ... g_A` minimise

        L_f = supervised + weight / A * sum_i KL(g_i || f)
        L_g = KL(f || g)

    Two ideas set it apart from `MutualLearning`. *Differentiated training*:
    while the primary's learning rate decays, the auxiliaries keep a fixed,
    lower one, so the networks stay different. *Diversity preservation*: the
    auxiliaries never see a label, they only follow the primary. By
    Proposition 1 learning from `g` is learning from the ensemble
    `(1 - b) f + b g` with `weight = b`.

    Only the primary is used afterwards; see `MutualLearning` for logs, and
    for what `evaluate`, `predict` and saving do.

    Args:
        primary: see `MutualLearning`.
        auxiliaries: one network, or a list (two give Diff-DML-2). Networks of
            about the primary's strength: a weak one ruins the calibration
            (Table S4).
        weight: float, of the divergence in the primary's objective. The
            supplement gives no value; 1 is what the formula reads as.
        peers: whom an auxiliary follows: `"primary"`, which keeps auxiliaries
            apart, or `"all"`, the mean over all others. Not specified for
            several auxiliaries; equal for one.
        differentiated_training: `False` trains all networks by one optimizer,
            with one schedule: an ablation.
        label_warmup: the auxiliaries learn labels too for so many of the first
            steps (int), or for that fraction of all steps (float below 1),
            and never again. Not from the paper, which reports nothing of the
            kind: without labels the auxiliaries of a short training stay weak
            teachers, and the primary's accuracy falls below that of
            `MutualLearning`.
        diversity_preserving: `False` gives the auxiliaries the objective of
            `MutualLearning`, labels included: an ablation. With both `False`
            this is `MutualLearning`.
        from_logits: see `MutualLearning`.
        **kwargs: `name`, as in Keras.

    Raises:
        ValueError: see `MutualLearning`; and for an unknown `peers`.

    Example:
        >>> import numpy as np, keras, keras_calib as kc
        >>> x = np.random.default_rng(0).normal(size=(64, 4))
        >>> y = np.arange(64) % 3
        >>> def network():
        ...     return keras.Sequential([keras.Input((4,)),
        ...                              keras.layers.Dense(3)])
        >>> pair = kc.models.DiffDML(network(), network())
        >>> schedule = keras.optimizers.schedules.CosineDecay(0.1, 100)
        >>> pair.compile(
        ...     optimizer=keras.optimizers.SGD(schedule),
        ...     auxiliary_optimizer=keras.optimizers.SGD(0.01),
        ...     loss=kc.losses.FocalLoss(gamma=1.0, from_logits=True),
        ...     metrics=["accuracy"])
        >>> history = pair.fit(x, y, verbose=0)
        >>> pair.primary.save("network.keras")  # doctest: +SKIP

    Reference:
        "Improving Accuracy and Calibration via Differentiated Deep Mutual
        Learning", CVPR 2025, supplement, Proposition 1 and Tables S1 to S4.
    """

    def __init__(
        self,
        primary,
        auxiliaries,
        weight=1.0,
        peers="primary",
        differentiated_training=True,
        diversity_preserving=True,
        from_logits=None,
        label_warmup=0,
        **kwargs,
    ):
        if peers not in ("primary", "all"):
            raise ValueError(
                '`peers` must be "primary" or "all". '
                f"Received: peers={peers!r}."
            )
        fraction = isinstance(label_warmup, float)
        if label_warmup < 0 or (fraction and label_warmup >= 1):
            raise ValueError(
                "`label_warmup` is a number of steps (int >= 0) or a fraction "
                "of all steps (float in [0, 1)). "
                f"Received: label_warmup={label_warmup!r}."
            )
        super().__init__(primary, auxiliaries, weight, from_logits, **kwargs)
        self.label_warmup = label_warmup
        if label_warmup:
            # Weights, because a compiled step does not see other changes, and
            # because a training that is resumed has to know where it is.
            self._steps_done = self._counter("steps_done")
            self._label_steps = self._counter("label_steps")
        self.peers = peers
        self.differentiated_training = differentiated_training
        self.diversity_preserving = diversity_preserving

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
            optimizer: the optimizer of the primary, usually with a schedule.
            loss: the supervised loss, any one loss of Keras or of ours.
            auxiliary_optimizer: the optimizer of the auxiliaries. By default
                a copy of `optimizer` whose learning rate stays at a tenth of
                the one that `optimizer` starts with.
            **kwargs: `metrics` and the rest, as in Keras.

        Raises:
            ValueError: if there is not exactly one loss; if the loss and the
                networks differ in `from_logits`; if `auxiliary_optimizer` is
                given without differentiated training.
        """
        super().compile(
            optimizer, loss, auxiliary_optimizer=auxiliary_optimizer, **kwargs
        )

    def _optimizer(self, optimizer, auxiliary):
        optimizer = keras.optimizers.get(optimizer)
        if not self.differentiated_training:
            if auxiliary is not None:
                raise ValueError(
                    "Without differentiated training one optimizer trains all "
                    "networks. Received: an `auxiliary_optimizer`. Leave it "
                    "out."
                )
            return optimizer
        if _is_mutual(optimizer):
            return optimizer
        if auxiliary is None:
            auxiliary = at_fixed_rate(optimizer, AUXILIARY_RATE)
        return MutualOptimizer(optimizer, auxiliary)

    def _counter(self, name):
        return self.add_weight(
            shape=(),
            initializer="zeros",
            dtype="int32",
            name=name,
            trainable=False,
        )

    def fit(self, *args, callbacks=None, **kwargs):
        if self.label_warmup:
            start = _LabelWarmup()
            if isinstance(callbacks, keras.callbacks.CallbackList):
                callbacks.append(start)
            else:
                callbacks = [start, *_as_list(callbacks)]
        return super().fit(*args, callbacks=callbacks, **kwargs)

    def compute_loss(self, *args, training=True, **kwargs):
        loss = super().compute_loss(*args, training=training, **kwargs)
        if training and self.label_warmup:
            self._steps_done.assign_add(1)
        return loss

    def _label_weight(self, i):
        if i == 0 or not self.diversity_preserving:
            return 1.0
        if not self.label_warmup:
            return 0.0
        return ops.cast(self._steps_done < self._label_steps, "float32")

    def _peers_of(self, i):
        follows = self.diversity_preserving and self.peers == "primary"
        return [0] if i > 0 and follows else super()._peers_of(i)

    def _weight_of(self, i):
        return 1.0 if i > 0 and self.diversity_preserving else self.weight

    def get_config(self):
        return {
            **super().get_config(),
            "peers": self.peers,
            "differentiated_training": self.differentiated_training,
            "diversity_preserving": self.diversity_preserving,
            "label_warmup": self.label_warmup,
        }


class _LabelWarmup(keras.callbacks.Callback):
    """Tells the model how many of the steps of this `fit` are warm-up."""

    def on_train_begin(self, logs=None):
        steps = self.model.label_warmup
        if isinstance(steps, float):
            per_epoch = self.params["steps"]
            if per_epoch is None:
                raise ValueError(
                    "`label_warmup` as a fraction needs data of known length. "
                    f"Received: label_warmup={steps}. Pass a number of steps, "
                    "or `steps_per_epoch=` to `fit`."
                )
            steps = round(steps * per_epoch * self.params["epochs"])
        self.model._label_steps.assign(steps)


def _as_list(callbacks):
    if callbacks is None:
        return []
    return callbacks if isinstance(callbacks, list | tuple) else [callbacks]
