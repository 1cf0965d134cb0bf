"""How to read an argument of a loss, whatever form the loss has."""

import inspect
from collections.abc import Callable
from typing import Any

import keras

from keras_calib.inputs.arguments import require_kind

# Losses of Keras that want a column per class, also where there are two.
CATEGORICAL = (
    keras.losses.CategoricalCrossentropy,
    keras.losses.CategoricalFocalCrossentropy,
    keras.losses.CategoricalGeneralizedCrossEntropy,
    keras.losses.KLDivergence,
    keras.losses.SparseCategoricalCrossentropy,
)
# Those that take any logits that probabilities carry for those of a sigmoid.
OF_SIGMOIDS = (
    keras.losses.BinaryCrossentropy,
    keras.losses.BinaryFocalCrossentropy,
)
# Those that are of probabilities, and have no argument to say otherwise.
OF_PROBABILITIES = (
    keras.losses.CategoricalGeneralizedCrossEntropy,
    keras.losses.Dice,
    keras.losses.KLDivergence,
    keras.losses.MeanSquaredLogarithmicError,
    keras.losses.Poisson,
    keras.losses.Tversky,
)
# Those that want class ids for labels.
OF_IDS = (
    keras.losses.CategoricalGeneralizedCrossEntropy,
    keras.losses.SparseCategoricalCrossentropy,
)
# Those that want rows for labels, and not class ids.
OF_ROWS = (
    *OF_SIGMOIDS,
    keras.losses.CategoricalCrossentropy,
    keras.losses.CategoricalFocalCrossentropy,
    keras.losses.CategoricalHinge,
    keras.losses.CosineSimilarity,
    keras.losses.Dice,
    keras.losses.Hinge,
    keras.losses.Huber,
    keras.losses.KLDivergence,
    keras.losses.LogCosh,
    keras.losses.MeanAbsoluteError,
    keras.losses.MeanAbsolutePercentageError,
    keras.losses.MeanSquaredError,
    keras.losses.MeanSquaredLogarithmicError,
    keras.losses.Poisson,
    keras.losses.SquaredHinge,
    keras.losses.Tversky,
)
# The losses of Keras by their names in small letters.
BY_NAME = {
    name.lower(): each
    for name, each in vars(keras.losses).items()
    if inspect.isclass(each)
}


def softmax_for(loss: keras.losses.Loss) -> Callable:
    """Softmax; without the logits that it carries where they are misread."""
    softmax = keras.activations.softmax
    if not isinstance(loss, OF_SIGMOIDS):
        return softmax
    return lambda scores: keras.ops.multiply(softmax(scores), 1.0)


def setting_of(loss: Any, name: str, default: Any = None) -> Any:
    """An argument of a loss object, or the default of a loss function's.

    Args:
        loss: what `compile` was given, except a list or dict of losses.
        name: name of the argument.
        default: the value for a loss without this argument.
    """
    if isinstance(loss, str):
        loss = keras.losses.get(loss)
    if hasattr(loss, name):
        return getattr(loss, name)
    if hasattr(loss, "get_config"):
        return loss.get_config().get(name, default)
    parameters = inspect.signature(loss).parameters if callable(loss) else {}
    found = parameters.get(name)
    if found is None or found.default is found.empty:
        return default
    return found.default


def primary_loss(primary: Any, from_logits: bool) -> keras.losses.Loss:
    """The loss object that an argument `primary` names, or is.

    Args:
        primary: a loss of Keras, its name as in `compile`, or its config.
        from_logits: for one that is named.

    Raises:
        ValueError: if it is none.
    """
    try:
        loss = keras.losses.get(primary)
        if isinstance(primary, str):
            # Keras gives the function for a name in small letters.
            kind = class_of(loss)
            loss = _with_setting(kind, from_logits) if kind else loss
    except (TypeError, ValueError):  # which name no argument
        loss = None
    if isinstance(loss, keras.losses.Loss):
        return loss
    wanted = '"cross_entropy", a `keras.losses.Loss` or None'
    require_kind(keras.losses.Loss, wanted, primary=primary)
    return primary


def check_inner_loss(inner: keras.losses.Loss, outer: Any) -> None:
    """Refuse a loss whose settings are others than those of the loss around it.

    Both get the same predictions, and the outer one reduces what they give.

    Args:
        inner: the argument `primary` of the other.
        outer: a `PenalizedLoss`.
    """
    config, name = inner.get_config(), type(outer).__name__
    given = config.get("from_logits", outer.from_logits)
    if given != outer.from_logits:
        raise ValueError(
            "`from_logits` must be the same for `primary` and the penalty, "
            "which get the same predictions. Received: "
            f"from_logits={given} in `primary`, "
            f"from_logits={outer.from_logits} in {name}. "
            "Give both the same value."
        )
    axis = config.get("axis")
    # Counted from both ends they may be one, which depends on the predictions.
    if not isinstance(axis, int) or (axis < 0) != (outer.axis < 0):
        axis = -1
    for key, given, unset in (
        ("ignore_class", config.get("ignore_class"), (None,)),
        ("axis", axis, (-1,)),
        ("reduction", inner.reduction, (None, "none", "sum_over_batch_size")),
        ("across_replicas", config.get("across_replicas", False), (False,)),
    ):
        own = getattr(outer, key)
        if given != own and given not in unset:
            raise ValueError(
                f"`{key}` belongs to the outer loss and holds for both parts. "
                f"Received: {key}={given!r} in `primary`, {key}={own!r} in "
                f"{name}. Leave it out of `primary`."
            )


def class_of(loss: Any) -> type[keras.losses.Loss] | None:
    """The class of Keras of a loss or of its function, or `None`."""
    name = getattr(loss, "__name__", type(loss).__name__)
    return BY_NAME.get(name.replace("_", "").lower())


def losses_of(model: keras.Model) -> list[Any]:
    """The losses of `compile`, objects or functions."""
    given = keras.tree.flatten([model.loss]) if model.compiled else []
    return [keras.losses.get(loss) for loss in given if loss is not None]


def _with_setting(kind, from_logits):
    if "from_logits" in inspect.signature(kind).parameters:
        return kind(from_logits=from_logits)
    return kind()
