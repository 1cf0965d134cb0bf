"""Warnings point at the line that a user wrote."""

import os
import pathlib
import subprocess
import sys
import warnings

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib._warning import warn


class Network(keras.Model):
    """A subclassed model whose last layer cannot be read."""

    def call(self, x):
        return keras.ops.softmax(x)


def calibrate():
    return kc.calibrate(
        Network(), X, Y, from_logits=False, guard=False, verbose=0
    )


X = np.random.default_rng(0).normal(size=(60, 3)).astype("float32")
Y = np.random.default_rng(1).integers(3, size=60)


@pytest.mark.parametrize(
    "run",
    [
        calibrate,
        # From `fit`, there are frames of Keras between.
        lambda: fitted(kc.callbacks.CalibrationMonitor(from_logits=True)),
        lambda: kc.layers.TemperatureScaling().adapt(9 * np.eye(3), [0, 1, 2]),
    ],
)
def test_the_line_is_outside_of_the_package(run):
    with pytest.warns(UserWarning) as found:
        run()
    assert {each.filename for each in ours(found)} == {__file__}


def ours(found):
    """Without those of Keras about NumPy."""
    return [each for each in found if each.category is UserWarning]


def fitted(callback):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(True))
    model.fit(X, Y, epochs=1, verbose=0, callbacks=[callback])


def test_a_second_model_is_warned_of_too():
    """Python shows the warnings of one line once."""
    settings = {"from_logits": False, "guard": False, "verbose": 0}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        kc.calibrate(Network(), X, Y, **settings)
        kc.calibrate(Network(), X, Y, **settings)
    texts = [str(each.message) for each in ours(found)]
    assert sum("No final softmax" in text for text in texts) == 2


def test_names_of_files_need_not_be_normalized(tmp_path):
    """An entry of `sys.path` such as `./folder` is in the names of frames."""
    (tmp_path / "folder").mkdir()
    root = pathlib.Path(kc.__file__).parent
    (tmp_path / "folder" / "keras_calib").symlink_to(root)
    script = (
        "import sys; sys.path.insert(0, './folder')\n"
        "import warnings, numpy as np, keras_calib as kc\n"
        "warnings.simplefilter('always')\n"
        "layer = kc.layers.TemperatureScaling()\n"
        "layer.adapt(9 * np.eye(3), [0, 1, 2])\n"
    )
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stderr
    assert "script.py:5: UserWarning: The temperature" in done.stderr


def test_categories_are_kept():
    with pytest.warns(DeprecationWarning, match="old") as found:
        warn("old", DeprecationWarning)
    assert [each.filename for each in found] == [__file__]
