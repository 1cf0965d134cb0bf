"""What a fine histogram may be off by: the bounds of the docstrings."""

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

import keras_calib as kc
from keras_calib.evaluation.binless import smooth_error
from keras_calib.evaluation.events import Events
from keras_calib.evaluation.events import sort_events
from keras_calib.evaluation.named_errors import TOP_LABEL
from keras_calib.evaluation.named_errors import errors_of_events
from keras_calib.evaluation.sweep import sweep
from keras_calib.metrics import _histogram as histogram
from keras_calib.ops.bin_errors import debiased_power
from keras_calib.ops.binning import centers

# What float32 sums of a few hundred terms lose.
ROUNDING = 2e-6


@st.composite
def events(draw):
    """Confidences that crowd, tie, or lie side by side in one cell."""
    seed = draw(st.integers(0, 2**32 - 1))
    # Few sizes: JAX compiles each operation anew for each.
    n = draw(st.sampled_from([1, 2, 17, 300]))
    kind = draw(st.sampled_from(["even", "crowded", "one cell", "ties"]))
    rng = np.random.default_rng(seed)
    u = rng.random(n)
    confidence = {
        "even": u,
        "crowded": 1 - u**6,
        "one cell": 0.7 + u * draw(st.sampled_from([1e-4, 1e-2])),
        "ties": np.round(u, 1),
    }[kind].astype("float32")
    accuracy = np.clip(confidence + 0.3 * np.sin(9 * confidence), 0, 1)
    return confidence, (rng.random(n) < accuracy).astype("float64")


def streamed(metric, confidence, correct):
    """Feed events as such, whatever the network they came from."""
    metric.events = lambda *_: tuple(
        keras.ops.convert_to_tensor(values.astype("float32"))
        for values in (confidence, correct, np.ones(len(confidence)))
    )
    metric.host_events = lambda *_: None
    metric.rows = lambda *_: None
    metric.update_state(None, None)
    return metric


def cells(confidence, **arguments):
    edges = histogram.cell_edges(**arguments)
    return np.searchsorted(edges.astype("float32"), confidence)


def largest_cell(confidence):
    """Share of the samples in the fullest cell of more than one value."""
    index = cells(confidence)
    return max(
        (
            np.mean(index == cell)
            for cell in np.unique(index)
            if len(np.unique(confidence[index == cell])) > 1
        ),
        default=0.0,
    )


@settings(max_examples=40, deadline=None)
@given(events(), st.integers(1, 20))
def test_values_from_cells_are_within_their_bounds(drawn, num_bins):
    confidence, correct = drawn
    n = len(confidence)
    sample = sort_events(confidence, correct)
    names = (
        "adaptive_calibration_error",
        "adaptive_calibration_error_l2",
        "ks_calibration_error",
        "label_binned_calibration_error_l1",
        "debiased_calibration_error_l1",
    )
    exact = errors_of_events(sample, TOP_LABEL, names, num_bins)
    share = largest_cell(confidence)

    metric = kc.metrics.AdaptiveCalibrationError(num_bins=num_bins)
    found = float(streamed(metric, *drawn).result())
    bound = 2 * (num_bins - 1) * share
    assert abs(found - exact[names[0]]) <= bound + ROUNDING

    metric = kc.metrics.AdaptiveCalibrationError(num_bins=num_bins, norm=2)
    found = float(streamed(metric, *drawn).result())
    assert abs(found**2 - exact[names[1]] ** 2) <= 2 * bound + ROUNDING

    metric = kc.metrics.KSCalibrationError()
    found = float(streamed(metric, *drawn).result())
    assert -ROUNDING <= exact[names[2]] - found <= share + ROUNDING

    metric = kc.metrics.LabelBinnedCalibrationError(num_bins=num_bins, norm=1)
    found = float(streamed(metric, *drawn).result())
    assert -ROUNDING <= exact[names[3]] - found <= 1 / 1024 + ROUNDING

    shift = share + num_bins / n
    metric = kc.metrics.DebiasedCalibrationError(num_bins=num_bins)
    found = float(streamed(metric, *drawn).signed())
    square = debiased_power(sample.bins(sample.mass_cuts(num_bins, "split")))
    bound = 4 * (num_bins - 1) * shift + num_bins / (2 * n)
    assert abs(found - square) <= bound + ROUNDING

    metric = kc.metrics.DebiasedCalibrationError(num_bins=num_bins, norm=1)
    found = float(streamed(metric, *drawn).signed())
    bound = 2 * (num_bins - 1) * shift + 0.4 * (num_bins / n) ** 0.5
    assert abs(found - exact[names[4]]) <= bound + ROUNDING


