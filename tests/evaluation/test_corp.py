"""CORP and smooth curves: worked numbers, peers, and simulated coverage."""

import numpy as np
import pytest

from keras_calib.evaluation import corp
from keras_calib.evaluation.events import sort_events
from keras_calib.evaluation.smooth_curve import SmoothCurve
from keras_calib.solvers.isotonic import isotonic_regression
from keras_calib.solvers.isotonic import isotonic_rows
from tests.metrics.oracles import CONFIDENCE
from tests.metrics.oracles import CORRECT
from tests.metrics.oracles import generated_set
from tests.metrics.oracles import softmax

SHAPES = {"uniform": 1.0, "near 1": 0.25}


def cells_of(confidence, correct, weights=None):
    events = sort_events(np.asarray(confidence), correct, weights)
    return corp.corp_cells(events)


def curve_at(cells):
    """The curve at each cell."""
    curve = corp.corp_curve(cells)
    block = np.searchsorted(curve.last, cells.confidence - 1e-12)
    return curve.level[block]


def generated_top_label():
    labels, logits = generated_set()
    p = softmax(logits)
    return p.max(axis=1), (p.argmax(axis=1) == labels).astype(float)


def test_curve_of_the_edge_set():
    # By hand: equal confidences are pooled, then violators.
    cells = cells_of(CONFIDENCE, CORRECT)
    np.testing.assert_allclose(
        cells.confidence, [0, 0.05, 0.2, 0.35, 0.4, 0.55, 0.6, 0.75, 0.8, 1]
    )
    np.testing.assert_allclose(
        curve_at(cells),
        [0, 0, *[1 / 3] * 2, *[2 / 3] * 3, *[3 / 4] * 3],
    )


def test_curve_of_the_generated_set():
    # The sheet of formulas: .625 at sorted position 200.
    cells = cells_of(*generated_top_label())
    assert curve_at(cells)[200] == pytest.approx(0.625)


def test_confidences_that_differ_by_rounding_keep_their_order():
    # Tenths, each with its two neighbors in floating point: the difference of
    # two running sums tells these no longer apart.
    rng = np.random.default_rng(0)
    tenths = rng.integers(1, 10, 2000) / 10
    confidence = np.nextafter(tenths, rng.choice([0, 1], 2000))
    confidence = np.where(rng.random(2000) < 1 / 3, tenths, confidence)
    correct = (rng.random(2000) < 0.7 * tenths).astype(float)
    curve = corp.corp_curve(cells_of(confidence, correct))
    expected = isotonic_regression(confidence, correct)
    np.testing.assert_array_equal(curve.first, expected.first)
    np.testing.assert_array_equal(curve.last, expected.last)
    np.testing.assert_allclose(curve.level, expected.level)


def test_curve_is_that_of_model_diagnostics():
    pytest.importorskip("model_diagnostics")
    from matplotlib import pyplot
    from model_diagnostics.calibration import plot_reliability_diagram

    rng = np.random.default_rng(0)
    confidence = rng.random(500).round(2)
    correct = (rng.random(500) < confidence**2).astype(float)
    for weights in (None, rng.uniform(0.2, 3, 500)):
        _, axes = pyplot.subplots()
        plot_reliability_diagram(correct, confidence, weights, ax=axes)
        theirs = max(axes.lines, key=lambda line: len(line.get_xdata()))
        cells = cells_of(confidence, correct, weights)
        curve = corp.corp_curve(cells)
        knots = np.stack([curve.first, curve.last], axis=1).ravel()
        x, y = np.asarray(theirs.get_data(), float)
        ours = np.interp(x, knots, np.repeat(curve.level, 2))
        np.testing.assert_allclose(ours, y, atol=1e-9)
        pyplot.close("all")


def test_rows_at_once_are_rows_one_by_one():
    rng = np.random.default_rng(1)
    weights = rng.integers(1, 5, 60).astype(float)
    hits = rng.binomial(weights.astype(int), 0.5, (20, 60)).astype(float)
    places = np.array([0, 7, 30, 59])
    found = isotonic_rows(hits, weights, places)
    for row, levels in zip(hits, found, strict=True):
        blocks = isotonic_regression(np.arange(60.0), row / weights, weights)
        own = np.searchsorted(blocks.last, places)
        np.testing.assert_allclose(levels, blocks.level[own])


def test_order_of_rows_and_scale_of_weights_change_nothing():
    rng = np.random.default_rng(2)
    confidence = rng.integers(0, 5, 9000) / 4
    correct = (rng.random(9000) < 0.5).astype(float)
    order = rng.permutation(9000)
    ours, other = (
        corp.corp_band(cells_of(c, a))
        for c, a in (
            (confidence, correct),
            (confidence[order], correct[order]),
        )
    )
    np.testing.assert_array_equal(ours.low, other.low)
    assert len(ours.confidence) == 5
    weights = rng.uniform(0.5, 2, 300)
    c, a = rng.random(300), rng.integers(0, 2, 300).astype(float)
    ours, other = (
        corp.corp_band(cells_of(c, a, scale * weights)) for scale in (1, 1e-3)
    )
    np.testing.assert_allclose(ours.high, other.high, rtol=1e-9)


