"""Our maps as CalArena's script would call them."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

from tests.helpers import example

pytestmark = pytest.mark.backends("torch", reason="what CalArena needs")
SCRIPT = (
    pathlib.Path(__file__).parents[2]
    / "examples"
    / "benchmarks"
    / "calarena.py"
)
# What `run_benchmark.py` of CalArena does with a calibrator of a user.
STAND_IN = """
import argparse, json
import numpy as np
from custom_calibrators import CUSTOM_CALIBRATORS

parser = argparse.ArgumentParser()
parser.add_argument("--benchmark")
parser.add_argument("--calibrator")
arguments = parser.parse_args()
rng = np.random.default_rng(0)
classes = 2 if arguments.benchmark.endswith("-binary") else 4
z = 3 * rng.normal(size=(600, classes))
y = (z / 3 + rng.gumbel(size=z.shape)).argmax(axis=1)
p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
if classes == 2:
    p = p[:, 1]
calibrator = CUSTOM_CALIBRATORS[arguments.calibrator]()
calibrator.fit(p[:300], y[:300])
q = calibrator.predict_proba(p[300:])
assert q.shape == (300, classes) and abs(q.sum(axis=1) - 1).max() < 1e-12
before = p if classes > 2 else np.stack([1 - p, p], axis=1)
print(json.dumps({
    "before": -np.log(before[300:][np.arange(300), y[300:]]).mean(),
    "after": -np.log(q[np.arange(300), y[300:]]).mean(),
    "names": sorted(CUSTOM_CALIBRATORS),
}))
"""


@pytest.mark.parametrize(
    ("benchmark", "calibrator"),
    [("cv-multiclass", "kc-mixture"), ("cv-binary", "kc-quadratic")],
)
def test_the_interface(tmp_path, benchmark, calibrator):
    (tmp_path / "run_benchmark.py").write_text(STAND_IN)
    command = [sys.executable, SCRIPT, tmp_path, "--benchmark", benchmark]
    done = subprocess.run(
        [*map(str, command), "--calibrator", calibrator],
        env={**os.environ, "KERAS_BACKEND": keras.backend.backend()},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["after"] < 0.8 * found["before"]
    assert ("kc-platt" in found["names"]) == benchmark.endswith("-binary")


def test_a_folder_that_is_no_checkout(tmp_path):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), "--benchmark", "x"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "pass a checkout" in done.stderr


def test_what_is_no_probability_is_refused():
    log_of = example("benchmarks/calarena.py").log_of
    p = np.random.default_rng(0).dirichlet(np.ones(4), size=20)
    np.testing.assert_allclose(np.exp(log_of(p)), p, rtol=1e-5)
    for wrong in (np.log(p), 5 * p, 20 * p[:, 1], np.full((3, 4), np.nan)):
        with pytest.raises(ValueError, match="takes probabilities"):
            log_of(wrong)
