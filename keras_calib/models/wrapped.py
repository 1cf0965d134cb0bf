"""A model around a model: trains it in another way, predicts as it does."""

import keras

from keras_calib.data_index import INPUTS


class WrappedModel(keras.Model):
    """Base of the training procedures: holds the model that it trains.

    A subclass says how a batch of training data is packed (`unpack`) and what
    its loss is (`compute_loss`). It reports the parts of the loss by `show`.
    """

    def __init__(self, model, **kwargs):
        # Inputs reach the model as they are, whatever its policy.
        kwargs = {"dtype": model.dtype_policy, "autocast": False, **kwargs}
        super().__init__(**kwargs)
        self.model = model
        self._parts = {
            part: keras.metrics.Mean(name=part)
            for part in ("primary_loss", "penalty")
        }
        self.built = model.built

    def unpack(self, inputs):
        """What the model takes, and what else was packed with it."""
        raise NotImplementedError

    def shows_parts(self):
        """Whether the loss has parts to report."""
        return True

    def build(self, input_shape):
        if isinstance(input_shape, dict):
            input_shape = input_shape.get(INPUTS, input_shape)
        if not self.model.built:
            self.model.build(input_shape)
        self.built = True

    def call(self, inputs, training=None):
        inputs, _ = self.unpack(inputs)
        return self.model(inputs, training=training)

    def show(self, part, value, weight):
        """Report a part of the loss, a mean over rows of this weight."""
        self._parts[part].update_state(value, sample_weight=weight)

    @property
    def metrics(self):
        found = super().metrics
        if self.shows_parts():
            return found
        hidden = {id(metric) for metric in self._parts.values()}
        return [metric for metric in found if id(metric) not in hidden]

    def additional_losses(self):
        """Weight penalties of the layers, as Keras would add them."""
        total = 0.0
        for loss in self.losses:
            total = total + self._aggregate_additional_loss(loss)
        return total

    def get_config(self):
        return {
            **super().get_config(),
            "model": keras.saving.serialize_keras_object(self.model),
        }

    @classmethod
    def from_config(cls, config):
        model = keras.saving.deserialize_keras_object(config["model"])
        return cls(**{**config, "model": model})
