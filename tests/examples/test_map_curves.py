"""The picture of the layers: each is in it, and does what the page says."""

import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import example

pytestmark = pytest.mark.one_backend
CURVES = example("map_curves.py")
# Bases, mixtures of fitted layers, layers of pixels and of several labels, and
# decisions.
NOT_DRAWN = {
    *("CalibrationLayer", "CalibrationMixture", "DecisionLayer"),
    *("LocalTemperatureScaling", "LogProbabilities", "MultiLabelScaling"),
    *("PriorCorrection", "ConformalSets", "RiskThreshold", "MetaCal"),
}
ONE_CURVE_FOR_ALL_CLASSES = (
    "TemperatureScaling",
    "BayesianTemperatureScaling",
    "EnsembleTemperatureScaling",
    "ParameterizedTemperatureScaling",
    "IntraOrderPreserving",
    "SplineCalibration",
    "IsotonicCalibration",
)
CLASSES_APART = (
    "BiasCorrectedTemperatureScaling",
    "ClassTemperatureScaling",
    "VectorScaling",
    "MatrixScaling",
    "DirichletScaling",
    "HistogramBinning",
)


def found(name, num_samples=1500):
    layer, num_classes = CURVES.fitted(name, num_samples)
    logits = CURVES.made_logits(1000, num_classes, seed=2)
    return CURVES.before_and_after(layer, logits)


def test_every_layer_is_drawn():
    layers = {
        name
        for name in kc.layers.__all__
        if hasattr(getattr(kc.layers, name), "adapt")
    }
    assert set(CURVES.PANELS) == layers - NOT_DRAWN, (
        "a panel in PANELS of examples/map_curves.py for each layer"
    )


@pytest.mark.parametrize("num_classes", [2, 3])
def test_labels_are_drawn_from_the_true_probabilities(num_classes):
    logits = CURVES.made_logits(20_000, num_classes, seed=3)
    q = CURVES.true_probabilities(logits)
    np.testing.assert_allclose(q.sum(axis=1), 1)
    assert q.min() >= 0
    labels = CURVES.made_labels(logits, seed=4)
    p = CURVES.softmax(logits)
    predicted = p.argmax(axis=1)
    for k in range(num_classes):
        of = predicted == k
        # Four standard errors of some thousands of coins.
        right = (labels[of] == k).mean()
        assert right == pytest.approx(q[of, k].mean(), abs=0.03)
    # Overconfident, by more than chance.
    assert p.max(axis=1).mean() > (labels == predicted).mean() + 0.1


def test_the_line_is_the_true_probability_of_the_predicted_class():
    logits = CURVES.made_logits(100, 3, seed=0)
    p, q = CURVES.softmax(logits), CURVES.true_probabilities(logits)
    predicted, rows = p.argmax(axis=1), np.arange(100)
    np.testing.assert_allclose(
        CURVES.true_of_predicted(p[rows, predicted], predicted),
        q[rows, predicted],
    )
    # A temperature, where the other classes are alike.
    z = np.array([2.0, 0.0, 0.0])
    for k, temperature in enumerate(CURVES.TEMPERATURES):
        p, q = CURVES.softmax(np.stack([z, z / temperature]))[:, 0]
        assert CURVES.true_of_predicted(p, k) == pytest.approx(q)


def distances(name):
    """Mean of each class's points above the true line of the second class."""
    before, after, predicted = found(name)
    above = after - CURVES.true_of_predicted(before, 1)
    middle = (before > 0.6) & (before < 0.95)
    return [above[middle & (predicted == k)].mean() for k in range(3)]


@pytest.mark.parametrize("name", ONE_CURVE_FOR_ALL_CLASSES)
def test_layers_without_class_parameters_keep_the_classes_together(name):
    # They differ by which samples there are.
    assert np.ptp(distances(name)) < 0.03


@pytest.mark.parametrize("name", CLASSES_APART)
def test_layers_with_class_parameters_move_them_apart(name):
    first, second, third = distances(name)
    assert first > second > third
    assert first > third + 0.06


def spread(name):
    """Mean difference of samples of nearly the same confidence."""
    before, after, _ = found(name)
    order = np.argsort(before)
    order = order[before[order] > 0.7]
    return np.abs(np.diff(after[order])).mean()


def test_the_spline_is_one_curve_and_a_temperature_is_not():
    assert spread("SplineCalibration") < 0.002
    assert spread("TemperatureScaling") > 0.01
    assert spread("VectorScaling") > 3 * spread("TemperatureScaling")


@pytest.mark.filterwarnings("ignore:The parabola turns")
@pytest.mark.parametrize("name", CURVES.TWO_CLASSES)
def test_layers_of_two_classes_are_one_curve(name):
    before, after, _ = found(name)
    order = np.argsort(before)
    order = order[(before[order] > 0.01) & (before[order] < 0.99)]
    assert (np.diff(after[order]) > -1e-6).all()


@pytest.mark.filterwarnings("ignore:The parabola turns")
def test_only_histogram_and_isotonic_are_steps():
    levels = {
        name: len(np.unique(found(name)[1].round(6))) for name in CURVES.PANELS
    }
    steps = {name for name, number in levels.items() if number < 300}
    assert steps == {"HistogramBinning", "IsotonicCalibration"}
    assert min(set(levels.values()) - {levels[name] for name in steps}) > 950


@pytest.mark.filterwarnings("ignore:The parabola turns")
def test_the_picture_is_drawn(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    options = ["--samples", "200", "--points", "50"]
    CURVES.main(["--folder", str(tmp_path), *options])
    path = tmp_path / "maps.png"
    assert capsys.readouterr().out == f"{path}\n"
    assert path.stat().st_size > 50_000
