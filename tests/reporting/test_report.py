"""`kc.report`: its numbers, its words and its files."""

import functools
import json
import math
import re
import types
import warnings

import keras
import numpy as np
import pytest
from scipy import stats

import keras_calib as kc
from keras_calib.evaluation.calibration_errors import errors_of_predictions
from keras_calib.evaluation.named_errors import METRICS
from keras_calib.inputs.predictions import read_predictions
from keras_calib.reporting import _measure
from keras_calib.reporting import _verdict
from keras_calib.reporting._comparison import comparison
from keras_calib.reporting._comparison import times_as_many
from keras_calib.reporting._definitions import DEFINITIONS
from keras_calib.reporting._definitions import HEADLINE
from tests.helpers import small_network

ECE = "expected_calibration_error"


def sample(n=800, power=1.0, num_classes=4, seed=0):
    """Labels, and predictions that are calibrated at `power=1`."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(num_classes), size=n)
    labels = (p.cumsum(1) > rng.random((n, 1))).argmax(1)
    q = p**power
    return labels, q / q.sum(1, keepdims=True)


@functools.cache
def report_of(power=1.0, seed=0):
    labels, p = sample(power=power, seed=seed)
    return kc.report(p, y=labels, num_resamples=50)


def test_every_metric_has_a_definition():
    assert set(DEFINITIONS) == set(METRICS)
    assert set(HEADLINE) <= set(METRICS)


def test_numbers_are_those_of_calibration_errors():
    labels, p = sample(power=2.0)
    metrics = report_of(2.0).models[0].metrics
    expected = kc.metrics.calibration_errors(labels, p, floor=True)
    for name, row in metrics.items():
        assert row["value"] == expected[name]
        floor = expected.get(f"{name}_floor")
        assert (row["floor"] is None) == (floor is None)
    assert metrics[ECE]["floor"] == expected[f"{ECE}_floor"]
    # For two classes only.
    assert "binary_calibration_error" not in metrics


def test_intervals_are_those_of_calibration_errors():
    labels, p = sample(power=2.0)
    metrics = report_of(2.0).models[0].metrics
    for kind, name in (("auto", ECE), ("percentile", "brier_score")):
        expected = kc.metrics.calibration_errors(
            labels, p, metrics=[name], num_resamples=50, interval=kind
        )[name]
        assert metrics[name]["low"] == pytest.approx(expected.low)
        assert metrics[name]["high"] == pytest.approx(expected.high)


@pytest.mark.parametrize(
    ("power", "words"),
    [
        (1.0, "No miscalibration can be shown"),
        (3.0, "Overconfident by"),
        (0.3, "Underconfident by"),
    ],
)
def test_the_verdict_names_the_direction(power, words):
    report = report_of(power)
    sentences = report.verdicts["model"]
    assert sentences[0].startswith(words)
    gap = report.models[0].metrics["confidence_gap"]["value"]
    if power != 1.0:
        assert f"{100 * abs(gap):.1f} points" in sentences[0]


def test_both_directions_are_told():
    """Too sure below 0.7, not sure enough above: the mean gap is none."""
    rng = np.random.default_rng(0)
    confidence = np.repeat([0.6, 0.8], 500)
    labels = (rng.random(1000) > np.repeat([0.5, 0.9], 500)).astype(int)
    p = np.stack([confidence, 1 - confidence], axis=1)
    report = kc.report(p, y=labels, num_resamples=50)
    assert report.verdicts["model"][0].startswith("Miscalibrated, in both")


def test_errors_of_classes_that_cancel_are_told():
    """What it says of one class is too high, of the other as much too low."""
    rng = np.random.default_rng(0)
    p = rng.random(2000)
    report = kc.report(p, y=rng.random(2000) < p**2, num_resamples=50)
    first, *rest = report.verdicts["model"]
    error = report.models[0].metrics["binary_calibration_error"]
    assert first.startswith("Miscalibrated in its classes")
    assert f"second class is {error['value']:.4f}" in first
    assert error["value"] > 3 * error["floor_high"]
    assert any(text.startswith("Farthest off") for text in rest)


@pytest.mark.parametrize("images", [1, 2, 8, 9, 10])
def test_few_images_do_not_agree(images, tmp_path):
    """Labels are noise, and predictions sure."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet([0.2] * 3, (images, 20, 20))
    y = rng.integers(0, 3, p.shape[:-1])
    report = kc.report(p, y=y, num_resamples=20, verbose=0)
    (found,), (first, *others) = report.models, report.verdicts["model"]
    assert found.num_units == images and found.dependent
    metrics = found.metrics
    gap = metrics["confidence_gap"]["value"]
    assert gap > 0.4 and "agree" not in first
    temperature = next(each for each in others if "emperature" in each)
    if images == 10:
        assert first.startswith(f"Overconfident by {100 * gap:.1f} points")
        assert temperature.startswith("A temperature of")
        return
    words = f"takes 10, as for a class (here: {images}). "
    means = [100 * metrics[n]["value"] for n in ("mean_confidence", "accuracy")]
    words += "Mean confidence is {:.1f} %, accuracy {:.1f} %.".format(*means)
    assert first.startswith("Too few images or texts to tell over-")
    assert words in first
    # What is not told is no advice, and of one image none is left out.
    assert not found.temperature["shown"]
    assert ("left-out" in temperature) == (images > 1)
    assert ("at least two samples, images or" in temperature) == (images == 1)
    assert np.isnan(found.temperature["gain"]) == (images == 1)
    if images > 1:
        assert "would help cannot be shown" in temperature
    for suffix in ("html", "md", "json"):
        report.save(tmp_path / f"report.{suffix}")
        text = (tmp_path / f"report.{suffix}").read_text()
        assert words in text and temperature in text and "agree" not in text
    gain = json.loads(text)["models"][0]["temperature"]["gain"]
    assert (gain is None) == (images == 1)


def test_images_whose_gap_may_be_chance_have_its_interval_told():
    # Whole images are right or wrong: 75 % of twelve, at a confidence of 60 %.
    p = np.broadcast_to([0.6, 0.4], (12, 20, 2))
    y = np.repeat((np.arange(12) % 5 == 0)[:, None], 20, axis=1)
    report = kc.report(p, y=y, num_resamples=20, verbose=0)
    (found,), (first, *_) = report.models, report.verdicts["model"]
    gap = found.metrics["confidence_gap"]
    assert gap["low"] < -0.3 < gap["value"] < 0 < 0.1 < gap["high"]
    low, high = 100 * gap["low"], 100 * gap["high"]
    assert first.startswith(
        f"No over- or underconfidence can be shown (p = {found.gap_p_value:.3f}"
        "). Mean confidence is 60.0 %, accuracy 75.0 %: a difference of -15.0 "
        f"points (95 %: {low:.1f} to {high:.1f}). The ECE"
    )


