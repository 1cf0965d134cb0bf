"""The script that counts how often intervals hold the true value."""

import numpy as np
import pytest

from tests.helpers import example


@pytest.fixture
def script():
    return example("benchmarks/intervals.py")


def test_clusters_are_rows_that_are_alike(script):
    labels, p, more = script.clustered(np.random.default_rng(0), 500, 5)
    ids = more["clusters"]
    _, first, number = np.unique(ids, return_index=True, return_counts=True)
    assert number.max() == 4 and len(ids) == 500 and len(first) > 150
    of_first = np.repeat(first, number)
    np.testing.assert_array_equal(p, p[of_first])
    np.testing.assert_array_equal(labels, labels[of_first])


@pytest.mark.one_backend
def test_table(script, monkeypatch, capsys):
    small = {"ROWS": 100, "MANY": 4000, "SETS": 10, "RESAMPLES": 20}
    small["FORMS"] = {"independent": script.independent}
    names = "accuracy", "classwise_calibration_error"
    small |= {"STATISTICS": names, "EVENTS": ("calibration_slope",)}
    for name, value in small.items():
        monkeypatch.setattr(script, name, value)
    script.main([])
    rows = [
        [cell.strip(" `%") for cell in line.split("|")[1:-1]]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("| `")
    ]
    shown = [*names, *script.PARTS, *script.EVENTS]
    assert [row[:2] for row in rows] == [[n, "independent"] for n in shown]
    mean, error, *parts = (list(map(float, row[2:])) for row in rows)
    assert mean[0] == mean[1] > 60
    # The bias of the bins of all classes is wider than an interval.
    assert error[0] < 30 < error[1]
    # Parts of `refinement=` and slopes have one kind of interval.
    assert all(kind == other > 50 for kind, other in parts)


@pytest.mark.one_backend
def test_table_of_calibrated_models(script, monkeypatch, capsys):
    small = {"SIZES": (100, 200), "CALIBRATED_SETS": 10, "RESAMPLES": 20}
    for name, value in small.items():
        monkeypatch.setattr(script, name, value)
    script.main(["--calibrated"])
    _, *rows = [
        [cell.strip(" `%") for cell in line.split("|")[1:-1]]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("| ")
    ]
    assert [row[:2] for row in rows] == [
        [name, size] for size in ("100", "200") for name in script.PARTS[1:]
    ]
    # A recalibration that nothing needs takes nothing off the losses.
    of_losses = [float(row[2]) for row in rows if row[0].endswith("_loss")]
    assert max(of_losses) <= 20 and len(of_losses) == 4
