"""The script that compares vector scaling with SVS in halves of files."""

import numpy as np
import pytest

from tests.examples.test_no_harm import FOLDER


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import halves

    return halves


def made(scale, n=400):
    rng = np.random.default_rng(0)
    logits = 4 * rng.normal(size=(n, 3))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return scale * logits, labels


def test_the_input_with_which_svs_begins(script):
    probabilities = np.array([[0.9, 0.1], [0.5, 0.5]])
    # With T = 1/2, squares; 3 samples and one more, spread evenly.
    squares = probabilities**2 / (probabilities**2).sum(axis=1, keepdims=True)
    found = script.smoothed(np.log(probabilities), 0.5, 3)
    np.testing.assert_allclose(np.exp(found), (3 * squares + 0.5) / 4)


@pytest.mark.one_backend
def test_table(script, monkeypatch, capsys):
    pytest.importorskip("probmetrics")
    forms = [("sharp", *made(2.0)), ("soft", *made(0.5))]
    monkeypatch.setattr(script, "files", lambda data: forms)
    monkeypatch.setattr(script, "SETS", ("made",))
    monkeypatch.setattr(script, "ROWS", 200)
    monkeypatch.setattr(script, "DRAWS", 2)
    script.main([])
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("| made")
    ]
    assert [row[1] for row in rows[:2]] == ["sharp", "soft"]
    for column in (2, 3):
        each = [float(row[column]) for row in rows[:2]]
        assert max(map(abs, each)) < 0.1
        mean, _, error = rows[2][column].partition(" +- ")
        assert float(mean) == pytest.approx(np.mean(each), abs=1e-4)
        half = abs(each[0] - each[1]) / 2
        assert float(error) == pytest.approx(half, abs=1e-4)
