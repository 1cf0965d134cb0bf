"""SKCE: worked numbers, its sum over pairs, peers, size and power."""

import dataclasses
import math

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.evaluation import squared_kernel_error as skce
from keras_calib.evaluation.binless import kernel_error
from keras_calib.evaluation.events import sort_events
from tests.metrics.oracles import LABELS
from tests.metrics.oracles import PROBABILITIES
from tests.metrics.oracles import generated_set
from tests.metrics.oracles import hash_uniform
from tests.metrics.oracles import random_predictions
from tests.metrics.oracles import softmax

error = kc.metrics.squared_kernel_calibration_error
TEN = {"rel": 1e-8, "abs": 6e-11}


def small():
    return LABELS, PROBABILITIES


def generated():
    labels, logits = generated_set()
    return labels, softmax(logits)


def by_its_sum(y, p, width, kernel="laplace", biased=False):
    """The definition, pair by pair."""
    r = np.eye(p.shape[1])[y] - p
    total = 0.0
    for i in range(len(y)):
        for j in range(len(y)):
            if i == j and not biased:
                continue
            d = math.sqrt(((p[i] - p[j]) ** 2).sum())
            k = math.exp(-d / width)
            if kernel == "gauss":
                k = math.exp(-(d**2) / (2 * width**2))
            total += k * (r[i] @ r[j])
    return total / (len(y) ** 2 if biased else len(y) * (len(y) - 1))


NUMBERS = {
    small: {
        "width": 0.6267351271,
        "biased": 0.0461090479,
        "unbiased": 0.0084889119,
        "linear": (0.0321316776, 0.6885463367, 0.2455544006),
        "gauss": 0.0146198424,
        "half": 0.0069845474,
        "draws": (0.0270385888, 0.0725955621, 0.314),
    },
    generated: {
        "width": 1.180292054,
        "biased": 0.0050911430,
        "unbiased": 0.0042830830,
        "linear": (-0.0041019650, -0.6601631026, 0.7454254162),
        "gauss": 0.0051776142,
        "half": 0.0032803742,
        "draws": (0.0001788970, 0.0004602403, 0.001),
    },
}


@pytest.mark.parametrize("make", NUMBERS)
def test_estimators(make):
    y, p = make()
    wanted = NUMBERS[make]
    for estimator in ("unbiased", "biased"):
        found = error(y, p, estimator=estimator, num_draws=1)
        assert found.value == pytest.approx(wanted[estimator], **TEN)
        assert found.bandwidth == pytest.approx(wanted["width"], rel=1e-8)
        assert found.num_rows == found.num_rows_given == len(y)
    found = error(y, p, kernel="gauss", num_draws=1)
    assert found.value == pytest.approx(wanted["gauss"], **TEN)
    found = error(y, p, bandwidth=0.5, num_draws=1)
    assert found.value == pytest.approx(wanted["half"], **TEN)
    assert found.bandwidth == 0.5


@pytest.mark.parametrize("make", NUMBERS)
def test_linear_estimator_in_the_order_of_the_rows(make):
    y, p = make()
    value, z, p_value = NUMBERS[make]["linear"]
    terms = skce.linear_terms(
        p, y, "laplace", skce.median_distance(p), np.arange(len(y))
    )
    assert terms.mean() == pytest.approx(value, **TEN)
    spread = terms.std(ddof=1) / math.sqrt(len(terms))
    assert terms.mean() / spread == pytest.approx(z, rel=1e-8)
    assert skce._normal_p_value(terms) == pytest.approx(p_value, **TEN)


@pytest.mark.parametrize("make", NUMBERS)
def test_drawn_labels(make):
    y, p = make()
    uniform = hash_uniform(999 * len(y), 31).reshape(999, len(y))
    pairs = skce.SumOverPairs(p, "laplace", skce.median_distance(p))
    values = np.concatenate(
        [pairs.of_uniforms(part) for part in np.array_split(uniform, 20)]
    )
    spread, high, p_value = NUMBERS[make]["draws"]
    assert values.std(ddof=1) == pytest.approx(spread, rel=1e-8, abs=6e-11)
    assert np.quantile(values, 0.975) == pytest.approx(
        high, rel=1e-8, abs=6e-11
    )
    observed = pairs.of_labels(y[None])[0]
    reached = np.count_nonzero(values >= observed - 1e-12)
    assert (1 + reached) / 1000 == pytest.approx(p_value)


