"""The driver of the papers' tables: stopped anywhere, it loses nothing."""

import os
import pathlib
import sys

import numpy as np
import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "examples" / "papers"
needs_data = pytest.mark.skipif(
    "KERAS_CALIB_DATA" not in os.environ,
    reason="KERAS_CALIB_DATA names no folder with CIFAR-10",
)


@pytest.fixture(scope="module")
def work():
    sys.path.insert(0, str(FOLDER))
    try:
        import work

        yield work
    finally:
        sys.path.remove(str(FOLDER))


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("method", ["ACLS", "Diff-DML, labels 20 %"])
def test_stopped_and_resumed_run_equals_the_uninterrupted_one(
    work, method, tmp_path
):
    whole = work.run("miniature", method, 0, tmp_path / "whole", tmp_path)
    # A deadline in the past ends each call after one epoch.
    parts = tmp_path / "parts"
    first = work.run("miniature", method, 0, parts, tmp_path, deadline=1.0)
    assert first is None
    second = work.run("miniature", method, 0, parts, tmp_path)
    for key in ("nll", "ece", "accuracy"):
        assert second["test"][key] == pytest.approx(
            whole["test"][key], abs=2e-4
        )
    with (
        np.load(f"{tmp_path / 'whole'}.npz") as a,
        np.load(f"{parts}.npz") as b,
    ):
        np.testing.assert_allclose(
            a["test_logits"], b["test_logits"], rtol=0.02, atol=0.01
        )
