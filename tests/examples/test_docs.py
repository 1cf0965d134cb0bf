"""The documentation builds: no warning, no broken link, nothing fetched."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.one_backend
def test_it_builds_without_warnings(tmp_path):
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_parser")
    pytest.importorskip("furo")
    command = ["-m", "sphinx", "-W", "--keep-going", "-q", "-E"]
    done = subprocess.run(
        [sys.executable, *command, "examples/docs", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    # A class from its docstring, with a link to another one; a page of a
    # package; a link between pages.
    losses = (tmp_path / "reference" / "losses.html").read_text()
    assert 'id="keras_calib.losses.MDCA"' in losses
    assert 'href="#keras_calib.losses.FocalLoss"' in losses
    metrics = (tmp_path / "pages" / "metrics.html").read_text()
    assert 'id="the-clinical-panel"' in metrics
    start = (tmp_path / "start.html").read_text()
    assert 'href="which_method.html"' in start
