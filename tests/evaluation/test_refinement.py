"""Calibration and refinement parts, and lower bounds of L_p errors."""

import math

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.evaluation import refinement
from keras_calib.evaluation.interval_ends import interval_ends
from keras_calib.inputs.predictions import read_predictions
from keras_calib.solvers import temperature as solver
from tests.metrics.oracles import generated_set
from tests.metrics.oracles import random_predictions
from tests.metrics.oracles import softmax

# Of the generated set, by an independent script: its rows modulo 5 are folds.
FOLDS = {
    "refinement_loss": 0.693114894826,
    "calibration_loss": 0.152221855068,
    "brier_refinement_loss": 0.374971763958,
    "brier_calibration_loss": 0.408313126636 - 0.374971763958,
    "calibration_error_lower_bound": 0.123575185104,
    "overconfidence_error_lower_bound": 0.123039694486,
    "underconfidence_error_lower_bound": 0.123575185104 - 0.123039694486,
    "isotonic_calibration_error_lower_bound": 0.121767151849,
    "calibration_error_l2_lower_bound": 0.158981071088,
}
# Mean over blocks of `n` of 20,000 rows: what the temperature of a block
# leaves on the block, and on all rows, less what the best one leaves.
BLOCKS = {
    100: (-0.00537, 0.00552, 5.1e-6),
    500: (-0.000836, 0.000840, 5.1e-7),
    1000: (-0.000442, 0.000439, 5.1e-7),
}


def errors(*arrays, **kwargs):
    return kc.metrics.calibration_errors(
        *arrays, metrics=[], refinement=True, verbose=0, **kwargs
    )


def generated(form="logits", n=500):
    labels, logits = generated_set(n)
    if form == "logits":
        return read_predictions(labels, logits, from_logits=True)
    return read_predictions(labels, softmax(logits))


@pytest.mark.parametrize("form", ["logits", "probabilities"])
def test_parts_of_the_nll_on_the_same_rows(form):
    data = generated(form)
    found = refinement.best_temperature(data)
    assert found.temperature == pytest.approx(1.97593901124, abs=1e-9)
    assert found.nll_before == pytest.approx(0.845336749895, abs=1e-11)
    assert found.nll_after == pytest.approx(0.692067035915, abs=1e-11)
    calibration = found.nll_before - found.nll_after
    assert calibration == pytest.approx(0.15326971398, abs=1e-11)
    after = refinement.at_temperature(data, found.temperature)
    assert data.brier().mean() == pytest.approx(0.408313126636, abs=1e-11)
    assert after.brier().mean() == pytest.approx(0.37478569645, abs=1e-9)


@pytest.mark.parametrize("form", ["logits", "probabilities"])
def test_means_out_of_fold(form):
    rows = refinement.out_of_fold(generated(form), np.arange(500) % 5)
    assert set(rows) == set(FOLDS) == set(refinement.RANGES)
    for name, expected in FOLDS.items():
        assert rows[name].mean() == pytest.approx(expected, abs=1e-9), name


def test_bias_of_a_temperature_on_its_own_rows():
    # V / (2 J n): J is the second derivative of the NLL in 1 / T, V the
    # variance of the first derivatives of the rows.
    labels, z = generated_set()
    p = softmax(z / 1.97593901124)
    mean = (p * z).sum(axis=1)
    slopes = mean - z[np.arange(500), labels]
    curvature = ((p * z**2).sum(axis=1) - mean**2).mean()
    ratio = slopes.var() / curvature
    assert ratio == pytest.approx(0.925837890717, abs=1e-9)
    expected = {100: 0.00463, 500: 0.000926, 1000: 0.000463}
    for n, bias in expected.items():
        assert ratio / (2 * n) == pytest.approx(bias, rel=1e-3)


