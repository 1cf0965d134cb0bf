"""What is computed from a memory map takes little memory besides."""

import pathlib

import numpy as np
import pytest

from keras_calib.inputs import large
from tests.helpers import example


@pytest.fixture(scope="module")
def benchmark():
    return example("benchmarks/large.py")


@pytest.mark.slow
@pytest.mark.one_backend
@pytest.mark.skipif(
    not pathlib.Path("/proc/self/status").exists(), reason="needs Linux"
)
@pytest.mark.parametrize("part", ["fit", "errors", "metrics"])
def test_memory_is_well_under_the_size_of_the_logits(
    benchmark, part, tmp_path, monkeypatch
):
    logits, labels = benchmark.make(tmp_path, 200_000)
    compute = benchmark.PARTS[part]
    # Threads and tables that are made once.
    compute(logits[:5_000], labels[:5_000], 0)
    expected = compute(np.array(logits), labels, 0)
    monkeypatch.setattr(large, "LIMIT", 1 << 20)
    monkeypatch.setattr(large, "BLOCK", 1 << 18)
    with benchmark.watched() as found:
        result = compute(logits, labels, 0)
    assert float(result) == float(expected)
    assert logits.nbytes == 80_000_000
    assert found["most"] - found["before"] < logits.nbytes / 2
