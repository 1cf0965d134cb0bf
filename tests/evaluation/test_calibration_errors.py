"""`calibration_errors`: known values, intervals, bad input."""

import json
import pickle

import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from keras_calib.evaluation.interval_ends import from_zero
from keras_calib.evaluation.named_errors import METRICS
from keras_calib.evaluation.replicates import Resamples
from keras_calib.inputs import predictions
from tests.helpers import read_predictions
from tests.metrics.oracles import CONFIDENCE
from tests.metrics.oracles import CORRECT
from tests.metrics.oracles import GENERATED_SET
from tests.metrics.oracles import LABELS
from tests.metrics.oracles import PROBABILITIES
from tests.metrics.oracles import REAL_SETS
from tests.metrics.oracles import SMALL_SET
from tests.metrics.oracles import generated_set
from tests.metrics.oracles import random_predictions
from tests.metrics.oracles import softmax

errors = kc.metrics.calibration_errors


def test_every_error_of_the_small_set():
    found = errors(LABELS, PROBABILITIES, num_bins=5)
    for name, expected in SMALL_SET.items():
        assert found[name] == pytest.approx(expected, abs=2e-11), name


def test_every_error_of_the_generated_set():
    labels, logits = generated_set()
    found = errors(labels, softmax(logits))
    for name, expected in GENERATED_SET.items():
        assert found[name] == pytest.approx(expected, abs=2e-11), name
    again = errors(labels, logits, from_logits=True)
    assert again == pytest.approx(found, abs=1e-12)


@pytest.mark.parametrize("name", REAL_SETS)
def test_values_that_independent_packages_agree_on(name, data_folder):
    probabilities, labels = read_predictions(data_folder, name)
    found = errors(labels, probabilities.astype("float64"))
    for key, expected in REAL_SETS[name].items():
        assert found[key] == pytest.approx(expected, abs=5.1e-9), key


def test_all_metrics_are_there_and_can_be_chosen():
    labels, p = random_predictions(100, 4)
    found = errors(labels, p)
    assert set(METRICS) - set(found) == {"binary_calibration_error"}
    assert all(type(value) is float for value in found.values())
    some = errors(labels, p, metrics=["auroc", "brier_score"])
    assert some == {key: found[key] for key in ("auroc", "brier_score")}


@pytest.mark.parametrize("form", ["column", "vector", "two classes"])
def test_a_binary_classifier(form):
    # Events of the positive class; the value is that of the edge set.
    p = {
        "column": CONFIDENCE[:, None],
        "vector": CONFIDENCE,
        "two classes": np.stack([1 - CONFIDENCE, CONFIDENCE], axis=1),
    }[form]
    found = errors(CORRECT.astype(int), p, num_bins=5)
    assert found["binary_calibration_error"] == pytest.approx(0.2, abs=1e-12)
    predicted = np.maximum(CONFIDENCE, 1 - CONFIDENCE)
    assert found["mean_confidence"] == pytest.approx(predicted.mean())


def test_pixels_void_labels_weights_and_axes_are_rows():
    labels, p = random_predictions(24, 4)
    weights = np.repeat([1.0, 2.0], 12)
    labels[[3, 17]] = 255
    keep = labels != 255
    expected = errors(labels[keep], p[keep], weights[keep])
    images = labels.reshape(2, 3, 4), p.reshape(2, 3, 4, 4)
    found = errors(*images, np.array([1.0, 2.0]), ignore_class=255)
    assert found == pytest.approx(expected, abs=1e-12)
    first = np.moveaxis(images[1], -1, 1)
    found = errors(
        images[0], first, np.array([1.0, 2.0]), axis=1, ignore_class=255
    )
    assert found == pytest.approx(expected, abs=1e-12)
    rows = np.eye(4)[np.where(keep, labels, 0)]
    found = errors(rows, ops.convert_to_tensor(p), weights * keep)
    assert found == pytest.approx(expected, abs=1e-12)


def test_the_first_of_equal_probabilities_is_the_prediction():
    p = np.array([[0.4, 0.4, 0.2], [0.2, 0.4, 0.4]], "float32")
    labels = np.array([0, 2])
    for copies in (1, 5000):  # two ways, for few rows and for many
        found = errors(np.tile(labels, copies), np.tile(p, (copies, 1)))
        assert found["accuracy"] == 0.5


