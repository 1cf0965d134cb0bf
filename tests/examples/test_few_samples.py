"""The script about temperatures of few samples."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from tests.helpers import example
from tests.layers.generated import nll


@pytest.fixture(scope="module")
def script():
    return example("benchmarks/few_samples.py")


def made(scale=1.0):
    rng = np.random.default_rng(0)
    logits = 8 * rng.normal(size=(3000, 5))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return scale * logits, labels


def test_the_prior_that_was(script):
    logits, labels = made()
    right = np.flatnonzero(logits.argmax(axis=1) == labels)[:20]
    data = logits[right], labels[right]

    def loss(t):
        return 20 * nll(data[0] / t, data[1]) + np.log(t) ** 2 / 2

    best = minimize_scalar(loss, bounds=(0.05, 2), method="bounded").x
    assert script.most_probable(*data) == pytest.approx(best, rel=1e-3)


@pytest.mark.one_backend
def test_tables(script, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("KERAS_CALIB_DATA", str(tmp_path))
    forms = [("made", "as it is", *made(2.0)), ("made", "calibrated", *made())]
    monkeypatch.setattr(script, "files", lambda: forms)
    monkeypatch.setattr(script, "RIGHT", (10,))
    monkeypatch.setattr(script, "SIZES", (20,))
    monkeypatch.setattr(script, "DRAWS", 6)
    script.main()
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("| ") and "samples" not in line
    ]
    assert [row[:2] for row in rows] == [
        ["as it is, 1", "10"],
        ["calibrated, 1", "10"],
        ["as it is, 1", "20"],
        ["calibrated, 1", "20"],
    ]
    means = [[float(cell.split()[0]) for cell in row[2:]] for row in rows]
    prior, now = means[1]
    assert prior > now >= 0
    # A guard leaves out what raises the loss of others.
    for own, by_evidence, guarded in means[2:]:
        assert guarded <= own + 1e-9 and guarded <= by_evidence + 1e-9
