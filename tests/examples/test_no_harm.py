"""The benchmark that looks for harm finds it, and only where it is."""

import json
import pathlib
import re
import sys

import pytest

from tests.helpers import example
from tests.layers.generated import generated

# On which no constant was set.
UNSEEN = "test", "further", "confirmation"
ALL = "development", "test", "tables", "further", "confirmation"
FOLDER = pathlib.Path(__file__).parents[2] / "examples" / "benchmarks"


@pytest.fixture(scope="module")
def script():
    return example("benchmarks/no_harm.py")


def call(script, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["no_harm.py", *map(str, arguments)])
    script.main()


def test_harm_is_named(script, monkeypatch, tmp_path, capsys):
    def made(folder):
        yield "made", *generated(400)

    monkeypatch.setitem(script.SETS, "development", (made,))
    monkeypatch.setattr(script, "SIZES", (50, 200))
    monkeypatch.setattr(script, "DRAWS", 2)
    monkeypatch.setenv("KERAS_CALIB_DATA", str(tmp_path))
    maps = ("TemperatureScaling", "VectorScaling", "HistogramBinning")
    for options in ((), ("--plain",)):
        results = tmp_path / f"rows{len(options)}.jsonl"
        command = ["run", results, "--maps", *maps, *options]
        call(script, monkeypatch, *command)
        lines = results.read_text().splitlines()
        # Two draws of 50 samples, and one of 200, half of all.
        assert len(lines) == 3 * (1 + len(maps))
        call(script, monkeypatch, *command)  # nothing is left to do
        assert results.read_text().splitlines() == lines
        rows = [json.loads(line) for line in lines]
        assert all(0 < row["nll"] < 10 for row in rows)
        call(script, monkeypatch, "show", results)
        shown = capsys.readouterr().out
        outside = int(re.search(r"Outside the limits: (\d+)", shown)[1])
        assert outside == 0 if not options else outside > 0


@pytest.mark.one_backend
@pytest.mark.parametrize("data", ["development", "tables", *UNSEEN])
def test_pages_are_what_the_stored_rows_print(
    data, script, monkeypatch, capsys
):
    results = FOLDER.parent / "results" / f"no_harm_{data}.jsonl"
    call(script, monkeypatch, "show", results, "--draws", "20")
    shown = capsys.readouterr().out.strip()
    page = results.with_suffix(".md").read_text()
    assert shown in page
    # What is outside is said at the beginning of the page.
    outside = int(re.search(r"Outside the limits: (\d+)", shown)[1])
    said = {
        "further": "Against the untouched\nmodel 9 are, all on one file",
        "confirmation": "**Four cells are outside the limits**",
    }
    assert outside == {"further": 9, "confirmation": 4}.get(data, 0)
    assert said.get(data, "") in page
    # On the further data temperature scaling itself is, on one file.
    if data == "further":
        for line in re.findall(r"^- NLL (.*)$", shown, re.MULTILINE):
            assert line.startswith("minus the untouched model's: ")
            assert "newsgroups-2, n = " in line


@pytest.mark.one_backend
def test_one_page_is_what_the_rows_of_all_files_print(
    script, monkeypatch, capsys
):
    folder = FOLDER.parent / "results"
    page = (folder / "no_harm_all.md").read_text()
    for data, *also in (UNSEEN, ALL):
        paths = [folder / f"no_harm_{each}.jsonl" for each in (data, *also)]
        call(
            script,
            monkeypatch,
            *("show", paths[0], "--draws", "20", "--also", *paths[1:]),
        )
        shown = capsys.readouterr().out.strip()
        assert shown in page
        texts = re.findall(r": \+(\S+) on average, \+(\S+) at worst", shown)
        one, mixture = (", ".join(figures) for figures in texts)
    assert f"| all | {one} | {mixture} |" in page


@pytest.mark.one_backend
def test_ridge_fits_are_ahead_over_files_that_set_no_constant(
    script, monkeypatch, capsys
):
    folder = FOLDER.parent / "results"
    data, *also = [folder / f"no_harm_{each}.jsonl" for each in UNSEEN]
    call(script, monkeypatch, "show", data, "--draws", "20", "--also", *also)
    shown = capsys.readouterr().out
    means = re.findall(r"^\| \d+ \| \d+ \| (.\d\.\d+) \|", shown, re.MULTILINE)
    assert len(means) == 2 * len(script.SIZES)
    assert all(float(mean) < 0 for mean in means)


@pytest.mark.one_backend
def test_what_was_tried_and_did_harm_is_kept(script, monkeypatch, capsys):
    folder = FOLDER.parent / "results"
    call(script, monkeypatch, "show", folder / "no_harm_tried.jsonl")
    shown = capsys.readouterr().out
    assert "Outside the limits: 6" in shown
    found = re.findall(
        r"^- (NLL|Brier).*: auto.* \+(\S+)$", shown, re.MULTILINE
    )
    page = (folder / "choice_rules.md").read_text()
    harm = [value for name, value in found if name == "NLL"]
    harm.append(max(value for name, value in found if name == "Brier"))
    assert harm == ["0.0046", "0.0026", "0.0018"]
    assert all(value in page for value in harm)
