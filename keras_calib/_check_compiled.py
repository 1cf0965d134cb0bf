"""The losses and metrics of a model, one by one, for `kc.check`."""

import inspect

import keras

from keras_calib.keras_private import given_to_compile
from keras_calib.keras_private import metrics_of_compile
from keras_calib.losses._arguments import losses_of
from keras_calib.losses._arguments import setting_of
from keras_calib.losses._base import LossPart

LOSSES = keras.losses
SPARSE = (
    LOSSES.SparseCategoricalCrossentropy,
    LOSSES.sparse_categorical_crossentropy,
)
ROWS = (
    LOSSES.CategoricalCrossentropy,
    LOSSES.categorical_crossentropy,
    LOSSES.CategoricalFocalCrossentropy,
    LOSSES.categorical_focal_crossentropy,
)
BINARY_LOSSES = (
    LOSSES.BinaryCrossentropy,
    LOSSES.binary_crossentropy,
    LOSSES.BinaryFocalCrossentropy,
    LOSSES.binary_focal_crossentropy,
)
# Accuracies of class ids, by name and by class.
ACCURACIES = ("accuracy", "acc", "sparse_categorical_accuracy")
OF_CLASS_IDS = (
    keras.metrics.SparseCategoricalAccuracy,
    keras.metrics.SparseTopKCategoricalAccuracy,
)


# Those that compare a score with thresholds, by default 0.5.
AT_THRESHOLDS = (
    keras.metrics.Precision,
    keras.metrics.Recall,
    keras.metrics.TruePositives,
    keras.metrics.FalsePositives,
    keras.metrics.TrueNegatives,
    keras.metrics.FalseNegatives,
)


def titled_losses(model):
    """The losses of `compile`, as `(title, loss)`."""
    return [(_title(loss), loss) for loss in losses_of(model)]


def metrics_of(model):
    """The metrics of `compile` that read scores, as `(title, metric)`."""
    if not model.compiled:
        return
    names = [n for n in given_to_compile(model) if isinstance(n, str)]
    named = [_by_name(name, model) for name in names]
    for metric in metrics_of_compile(model) + named:
        # A part of a loss reads scores as the loss does.
        reader = metric.loss if isinstance(metric, LossPart) else metric
        if tells_logits(reader) or isinstance(
            metric, (keras.metrics.BinaryAccuracy, *AT_THRESHOLDS)
        ):
            yield f"the metric {metric.name!r}", reader


def tells_logits(each):
    """Whether a loss or metric says that it reads logits, or that it does not.

    So do Keras' losses that are functions, by their default.
    """
    return setting(each, "from_logits", None) is not None


def accuracies_of(model, weighted):
    """Titles of Keras' accuracies of class ids, none of which can ignore one.

    Args:
        model: a `keras.Model`.
        weighted: whether those that sample weights reach.
    """
    if not model.compiled:
        return
    for each in given_to_compile(model, [weighted]):
        if isinstance(each, str) and each in ACCURACIES:
            yield f"the metric {each!r}"
        elif type(each) in OF_CLASS_IDS:
            yield f"the metric {each.name!r}"


def class_axis_of(objects):
    """Which of `(title, loss or metric)` says its class axis, and the axis.

    `SparseCategoricalCrossentropy` does not show its own.
    """
    for title, each in objects:
        if is_ours(each) or is_any(each, (*SPARSE, *ROWS)):
            axis = setting(each, "axis", -1 if is_ours(each) else None)
            if axis is not None:
                return title, axis
    return None, None


def _by_name(name, model):
    """The metric that Keras makes of a name in its first step, or `None`."""
    if name in ("accuracy", "acc"):
        shape = getattr(model, "output_shape", None)
        if isinstance(shape, tuple) and shape[-1] == 1:
            return keras.metrics.BinaryAccuracy(name=name)
        return None
    try:
        return keras.metrics.get(name)
    except ValueError:  # "crossentropy", which depends on the shapes
        return None


def _title(loss):
    if inspect.isfunction(loss):
        return f"`{loss.__name__}`"
    return type(loss).__name__


def setting(each, name, default):
    """`setting_of`, also for a user's own loss that has no config."""
    try:
        return setting_of(each, name, default)
    except Exception:
        return default


def is_any(each, kinds):
    return any(
        isinstance(each, kind) if inspect.isclass(kind) else each is kind
        for kind in kinds
    )


def is_ours(each):
    return type(each).__module__.split(".")[0] == __name__.split(".")[0]


def about_one(title, each, kind, layout, multi_label=False):
    """Findings on a loss or metric by itself."""
    from_logits = setting(each, "from_logits", None)
    gives = {True: "logits", False: "probabilities"}.get(from_logits)
    if gives and kind in ("logits", "probabilities") and gives != kind:
        yield (
            f"{title} has `from_logits={from_logits}`, but the model gives "
            f"{kind}: pass `from_logits={not from_logits}`."
        )
    if is_any(each, SPARSE) and layout.one_hot:
        yield (
            f"{title} takes class ids, and the labels are rows: use "
            "`CategoricalCrossentropy`."
        )
    if is_any(each, ROWS) and not layout.one_hot and not layout.single:
        yield (
            f"{title} takes one-hot rows, and the labels are class ids: use "
            "`SparseCategoricalCrossentropy`."
        )
    multi_label = multi_label or kind == "multi-label"
    if is_any(each, BINARY_LOSSES) and not layout.single and not multi_label:
        yield (
            f"{title} takes each of the {layout.width} classes as a label of "
            "its own, and the model has a softmax or class scores: use "
            "`SparseCategoricalCrossentropy`, or `CategoricalCrossentropy` for "
            "rows."
        )
    if is_any(each, (*SPARSE, *ROWS)) and layout.single:
        yield (
            f"{title} sees a single class in one unit, and is constant: use "
            "`BinaryCrossentropy`."
        )
    if kind != "logits":
        return
    if isinstance(each, keras.metrics.BinaryAccuracy):
        if each.threshold == 0.5:
            yield (
                f"{title} compares with 0.5, and the model gives logits: pass "
                "`threshold=0.0`."
            )
    elif isinstance(each, AT_THRESHOLDS) and 0.5 in each.thresholds:
        yield (
            f"{title} compares with 0.5, and the model gives logits: pass "
            "`thresholds=0.0`, or end the model with its activation."
        )
