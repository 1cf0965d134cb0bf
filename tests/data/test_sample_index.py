"""A sample keeps its number, whatever form the data has."""

import pickle
from functools import partial

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.data.indexed_arrays import IndexedArrays
from keras_calib.data.sample_index import split_index

X = np.arange(20, dtype="float32").reshape(10, 2)
Y = np.arange(10) % 3


def numbers_and_inputs(batches):
    """What came with each number, over all batches."""
    found = {}
    for batch in batches:
        inputs, index = split_index(batch[0])
        for i, x in zip(np.asarray(index), np.asarray(inputs), strict=True):
            found.setdefault(int(i), []).append(x.tolist())
    return found


EVERY_SAMPLE_ONCE = {i: [x] for i, x in enumerate(X.tolist())}


def test_arrays():
    found = kc.add_sample_index(X)
    assert found["inputs"] is X
    assert found["sample_index"].tolist() == list(range(10))
    assert found["sample_index"].dtype == "int32"


def test_several_inputs():
    found = kc.add_sample_index({"a": X, "b": X[:, 0]})
    assert set(found["inputs"]) == {"a", "b"}
    assert len(found["sample_index"]) == 10
    with pytest.raises(ValueError, match="one entry per sample"):
        kc.add_sample_index([X, X[:4]])


@pytest.mark.parametrize("batched", [False, True], ids=["samples", "batches"])
def test_tf_data(batched):
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    if batched:
        data = kc.add_sample_index(data.batch(4)).unbatch()
    else:
        data = kc.add_sample_index(data)
    data = data.shuffle(10, seed=1).repeat(2).batch(3)
    found = numbers_and_inputs(data.as_numpy_iterator())
    assert found == {i: [x, x] for i, x in enumerate(X.tolist())}


def test_tf_data_with_weights_and_whole_batches():
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.from_tensor_slices((X, Y, np.ones(10)))
    for batches in (
        kc.add_sample_index(data.batch(5, drop_remainder=True)),
        kc.add_sample_index(data, batched=False).batch(5),
    ):
        batches = list(batches.as_numpy_iterator())
        assert [len(batch) for batch in batches] == [3, 3]
        assert numbers_and_inputs(batches) == EVERY_SAMPLE_ONCE


@pytest.mark.parametrize("batched", [False, True], ids=["samples", "batches"])
def test_tf_data_without_labels(batched):
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.from_tensor_slices(X)
    if batched:
        found = kc.add_sample_index(data.batch(4))
    else:
        # Whether rows are samples cannot be told.
        found = kc.add_sample_index(data, batched=False).batch(4)
    batches = list(found.as_numpy_iterator())
    assert [len(batch) for batch in batches] == [1, 1, 1]
    assert numbers_and_inputs(batches) == EVERY_SAMPLE_ONCE


def test_tf_data_that_was_shuffled_has_lost_its_numbers():
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    for lost in (data.shuffle(10).batch(2), data.repeat().batch(2).prefetch(1)):
        with pytest.raises(ValueError, match="before they are shuffled"):
            kc.add_sample_index(lost)


def test_tf_data_in_whichever_order_it_comes_has_no_numbers():
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    options = tf.data.Options()
    options.deterministic = False
    cases = {
        "ParallelMapDataset": data.map(
            lambda x, y: (x, y), num_parallel_calls=2, deterministic=False
        ),
        "RandomDataset": tf.data.Dataset.sample_from_datasets(
            [data, data], rerandomize_each_iteration=True
        ),
        "Options": data.with_options(options),
    }
    for name, lost in cases.items():
        with pytest.raises(ValueError, match=rf"order they come.*{name}\("):
            kc.add_sample_index(lost.batch(2))
    kept = data.map(lambda x, y: (x, y), num_parallel_calls=2)
    found = kc.add_sample_index(kept.batch(4)).as_numpy_iterator()
    assert numbers_and_inputs(found) == EVERY_SAMPLE_ONCE


