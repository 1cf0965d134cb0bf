"""Scores of other classes than those of the fit."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import fitted_layers

OF_CLASSES = {
    *("BetaCalibration", "PlattScaling", "QuadraticScaling"),
    *("BiasCorrectedTemperatureScaling", "ClassTemperatureScaling"),
    *("VectorScaling", "MatrixScaling", "DirichletScaling"),
    *("HistogramBinning", "ConformalSets", "RiskThreshold", "MetaCal"),
}


def samples(num_classes):
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(200, num_classes)).astype("float32")
    return logits, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)


def refuses(layer, columns):
    with pytest.raises(ValueError, match=rf"has weights for .* 5, {columns}\)"):
        layer(np.zeros((1, 5, columns), "float32"))


def test_maps_with_weights_of_classes_refuse_others():
    names = set()
    for name, layer, columns in fitted_layers(*samples(3)):
        layer(np.zeros((5, columns), "float32"))
        if layer.of_classes:
            names.add(name)
            refuses(layer, 4)
        if layer.of_classes and columns == 3:
            refuses(layer, 2)
            refuses(layer, 1)
    assert names == OF_CLASSES
    per_class = kc.layers.IsotonicCalibration(per_class=True)
    refuses(per_class.adapt(*samples(3)), 4)


def test_so_does_a_layer_from_a_file(tmp_path):
    layer = kc.layers.VectorScaling().adapt(*samples(3))
    model = keras.Sequential([keras.Input((3,)), layer])
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras").layers[-1]
    again(np.zeros((5, 3), "float32"))
    refuses(again, 2)


def test_a_sigmoid_is_two_classes():
    logits, labels = samples(2)
    layer = kc.layers.VectorScaling().adapt(logits, labels)
    log_odds = logits[:, 1:] - logits[:, :1]
    pair = keras.ops.softmax(layer(logits))[:, 1:]
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(keras.ops.sigmoid(layer(log_odds))),
        keras.ops.convert_to_numpy(pair),
        rtol=1e-5,
    )


def test_one_column_is_not_several_labels():
    logits, labels = samples(2)
    rows = np.eye(2)[labels]
    # It would be divided by the temperatures of both labels.
    refuses(kc.layers.MultiLabelScaling().adapt(logits, rows), 1)


def test_maps_that_know_no_classes_take_any():
    layer = kc.layers.TemperatureScaling(temperature=2.0)
    for columns in (3, 4):
        scores = np.ones((5, columns), "float32")
        found = keras.ops.convert_to_numpy(layer(scores))
        np.testing.assert_allclose(found, scores / 2)


def test_a_temperature_of_the_largest_scores_needs_as_many():
    layer = kc.layers.ParameterizedTemperatureScaling(num_scores=4)
    layer.adapt(*samples(6))
    for columns in (4, 9):
        assert layer(np.zeros((5, columns), "float32")).shape == (5, columns)
    for function in (layer, layer.temperatures):
        with pytest.raises(ValueError, match=r"4 largest scores.*\(5, 3\)"):
            function(np.zeros((5, 3), "float32"))
    layer = kc.layers.ParameterizedTemperatureScaling(num_scores=4)
    layer.adapt(*samples(2))
    assert layer(np.zeros((5, 1), "float32")).shape == (5, 1)


def test_one_score_a_row_is_a_column():
    logits, labels = samples(2)
    log_odds = logits[:, 1] - logits[:, 0]
    refused = set()
    for name, layer, _ in fitted_layers(log_odds[:, None], labels):
        if layer.by_element:
            continue
        refused.add(name)
        for rows in (log_odds, log_odds[:2]):
            with pytest.raises(ValueError, match="column"):
                layer(rows)
    assert {"IsotonicCalibration", "SplineCalibration"} < refused
    for layer in (
        kc.layers.ConformalSets(),
        kc.layers.RiskThreshold(target_risk=0.3),
        kc.layers.MetaCal(),
    ):
        with pytest.raises(ValueError, match="column"):
            layer.adapt(log_odds, labels)(log_odds)
    layer = kc.layers.TemperatureScaling().adapt(log_odds, labels)
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(layer(log_odds)),
        keras.ops.convert_to_numpy(layer(log_odds[:, None]))[:, 0],
    )


def test_a_decision_about_some_classes_is_none_about_others():
    for layer in (
        kc.layers.ConformalSets(),
        kc.layers.RiskThreshold(target_risk=0.6),
        kc.layers.MetaCal(),
    ):
        refuses(layer.adapt(*samples(4)), 3)
        before = layer.get_weights()
        with pytest.raises(ValueError, match="has weights for scores with 4"):
            layer.adapt(*samples(3))
        for old, new in zip(before, layer.get_weights(), strict=True):
            np.testing.assert_array_equal(old, new)


def test_a_map_of_ones_own_that_calls_itself_built():
    class Halved(kc.layers.CalibrationLayer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.built = True

        def call(self, logits):
            return logits / 2

    scores = np.ones((5, 3), "float32")
    found = keras.ops.convert_to_numpy(Halved()(scores))
    np.testing.assert_array_equal(found, scores / 2)