@settings(max_examples=25, deadline=None)
@given(events(), st.sampled_from([0.01, 0.05, 0.2]))
def test_the_smooth_error_is_within_its_bound(drawn, bandwidth):
    sample = sort_events(*drawn)
    size = np.abs(sample.residuals).mean()
    step = 1 / kc.metrics.SmoothCalibrationError.CELLS
    metric = kc.metrics.SmoothCalibrationError(bandwidth=bandwidth)
    found = float(streamed(metric, *drawn).result())
    # Eight times finer, so that its own error does not count.
    exact = smooth_error(sample, bandwidth)
    bound = 0.121 * (step / bandwidth) ** 2 * size
    assert abs(found - exact) <= bound + ROUNDING
    # At the fixed point the value is its own bandwidth.
    metric = kc.metrics.SmoothCalibrationError()
    found = float(streamed(metric, *drawn).result())
    exact = smooth_error(sample)
    bound = 0.121 * (step / max(exact, 2 * step)) ** 2 * size
    assert abs(found - exact) <= bound + 1e-5


@settings(max_examples=25, deadline=None)
@given(events())
def test_a_sweep_over_cells_is_one_over_tied_confidences(drawn):
    confidence, correct = drawn
    index = cells(confidence)
    order = np.argsort(index, kind="stable")
    # Cuts see the cells, sums see the confidences.
    tied = Events(index[order].astype("float64"), correct[order])
    values = confidence[order].astype("float64")
    tied.__dict__["values"] = values
    tied.__dict__["residuals"] = values - correct[order]
    error, number = sweep(tied)
    metric = streamed(kc.metrics.SweepCalibrationError(), *drawn)
    if number <= metric.max_bins:
        assert int(metric.used_bins()) == number
        assert float(metric.result()) == pytest.approx(error, abs=1e-5)


@pytest.mark.parametrize("num_bins", [1, 2, 7, 15])
def test_cells_that_hold_one_value_each_add_no_error(num_bins):
    rng = np.random.default_rng(0)
    grid = centers(histogram.cell_edges()).astype("float32")
    confidence = rng.choice(grid, 500)
    correct = (rng.random(500) < confidence).astype("float64")
    names = ("adaptive_calibration_error", "ks_calibration_error")
    exact = errors_of_events(
        sort_events(confidence, correct), TOP_LABEL, names, num_bins
    )
    metrics = (
        kc.metrics.AdaptiveCalibrationError(num_bins=num_bins),
        kc.metrics.KSCalibrationError(),
    )
    for name, metric in zip(names, metrics, strict=True):
        found = float(streamed(metric, confidence, correct).result())
        assert found == pytest.approx(exact[name], abs=ROUNDING)


def test_cells_are_the_union_of_both_grids():
    assert kc.metrics.KSCalibrationError().num_cells == 1964
    edges = histogram.cell_edges(num_bins=15)
    assert np.isin(np.float32(np.arange(1, 15) / 15), edges.astype("f4")).all()
    middles = centers(histogram.cell_edges())
    assert (
        np.searchsorted(histogram.cell_edges(), middles) == np.arange(1964)
    ).all()


@pytest.mark.parametrize("name", ["norm", "num_bins", "binning"])
def test_ks_refuses_what_it_would_ignore(name):
    with pytest.raises(ValueError, match=f"KS has no bins.*{name}=2"):
        kc.metrics.KSCalibrationError(**{name: 2})
