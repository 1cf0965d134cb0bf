"""The sceptic's page: made by its script, and what it says holds."""

import pathlib
import re

import numpy as np
import pytest

from tests.helpers import example

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
PAGE = EXAMPLES / "results" / "can_i_believe_this_ece.md"


@pytest.fixture(scope="module")
def script():
    return example("can_i_believe_this_ece.py")


def rows(heading):
    """Cells of the first table below a heading of the page, as numbers."""
    part = PAGE.read_text().split(f"## {heading}")[1]
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    found = []
    for line in lines[2:]:
        cells = line.strip("| ").split(" | ")
        if len(cells) != len(lines[0].strip("| ").split(" | ")):
            break
        numbers = [re.findall(r"-?\d[\d,.]*", cell) for cell in cells]
        found.append([[float(n.replace(",", "")) for n in c] for c in numbers])
    return found


def test_the_words_of_the_page_are_those_of_the_script(script):
    parts = re.split(r"{\w+}", script.TEXT)
    pattern = ".+?".join(map(re.escape, parts))
    assert re.fullmatch(pattern, PAGE.read_text(), flags=re.DOTALL)
    figures = re.findall(r"\]\((.+\.png)\)", PAGE.read_text())
    assert len(figures) == 3
    for name in figures:
        assert (PAGE.parent / name).stat().st_size > 10_000


def test_the_numbers_bear_out_the_words(script):
    sizes = rows("How many test samples?")
    assert [int(row[0][0]) for row in sizes] == list(script.SIZES)
    # More samples, a lower ECE of the calibrated network, never 0.
    means = [row[1][0] for row in sizes]
    assert means == sorted(means, reverse=True) and means[-1] > 0
    bins = rows("How many bins?")
    means = [row[1][0] for row in bins]
    assert means == sorted(means)
    # A calibrated network is above the range in 2.5 % of the test sets.
    floor = rows("What would a calibrated network show?")
    for row in floor:
        share, error = row[1]
        assert abs(share - 2.5) <= 3 * max(error, 0.8)
    power = [row[2][0] for row in floor]
    assert power[-1] == 100 and power[0] < 50
    true = re.search(r"true error is ([\d.]+) points", PAGE.read_text())[1]
    excess = [row[3] for row in floor]
    assert all(mean < float(true) for mean, _ in excess)
    scores = rows("Which score comes first?")[:3]
    nll, ece = ([row[k][0] for row in scores] for k in (2, 4))
    # "class frequencies" is the worst of all, and has the lowest ECE.
    assert int(np.argmax(nll)) == int(np.argmin(ece)) == 2


@pytest.mark.slow
@pytest.mark.one_backend
def test_the_script_writes_the_page(script, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["x", "--draws=3", f"--folder={tmp_path}"])
    monkeypatch.setattr(script, "POPULATION", 20_000)
    script.main()
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "can_i_believe_this_ece.md",
        "can_i_believe_this_ece_bands.png",
        "can_i_believe_this_ece_bins.png",
        "can_i_believe_this_ece_samples.png",
    ]
    text = (tmp_path / PAGE.name).read_text()
    assert text in capsys.readouterr().out
    assert not re.search(r"[{}]|nan", text)


def test_the_true_error_needs_no_labels(script, monkeypatch):
    monkeypatch.setattr(script, "POPULATION", 20_000)
    world = script.World()
    assert world.true_error("calibrated") == pytest.approx(0, abs=1e-12)
    p = world.networks["overconfident"]
    gap = p.max(axis=1).mean() - world.truth.max(axis=1).mean()
    # Overconfident in every bin.
    assert world.true_error("overconfident") == pytest.approx(gap)
