"""What is computed from a memory map takes little memory besides."""

import pathlib

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.data import collect
from keras_calib.inputs import large
from tests.helpers import example


@pytest.fixture(scope="module")
def benchmark():
    return example("benchmarks/large.py")


def keep_on_disk(monkeypatch, limit):
    """Have arrays and network outputs of more bytes in files."""
    monkeypatch.setattr(large, "LIMIT", limit)
    monkeypatch.setattr(large, "BLOCK", limit >> 2)
    monkeypatch.setattr(collect, "SPILL", limit)


@pytest.mark.slow
@pytest.mark.one_backend
@pytest.mark.skipif(
    not pathlib.Path("/proc/self/status").exists(), reason="needs Linux"
)
@pytest.mark.parametrize("part", ["fit", "calibrate", "errors", "metrics"])
def test_memory_is_well_under_the_size_of_the_logits(
    benchmark, part, tmp_path, monkeypatch
):
    logits, labels = benchmark.make(tmp_path, 200_000)
    compute = benchmark.PARTS[part]
    # Threads and tables that are made once.
    compute(logits[:5_000], labels[:5_000], 0)
    expected = compute(np.array(logits), labels, 0)
    keep_on_disk(monkeypatch, 1 << 20)
    with benchmark.watched() as found:
        result = compute(logits, labels, 0)
    assert float(result) == float(expected)
    assert logits.nbytes == 80_000_000
    assert found["most"] - found["before"] < logits.nbytes / 2


@pytest.mark.slow
@pytest.mark.one_backend
def test_a_report_from_files_has_the_same_numbers(
    benchmark, tmp_path, monkeypatch
):
    logits, labels = benchmark.make(tmp_path, 3_000, classes=5)

    def report():
        return kc.report(logits, y=labels, from_logits=True).to_dict()

    expected = report()
    keep_on_disk(monkeypatch, 1 << 10)
    assert_same(report(), expected)


def assert_same(found, expected):
    """The same keys and values; numbers to the last digits of their sums."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, float):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    else:
        assert found == expected
