"""Differentiated deep mutual learning: auxiliaries that stay different."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib._typing import Logs
from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import require_flags
from keras_calib.inputs.arguments import require_one_of
from keras_calib.models._mutual_learning import MutualLearning
from keras_calib.models._mutual_optimizer import at_fixed_rate
from keras_calib.models._mutual_optimizer import is_mutual
from keras_calib.models._wrapped import arguments_of_fit
from keras_calib.models._wrapped import with_callback

# Fraction of the primary's first learning rate; the paper gives no value.
AUXILIARY_RATE = 0.1
# In place of a number of steps that is not known yet.
UNKNOWN = -1


@keras.saving.register_keras_serializable(package="keras_calib")
class DiffDML(MutualLearning):
    """Differentiated deep mutual learning (Diff-DML): accurate and calibrated.

    A primary `f` and auxiliaries `g_1 ... g_A` minimize

        L_f = supervised + weight / A * sum_i KL(g_i || f)
        L_g = KL(f || g)

    It differs from `MutualLearning` in two ways. *Differentiated training*: the
    auxiliaries keep a fixed, lower learning rate while that of the primary
    decays, so the networks stay different. *Diversity preservation*: the
    auxiliaries are not trained on labels, only on the predictions of the
    primary. By Proposition 1, learning from `g` is learning from the ensemble
    `(1 - b) f + b g` with `weight = b`.

    **What is known, and what is assumed.** The supplement, all that we have of
    the paper, has Proposition 1 and the tables, but no training objective and
    no schedule. That the primary minimizes `KL(g || f)`, that auxiliaries are
    never trained on labels, and that `weight` is 1 is our reading of
    Proposition 1 and of one re-implementation. That the rate of the auxiliaries
    is fixed and lower is from secondary accounts of the paper, which name the
    two parts above. Its value is not known; a tenth of the first rate of the
    primary is our choice.

    **The learning rate of the auxiliaries** times the number of steps decides
    how accurate they become. Without labels they are less accurate than the
    primary. In a short training with a low rate, the primary then loses
    accuracy and becomes underconfident, also compared with plain cross-entropy.
    If `auxiliary_accuracy` in the logs stays well below `accuracy`, increase
    the rate of `auxiliary_optimizer` first (in a short training up to the first
    rate of the primary), then try `label_warmup`.

    `compile` takes an `auxiliary_optimizer`, by default a copy of `optimizer`
    whose learning rate stays at a tenth of the one that `optimizer` starts
    with. Only the primary is used after training; see `MutualLearning` for the
    logs, and for `evaluate`, `predict` and saving.

    Args:
        primary: see `MutualLearning`.
        auxiliaries: one network, or a list (two give Diff-DML-2). Networks of
            about the primary's strength: a weak one ruins the calibration
            (Table S4).
        peers: the networks that an auxiliary learns from: `"primary"`, which
            keeps auxiliaries different, or `"all"`, the mean over all others.
            The supplement does not specify it; both are equal for one
            auxiliary.
        differentiated_training: `False` trains all networks with one optimizer
            and one schedule, as an ablation.
        diversity_preserving: `False` gives the auxiliaries the objective of
            `MutualLearning`, with labels, as an ablation. With both `False`
            this is `MutualLearning`.
        label_warmup: number of first steps (int), or fraction of all steps of
            the first `fit`, from epoch 0 to `epochs` (float below 1), in which
            the auxiliaries are also trained on labels. Not from the paper. In
            `examples/results/S.md` 0.2 recovered more than half of the
            accuracy that the primary lost against `MutualLearning`, with an
            ECE at most one point higher.
        **kwargs: `weight`, the factor of the divergence in the primary's
            objective (defaults to 1; the supplement gives no value);
            `from_logits`, see `MutualLearning`; `name`, as in Keras.

    Raises:
        ValueError: see `MutualLearning`; also for an unknown `peers`, and in
            `compile`, if `auxiliary_optimizer` is passed without
            differentiated training.

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

    settings = (
        *MutualLearning.settings,
        "peers",
        "differentiated_training",
        "diversity_preserving",
        "label_warmup",
    )

    def __init__(
        self,
        primary: keras.Model,
        auxiliaries: keras.Model | Sequence[keras.Model],
        *,
        peers: str = "primary",
        differentiated_training: bool = True,
        diversity_preserving: bool = True,
        label_warmup: float = 0,
        **kwargs: Any,
    ) -> None:
        require_one_of(("primary", "all"), peers=peers)
        require_flags(
            differentiated_training=differentiated_training,
            diversity_preserving=diversity_preserving,
        )
        _check_warmup(label_warmup)
        super().__init__(primary, auxiliaries, **kwargs)
        self.peers = peers
        self.differentiated_training = differentiated_training
        self.diversity_preserving = diversity_preserving
        # A number that JSON can store, also if a NumPy scalar was passed in.
        kind = int if _is_int(label_warmup) else float
        self.label_warmup = kind(label_warmup)
        if label_warmup:
            # Weights, because a compiled step ignores changes of attributes,
            # and because a resumed training continues to count.
            self._steps_done = self._counter("steps_done", 0)
            # `fit` sets the number of steps for a fraction.
            first = label_warmup if _is_int(label_warmup) else UNKNOWN
            self._label_steps = self._counter("label_steps", first)

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
        known = optimizer is None or is_mutual(optimizer)
        if auxiliary is None and not known:
            auxiliary = at_fixed_rate(optimizer, AUXILIARY_RATE)
        return super()._optimizer(optimizer, auxiliary)

    def _counter(self, name, value):
        return self.add_weight(
            shape=(),
            initializer=keras.initializers.Constant(value),
            dtype="int32",
            name=name,
            trainable=False,
            # Replicas of a strategy count the same steps.
            aggregation="only_first_replica",
        )

    def fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        if not self._waits_for_length():
            return super().fit(*args, **kwargs)
        arguments = arguments_of_fit(self, args, kwargs)
        arguments["callbacks"] = with_callback(
            _LabelWarmup(), arguments.get("callbacks")
        )
        return super().fit(**arguments)

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        if self._waits_for_length():
            raise ValueError(
                "`label_warmup` as a fraction needs to know how many steps "
                f"there are. Received: label_warmup={self.label_warmup} in "
                "`train_on_batch`. Pass a number of steps, or use `fit`."
            )
        return super().train_on_batch(*args, **kwargs)

    def _waits_for_length(self):
        """Whether the warm-up is a fraction of an unknown number of steps."""
        return (
            self.label_warmup
            and int(ops.convert_to_numpy(self._label_steps)) == UNKNOWN
        )

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Tensor:
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        if training and self.label_warmup:
            self._steps_done.assign_add(1)
        return loss

    def _objective(self, i):
        """The objectives of the primary `f` (0) and of an auxiliary `g`.

            L_f = supervised + weight * mean over i of KL(g_i || f)
            L_g = KL(f || g)

        Returns:
            label_weight, divergence_weight, peers: see `MutualLearning`.
        """
        dml = super()._objective(i)
        if i == 0 or not self.diversity_preserving:
            return dml
        label_weight, divergence_weight, peers = 0.0, 1.0, [0]
        if self.label_warmup:
            early = self._steps_done < self._label_steps
            label_weight = ops.cast(early, "float32")
        if self.peers == "all":
            *_, peers = dml
        return label_weight, divergence_weight, peers


class _LabelWarmup(keras.callbacks.Callback):
    """Sets the number of warm-up steps of a model in its first `fit`.

    A later `fit` must not train on labels again.
    """

    def on_train_begin(self, logs: Logs = None) -> None:
        per_epoch = self.params.get("steps")
        if per_epoch is None:
            raise ValueError(
                "`label_warmup` as a fraction needs data of known length. "
                f"Received: label_warmup={self.model.label_warmup}. Pass a "
                "number of steps, or `steps_per_epoch=` to `fit`."
            )
        steps = self.model.label_warmup * per_epoch * self.params["epochs"]
        self.model._label_steps.assign(round(steps))


def _is_int(value):
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _check_warmup(label_warmup):
    fraction = isinstance(label_warmup, float | np.floating)
    if (
        not (fraction or _is_int(label_warmup))
        or not label_warmup >= 0
        or (fraction and label_warmup >= 1)
    ):
        raise ValueError(
            "`label_warmup` is a number of steps (int >= 0) or a fraction "
            "of all steps (float in [0, 1)). "
            f"Received: label_warmup={label_warmup!r}."
        )
