"""Official keras.io examples with our parts put in, where they are at hand."""

import json
import os
import pathlib
import re

import pytest

from tests.helpers import example

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
PAGE = EXAMPLES / "results" / "keras_io.md"
SCRIPTS = example("benchmarks/keras_io_scripts.py").SCRIPTS
# Ours, in their manner: data that would be downloaded, names for the losses.
OURS = """
import keras
from keras import layers

(x, y), (x_test, y_test) = keras.datasets.cifar10.load_data()
x, x_test = x.astype("float32") / 255, x_test.astype("float32") / 255
model = keras.Sequential(
    [
        keras.Input(x.shape[1:]),
        layers.AveragePooling2D(8),
        layers.Flatten(),
        layers.Dense(10, activation="softmax"),
    ]
)
model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x, y, epochs=50, batch_size=64, validation_split=0.1)
model.evaluate(x_test, y_test)
"""


@pytest.fixture
def keras_io(monkeypatch):
    module = example("benchmarks/keras_io.py")
    script = module.SCRIPTS["examples/vision/mnist_convnet.py"]
    script.settings["loss"] = "MDCA"
    monkeypatch.setattr(
        module, "SCRIPTS", {**module.SCRIPTS, "ours.py": script}
    )
    return module


@pytest.mark.slow
@pytest.mark.one_backend
def test_parts_are_put_in(keras_io, tmp_path):
    (tmp_path / "ours.py").write_text(OURS)
    row = keras_io.run("ours.py", tmp_path)
    assert row["outcome"] == "works"
    assert {"val_ece", "val_accuracy", "loss"} < set(row["logged"])
    assert row["trained"] == 1 and row["loss"] == "MDCA"


@pytest.mark.slow
@pytest.mark.one_backend
def test_another_version_of_a_script_is_noticed(keras_io, tmp_path):
    keras_io.SCRIPTS["ours.py"].settings["replace"] = [("gone", "there")]
    (tmp_path / "ours.py").write_text(OURS)
    outcome = keras_io.run("ours.py", tmp_path)["outcome"]
    assert outcome.endswith("The script does not contain 'gone'.")


@pytest.mark.one_backend
def test_a_result_is_judged_by_calls_and_nll(keras_io):
    good = {"loss_calls": 1, "metric_calls": 1}
    good |= {"nll_before": 1.0, "nll_after": 0.9}
    assert keras_io.outcome(good) == "works"
    for wrong in ({"loss_calls": 0}, {"metric_calls": 0}, {"nll_after": 1.1}):
        assert keras_io.outcome(good | wrong).startswith("failed")
    nan = good | {"nll_after": float("nan")}
    assert keras_io.outcome(nan).startswith("failed")


@pytest.mark.slow
@pytest.mark.one_backend
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_of_keras_io(name):
    keras_io = example("benchmarks/keras_io.py")
    folder = os.environ.get(keras_io.VARIABLE)
    if not folder:
        pytest.skip(f"set {keras_io.VARIABLE} to a checkout of keras-io")
    if reason := keras_io.missing(name, folder):
        pytest.skip(reason)
    assert keras_io.run(name, folder)["outcome"] == "works"


@pytest.mark.one_backend
def test_the_rows_are_of_the_settings_of_the_list():
    rows = example("benchmarks/keras_io.py").stored()
    assert [row["script"] for row in rows] == [*SCRIPTS]
    for row in rows:
        script = SCRIPTS[row["script"]]
        assert row["backend"] == script.backend
        settings = json.loads(json.dumps(script.settings))
        assert {name: row[name] for name in settings} == settings
        assert row["outcome"] == "works"


@pytest.mark.one_backend
def test_the_page_is_that_of_the_rows_and_has_each_script():
    text = PAGE.read_text()
    assert text == "\n".join(example("benchmarks/keras_io.py").table()) + "\n"
    assert re.findall(r"^\| `(.+?)`", text, flags=re.M) == [*SCRIPTS]
    assert "failed" not in text
    # What the scripts are about, and each backend.
    kinds = ("train_step", "distributed", "tuner", "vision/", "nlp/")
    for kind in (*kinds, "structured_data/", "timeseries/"):
        assert any(kind in name for name in SCRIPTS), kind
    for backend in ("tensorflow", "jax", "torch"):
        assert SCRIPTS[f"guides/custom_train_step_in_{backend}.py"]
