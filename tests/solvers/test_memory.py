"""A fit that does not fit in memory is refused before memory is taken."""

import concurrent.futures
import tracemalloc

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.solvers import blocks
from keras_calib.solvers import matrix_evidence
from keras_calib.solvers import memory
from keras_calib.solvers.matrix_evidence import bytes_needed
from tests.layers.generated import generated


def test_available_memory_is_a_number():
    available = memory.available_bytes()
    assert available is None or 0 < available < 1 << 50


MACHINE = "MemTotal: 9 kB\nMemAvailable:   5000 kB\nSwapFree: 1 kB\n"
PLACES = ("meminfo", "memory.max", "memory.current")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ((MACHINE, "7000000", "1500000"), 5000 * 1024),
        ((MACHINE, "3000000", "1400000"), 1_600_000),
        # A group without a limit, as it says.
        ((MACHINE, "max", "1400000"), 5000 * 1024),
        ((MACHINE, None, None), 5000 * 1024),
        (("MemTotal: 9 kB\n", "3000000", "1400000"), 1_600_000),
        ((None, None, None), 512 * 4096),
    ],
)
def test_available_memory_is_the_least_that_the_system_tells(
    monkeypatch, files, expected
):
    def read_text(path):
        content = dict(zip(PLACES, files, strict=True)).get(path.name)
        if content is None:
            raise FileNotFoundError(path)
        return content

    pages = {"SC_PHYS_PAGES": 512, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(memory.pathlib.Path, "read_text", read_text)
    monkeypatch.setattr(memory.os, "sysconf", pages.__getitem__)
    assert memory.available_bytes() == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        # Version 1 of control groups.
        (
            {
                "memory/memory.limit_in_bytes": "3000000\n",
                "memory/memory.usage_in_bytes": "1400000\n",
            },
            1_600_000,
        ),
        # No limit, as version 1 says it.
        (
            {
                "memory/memory.limit_in_bytes": f"{(1 << 63) - 4096}\n",
                "memory/memory.usage_in_bytes": "1400000\n",
            },
            5000 * 1024,
        ),
        # Files that were read count as used, and are dropped when need be.
        (
            {
                "memory/memory.limit_in_bytes": "3000000\n",
                "memory/memory.usage_in_bytes": "1400000\n",
                "memory/memory.stat": "inactive_file 1\n"
                "total_inactive_file 900000\n",
            },
            2_500_000,
        ),
        (
            {
                "memory.max": "3000000\n",
                "memory.current": "2900000\n",
                "memory.stat": "anon 7\ninactive_file 2000000\n",
            },
            2_100_000,
        ),
        # More than the limit, for a moment.
        ({"memory.max": "3000\n", "memory.current": "4000\n"}, 0),
        # The lower one of two.
        (
            {
                "memory.max": "3000000\n",
                "memory.current": "0\n",
                "memory/memory.limit_in_bytes": "2000000\n",
                "memory/memory.usage_in_bytes": "500000\n",
            },
            1_500_000,
        ),
    ],
)
def test_available_memory_is_what_the_control_group_leaves(
    monkeypatch, tmp_path, files, expected
):
    (tmp_path / "memory").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    read_text = memory.pathlib.Path.read_text

    def read(path):
        return MACHINE if path.name == "meminfo" else read_text(path)

    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    monkeypatch.setattr(memory.pathlib.Path, "read_text", read)
    assert memory.available_bytes() == expected


def test_available_memory_is_unknown_where_no_system_tells(monkeypatch):
    def read_text(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(memory.pathlib.Path, "read_text", read_text)
    monkeypatch.delattr(memory.os, "sysconf")
    assert memory.available_bytes() is None
    memory.refuse_too_large(1 << 60, "A fit", "Take another.")


def test_refusal_names_both_numbers_and_what_to_do(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 3 << 29)
    memory.refuse_too_large(3 << 29, "A fit", "Take another.")
    with pytest.raises(ValueError) as caught:
        memory.refuse_too_large(5 << 29, "A fit", "Take another.")
    assert str(caught.value) == (
        "A fit needs about 2.5 GiB of memory, and 1.5 GiB are available. "
        "Take another."
    )


@pytest.mark.parametrize("method", ["MatrixScaling", "DirichletScaling"])
def test_too_large_a_fit_is_refused_with_the_estimate(method, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 1 << 20)
    logits, labels = generated(3000, 50)
    layer = (
        getattr(kc.layers, method)(regularization=None)
        if (method == "MatrixScaling")
        else kc.layers.DirichletScaling(regularization="l2")
    )
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"needs about 0\.00\d+ GiB"):
        layer.adapt(logits.astype("float32"), labels)
    assert not layer.built
    tracemalloc.stop()
    monkeypatch.setattr(memory, "available_bytes", lambda: None)
    layer.adapt(logits[:200, :5], labels[:200] % 5)


@pytest.mark.filterwarnings("ignore:.*have no calibration sample")
@pytest.mark.parametrize("regularization", ["structured", "auto"])
def test_the_estimate_is_near_the_peak(regularization):
    num_classes = 20 if regularization == "auto" else 100
    logits, labels = generated(1400, num_classes)
    logits = logits.astype("float32")
    layer = kc.layers.MatrixScaling(regularization=regularization)
    layer.build(logits.shape)
    tracemalloc.start()
    layer.adapt(logits, labels)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    needed = bytes_needed(
        *logits.shape, around_temperature=regularization == "auto"
    )
    # Blocks of rows, of a size that does not depend on the data.
    assert peak < needed + 3e6
    assert needed < 4 * peak


def test_the_estimate_counts_matrices():
    # 20 matrices of float64, and where classes are few one of float32 of each.
    assert bytes_needed(0, 30, around_temperature=False) == (
        (20 * 8 + 30 * 4) * 31**2
    )
    num_classes = matrix_evidence.BLOCKS + 1
    assert bytes_needed(0, num_classes, around_temperature=False) == (
        20 * 8 * (num_classes + 1) ** 2
    )


@pytest.mark.parametrize(
    "regularization, workers, limit",
    [
        # Inputs, probabilities, parameters, and what threads do.
        ("structured", 2, 3.4),
        # The same, and the matrices of a few classes in each thread.
        ("auto", 2, 4.0),
        ("auto", 4, 5.0),
    ],
)
def test_a_matrix_keeps_few_times_the_logits(
    regularization, workers, limit, monkeypatch
):
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(5000, 100)).astype("float32")
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    layer = kc.layers.MatrixScaling(
        regularization=regularization, normalize_logits="log_softmax"
    )
    layer.build(logits.shape)
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        monkeypatch.setattr(blocks, "threads", lambda: pool)
        tracemalloc.start()
        layer.adapt(logits, labels)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    # Beside the logits themselves.
    assert peak < limit * logits.nbytes