def test_one_sample_says_what_it_can():
    options = {"num_resamples": 20, "verbose": 0}
    for y, first in (
        (
            0,
            "No miscalibration can be shown: the ECE of 0.0010 is what a calib",
        ),
        (
            1,
            "Miscalibrated: the ECE of 0.9990 is above what a calibrated",
        ),
    ):
        report = kc.report([[0.999, 0.001]], y=[y], **options)
        text = " ".join(report.verdicts["model"])
        assert text.startswith(first)
        assert "agree" not in text and "left-out" not in text
        assert "it takes at least two samples" in text
        assert ("on 1 sample (" in text) == (y == 0)
        means = "Mean confidence is 99.9 %, accuracy 0.0 %."
        assert (means in text) == (y == 1)
        assert report.models[0].temperature["gain"] != 0


@pytest.mark.parametrize("number, confidence", [(2, 0.6), (5, 0.9)])
def test_a_few_samples_do_not_tell_what_a_temperature_does(number, confidence):
    # All are right, so that a temperature below 1 takes something off.
    p = np.full((number, 2), [confidence, 1 - confidence])
    labels = np.zeros(number, int)
    report = kc.report(p, y=labels, num_resamples=20, verbose=0)
    (found,) = report.models
    gain = found.temperature["gain"]
    assert 0.002 < gain <= 1 / number
    text = " ".join(report.verdicts["model"])
    assert f"on left-out samples it takes {gain:.4f} off" in text
    assert "would help cannot be shown" in text


def test_a_gap_that_may_be_chance_shows_no_two_directions():
    """Of bins one is far too low, the others are as they should be."""
    gap = {"value": 0.1, "low": -0.05, "high": 0.25}
    part = {"floor_low": 0.01, "floor_high": 0.05}
    measured = types.SimpleNamespace(
        metrics={
            ECE: {"value": 0.14, "floor_low": 0.02, "floor_high": 0.1},
            "confidence_gap": gap,
            "mean_confidence": {"value": 0.8},
            "accuracy": {"value": 0.7},
            "overconfidence_error": {"value": 0.12, **part},
        },
        dependent=False,
    )
    for under, words in ((0.02, ""), (0.06, ", in both directions")):
        measured.metrics["underconfidence_error"] = {"value": under, **part}
        assert _verdict._over_or_under(measured) == (
            f"Miscalibrated{words}: the ECE of 0.1400 is above what a "
            "calibrated model has (0.0200 to 0.1000 in 95 % of cases). Mean "
            "confidence is 80.0 %, accuracy 70.0 %: a difference of 10.0 points"
            " (95 %: -5.0 to 25.0)."
        )


def test_the_temperature_undoes_the_power():
    report = report_of(2.0)
    found = report.models[0].temperature
    assert found["value"] == pytest.approx(2.0, rel=0.1)
    assert found["gain"] > 0.02
    assert f"temperature of {found['value']:.2f}" in report.to_markdown()
    calm = report_of(1.0)
    assert "Temperature scaling would not help" in calm.to_markdown()


@pytest.mark.parametrize("pareto", [None, 1.5])
def test_a_temperature_is_seldom_advised_to_a_calibrated_model(pareto):
    draws, advised = 150, 0
    names = [ECE, "negative_log_likelihood"]
    for seed in range(draws):
        labels, p = sample(n=200, seed=seed)
        weights = None
        if pareto is not None:
            weights = 1 + np.random.default_rng(seed).pareto(pareto, len(p))
        data = read_predictions(labels, p, weights)
        found = errors_of_predictions(data, names, refinement=True)
        measured = types.SimpleNamespace(
            num_impossible=0,
            metrics={
                name: {"value": found[name], "floor": 0.0} for name in names
            },
            temperature=_measure._temperature(data, found),
        )
        advised += "kc.calibrate" in _verdict._temperature(measured)
    assert advised / draws <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / draws)


def test_what_chance_may_explain_is_not_advised():
    labels, p = sample(n=200, seed=108)
    text = kc.report(p, y=labels, num_resamples=20).to_markdown()
    assert "would help cannot be shown" in text


def test_models_that_differ_by_rounding_are_the_same():
    labels, p = sample(n=200)
    other = p.astype("float32") * np.float32(1 + 1e-6)
    report = kc.report({"a": p, "b": other}, y=labels, num_resamples=20)
    (said,) = report.comparison
    assert "the same probability, but for rounding" in said


def test_labels_that_are_distributions_are_told():
    labels, p = sample(n=200)
    # They agree with the predictions, and their largest entries do not.
    report = kc.report(p, y=p, num_resamples=20)
    *_, said = report.verdicts["model"]
    assert said.startswith("Labels are distributions")
    for plain in (labels, np.eye(4)[labels]):
        report = kc.report(p, y=plain, num_resamples=20)
        text = " ".join(report.verdicts["model"])
        assert "distributions" not in text


def test_models_are_compared_by_pairs():
    labels, good = sample()
    _, bad = sample(power=3.0)
    noise = np.exp(0.05 * np.random.default_rng(1).normal(size=good.shape))
    same = good * noise / (good * noise).sum(axis=1, keepdims=True)
    given = {"good": good, "bad": bad, "same": same}
    report = kc.report(given, y=labels, num_resamples=20)
    text = " ".join(report.comparison)
    assert re.search(r"(good|same) predicts better than bad", text)
    assert "cannot tell" in text
    loss = {
        name: -np.log(p[np.arange(len(labels)), labels])
        for name, p in given.items()
    }
    best = min(("good", "same"), key=lambda name: loss[name].mean())
    difference = loss["bad"] - loss[best]
    # Of three pairs together.
    degrees = len(labels) - 1
    quantile = stats.t.ppf(1 - 0.05 / 6, degrees)
    width = quantile * difference.std(ddof=1) / np.sqrt(len(labels))
    assert f"lower by {difference.mean():.4f}" in text
    assert f"{difference.mean() + width:.4f}" in text
    (other,) = {"good", "same"} - {best}
    difference = loss[other] - loss[best]
    error = difference.std(ddof=1) / np.sqrt(len(labels))
    times = ((quantile + 0.8416) * error / difference.mean()) ** 2
    if times > 100:
        assert "not even 100 times as many samples would tell" in text
    else:
        more = float(f"{len(labels) * (times - 1):.1e}")
        assert f"as large, {more:,.0f} more samples would tell" in text


def test_models_that_rule_a_label_out():
    labels, good = sample()
    sure = good.copy()
    sure[0] = np.eye(4)[labels[0] - 1]
    given = {"sure": sure, "good": good, "as sure": sure}
    report = kc.report(given, y=labels, num_resamples=20, verbose=0)
    assert report.comparison == [
        f"good predicts better than {other}, whose NLL is infinite: it gives a "
        "label the probability 0."
        for other in ("sure", "as sure")
    ]
    given.pop("good")
    [sentence] = kc.report(
        given, y=labels, num_resamples=20, verbose=0
    ).comparison
    assert "it is infinite for both" in sentence


