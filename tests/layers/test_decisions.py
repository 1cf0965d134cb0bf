"""Conformal sets and the risk threshold: oracles and guarantees."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.inputs.arguments import generator
from keras_calib.layers import _risk_threshold
from keras_calib.layers._conformal_sets import TEMPERATURES
from tests.helpers import to_numpy
from tests.layers.generated import generated
from tests.layers.generated import hashed
from tests.layers.generated import softmax

layers = kc.layers
# Of logits: method and T; score at the threshold, coverage and mean size of
# rows 500 to 2499.
SETS = {
    ("lac", 1.0): (0.936774303879, 0.8875, 1.652),
    ("aps", 1.0): (0.999937311082, 0.908, 2.7325),
    ("lac", 1.97593901124): (0.831938518512, 0.8835, 1.631),
    ("aps", 1.97593901124): (0.992230554843, 0.9175, 2.691),
}
# Target risk: confidence at the threshold, accepted, errors, bound.
THRESHOLDS = {
    0.2: (0.828931439505, 335, 53, 0.194738344579),
    0.15: (0.917220740552, 270, 29, 0.143552033367),
    0.1: (0.98722938833, 160, 8, 0.0884062075568),
}


def data():
    logits, labels = generated(2500)
    return logits[:500], labels[:500], logits[500:], labels[500:]


@pytest.mark.parametrize("method, temperature", SETS)
def test_sets_of_the_generated_set(method, temperature):
    z, y, rest, truth = data()
    layer = layers.ConformalSets(method=method, temperature=temperature)
    sets = to_numpy(layer.adapt(z, y)(rest))
    score, coverage, size = SETS[method, temperature]
    threshold = float(to_numpy(layer.threshold))
    found = 1 - np.exp(threshold) if method == "lac" else 1 - threshold
    assert found == pytest.approx(score, abs=2e-6)
    assert sets.dtype == bool and sets.shape == (2000, 5)
    assert sets[np.arange(2000), truth].mean() == pytest.approx(coverage)
    assert sets.sum(axis=1).mean() == pytest.approx(size)


# Method and T; score at the threshold, coverage, mean size, share of empty
# sets, with given u.
RANDOMIZED = {
    ("aps", 1.0): (0.974958002139, 0.8945, 1.796, 0.01),
    ("raps", 1.0): (0.993375355004, 0.893, 1.7565, 0.0005),
    ("aps", 1.97593901124): (0.904013268147, 0.8995, 1.9335, 0.015),
    ("raps", 1.97593901124): (0.940626849042, 0.9035, 1.8635, 0.0055),
}


def with_u(layer, u):
    """The layer, where each row has the `u` of its place in the set."""
    logits, _ = data_of_all()
    place = {row.tobytes(): i for i, row in enumerate(logits)}

    def uniform(z, xp):
        rows = np.asarray(to_numpy(z), "float32")
        found = u[[place[row.tobytes()] for row in rows]][:, None]
        return found if xp is np else keras.ops.cast(found, "float32")

    layer._uniform = uniform
    return layer


def data_of_all():
    logits, labels = generated(2500)
    return logits.astype("float32"), labels


@pytest.mark.parametrize("method, temperature", RANDOMIZED)
def test_randomized_sets_of_the_generated_set(method, temperature):
    z, y = data_of_all()
    layer = layers.ConformalSets(
        method=method,
        temperature=temperature,
        penalty=0.1,
        free_ranks=2,
        randomized=True,
    )
    with_u(layer, hashed(2500, 5)).adapt(z[:500], y[:500])
    score, coverage, size, empty = RANDOMIZED[method, temperature]
    threshold = float(to_numpy(layer.threshold))
    assert 1 - threshold == pytest.approx(score, abs=3e-6)
    sets = to_numpy(layer(z[500:]))
    assert sets[np.arange(2000), y[500:]].mean() == pytest.approx(coverage)
    assert sets.sum(axis=1).mean() == pytest.approx(size)
    assert (~sets.any(axis=1)).mean() == pytest.approx(empty)


def test_a_set_that_must_not_be_empty_holds_the_prediction():
    z, y = data_of_all()
    found = {}
    for allow_empty in (True, False):
        layer = layers.ConformalSets(
            method="aps", randomized=True, allow_empty=allow_empty
        )
        with_u(layer, hashed(2500, 5)).adapt(z[:500], y[:500])
        found[allow_empty] = to_numpy(layer(z[500:]))
    empty = ~found[True].any(axis=1)
    assert empty.mean() == pytest.approx(0.01)
    np.testing.assert_array_equal(found[True][~empty], found[False][~empty])
    sets = found[False]
    assert (sets[empty].argmax(axis=1) == z[500:][empty].argmax(axis=1)).all()
    assert sets[np.arange(2000), y[500:]].mean() == pytest.approx(0.9045)
    assert sets.sum(axis=1).mean() == pytest.approx(1.806)


def test_temperature_of_the_smallest_randomized_sets():
    z, y = data_of_all()
    layer = layers.ConformalSets(method="aps", randomized=True)
    with_u(layer, hashed(2500, 5))
    found = layer._smallest_sets(z[:250], y[:250])
    assert found == pytest.approx(0.297302, abs=1e-6)


def test_u_is_uniform_and_the_same_every_time():
    z, _ = data_of_all()
    layer = layers.ConformalSets(method="aps", randomized=True)
    u = layer._uniform(z, np)[:, 0]
    # The Kolmogorov-Smirnov distance; 1.63 / sqrt(n) is its 1 % limit.
    ranks = np.arange(2500) / 2500
    assert np.abs(np.sort(u) - ranks).max() < 1.63 / 50
    p = np.sort(softmax(z), axis=1)[:, -1]
    assert abs(np.corrcoef(u, p)[0, 1]) < 4 / 50
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 4 / 50
    # As in the layer, where only a number at an edge may be rounded.
    found = to_numpy(layer._uniform(keras.ops.convert_to_tensor(z), keras.ops))
    assert (np.abs(found[:, 0] - u) < 1e-5).mean() > 0.99
    other = layers.ConformalSets(method="aps", randomized=True, seed=1)
    assert abs(np.corrcoef(other._uniform(z, np)[:, 0], u)[0, 1]) < 4 / 50


@pytest.mark.parametrize("method", ["aps", "raps"])
@pytest.mark.one_backend
def test_coverage_of_randomized_sets_is_that_asked_for(method):
    # Over 400 calibration sets of 99 samples: from 0.9 to 0.91.
    rng = np.random.default_rng(0)
    covered, sizes = [], {True: 0, False: 0}
    for _ in range(400):
        z = 2 * rng.normal(size=(299, 4))
        y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
        for randomized in (True, False):
            layer = layers.ConformalSets(method=method, randomized=randomized)
            weights, _ = layer.solve(z[:99], y[:99])
            sets = layer._at(z[99:], 1.0)[0] >= weights["threshold"]
            sizes[randomized] += sets.sum()
            if randomized:
                covered.append(sets[np.arange(200), y[99:]].mean())
    mean, error = np.mean(covered), np.sqrt((0.0009 + 0.00045) / 400)
    assert 0.9 - 4 * error < mean < 0.91 + 4 * error
    assert sizes[True] < 0.9 * sizes[False]


@pytest.mark.parametrize("method", ["aps", "raps"])
@pytest.mark.parametrize("gap", [20.0, 40.0, 90.0, 200.0])
def test_sets_of_sure_predictions_cover_what_was_asked_for(method, gap):
    # Beside a probability of 1 those of the other classes are below what
    # float32 has for a sum, and at 90 below what it has at all.
    rng = np.random.default_rng(5)
    z = rng.normal(size=(4000, 4)).astype("float32")
    z[:, 0] += gap
    y = np.where(rng.random(4000) < 0.95, 0, rng.integers(1, 4, 4000))
    layer = layers.ConformalSets(method=method).adapt(z[:2000], y[:2000])
    sets = to_numpy(layer(z[2000:]))
    covered = sets[np.arange(2000), y[2000:]].mean()
    assert covered > 0.88
    if gap < 80:
        assert covered < 0.92
        size = layer.record["mean_size"]
        assert sets.sum(axis=1).mean() == pytest.approx(size, rel=0.05)


def test_equal_probabilities_are_in_the_order_of_their_classes():
    p = np.tile([0.1, 0.1, 0.2], 20) / 8
    own = layers.ConformalSets(method="aps")
    scores = [
        to_numpy(own._conformity(xp.log(p[None].astype("float32")), xp))
        for xp in (np, keras.ops)
    ]
    np.testing.assert_allclose(*scores, rtol=1e-5)
    # Twenty classes of 0.2, then those of 0.1 by their number.
    tail = 1 - np.cumsum(np.sort(p)[::-1])
    order = np.argsort(-p, kind="stable")
    np.testing.assert_allclose(scores[0][0, order], tail, atol=1e-6)


def test_scores_by_hand():
    log_p = np.log([[0.15, 0.5, 0.05, 0.3]])
    layer = layers.ConformalSets(method="aps", randomized=True)
    np.testing.assert_allclose(
        1 - layer._conformity(log_p, np, 0.4), [[0.89, 0.3, 0.98, 0.68]]
    )
    layer = layers.ConformalSets(
        method="raps", penalty=0.1, free_ranks=1, randomized=True
    )
    np.testing.assert_allclose(
        1 - layer._conformity(log_p, np, 0.4), [[1.09, 0.3, 1.28, 0.78]]
    )
    aps = layers.ConformalSets(method="aps")._conformity(log_p, np)
    np.testing.assert_allclose(1 - aps, [[0.95, 0.5, 1.0, 0.8]])
    raps = layers.ConformalSets(method="raps", penalty=0.1, free_ranks=1)
    np.testing.assert_allclose(
        1 - raps._conformity(log_p, np), [[1.15, 0.5, 1.3, 0.9]]
    )


@pytest.mark.parametrize("method", ["lac", "aps", "raps"])
@pytest.mark.one_backend
def test_coverage_is_what_was_asked_for(method):
    # Over 400 calibration sets of 99 samples: 0.9, and not below.
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(400):
        z = 2 * rng.normal(size=(299, 4))
        y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
        layer = layers.ConformalSets(method=method)
        weights, _ = layer.solve(z[:99], y[:99])
        sets = layer._at(z[99:], 1.0)[0] >= weights["threshold"]
        covered.append(sets[np.arange(200), y[99:]].mean())
    # The variance is that of Beta(90, 10), and of 200 test samples.
    mean, error = np.mean(covered), np.sqrt((0.0009 + 0.00045) / 400)
    assert mean > 0.9 - 4 * error
    if method != "aps":  # its scores of sure samples tie at 1
        assert mean < 0.9 + 0.01 + 4 * error


@pytest.mark.parametrize("coverage, rank", [(0.07, 7), (0.9, 90), (0.99, 99)])
def test_the_rank_is_not_rounded(coverage, rank):
    layer = layers.ConformalSets(coverage=coverage)
    conformity = np.arange(99.0)[:, None]
    threshold, found = layer._threshold(
        conformity, np.zeros(99, int), np.abs(conformity)
    )
    assert found == rank
    assert threshold == pytest.approx(99 - rank, abs=1e-3)


def test_too_few_samples_give_all_classes():
    z, y, rest, _ = data()
    layer = layers.ConformalSets()
    with pytest.warns(UserWarning, match="Use at least 9"):
        layer.adapt(z[:8], y[:8])
    assert to_numpy(layer(rest)).all()
    assert layer.record["expected_coverage"] == 1.0
    layer.adapt(z[:9], y[:9])
    assert layer.record["expected_coverage"] == 0.9


def test_a_temperature_of_its_own_makes_smaller_sets():
    z, y, rest, truth = data()
    plain = layers.ConformalSets(method="aps").adapt(z, y)
    fitted = layers.ConformalSets(method="aps", temperature="fit")
    fitted.adapt(z, y)
    assert fitted.record["num_samples_for_threshold"] == 400
    sets = to_numpy(fitted(rest))
    assert sets.sum() < to_numpy(plain(rest)).sum()
    assert sets[np.arange(2000), truth].mean() > 0.86


@pytest.mark.parametrize("target", THRESHOLDS)
def test_thresholds_of_the_generated_set(target):
    z, y, rest, truth = data()
    layer = layers.RiskThreshold(target_risk=target).adapt(z, y)
    confidence, accepted, errors, bound = THRESHOLDS[target]
    assert layer.record["accepted"] == accepted
    assert layer.record["errors"] == errors
    assert layer.record["risk_bound"] == pytest.approx(bound, rel=1e-9)
    threshold = float(to_numpy(layer.threshold))
    assert 1 / (1 + np.exp(-threshold)) == pytest.approx(confidence, rel=1e-5)
    found = to_numpy(layer(z))
    assert (found >= 0).sum() == accepted
    assert (found[found >= 0] != y[found >= 0]).sum() == errors
    found = to_numpy(layer(rest))
    taken = found >= 0
    assert (found[taken] == rest.argmax(axis=1)[taken]).all()
    assert (found[taken] != truth[taken]).mean() < target


def test_no_threshold_rejects_everything():
    z, y, rest, _ = data()
    layer = layers.RiskThreshold(target_risk=0.05)
    with pytest.warns(UserWarning, match="59 accepted samples are needed"):
        layer.adapt(z, y)
    assert (to_numpy(layer(rest)) == -1).all()
    assert layer.record["accepted"] == 0


@pytest.mark.parametrize("largest", [5.0, 200.0])
def test_many_equal_confidences_are_accepted_together(largest):
    # 200 differences of logits are more than float32 can tell apart.
    z = np.zeros((1000, 3), "float32")
    z[:, 0] = 2.0
    z[:400, 0] = largest
    y = np.zeros(1000, int)
    y[400::2] = 1
    layer = layers.RiskThreshold(target_risk=0.05).adapt(z, y)
    assert layer.record["accepted"] == 400
    assert layer.record["errors"] == 0
    # (1 - bound)^400 = 0.05
    expected = 1 - 0.05 ** (1 / 400)
    assert layer.record["risk_bound"] == pytest.approx(expected, rel=1e-9)
    assert ((to_numpy(layer(z)) >= 0) == (np.arange(1000) < 400)).all()


def test_few_equal_confidences_are_no_test():
    layer = layers.RiskThreshold(target_risk=0.05)
    score = np.zeros(30)
    threshold, record = layer.find_threshold(score, np.zeros(30, bool))
    assert threshold == np.inf
    assert record["risk_bound"] == 1.0


def test_the_bound_is_clopper_and_pearsons():
    from keras_calib.layers import _risk_threshold as module

    for errors, count, expected in (
        (0, 59, 0.0495076098882),
        (0, 58, 0.0503393383304),
        (3, 200, 0.0383097084986),
        (4, 200, 0.0451804149947),
    ):
        found = module._upper_bound(errors, count, 0.05)
        assert found == pytest.approx(expected, rel=1e-10)
    for target, delta, needed in (
        (0.05, 0.05, 59),
        (0.01, 0.05, 299),
        (0.1, 0.1, 22),
        (0.02, 0.001, 342),
    ):
        assert module._least_samples(target, delta) == needed


@pytest.mark.one_backend
def test_the_risk_is_kept_in_nine_of_ten_calibrations():
    # Confidence c is uniform, a prediction wrong with probability (1 - c) / 2,
    # so that the risk above t is (1 - t) / 4.
    rng = np.random.default_rng(0)
    layer = layers.RiskThreshold(target_risk=0.1, confidence=0.9)
    bad = coverage = 0.0
    for _ in range(1000):
        c = rng.random(500)
        wrong = rng.random(500) < (1 - c) / 2
        threshold, _ = layer.find_threshold(c, wrong)
        bad += (1 - threshold) / 4 > 0.1 and threshold < 1
        coverage += max(1 - threshold, 0.0)
    # 0.037 and 0.157 in 2,000 repetitions.
    assert bad / 1000 < 0.1
    assert coverage / 1000 == pytest.approx(0.157, abs=0.03)


def test_normalized_logits():
    from keras_calib.layers import _risk_threshold as module

    z = generated(500)[0].astype("float64")
    for exponent, expected in ((1, 0.248070192237), (4, 0.653235855966)):
        found = module._normalized(z, exponent, np)[0]
        assert found == pytest.approx(expected, rel=1e-9)
    z, y, _, _ = data()
    layer = layers.RiskThreshold(target_risk=0.2, score="logit_norm")
    layer.adapt(z, y)
    assert layer.record["num_samples_for_threshold"] == 400
    # On this set no norm ranks better than the confidence.
    assert layer.record["exponent"] == 0
    with pytest.raises(ValueError, match="two classes"):
        layers.RiskThreshold(score="logit_norm").adapt(z[:, :2], y % 2)


@pytest.mark.parametrize("exponent", [1, 2, 4])
def test_normalized_logits_without_a_direction_or_with_one_alone(exponent):
    from keras_calib.layers import _risk_threshold as module

    z = np.array([[2.0, 2.0, 2.0, 2.0], [4.0, 1.0, 0.0, -3.0]])
    flat, whole = module._normalized(z, exponent, np)
    assert flat == 0 < whole < 1
    # A class that is ruled out is as if it were not there.
    three = module._normalized(z[1:, :3], exponent, np)
    for value in (-np.inf, -3.4e38, -1e9):
        z[1, 3] = value
        found = module._normalized(z[1:], exponent, np)
        np.testing.assert_allclose(found, three, rtol=1e-12)
    z[1, 1:] = -np.inf
    assert module._normalized(z, exponent, np).tolist() == [0.0, 1.0]
    # Not by their size alone.
    huge = np.array([[4e30, 1e30, 0.0, -3e30]])
    found = module._normalized(huge, exponent, np)
    np.testing.assert_allclose(found, whole, rtol=1e-6)


def test_a_norm_that_ranks_better_takes_flat_rows_and_ruled_out_classes():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(400, 5))
    y = (3 * z + rng.gumbel(size=z.shape)).argmax(axis=1)
    z *= rng.lognormal(sigma=1.5, size=(400, 1))
    masked = (rng.random(400) < 0.5) & (y != 4)
    z[masked, 4] = -np.inf
    z[7] = 2.0
    layer = layers.RiskThreshold(target_risk=0.2, score="logit_norm", seed=1)
    layer.adapt(z, y)
    assert layer.record["exponent"] > 0
    accepted = to_numpy(layer(z.astype("float32"))) >= 0
    assert not accepted[7]
    assert 0.5 < accepted[masked].mean() < 1


def test_a_norm_that_ranks_better_is_taken():
    # The labels follow the direction of the logits, whose length is noise.
    rng = np.random.default_rng(0)
    z = rng.normal(size=(4000, 5))
    z *= 4 / np.linalg.norm(z - z.mean(axis=1)[:, None], axis=1)[:, None]
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    z *= np.exp(rng.normal(size=(4000, 1)))
    taken = {}
    for score in ("confidence", "logit_norm"):
        layer = layers.RiskThreshold(target_risk=0.1, score=score)
        layer.adapt(z[:2000], y[:2000])
        found = to_numpy(layer(z[2000:]))
        taken[score] = (found >= 0).mean()
    assert layer.record["exponent"] > 0
    assert taken["logit_norm"] > taken["confidence"] + 0.05
    wrong = (found != y[2000:])[found >= 0]
    # Of these samples; the promise is about all that could come.
    assert wrong.mean() < 0.1 + 3 * np.sqrt(0.09 / len(wrong))


MAKE = {
    "randomized": lambda: layers.ConformalSets(
        method="aps", randomized=True, allow_empty=False
    ),
    "sets": lambda: layers.ConformalSets(method="raps", coverage=0.8),
    "threshold": lambda: layers.RiskThreshold(target_risk=0.2),
}


@pytest.mark.parametrize("name", MAKE)
def test_in_a_model_and_its_file(name, tmp_path):
    z, y, rest, _ = data()
    layer = MAKE[name]().adapt(z, y)
    expected = to_numpy(layer(rest))
    inputs = keras.Input((5,))
    model = keras.Model(inputs, layer(inputs))
    np.testing.assert_array_equal(model.predict(rest, verbose=0), expected)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.predict(rest, verbose=0), expected)
    assert again.layers[-1].record == layer.record
    assert again.layers[-1].get_config() == layer.get_config()


@pytest.mark.parametrize("name", MAKE)
def test_one_sigmoid_is_two_classes(name):
    z, y, _, _ = data()
    keep = y < 2
    margin = (z[keep, 1] - z[keep, 0])[:, None]
    two = np.concatenate([np.zeros_like(margin), margin], axis=1)
    single = MAKE[name]().adapt(margin, y[keep])
    double = MAKE[name]().adapt(two, y[keep])
    np.testing.assert_array_equal(
        to_numpy(single(margin)), to_numpy(double(two))
    )


@pytest.mark.parametrize("name", MAKE)
def test_void_labels_are_left_out(name):
    z, y = data_of_all()
    void = y.copy()
    void[::5] = -1
    with pytest.raises(ValueError, match="ignore_class"):
        MAKE[name]().adapt(z, void)
    found = MAKE[name]().adapt(z, void, ignore_class=-1)
    kept = MAKE[name]().adapt(z[void >= 0], y[void >= 0])
    assert found.record == kept.record
    assert found.record["num_samples"] == (void >= 0).sum()


@pytest.mark.parametrize("name", MAKE)
def test_what_voids_the_guarantee_is_refused(name):
    z, y, _, _ = data()
    layer = MAKE[name]()
    weights = np.ones(500)
    weights[:100] = 0
    expected = MAKE[name]().adapt(z[100:], y[100:])
    layer.adapt(z, y, weights)
    assert layer.record == expected.record
    before = layer.get_config()
    for arguments, message in (
        ((z, y, np.arange(500) + 1.0), "equal weight"),
        ((z, np.full((500, 5), 0.2)), "soft labels"),
        ((z.reshape(50, 10, 5), y.reshape(50, 10)), "one row per sample"),
        ((z, y + 1), "from 1 to 5"),
    ):
        with pytest.raises(ValueError, match=message):
            layer.adapt(*arguments)
    assert layer.get_config() == before


def test_one_sample_cannot_choose_and_tell():
    z, y, _, _ = data()
    layer = layers.ConformalSets(temperature="fit")
    with pytest.raises(ValueError, match="at least 2 samples are needed"):
        layer.adapt(z[:1], y[:1])
    assert not layer.built
    layer.adapt(z[:2], y[:2])
    assert layer.record["num_samples_for_threshold"] == 1


def test_what_is_always_wrong_or_never_seen():
    # Nothing is known below a risk of 1, and nothing is no risk.
    assert _risk_threshold._upper_bound(7, 7, 0.1) == 1.0
    assert _risk_threshold._upper_bound(6, 7, 0.1) < 1.0
    nothing = np.zeros(0)
    assert _risk_threshold._area_under_risk_coverage(nothing, nothing) == 0.0


def test_a_decision_has_the_shape_of_the_rows():
    layer = layers.RiskThreshold()
    assert layer.compute_output_shape((None, 7, 5)) == (None, 7)
    z, y, _, _ = data()
    assert tuple(layer.adapt(z, y)(z).shape) == (500,)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: layers.ConformalSets(method="thr"), "method"),
        (lambda: layers.ConformalSets(coverage=1.0), "coverage"),
        (lambda: layers.ConformalSets(temperature="best"), "temperature"),
        (lambda: layers.ConformalSets(temperature=0), "temperature"),
        (lambda: layers.ConformalSets(penalty=-1), "penalty"),
        (lambda: layers.ConformalSets(randomized=True), '"lac"'),
        (lambda: layers.RiskThreshold(target_risk=0), "target_risk"),
        (lambda: layers.RiskThreshold(confidence=1), "confidence"),
        (lambda: layers.RiskThreshold(score="margin"), "score"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("row", [0, 1, 2])
def test_equal_scores_whose_terms_cancel(row):
    # Twice the tail is the penalty of the second class, up to rounding.
    p = [
        [0.91, 0.07, 0.01, 0.01],
        [0.88, 0.08, 0.02, 0.02],
        [0.8, 0.14, 0.03, 0.03],
    ][row]
    penalty = p[2]
    logits = np.log(np.repeat([p], 400, axis=0))
    labels = np.repeat([0, 1, 2], [200, 170, 30])
    layer = kc.layers.ConformalSets(
        method="raps", coverage=0.9, penalty=penalty, free_ranks=0
    )
    sets = to_numpy(layer.adapt(logits, labels)(logits))
    assert sets[np.arange(400), labels].mean() >= 0.9
    assert sets.sum(axis=1).mean() == layer.record["mean_size"]


@pytest.mark.parametrize("method", ["lac", "aps", "raps"])
def test_what_all_logits_have_in_common_is_not_rounded(method):
    rng = np.random.default_rng(1)
    for _ in range(20):
        few = rng.normal(size=(4, 5)) + 100.0
        rows = rng.integers(0, 4, 200)
        labels = rng.integers(0, 5, 200)
        layer = kc.layers.ConformalSets(
            method=method, coverage=0.9, temperature=1.5
        )
        sets = to_numpy(layer.adapt(few[rows], labels)(few[rows]))
        assert sets[np.arange(200), labels].mean() >= 0.9


def test_the_temperature_of_the_smallest_sets_that_are_not_empty():
    rng = np.random.default_rng(3)
    logits = 3 * rng.normal(size=(3000, 6))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    settings = {"coverage": 0.6, "allow_empty": False}
    fitted = kc.layers.ConformalSets(temperature="fit", **settings)
    fitted.adapt(logits, labels)
    order = generator(fitted.seed).permutation(3000)[:600]
    tuning = logits[order], labels[order]

    def size(temperature):
        layer = kc.layers.ConformalSets(temperature=temperature, **settings)
        return layer.adapt(*tuning).record["mean_size"]

    chosen = size(fitted.record["temperature"])
    assert chosen == min(map(size, TEMPERATURES.tolist()))


def test_counts_are_whole_numbers():
    for name in ("free_ranks", "seed"):
        for value in (1.5, -1, None):
            with pytest.raises(ValueError, match=name):
                kc.layers.ConformalSets(**{name: value})
    with pytest.raises(ValueError, match="seed"):
        kc.layers.RiskThreshold(seed=-1)


@pytest.mark.parametrize(
    "make",
    [
        layers.ConformalSets,
        lambda: layers.ConformalSets(method="aps"),
        lambda: layers.ConformalSets(method="raps", randomized=True),
        lambda: layers.RiskThreshold(target_risk=0.5),
        lambda: layers.RiskThreshold(target_risk=0.5, score="logit_norm"),
        lambda: layers.MetaCal(max_miscoverage=0.2),
    ],
)
def test_no_samples_give_no_decisions(make):
    z, y, _, _ = data()
    found = make().adapt(z, y)(np.zeros((0, 5), "float32"))
    found = keras.tree.flatten(found)
    assert {tuple(each.shape) for each in found} <= {(0, 5), (0,)}


def small_model(activation):
    inputs = keras.Input((4,))
    return keras.Model(inputs, keras.layers.Dense(3, activation)(inputs))


PROBABILITIES = {
    "softmax": lambda: small_model("softmax").output,
    "sigmoid": lambda: small_model("sigmoid").output,
    "layer": lambda: keras.layers.Softmax()(small_model(None).output),
    "operation": lambda: keras.ops.softmax(keras.Input((3,))),
    "nested": lambda: small_model("softmax")(keras.Input((4,))),
    "dropped": lambda: keras.layers.Dropout(0.1)(small_model("softmax").output),
    "average": lambda: kc.models.DeepEnsemble(
        [small_model("softmax"), small_model("softmax")]
    )(keras.Input((4,))),
    "pair": lambda: kc.models.DiffDML(
        small_model("softmax"), small_model("softmax")
    )(keras.Input((4,))),
    "calibrated": lambda: calibrated_network().output,
    "nested, calibrated": lambda: calibrated_network()(keras.Input((4,))),
}


def calibrated_network(**options):
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(99, 4)), np.arange(99) % 3
    model = small_model("softmax")
    return kc.calibrate(model, x, labels, verbose=0, **options)


@pytest.mark.parametrize("given", PROBABILITIES.values(), ids=PROBABILITIES)
@pytest.mark.parametrize("kind", ["sets", "threshold", "meta", "map"])
@pytest.mark.filterwarnings("ignore:The temperature")
def test_a_graph_of_probabilities_is_refused(kind, given):
    layer = {
        "sets": kc.layers.ConformalSets,
        "threshold": kc.layers.RiskThreshold,
        "meta": lambda: kc.layers.MetaCal(max_miscoverage=0.1),
        "map": kc.layers.TemperatureScaling,
    }[kind]()
    with pytest.raises(ValueError, match="takes logits"):
        layer(given())


@pytest.mark.filterwarnings("ignore:The temperature")
def test_a_graph_of_logits_is_not_refused():
    for tensor in (
        small_model(None).output,
        keras.ops.log(small_model("softmax").output),
        keras.ops.log_softmax(small_model(None).output),
        calibrated_network(output="logits").output,
        kc.models.DiffDML(small_model(None), small_model(None))(
            keras.Input((4,))
        ),
        keras.Input((3,)),
        keras.KerasTensor((None, 3)),
    ):
        assert kc.layers.ConformalSets()(tensor).shape == (None, 3)


@pytest.mark.parametrize(
    ("score", "wrong", "words"),
    [
        (np.arange(9.0), np.zeros(8, bool), r"score=\(9,\), wrong=\(8,\)"),
        (np.zeros((3, 3)), np.zeros((3, 3), bool), "one of each for every"),
        (np.arange(9.0), np.full(9, 0.5), "must be True or False"),
        ([*range(8), np.nan], np.zeros(9, bool), "NaN in 1 of 9"),
        (["a"] * 9, np.zeros(9, bool), "must be real numbers"),
    ],
)
def test_scores_without_a_flag_each_are_refused(score, wrong, words):
    with pytest.raises(ValueError, match=words):
        kc.layers.RiskThreshold().find_threshold(score, wrong)


def test_a_threshold_takes_lists_and_infinite_scores():
    layer = kc.layers.RiskThreshold(target_risk=0.1)
    score = np.random.default_rng(0).normal(size=400)
    wrong = score < -1
    expected = layer.find_threshold(score, wrong)
    assert layer.find_threshold(score.tolist(), wrong.tolist()) == expected
    # Of what is rejected in any case, none is accepted.
    lowest = np.where(wrong, -np.inf, score)
    _, record = layer.find_threshold(lowest, wrong)
    assert record["errors"] == 0
    assert 0 < record["accepted"] <= (~wrong).sum()


@pytest.mark.parametrize(
    "name", ["ConformalSets", "RiskThreshold", "MetaCal", "VectorScaling"]
)
def test_arrays_of_probabilities_are_refused(name):
    z, labels = generated()
    layer = getattr(kc.layers, name)().adapt(z, labels)
    for p in (softmax(z), softmax(z).astype("float32").reshape(5, -1, 5)):
        with pytest.raises(ValueError, match="pass the logarithm"):
            layer(p)
    # One row may be logits that happen to have the sum one.
    layer(softmax(z)[:1])
    layer(np.log(softmax(z)))
    layer(np.eye(5))
