"""The NumPy formulas: known numbers, and what holds for any."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from keras_calib.evaluation import binless
from keras_calib.evaluation.events import Events
from keras_calib.evaluation.events import sort_events
from keras_calib.evaluation.label_binned import label_binned_error
from keras_calib.evaluation.named_errors import TOP_LABEL
from keras_calib.evaluation.named_errors import errors_of_events
from keras_calib.evaluation.sweep import sweep
from keras_calib.inputs.predictions import top_label
from keras_calib.ops.bin_errors import calibration_error
from keras_calib.ops.bin_errors import debiased_power
from keras_calib.ops.bin_errors import erf
from tests.helpers import read_predictions
from tests.metrics.oracles import CONFIDENCE
from tests.metrics.oracles import CORRECT
from tests.metrics.oracles import EDGE_RULES
from tests.metrics.oracles import EDGE_SET
from tests.metrics.oracles import LABELS
from tests.metrics.oracles import PROBABILITIES
from tests.metrics.oracles import generated_set
from tests.metrics.oracles import softmax
from tests.metrics.published_rules import LeftClosed
from tests.metrics.published_rules import TornTies
from tests.metrics.published_rules import equal_mass_index
from tests.metrics.published_rules import error_of_index
from tests.metrics.published_rules import unbiased_kernel_square


def edge_events():
    return sort_events(CONFIDENCE, CORRECT)


def stable_events(confidence, correct, kind=Events):
    """Ties in the order they came in, for rules that tear ties apart."""
    order = np.argsort(confidence, kind="stable")
    return kind(confidence[order], correct[order])


def top_label_errors(events, num_bins):
    return errors_of_events(events, TOP_LABEL, TOP_LABEL, num_bins)


def test_every_error_where_every_edge_is_hit():
    found = top_label_errors(edge_events(), 5)
    for name, expected in EDGE_SET.items():
        assert found[name] == pytest.approx(expected, abs=2e-11), name


@pytest.mark.parametrize("rule", EDGE_RULES)
def test_equal_mass_by_the_rules_of_others(rule):
    index = equal_mass_index(CONFIDENCE, 5, rule)
    for norm, expected in zip((1, 2), EDGE_RULES[rule], strict=True):
        error = error_of_index(CONFIDENCE, CORRECT, index, norm)
        assert error == pytest.approx(expected, abs=1e-11)


def test_label_binned_error_over_bins_of_equal_mass():
    events = edge_events()
    bins = events.bins(events.mass_cuts(5))
    found = [label_binned_error(bins, norm) for norm in (1, 2)]
    assert found == pytest.approx([0.233333333333, 0.277138152472], abs=1e-11)


def test_debiased_errors_over_bins_of_equal_width():
    bins = edge_events().bins(edge_events().width_cuts(5))
    assert debiased_power(bins) == pytest.approx(-0.0858854166667, abs=1e-12)
    assert debiased_power(bins, 1) == pytest.approx(0.108165341905, abs=1e-11)
    small = sort_events(*top_label(LABELS, PROBABILITIES))
    bins = small.bins(small.width_cuts(5))
    assert debiased_power(bins) == pytest.approx(0.0030375, abs=1e-12)
    assert debiased_power(bins, 1) == pytest.approx(0.182930982158, abs=1e-11)
    labels, logits = generated_set()
    large = sort_events(*top_label(labels, softmax(logits)))
    bins = large.bins(large.width_cuts(15))
    assert debiased_power(bins) ** 0.5 == pytest.approx(
        0.148561191449, abs=1e-11
    )
    assert debiased_power(bins, 1) == pytest.approx(0.131396908159, abs=1e-11)


@pytest.mark.parametrize(
    ("arguments", "expected", "bins"),
    [
        ((TornTies, 1), 0.141666666667, 4),
        ((TornTies, 2), 0.183711730709, 4),
        ((Events, 2), 0.164200504127, 4),
        ((LeftClosed, 2), 0.127066255683, None),
    ],
)
def test_sweep_where_every_edge_is_hit(arguments, expected, bins):
    kind, norm = arguments
    error, number = sweep(stable_events(CONFIDENCE, CORRECT, kind), norm)
    assert error == pytest.approx(expected, abs=1e-11)
    assert bins is None or number == bins


def test_sweep_of_the_generated_set():
    labels, logits = generated_set()
    confidence, correct = top_label(labels, softmax(logits))
    error, number = sweep(sort_events(confidence, correct), norm=1)
    assert error == pytest.approx(0.123575185104, abs=1e-11)
    assert number == 7
    error, _ = sweep(stable_events(confidence, correct, LeftClosed), norm=2)
    assert error == pytest.approx(0.129147328298, abs=1e-11)


def test_kernel_errors():
    labels, logits = generated_set()
    for events, biased, unbiased in (
        (edge_events(), 0.0928953021348, -0.0120253534026),
        (
            sort_events(*top_label(LABELS, PROBABILITIES)),
            0.126275736886,
            0.00147528482971,
        ),
        (
            sort_events(*top_label(labels, softmax(logits))),
            0.105056247036,
            0.0106963299565,
        ),
    ):
        assert binless.kernel_error(events) == pytest.approx(biased, abs=1e-11)
        found = unbiased_kernel_square(events)
        assert found == pytest.approx(unbiased, abs=1e-11)


@pytest.mark.parametrize(
    ("bandwidth", "edge", "small", "generated"),
    [
        (0.02, 0.307495, 0.294863, 0.130748),
        (0.05, 0.2188554, 0.257412, 0.123575185),
        (0.1, 0.1416801, 0.199222, None),
        (None, 0.130892, 0.156588, 0.123575185),
    ],
    ids=["0.02", "0.05", "0.1", "fixed point"],
)
def test_smooth_error(bandwidth, edge, small, generated):
    labels, logits = generated_set()
    sets = (
        (edge_events(), edge),
        (sort_events(*top_label(LABELS, PROBABILITIES)), small),
        (sort_events(*top_label(labels, softmax(logits))), generated),
    )
    for events, expected in sets:
        if expected is not None:
            found = binless.smooth_error(events, bandwidth)
            assert found == pytest.approx(expected, abs=1e-6)


def test_smooth_error_counts_an_atom_at_one_in_full():
    # Half the mass at 1 with accuracy 0.5, half calibrated at 0.5: the
    # residual has one sign, so the error is the mean gap. relplot 1.0.3 gives
    # 0.171: it counts mass at the end nodes once, where reflection doubles it.
    confidence = np.repeat([1.0, 0.5], 1000)
    correct = np.tile([0.0, 1.0], 1000)
    events = sort_events(confidence, correct)
    assert binless.smooth_error(events) == pytest.approx(0.25, abs=1e-9)


def test_real_values_that_need_arguments(data_folder):
    expected = {
        "wideresnet-16-4-cifar-10": (0.08910344, 6, 0.05375708, 0.00217931),
        "lenet-5-cifar-100": (0.01637414, 7, 0.01521842, 0.00013076),
        "wideresnet-16-4-cifar-100": (0.06982106, 13, 0.05727444, 0.00179902),
    }
    for name, (error, number, smooth, unbiased) in expected.items():
        probabilities, labels = read_predictions(data_folder, name)
        confidence, correct = top_label(labels, probabilities.astype("float64"))
        # The published rule, which separates ties.
        events = stable_events(confidence, correct, TornTies)
        found = sweep(events)
        assert found[0] == pytest.approx(error, abs=5.1e-9)
        assert found[1] == number
        assert binless.smooth_error(events, 0.02) == pytest.approx(
            smooth, abs=5e-8
        )
        assert unbiased_kernel_square(events) == pytest.approx(
            unbiased, abs=5.1e-9
        )


def test_real_values_by_the_rules_of_others(data_folder):
    expected = {
        ("lenet-5-cifar-100", "split", 1): 0.01619630,
        ("lenet-5-cifar-100", "split", 2): 0.01898906,
        ("lenet-5-cifar-100", "quantile", 1): 0.01633791,
        ("lenet-5-cifar-100", "lower_edge", 2): 0.01905243,
        ("lenet-5-cifar-100", "interpolated", 1): 0.01637259,
        ("wideresnet-16-4-cifar-10", "split", 2): 0.09259942,
        ("wideresnet-16-4-cifar-10", "lower_edge", 2): 0.09263116,
        ("wideresnet-16-4-cifar-10", "interpolated", 1): 0.05369006,
        ("wideresnet-16-4-cifar-100", "split", 2): 0.07094986,
        ("wideresnet-16-4-cifar-100", "lower_edge", 2): 0.07094522,
        ("wideresnet-16-4-cifar-100", "interpolated", 1): 0.05682275,
        ("wideresnet-16-4-cifar-100", "quantile", 1): 0.05681854,
    }
    for (name, rule, norm), value in expected.items():
        probabilities, labels = read_predictions(data_folder, name)
        confidence, correct = top_label(labels, probabilities.astype("float64"))
        index = equal_mass_index(confidence, 15, rule)
        error = error_of_index(confidence, correct, index, norm)
        assert error == pytest.approx(value, abs=5.1e-9)


@st.composite
def weighted_events(draw):
    """Few confidences with many ties, some of them on edges, and counts."""
    n = draw(st.integers(1, 40))
    grid = draw(st.sampled_from([5, 15, 1000]))
    confidence = np.array(
        draw(st.lists(st.integers(0, grid), min_size=n, max_size=n))
    )
    correct = draw(
        st.lists(st.sampled_from([0.0, 1.0]), min_size=n, max_size=n)
    )
    counts = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    return confidence / grid, np.array(correct), np.array(counts)


@settings(max_examples=25, deadline=None)
@given(weighted_events(), st.integers(1, 20))
def test_a_count_is_a_repeated_sample(drawn, num_bins):
    confidence, correct, counts = drawn
    order = np.argsort(confidence, kind="stable")
    table = np.stack([counts, np.ones_like(counts)])[:, order]
    both = top_label_errors(
        Events(confidence[order], correct[order], table), num_bins
    )
    rows = np.repeat(np.arange(len(counts)), counts)
    for replicate, part in enumerate((rows, slice(None))):
        events = sort_events(confidence[part], correct[part])
        found = top_label_errors(events, num_bins)
        for name in TOP_LABEL:
            # Replicates of the smooth error are looked at on fewer points.
            tolerance = 2e-3 if name.startswith("smooth") else 1e-8
            assert both[name][replicate] == pytest.approx(
                found[name], abs=tolerance
            ), name


@settings(max_examples=60, deadline=None)
@given(weighted_events(), st.integers(1, 20))
def test_errors_are_ordered_as_they_must_be(drawn, num_bins):
    events = sort_events(*drawn[:2])
    found = top_label_errors(events, num_bins)
    gap = abs(events.residuals.mean()) - 1e-9
    for name in ("expected", "adaptive", "ks", "smooth"):
        assert found[f"{name}_calibration_error"] >= gap
    ece = found["expected_calibration_error"]
    parts = found["overconfidence_error"] + found["underconfidence_error"]
    assert parts == pytest.approx(ece, abs=1e-12)
    assert found["expected_calibration_error_l2"] >= ece - 1e-12
    assert found["maximum_calibration_error"] >= ece - 1e-12
    assert found["label_binned_calibration_error_l1"] >= ece - 1e-12
    assert found["excess_area_under_risk_coverage"] >= -1e-9


@settings(max_examples=40, deadline=None)
@given(weighted_events(), st.integers(1, 20), st.randoms())
def test_the_order_of_the_samples_does_not_matter(drawn, num_bins, random):
    confidence, correct, _ = drawn
    order = list(range(len(confidence)))
    random.shuffle(order)
    one = top_label_errors(stable_events(confidence, correct), num_bins)
    two = top_label_errors(
        stable_events(confidence[order], correct[order]), num_bins
    )
    for name in TOP_LABEL:
        assert one[name] == pytest.approx(two[name], abs=1e-8), name


def test_sorting_keeps_every_bit():
    rng = np.random.default_rng(0)
    for dtype in ("float32", "float64"):
        confidence = rng.random(1000).astype(dtype)
        confidence[:4] = [0.0, -0.0, 1.0, np.finfo(dtype).tiny]
        correct = rng.integers(0, 2, 1000)
        events = sort_events(confidence, correct)
        order = np.lexsort((correct, confidence))
        np.testing.assert_array_equal(events.confidence, confidence[order])
        np.testing.assert_array_equal(events.correct, correct[order])
        assert events.confidence.dtype == dtype


def test_no_sample_gives_zero():
    events = sort_events(np.zeros(0), np.zeros(0))
    found = top_label_errors(events, 15)
    assert found.pop("auroc") == 0.5
    assert {float(value) for value in found.values()} == {0.0}


def test_helpers_of_the_formulas():
    special = pytest.importorskip("scipy.special")
    x = np.linspace(-3, 3, 50)
    np.testing.assert_allclose(erf(x), special.erf(x), atol=1e-15)
    whole = np.arange(100)
    sums = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, 100))])
    np.testing.assert_allclose(binless.harmonic(whole), sums, atol=1e-10)


def test_more_bins_than_samples():
    events = sort_events(np.array([0.3, 0.7]), np.array([1.0, 1.0]))
    found = calibration_error(events.bins(events.mass_cuts(15)))
    assert found == pytest.approx(0.5)
