"""The calibrated model around a subclassed network, which has no graph."""

import keras


@keras.saving.register_keras_serializable(package="keras_calib")
class CalibratedModel(keras.Model):
    """A network followed by its calibration map and the final activation.

    `kc.calibrate` makes one where the network is a subclassed model. It is
    called and saved like any model; the network must be serialisable itself.

    Args:
        network: a `keras.Model` that gives logits or probabilities.
        head: a `keras.Model` applied to what the network gives.
        **kwargs: `name`, as in Keras.
    """

    def __init__(self, network, head, **kwargs):
        super().__init__(**kwargs)
        self.network = network
        self.head = head
        # Its layers do; a Sequential would warn that the mask is lost.
        head.supports_masking = True

    def call(self, inputs, training=False):
        return self.head(self.network(inputs, training=training))

    def get_config(self):
        serialize = keras.saving.serialize_keras_object
        return {
            **super().get_config(),
            "network": serialize(self.network),
            "head": serialize(self.head),
        }

    @classmethod
    def from_config(cls, config):
        deserialize = keras.saving.deserialize_keras_object
        parts = {
            part: deserialize(config[part]) for part in ("network", "head")
        }
        return cls(**{**config, **parts})
