"""Scripts in the manner of keras.io run with our parts put in."""

import argparse
import pathlib
import re

import keras
import numpy as np
import pytest

from tests.helpers import example

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
PAGE = EXAMPLES / "results" / "stories.md"
BACKEND = keras.backend.backend()
# The others run once a week: each is a process that starts Keras.
IN_EACH_RUN = ("custom_train_step_tensorflow", "tuned")


RUN = example("stories/run.py")


@pytest.mark.slow
@pytest.mark.parametrize("story", RUN.STORIES)
def test_a_story_runs(story, request):
    if BACKEND not in RUN.STORIES[story]:
        pytest.skip(f"{story} is not one of {BACKEND}")
    if RUN.missing(story):
        pytest.skip(f"{story} needs {RUN.missing(story)}")
    if request.config.getoption("share") and story not in IN_EACH_RUN:
        pytest.skip("left to the weekly run")
    found = RUN.run(story, BACKEND)
    assert found["story"] == story and found["backend"] == BACKEND
    assert 0 < found["nll_after"] < found["nll_before"] + 0.02
    assert 0 < found["ece_after"] < 0.15
    if story == "imbalanced_table":
        # Class weights cost most of the NLL.
        assert found["nll_after"] < 0.6 * found["nll_before"]
    if story == "text_classification":
        assert 0.85 < found["coverage"] < 0.95
    if story == "reject_and_predict_sets":
        # Two standard errors of 2,000 samples beyond what is promised.
        assert 0.88 < found["coverage"] < 0.94
        assert 0 < found["risk"] < 0.06 and found["accepted"] > 0.2
    if story == "corrupted_images":
        assert found["calibrated_ece_at_5"] < found["ece_at_5"]
    if story == "tuned":
        assert 0 <= found["accuracy_paid"] <= 0.01
    if story == "tokens":
        # It knows the training sentences by heart.
        assert found["temperature"] > 1
    if story == "published_network":
        assert 0.9 < found["accuracy"] < 0.93
    if story == "data_parallel":
        assert found["devices"] == 2


def test_the_page_has_every_story_on_every_backend():
    page = PAGE.read_text()
    assert page.startswith(RUN.HEADING)
    table, made_with = page.removeprefix(RUN.HEADING).strip().split("\n\n")
    assert re.search(r"processors; keras 3.*; 20\d\d-\d\d-\d\d\.", made_with)
    rows = table.splitlines()
    cells = [line.strip("| ").split(" | ") for line in rows]
    expected = [(s, b) for s, backends in RUN.STORIES.items() for b in backends]
    assert [tuple(row[:2]) for row in cells] == expected
    for row in cells:
        # The next of 60 words is hard to guess.
        most = np.log(60) if row[0] == "tokens" else 2
        assert all(0 < float(value) < most for value in row[3:])


def test_scripts_are_short_and_are_stories():
    names = {path.stem for path in (EXAMPLES / "stories").glob("*.py")}
    assert names == {*RUN.STORIES, "run", "common", "made"}
    assert len(RUN.STORIES) == 16
    for name in names:
        text = (EXAMPLES / "stories" / f"{name}.py").read_text()
        assert len(text.splitlines()) < 120


def test_a_picture_that_cannot_be_written_is_refused_first(tmp_path):
    pictures = example("pictures.py")
    parser = argparse.ArgumentParser()
    pictures.add_option(parser)
    found = parser.parse_args(["--figure", str(tmp_path / "a.png")])
    assert found.figure == tmp_path / "a.png"
    assert parser.parse_args([]).figure is None
    for name in ("a.svg", "a", "missing/a.png"):
        with pytest.raises(SystemExit):
            parser.parse_args(["--figure", str(tmp_path / name)])
