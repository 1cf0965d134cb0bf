"""Data that is read batch by batch, and what is no data."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.data.batches import as_batches

X, Y = np.zeros((4, 2)), np.arange(4)


class Endless(keras.utils.PyDataset):
    num_batches = None

    def __getitem__(self, i):
        return X + i, Y


def test_endless_data_needs_steps():
    with pytest.raises(ValueError, match="The data is endless"):
        as_batches(Endless())
    found = as_batches(Endless(), steps=3)
    assert found.total == 3
    assert [x[0, 0] for x, _, _ in found] == [0, 1, 2]


@pytest.mark.parametrize("more", [{"sample_weight": Y}, {"batch_size": 2}])
def test_a_dataset_brings_its_own_weights_and_batches(more):
    with pytest.raises(ValueError, match="A dataset brings its own weights"):
        as_batches([(X, Y)], **more)


def test_what_cannot_be_iterated_is_no_data():
    def generator():
        yield X, Y

    with pytest.raises(ValueError) as of_a_function:
        as_batches(generator)
    with pytest.raises(ValueError) as of_a_number:
        as_batches(3)
    assert "Call it, if it makes a generator" in str(of_a_function.value)
    assert "Call it" not in str(of_a_number.value)
    assert "int" in str(of_a_number.value)


def test_a_dataset_of_single_samples_is_no_data():
    class Dataset:  # as those of torch
        def __getitem__(self, index):
            return X[index], Y[index]

    with pytest.raises(ValueError, match="in a `DataLoader`"):
        as_batches(Dataset())


class Labeled:
    """An array whose index is a label, as that of pandas can be."""

    def __init__(self, values):
        self.iloc, self.shape, self.dtype = values, values.shape, values.dtype

    def __getitem__(self, label):
        raise KeyError(label)

    def __len__(self):
        return len(self.iloc)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.iloc, dtype)


def test_samples_are_taken_by_their_place_and_not_by_a_label():
    x, y = np.arange(10.0).reshape(5, 2), np.arange(5)
    given = {"a": Labeled(x)}, Labeled(y), Labeled(0.5 * y)
    found = list(as_batches(*given, batch_size=2))
    for start, (inputs, labels, weights) in zip((0, 2, 4), found, strict=True):
        part = slice(start, start + 2)
        np.testing.assert_array_equal(inputs["a"], x[part])
        np.testing.assert_array_equal(labels, y[part])
        np.testing.assert_array_equal(weights, 0.5 * y[part])


def test_an_index_of_fractions_loses_no_row_of_pandas():
    pandas = pytest.importorskip("pandas")
    x, y = np.random.default_rng(0).normal(size=(100, 3)), np.arange(100) % 3
    model = keras.Sequential([keras.Input((3,)), keras.layers.Softmax()])
    plain = kc.calibrate(model, x, y, verbose=0)
    for index in (0.5 * np.arange(100), np.arange(100.0)[::-1] + 7):
        frame = pandas.DataFrame(x, index=index)
        labels = pandas.Series(y, index=index)
        found = kc.calibrate(model, frame, labels, verbose=0)
        record = kc.calibration_record(found)
        assert record["num_samples"] == 100
        temperature = kc.calibration_record(plain)["temperature"]
        assert record["temperature"] == pytest.approx(temperature, rel=1e-6)