@pytest.mark.parametrize("n", BLOCKS)
def test_measured_bias_of_a_temperature_from_few_rows(n):
    data = generated(n=20_000)
    best = refinement.best_temperature(data).nll_after
    inside, everywhere = [], []
    for start in range(0, 20_000, n):
        rows = np.zeros(20_000, bool)
        rows[start : start + n] = True
        found = refinement.best_temperature(data.part(rows))
        inside.append(found.nll_after)
        after = refinement.at_temperature(data, found.temperature)
        everywhere.append(after.negative_log_likelihood().mean())
    own, others, tolerance = BLOCKS[n]
    assert np.mean(inside) - best == pytest.approx(own, abs=tolerance)
    assert np.mean(everywhere) - best == pytest.approx(others, abs=tolerance)


def test_keys_only_on_request_and_the_parts_add_up():
    labels, logits = generated_set()
    plain = kc.metrics.calibration_errors(labels, logits, from_logits=True)
    assert not set(plain) & set(FOLDS)
    found = kc.metrics.calibration_errors(
        labels, logits, from_logits=True, refinement=True
    )
    assert set(found) == set(plain) | set(FOLDS)
    nll = found["refinement_loss"] + found["calibration_loss"]
    assert nll == pytest.approx(plain["negative_log_likelihood"])
    brier = found["brier_refinement_loss"] + found["brier_calibration_loss"]
    assert brier == pytest.approx(plain["brier_score"])
    # Other folds than those of the oracle: the same up to their noise.
    for name, expected in FOLDS.items():
        assert found[name] == pytest.approx(expected, abs=0.01), name


def test_folds_are_of_equal_size_and_follow_the_seed():
    data = generated()
    one, again, other = (refinement.folds_of(data, s) for s in (0, 0, 1))
    assert (one == again).all() and (one != other).any()
    assert list(np.bincount(one)) == [100] * 5


def test_pixels_of_an_image_share_a_fold():
    labels, p = random_predictions(60, 3)
    images = labels.reshape(12, 5), p.reshape(12, 5, 3)
    folds = refinement.folds_of(read_predictions(*images), 0).reshape(12, 5)
    assert (folds == folds[:, :1]).all()
    assert sorted(np.bincount(folds[:, 0])) == [2, 2, 2, 3, 3]


def test_weights_are_relative_and_rows_of_weight_0_do_not_count():
    labels, logits = generated_set(200)
    weight = np.arange(200) % 3 * 1.0
    found = errors(labels, logits, weight, from_logits=True)
    scaled = errors(labels, logits, 1e6 * weight, from_logits=True)
    assert scaled == pytest.approx(found, abs=1e-9)
    keep = weight > 0
    left = errors(labels[keep], logits[keep], weight[keep], from_logits=True)
    assert left == pytest.approx(found, abs=1e-12)
    # Whatever they hold.
    logits[~keep] = np.nan
    void = np.where(keep, labels, 255)
    found = errors(void, logits, weight, from_logits=True, ignore_class=255)
    assert found == pytest.approx(left, abs=1e-12)
    unweighted = errors(labels[keep], logits[keep], from_logits=True)
    assert unweighted != pytest.approx(left, abs=1e-4)


def test_a_whole_weight_is_as_many_copies():
    labels, logits = generated_set(100)
    weight = 1 + np.arange(100) % 2
    folds = np.arange(100) % 5
    data = read_predictions(labels, logits, weight, from_logits=True)
    rows = refinement.out_of_fold(data, folds)
    copies = np.repeat(np.arange(100), weight)
    repeated = refinement.out_of_fold(
        read_predictions(labels[copies], logits[copies], from_logits=True),
        folds[copies],
    )
    for name, values in rows.items():
        mean = np.average(values, weights=weight)
        assert repeated[name].mean() == pytest.approx(mean, abs=1e-9), name


def test_one_sigmoid_unit_is_two_classes():
    labels, logits = generated_set(200)
    z = logits[:, :1]
    y = (labels == 0).astype(int)
    one = errors(y, z, from_logits=True)
    two = errors(y, np.hstack([np.zeros_like(z), z]), from_logits=True)
    assert one == pytest.approx(two, abs=1e-12)
    p = 1 / (1 + np.exp(-z))
    assert errors(y, p[:, 0]) == pytest.approx(one, abs=1e-9)
    # With two classes the distance is sqrt(2) times that of one of them.
    assert one["calibration_error_l2_lower_bound"] == pytest.approx(
        math.sqrt(2) * one["calibration_error_lower_bound"], abs=1e-9
    )


