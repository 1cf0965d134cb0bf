"""Differentiated deep mutual learning: auxiliaries that keep their distance."""

import keras
import numpy as np
from keras import ops

from keras_calib.models._mutual_learning import MutualLearning
from keras_calib.models._mutual_optimizer import at_fixed_rate
from keras_calib.models._mutual_optimizer import is_mutual
from keras_calib.models._wrapped import arguments_of_fit
from keras_calib.models._wrapped import with_callback

# The paper gives no value: a fixed rate, lower than the primary's first one.
AUXILIARY_RATE = 0.1
# A number of steps that nobody has counted yet.
UNKNOWN = -1


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

    **What is known, and what is assumed.** The paper itself was not at hand;
    its supplement has Proposition 1, the tables and the names of the two
    ideas, but gives no training objective. That the primary minimises
    `KL(g || f)`, that auxiliaries see no label at any time, and that
    `weight` is 1 is how we read Proposition 1 together with one
    re-implementation. The auxiliaries' rate is nowhere given; a tenth of the
    primary's first one is ours.

    **The auxiliaries' rate** decides how good a teacher they are, and it acts
    through rate times steps. Without labels they lag behind the primary, and
    in a short training a low rate leaves them weak: the primary then loses
    accuracy and becomes underconfident, also against plain cross-entropy. Look
    at `auxiliary_accuracy` in the logs: where it stays well below `accuracy`,
    raise the rate of `auxiliary_optimizer` first, then try `label_warmup`.

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
        label_warmup: the auxiliaries learn labels too for so many of the first
            steps (int), or for that fraction of all steps of the first `fit`
            (float below 1), and never again. Not from the paper, which reports
            nothing of the kind. A dial from Diff-DML towards `MutualLearning`:
            in short trainings that memorise their data, a tenth to two fifths
            brought the accuracy of `MutualLearning` back and kept most of the
            calibration; in one that underfits it changed little.
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
        *,
        weight=1.0,
        peers="primary",
        differentiated_training=True,
        diversity_preserving=True,
        label_warmup=0,
        from_logits=None,
        **kwargs,
    ):
        if peers not in ("primary", "all"):
            raise ValueError(
                '`peers` must be "primary" or "all". '
                f"Received: peers={peers!r}."
            )
        _check_warmup(label_warmup)
        super().__init__(
            primary,
            auxiliaries,
            weight=weight,
            from_logits=from_logits,
            **kwargs,
        )
        self.peers = peers
        self.differentiated_training = differentiated_training
        self.diversity_preserving = diversity_preserving
        # A number that JSON knows, also where it came from NumPy.
        kind = int if _is_int(label_warmup) else float
        self.label_warmup = kind(label_warmup)
        if label_warmup:
            # Weights, because a compiled step does not see other changes, and
            # because a training that is resumed has to know where it is.
            self._steps_done = self._counter("steps_done", 0)
            # How many a fraction is, `fit` knows.
            first = label_warmup if _is_int(label_warmup) else UNKNOWN
            self._label_steps = self._counter("label_steps", first)

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
        if auxiliary is None and not is_mutual(optimizer):
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

    def fit(self, *args, **kwargs):
        if not self._waits_for_length():
            return super().fit(*args, **kwargs)
        arguments = arguments_of_fit(self, args, kwargs)
        arguments["callbacks"] = with_callback(
            _LabelWarmup(), arguments.get("callbacks")
        )
        return super().fit(**arguments)

    def train_on_batch(self, *args, **kwargs):
        if self._waits_for_length():
            raise ValueError(
                "`label_warmup` as a fraction needs to know how many steps "
                f"there are. Received: label_warmup={self.label_warmup} in "
                "`train_on_batch`. Pass a number of steps, or use `fit`."
            )
        return super().train_on_batch(*args, **kwargs)

    def _waits_for_length(self):
        """Whether the warm-up is a fraction of steps not counted yet."""
        return (
            self.label_warmup
            and int(ops.convert_to_numpy(self._label_steps)) == UNKNOWN
        )

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
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
    """Tells the model how many of the steps of this `fit` are warm-up.

    The first `fit` says it: a later one must not bring the labels back.
    """

    def on_train_begin(self, logs=None):
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
