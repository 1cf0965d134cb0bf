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
            large.rows_of(array, keep),
            large.rows_of(array, places),
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
