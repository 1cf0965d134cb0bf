"""How the calibrated model is compiled, so that `evaluate` works."""

from typing import Any

import keras
from keras import ops

from keras_calib._typing import Tensor
from keras_calib.calibration._preprocessed import PreprocessedModel
from keras_calib.keras_private import keras_mask
from keras_calib.losses import FocalLoss


def compile_for_evaluate(
    model,
    output,
    num_units,
    one_hot,
    ignore_class,
    place=None,
    multi_label=False,
    plain=True,
    alone=False,
):
    """Compile with the cross-entropy, and with the accuracy if Keras can.

    With `alone`, where no loss of Keras computes it, the model is not compiled.

    Args:
        model: the calibrated model.
        output: `"probabilities"` or `"logits"`.
        num_units: size of the class axis of the outputs.
        one_hot: whether labels are one-hot rows; for one unit, rows of two.
            `None` for either.
        ignore_class: `None`, or the label that is ignored.
        place: `OneOutput`, if the model has others, too.
        multi_label: see `calibrate`.
        plain: whether the losses of Keras will do. They cannot weigh whole
            sequences or images, nor take labels of every kind.
        alone: whether a program without this package has to load the model.
    """
    from_logits = output == "logits"
    kind = "sparse"
    if multi_label:
        kind = "labels"
    elif num_units == 1:
        kind = "sigmoid"
    elif one_hot:
        kind = "one_hot"
    elif one_hot is None:
        kind = "either"
    if ignore_class is None:
        loss, metrics = _loss_and_accuracy(kind, from_logits)
        if kind == "sigmoid" and one_hot:
            # Keras' would compare rows of two with one number.
            metrics = []
    else:
        # Keras' accuracy would count the ignored label.
        loss, metrics = _loss_without(kind, from_logits, ignore_class), []
    if kind == "sigmoid" and one_hot is not False:
        plain = False
    if not plain and kind != "labels":
        loss = _cross_entropy(from_logits, ignore_class)
    if alone and not type(loss).__module__.startswith("keras."):
        return
    if place is not None:
        loss, metrics = place.only_here(loss), place.only_here(metrics)
    # Weights of a preprocessor may be what tells padding from tokens.
    weighted = isinstance(model, PreprocessedModel)
    argument = "weighted_metrics" if weighted else "metrics"
    # An optimizer without slots, whose file loads without a warning.
    optimizer = keras.optimizers.SGD()
    if model.dtype_policy.name == "mixed_float16":
        # Keras would wrap it, too, but load it wrapped under this policy alone,
        # and it is built when it is loaded.
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        optimizer.build(model.trainable_variables)
    model.compile(optimizer, loss=loss, **{argument: metrics})


def takes_rows(loss: Any, num_units: int) -> bool | None:
    """Whether the labels of a compiled loss are rows; `None` for either.

    Without a loss they are class ids. Of Keras' losses the name tells, and for
    one unit they take ids; others may take either, as ours do.
    """
    if loss is None:
        return False
    kind = loss if hasattr(loss, "__name__") else type(loss)
    if not kind.__module__.startswith("keras."):
        return None
    return num_units > 1 and "sparse" not in kind.__name__.lower()


def _loss_and_accuracy(kind, from_logits):
    if kind in ("labels", "sigmoid"):
        threshold = 0.0 if from_logits else 0.5
        accuracy = keras.metrics.BinaryAccuracy("accuracy", threshold=threshold)
        loss = keras.losses.BinaryCrossentropy(from_logits)
        return loss, [accuracy]
    if kind == "either":
        loss = _cross_entropy(from_logits)
    elif kind == "one_hot":
        loss = keras.losses.CategoricalCrossentropy(from_logits)
    else:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits)
    return loss, ["accuracy"]


def _loss_without(kind, from_logits, ignore_class):
    """Cross-entropy without the samples or labels of the ignored class."""
    if kind == "labels":
        return LabelCrossentropy(
            from_logits=from_logits, ignore_class=ignore_class
        )
    if kind == "sparse":
        return keras.losses.SparseCategoricalCrossentropy(
            from_logits, ignore_class
        )
    # That of Keras for one unit and for one-hot labels cannot ignore.
    return _cross_entropy(from_logits, ignore_class)


def _cross_entropy(from_logits, ignore_class=None):
    """Of class ids or rows."""
    return FocalLoss(
        gamma=0.0,
        from_logits=from_logits,
        ignore_class=ignore_class,
        name="cross_entropy",
    )


@keras.saving.register_keras_serializable(package="keras_calib")
class LabelCrossentropy(keras.losses.Loss):
    """Binary cross-entropy of several labels, some of which are unknown.

    The loss of a batch is the mean over labels that are known, each weighted
    as its row.

    Args:
        from_logits: whether predictions are logits.
        ignore_class: the value of unknown labels.
        **kwargs: `reduction`, `name` and `dtype`, as in Keras.
    """

    def __init__(
        self, *, from_logits: bool, ignore_class: int, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.from_logits = from_logits
        self.ignore_class = ignore_class

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        known = ops.not_equal(y_true, self.ignore_class)
        labels = ops.where(known, y_true, 0)
        losses = ops.binary_crossentropy(
            ops.cast(labels, y_pred.dtype), y_pred, self.from_logits
        )
        known = ops.cast(known, losses.dtype)
        return ops.mean(
            ops.divide_no_nan(losses * known, self._share(known, y_pred)),
            axis=-1,
        )

    def _share(self, known, y_pred):
        """Of the labels that are known, among rows that no mask leaves out."""
        mask = keras_mask(y_pred)
        if mask is None:
            return ops.mean(known)
        of_rows = ops.cast(mask, known.dtype) * ops.mean(known, axis=-1)
        return ops.divide_no_nan(
            ops.sum(of_rows), ops.sum(ops.cast(mask, known.dtype))
        )

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "from_logits": self.from_logits,
            "ignore_class": self.ignore_class,
        }
