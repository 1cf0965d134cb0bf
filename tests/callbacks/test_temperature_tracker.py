import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.evaluation.confidence_error import expected_calibration_error
from keras_calib.inputs.predictions import top_label
from tests.helpers import small_network


class Fixed(keras.layers.Layer):
    """Logits that are what comes in, with a weight that trains nothing."""

    def build(self, input_shape):
        self.unused = self.add_weight((), "zeros")

    def call(self, inputs):
        return inputs + 0.0 * self.unused


def fit(model, data, callbacks, epochs=1, loss=None):
    model.compile(
        "sgd",
        loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model.fit(
        *data, epochs=epochs, verbose=0, callbacks=callbacks
    ).history


@pytest.mark.parametrize("activation", [None, "softmax"])
def test_is_the_temperature_of_a_hand_made_example(activation):
    # 3 of 4 right with logit gaps of 2: 2 / T = log 3.
    logits = np.array([[2.0, 0], [2.0, 0], [2.0, 0], [0, 2.0]], "float32")
    labels = np.array([0, 0, 1, 1])
    layers = [keras.Input((2,)), Fixed()]
    if activation:
        layers.append(keras.layers.Softmax())
    tracker = kc.callbacks.TemperatureTracker(
        (logits, labels), from_logits=activation is None
    )
    loss = keras.losses.SparseCategoricalCrossentropy(activation is None)
    logs = fit(keras.Sequential(layers), (logits, labels), [tracker], loss=loss)
    assert logs["val_temperature"] == [pytest.approx(2 / np.log(3), rel=1e-5)]
    # Confidence is then 3/4, and so is the accuracy.
    key = "val_calibrated_expected_calibration_error"
    assert logs[key] == [pytest.approx(0.0, abs=1e-6)]
    entropy = -0.75 * np.log(0.75) - 0.25 * np.log(0.25)
    key = "val_calibrated_negative_log_likelihood"
    assert logs[key] == [pytest.approx(entropy, rel=1e-5)]


def test_agrees_with_the_layer(digits):
    model, (x, y) = small_network(), digits[1]
    weight = np.linspace(0.0, 2.0, len(y))
    tracker = kc.callbacks.TemperatureTracker(
        (x, y, weight), from_logits=True, every=2
    )
    logs = fit(model, digits[0], [tracker], epochs=3)
    assert len(logs["val_temperature"]) == 2
    scores = model.predict(x, verbose=0)
    layer = kc.layers.TemperatureScaling().adapt(scores, y, weight)
    found = logs["val_temperature"][-1]
    assert found == pytest.approx(layer.temperature, rel=1e-5)
    scaled = keras.ops.softmax(scores / layer.temperature)
    confidence, correct = top_label(y, keras.ops.convert_to_numpy(scaled))
    expected = expected_calibration_error(confidence, correct, weights=weight)
    found = logs["val_calibrated_expected_calibration_error"][-1]
    assert found == pytest.approx(expected, abs=1e-5)


def test_later_callbacks_see_it(digits, tmp_path):
    fit(
        small_network(),
        digits[0],
        [
            kc.callbacks.TemperatureTracker(digits[1], from_logits=True),
            keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
        ],
    )
    assert "val_temperature" in (tmp_path / "log.csv").read_text()


def test_bad_arguments(digits):
    for wrong in ({"every": 0}, {"num_bins": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            kc.callbacks.TemperatureTracker(digits[1], **wrong)
