"""Groups stand beside data whose order does not change."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.data.indexed_arrays import IndexedArrays
from keras_calib.data.order import refuse_shuffled

X = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
Y = np.arange(60) % 3
GROUPS = np.repeat(["a", "b", "c"], 20)


def tf_data(change=lambda data: data):
    tf = pytest.importorskip("tensorflow")
    return change(tf.data.Dataset.from_tensor_slices((X, Y)))


def loader(**arguments):
    torch = pytest.importorskip("torch")
    dataset = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))
    return torch.utils.data.DataLoader(dataset, **arguments)


def sampled(batches):
    """A loader with a random sampler, which may be that of its batches."""
    torch = pytest.importorskip("torch")
    sampler = torch.utils.data.WeightedRandomSampler(np.ones(60), 60)
    if not batches:
        return loader(sampler=sampler, batch_size=8)
    sampler = torch.utils.data.BatchSampler(sampler, 8, drop_last=False)
    return loader(batch_sampler=sampler)


def unordered(data):
    import tensorflow as tf

    options = tf.data.Options()
    options.deterministic = False
    return data.batch(8).with_options(options)


SHUFFLED = {
    "ShuffleDataset": lambda: tf_data(lambda d: d.shuffle(60).batch(8).cache()),
    "deterministic=False": lambda: tf_data(unordered),
    "a `DataLoader` with a RandomSampler": lambda: loader(
        shuffle=True, batch_size=8
    ),
    "a `DataLoader` with a WeightedRandomSampler": lambda: sampled(False),
    "with a WeightedRandomSampler": lambda: sampled(True),
    "IndexedArrays with `shuffle=True`": lambda: IndexedArrays(
        X, Y, batch_size=8
    ),
}


@pytest.mark.parametrize("name", SHUFFLED)
def test_shuffled_data_has_no_groups(name):
    data = SHUFFLED[name]()
    with pytest.raises(ValueError, match=name):
        refuse_shuffled(data, GROUPS)
    refuse_shuffled(data, None)


@pytest.mark.parametrize(
    "make",
    [
        lambda: X,
        lambda: tf_data(lambda d: d.batch(8).repeat(1).prefetch(1)),
        lambda: loader(batch_size=8),
        lambda: loader(batch_size=None),
        lambda: IndexedArrays(X, Y, batch_size=8, shuffle=False),
        lambda: iter([(X, Y)]),
    ],
    ids=["arrays", "tf.data", "loader", "samples", "PyDataset", "generator"],
)
def test_other_data_may_have_groups(make):
    refuse_shuffled(make(), GROUPS)


@pytest.mark.parametrize("function", [kc.calibrate, kc.report])
def test_groups_of_shuffled_data_are_refused(function):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    data = loader(shuffle=True, batch_size=8)
    with pytest.raises(ValueError, match="`groups` has the id of each sample"):
        function(model, data, groups=GROUPS, from_logits=True, verbose=0)