def test_diagrams_resample_whole_images():
    rng = np.random.default_rng(0)
    z = np.repeat(2 * rng.normal(size=(40, 1, 3)), 50, axis=1)
    p = np.exp(z) / np.exp(z).sum(axis=-1, keepdims=True)
    drawn = (p[:, 0].cumsum(axis=1) > rng.random((40, 1))).argmax(axis=1)
    labels = np.repeat(drawn[:, None], 50, axis=1)
    report = kc.report(p, y=labels, num_resamples=20, verbose=0)
    direct = kc.plots.reliability_diagram(labels, p)
    ends = re.search(r"\[(.*?)\]", direct.axes[0].texts[0].get_text())[0]
    assert ends in report._repr_html_()


def test_so_many_more_samples_tell_in_four_of_five_cases():
    rng = np.random.default_rng(0)
    n, mean, deviation, draws = 200, 0.03, 0.5, 4000
    times = times_as_many(mean, deviation / np.sqrt(n), 1.96)
    count = round(n * times)
    found = rng.normal(mean, deviation, (draws, count))
    error = found.std(axis=1, ddof=1) / np.sqrt(count)
    told = np.mean(found.mean(axis=1) > 1.96 * error)
    assert told == pytest.approx(0.8, abs=3 * np.sqrt(0.8 * 0.2 / draws))
    assert times_as_many(0.0, 0.05, 1.96) == np.inf


def of_losses(losses, unit=None):
    """What is said of models with these losses, `(models, n)`."""
    measured = [
        types.SimpleNamespace(
            name=f"m{i}",
            metrics={"negative_log_likelihood": {"value": row.mean()}},
        )
        for i, row in enumerate(losses)
    ]
    predictions = [
        types.SimpleNamespace(
            weights=None,
            unit=unit,
            # As of soft labels: no law of them is known.
            targets=row,
            negative_log_likelihood=lambda row=row: row,
        )
        for row in losses
    ]
    return comparison(measured, predictions)


@pytest.mark.parametrize(
    "models, units, rows", [(2, 5, 1), (2, 200, 1), (2, 4, 20), (6, 100, 1)]
)
def test_of_equal_models_one_is_seldom_called_better(models, units, rows):
    rng = np.random.default_rng([models, units])
    unit = None if rows == 1 else np.repeat(np.arange(units), rows)
    draws, wrong = 1000, 0
    for _ in range(draws):
        of_unit = rng.normal(size=(models, units)).repeat(rows, axis=1)
        noise = 0.1 * rng.normal(size=of_unit.shape)
        said = of_losses(of_unit + noise, unit)
        assert len(said) == models - 1
        wrong += any("predicts better" in each for each in said)
    assert wrong / draws <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / draws)


def compared(labels, *models):
    """What is said of models by their probabilities of the second class."""
    predictions = [read_predictions(labels, p) for p in models]
    measured = [
        types.SimpleNamespace(
            name=f"m{i}",
            metrics={
                "negative_log_likelihood": {
                    "value": each.negative_log_likelihood().mean()
                }
            },
        )
        for i, each in enumerate(predictions)
    ]
    (said,) = comparison(measured, predictions)
    return said


@pytest.mark.slow
@pytest.mark.one_backend
@pytest.mark.parametrize("kind", ["constant", "network"])
def test_errors_that_did_not_come_make_no_model_better(kind):
    """Without the variance that they promise: 48 and 18 %."""
    rng = np.random.default_rng(0)
    draws, better = 400, 0
    ratio = np.log(0.999 / 0.99) / np.log(0.01 / 0.001)
    for _ in range(draws):
        if kind == "constant":  # equally good
            risk = np.full(200, ratio / (1 + ratio))
            models = np.full(200, 0.01), np.full(200, 0.001)
        else:
            z = -rng.normal(4.5, 1.5, 100)
            risk, *models = (1 / (1 + np.exp(-z / t)) for t in (1, 0.6, 1.6016))
        labels = (rng.random(len(risk)) < risk).astype(int)
        better += "predicts better" in compared(labels, *models)
    assert better / draws <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / draws)


def test_a_model_that_is_better_is_told():
    rng = np.random.default_rng(0)
    told = 0
    for _ in range(20):
        z = 3 * rng.normal(size=1000)
        labels = (rng.random(1000) < 1 / (1 + np.exp(-z))).astype(int)
        models = (1 / (1 + np.exp(-factor * z)) for factor in (1, 1.6))
        told += "m0 predicts better" in compared(labels, *models)
    assert told >= 16


@pytest.mark.slow
@pytest.mark.one_backend
def test_texts_that_are_right_as_a_whole_show_no_underconfidence():
    """Of percentiles and of the slope 0 would be outside in 15 of 40."""
    rng = np.random.default_rng(3)
    outside, shown, draws = 0, 0, 40
    gain = {"calibration_loss": 0.01, "refinement_loss": 0.1}
    for _ in range(draws):
        p = rng.uniform(0.95, 1, 50)[:, None].repeat(20, axis=1)
        y = (rng.random((50, 1)) > p).astype(int)
        p = np.stack([p, 1 - p], axis=-1)
        data = read_predictions(y, p)
        gap = errors_of_predictions(
            data,
            ["confidence_gap"],
            num_resamples=40,
            interval=(0.95, "percentile"),
        )["confidence_gap"]
        ends = _measure._wide_enough((gap.low, gap.high), data)
        assert ends[0] <= gap.low and gap.high <= ends[1]
        outside += not ends[0] <= 0 <= ends[1]
        shown += _measure._temperature(data, gain)["shown"]
    # A binomial of 40 with 0.05 is above 6 once in three hundred.
    assert outside <= 6 and shown <= 6
    (found,) = kc.report(p, y=y, num_resamples=40, verbose=0).models
    row = found.metrics["confidence_gap"]
    assert row["low"] <= ends[0] and ends[1] <= row["high"]


def test_classes_share_the_level_of_the_first_sentence_with_the_ece():
    row = {"name": "a", "num_predicted": 100, "confidence": 0.9}
    row = {**row, "accuracy": 0.8, "p_value": 0.03}
    error = {"value": 0.02, "floor_low": 0.01, "floor_high": 0.03}
    measured = types.SimpleNamespace(
        metrics={ECE: error, "confidence_gap": None},
        classes=[row],
        dependent=False,
        num_rows=100,
    )
    for chance, told in ((0.03, False), (0.02, True)):
        row["p_value"] = chance
        assert len(_verdict._class(measured)) == told
        first = _verdict._over_or_under(measured)
        assert first.startswith("Miscalibrated in its classes") == told


@pytest.mark.parametrize("rows", [1, 3, 6, 7, 11, 49, 60])
def test_rows_of_one_image_tell_no_models_apart(rows):
    losses = np.linspace([1.0, 2.0], [1.3, 2.7], rows, axis=1)
    (said,) = of_losses(losses, np.zeros(rows, int))
    assert "cannot tell m0 from m1" in said and "one unit" in said


