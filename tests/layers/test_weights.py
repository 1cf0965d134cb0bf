"""Sample weights are relative, in every map and under every objective."""

import itertools

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.inputs.predictions import relative_weights
from keras_calib.layers import ClassLossScaling
from keras_calib.layers import NegativeLogLikelihoodObjective
from keras_calib.layers._histogram_binning import equal_mass_edges
from keras_calib.layers._histogram_binning import histogram
from keras_calib.solvers.isotonic import isotonic_regression
from tests.helpers import to_numpy
from tests.layers.generated import generated
from tests.layers.generated import softmax
from tests.layers.generated import top_label

layers = kc.layers

MAPS = {
    "temperature": layers.TemperatureScaling,
    "bias corrected": layers.BiasCorrectedTemperatureScaling,
    "class": layers.ClassTemperatureScaling,
    "vector": layers.VectorScaling,
    "bias corrected plain": lambda: layers.BiasCorrectedTemperatureScaling(
        regularization=None
    ),
    "class plain": lambda: layers.ClassTemperatureScaling(regularization=None),
    "vector plain": lambda: layers.VectorScaling(regularization=None),
    "vector structured": lambda: layers.VectorScaling(
        regularization="structured"
    ),
    "matrix": layers.MatrixScaling,
    "dirichlet": layers.DirichletScaling,
    "matrix structured": lambda: layers.MatrixScaling(
        regularization="structured"
    ),
    "dirichlet odir": lambda: layers.DirichletScaling(regularization="odir"),
    "dirichlet l2": lambda: layers.DirichletScaling(regularization="l2"),
    "ensemble": layers.EnsembleTemperatureScaling,
    "bayesian": layers.BayesianTemperatureScaling,
    "parameterized": lambda: layers.ParameterizedTemperatureScaling(
        iterations=5
    ),
    "parameterized plain": lambda: layers.ParameterizedTemperatureScaling(
        iterations=5, shrinkage=None
    ),
    "diagonal": layers.IntraOrderPreserving,
    "diagonal plain": lambda: layers.IntraOrderPreserving(shrinkage=None),
    "order invariant": lambda: layers.IntraOrderPreserving(
        family="order_invariant", hidden=(4,), iterations=5
    ),
    "order invariant plain": lambda: layers.IntraOrderPreserving(
        family="order_invariant", hidden=(4,), iterations=5, shrinkage=None
    ),
    "spline": layers.SplineCalibration,
    "spline plain": lambda: layers.SplineCalibration(shrinkage=None),
    "isotonic": layers.IsotonicCalibration,
    "isotonic plain": lambda: layers.IsotonicCalibration(shrinkage=None),
    "isotonic per class": lambda: layers.IsotonicCalibration(per_class=True),
    "isotonic per class plain": lambda: layers.IsotonicCalibration(
        per_class=True, shrinkage=None
    ),
    "histogram": layers.HistogramBinning,
    "histogram plain": lambda: layers.HistogramBinning(shrinkage=None),
    "histogram equal mass": lambda: layers.HistogramBinning(
        equal_mass=True, shrinkage=None
    ),
    "beta": layers.BetaCalibration,
    "beta plain": lambda: layers.BetaCalibration(shrinkage=None),
    "platt": layers.PlattScaling,
    "platt plain": lambda: layers.PlattScaling(shrinkage=None),
    "platt hard": lambda: layers.PlattScaling(
        smooth_targets=False, shrinkage=None
    ),
    "quadratic": layers.QuadraticScaling,
    "quadratic plain": lambda: layers.QuadraticScaling(shrinkage=None),
}
EACH_MAP = pytest.mark.parametrize("name", MAPS)
BINARY = (
    *("beta", "beta plain", "platt", "platt plain", "platt hard"),
    *("quadratic", "quadratic plain"),
)


def data(name, count=200):
    logits, labels = generated(count)
    if name in BINARY:
        keep = labels < 2
        logits, labels = logits[keep, :2], labels[keep]
    weight = np.random.default_rng(0).uniform(0.2, 3.0, len(labels))
    return logits, labels, weight


