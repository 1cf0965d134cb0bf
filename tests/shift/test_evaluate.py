"""`kc.shift.evaluate`: its numbers, its batches, tables and complaints."""

import functools
import json

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.shift import _measure
from keras_calib.shift._evaluate import Predicted
from keras_calib.shift._measure import resampled_ece
from tests.helpers import to_numpy
from tests.shift.test_corruptions import pictures

CHOSEN = {"corruptions": ["contrast", "impulse_noise"], "severities": [1, 5]}
NUMBER = 23


def network(activation=None, seed=0):
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.AveragePooling2D(8),
            keras.layers.Flatten(),
            keras.layers.Dense(4, activation=activation),
        ],
        name="net",
    )
    rng = np.random.default_rng(seed)
    model.layers[-1].set_weights(
        [rng.normal(size=(48, 4)), 0.1 * rng.normal(size=4)]
    )
    return model


@functools.cache
def data():
    x = pictures(NUMBER)
    return x, np.random.default_rng(1).integers(0, 4, NUMBER)


@functools.cache
def result():
    return kc.shift.evaluate(network(), *data(), num_bins=10, **CHOSEN)


def test_rows_are_those_of_calibration_errors():
    x, y = data()
    model = network()
    assert len(result().rows) == 5
    for row in result().rows:
        images = x
        if row["corruption"] != "clean":
            images = kc.shift.corrupt(x, row["corruption"], row["severity"])
        logits = model.predict(images, verbose=0)
        expected = kc.metrics.calibration_errors(
            y, logits, from_logits=True, num_bins=10, floor=True
        )
        name = "expected_calibration_error"
        assert row["accuracy"] == pytest.approx(expected["accuracy"])
        assert row["ece"] == pytest.approx(expected[name], abs=1e-5)
        assert row["ece_floor"] == pytest.approx(
            expected[f"{name}_floor"], abs=1e-5
        )
        nll = expected["negative_log_likelihood"]
        assert row["nll"] == pytest.approx(nll, rel=1e-5)
        p = expected["accuracy"]
        error = np.sqrt(p * (1 - p) / (NUMBER - 1))
        assert row["accuracy_se"] == pytest.approx(error)


def test_means_are_over_cells_and_their_errors_over_images():
    x, y = data()
    rows = [row for row in result().rows if row["severity"]]
    model = network()
    right = {}
    for row in rows:
        cell = row["corruption"], row["severity"]
        scores = model.predict(kc.shift.corrupt(x, *cell), verbose=0)
        right[cell] = scores.argmax(axis=1) == y
    assert len(result().means) == 1 + 2 + 2
    for mean in result().means:
        chosen = [
            row
            for row in rows
            if mean["corruption"] in (None, row["corruption"])
            and mean["severity"] in (None, row["severity"])
        ]
        assert mean["num_cells"] == len(chosen)
        for key in ("accuracy", "ece", "ece_floor", "nll"):
            values = [row[key] for row in chosen]
            assert mean[key] == pytest.approx(np.mean(values))
            if key != "ece_floor":
                spread = np.std(values, ddof=1)
                assert mean[f"{key}_sd"] == pytest.approx(spread)
        by_image = np.mean(
            [right[r["corruption"], r["severity"]] for r in chosen], axis=0
        )
        error = by_image.std(ddof=1) / np.sqrt(NUMBER)
        assert mean["accuracy_se"] == pytest.approx(error)


def test_the_standard_error_of_the_ece_is_that_of_a_mean():
    """An ECE far above its floor is the mean gap."""
    rng = np.random.default_rng(0)
    n = 400
    confidence = rng.uniform(0.3, 1, (1, n)).astype("float32")
    correct = rng.random((1, n)) < confidence - 0.25
    predicted = Predicted(confidence, correct, correct, [4])
    found = resampled_ece(predicted, 10, 300, 0).std(ddof=1)
    expected = (confidence - correct).std(ddof=1) / np.sqrt(n)
    # 300 resamples: a standard error of 4 %.
    assert found == pytest.approx(expected, rel=0.15)


def test_resamples_do_not_depend_on_blocks(monkeypatch):
    errors = [row["ece_se"] for row in result().rows]
    assert min(errors) > 0
    monkeypatch.setattr(_measure, "BLOCK", 7 * NUMBER)
    again = kc.shift.evaluate(network(), *data(), num_bins=10, **CHOSEN)
    assert [row["ece_se"] for row in again.rows] == pytest.approx(errors)