def test_classes_and_groups_that_are_farthest_off():
    rng = np.random.default_rng(0)
    n = 900
    p = np.full((n, 3), 0.1)
    predicted = rng.integers(0, 3, n)
    p[np.arange(n), predicted] = 0.8
    # Right 80 % of the time, but class 2 in group "b" never.
    group = np.where(rng.random(n) < 0.5, "a", "b")
    right = rng.random(n) < 0.8
    right[(predicted == 2) & (group == "b")] = False
    labels = np.where(right, predicted, (predicted + 1) % 3)
    report = kc.report(
        p,
        y=labels,
        groups=group,
        class_names=["cat", "dog", "fox"],
        num_resamples=20,
    )
    (found,) = report.models
    first = found.classes[0]
    chosen = predicted == 2
    assert first["name"] == "fox"
    assert first["num_predicted"] == chosen.sum()
    assert first["accuracy"] == pytest.approx(right[chosen].mean())
    assert first["standard_error"] == pytest.approx(
        np.sqrt(0.8 * 0.2 / chosen.sum())
    )
    assert [row["group"] for row in found.groups] == ["b", "a"]
    text = " ".join(report.verdicts["model"])
    assert "predicts class fox" in text
    assert "Worst in group b" in text


@pytest.mark.parametrize("given", ["arrays", "dataset"])
@pytest.mark.parametrize("activation", [None, "softmax"])
def test_a_model_and_its_predictions_agree(given, activation):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 5)).astype("float32")
    y = rng.integers(0, 4, 300)
    weight = rng.integers(0, 3, 300).astype("float32")
    y[::7] = 255
    group = rng.integers(0, 2, 300)
    model = small_network(4, inputs=5, activation=activation)
    model.build((None, 5))
    arguments = {"groups": group, "ignore_class": 255, "num_resamples": 20}
    if given == "arrays":
        found = kc.report(model, x, y, sample_weight=weight, **arguments)
    else:
        batches = [
            (x[i : i + 64], y[i : i + 64], weight[i : i + 64])
            for i in range(0, 300, 64)
        ]
        found = kc.report(model, batches, **arguments)
    scores = model.predict(x, verbose=0)
    expected = kc.report(
        {model.name: scores},
        y=y,
        sample_weight=weight,
        from_logits=activation is None,
        **arguments,
    )
    (one,), (two,) = found.models, expected.models
    assert one.num_rows == two.num_rows
    assert one.name == two.name
    for name, row in one.metrics.items():
        assert row["value"] == pytest.approx(
            two.metrics[name]["value"], abs=1e-5
        )
    assert [r["num_rows"] for r in one.groups] == [
        r["num_rows"] for r in two.groups
    ]


def test_batches_of_every_kind_are_one_set_of_rows():
    # Class ids in one-hot rows and soft rows; weights of one batch only.
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)).astype("float32")
    labels = np.eye(4)[rng.integers(0, 4, 60)]
    labels[30:] = 0.9 * labels[30:] + 0.025
    weight = np.ones(60)
    weight[:30] = np.linspace(0.5, 2.0, 30)
    model = small_network(4, inputs=4, activation="softmax")
    batches = [
        (x[:30], labels[:30], weight[:30]),
        (x[30:], labels[30:]),
    ]
    options = {"num_resamples": 20, "verbose": 0}
    found = kc.report(model, batches, **options).models[0]
    scores = model.predict(x, verbose=0)
    expected = kc.report(
        scores, y=labels, sample_weight=weight, **options
    ).models[0]
    for name, row in expected.metrics.items():
        value = found.metrics[name]["value"]
        assert value == pytest.approx(row["value"], abs=1e-5), name


def test_samples_that_the_map_was_fitted_to_are_told():
    labels, p = sample(120)
    x = np.log(p).astype("float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Softmax()])
    calibrated = kc.calibrate(model, x[:60], labels[:60], verbose=0)
    settings = {"num_resamples": 20, "batch_size": 16, "verbose": 0}
    both = {"before": model, "after": calibrated}
    words = "calibrated on these very samples"
    with pytest.warns(UserWarning, match=words):
        kc.report(both, x[:60][::-1], labels[:60][::-1], **settings)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", words)
        for rows in (slice(60, 120), slice(59), slice(61)):
            kc.report(both, x[rows], labels[rows], **settings)
        kc.report(model, x[:60], labels[:60], **settings)


def test_images_of_several_batches_are_drawn_as_a_whole():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 5, 3)).astype("float32")
    y = rng.integers(0, 3, (6, 5))
    model = keras.Sequential([keras.Input((5, 3)), keras.layers.Softmax()])
    batches = [(x[:2], y[:2]), (x[2:], y[2:])]
    options = {"num_resamples": 20, "verbose": 0}
    found = kc.report(model, batches, **options)
    expected = kc.report(model.predict(x, verbose=0), y=y, **options)
    low, high = (
        [each.models[0].metrics[ECE][end] for each in (found, expected)]
        for end in ("low", "high")
    )
    assert low[0] == pytest.approx(low[1], abs=1e-5)
    assert high[0] == pytest.approx(high[1], abs=1e-5)
    assert "whole images or texts" in found.models[0].intervals


def tokens_with_a_label(which):
    """Which tokens of eight texts count."""
    counts = np.ones((8, 6), bool)
    if which in ("first", "both"):
        counts[0] = False
    if which in ("last", "both"):
        counts[7, 1:] = False
    if which == "one each":
        counts[:, 1:] = False
    return counts


@pytest.mark.parametrize("which", ["first", "last", "both", "one each"])
@pytest.mark.parametrize("batch_size", [1, 7, 8])
def test_batches_with_a_row_per_text_are_batches_of_texts(which, batch_size):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(8, 6, 3)).astype("float32")
    y = rng.integers(0, 3, (8, 6))
    y[~tokens_with_a_label(which)] = -1
    model = keras.Sequential([keras.Input((6, 3)), keras.layers.Softmax()])
    options = {"ignore_class": -1, "num_resamples": 20, "verbose": 0}
    groups = np.array(list("aabbaabb"))
    (found,) = kc.report(
        model, x, y, groups=groups, batch_size=batch_size, **options
    ).models
    scores = model.predict(x, verbose=0)
    (expected,) = kc.report(scores, y=y, groups=groups, **options).models
    assert found.dependent == expected.dependent == (which != "one each")
    assert found.intervals == expected.intervals
    for name, row in expected.metrics.items():
        for key, value in row.items():
            value = value if value is None else pytest.approx(value, abs=1e-5)
            assert found.metrics[name][key] == value, (name, key)
    rows = [(row["group"], row["num_rows"]) for row in expected.groups]
    assert [(row["group"], row["num_rows"]) for row in found.groups] == rows


