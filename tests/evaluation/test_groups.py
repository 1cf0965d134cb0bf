"""`calibration_errors` by group, and resamples of whole clusters."""

import json

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.evaluation import by_group
from keras_calib.evaluation import calibration_errors
from keras_calib.evaluation import drawn_floor
from keras_calib.inputs.predictions import read_predictions
from tests.metrics.oracles import random_predictions

errors = kc.metrics.calibration_errors
NAMES = ("expected_calibration_error", "brier_score", "accuracy")


def test_table_has_the_errors_of_the_rows_of_each_group(monkeypatch):
    monkeypatch.setattr(drawn_floor, "ENOUGH", 100_000)
    labels, p = random_predictions(300, 4)
    weights = 1.0 + np.arange(300) % 3
    groups = np.array(["a", "b", "c"])[np.arange(300) // 7 % 3]
    found = errors(labels, p, weights, groups=groups, floor=True)
    whole = errors(labels, p, weights, floor=True)
    assert {name: found[name] for name in whole} == whole
    assert list(found["groups"]) == ["a", "b", "c"]
    for name, table in found["groups"].items():
        rows = groups == name
        assert table.pop("num_rows") == rows.sum()
        expected = errors(labels[rows], p[rows], weights[rows], floor=True)
        assert table == pytest.approx(expected, abs=1e-12)
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("unit", ["ns", "us", "D"])
@pytest.mark.parametrize("kind", ["M8", "m8"])
def test_dates_of_any_unit_are_groups(kind, unit):
    # Those in nanoseconds, as in pandas, had no rows.
    labels, p = random_predictions(90, 3)
    days = (18_000 + np.arange(90) % 3).astype(f"{kind}[D]")
    found = errors(labels, p, groups=days.astype(f"{kind}[{unit}]"))["groups"]
    assert [table["num_rows"] for table in found.values()] == [30, 30, 30]
    assert [np.array(key, days.dtype) for key in found] == list(days[:3])
    day = np.timedelta64(1, "ns")
    found = errors(labels, p, groups=days.astype(f"{kind}[ns]") + day)["groups"]
    assert list(found) == [each + day for each in days[:3]]


def test_a_ratio_is_as_bad_as_its_inverse():
    p, labels = np.full(300, 0.2), np.zeros(300, int)
    labels[:12] = labels[150:201] = 1
    name, ids = "observed_expected_ratio", np.repeat(["low", "high"], 150)
    found = errors(labels, p, groups=ids, metrics=[name])
    # 0.4 and 1.7.
    assert found["worst_group"][name] == "low"
    labels[:12] = 0
    found = errors(labels, p, groups=ids, metrics=[name])
    assert found["groups"]["low"][name] == 0.0
    assert found["worst_group"][name] == "low"


def test_rows_that_do_not_count_are_in_no_group():
    labels, p = random_predictions(40, 3)
    labels[:4], weights = 255, np.ones(40)
    weights[4:8] = 0
    groups = np.arange(40) // 4
    found = errors(labels, p, weights, groups=groups, ignore_class=255)
    assert list(found["groups"]) == list(range(2, 10))
    assert all(t["num_rows"] == 4 for t in found["groups"].values())


def test_groups_of_images_and_of_pixels():
    labels, p = random_predictions(24, 4)
    flat = np.arange(24) // 12
    expected = errors(labels, p, groups=flat, metrics=NAMES)
    images = labels.reshape(2, 3, 4), p.reshape(2, 3, 4, 4)
    assert errors(*images, groups=[0, 1], metrics=NAMES) == expected
    pixels = flat.reshape(2, 3, 4)
    assert errors(*images, groups=pixels, metrics=NAMES) == expected


def test_worst_group_by_name():
    # Of 200 samples each with confidence 0.9: right 90 %, 60 % and 100 %.
    right = [180, 120, 200]
    correct = np.concatenate([np.arange(200) < count for count in right])
    p = np.tile([0.9, 0.1], (600, 1))
    found = errors(1 - correct, p, groups=np.repeat([1, 2, 3], 200))
    worst = found["worst_group"]
    assert worst["expected_calibration_error"] == 2
    assert worst["accuracy"] == 2
    assert worst["confidence_gap"] == 2
    assert worst["underconfidence_error"] == 3
    assert "mean_confidence" not in worst
    ece = {
        k: t["expected_calibration_error"] for k, t in found["groups"].items()
    }
    assert ece == pytest.approx({1: 0.0, 2: 0.3, 3: 0.1})


def test_a_group_without_a_mistake_ranks_nothing_wrong():
    rng = np.random.default_rng(0)
    p = rng.uniform(0.5, 1.0, 90)
    labels = np.ones(90, int)
    labels[:30] = rng.random(30) < p[:30]  # only this group has mistakes
    groups = np.repeat(["mistakes", "none", "none"], 30)
    found = kc.metrics.calibration_errors(
        labels, p, groups=groups, metrics=["auroc"]
    )
    assert found["groups"]["none"]["auroc"] == 0.5
    assert found["worst_group"] == {"auroc": "mistakes"}


def test_parts_of_the_refinement_have_a_worst_group():
    rng = np.random.default_rng(1)
    p = rng.uniform(0.05, 0.95, 200)
    labels = (rng.random(200) < p).astype(int)
    labels[:100] = rng.random(100) < 0.5
    found = kc.metrics.calibration_errors(
        labels,
        p,
        groups=np.repeat(["noise", "right"], 100),
        metrics=["accuracy"],
        refinement=True,
    )
    worst = found["worst_group"]
    assert worst.keys() == found["groups"]["noise"].keys() - {"num_rows"}
    assert worst["refinement_loss"] == worst["calibration_loss"] == "noise"


def test_worst_group_is_not_the_smallest_one_by_chance():
    # One group of ten samples is calibrated, 2,000 others are off by 0.1.
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.7, 1.0, 2010)
    gap = np.where(np.arange(2010) < 10, 0.0, 0.1)
    labels = (rng.random(2010) > confidence - gap).astype(int)
    p = np.stack([confidence, 1 - confidence], axis=1)
    groups = np.where(np.arange(2010) < 10, "small", "large")
    name = "expected_calibration_error"
    found = errors(labels, p, groups=groups, metrics=[name])
    assert found["worst_group"][name] == "small"
    found = errors(labels, p, groups=groups, metrics=[name], floor=True)
    assert found["worst_group"][name] == "large"