def test_many_rows_are_joined_and_equal_confidences_are_not_separated():
    rng = np.random.default_rng(3)
    confidence = np.append(rng.random(5000), np.ones(3000))
    correct = (rng.random(8000) < confidence).astype(float)
    cells = cells_of(confidence, correct)
    assert len(cells.weight) <= corp.CELLS and cells.weight.min() > 0
    assert cells.weight[-1] >= 3000 and cells.weight.sum() == 8000
    weighted = cells_of(confidence, correct, rng.uniform(0.5, 2, 8000))
    assert len(weighted.weight) <= 8000 / corp.WEIGHTED_ROWS


def test_where_the_curve_of_a_calibrated_model_cannot_vary():
    # Confidences of 0 and 1: any other label is outside.
    cells = cells_of(np.array([0.0, 0.0, 1.0, 1.0]), np.array([0, 0, 1, 1.0]))
    band = corp.corp_band(cells)
    np.testing.assert_allclose([band.low, band.high], [[0, 1]] * 2, atol=1e-6)
    one = corp.corp_band(cells_of(np.array([0.7]), np.array([1.0])))
    assert (one.low, one.high) == (0, 1)


def test_corners_of_a_band():
    band = corp.Band(*np.array([[0.1, 0.2, 0.4], [0, 1, 2], [3, 4, 5]]))
    x, low, high = band.corners()
    np.testing.assert_allclose(x, [0.1, 0.2, 0.2, 0.4])
    np.testing.assert_allclose(low, [0, 0, 1, 1])
    np.testing.assert_allclose(high, [4, 4, 5, 5])


def inside(band, confidence, curves):
    """Which of the curves `(m, num_cells)` stay in a band."""
    before = np.searchsorted(band.confidence, confidence, side="right") - 1
    behind = np.searchsorted(band.confidence, confidence)
    low = band.low[before] - 1e-9
    high = band.high[behind] + 1e-9
    return ((curves >= low) & (curves <= high)).all(axis=1)


def coverage(number, shape, sets, simultaneous=True, weighted=False):
    """How often the whole CORP curve of a calibrated model stays inside."""
    rng = np.random.default_rng([number, sets])
    held = []
    for seed in range(sets):
        confidence = np.sort(rng.random(number) ** SHAPES[shape])
        weights = rng.uniform(0.2, 3.0, number) if weighted else None
        cells = cells_of(confidence, np.ones(number), weights)
        band = corp.corp_band(cells, simultaneous=simultaneous, seed=seed)
        total = np.asarray(cells.weight, "float64")
        for _ in range(5):
            drawn = (rng.random((100, number)) < confidence).astype(float)
            drawn = cells.events.weigh(drawn)
            hits = np.add.reduceat(drawn, cells.cuts[:-1], axis=1)
            curves = isotonic_rows(hits, total, np.arange(len(total)))
            held.append(inside(band, cells.confidence, curves))
    return np.mean(held)


@pytest.mark.slow
@pytest.mark.one_backend
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "number", [200, 2000, pytest.param(20000, marks=pytest.mark.weekly)]
)
def test_coverage_of_the_simultaneous_band(number, shape, record_property):
    sets = 10 if number < 20000 else 6
    found = coverage(number, shape, sets)
    record_property("coverage", float(found))
    # Of 500 sets of labels for each band, and of the 2,000 draws of a band.
    error = np.sqrt(0.95 * 0.05 * (1 / (500 * sets) + 1 / (2001 * sets)))
    assert found >= 0.95 - 3 * error


@pytest.mark.slow
@pytest.mark.one_backend
def test_coverage_with_weights_and_of_the_pointwise_band():
    error = np.sqrt(0.95 * 0.05 * (1 / 3000 + 1 / 12006))
    assert coverage(5000, "near 1", 6, weighted=True) >= 0.95 - 3 * error
    # It is not made for this; of the sheet: .041.
    assert coverage(2000, "uniform", 4, simultaneous=False) < 0.15


def test_smooth_curve_is_a_kernel_mean():
    confidence = np.array([0.1, 0.4, 0.4, 0.9])
    correct = np.array([0.0, 1.0, 0.0, 1.0])
    weights = np.array([1.0, 2.0, 1.0, 0.5])
    curve = SmoothCurve(cells_of(confidence, correct, weights))
    for t, value in zip(curve.confidence[::20], curve.value[::20], strict=True):
        mirrored = [
            np.exp(-0.5 * ((t - place) / curve.bandwidth) ** 2)
            for shift in range(-4, 6, 2)
            for place in (confidence + shift, shift - confidence)
        ]
        kernel = weights * np.sum(mirrored, axis=0)
        assert value == pytest.approx(kernel @ correct / kernel.sum())


