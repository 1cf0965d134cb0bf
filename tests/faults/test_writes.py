"""Killed while it writes, or on a full disk: old files are as they were."""

import os

import pytest

from tests.faults.processes import run_module

pytestmark = [
    pytest.mark.slow,
    pytest.mark.one_backend,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
]
# Name: how many files it replaces.
WRITERS = {
    "report": 1,
    "card": 2,
    "diagram": 1,
    "keras-calib calibrate": 1,
    "keras-calib shift": 1,
    "ensemble": 1,
    "calibrated": 1,
}


# What a fault leaves beside the old file under a name of its own.
LEFT = {"calibrated": ["new.keras"]}


def test_old_files_stay_whole():
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    for name, found in run_module("writes", *WRITERS).items():
        old = ["old"] * WRITERS[name]
        for fault, (answer, states, others) in found.items():
            where = name, fault
            others = [each for each in others if each not in LEFT.get(name, [])]
            if fault == "killed after the name":
                assert states in (["new"], ["old", "new"]), where
            else:
                assert states == old, where
            if fault.startswith("killed"):
                assert answer == "killed", where
                # What was being written is there, and hidden.
                assert all(other.startswith(".") for other in others), where
            else:
                assert answer.startswith("OSError: "), where
                assert "File too large" in answer, where
                assert others == [], where


def test_scores_in_a_temporary_file_leave_nothing():
    found = run_module("writes", "spilled")["spilled"]
    whole, temperature, files = found["whole"]
    assert (whole, files) == ("done", [])
    assert float(temperature) > 0
    # The file has no name: nobody has to clean up after a kill.
    assert found["killed"] == ["killed", "", []]
    answer, _, files = found["full"]
    assert answer.startswith("OSError: ") and files == []
    assert "do not fit into the temporary folder" in answer
    assert found["again"] == ["done", temperature, []]