def test_soft_labels_are_expectations():
    labels, logits = generated_set(100)
    soft = 0.8 * np.eye(5)[labels] + 0.2 * np.eye(5)[(labels + 1) % 5]
    folds = np.arange(100) % 5
    data = read_predictions(soft, logits, from_logits=True)
    found = refinement.out_of_fold(data, folds)
    both = read_predictions(
        np.concatenate([labels, (labels + 1) % 5]),
        np.concatenate([logits, logits]),
        np.repeat([0.8, 0.2], 100),
        from_logits=True,
    )
    hard = refinement.out_of_fold(both, np.tile(folds, 2))
    for name in ("refinement_loss", "calibration_error_l2_lower_bound"):
        expected = np.average(hard[name], weights=both.weights)
        assert found[name].mean() == pytest.approx(expected, abs=1e-9), name


def test_intervals_are_those_of_a_mean_over_rows():
    labels, logits = generated_set()
    found = errors(labels, logits, from_logits=True, num_resamples=500)
    data = generated()
    rows = refinement.out_of_fold(data, refinement.folds_of(data, 0))
    for name, value in found.items():
        assert float(value) == pytest.approx(rows[name].mean(), abs=1e-12)
        error = rows[name].std() / math.sqrt(500)
        assert value.low < value < value.high
        width = (value.high - value.low) / (2 * 1.96)
        assert width == pytest.approx(error, rel=0.15), name
    again = errors(labels, logits, from_logits=True, num_resamples=500)
    assert [v.low for v in again.values()] == [v.low for v in found.values()]


def held_true(scale, n, sets=100):
    """In how many sets each calibration part's interval has the true value."""
    rng = np.random.default_rng(n)
    z = 2 * rng.normal(size=(200_000, 5))
    p, q = softmax(z), softmax(scale * z)
    true = {
        "calibration_loss": (p * np.log(p / q)).sum(axis=1).mean(),
        "brier_calibration_loss": ((p - q) ** 2).sum(axis=1).mean(),
    }
    held = dict.fromkeys(true, 0)
    for _ in range(sets):
        z = 2 * rng.normal(size=(n, 5))
        labels = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
        found = errors(labels, scale * z, from_logits=True, num_resamples=200)
        for name, value in true.items():
            part = found[name]
            assert part.low <= part <= part.high
            held[name] += part.low - 1e-12 <= value <= part.high
    return held


@pytest.mark.parametrize(
    ("scale", "n"), [(1.0, 200), (1.05, 200), (1.05, 1000), (0.9, 200)]
)
def test_intervals_of_calibration_parts_hold_the_truth_near_calibration(
    scale, n
):
    # Percentiles of rows with their `g` held it in 67 to 79 of 100 sets.
    for name, held in held_true(scale, n).items():
        assert held >= 90, name


def test_intervals_of_calibration_parts_hold_the_truth_far_from_calibration():
    for name, held in held_true(2.0, 500).items():
        assert held >= 88, name


def test_ends_of_a_part_whose_direction_is_known_or_not():
    drawn, level = np.linspace(0.0, 1.0, 101), 0.9
    values = np.stack([np.append(0.4, drawn), np.ones(102)], axis=1)
    name = "calibration_loss"
    ends = interval_ends(name, values, level, basic=True)
    assert ends == pytest.approx((0.05, 0.95))
    assert interval_ends(name, values, level, basic=False) == ends
    # Half of the resamples are on the other side: -1 to 1 in 201 steps.
    both = np.concatenate([values, values * [1.0, -1.0]])[1:]
    ends = interval_ends(name, both, level, basic=True)
    assert ends == pytest.approx((0.0, 0.9), abs=0.01)
    # A value out of fold is in its interval, also one below 0.
    both[0, 0] = -0.2
    assert interval_ends(name, both, level, basic=True)[0] == -0.2


