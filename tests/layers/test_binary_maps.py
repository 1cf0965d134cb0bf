"""Platt scaling and beta calibration."""

import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import to_numpy
from tests.layers.generated import generated
from tests.layers.generated import nll
from tests.layers.generated import top_label


def problem():
    log_odds, correct = top_label(*generated())
    return log_odds[:, None], correct


@pytest.mark.parametrize(
    ("smooth_targets", "expected"),
    [
        (False, (0.487873312633, -0.278542137826)),
        (True, (0.476178882563, -0.256053237011)),
    ],
    ids=["hard", "smooth"],
)
def test_platt(smooth_targets, expected):
    # Scikit-learn agrees to eight digits.
    layer = kc.layers.PlattScaling(
        smooth_targets=smooth_targets, shrinkage=None
    ).adapt(*problem())
    found = layer.record["slope"], layer.record["intercept"]
    assert found == pytest.approx(expected, abs=1e-10)
    log_odds, _ = problem()
    np.testing.assert_allclose(
        to_numpy(layer(log_odds)),
        expected[0] * log_odds + expected[1],
        rtol=1e-5,
        atol=1e-6,
    )


def test_beta():
    # netcal: an NLL of 0.47813173339.
    layer = kc.layers.BetaCalibration(shrinkage=None).adapt(*problem())
    found = [layer.record[name] for name in "abc"]
    assert found == pytest.approx(
        [0.480388764448, 0.488870120297, -0.282789342732], abs=1e-9
    )
    assert layer.record["nll_after"] == pytest.approx(0.47813173346, abs=1e-10)
    log_odds, _ = problem()
    p = 1 / (1 + np.exp(-log_odds))
    a, b, c = found
    np.testing.assert_allclose(
        to_numpy(layer(log_odds)),
        a * np.log(p) - b * np.log1p(-p) + c,
        rtol=1e-4,
        atol=1e-5,
    )


def test_beta_with_one_slope_is_platt():
    beta = (
        kc.layers.BetaCalibration(parameters="am", shrinkage=None)
        .adapt(*problem())
        .record
    )
    platt = kc.layers.PlattScaling(smooth_targets=False, shrinkage=None).adapt(
        *problem()
    )
    assert beta["a"] == beta["b"]
    assert beta["a"] == pytest.approx(platt.record["slope"], abs=1e-9)
    assert beta["c"] == pytest.approx(platt.record["intercept"], abs=1e-9)


def test_beta_without_shift():
    record = (
        kc.layers.BetaCalibration(parameters="ab", shrinkage=None)
        .adapt(*problem())
        .record
    )
    assert record["c"] == 0.0
    best = (
        kc.layers.BetaCalibration(shrinkage=None)
        .adapt(*problem())
        .record["nll_after"]
    )
    assert best < record["nll_after"] < record["nll_before"]


def test_beta_never_reverses_order():
    log_odds, correct = problem()
    with_labels = kc.layers.BetaCalibration(shrinkage=None).adapt(
        log_odds, 1 - correct
    )
    assert min(with_labels.record["a"], with_labels.record["b"]) >= 0
    ascending = np.linspace(-10, 10, 50)[:, None]
    assert (np.diff(to_numpy(with_labels(ascending))[:, 0]) >= 0).all()
    # Platt scaling may: its slope says so.
    reversed_ = kc.layers.PlattScaling(shrinkage=None).adapt(
        log_odds, 1 - correct
    )
    assert reversed_.record["slope"] < 0


@pytest.mark.parametrize("name", ["PlattScaling", "BetaCalibration"])
def test_data_that_a_threshold_separates(name):
    logits = np.array([[-1.0], [-0.5], [0.4], [1.0]])
    layer = getattr(kc.layers, name)(shrinkage=None)
    if name == "PlattScaling":
        layer = kc.layers.PlattScaling(smooth_targets=False, shrinkage=None)
    layer.adapt(logits, [0, 0, 1, 1])
    # Platt's targets: an optimum exists, and is far from infinity.
    assert layer.record["smooth_targets"]
    assert np.abs(to_numpy(layer(logits))).max() < 10
    assert layer.record["nll_after"] < layer.record["nll_before"]


def test_fusing():
    layer = kc.layers.PlattScaling(shrinkage=None).adapt(*problem())
    assert kc.layers.PlattScaling().as_affine(2) is None
    log_odds, _ = problem()
    pair = np.concatenate([0.3 + 0 * log_odds, 0.3 + log_odds], axis=1)
    matrix, bias = layer.as_affine(2)
    np.testing.assert_allclose(
        pair @ matrix + bias, to_numpy(layer(pair)), rtol=1e-4, atol=1e-5
    )
    matrix, bias = layer.as_affine(1)
    np.testing.assert_allclose(
        matrix * log_odds + bias, to_numpy(layer(log_odds)), rtol=1e-5
    )


@pytest.mark.parametrize("name", ["PlattScaling", "BetaCalibration"])
def test_more_than_two_classes(name):
    with pytest.raises(ValueError, match="two classes"):
        getattr(kc.layers, name)().adapt(*generated())
    with pytest.raises(ValueError, match="two classes"):
        getattr(kc.layers, name)()(generated()[0])


def test_two_classes_start_as_they_are():
    logits, labels = generated()
    keep = labels < 2
    logits, labels = logits[keep, :2], labels[keep]
    before = nll(logits, labels)
    for layer in (kc.layers.PlattScaling(), kc.layers.BetaCalibration()):
        assert nll(to_numpy(layer(logits)), labels) == pytest.approx(before)
        layer.adapt(logits, labels)
        after = nll(to_numpy(layer(logits)), labels)
        assert after == pytest.approx(layer.record["nll_after"], abs=1e-6)
        assert after < before


def test_bad_parameters():
    with pytest.raises(ValueError, match="parameters"):
        kc.layers.BetaCalibration(parameters="abc")
