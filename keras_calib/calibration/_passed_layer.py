"""A map that was passed in as a layer: fitted, or as it was."""

import contextlib

from keras_calib.layers._base import CalibrationLayer


class AsItWas:
    """What a layer is now; `restore` makes it so again.

    A layer that was not built yet stays built, with its first weights.
    """

    def __init__(self, layer):
        self.layer = layer
        self.weights = layer.get_weights() if layer.built else None
        self.record = layer.record
        self.trainable = layer.trainable

    def restore(self):
        layer, weights = self.layer, self.weights
        if weights is None and layer.built:
            fresh = type(layer).from_config(layer.get_config())
            fresh.build_from_config(layer.get_build_config())
            weights = fresh.get_weights()
        if weights is not None:
            layer.set_weights(weights)
        layer.record = self.record
        layer.trainable = self.trainable


@contextlib.contextmanager
def as_it_was(method):
    """Leave a layer as it was if anything fails; a name has nothing to lose.

    Args:
        method: a name, or a layer.
    """
    if not isinstance(method, CalibrationLayer):
        yield
        return
    before = AsItWas(method)
    try:
        yield
    except BaseException:
        before.restore()
        raise