def test_clusters_are_drawn_together():
    # Every sample five times: the interval is that of the samples once.
    labels, p = random_predictions(200, 3)
    options = {"num_resamples": 200, "metrics": NAMES, "verbose": 0}
    once = errors(labels, p, **options)
    copies = np.repeat(labels, 5), np.repeat(p, 5, axis=0)
    ids = np.repeat(np.array([f"patient {i:03d}" for i in range(200)]), 5)
    found = errors(*copies, clusters=ids, **options)
    alone = errors(*copies, **options)
    for name in NAMES:
        assert found[name] == pytest.approx(once[name], abs=1e-12)
        assert found[name].low == pytest.approx(once[name].low, abs=1e-9)
        assert found[name].high == pytest.approx(once[name].high, abs=1e-9)
        width = once[name].high - once[name].low
        assert alone[name].high - alone[name].low < 0.6 * width


@pytest.mark.parametrize("form", ["clusters", "images"])
def test_rows_of_their_own_are_independent(form):
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.ones(3), size=150)
    labels = (p.cumsum(axis=1) > rng.random((150, 1))).argmax(axis=1)
    names = ("ks_calibration_error", "kernel_calibration_error")
    options = {"num_resamples": 60, "metrics": names, "verbose": 0}
    expected = errors(labels, p, **options)
    if form == "clusters":
        options["clusters"] = np.arange(150)[::-1]
    else:
        labels, p = labels[:, None], p[:, None]
    found = errors(labels, p, **options)
    for name in names:
        assert found[name] == expected[name]
        assert found[name].low == expected[name].low == 0
        assert found[name].high == expected[name].high


def test_clusters_within_groups():
    labels, p = random_predictions(120, 3)
    groups, clusters = np.arange(120) // 60, np.arange(120) // 4
    options = {"num_resamples": 50, "metrics": NAMES, "verbose": 0}
    found = errors(labels, p, groups=groups, clusters=clusters, **options)
    rows = groups == 1
    expected = errors(labels[rows], p[rows], clusters=clusters[rows], **options)
    for name in NAMES:
        value = found["groups"][1][name]
        assert value == pytest.approx(expected[name], abs=1e-12)
        assert (value.low, value.high) == pytest.approx(
            (expected[name].low, expected[name].high), abs=1e-12
        )


@pytest.mark.parametrize("name", ["groups", "clusters"])
def test_ids_of_another_length_are_refused(name):
    labels, p = random_predictions(20, 3)
    with pytest.raises(ValueError, match=f"`{name}`"):
        errors(labels, p, **{name: np.arange(19)})