def test_many_pixels_are_of_images_though_the_first_is_void(monkeypatch):
    monkeypatch.setattr(_measure, "LARGE", 99)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2, 3, 3)).astype("float32")
    y = rng.integers(0, 3, (40, 2, 3))
    y[0] = 255
    model = keras.Sequential([keras.Input((2, 3, 3)), keras.layers.Softmax()])
    options = {"ignore_class": 255, "num_resamples": 20, "verbose": 0}
    (found,) = kc.report(model, x, y, batch_size=1, **options).models
    scores = model.predict(x, verbose=0)
    (expected,) = kc.report(scores, y=y, **options).models
    assert found.dependent and "whole images or texts" in found.intervals
    for end in ("low", "high"):
        value = expected.metrics["negative_log_likelihood"][end]
        row = found.metrics["negative_log_likelihood"]
        assert row[end] == pytest.approx(value, abs=1e-5)


def test_batches_that_cannot_be_a_report():
    model = small_network(4, inputs=4, activation="softmax")
    x, y = np.zeros((6, 4), "float32"), np.arange(6) % 4
    with pytest.raises(ValueError, match="The data is empty"):
        kc.report(model, [], verbose=0)
    with pytest.raises(ValueError, match="7 ids for 6 samples"):
        kc.report(model, [(x, y)], groups=np.arange(7), verbose=0)

    class Reshuffled(keras.utils.PyDataset):
        turns = 0

        def __len__(self):
            return 1

        def __getitem__(self, i):
            type(self).turns += 1
            return x, np.roll(y, self.turns)

    models = {"one": model, "two": model}
    with pytest.raises(ValueError, match="in the same order each time"):
        kc.report(models, Reshuffled(), num_resamples=20, verbose=0)


def test_one_sigmoid_unit():
    labels, p = sample(num_classes=2)
    metrics = kc.report(p[:, 1], y=labels, num_resamples=20).models[0].metrics
    expected = kc.metrics.calibration_errors(labels, p)
    name = "binary_calibration_error"
    assert metrics[name]["value"] == pytest.approx(expected[name])


def test_two_classes_have_a_clinical_panel(tmp_path):
    labels, p = sample(num_classes=2, power=2.0)
    report = kc.report({"a": p[:, 1], "b": p}, y=labels, num_resamples=20)
    panel = report.models[0].clinical_panel
    expected = kc.metrics.clinical_panel(labels, p[:, 1], num_draws=200)
    assert panel == {**expected, "notes": panel["notes"]}
    assert report.models[1].clinical_panel["calibration_slope"] == (
        pytest.approx(expected["calibration_slope"])
    )
    slope = f"{panel['calibration_slope']:.4f} ± "
    index = f"{panel['integrated_calibration_index']:.4f}"
    floor = f"{panel['integrated_calibration_index_floor']:.4f} ("
    for text in (report.to_markdown(), report._repr_html_()):
        assert text.count("Clinical panel") == 2
        assert slope in text and index in text and floor in text
        assert "Net benefit at 0.25" in text and "(p &lt; 0.001)" in (
            text.replace("<", "&lt;")
        )
    report.save(tmp_path / "report.json")
    found = json.loads((tmp_path / "report.json").read_text())
    found = found["models"][0]["clinical_panel"]
    assert found["net_benefit"]["0.5"] == panel["net_benefit"][0.5]
    assert report_of().models[0].clinical_panel is None
    assert "Clinical" not in report_of().to_markdown()
    assert "Clinical" not in report_of()._repr_html_()


def test_the_net_benefit_is_at_the_thresholds_that_are_passed_in():
    labels, p = sample(num_classes=2, power=2.0)
    options = {"y": labels, "num_resamples": 2, "verbose": 0}
    for thresholds in ([0.05, 0.1], np.array([0.05, 0.1])):
        report = kc.report(p, thresholds=thresholds, **options)
        expected = kc.metrics.clinical_panel(
            labels, p, thresholds=thresholds, num_draws=0
        )
        (found,) = report.models
        for name in ("net_benefit", "net_benefit_of_all"):
            assert found.clinical_panel[name] == expected[name]
            assert list(found.clinical_panel[name]) == [0.05, 0.1]
        for text in (report.to_markdown(), report._repr_html_()):
            assert "Net benefit at 0.05" in text
            assert "Net benefit at 0.25" not in text
        json.dumps(report.to_dict(), allow_nan=False)
    for wrong in ([0.0], [1.0], 0.5, "half"):
        with pytest.raises(ValueError, match="`thresholds` must be"):
            kc.report(p, thresholds=wrong, **options)


def test_a_report_says_why_an_interval_is_below_its_value():
    # By chance: with seed 0 none of the intervals lies below its value.
    calibrated, sharp = report_of(1.0, seed=1), report_of(2.0)
    words = "take off the upward bias of few samples, and can lie below the"
    for report in (calibrated, sharp):
        rows = report.models[0].metrics.values()
        ends = [(row["value"], row["high"]) for row in rows]
        below = any(high < value for value, high in ends if high is not None)
        assert below == (report is calibrated)
        for text in (report.to_markdown(), report._repr_html_()):
            text = text.replace("\n", " ")
            assert (words in text) == below
            assert "Intervals (95 %): bootstrap of samples, 50" in text


def test_a_clinical_panel_says_what_is_undefined():
    p = np.linspace(0.1, 0.9, 40)
    labels = (p > 0.5).astype(int)
    report = kc.report(p, y=labels, num_resamples=20)
    (note,) = report.models[0].clinical_panel["notes"]
    assert "separates events" in note
    for text in (report.to_markdown(), report._repr_html_()):
        assert note in text and "undefined" in text
    assert report.to_dict()["models"][0]["clinical_panel"]["slope_p"] is None
    p[0], p[-1] = 0.0, 1.0
    report = kc.report(
        p, y=labels, num_resamples=20, sample_weight=np.linspace(1, 2, 40)
    )
    assert "2 probabilities of 0 or 1" in report.to_markdown()
    images = np.stack([p.reshape(4, 10)], axis=-1)
    report = kc.report(images, y=labels.reshape(4, 10), num_resamples=20)
    assert "depend on each other" in report.to_markdown()


@pytest.mark.parametrize("how", ["weight", "label", "mask"])
def test_samples_that_do_not_count_leave_the_others_independent(how):
    labels, p = sample(200, num_classes=2)
    counts = np.arange(200) % 7 > 0
    options = {"num_resamples": 20, "verbose": 0}
    expected = kc.report(p[counts], y=labels[counts], **options).to_dict()
    if how == "weight":
        options["sample_weight"] = counts.astype(float)
    elif how == "label":
        labels, options["ignore_class"] = np.where(counts, labels, 255), 255
    scores, given = p, {"y": labels}
    if how == "mask":
        inputs = keras.Input((2,))
        masked = keras.layers.Masking()(inputs)
        scores = keras.Model(inputs, keras.layers.Identity()(masked))
        p = np.where(counts[:, None], p, 0.0)
        given, options["from_logits"] = {"x": p, "y": labels}, False
    report = kc.report({"model": scores}, **given, **options)
    (found,) = report.models
    assert found.intervals == "bootstrap of samples, 20 resamples"
    assert found.clinical_panel["notes"] == []
    for name, row in expected["models"][0]["metrics"].items():
        for key, value in row.items():
            value = value if value is None else pytest.approx(value, rel=1e-4)
            assert found.metrics[name][key] == value, (name, key)