def probabilities(name, weight, **arguments):
    logits, labels, _ = data(name)
    layer = MAPS[name]().adapt(
        logits, labels, sample_weight=weight, **arguments
    )
    return softmax(to_numpy(layer(logits)))


def settings(layer):
    """The objectives of a map, and class-wise loss scalings of its own."""
    for objective in layer.objectives:
        if objective == "loss":
            objective = keras.losses.SparseCategoricalCrossentropy(
                from_logits=True
            )
        yield {"objective": objective}
    if layer.fitted_by == "likelihood":
        for scaling in (
            "normal",
            "min_max",
            "centered",
            ClassLossScaling(reduction="sum"),
        ):
            yield {"class_loss_scaling": scaling}


@EACH_MAP
@pytest.mark.slow
@pytest.mark.one_backend
def test_a_constant_factor_changes_nothing(name):
    weight = data(name)[2]
    factors = itertools.cycle([0.01, 1000.0])
    for arguments in settings(MAPS[name]()):
        expected = probabilities(name, weight, **arguments)
        found = probabilities(name, next(factors) * weight, **arguments)
        np.testing.assert_allclose(
            found, expected, atol=1e-6, err_msg=str(arguments)
        )


@EACH_MAP
def test_equal_weights_are_no_weights(name):
    expected = probabilities(name, None)
    weight = np.full(len(data(name)[1]), 0.01)
    np.testing.assert_allclose(probabilities(name, weight), expected, atol=1e-6)


@EACH_MAP
def test_rows_of_weight_zero_may_hold_anything(name):
    logits, labels, weight = data(name)
    expected = MAPS[name]().adapt(logits, labels, sample_weight=weight)
    some = slice(0, 4)
    more = np.concatenate([logits, logits[some]])
    more[-4] = np.nan
    more[-3, 0] = np.inf
    layer = MAPS[name]().adapt(
        more,
        np.concatenate([labels, [0, 1, 99, -7]]),
        sample_weight=np.concatenate([weight, np.zeros(4)]),
    )
    for one, other in zip(layer.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(one), to_numpy(other))
    assert layer.record == expected.record


@pytest.mark.parametrize(
    "name",
    [
        "vector structured",
        "matrix structured",
        "dirichlet odir",
        "isotonic",
        "isotonic plain",
        "isotonic per class",
        "isotonic per class plain",
        "histogram plain",
        "histogram equal mass",
        "platt",
        "platt plain",
    ],
)
def test_weights_share_out_a_number_of_samples(name):
    # The number enters these maps. Repeated rows that together weigh as many
    # as there were are the weighted rows, but for how near temperature scaling
    # a map is: unequal weights are worth fewer samples.
    logits, labels, _ = data(name)
    times = 1 + np.arange(len(labels)) % 3
    rows = np.repeat(np.arange(len(labels)), times)
    layer = MAPS[name]().adapt(logits, labels, sample_weight=times)
    share = np.full(len(rows), len(labels) / len(rows))
    weights, _ = MAPS[name]().solve(
        logits[rows], labels[rows], share, NegativeLogLikelihoodObjective()
    )
    for key in weights.keys() - {"mixture"}:
        np.testing.assert_allclose(
            to_numpy(getattr(layer, key)), weights[key], rtol=1e-4, atol=2e-5
        )


def test_platt_scaling_of_weighted_samples_is_scikit_learns():
    from sklearn.calibration import _SigmoidCalibration

    log_odds, labels = top_label(*generated())
    weight = relative_weights(np.random.default_rng(0).uniform(0.2, 3.0, 500))
    peer = _SigmoidCalibration().fit(log_odds, labels, weight)
    for factor in (1.0, 0.01):
        record = (
            layers.PlattScaling(shrinkage=None)
            .adapt(log_odds[:, None], labels, sample_weight=factor * weight)
            .record
        )
        found = record["slope"], record["intercept"]
        assert found == pytest.approx((-peer.a_, -peer.b_), abs=1e-5)


