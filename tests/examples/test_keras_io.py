"""Official keras.io examples with our parts put in, where they are at hand."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

DRIVER = pathlib.Path(__file__).with_name("keras_io.py")
# Classifiers whose data `keras_io.py` can make, on any backend or TensorFlow.
SCRIPTS = (
    "examples/vision/mnist_convnet.py",
    "examples/vision/mlp_image_classification.py",
    "examples/vision/image_classification_with_vision_transformer.py",
    "examples/vision/convmixer.py",
    "examples/vision/eanet.py",
    "examples/vision/cct.py",
    "examples/nlp/bidirectional_lstm_imdb.py",
    "examples/nlp/text_classification_with_transformer.py",
    "examples/timeseries/timeseries_classification_from_scratch.py",
    "examples/timeseries/timeseries_classification_transformer.py",
)
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


def run(script, folder):
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(script)],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "MPLBACKEND": "Agg"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["script"] == script.name and found["trained"] > 0
    assert "ece" in found["logged"]
    assert 0 < found["nll_after"] < 1.05 * found["nll_before"]
    return found


@pytest.mark.slow
def test_parts_are_put_in(tmp_path):
    (tmp_path / "ours.py").write_text(OURS)
    found = run(tmp_path / "ours.py", tmp_path)
    assert {"val_ece", "val_accuracy", "loss"} < set(found["logged"])


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_of_keras_io(name, tmp_path):
    folder = os.environ.get("KERAS_IO_EXAMPLES")
    if not folder:
        pytest.skip("set KERAS_IO_EXAMPLES to a checkout of keras-io")
    script = pathlib.Path(folder).resolve() / name
    if not script.exists():
        pytest.skip(f"the checkout has no {name}")
    run(script, tmp_path)
