import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "quickstart.py"


@pytest.mark.slow
def test_quickstart(tmp_path):
    found = subprocess.run(
        [sys.executable, SCRIPT], cwd=tmp_path, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    assert "identical = True" in found.stdout
    folder = tmp_path / "quickstart"
    lines = found.stdout.splitlines()
    # What is read in one look, the picture's place last.
    assert len(lines) <= 25
    assert lines[-1].endswith(str(folder / "reliability.png"))
    assert (folder / "calibrated.keras").exists()
    assert (folder / "reliability.png").stat().st_size > 10_000
    rows = json.loads((folder / "table.json").read_text())
    assert [row["loss"] for row in rows] == ["cross-entropy", "ACLS"]
    for row in rows:
        assert row["before"]["accuracy"] > 0.9
        assert row["after"]["accuracy"] == row["before"]["accuracy"]
        assert row["after"]["nll"] < row["before"]["nll"]
        assert 0.005 < row["after"]["floor"] < 0.02