@pytest.mark.parametrize("scale", [1e4, 1e-4, 1e8])
def test_platt_scaling_finds_the_optimum_at_any_scale(scale):
    logits, labels, weight = data("platt hard", 500)
    expected = MAPS["platt hard"]().adapt(logits, labels, weight).record
    found = MAPS["platt hard"]().adapt(scale * logits, labels, weight).record
    assert found["nll_after"] == pytest.approx(expected["nll_after"], abs=1e-9)
    assert found["slope"] == pytest.approx(expected["slope"] / scale, rel=1e-4)


def test_isotonic_calibration_of_each_class_is_scikit_learns():
    from sklearn.isotonic import IsotonicRegression

    logits, labels, weight = data("isotonic per class", 500)
    p = softmax(logits)
    layer = MAPS["isotonic per class"]().adapt(logits, labels, 100 * weight)
    knots, heights = to_numpy(layer.knots), to_numpy(layer.heights)
    for k in range(5):
        peer = IsotonicRegression().fit(p[:, k], labels == k, weight)
        # In the middle of each block, where no rounding reaches the next.
        used = knots[k, ::2] <= 1
        middle = (knots[k, :-1:2] + knots[k, 1::2])[used[:-1]] / 2
        expected = peer.predict(middle)
        # At the ends, 0 and 1 are made as extreme as the data can tell.
        inside = (expected > 0) & (expected < 1)
        assert inside.sum() > 5
        np.testing.assert_allclose(
            heights[k, ::2][used][inside], expected[inside], atol=1e-6
        )


def test_the_number_of_samples_behind_a_frequency_of_zero():
    logits, labels, weight = data("isotonic per class", 500)
    layer = MAPS["isotonic per class"]().adapt(logits, labels, 100 * weight)
    p, weight = softmax(logits), relative_weights(weight)
    blocks = isotonic_regression(p[:, 0], labels == 0, weight)
    assert blocks.level[0] == 0
    expected = blocks.score[0] / (1 + blocks.weight[0] * blocks.score[0])
    assert to_numpy(layer.heights)[0, 0] == pytest.approx(expected, rel=1e-5)


def test_a_histogram_holds_weighted_frequencies():
    logits, labels, weight = data("histogram plain", 500)
    layer = MAPS["histogram plain"]().adapt(logits, labels, 0.01 * weight)
    p, weight = softmax(logits)[:, 2], relative_weights(weight)
    for low in range(15):
        rows = (p > low / 15) & (p <= (low + 1) / 15)
        mean = np.average(labels[rows] == 2, weights=weight[rows])
        center, count = (low + 0.5) / 15, weight[rows].sum()
        if mean == 0:
            mean = center / (1 + count * center)
        elif mean == 1:
            mean = 1 - (1 - center) / (1 + count * (1 - center))
        found = to_numpy(layer.values)[2, low]
        assert found == pytest.approx(mean, abs=1e-6)


def test_bins_of_equal_mass_hold_equal_weights():
    rng = np.random.default_rng(0)
    scores, weight = rng.uniform(size=3000), rng.uniform(0, 3, size=3000)
    events = scores > 0.3
    _, counts, _ = histogram(scores, events, weight, 10, True)
    np.testing.assert_allclose(counts, weight.sum() / 10, atol=3.0)
    # Rows that stand twice are rows of weight 2.
    times = rng.integers(1, 4, size=3000)
    np.testing.assert_array_equal(
        equal_mass_edges(scores, 10, times),
        equal_mass_edges(np.repeat(scores, times), 10, np.ones(times.sum())),
    )


def test_platt_scaling_under_class_loss_scaling_lowers_the_likelihood():
    logits, labels, _ = data("platt", 500)
    record = (
        layers.PlattScaling(shrinkage=None)
        .adapt(logits, labels, class_loss_scaling="normal")
        .record
    )
    # Targets of two samples, the sum of the class weights, made it rise.
    assert record["nll_after"] < record["nll_before"]
    plain = MAPS["platt plain"]().adapt(logits, labels).record
    assert record["slope"] == pytest.approx(plain["slope"], rel=0.1)
