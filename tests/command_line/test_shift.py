"""`keras-calib shift`: what `kc.shift.evaluate` says, from files."""

import json
import pathlib

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.command_line.helpers import run


def image_models():
    """Two models of the same images, and the file of the images."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (12, 16, 16, 3)).astype("uint8")
    y = np.arange(12) % 3
    np.savez("images.npz", x=x, labels=y)
    models = {}
    for name in ("first", "second"):
        models[name] = keras.Sequential(
            [
                keras.Input((16, 16, 3)),
                keras.layers.Rescaling(1 / 255),
                keras.layers.Flatten(),
                keras.layers.Dense(3, "softmax"),
            ]
        )
        models[name].save(f"{name}.keras")
    return models, x, y


SHIFT = ("shift", "first.keras", "second.keras", "images.npz")
CELLS = ("--corruptions", "fog", "contrast", "--severities", "5", "1")


@pytest.mark.parametrize("suffix", [None, ".md", ".json", ".svg"])
def test_shift_is_that_of_the_python_function(folder, capsys, suffix):
    if suffix == ".svg":
        pytest.importorskip("matplotlib")
    models, x, y = image_models()
    result = kc.shift.evaluate(
        models,
        x,
        y,
        corruptions=["fog", "contrast"],
        severities=[1, 5],
        verbose=0,
    )
    output = [] if suffix is None else ["-o", f"shift{suffix}"]
    status, out, _ = run(capsys, *SHIFT, *output, *CELLS)
    expected = result.to_markdown()
    if suffix is not None:
        expected += f"\nWritten: shift{suffix}\n"
        text = pathlib.Path(f"shift{suffix}").read_text()
    assert (status, out) == (0, expected)
    if suffix == ".md":
        assert text == result.to_markdown()
    elif suffix == ".json":
        assert json.loads(text) == result.to_dict()
    elif suffix == ".svg":
        assert text.startswith("<?xml")
        assert "first, floor" in text


def test_shift_prints_json_and_takes_floats(folder, capsys):
    _, x, y = image_models()
    np.savez("images.npz", x=(x / 255).astype("float32"), labels=y)
    status, out, _ = run(
        capsys, *SHIFT, *CELLS, "--json", "--value-range", "0", "1"
    )
    assert status == 0
    assert len(json.loads(out)["rows"]) == 2 * 5


def without_images():
    image_models()
    return ["shift", "first.keras", "a.npz"]


def another_range():
    _, x, y = image_models()
    np.savez("images.npz", x=x / 255 - 1, labels=y)
    return ["shift", "first.keras", "images.npz", "--value-range", "0", "1"]


def weighted():
    _, x, y = image_models()
    np.savez("images.npz", x=x, labels=y, sample_weight=np.ones(len(y)))
    return ["shift", "first.keras", "images.npz"]


BAD = {
    "no model": (
        lambda: ["shift", "a.npz"],
        "Models and a file with their images",
    ),
    "no images": (without_images, "it has no images `x`"),
    "weights": (weighted, "Leave out its sample_weight"),
    "another range": (another_range, "value_range"),
    "output": (
        lambda: ["shift", "a.npz", "-o", "shift.gif"],
        "the suffix must be",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_of_shift_is_one_line(folder, capsys, case):
    make, message = BAD[case]
    status, out, err = run(capsys, *make())
    assert (status, out) == (2, "")
    [line] = err.splitlines()
    assert line.startswith("keras-calib shift: error: ")
    assert message in line
