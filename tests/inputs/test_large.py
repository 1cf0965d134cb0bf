"""Arrays in temporary files hold what arrays in memory do."""

import errno
import os

import numpy as np
import pytest

from keras_calib.inputs import large


def test_large_arrays_hold_what_small_ones_do(monkeypatch):
    rng = np.random.default_rng(0)
    array = rng.normal(size=(70, 6)).astype("float32")
    keep = rng.random(70) < 0.4
    places = rng.integers(0, 70, 90)

    def results():
        return (
            large.by_rows(np.exp, array),
            large.by_rows(lambda a, b: (a * b).sum(axis=1), array, array),
            large.selected_rows(array, keep),
            large.selected_rows(array, places),
            large.transposed(array),
        )

    small = results()
    monkeypatch.setattr(large, "LIMIT", 64)
    monkeypatch.setattr(large, "BLOCK", 100)
    for one, other in zip(small, results(), strict=True):
        assert isinstance(other.base, np.memmap) or other.nbytes <= 64
        assert not isinstance(other, np.memmap)
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


@pytest.mark.skipif(
    not hasattr(os, "posix_fallocate"), reason="the system has no such call"
)
def test_a_full_disk_is_told_before_an_array_is_filled(monkeypatch):
    def full(file, offset, size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(large, "LIMIT", 64)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="do not fit into the temporary folder"):
        large.empty((100, 8), "float64")


def test_without_posix_fallocate_an_array_is_in_a_file_too(monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    monkeypatch.setattr(large, "LIMIT", 64)
    found = large.empty((3, 7), "float64")
    assert isinstance(found.base, np.memmap) and found.shape == (3, 7)
    np.testing.assert_array_equal(found, np.zeros((3, 7)))


def test_at_the_limit_an_array_is_in_memory(monkeypatch):
    monkeypatch.setattr(large, "LIMIT", 64)
    assert large.empty((8,), "float64").base is None
    assert isinstance(large.empty((9,), "float64").base, np.memmap)
    monkeypatch.setattr(large, "BLOCK", 4)
    given = np.arange(8.0)
    for function in (lambda a: large.by_rows(np.copy, a), np.copy):
        assert function(given).base is None
    keep = np.ones(8, bool)
    assert large.selected_rows(given, keep).base is None
    assert large.transposed(given.reshape(2, 4)).shape == (4, 2)


def test_the_limit_is_what_the_changelog_says():
    assert large.LIMIT == 128 * 2**20


def test_blocks_have_as_many_rows_as_fit(monkeypatch):
    monkeypatch.setattr(large, "BLOCK", 10)
    assert large.blocks((7, 3)) == [slice(0, 3), slice(3, 6), slice(6, 9)]
    # A row that is larger than a block is a block.
    assert large.blocks((2, 99)) == [slice(0, 1), slice(1, 2)]
    assert large.blocks((3,)) == [slice(0, 10)]
    assert large.blocks((2, 0)) == [slice(0, 10)]
