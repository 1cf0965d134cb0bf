"""Whether a network makes probabilities of probabilities."""

import keras

from keras_calib.keras_graph.calibrated_model import CalibratedModel
from keras_calib.keras_graph.endings import activation_of
from keras_calib.keras_graph.endings import ending
from keras_calib.keras_graph.endings import has_graph
from keras_calib.keras_graph.endings import is_activation
from keras_calib.keras_graph.endings import is_identity
from keras_calib.keras_graph.endings import rearranges
from keras_calib.keras_private import producer

TWICE = (
    "The model ends in a softmax or sigmoid of probabilities: it is applied "
    "twice, and no confidence can be high."
)


def is_applied_twice(model, tensor=None):
    """Whether a softmax or sigmoid is given probabilities, as its last step.

    A `Dense` layer with a softmax has weights of its own, and may read
    probabilities.
    """
    if isinstance(model, CalibratedModel) or not has_graph(model):
        return False
    if tensor is None:
        if len(model.outputs) != 1:
            return False
        tensor = model.outputs[0]
    operation, arguments = producer(model, tensor)
    if isinstance(operation, keras.Model):
        return is_applied_twice(operation)
    if is_identity(operation) or rearranges(operation, arguments, tensor):
        return is_applied_twice(model, arguments[0])
    if not is_activation(operation):
        return False
    last = activation_of(operation, arguments, tensor)
    return {last, ending(model, arguments[0])[0]} <= {"softmax", "sigmoid"}