def test_a_weight_of_zero_leaves_a_sample_out():
    labels, p = random_predictions(50)
    weights = (np.arange(50) % 3 > 0).astype(float)
    keep = weights > 0
    found = errors(labels, p, weights)
    assert found == pytest.approx(errors(labels[keep], p[keep]), abs=1e-12)


def test_soft_labels_count_in_the_scores():
    p = np.array([[0.8, 0.2], [0.4, 0.6]])
    targets = np.array([[0.9, 0.1], [0.3, 0.7]])
    found = errors(targets, p)
    brier = ((p - targets) ** 2).sum(axis=1).mean()
    assert found["brier_score"] == pytest.approx(brier)
    likelihood = -(targets * np.log(p)).sum(axis=1).mean()
    assert found["negative_log_likelihood"] == pytest.approx(likelihood)


def test_answers_of_people_are_weights_of_their_classes():
    rng = np.random.default_rng(0)
    n, classes = 400, 4
    answers = rng.dirichlet(np.full(classes, 0.5), n)
    data = np.tile(np.arange(classes), n), answers.reshape(-1)

    def found(p):
        return errors(data[0], np.repeat(p, classes, axis=0), data[1])

    exact = found(answers)
    for name in ("expected", "adaptive", "classwise", "smooth", "ks"):
        key = f"{name}_calibration_error"
        assert exact[key] == pytest.approx(0, abs=1e-12)
    assert exact["accuracy"] == pytest.approx(answers.max(axis=1).mean())
    # Too sure: the gap of each bin to the mean part of the predicted class.
    p = answers**2 / (answers**2).sum(axis=1, keepdims=True)
    part = answers[np.arange(n), p.argmax(axis=1)]
    index = np.ceil(15 * p.max(axis=1)).astype(int)
    gaps = np.bincount(index, p.max(axis=1) - part)
    ece = np.abs(gaps).sum() / n
    assert found(p)["expected_calibration_error"] == pytest.approx(ece)


