"""The calibrated model around a subclassed network, which has no graph."""

from typing import Any

import keras

from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import require_kind
from keras_calib.keras_graph.composite import CompositeModel


@keras.saving.register_keras_serializable(package="keras_calib")
class CalibratedModel(CompositeModel):
    """A network followed by its calibration layer and the final activation.

    `kc.calibrate` returns one if the network is a subclassed model. It is
    called and saved like any model; the network must be serializable.

    Args:
        network: a `keras.Model` that returns logits or probabilities.
        head: a `keras.Model` that is applied to the outputs of the network.
        **kwargs: `name`, as in Keras.

    Raises:
        ValueError: if `head` is no Keras model.
    """

    parts = ("network", "head")

    def __init__(
        self, network: keras.Model, head: keras.Model, **kwargs: Any
    ) -> None:
        super().__init__(network, **kwargs)
        require_kind(keras.layers.Layer, "a Keras model", head=head)
        self.network = network
        self.head = head
        # Its layers do; a Sequential would warn that the mask is lost.
        head.supports_masking = True

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        # The network's optimizer is of no use here, and Keras would warn where
        # it was never used.
        config["network"].pop("compile_config", None)
        return config

    def call(self, inputs: Any, training: bool = False) -> Tensor:
        return self.head(self.network(inputs, training=training))