class Batches(keras.utils.PyDataset):
    def __init__(self, size=4, **kwargs):
        super().__init__(**kwargs)
        self.size = size

    def __len__(self):
        return -(-len(X) // self.size)

    def __getitem__(self, i):
        part = slice(i * self.size, (i + 1) * self.size)
        return X[part], Y[part]


class Reshuffled(Batches):
    def on_epoch_end(self):
        pass


class Uneven(Batches):
    def __getitem__(self, i):
        part = slice(0, 2) if i == 1 else slice(0, 4)
        return X[part], Y[part]


def test_py_dataset():
    data = kc.add_sample_index(Batches(workers=2, max_queue_size=3))
    assert (data.workers, data.max_queue_size) == (2, 3)
    # In any order.
    batches = [data[i] for i in (2, 0, 1)]
    assert numbers_and_inputs(batches) == EVERY_SAMPLE_ONCE


def test_py_dataset_without_fixed_places():
    with pytest.raises(ValueError, match="Reshuffled with on_epoch_end"):
        kc.add_sample_index(Reshuffled())
    with pytest.raises(ValueError, match="a batch of 2 after one of 4"):
        kc.add_sample_index(Uneven())[1]


def test_an_endless_py_dataset_has_no_numbers():
    class Endless(Batches):
        num_batches = None

    with pytest.raises(ValueError, match="samples of an endless `PyDataset`"):
        kc.add_sample_index(Endless())


def test_indexed_arrays_go_to_another_process():
    data = IndexedArrays(X, Y, batch_size=4, seed=3)
    data.on_epoch_begin()
    again = pickle.loads(pickle.dumps(data))
    for i in (2, 0, 1):
        (here, labels), (there, others) = data[i], again[i]
        np.testing.assert_array_equal(
            here["sample_index"], there["sample_index"]
        )
        np.testing.assert_array_equal(labels, others)
    assert again._lock is not data._lock


@pytest.mark.parametrize(
    "make",
    [
        kc.callbacks.DataPruning,
        partial(kc.callbacks.EmpiricalTargets, num_classes=3),
    ],
)
def test_data_to_train_on_has_samples(make):
    # Keras would end with a `StopIteration` on JAX.
    with pytest.raises(ValueError, match="no samples to train on"):
        make(X[:0], Y[:0])


def test_a_batch_after_the_last_is_empty_and_takes_no_place():
    data = IndexedArrays(X, Y, batch_size=4, shuffle=False)
    data.on_epoch_begin()
    assert len(data[3][1]) == 0
    batches = [data[i] for i in (1, 2, 0)]
    assert numbers_and_inputs(batches) == EVERY_SAMPLE_ONCE
    np.testing.assert_array_equal(np.concatenate([b[1] for b in batches]), Y)


def loader(shuffle=False, dataset=None, **kwargs):
    torch = pytest.importorskip("torch")
    if dataset is None:
        dataset = torch.utils.data.TensorDataset(
            torch.tensor(X), torch.tensor(Y)
        )
    return torch.utils.data.DataLoader(
        dataset, shuffle=shuffle, batch_size=3, **kwargs
    )


def test_loader_may_shuffle():
    data = kc.add_sample_index(loader(shuffle=True))
    first, second = list(data), list(data)
    assert numbers_and_inputs(first) == EVERY_SAMPLE_ONCE
    assert numbers_and_inputs(second) == EVERY_SAMPLE_ONCE
    assert np.asarray(first[0][0]["sample_index"]).tolist() != list(range(3))
    assert len(first[0]) == 2 and len(data) == 4


def test_loader_of_a_stream():
    torch = pytest.importorskip("torch")

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(3))

    with pytest.raises(ValueError, match="random access"):
        kc.add_sample_index(loader(dataset=Stream()))


def test_what_cannot_be_numbered():
    with pytest.raises(ValueError, match="A generator must give"):
        kc.add_sample_index(iter([(X, Y)]))