def test_an_impossible_label_makes_the_likelihood_infinite():
    p = np.array([[1.0, 0.0], [0.5, 0.5]])
    found = errors([1, 0], p, num_resamples=50, verbose=0)
    likelihood = found["negative_log_likelihood"]
    assert likelihood == np.inf and likelihood.high == np.inf
    assert likelihood.low == pytest.approx(np.log(2))
    assert found["mean_entropy"] == pytest.approx(np.log(2) / 2)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"num_resamples": 10},
        {"floor": True},
        {"refinement": True},
        {"ignore_class": 1},
        {"sample_weight": [0.0, 0.0]},
    ],
)
def test_no_row_is_no_perfect_model(arguments):
    whole = "ignore_class" in arguments or "sample_weight" in arguments
    labels, p = [1, 1], np.full((2, 3), 1 / 3)
    if not whole:
        labels, p = np.zeros(0, int), p[:0]
    with pytest.raises(ValueError, match="No row counts"):
        errors(labels, p, verbose=0, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 1], [[0.5, 0.5]]), "do not fit"),
        (([0], [[0.5, 0.4]]), r"off by -0\.1"),
        (([0], [[3.0, -2.0]]), "from_logits=True"),
        (([0], [[np.nan, 1.0]]), "must be numbers. Received: NaN"),
        (([2], [[0.5, 0.5]]), "0 to 1"),
        (([0.5], [[0.5, 0.5]]), "whole numbers"),
        (([0], [[0.5, 0.5]], [-1.0]), "negative"),
        (([0], [[0.5, 0.5]], [1.0, 2.0]), "do not fit"),
        (([[0.4, 0.4]], [[0.5, 0.5]]), "sum to one"),
        ((0, 0.5), "class axis"),
    ],
    ids=[
        "lengths",
        "sum",
        "logits",
        "NaN",
        "label",
        "half a label",
        "weight",
        "weights",
        "rows",
        "number",
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        errors(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_bins": 0}, "num_bins"),
        ({"threshold": 1.0}, "threshold"),
        ({"metrics": ["ece"]}, "names out of"),
        ({"num_resamples": 1}, "at least 2"),
        ({"confidence_level": 95}, "confidence_level"),
        ({"interval": "normal"}, "percentile"),
        ({"from_logits": True, "bad": True}, "finite"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_bad_arguments(arguments, message):
    p = [[0.5, np.inf if arguments.pop("bad", False) else 0.5]]
    with pytest.raises(ValueError, match=message):
        errors([0], p, **arguments)


def test_intervals_are_percentiles_of_resamples():
    labels, p = random_predictions(60, 3)
    settings = {"num_resamples": 300, "seed": 1, "interval": "percentile"}
    found = errors(labels, p, verbose=0, **settings)
    rng = np.random.default_rng([1, 0])
    drawn = rng.integers(0, 60, (300, 60), "int32")
    for name in METRICS[:-1]:
        if name == "sweep_calibration_error":
            continue  # the same below, in a set of its own
        values = [
            errors(labels[rows], p[rows], metrics=[name])[name]
            for rows in drawn[:300:10]
        ]
        ends = np.quantile(values, [0.0, 1.0])
        # 30 of the 300: their range holds most of the interval.
        assert found[name].low <= np.quantile(values, 0.4)
        assert found[name].high >= np.quantile(values, 0.6)
        assert found[name].low >= ends[0] - 3 * (ends[1] - ends[0])
    name = "classwise_adaptive_calibration_error"
    values = [errors(labels[r], p[r], metrics=[name])[name] for r in drawn]
    low, high = np.quantile(values, [0.025, 0.975])
    assert found[name].low == pytest.approx(low, abs=1e-9)
    assert found[name].high == pytest.approx(high, abs=1e-9)


def test_the_same_seed_gives_the_same_interval():
    labels, p = random_predictions(50)
    one, two, three = (
        errors(labels, p, num_resamples=100, seed=seed, verbose=0)
        for seed in (0, 0, 1)
    )
    ends = [
        [(value.low, value.high) for value in found.values()]
        for found in (one, two, three)
    ]
    assert ends[0] == ends[1] != ends[2]


def test_an_interval_of_real_predictions(data_folder):
    # 2000 resamples of all 10,000 rows, drawn independently of ours: basic
    # interval (0.00737, 0.01794) around 0.01488.
    probabilities, labels = read_predictions(data_folder, "lenet-5-cifar-100")
    name = "expected_calibration_error"
    arguments = {"metrics": [name], "num_resamples": 1000, "verbose": 0}
    default = errors(labels, probabilities, **arguments)[name]
    arguments["interval"] = "basic"
    found = errors(labels, probabilities, **arguments)[name]
    assert found.low == pytest.approx(0.00737, abs=6e-4)
    assert found.high == pytest.approx(0.01794, abs=6e-4)
    arguments["interval"] = "percentile"
    other = errors(labels, probabilities, **arguments)[name]
    assert other.low == pytest.approx(2 * found - found.high)
    # The resamples' errors are biased upwards.
    assert (other.low + other.high) / 2 > found
    # Of an error that is near its noise floor less is known than both say.
    assert 0.0 < default.low < found.low < found.high < default.high
    assert default.high < other.high


def test_each_statistic_has_the_better_interval():
    labels, p = random_predictions(80, 3)
    p = p**2 / (p**2).sum(axis=1, keepdims=True)
    kinds = {
        "basic": [
            "sweep_calibration_error",
            "label_binned_calibration_error",
            "debiased_calibration_error_l1",
        ],
        "percentile": [
            "accuracy",
            "negative_log_likelihood",
            "ks_calibration_error",
            "auroc",
        ],
    }
    both = [*kinds["basic"], *kinds["percentile"]]
    arguments = {"metrics": both, "num_resamples": 60}
    found = errors(labels, p, **arguments)
    for kind, names in kinds.items():
        only = errors(labels, p, interval=kind, **arguments)
        for name in names:
            ends = only[name].low, only[name].high
            assert (found[name].low, found[name].high) == ends


def test_whole_images_are_resampled():
    # Both pixels of an image are equal: a resample of images has as many
    # distinct outcomes as one of its first pixels.
    labels, p = random_predictions(40, 3)
    arguments = {"num_resamples": 200, "verbose": 0}
    one = errors(labels, p, **arguments)
    pair = np.repeat(labels[:, None], 2, 1), np.repeat(p[:, None], 2, 1)
    two = errors(*pair, **arguments)
    for name in ("accuracy", "expected_calibration_error"):
        assert two[name].low == pytest.approx(one[name].low, abs=1e-9)
        assert two[name].high == pytest.approx(one[name].high, abs=1e-9)


def test_an_estimate_is_a_float():
    labels, p = random_predictions(50)
    found = errors(labels, p, num_resamples=20, verbose=0)
    value = found["brier_score"]
    assert value + 1 == float(value) + 1
    assert json.loads(json.dumps(found))["brier_score"] == float(value)
    again = pickle.loads(pickle.dumps(value))
    assert (again, again.low, again.high) == (value, value.low, value.high)
    assert repr(value).startswith(f"{float(value):.6g} [")


def test_a_progress_bar_shows_only_when_asked_or_long(capsys):
    labels, p = random_predictions(20)
    errors(labels, p, num_resamples=10, verbose=0)
    errors(labels, p)
    assert not capsys.readouterr().out
    errors(labels, p, num_resamples=10, verbose=1)
    assert "6/6" in capsys.readouterr().out


def test_names_may_come_from_a_generator():
    names = (name for name in ["accuracy", "brier_score"])
    found = kc.metrics.calibration_errors(
        [0, 1], [[0.9, 0.1], [0.2, 0.8]], metrics=names
    )
    assert set(found) == {"accuracy", "brier_score"}


@pytest.mark.parametrize("value, low", [(0.3, 0.0), (0.3001, 0.2)])
def test_an_error_at_the_end_of_chance_may_be_chance(value, low):
    floors = {"mce_floor_high": 0.1 + 0.2 - 1e-15}
    assert from_zero((0.2, 0.9), value, floors, "mce") == (low, 0.9)


def test_basic_intervals_of_a_calibrated_model_begin_at_zero():
    # At 0 the errors have a corner, and no bootstrap is right.
    names = [
        "expected_calibration_error",
        "ks_calibration_error",
        "kernel_calibration_error",
        "classwise_calibration_error",
    ]
    settings = {"metrics": names, "num_resamples": 60, "interval": "basic"}
    held = dict.fromkeys(names, 0)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        p = rng.dirichlet([1, 1, 1], 500)
        u = rng.random((500, 1))
        calibrated = (u > p.cumsum(axis=1)[:, :-1]).sum(axis=1)
        found = kc.metrics.calibration_errors(calibrated, p, **settings)
        for name in names:
            held[name] += found[name].low == 0
    assert min(held.values()) >= 16
    # An error that chance does not explain keeps its interval.
    off = kc.metrics.calibration_errors(p.argmax(axis=1), p, **settings)
    assert all(off[name].low > 0.02 for name in names)
    # Floors that are asked for are the ones that count.
    more = kc.metrics.calibration_errors(calibrated, p, floor=True, **settings)
    for name in names:
        within = more[name] <= more[f"{name}_floor_high"]
        assert (more[name].low == 0) >= within


DEBIASED = {
    "debiased_calibration_error": 2,
    "debiased_calibration_error_l1": 1,
    "debiased_marginal_calibration_error": 2,
}


def drawn_from(rng, n, slope):
    """Labels at the slope times the logits, and probabilities."""
    logits = 1.5 * rng.normal(size=(n, 3))
    labels = (slope * logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    p = np.exp(logits)
    return labels, p / p.sum(axis=1, keepdims=True)


def test_percentiles_of_debiased_errors_are_moved():
    labels, p = drawn_from(np.random.default_rng(0), 600, 0.5)
    settings = {"metrics": list(DEBIASED), "num_resamples": 60, "seed": 3}
    found, percentile, auto = (
        kc.metrics.calibration_errors(labels, p, interval=kind, **settings)
        for kind in ("basic", "percentile", "auto")
    )
    data = predictions.read_predictions(labels, p, None, from_logits=False)
    drawn = Resamples(data, 60, 3, 5, 0).statistics(list(DEBIASED), 15, 0.01)
    for name, power in DEBIASED.items():
        value, low, high = found[name], found[name].low, found[name].high
        added = np.mean(drawn[name][1:] ** power) - value**power
        assert added > 0  # what resampling adds
        ends = percentile[name].low, percentile[name].high
        expected = [(end**power - added) ** (1 / power) for end in ends]
        assert (low, high) == pytest.approx(expected, rel=1e-12)
        # Those of norm 2 have a grid by default.
        same = (auto[name].low, auto[name].high) == (low, high)
        assert same == (power == 1)
        assert low < value < high
        assert auto[name].low < value < auto[name].high


def test_debiased_errors_of_norm_2_have_the_interval_of_what_is_debiased():
    labels, p = drawn_from(np.random.default_rng(0), 450, 0.5)
    # With bins of equal numbers both have the same.
    found = kc.metrics.calibration_errors(
        *(labels, p),
        metrics=[
            *("debiased_calibration_error", "adaptive_calibration_error_l2"),
            "debiased_marginal_calibration_error",
            "marginal_calibration_error",
        ],
        num_resamples=60,
    )
    debiased, plain, of_classes, plain_of_classes = found.values()
    assert debiased < plain and of_classes < plain_of_classes
    ends = debiased.low, debiased.high
    assert ends == pytest.approx((plain.low, plain.high), rel=1e-12)
    ends = of_classes.low, of_classes.high
    plain = plain_of_classes
    assert ends == pytest.approx((plain.low, plain.high), rel=1e-12)


@pytest.mark.parametrize("slope", [1.0, 0.7])
def test_intervals_of_debiased_errors_hold_the_true_value(slope):
    names = list(DEBIASED)
    true = dict.fromkeys(names, 0.0)
    if slope != 1.0:
        many = drawn_from(np.random.default_rng(1), 200_000, slope)
        true = kc.metrics.calibration_errors(*many, metrics=names)
    held, above = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    for seed in range(60):
        data = drawn_from(np.random.default_rng(100 + seed), 500, slope)
        found = kc.metrics.calibration_errors(
            *data, metrics=names, num_resamples=100
        )
        for name, value in found.items():
            held[name] += value.low <= true[name] <= value.high
            above[name] += value < value.low
    # Of 60 intervals of 95 %, 54 or more hold it with a probability of 0.97.
    assert min(held.values()) >= 54
    assert max(above.values()) == 0


def test_intervals_of_one_sample_and_of_the_clinical_panel():
    ece, ici = "expected_calibration_error", "integrated_calibration_index"
    one = kc.metrics.calibration_errors(
        [1], [0.7], metrics=[ece], num_resamples=5, interval="basic"
    )[ece]
    assert np.isnan([one.low, one.high]).all()
    rng = np.random.default_rng(0)
    p = rng.random(200)
    y = (rng.random(200) < p).astype(int)
    ends = set()
    for floor in (False, True):
        found = kc.metrics.calibration_errors(
            y, p, metrics=[ici], num_resamples=40, interval="basic", floor=floor
        )[ici]
        ends.add((found.low, found.high))
    assert len(ends) == 1


def test_basic_intervals_are_reflected_percentiles():
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1, 1, 1], 300)
    labels = (rng.random((300, 1)) > p.cumsum(axis=1)).sum(axis=1)
    settings = {"metrics": ["accuracy", "brier_score"], "num_resamples": 50}
    percentile, basic = (
        kc.metrics.calibration_errors(labels, p, interval=kind, **settings)
        for kind in ("percentile", "basic")
    )
    for name, value in percentile.items():
        ends = basic[name].low, basic[name].high
        assert ends == pytest.approx(
            (2 * value - value.high, 2 * value - value.low), rel=1e-12
        )


@pytest.mark.parametrize("floor", [False, True])
def test_whether_chance_explains_an_error_depends_on_the_level(floor):
    rng = np.random.default_rng(0)
    name, apart = "ks_calibration_error", 0
    for _ in range(12):
        p = np.column_stack([q := rng.uniform(0.05, 0.95, 120), 1 - q])
        labels = (rng.random(120) > np.clip(q * 1.12, 0, 1)).astype(int)
        low = [
            errors(
                *(labels, p),
                metrics=[name],
                num_resamples=40,
                confidence_level=level,
                floor=floor,
                verbose=0,
            )[name].low
            for level in (0.5, 0.99)
        ]
        assert not low[0] == 0 < low[1]
        apart += low[0] > 0 == low[1]
    assert apart
