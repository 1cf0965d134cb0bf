"""Networks of a few weights: to trace a function of one takes longest."""

import keras
import pytest


@pytest.fixture(autouse=True)
def eager_functions(request):
    """TensorFlow's functions run eagerly, but in tests marked `compiled`."""
    if (
        keras.backend.backend() != "tensorflow"
        or request.node.get_closest_marker("compiled") is not None
    ):
        yield
        return
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)