def test_p_value():
    found = error(*small())
    # The difference of two binomial shares of 999.
    deviation = math.sqrt(2 * 0.314 * 0.686 / 999)
    assert abs(found.p_value - 0.314) < 4 * deviation
    assert found.num_draws == 999 and found.value < found.upper
    found = error(*generated())
    assert found.p_value == 1 / 1000 and found.value > found.upper
    again = error(*small(), seed=3), error(*small(), seed=3)
    assert again[0] == again[1]


@pytest.mark.parametrize("kernel", ["laplace", "gauss"])
@pytest.mark.parametrize("num_classes", [2, 4, 30])
def test_sum_over_pairs(num_classes, kernel):
    y, p = random_predictions(40, num_classes)
    p = p.astype("float64")
    for biased in (False, True):
        pairs = skce.SumOverPairs(p, kernel, 0.3, biased)
        labels = np.stack([y, np.roll(y, 1), 0 * y])
        wanted = [by_its_sum(row, p, 0.3, kernel, biased) for row in labels]
        assert pairs.of_labels(labels) == pytest.approx(wanted, rel=1e-9)
    order = np.random.default_rng(0).permutation(40)
    terms = skce.linear_terms(p, y, kernel, 0.3, order)
    wanted = [
        by_its_sum(y[part], p[part], 0.3, kernel)
        for part in order.reshape(20, 2)
    ]
    assert terms == pytest.approx(wanted, rel=1e-9)


def test_labels_are_drawn_from_the_predictions():
    p = np.array([[0.5, 0.2, 0.3], [0.0, 1.0, 0.0], [0.1, 0.2, 0.7]])
    pairs = skce.SumOverPairs(p, "laplace", 1.0)
    seen = []
    pairs.of_labels = lambda labels: seen.append(labels)
    pairs.of_uniforms(np.random.default_rng(0).random((40_000, 3)))
    shares = np.stack([(seen[0] == k).mean(axis=0) for k in range(3)], axis=1)
    np.testing.assert_allclose(shares, p, atol=4 * 0.5 / 200)
    assert shares[1, 1] == 1


def test_two_classes_are_twice_the_squared_mmce():
    labels, p = generated()
    confidence = p.max(axis=1)
    correct = (p.argmax(axis=1) == labels).astype(int)
    # The distance in the plane is sqrt(2) |c - c'|.
    width = 0.4 * math.sqrt(2)
    found = error(
        correct, confidence, estimator="biased", bandwidth=width, num_draws=1
    )
    assert found.value == pytest.approx(0.0220736301, rel=1e-8)
    mmce = kernel_error(sort_events(confidence, correct))
    assert found.value == pytest.approx(2 * mmce**2, rel=1e-8)
    found = error(correct, confidence, bandwidth=width, num_draws=1)
    assert found.value == pytest.approx(0.0213926599, rel=1e-8)
    assert found.value == pytest.approx(2 * 0.0106963300, rel=1e-8)


def test_probcal_agrees():
    metrics = pytest.importorskip("probcal.metrics")
    rng = np.random.default_rng(1)
    p = rng.random(200)
    y = rng.integers(0, 2, 200)
    for theirs, ours in (("uq", "unbiased"), ("biased", "biased")):
        wanted = metrics.skce(y, p, estimator=theirs, bandwidth=0.1)
        found = error(
            y,
            p,
            estimator=ours,
            bandwidth=0.1 * math.sqrt(2),
            num_draws=1,
        )
        assert found.value == pytest.approx(wanted, rel=1e-8, abs=1e-12)


def test_every_form_of_the_input():
    y, p = generated()
    options = {"num_draws": 19, "verbose": 0}
    wanted = error(y, p, **options)
    weights = np.append(np.full(500, 0.5), 0)
    more = np.append(y, 0), np.append(p, p[:1], axis=0)
    for found in (
        error(np.eye(5)[y], p, **options),
        error(y, np.log(p), from_logits=True, **options),
        error(*more, weights, **options),
        error(np.append(y, 9), more[1], ignore_class=9, **options),
    ):
        assert found.value == pytest.approx(wanted.value, rel=1e-9)
        assert found.p_value == wanted.p_value
        assert found.num_rows_given == 500


