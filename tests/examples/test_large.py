"""What is computed from a memory map takes little memory besides."""

import pathlib
import shutil

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.data import collect
from keras_calib.inputs import large
from tests.helpers import example
from tests.helpers import run_python

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


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


@pytest.mark.slow
@pytest.mark.weekly
@pytest.mark.one_backend
@pytest.mark.skipif(
    not pathlib.Path("/proc/self/status").exists(), reason="needs Linux"
)
def test_a_report_of_five_million_rows_takes_less_than_two_gib(tmp_path):
    # The part that takes the most, in a process of its own.
    if shutil.disk_usage(tmp_path).free < 16 << 30:
        pytest.skip("needs 16 GB of disk")
    script = str(EXAMPLES / "benchmarks" / "large.py")
    arguments = ["--rows", "5000000", "--parts", "report"]
    shown = run_python([script, *arguments, "--folder", str(tmp_path)])
    cells = shown.strip().splitlines()[-1].strip("| ").split(" | ")
    assert cells[:2] == ["5,000,000", "report"]
    assert int(cells[7]) < 2048
