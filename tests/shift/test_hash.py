"""Random numbers by place: the bits, their statistics, where they start."""

import hashlib

import numpy as np
import pytest
from keras import ops

from keras_calib.shift._hash import Draws
from keras_calib.shift._hash import hash_bits
from tests.helpers import to_numpy


def draws(number, start=0, seed=0, name="noise"):
    return Draws(seed, name, ops.arange(start, start + number, dtype="int32"))


def test_bits_are_the_same_on_every_backend():
    bits = to_numpy(hash_bits(12345, ops.arange(1000, dtype="int32"), 3072))
    assert bits.dtype == "int32"
    digest = hashlib.sha1(np.ascontiguousarray(bits, "<i4").tobytes())
    assert digest.hexdigest().startswith("c66f47bb406f")


def test_bits_by_the_formula_in_python():
    def mix(x):
        x ^= x >> 16
        x = x * 0x7FEB352D % 2**32
        x ^= x >> 15
        x = x * 0x846CA68B % 2**32
        return x ^ x >> 16

    key, golden = 77, 0x9E3779B9
    found = to_numpy(hash_bits(key, ops.arange(3, 6, dtype="int32"), 4))
    for row, i in enumerate(range(3, 6)):
        base = mix(mix((i + golden) % 2**32) ^ key)
        for p in range(4):
            place = (base + p * golden) % 2**32
            assert int(found[row, p]) % 2**32 == mix(mix(place) ^ base)


def test_uniform_numbers_are_uniform():
    u = to_numpy(draws(500).uniform(0.0, 1.0, 1024)).astype("float64")
    assert 0 < u.min() and u.max() < 1
    # Five standard errors of each mean.
    width = 5 / np.sqrt(u.size)
    assert u.mean() == pytest.approx(0.5, abs=width * 0.29)
    assert (u**2).mean() == pytest.approx(1 / 3, abs=width * 0.3)
    for a, b in ((u[:, 1:], u[:, :-1]), (u[1:], u[:-1])):
        covariance = ((a - 0.5) * (b - 0.5)).mean()
        assert covariance == pytest.approx(0, abs=width / 12)
    counts = np.histogram(u, 256, (0, 1))[0]
    expected = u.size / 256
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert chi2 == pytest.approx(255, abs=5 * np.sqrt(2 * 255))


def test_normal_numbers_are_normal():
    z = to_numpy(draws(500).normal(1024)).astype("float64")
    width = 5 / np.sqrt(z.size)
    assert z.mean() == pytest.approx(0, abs=width)
    assert (z**2).mean() == pytest.approx(1, abs=width * np.sqrt(2))
    assert (z**4).mean() == pytest.approx(3, abs=width * np.sqrt(96))


def test_integers_are_below_their_number():
    found = to_numpy(draws(2000).below(5, 8))
    shares = np.bincount(found.ravel(), minlength=5) / found.size
    assert shares.shape == (5,)
    np.testing.assert_allclose(shares, 0.2, atol=5 * 0.4 / np.sqrt(found.size))


def test_numbers_start_anywhere_and_differ_by_seed_name_and_call():
    first = draws(10)
    whole, again = to_numpy(first.bits(50)), to_numpy(first.bits(50))
    part = to_numpy(draws(4, start=6).bits(50))
    np.testing.assert_array_equal(whole[6:], part)
    others = [
        again,
        to_numpy(draws(10, seed=1).bits(50)),
        to_numpy(draws(10, name="other").bits(50)),
    ]
    for other in others:
        assert (whole != other).mean() > 0.99


def test_seeds_may_be_negative_large_or_tensors():
    tensor = ops.convert_to_tensor(np.int32(-5))
    expected = to_numpy(draws(3, seed=-5).bits(4))
    for seed in (tensor, 2**32 - 5, np.int64(-5)):
        np.testing.assert_array_equal(
            to_numpy(draws(3, seed=seed).bits(4)), expected
        )