def test_groups_that_are_calibrated_are_told_and_listed():
    labels, p = sample(400)
    report = kc.report(p, y=labels, groups=np.arange(400) % 2, num_resamples=20)
    words = "In no group can miscalibration be shown by its ECE."
    assert words in report.verdicts["model"]
    text = report.to_markdown()
    table = text.partition("Groups, the worst first:")[2].splitlines()
    rows = [line.split(" | ") for line in table if line.startswith("| ")]
    assert [row[1] for row in rows[2:]] == ["200", "200"]
    assert {row[0] for row in rows[2:]} == {"| 0", "| 1"}
    assert "Groups, the worst first:" not in report_of().to_markdown()


def test_pixels_of_an_image_are_no_samples_of_a_comparison():
    labels, p = sample(240)
    q = p**2 / (p**2).sum(1, keepdims=True)
    # Every image is one row that comes ten times.
    copies = [np.repeat(each, 10, axis=0) for each in (labels, p, q)]
    options = {"num_resamples": 20}
    alone = kc.report({"a": p, "b": q}, y=labels, **options)
    images = [each.reshape(240, 10, *each.shape[1:]) for each in copies]
    of_images = kc.report(
        dict(zip("ab", images[1:], strict=True)), y=images[0], **options
    )
    assert of_images.comparison == alone.comparison
    of_rows = kc.report(
        dict(zip("ab", copies[1:], strict=True)), y=copies[0], **options
    )
    assert of_rows.comparison != alone.comparison


def test_many_weighted_rows_have_intervals_of_means_alone(monkeypatch):
    monkeypatch.setattr(_measure, "LARGE", 399)
    labels, p = sample(400)
    weight = np.linspace(0.5, 1.5, 400)
    (found,) = kc.report(
        p, y=labels, sample_weight=weight, num_resamples=20
    ).models
    assert found.intervals == (
        "means: normal; other errors: none for so many rows"
    )
    assert found.metrics[ECE]["low"] is None
    correct = p.argmax(axis=1) == labels
    share = weight / weight.sum()
    mean = share @ correct
    error = np.sqrt((share * (correct - mean)) @ (share * (correct - mean)))
    row = found.metrics["accuracy"]
    assert row["high"] - row["value"] == pytest.approx(1.96 * error, rel=1e-3)


@pytest.mark.parametrize("images", [False, True])
def test_many_rows_without_an_error_have_no_certain_accuracy(
    images, monkeypatch
):
    monkeypatch.setattr(_measure, "LARGE", 399)
    # Wilson's interval of none among 400 rows, and among 20 images.
    shape, most = ((20, 20), 0.1611) if images else (400, 0.00951)
    labels = np.zeros(shape, int)
    p = np.broadcast_to([0.99, 0.01], (*labels.shape, 2))
    (found,) = kc.report(p, y=labels, num_resamples=20, verbose=0).models
    accuracy, gap = found.metrics["accuracy"], found.metrics["confidence_gap"]
    assert accuracy["value"] == accuracy["high"] == 1.0
    assert accuracy["low"] == pytest.approx(1 - most, abs=1e-4)
    assert gap["value"] == pytest.approx(-0.01)
    assert gap["high"] == pytest.approx(most - 0.01, abs=1e-4)


def test_an_infinite_mean_of_many_rows_has_no_interval(monkeypatch):
    monkeypatch.setattr(_measure, "LARGE", 4_999)
    labels, p = sample(5_000)
    p[0] = np.eye(4)[labels[0] - 1]
    for images in (labels, labels.reshape(50, 100)):
        (found,) = kc.report(
            p.reshape(*images.shape, 4), y=images, num_resamples=20, verbose=0
        ).models
        row = found.metrics["negative_log_likelihood"]
        assert row["value"] == np.inf and row["low"] is row["high"] is None
        assert np.isfinite(found.metrics["brier_score"]["low"])


@pytest.mark.slow
def test_many_rows_are_resampled_in_cells():
    labels, p = sample(12_000, 1.5)
    (found,) = kc.report(p, y=labels, num_resamples=200).models
    assert "4,096 cells" in found.intervals
    expected = kc.metrics.calibration_errors(
        labels, p, metrics=[ECE], num_resamples=200
    )[ECE]
    width = expected.high - expected.low
    assert found.metrics[ECE]["low"] == pytest.approx(
        expected.low, abs=0.2 * width
    )
    assert found.metrics[ECE]["high"] == pytest.approx(
        expected.high, abs=0.2 * width
    )
    accuracy = found.metrics["accuracy"]
    error = math.sqrt(accuracy["value"] * (1 - accuracy["value"]) / 12_000)
    assert accuracy["high"] - accuracy["value"] == pytest.approx(1.96 * error)


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
def test_many_rows_of_images_are_resampled_in_cells(weighted):
    rng = np.random.default_rng(5)
    labels, p = sample(12_000, 1.5)
    # Every image is easy or hard, so that its pixels depend on each other.
    order = np.argsort(p.max(axis=1) + 0.1 * rng.random(len(p)))
    labels, p = labels[order].reshape(60, 200), p[order].reshape(60, 200, -1)
    weights = rng.uniform(0.2, 3.0, labels.shape) if weighted else None
    report = kc.report(p, y=labels, sample_weight=weights, num_resamples=1000)
    (found,) = report.models
    assert "whole images" in found.intervals
    assert "4,096 cells" in found.intervals
    for names, kind in (
        ([ECE], "auto"),
        (["accuracy", "brier_score", "auroc"], "percentile"),
    ):
        expected = kc.metrics.calibration_errors(
            labels,
            p,
            sample_weight=weights,
            metrics=names,
            num_resamples=1000,
            interval=kind,
        )
        for name in names:
            low, high = expected[name].low, expected[name].high
            # An end of 1,000 resamples has a standard error of about 2.5 % of
            # the width; five of the difference of two.
            near = functools.partial(pytest.approx, abs=0.18 * (high - low))
            assert found.metrics[name]["low"] == near(low), name
            assert found.metrics[name]["high"] == near(high), name
    # As if the rows were independent, it would be much narrower.
    accuracy = found.metrics["accuracy"]
    error = math.sqrt(accuracy["value"] * (1 - accuracy["value"]) / 12_000)
    assert accuracy["high"] - accuracy["value"] > 3 * error


def test_json_holds_all_numbers(tmp_path):
    report = report_of(2.0)
    report.save(tmp_path / "report.json")
    # NaN and Infinity are no JSON.
    text = (tmp_path / "report.json").read_text()
    found = json.loads(text, parse_constant=pytest.fail)
    assert found == report.to_dict()
    metrics = found["models"][0]["metrics"]
    assert metrics[ECE]["value"] == report.models[0].metrics[ECE]["value"]
    assert found["keras_calib_version"] == kc.__version__