def test_what_a_temperature_takes_off_a_resample_is_that_of_its_own():
    labels, logits = generated_set()
    weight = np.random.default_rng(0).multinomial(500, np.full(500, 1 / 500))
    data = read_predictions(labels, logits, from_logits=True)
    rows, temperature = refinement._around_best(data)
    means = np.stack([rows.mean(axis=1), rows @ weight / 500], axis=1)
    found = refinement._taken_off(means, temperature)
    drawn = read_predictions(labels, logits, weight, from_logits=True)
    best = refinement.best_temperature(drawn)
    after = refinement.at_temperature(drawn, best.temperature)
    off = best.nll_before - best.nll_after
    value, log_factor = found["calibration_loss"][1]
    assert value == pytest.approx(off, rel=0.01)
    assert log_factor == pytest.approx(-math.log(best.temperature), abs=0.01)
    brier = np.average(drawn.brier() - after.brier(), weights=drawn.weights)
    assert found["brier_calibration_loss"][1, 0] == pytest.approx(
        brier, rel=0.02
    )


def test_lower_bounds_hold_where_the_truth_is_known():
    # P(y | x) is softmax(z / 2 + bias): see `generated_set`.
    labels, z = generated_set(20_000)
    truth = softmax(z / 2 + 0.3 * (np.arange(5) - 2))
    p = softmax(z)
    rows = np.arange(20_000), p.argmax(axis=1)
    l1 = np.abs(truth - p)[rows].mean()
    l2 = np.sqrt(((truth - p) ** 2).sum(axis=1)).mean()
    found = errors(labels, p)
    for name in ("", "isotonic_"):
        bound = found[f"{name}calibration_error_lower_bound"]
        # The error of the confidence is at most that of the class.
        assert 0.1 < bound < l1 + 3 * 0.5 / math.sqrt(20_000)
    assert 0.1 < found["calibration_error_l2_lower_bound"] < l2
    assert 0.13 < found["calibration_loss"] < 0.2
    calibrated = errors(labels, truth)
    for name, value in calibrated.items():
        if "refinement" not in name:
            assert abs(value) < 0.01, name
    best = calibrated["refinement_loss"]
    assert best < found["refinement_loss"] < best + 0.1


def test_an_error_among_samples_that_are_right_costs_no_hundreds_of_nats():
    # The four folds without the error are right throughout: the lowest
    # temperature, 0.01, would cost the wrong row 400 nats.
    logits = np.tile([[4.0, 0.0, 0.0]], (40, 1))
    labels = np.zeros(40, int)
    labels[0] = 1
    found = errors(labels, logits, from_logits=True)
    assert 0.05 < found["refinement_loss"] < 0.4
    right = errors(np.zeros(40, int), logits, from_logits=True)
    nll = math.log1p(2 * math.exp(-4.0))
    assert 0 < right["calibration_loss"] <= nll


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_samples(n):
    labels, logits = generated_set(n)
    found = errors(labels, logits, from_logits=True, num_resamples=10)
    assert set(found) == set(FOLDS)
    # One sample has no others to recalibrate by.
    measured = [math.isfinite(value) for value in found.values()]
    assert measured == [n > 1] * len(FOLDS)


def test_impossible_labels():
    found = errors([0, 1, 0, 1, 1], [[1.0, 0.0]] * 5)
    assert found["calibration_loss"] == math.inf
    assert math.isfinite(found["refinement_loss"])
    assert math.isfinite(found["calibration_error_lower_bound"])
    with pytest.raises(ValueError, match="rules out the class"):
        errors([0, 1, 0], [[0.0, -np.inf]] * 3, from_logits=True)


