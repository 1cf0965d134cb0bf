"""Differentiated deep mutual learning: auxiliaries that keep their distance."""

import keras

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
        **kwargs,
    ):
        if peers not in ("primary", "all"):
            raise ValueError(
                '`peers` must be "primary" or "all". '
                f"Received: peers={peers!r}."
            )
        super().__init__(primary, auxiliaries, weight, from_logits, **kwargs)
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

    def _learns_labels(self, i):
        return i == 0 or not self.diversity_preserving

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
        }
