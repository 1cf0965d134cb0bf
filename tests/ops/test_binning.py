import numpy as np
import pytest
from keras import ops

from keras_calib.ops import binning
from keras_calib.ops.bin_errors import Bins
from keras_calib.ops.bin_errors import calibration_error
from tests.helpers import compiled
from tests.helpers import to_numpy


def test_ece_weighs_each_gap_by_the_share_of_its_bin():
    # Guo et al. (2017), Section 2. Ten bins, two in use:
    #   (0.3, 0.4]  confidence 0.35, accuracy 1/2, gap 0.15
    #   (0.8, 0.9]  confidence 0.85, accuracy 0/2, gap 0.85
    confidence = ops.array([0.32, 0.38, 0.82, 0.88])
    correct = ops.array([1.0, 0.0, 0.0, 0.0])
    index = binning.bin_index(confidence, num_bins=10)
    columns = ops.stack([ops.ones_like(correct), confidence - correct])
    bins = Bins(*ops.unstack(binning.bin_sums(columns, index, 10)))
    error = calibration_error(bins, norm=1)
    assert float(error) == pytest.approx(2 / 4 * 0.15 + 2 / 4 * 0.85)
    error = calibration_error(bins, norm=2)
    assert float(error) == pytest.approx((0.15**2 / 2 + 0.85**2 / 2) ** 0.5)
    error = calibration_error(bins, norm=float("inf"))
    assert float(error) == pytest.approx(0.85)


@pytest.mark.parametrize("num_bins", [1, 2, 5, 10, 15, 20, 25, 100])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_edge_is_in_the_bin_below_it(num_bins, dtype):
    edges = (np.arange(num_bins + 1) / num_bins).astype(dtype)
    expected = np.maximum(np.arange(num_bins + 1) - 1, 0)
    found = binning.bin_index(edges, num_bins)
    np.testing.assert_array_equal(found, expected)
    above = np.nextafter(edges[:-1], dtype_max(dtype))
    np.testing.assert_array_equal(
        binning.bin_index(above, num_bins), np.arange(num_bins)
    )
    if dtype == "float32":
        tensor = ops.convert_to_tensor(edges)
        found = to_numpy(binning.bin_index(tensor, num_bins))
        np.testing.assert_array_equal(found, expected)


def dtype_max(dtype):
    return np.asarray(2.0, dtype)


def test_zero_is_in_the_first_bin_and_one_in_the_last():
    # torchmetrics 1.9.0 gives 1.0 a bin of its own; loops with `>` and `<=`
    # leave 0.0 in no bin.
    values = np.array([0.0, 1.0], "float32")
    np.testing.assert_array_equal(binning.bin_index(values, 15), [0, 14])
    tensor = ops.convert_to_tensor(values)
    found = to_numpy(binning.bin_index(tensor, 15))
    np.testing.assert_array_equal(found, [0, 14])


def test_sums_of_many_and_of_few_bins_agree():
    rng = np.random.default_rng(0)
    index = rng.integers(0, 40, 1000).astype("int32")
    columns = rng.normal(size=(3, 1000)).astype("float32")
    few = to_numpy(binning.bin_sums(columns, ops.array(index), 40))
    many = to_numpy(binning.bin_sums(ops.array(columns), ops.array(index), 80))
    np.testing.assert_allclose(few, many[:, :40], atol=1e-4)
    np.testing.assert_array_equal(many[:, 40:], 0.0)


def test_nothing_counted_is_no_error():
    zeros = ops.zeros(5)
    for norm in (1, 2, float("inf")):
        assert float(calibration_error(Bins(zeros, zeros), norm)) == 0.0


def test_parts_survive_tf32():
    # TF32 keeps 11 significant bits of a float32: 13 of 24 are dropped.
    values = np.random.default_rng(0).normal(size=1000).astype("float32")

    def parts(x):
        return ops.stack(binning.short_parts(x))

    for function in (parts, compiled(parts)):
        found = to_numpy(function(ops.convert_to_tensor(values)))
        np.testing.assert_array_equal(found.astype("float64").sum(0), values)
        mantissa, _ = np.frexp(found)
        np.testing.assert_array_equal(mantissa * 2**11 % 1, 0)
    # The values themselves would not have survived.
    mantissa, _ = np.frexp(values)
    assert (mantissa * 2**11 % 1).any()