def test_basic_intervals_stay_in_range():
    found = errors(
        [0, 0, 0, 0, 1, 0],
        [[0.9, 0.1]] * 6,
        num_resamples=200,
        interval="basic",
    )
    for name, value in found.items():
        low, high = refinement.RANGES[name]
        assert low <= value.low <= value.high <= high, name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_start_saves_passes_and_changes_nothing(dtype, monkeypatch):
    labels, logits = generated_set()
    logits = logits.astype(dtype)
    calls = []
    derivatives = solver.Likelihood.derivatives

    def counted(self, u):
        calls.append(u)
        return derivatives(self, u)

    monkeypatch.setattr(solver.Likelihood, "derivatives", counted)
    cold = solver.fit_temperature(logits, labels)
    from_one = len(calls)
    calls.clear()
    warm = solver.fit_temperature(logits, labels, start=1.96)
    # The first is at T = 1, for `nll_before`; two or three at the start.
    assert calls[0] == 0.0
    assert len(calls) - 1 in (2, 3) and len(calls) <= from_one <= 6
    close = 1e-6 if dtype == "float32" else 1e-11
    assert warm.temperature == pytest.approx(cold.temperature, rel=close)
    assert warm.nll_after == pytest.approx(cold.nll_after, rel=close)
    assert warm.nll_before == cold.nll_before
    for far in (0.01, 100.0):
        found = solver.fit_temperature(logits, labels, start=far)
        assert found.temperature == pytest.approx(cold.temperature, rel=1e-6)
        assert found.stop_reason is None


def test_probmetrics_agrees_on_the_l2_bound():
    metrics = pytest.importorskip("probmetrics.metrics")
    distributions = pytest.importorskip("probmetrics.distributions")
    torch = pytest.importorskip("torch")
    labels, logits = generated_set()
    data = generated()
    folds = np.arange(500) % 5
    f = softmax(logits)
    g = np.empty_like(f)
    for k in range(5):
        rest = data.part(folds != k)
        found = refinement.best_temperature(rest)
        g[folds == k] = softmax(logits[folds == k] / found.temperature)
    f_x, recalibrated = (
        distributions.CategoricalProbs(torch.tensor(p)) for p in (f, g)
    )
    y = distributions.CategoricalProbs(torch.tensor(np.eye(5)[labels]))
    loss = metrics.ProperLpLoss(p=2.0)
    bound = -float(loss._compute_indiv(y, recalibrated, f_x=f_x).mean())
    rows = refinement.out_of_fold(data, folds)
    name = "calibration_error_l2_lower_bound"
    assert bound == pytest.approx(rows[name].mean(), abs=1e-9)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_one_unit_has_no_others_to_recalibrate_by(dtype):
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1, 1, 1], size=(1, 20, 20)).astype(dtype)
    y = p.argmin(axis=-1)
    cluster = np.zeros((20, 20), int)
    for given in (
        errors(y, p),
        errors(y, p, num_resamples=10),
        errors(y[0], p[0], clusters=cluster),
        errors(y[0], p[0], groups=cluster, clusters=cluster)["groups"][0],
    ):
        assert set(FOLDS) <= set(given)
        assert all(math.isnan(given[name]) for name in FOLDS)
    two = errors(y.reshape(2, 200), p.reshape(2, 200, 3))
    assert all(math.isfinite(value) for value in two.values())


def test_a_group_of_one_sample_is_not_the_worst_by_what_it_has_not():
    labels, logits = generated_set(60)
    found = errors(labels, logits, from_logits=True, groups=np.arange(60) == 0)
    assert math.isnan(found["groups"][True]["calibration_loss"])
    assert math.isfinite(found["calibration_loss"])
    assert {found["worst_group"][name] for name in FOLDS} == {False}


def test_two_distributions_are_at_most_the_root_of_two_apart():
    low, high = refinement.RANGES["calibration_error_l2_lower_bound"]
    rng = np.random.default_rng(0)
    one, other = rng.dirichlet([0.1] * 4, (2, 1000))
    apart = np.linalg.norm(one - other, axis=1)
    corners = np.linalg.norm(np.eye(4)[0] - np.eye(4)[1])
    assert apart.max() <= corners == high == -low