def test_batches_do_not_change_the_result():
    for batch_size in (4, 23):
        again = kc.shift.evaluate(
            network(), *data(), num_bins=10, batch_size=batch_size, **CHOSEN
        )
        for row, other in zip(result().rows, again.rows, strict=True):
            assert row["accuracy"] == other["accuracy"]
            assert row["nll"] == pytest.approx(other["nll"], rel=1e-5)


def test_every_cell_has_the_dtype_of_the_images():
    dtypes = set()

    def preprocess(images):
        dtypes.add(images.dtype.name)
        return images

    x, y = data()
    kc.shift.evaluate(
        network(),
        x[:4].astype("float64"),
        y[:4],
        preprocess=preprocess,
        verbose=0,
        **CHOSEN,
    )
    assert dtypes == {"float64"}


def test_lists_are_images_too():
    x, y = data()
    small = {"corruptions": ["contrast"], "severities": [1], "verbose": 0}
    small["value_range"] = (0.0, 255.0)
    images = x[:3].astype("float64")
    expected = kc.shift.evaluate(network(), images, y[:3], **small)
    found = kc.shift.evaluate(network(), images.tolist(), [*y[:3]], **small)
    assert found.rows == expected.rows


def test_models_side_by_side_and_their_preprocessing():
    x, y = data()
    models = {"logits": network(), "probabilities": network("softmax")}
    both = kc.shift.evaluate(
        models,
        x.astype("float32") / 255,
        y,
        value_range=(0, 1),
        preprocess={
            "logits": lambda images: 255 * images,
            "probabilities": lambda images: images * 255,
        },
        num_bins=10,
        **CHOSEN,
    )
    names = [row["model"] for row in both.rows]
    assert names == 5 * ["logits"] + 5 * ["probabilities"]
    for one, two in zip(both.rows[:5], both.rows[5:], strict=True):
        assert one["nll"] == pytest.approx(two["nll"], rel=1e-4)
    # Floats are not cut to whole levels, which is all that differs.
    for one, two in zip(both.rows[:5], result().rows, strict=True):
        assert one["nll"] == pytest.approx(two["nll"], rel=0.02)


def test_one_hot_labels_and_one_sigmoid_unit():
    x, y = data()
    hot = kc.shift.evaluate(network(), x, np.eye(4)[y], num_bins=10, **CHOSEN)
    assert hot.rows == result().rows
    inputs = keras.Input((32, 32, 3))
    z = keras.layers.Rescaling(1 / 255)(inputs)
    z = keras.layers.GlobalAveragePooling2D()(z)
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(z))
    found = kc.shift.evaluate(model, x, y % 2, **CHOSEN)
    p = to_numpy(model.predict(x, verbose=0))[:, 0]
    right = (p > 0.5) == (y % 2 == 1)
    assert found.rows[0]["accuracy"] == pytest.approx(right.mean())


def test_tables():
    text = result().to_markdown()
    lines = text.splitlines()
    assert "| corruption | 1 | 5 | mean |" in lines
    clean, mean = result().rows[0], result().means[0]
    row = f"| net | clean | {clean['accuracy']:.4f} ± "
    assert any(line.startswith(row) for line in lines)
    last = f"{mean['accuracy']:.3f} / {mean['ece']:.3f} / {mean['nll']:.2f} |"
    assert lines[-1].startswith("| mean |") and lines[-1].endswith(last)
    found = json.loads(json.dumps(result().to_dict(), allow_nan=False))
    assert found["rows"] == result().rows
    assert found["means"] == result().means
    assert (found["num_images"], found["num_bins"]) == (NUMBER, 10)


def test_the_figure_is_that_of_shift_curves():
    (axes,) = result().plot(metric="nll").axes
    means = {row["severity"]: row["nll"] for row in result().means[1:3]}
    found = axes.get_lines()[0].get_ydata()
    expected = [result().rows[0]["nll"], means[1], means[5]]
    np.testing.assert_allclose(found, expected)