def test_many_rows_are_a_subset_that_is_said():
    y, p = generated()
    found = error(y, p, max_rows=100, num_draws=19)
    assert (found.num_rows, found.num_rows_given) == (100, 500)
    other = error(y, p, max_rows=100, num_draws=19, seed=1)
    assert found.value != other.value
    assert found == error(y, p, max_rows=100, num_draws=19)
    # The linear estimator takes all.
    found = error(y, p, max_rows=100, estimator="linear")
    assert found.num_rows == 500 and found.num_draws == 0
    assert math.isnan(found.upper) and 0 < found.p_value < 1
    # Not by `==`: since Python 3.13 a data class takes a NaN for another one.
    same = error(y, p, estimator="linear")
    np.testing.assert_equal(dataclasses.asdict(found), dataclasses.asdict(same))
    assert found.value != error(y, p, estimator="linear", seed=1).value


def test_width_of_many_rows_and_of_ties(monkeypatch):
    _, p = generated()
    monkeypatch.setattr(skce, "WIDTH_ROWS", 50)
    places = np.linspace(0, 499, 50).astype(int)
    d = np.linalg.norm(p[places][:, None] - p[places], axis=2)
    wanted = np.median(d[np.triu_indices(50, 1)])
    assert skce.median_distance(p) == pytest.approx(wanted)
    # Most pairs are ties, and 9 of 45 are not: the mean.
    p = np.repeat([[1.0, 0.0], [0.0, 1.0]], [9, 1], axis=0)
    assert skce.median_distance(p) == pytest.approx(math.sqrt(2) * 9 / 45)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"sample_weight": np.arange(8)}, "takes no weights"),
        ({"estimator": "quadratic"}, "estimator"),
        ({"kernel": "rbf"}, "kernel"),
        ({"bandwidth": 0.0}, "bandwidth"),
        ({"num_draws": 0}, "num_draws"),
        ({"max_rows": 1}, "max_rows"),
        (
            {"probabilities": np.full((8, 3), 1 / 3)},
            "All predictions are equal",
        ),
        ({"labels": np.full((8, 3), 1 / 3)}, "soft"),
        ({"sample_weight": np.eye(8)[0]}, "two at least"),
    ],
)
def test_bad_input(change, message):
    given = {"labels": LABELS, "probabilities": PROBABILITIES} | change
    with pytest.raises(ValueError, match=message):
        error(**given)


def test_two_and_three_rows():
    y, p = small()
    for n in (2, 3):
        found = error(y[:n], p[:n], num_draws=19)
        assert found.value == pytest.approx(
            by_its_sum(y[:n], p[:n], found.bandwidth)
        )
        found = error(y[:n], p[:n], estimator="linear")
        assert math.isnan(found.p_value) and math.isfinite(found.value)


@pytest.mark.slow
@pytest.mark.one_backend
@pytest.mark.parametrize("power, wanted", [(1, 0.05), (2, 0.50)])
def test_size_and_power(power, wanted, record_property):
    # The sheet: .045 and .50 of 1,000 sets with 100 rows (Monte Carlo errors
    # .007 and .016); the linear test rejects .035 of the second.
    rng = np.random.default_rng(3)
    rejected = []
    for seed in range(400):
        q = rng.dirichlet(np.ones(3), 100)
        y = (rng.random((100, 1)) > np.cumsum(q, axis=1)[:, :2]).sum(axis=1)
        p = q**power / (q**power).sum(axis=1, keepdims=True)
        options = {"seed": seed, "num_draws": 99, "verbose": 0}
        rejected.append(
            [
                error(y, p, **options).p_value <= 0.05,
                error(y, p, estimator="linear", seed=seed).p_value <= 0.05,
            ]
        )
    quadratic, linear = np.mean(rejected, axis=0)
    record_property("sizes", [float(quadratic), float(linear)])
    deviation = math.sqrt(wanted * (1 - wanted) / 400)
    assert abs(quadratic - wanted) < 4 * deviation
    assert linear < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 400)