def test_smooth_curve_is_that_of_relplot():
    relplot = pytest.importorskip("relplot")
    from relplot.estimators import KernelSmoother
    from relplot.kernels import ReflectedGaussianKernel

    confidence, correct = generated_top_label()
    # Theirs counts mass on the nodes 0 and 1 once, where reflection doubles it.
    confidence = 0.02 + 0.96 * confidence
    curve = SmoothCurve(cells_of(confidence, correct))
    # Ours is within 10 % of the bandwidth that equals the smooth ECE.
    theirs = relplot.smECE(f=confidence, y=correct)
    assert curve.bandwidth == pytest.approx(theirs, rel=0.11)
    smoother = KernelSmoother(ReflectedGaussianKernel(curve.bandwidth))
    smoother.fit(confidence[:, None], correct)
    # Theirs adds a constant to the density and interpolates.
    value = smoother.predict(curve.confidence[:, None])
    often = curve.density > 0.05
    np.testing.assert_allclose(curve.value[often], value[often], atol=2e-3)


@pytest.mark.slow
@pytest.mark.weekly
@pytest.mark.one_backend
@pytest.mark.parametrize("shape", SHAPES)
def test_coverage_of_the_smooth_band(shape, record_property):
    rng, number, held = np.random.default_rng(5), 300, []
    for seed in range(6):
        confidence = rng.random(number) ** SHAPES[shape]
        # It depends on the labels by the bandwidth alone.
        bands = {}
        for _ in range(400):
            correct = (rng.random(number) < confidence).astype(float)
            curve = SmoothCurve(cells_of(confidence, correct))
            if curve.bandwidth not in bands:
                bands[curve.bandwidth] = curve.band(seed=seed)
            band = bands[curve.bandwidth]
            low, high = band.low - 1e-9, band.high + 1e-9
            held.append(((curve.value >= low) & (curve.value <= high)).all())
    record_property("coverage", float(np.mean(held)))
    # Of the sets of labels, and of the 1,000 draws of each size.
    error = np.sqrt(0.95 * 0.05 * (1 / 2400 + 1 / 6006))
    assert np.mean(held) >= 0.95 - 3 * error


def test_corners_of_a_band_are_steps_only_where_curves_increase():
    x, low, high = np.array([[0.1, 0.5], [0.0, 0.3], [0.6, 0.9]])
    plain = corp.Band(x, low, high, increasing=False).corners()
    for found, expected in zip(plain, (x, low, high), strict=True):
        np.testing.assert_array_equal(found, expected)
    steps = corp.Band(x, low, high).corners()
    for found, expected in zip(
        steps, ([0.1, 0.5], [0, 0], [0.9] * 2), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def test_pointwise_band_of_the_smooth_curve_holds_other_draws_at_each_place():
    rng = np.random.default_rng(0)
    cells = cells_of(np.sort(rng.uniform(0.2, 1.0, 400)), np.ones(400))
    curve = SmoothCurve(cells)
    band = curve.band(level=0.9, simultaneous=False)
    other = np.concatenate([*corp.drawn_hits(cells, 1000, rng)])
    own = other @ curve._at(curve._power)[-1].T
    outside = (own < band.low) | (own > band.high)
    # 5 % on either side, each measured twice with 1000 draws: four standard
    # errors of sqrt(2 * 0.1 * 0.9 / 1000).
    assert np.abs(outside.mean(axis=0) - 0.1).max() < 4 * 0.0134
    assert not band.increasing
    np.testing.assert_array_equal(band.confidence, curve.confidence)


def test_the_smooth_curve_has_no_places_in_a_gap_of_samples():
    # Calibrated at 0.1 and 0.9, so that the bandwidth is the least one.
    confidence = np.repeat([0.1, 0.9], 500)
    correct = np.tile([1] + 9 * [0], 50), np.tile(9 * [1] + [0], 50)
    curve = SmoothCurve(cells_of(confidence, np.concatenate(correct)))
    assert curve.bandwidth < 0.01
    near = np.abs(curve.confidence[:, None] - [0.1, 0.9]).min(axis=1)
    # The density falls to 1e-3 at sqrt(2 ln 1000) bandwidths.
    assert near.max() <= np.sqrt(2 * np.log(1000)) * curve.bandwidth
    assert {0.1, 0.9} <= set(curve.confidence.round(9))
    np.testing.assert_allclose(curve.value.min(), 0.1, atol=1e-6)
    np.testing.assert_allclose(curve.value.max(), 0.9, atol=1e-6)
