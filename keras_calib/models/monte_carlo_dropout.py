"""Dropout that stays on: many predictions of one network, averaged."""

import contextlib

import keras
from keras import ops

from keras_calib.models.deep_ensemble import known
from keras_calib.models.deep_ensemble import mean_probabilities
from keras_calib.models.networks import check_networks
from keras_calib.models.networks import log_probabilities


@keras.saving.register_keras_serializable(package="keras_calib")
class MonteCarloDropout(keras.Model):
    """Average the probabilities of a network over random dropout masks.

    Nothing is trained: a network that has dropout layers predicts with dropout
    on, `num_masks` times. Only dropout is random; batch normalization, noise
    and augmentation layers work as in inference. All samples of a batch run as
    one batch that is `num_masks` times as long: mind the memory.

    A model like any other: `compile` it for `evaluate`, or hand it to
    `kc.calibrate`. It gives probabilities whatever the network gives. Two calls
    differ; `keras.utils.set_random_seed` makes a program repeatable. `fit`
    trains the network with one mask per sample, as ever.

    Args:
        model: a `keras.Model` with dropout and one output of shape
            `(batch, ..., num_classes)`.
        num_masks: int, how many masks.
        from_logits: whether the network gives logits. By default the end of
            its graph tells; a subclassed network has none.
        **kwargs: `name`, as in Keras.

    Raises:
        ValueError: if the model has no dropout, `num_masks` is below 1, or a
            subclassed network comes without `from_logits`.

    Example:
        >>> import numpy as np, keras, keras_calib as kc
        >>> model = keras.Sequential([keras.Input((4,)),
        ...                           keras.layers.Dropout(0.5),
        ...                           keras.layers.Dense(3)])
        >>> sampled = kc.models.MonteCarloDropout(model, num_masks=8)
        >>> sampled.predict(np.ones((2, 4)), verbose=0).shape
        (2, 3)

    Reference:
        Gal, Ghahramani, "Dropout as a Bayesian Approximation", ICML 2016.
    """

    def __init__(self, model, num_masks=20, from_logits=None, **kwargs):
        found = check_networks({"the model": model}, from_logits)
        if num_masks < 1:
            raise ValueError(
                "`num_masks` must be at least 1. "
                f"Received: num_masks={num_masks}."
            )
        if model.built and not _dropouts(model):
            raise ValueError(
                "Without dropout every sample is the same. Received: a model "
                f"{model.name!r} that has no dropout layer with a rate above 0."
            )
        kwargs = {"dtype": model.dtype_policy, "autocast": False, **kwargs}
        super().__init__(**kwargs)
        self.model = model
        self.num_masks = num_masks
        self.from_logits = from_logits
        self._logits = known(found, from_logits)
        self.built = model.built

    def call(self, inputs, training=None):
        if training:
            scores = self.model(inputs, training=True)
            logs = log_probabilities(scores, self._logits)
            return keras.activations.softmax(logs)
        repeated = keras.tree.map_structure(
            lambda x: ops.repeat(x, self.num_masks, axis=0), inputs
        )
        with _switched_on(_dropouts(self.model)):
            scores = self.model(repeated, training=False)
        logs = log_probabilities(scores, self._logits)
        logs = ops.reshape(logs, (-1, self.num_masks, *logs.shape[1:]))
        return mean_probabilities(logs, axis=1)

    def get_config(self):
        return {
            "name": self.name,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "model": keras.saving.serialize_keras_object(self.model),
            "num_masks": self.num_masks,
            "from_logits": self.from_logits,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        model = keras.saving.deserialize_keras_object(
            config["model"], custom_objects=custom_objects
        )
        return cls(**{**config, "model": model})


def _dropouts(model):
    """Layers that drop at random, those inside other layers as well."""
    kinds = (
        keras.layers.Dropout,
        keras.layers.AlphaDropout,
        keras.layers.GaussianDropout,
    )
    return [
        layer
        for layer in model._flatten_layers()
        if (isinstance(layer, kinds) and layer.rate > 0)
        or (isinstance(layer, keras.layers.RNN) and _cell_drops(layer.cell))
    ]


def _cell_drops(cell):
    return any(
        getattr(cell, name, 0) for name in ("dropout", "recurrent_dropout")
    )


@contextlib.contextmanager
def _switched_on(layers):
    """Within the block these layers work as in training, all others do not."""

    def training(call):
        def run(*args, **kwargs):
            return call(*args, **{**kwargs, "training": True})

        return run

    for layer in layers:
        layer.call = training(layer.call)
    try:
        yield
    finally:
        for layer in layers:
            del layer.call
