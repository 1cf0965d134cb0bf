"""The progress bar appears when work takes long, and ends on one line."""

import pytest

from keras_calib import _progress
from keras_calib._progress import ProgressBar


def run(total, verbose, steps=3):
    bar = ProgressBar(total, verbose, unit_name="draw")
    for _ in range(steps):
        bar.step()
    bar.finish()


@pytest.mark.parametrize("verbose", [0, "auto"])
def test_short_work_shows_nothing(verbose, capsys):
    run(3, verbose)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("total", [3, None])
def test_a_bar_from_the_first_step(total, capsys):
    run(total, 1)
    found = capsys.readouterr().out
    assert f"3/{total or 'Unknown'}" in found
    # The end is printed once.
    assert found.count("\n") == 1


def test_long_work_shows_a_bar(capsys, monkeypatch):
    monkeypatch.setattr(_progress, "PATIENCE", -1.0)
    run(3, "auto")
    assert "3/3" in capsys.readouterr().out
    run(3, 0)
    assert capsys.readouterr().out == ""
    # A bar that is full when it appears says nothing.
    run(1, "auto", steps=1)
    assert capsys.readouterr().out == ""
