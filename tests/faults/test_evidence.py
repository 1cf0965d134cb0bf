"""The papers' tables: a run that is killed loses its last minute at most."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.examples.conftest import papers  # noqa: F401
from tests.helpers import run_python

ROOT = pathlib.Path(__file__).parents[2]
ROWS = "miniature.jsonl"
ROW = {"method": "CE", "seed": 0, "test": [0.5] * 100}


@pytest.mark.usefixtures("papers")
@pytest.mark.parametrize("kept", [0, 1, 50, -1])
def test_a_row_that_was_half_written_is_not_read(kept, tmp_path):
    import row_files
    import stored_rows

    path = tmp_path / "rows.jsonl"
    stored_rows.append(path, ROW)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:kept])
    assert list(row_files.read_rows(path)) == [("CE", 0)]
    stored_rows.append(path, {**ROW, "seed": 1})
    rows = row_files.read_rows(path)
    assert list(rows) == [("CE", 0), ("CE", 1)]
    assert path.read_bytes().startswith(whole)
    assert [row["test"] for row in rows.values()] == [ROW["test"]] * 2


FULL_DISK = """\
import pathlib, sys
sys.path.insert(0, {folder!r})
import stored_rows
from tests.faults.processes import FULL, fork

path = pathlib.Path({path!r})
limit = path.stat().st_size + 20
print(fork(lambda: stored_rows.append(path, {row!r}), limit=limit, then=FULL))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.usefixtures("papers")
def test_a_full_disk_leaves_the_rows(tmp_path):
    import stored_rows

    path = tmp_path / "rows.jsonl"
    stored_rows.append(path, ROW)
    whole = path.read_bytes()
    folder = str(ROOT / "examples")
    code = FULL_DISK.format(folder=folder, path=str(path), row=ROW)
    assert run_python(["-c", code]).startswith("OSError: [Errno 27]")
    assert path.read_bytes() == whole


@pytest.mark.slow
def test_a_killed_run_goes_on_at_its_checkpoint(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run_evidence(whole) == (0, [1, 2, 3, 4])
    assert run_evidence(killed, "--kill-in", "3") == (-signal.SIGKILL, [1, 2])
    assert not (killed / ROWS).exists()
    assert run_evidence(killed) == (0, [3, 4])
    rows = [json.loads((place / ROWS).read_text()) for place in (whole, killed)]
    for part in ("test", "history"):
        assert set(rows[1][part]) == set(rows[0][part])
        for key, expected in rows[0][part].items():
            assert rows[1][part][key] == pytest.approx(expected, abs=2e-4), key
    logits = [logits_of(place)["test_logits"] for place in (whole, killed)]
    np.testing.assert_allclose(*logits, atol=2e-3)  # they are float16
    assert np.ptp(logits[0]) > 0.1


def run_evidence(place, *options):
    """The exit status of a run in a fresh process, and the epochs it had."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.evidence", place, *options],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CHECKPOINT_SECONDS": "0"},
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    return done.returncode, [int(n) for word, n, *_ in lines if word == "epoch"]


def logits_of(place):
    with np.load(place / "miniature" / "MC_dropout-0.npz") as file:
        return dict(file)