def test_badness_is_the_distance_above_the_floor_or_from_the_ideal():
    floor = {"sweep": 0.3, "sweep_floor": 0.1}
    assert by_group._badness("sweep", floor) == pytest.approx(0.2)
    assert by_group._badness("sweep", {"sweep": 0.3}) == 0.3
    # More is better.
    assert by_group._badness("accuracy", {"accuracy": 0.8}) == -0.8
    for name, ideal in (("calibration_slope", 1.0), ("spiegelhalter_z", 0.0)):
        for away in (-0.25, 0.25):
            value = by_group._badness(name, {name: ideal + away})
            assert value == pytest.approx(0.25)
    # A debiased error below 0 is noise.
    name = "debiased_calibration_error_l1"
    for value in (-0.2, 0.2):
        found = by_group._badness(name, {name: value, f"{name}_floor": 0.1})
        assert found == pytest.approx(value - 0.1)
    # Of what is not known, nothing is worst.
    assert by_group._badness("sweep", {"sweep": np.nan}) == -np.inf


def test_groups_share_the_time_with_all_rows():
    p = np.full((6, 2), 0.5)
    rows = read_predictions([0, 1] * 3, p, groups=[7, 7, 8, 8, 9, 9])
    assert calibration_errors._seconds_of_part(8.0, rows) == 2.0
    assert calibration_errors._seconds_of_part(None, rows) is None
    alone = read_predictions([0, 1] * 3, p)
    assert calibration_errors._seconds_of_part(8.0, alone) == 8.0


@pytest.mark.parametrize("form", ["row", "image", "cluster"])
def test_one_unit_has_no_interval(form):
    labels, p = random_predictions(1 if form == "row" else 30, 3)
    options = {"metrics": NAMES, "num_resamples": 20, "verbose": 0}
    if form == "image":
        labels, p = labels[None], p[None]
    if form == "cluster":
        options["clusters"] = np.zeros(30, int)
    found = errors(labels, p, **options)
    for name in NAMES:
        assert np.isfinite(found[name])
        assert np.isnan([found[name].low, found[name].high]).all()


def test_groups_of_one_cluster_have_no_intervals():
    labels, p = random_predictions(90, 3)
    sites = np.arange(90) // 30
    options = {"metrics": NAMES, "num_resamples": 20, "verbose": 0}
    found = errors(labels, p, groups=sites, clusters=sites, **options)
    for name in NAMES:
        assert found[name].low < found[name].high
        assert np.isnan(found["groups"][1][name].low)


def test_images_that_do_not_count_are_not_drawn():
    labels, p = random_predictions(120, 3)
    labels, p = labels.reshape(12, 10), p.reshape(12, 10, 3)
    void = np.full((40, 10), 255), np.full((40, 10, 3), 1 / 3, p.dtype)
    both = np.concatenate([void[0], labels]), np.concatenate([void[1], p])
    options = {"metrics": NAMES, "num_resamples": 100, "verbose": 0}
    found = errors(*both, ignore_class=255, **options)
    alone = errors(labels, p, **options)
    for name in NAMES:
        assert found[name].low == pytest.approx(alone[name].low, abs=1e-12)
        assert found[name].high == pytest.approx(alone[name].high, abs=1e-12)


MISSING = {
    "None": np.array(["a", None, "b", "a"], object),
    "NaN": np.array([0.0, np.nan, 1.0, 0.0]),
    "NaN among strings": np.array(["a", np.nan, "b", "a"], object),
    "no time": np.array(["2026-01-01", "NaT", "2026-01-02", "NaT"], "M8[D]"),
    "two types": np.array(["a", 3, "b", "a"], object),
}


@pytest.mark.parametrize("name", ["groups", "clusters"])
@pytest.mark.parametrize("kind", MISSING)
def test_missing_ids_are_refused_unless_they_do_not_count(kind, name):
    labels, p = random_predictions(4, 3)
    ids = MISSING[kind]
    with pytest.raises(ValueError, match=f"`{name}` must have an id for each"):
        errors(labels, p, **{name: ids})
    weight = [1, 0, 1, 0 if kind == "no time" else 1]
    found = errors(labels, p, weight, metrics=NAMES, **{name: ids})
    assert np.isfinite(found[NAMES[0]])


@pytest.mark.parametrize("kind", MISSING)
def test_missing_groups_of_a_fit_are_refused_unless_they_do_not_count(kind):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(80, 3)), rng.integers(0, 3, 80)
    ids = np.repeat(MISSING[kind], 20)
    layer = kc.layers.VectorScaling()
    with pytest.raises(ValueError, match="`groups` must have an id for each"):
        layer.adapt(logits, labels, groups=ids)
    weight = np.repeat([1, 0, 1, 0 if kind == "no time" else 1], 20)
    layer.adapt(logits, labels, weight, groups=ids)
    assert layer.record["num_samples"] == weight.sum()
