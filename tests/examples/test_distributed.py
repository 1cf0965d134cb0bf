"""Each engine gives the numbers of one device."""

import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "distributed.py"
ENGINES = {
    "mirrored": "tensorflow",
    "data_parallel": "jax",
    "model_parallel": "jax",
    "ddp": "torch",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(
            engine, marks=pytest.mark.backends(backend, reason="its engine")
        )
        for engine, backend in ENGINES.items()
    ],
)
def test_two_devices_give_the_numbers_of_one(engine):
    found = subprocess.run(
        [sys.executable, SCRIPT, "--engine", engine],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    title, *rows = found.stdout.splitlines()
    assert title.split() == [engine, "one", "device", "two"]
    assert len(rows) == 9
    assert [row.split("  ")[0] for row in rows[-2:]] == [
        "test NLL, Diff-DML, first",
        "test NLL, Diff-DML, second",
    ]
    for row in rows:
        one, two = map(float, row.split()[-2:])
        assert two == pytest.approx(one, rel=1e-5, abs=1e-6), row
        assert one > 0
