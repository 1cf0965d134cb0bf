"""`fit` that is killed three times ends as one that was left alone."""

import os

import pytest

from tests.faults.processes import run_module

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
]


@pytest.mark.parametrize(
    "name",
    [
        *("diff_dml", "restore"),
        *(
            pytest.param(name, marks=pytest.mark.weekly)
            for name in ("pruning", "ada_focal", "monitors")
        ),
    ],
)
def test_killed_and_resumed(name):
    found = run_module("fits", name)[name]
    whole, killed = found["whole"], found["killed"]
    answers = killed["answers"]
    assert [a for a in answers if a in ("killed", "done")] == [
        *["killed"] * 3,
        "done",
    ]
    # A backup that was half written is refused, and never read.
    refused = [a for a in answers if a not in ("killed", "done")]
    assert all(a.startswith(("OSError", "RuntimeError")) for a in refused)
    # In the second epoch, while the third is written, after the fourth.
    assert killed["epochs"] == [[0], [1, 2], [2, 3], [4]]
    assert killed["weights"] == whole["weights"]
    assert killed["logs"].keys() == whole["logs"].keys()
    for epoch, expected in whole["logs"].items():
        # Exact, but for a temperature that is sought from the last one, and
        # the difference of two losses at it.
        found = pytest.approx(expected, rel=2e-6, abs=1e-7)
        assert killed["logs"][epoch] == found
    assert killed["left"] == whole["left"] == ["logs.json", "weights"]