def test_an_impossible_label_gives_an_infinite_loss(tmp_path):
    p = np.array([[1.0, 0.0], [0.7, 0.3]] * 20)
    labels = np.array([1, 0] * 20)
    report = kc.report(p, y=labels, num_resamples=20)
    for suffix in ("html", "json"):
        report.save(tmp_path / f"report.{suffix}")
    text = (tmp_path / "report.json").read_text()
    (found,) = json.loads(text, parse_constant=pytest.fail)["models"]
    nll = found["metrics"]["negative_log_likelihood"]
    assert nll["value"] == "Infinity" and float(nll["value"]) == math.inf
    # What was not computed is told apart.
    assert nll["floor"] is None
    assert found["num_impossible"] == 20


@pytest.mark.parametrize("labels", ["ids", "soft"])
@pytest.mark.parametrize("weighted", [False, True])
def test_an_infinite_loss_has_its_rows_counted_and_no_gain(labels, weighted):
    p = np.array([0.1, 0.2, 0.0, 0.9] * 20)
    y = np.array([0, 0, 1, 1] * 20)
    weights = np.ones(80)
    if labels == "soft":
        y = np.stack([1.0 - 0.9 * y, 0.9 * y], axis=1)
    if weighted:
        weights[2::8] = 0.0
    report = kc.report(
        p, y=y, sample_weight=weights, num_resamples=20, verbose=0
    )
    known = "10 of 70" if weighted else "20 of 80"
    sentences = report.verdicts["model"]
    assert (
        f"The NLL is infinite: {known} rows give the probability 0 to their "
        "label. If that is rounding, pass logits." in sentences
    )
    assert not any(re.search(r"\binf\b", each) for each in sentences)
    assert report_of(2.0).models[0].num_impossible == 0


def test_markdown_is_what_is_printed(tmp_path):
    report = report_of(2.0)
    report.save(tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text()
    assert text == str(report)
    assert f"{report.models[0].metrics[ECE]['value']:.4f}" in text
    for definition in DEFINITIONS.values():
        if definition != DEFINITIONS["binary_calibration_error"]:
            assert definition.replace("|", "\\|") in text


def test_names_cannot_break_a_page():
    labels, p = sample()
    name = "<script>alert(1)</script> | a"
    report = kc.report({name: p}, y=labels, num_resamples=20)
    page = report._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "\\| a" in report.to_markdown()


def test_a_page_is_self_contained(tmp_path):
    report_of(2.0).save(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "see <code>kc.calibrate</code>." in page
    assert page.count("<svg") == 1
    links = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert all(link.startswith("#") for link in links)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


def test_the_same_report_is_the_same_file(tmp_path):
    for name in ("one.html", "two.html"):
        report_of(2.0).save(tmp_path / name)
    one, two = ((tmp_path / n).read_bytes() for n in ("one.html", "two.html"))
    assert one == two


def test_nothing_is_half_written(tmp_path, monkeypatch):
    report = report_of()
    path = tmp_path / "report.md"
    path.write_text("old")
    monkeypatch.setattr(
        "keras_calib.reporting._report.os.replace",
        lambda *_: (_ for _ in ()).throw(OSError("disk is full")),
    )
    with pytest.raises(OSError, match="disk is full"):
        report.save(path)
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["report.md"]


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    report = report_of()
    find = __import__("importlib.util").util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name: None if name == "jinja2" else find(name),
    )
    with pytest.raises(ImportError, match="pip install jinja2"):
        report.save(tmp_path / "report.html")
    report.save(tmp_path / "report.md")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"y": None}, "need labels"),
        ({"x": np.zeros(3)}, "no inputs"),
        ({"class_names": ["a"]}, "a name for each class"),
        ({"num_resamples": 1}, "at least 2"),
        ({"ignore_class": 0, "y": np.zeros(800, int)}, "nothing to report"),
    ],
)
def test_bad_input(change, words):
    labels, p = sample()
    arguments = {"y": labels, "num_resamples": 20, **change}
    with pytest.raises(ValueError, match=words):
        kc.report(p, **arguments)


def test_what_is_said_of_logits_is_not_said_of_a_softmax():
    """Before and after of a model whose graph shows nothing."""

    class Scores(keras.Model):
        def call(self, x):
            return keras.ops.convert_to_tensor(x)

    rng = np.random.default_rng(0)
    z = 3 * rng.normal(size=(600, 1)).astype("float32")
    y = (z[:, 0] / 3 + rng.logistic(size=600) > 0).astype(int)
    before = Scores()
    after = kc.calibrate(before, z, y, from_logits=True, verbose=0)
    models = {"before": before, "after": after}
    report = kc.report(
        models, z, y, from_logits=True, num_resamples=2, verbose=0
    )
    p = after.predict(z, verbose=0)[:, 0].astype(float)
    nll = {
        "before": np.logaddexp(0, -z[:, 0] * (2 * y - 1)).mean(),
        "after": -np.log(np.where(y == 1, p, 1 - p)).mean(),
    }
    for found in report.models:
        value = found.metrics["negative_log_likelihood"]["value"]
        assert value == pytest.approx(nll[found.name], rel=1e-4)


def test_bad_sets_of_models():
    labels, p = sample()
    with pytest.raises(ValueError, match="one to 6 models"):
        kc.report({}, y=labels)
    with pytest.raises(ValueError, match="one to 6 models"):
        kc.report(dict.fromkeys("abcdefg", p), y=labels)
    model = keras.Sequential([keras.layers.Dense(4)])
    with pytest.raises(ValueError, match="A model needs inputs"):
        kc.report(model, y=labels)
    with pytest.raises(ValueError, match="is saved as"):
        report_of().save("report.pdf")
    five = np.concatenate([p, np.zeros((len(p), 1))], axis=1)
    with pytest.raises(ValueError, match="same classes"):
        kc.report({"four": p, "five": five}, y=labels, num_resamples=20)


def test_what_is_shown_by_many_is_not_hidden_by_few():
    rng = np.random.default_rng(6)
    few = rng.uniform(0.5, 1, 30)
    right = rng.random(30) < few
    # Calibrated, but few; and 80 % where 78 % are right, of very many.
    p = np.concatenate([few, np.full(6000, 0.8)])
    y = np.concatenate([right, np.repeat([1, 0], [4680, 1320])])
    group = np.repeat(["few", "many"], [30, 6000])
    report = kc.report(p, y=y, groups=group, num_resamples=2, verbose=0)
    (found,) = report.models
    first = found.groups[0]
    assert first["group"] == "few"
    assert first[ECE] < first[f"{ECE}_floor_high"]
    assert report.verdicts["model"][-1].startswith("Worst in group many ")


