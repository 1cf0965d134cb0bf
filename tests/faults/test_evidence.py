"""The papers' tables: a run that is killed loses its last minute at most."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from tests.examples.conftest import papers  # noqa: F401
from tests.helpers import run_python

ROOT = pathlib.Path(__file__).parents[2]
ROW = {"method": "CE", "seed": 0, "test": [0.5] * 100}


@pytest.mark.usefixtures("papers")
@pytest.mark.parametrize("kept", [0, 1, 50, -1])
def test_a_row_that_was_half_written_is_not_read(kept, tmp_path):
    import run

    path = tmp_path / "rows.jsonl"
    run.append(path, ROW)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:kept])
    assert list(run.read_rows(path)) == [("CE", 0)]
    run.append(path, {**ROW, "seed": 1})
    rows = run.read_rows(path)
    assert list(rows) == [("CE", 0), ("CE", 1)]
    assert path.read_bytes().startswith(whole)
    assert [row["test"] for row in rows.values()] == [ROW["test"]] * 2


FULL_DISK = """\
import pathlib, sys
sys.path.insert(0, {folder!r})
import run
from tests.faults.processes import FULL, fork

path = pathlib.Path({path!r})
limit = path.stat().st_size + 20
print(fork(lambda: run.append(path, {row!r}), limit=limit, then=FULL))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.usefixtures("papers")
def test_a_full_disk_leaves_the_rows(tmp_path):
    import run

    path = tmp_path / "rows.jsonl"
    run.append(path, ROW)
    whole = path.read_bytes()
    folder = str(ROOT / "examples" / "papers")
    code = FULL_DISK.format(folder=folder, path=str(path), row=ROW)
    assert run_python(["-c", code]).startswith("OSError: [Errno 27]")
    assert path.read_bytes() == whole


@pytest.mark.slow
@pytest.mark.skipif(
    "KERAS_CALIB_DATA" not in os.environ,
    reason="KERAS_CALIB_DATA names no folder with CIFAR-10",
)
def test_a_killed_run_goes_on(tmp_path):
    def command(place):
        script = ROOT / "examples" / "papers" / "run.py"
        given = ["miniature", "--row", "ACLS", "0", "--work", tmp_path / "work"]
        return [script, *given, "--results", tmp_path / place]

    run_python(list(map(str, command("whole"))))
    killed = [sys.executable, *map(str, command("killed"))]
    with subprocess.Popen(
        killed, stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:
        for line in process.stdout:
            if line.startswith("epoch 1 "):
                process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed").exists()
    run_python(list(map(str, command("killed"))))
    rows = [
        json.loads((tmp_path / place / "miniature.jsonl").read_text())
        for place in ("whole", "killed")
    ]
    assert rows[1]["test"] == pytest.approx(rows[0]["test"], abs=2e-4)


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT)}
