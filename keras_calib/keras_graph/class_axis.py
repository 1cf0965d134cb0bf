"""The axis of the classes, where a graph shows that it is not the last."""

import keras

from keras_calib.keras_graph.endings import has_graph
from keras_calib.keras_graph.endings import is_activation
from keras_calib.keras_graph.endings import is_identity
from keras_calib.keras_graph.endings import of_each_step
from keras_calib.keras_private import inside
from keras_calib.keras_private import producer


def refuse_another_class_axis(model: keras.Model) -> None:
    """Refuse a model whose graph shows that its last axis is not the classes.

    Where an image is as wide as there are classes, no shape would tell.

    Raises:
        ValueError: if the graph ends in a layer of `channels_first`, or in a
            softmax over another axis, with what to do.
    """
    axis = class_axis(model)
    if axis is None:
        return
    rank = len(model.outputs[0].shape)
    order = [*(i for i in range(1, rank) if i != axis), axis]
    raise ValueError(
        "The last axis must be that of the classes. Received: model "
        f"{model.name!r}, whose output of shape {model.outputs[0].shape} has "
        f"them on axis {axis}. Append `keras.layers.Permute({tuple(order)})`, "
        "and fit to labels without that axis."
    )


def class_axis(model: keras.Model) -> int | None:
    """The axis of the classes, where the graph shows it and it is not last."""
    return _class_axis(model, model.outputs[0]) if has_graph(model) else None


def _class_axis(model, tensor):
    operation, arguments = producer(model, tensor)
    if isinstance(operation, keras.Model):
        if not has_graph(operation):
            return None
        return _class_axis(operation, inside(operation, tensor))
    last = len(tensor.shape) - 1
    activation = is_activation(operation)
    layer = of_each_step(operation)
    steps = int(layer is not operation)  # an axis that the layer does not see
    axis = getattr(layer, "axis", None)
    if activation and isinstance(axis, int):
        axis = (axis + steps if axis >= 0 else axis) % (last + 1)
        return None if axis == last else axis
    if getattr(layer, "data_format", None) == "channels_first":
        return 1 + steps if last > 1 + steps else None
    if (activation or is_identity(operation)) and len(arguments) == 1:
        return _class_axis(model, arguments[0])
    return None