@pytest.mark.one_backend
def test_of_very_many_groups_one_can_be_told():
    rng = np.random.default_rng(0)
    p = rng.uniform(0.6, 0.9, 6000)
    y = rng.random(6000) < p
    group = np.arange(6000) % 600
    y[group == 7] = False
    report = kc.report(p, y=y, groups=group, num_resamples=2, verbose=0)
    text = report.verdicts["model"][-1]
    assert text.startswith("Worst in group 7 ")


@pytest.mark.one_backend
def test_of_many_groups_some_are_far_off_by_chance():
    rng = np.random.default_rng(0)
    group = np.arange(1600) % 40
    above, named = 0, 0
    for _ in range(8):
        p = rng.uniform(0.5, 1, 1600)
        y = rng.random(1600) < p
        report = kc.report(p, y=y, groups=group, num_resamples=2, verbose=0)
        rows = report.models[0].groups
        above += any(row[ECE] > row[f"{ECE}_floor_high"] for row in rows)
        named += report.verdicts["model"][-1].startswith("Worst in group")
    # Of 320 groups 2.5 % are expected above, in most of the eight reports.
    assert above >= 3
    assert named <= 1


@pytest.mark.one_backend
@pytest.mark.parametrize("groups", [False, True])
def test_rare_errors_of_sure_predictions_are_chance(groups):
    # One error in 30 rows of a confidence of 0.999 is five standard errors,
    # and of 40 classes or groups some have one.
    named = by_standard_errors = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        z = rng.normal(size=(200, 40))
        z[np.arange(200), rng.integers(0, 40, 200)] += 9
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        y = (rng.random((200, 1)) > p.cumsum(axis=1)[:, :-1]).sum(axis=1)
        group = np.arange(200) % 20 if groups else None
        report = kc.report(p, y=y, groups=group, num_resamples=2, verbose=0)
        text = " ".join(report.verdicts["model"])
        named += ("Worst in group" if groups else "Farthest off") in text
        (found,) = report.models
        rows = found.classes
        far = max(abs(row["gap"]) / row["standard_error"] for row in rows)
        by_standard_errors += far > stats.norm.isf(0.025 / len(rows))
    assert by_standard_errors >= 3
    assert named <= 1


@pytest.mark.one_backend
def test_pixels_of_calibrated_images_show_nothing():
    shown = far = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        # Patches share probability and label.
        q, u = rng.random((2, 24, 3, 3)).repeat(6, 2).repeat(6, 3)
        p = np.stack([1 - q, q], axis=-1)
        report = kc.report(p, y=(u < q).astype(int), num_resamples=100)
        first, *others = report.verdicts["model"]
        assert "a calibrated model with independent rows has" in first
        shown += not first.startswith("No over- or underconfidence")
        far += "Farthest off" in " ".join(others)
        error = report.models[0].metrics[ECE]
        assert error["value"] > error["floor_high"]
    assert shown <= 3 and far <= 2
    # What is far off is shown by whole images, too.
    report = kc.report(
        p**4 / (p**4).sum(axis=-1, keepdims=True),
        y=(u < q).astype(int),
        groups=np.arange(24) % 2,
        num_resamples=100,
    )
    first, *_, last = report.verdicts["model"]
    assert first.startswith("Overconfident by ")
    assert last.startswith("Which groups are worse")


def test_a_class_of_few_does_not_hide_one_of_many():
    p, wrong = np.full((6400, 2), 0.2), np.full(6400, False)
    p[:400, 0] = p[400:, 1] = 0.8
    # 2.1 standard errors of 400, and 2.4 of 6,000: of two classes one is 2.2
    # off by chance in 5 % of cases.
    wrong[:97] = wrong[400 : 400 + 1275] = True
    y = np.where(wrong, 1 - p.argmax(axis=1), p.argmax(axis=1))
    report = kc.report(p, y=y, num_resamples=2, verbose=0)
    assert report.models[0].classes[0]["num_predicted"] == 400
    text = " ".join(report.verdicts["model"])
    assert "when it predicts class 1 (6,000 times)" in text


def test_a_generator_is_for_one_model():
    network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    x, y = np.zeros((40, 4), "float32"), np.zeros(40, int)
    with pytest.raises(ValueError, match="can be read once"):
        kc.report({"a": network, "b": network}, iter([(x, y)]), verbose=0)
    kc.report(network, iter([(x, y)]), num_resamples=2, verbose=0)


def test_a_model_of_two_outputs_is_named_as_such():
    inputs = keras.Input((4,))
    heads = [keras.layers.Dense(3)(inputs) for _ in range(2)]
    with pytest.raises(ValueError, match="needs one output"):
        kc.report(keras.Model(inputs, heads), np.zeros((8, 4)), np.zeros(8))


def test_names_are_no_tags_in_markdown():
    labels, p = sample(300, num_classes=3)
    names = ["<unk>", "<b>", "c"]
    text = kc.report(
        {"<lr=0.1>": p, "other": p**2 / (p**2).sum(axis=1, keepdims=True)},
        y=labels,
        class_names=names,
        groups=np.where(labels == 0, "<g>", "h"),
        num_resamples=20,
    ).to_markdown()
    for name in (*names[:2], "<lr=0.1>", "<g>"):
        assert f"\\{name}" in text
    assert "confidence < accuracy" in text  # no tag begins with a space
    assert not re.search(r"(?<!\\)<[^ ]", text)


def test_of_several_predictions_the_wrong_ones_are_named():
    labels, p = sample(60)
    with pytest.raises(ValueError, match=r"^second: .*probability vector"):
        kc.report({"first": p, "second": p * 2}, y=labels, num_resamples=20)
    with pytest.raises(ValueError, match=r"^With `from_logits=False`"):
        kc.report(p * 2, y=labels, num_resamples=20, from_logits=False)


def test_labels_that_logits_rule_out_do_not_stop_a_report():
    labels, p = sample(power=1.0)
    with np.errstate(divide="ignore"):
        z = np.where(p < 0.1, -np.inf, np.log(p))
    impossible = np.isneginf(z[np.arange(len(labels)), labels]).sum()
    assert impossible > 0
    report = kc.report(z, y=labels, from_logits=True, num_resamples=20)
    text = " ".join(report.verdicts["model"])
    assert f"The NLL is infinite: {impossible} of {len(labels)} rows" in text
    assert np.isfinite(report.models[0].temperature["value"])


@pytest.mark.slow
@pytest.mark.parametrize("scale, words", [(1.06, "hardly any"), (1.3, "see")])
def test_a_temperature_that_takes_hardly_anything_is_no_advice(scale, words):
    rng = np.random.default_rng(0)
    z = 2 * rng.normal(size=(20000, 3))
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    report = kc.report(scale * z, y=y, from_logits=True, verbose=0)
    (sentences,) = report.verdicts.values()
    (found,) = (each for each in sentences if each.startswith("A temperature"))
    assert words in found.rpartition("samples)")[2]