def test_one_image_has_no_standard_error():
    x, y = data()
    found = kc.shift.evaluate(network(), x[:1], y[:1], **CHOSEN)
    assert np.isnan(found.rows[0]["accuracy_se"])
    assert found.to_dict()["rows"][0]["accuracy_se"] is None


def test_an_infinite_loss_is_told_from_a_missing_one_and_drawn():
    inputs = keras.Input((32, 32, 3))
    sure = keras.ops.one_hot(keras.ops.argmax(network()(inputs), axis=-1), 4)
    model = keras.Model(inputs, sure)
    found = kc.shift.evaluate(model, *data(), from_logits=False, **CHOSEN)
    assert found.rows[0]["nll"] == np.inf
    written = found.to_dict()
    assert written["rows"][0]["nll"] == "Infinity"
    assert written["rows"][0]["nll_se"] is None
    kc.plots.shift_curves(written, metric="nll")


def test_a_model_that_guesses_may_lack_its_preprocessing():
    x = pictures(100)
    model = network()
    y = (model.predict(x, verbose=0).argmax(axis=1) + 1) % 4
    with pytest.warns(UserWarning, match="preprocess="):
        kc.shift.evaluate(model, x, y, corruptions=["contrast"], severities=[1])


def test_a_progress_bar(capsys):
    kc.shift.evaluate(network(), *data(), verbose=1, batch_size=8, **CHOSEN)
    assert "15/15" in capsys.readouterr().out
    kc.shift.evaluate(network(), *data(), verbose=0, batch_size=8, **CHOSEN)
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"corruptions": "fog"}, "`corruptions` must be a sequence"),
        ({"corruptions": []}, "at least one"),
        ({"corruptions": ["mist"]}, "`kind` must be one of"),
        ({"severities": [0]}, "severity=0"),
        ({"severities": 3}, "`severities` must be a sequence"),
        ({"num_bins": 0}, "`num_bins` must be at least 1"),
        ({"num_resamples": 1}, "`num_resamples` must be at least 2"),
        ({"model": {}}, "There is no model"),
        ({"model": {"a": len}}, "must be a Keras model"),
        ({"y": np.zeros(3)}, "the same length.*x=23, y=3"),
        ({"preprocess": {"other": len}}, "no function for the model 'net'"),
        ({"x": np.zeros((23, 32, 32))}, r"shape=\(23, 32, 32\)"),
        ({"x": pictures(23) - 3.0}, "outside of `value_range`"),
        ({"preprocess": lambda images: images[:5]}, "one row of scores"),
    ],
)
def test_bad_input_is_refused(arguments, words):
    x, y = data()
    given = {"model": network(), "x": x, "y": y, **CHOSEN, **arguments}
    with pytest.raises(ValueError, match=words):
        kc.shift.evaluate(
            given.pop("model"), given.pop("x"), given.pop("y"), **given
        )


def test_a_subclassed_model_must_say_what_it_gives():
    class Network(keras.Model):
        def __init__(self):
            super().__init__(name="own")
            self.inner = network()

        def call(self, inputs):
            return self.inner(inputs)

    with pytest.raises(ValueError, match="'own' does not show"):
        kc.shift.evaluate(Network(), *data(), **CHOSEN)
    found = kc.shift.evaluate(
        Network(), *data(), from_logits=True, num_bins=10, **CHOSEN
    )
    assert found.means[0]["nll"] == pytest.approx(result().means[0]["nll"])


def test_preprocessing_in_place_reaches_one_model_alone():
    x, y = data()
    found = kc.shift.evaluate(
        {"first": network(), "second": network()},
        x.astype("float32"),
        y,
        # In place for floats, as its kin in `keras.applications`.
        preprocess=keras.applications.mobilenet.preprocess_input,
        verbose=0,
        **CHOSEN,
    ).rows
    for one, two in zip(found[:5], found[5:], strict=True):
        assert {**one, "model": ""} == {**two, "model": ""}


def test_one_image_tells_no_error():
    network = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            keras.layers.Flatten(),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    found = kc.shift.evaluate(
        network,
        np.full((1, 32, 32, 3), 7, "uint8"),
        [1],
        corruptions=["fog"],
        severities=[1],
        verbose=0,
    )
    for row in found.rows:
        errors = [value for key, value in row.items() if key.endswith("_se")]
        assert errors and all(map(np.isnan, errors))
