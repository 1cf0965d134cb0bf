"""The script about several labels, on little."""

import numpy as np
import pytest

from tests.helpers import example


@pytest.fixture(scope="module")
def script():
    return example("benchmarks/multi_label.py")


@pytest.mark.slow
@pytest.mark.one_backend
def test_a_row_for_each_number_of_samples(script, monkeypatch, capsys):
    setting = (3.0, 0.0, 20, -4, 0)
    monkeypatch.setattr(script, "MADE", {"made, 3": setting})
    monkeypatch.setattr(script, "SIZES", (100, 300))
    monkeypatch.setattr(script, "DRAWS", 1)
    monkeypatch.setattr(script, "OTHERS", 1000)
    monkeypatch.setattr(script, "digits", lambda: script.made(*setting))
    script.main()
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith(("| made", "| digits"))
    ]
    assert [row[:2] for row in rows] == [
        ["made, 3", "100"],
        ["made, 3", "300"],
        ["digits", "100"],
        ["digits", "300"],
    ]
    # Three times too sure: every map helps, and the default is no worse than
    # one temperature for all.
    numbers = np.array([[float(cell) for cell in row[2:]] for row in rows])
    assert numbers.shape[1] == 7
    assert numbers.max() < -0.1
    np.testing.assert_allclose(numbers[:, 2], numbers[:, 0], atol=0.01)


def test_logits_of_probabilities(script):
    z = np.array([-3.0, 0.0, 5.0])
    p = 1 / (1 + np.exp(-z))
    np.testing.assert_allclose(script.logits_of(p), z, atol=1e-6)
    assert np.isfinite(script.logits_of([0.0, 1.0])).all()
    y = np.array([0, 1, 1])
    assert script.nll(z, y) == pytest.approx(
        -np.log(np.where(y == 1, p, 1 - p)).mean()
    )
