"""Data that is read batch by batch, and what is no data."""

import keras
import numpy as np
import pytest

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
