"""The block of commands on the page runs as it stands, line by line."""

import pathlib
import re
import shlex

import keras
import numpy as np
import pytest

from keras_calib.command_line import main
from tests.command_line.helpers import sample

PAGE = pathlib.Path(__file__).parents[2] / "keras_calib/command_line/README.md"
SIDE, NUM_IMAGES = 16, 40
pytestmark = pytest.mark.one_backend


def network():
    return keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 3), dtype="uint8"),
            keras.layers.Rescaling(1 / 255),
            keras.layers.AveragePooling2D(8),
            keras.layers.Flatten(),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )


def files():
    """What the block takes for granted."""
    labels, p = sample()
    for name in ("predictions", "test_predictions", "a"):
        np.savez(f"{name}.npz", probabilities=p, labels=labels)
    heads = ["labels", *(f"probabilities_{k}" for k in range(3))]
    np.savetxt(
        "b.csv",
        np.column_stack([labels, p]),
        delimiter=",",
        header=",".join(heads),
        comments="",
        fmt=["%d", "%.8f", "%.8f", "%.8f"],
    )
    for name in ("before", "after", "model"):
        network().save(f"{name}.keras")
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (NUM_IMAGES, SIDE, SIDE, 3)).astype("uint8")
    y = rng.integers(0, 3, NUM_IMAGES)
    np.savez("data.npz", x=x, labels=y)
    np.savez("images.npz", x=x[:8], labels=y[:8])


@pytest.mark.filterwarnings("ignore")
def test_every_line_of_the_block_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("jinja2")
    monkeypatch.chdir(tmp_path)
    files()
    (block,) = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), flags=re.S)
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    verbs = {"evaluate", "report", "calibrate", "shift"}
    assert {words[1] for words in lines} == verbs
    for command, *arguments in lines:
        assert command == "keras-calib"
        assert main(arguments=arguments) == 0, capsys.readouterr()
        if "-o" in arguments:
            output = tmp_path / arguments[arguments.index("-o") + 1]
            assert output.stat().st_size > 500
            if output.suffix != ".keras":
                output.unlink()
