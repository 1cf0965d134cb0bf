"""A layer without its activation, on the same weights."""

import inspect
import types

import keras


@keras.saving.register_keras_serializable(package="keras_calib")
class WithoutActivation(keras.layers.Layer):
    """What a layer computes before its activation.

    The weights are those of `layer`, not copies: if `layer` is trained, this
    layer changes, too. `layer` itself keeps its activation.

    Args:
        layer: a layer with an attribute `activation` that its `call` applies
            last, e.g. `Dense` or `Conv2D`.
        **kwargs: `name`, as in Keras.

    Example:
        >>> import keras, numpy as np
        >>> from keras_calib.keras_graph.without_activation import (
        ...     WithoutActivation)
        >>> dense = keras.layers.Dense(1, "sigmoid", kernel_initializer="ones")
        >>> float(WithoutActivation(dense)(np.array([[2.0, 1.0]]))[0, 0])
        3.0
    """

    def __init__(self, layer, **kwargs):
        # The policy of quantized weights would quantize this layer, too.
        policy = layer.dtype_policy.name.split("_from_")[-1]
        super().__init__(**{"dtype": policy, **kwargs})
        self.layer = layer
        self.supports_masking = layer.supports_masking
        self.built = layer.built

    def build(self, input_shape):
        if not self.layer.built:
            self.layer.build(input_shape)
        self.built = True

    def call(self, inputs):
        linear = _Linear(self.layer)
        if getattr(self.layer, "quantization_mode", None):
            return linear.quantized_call(inputs)
        return linear.call(inputs)

    def compute_output_shape(self, input_shape):
        return self.layer.compute_output_shape(input_shape)

    def get_config(self):
        layer = keras.saving.serialize_keras_object(self.layer)
        # Keras' own mark of an object that a file holds twice. Where `layer`
        # comes later, Keras would set it in a dict that was copied by then.
        layer["shared_object_id"] = id(self.layer)
        return {"name": self.name, "layer": layer}

    @classmethod
    def from_config(cls, config):
        layer = keras.saving.deserialize_keras_object(config["layer"])
        return cls(layer, name=config["name"])


class _Linear:
    """Stands for a layer in its own methods, with a linear activation.

    To set `layer.activation` for a moment would be shorter, and wrong in
    another thread that calls the layer in this moment.
    """

    activation = staticmethod(keras.activations.linear)

    def __init__(self, layer):
        self._layer = layer

    def __getattr__(self, name):
        found = inspect.getattr_static(type(self._layer), name, None)
        if inspect.isfunction(found):
            return types.MethodType(found, self)
        return getattr(self._layer, name)
