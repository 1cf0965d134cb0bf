"""Whether data may come in another order each time that it is read."""

import keras

from keras_calib.data.batches import is_loader
from keras_calib.data.batches import is_tf_data
from keras_calib.keras_private import dataset_freedoms
from keras_calib.keras_private import dataset_inputs

SHUFFLE, REPEAT = "ShuffleDataset", "RepeatDataset"
# Of torch; others may have an order that is known.
RANDOM_SAMPLERS = (
    "RandomSampler",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
)


def reordering_steps(data):
    """Steps of a `tf.data` pipeline that may change the order of an epoch.

    As far as it tells: that of `interleave(deterministic=False)` does not.
    """
    name = type(data).__name__.strip("_")
    found = set().union(*map(reordering_steps, dataset_inputs(data)))
    if name in (SHUFFLE, REPEAT):
        found.add(name)
    return found | {f"{name}({each})" for each in dataset_freedoms(data)}


def takes_any_order(data):
    """Whether a `tf.data.Dataset` may give its elements as they come."""
    return data.options().deterministic is False


def refuse_shuffled(data, ids):
    """Refuse ids in the order of data of which every pass has another order.

    Args:
        data: whatever `fit` accepts as `x`.
        ids: `None`, or the ids of its samples.

    Raises:
        ValueError: if there are ids, and the data says that it is shuffled.
    """
    shuffles = None if ids is None else _shuffles(data)
    if shuffles:
        raise ValueError(
            "`groups` has the id of each sample in the order of the data, and "
            "this data has another order each time it is read. Received: "
            f"{shuffles}. Pass data that is not shuffled."
        )


def _shuffles(data):
    """What shuffles the data, in words, or `None` where nothing says so."""
    if is_tf_data(data):
        steps = sorted(reordering_steps(data) - {REPEAT})
        if takes_any_order(data):
            steps.append("Options(deterministic=False)")
        return f"a `tf.data` pipeline with {steps} in it" if steps else None
    if is_loader(data):
        samplers = data.sampler, getattr(data.batch_sampler, "sampler", None)
        names = {type(sampler).__name__ for sampler in samplers}
        names &= {*RANDOM_SAMPLERS}
        return f"a `DataLoader` with a {names.pop()}" if names else None
    if isinstance(data, keras.utils.PyDataset):
        shuffles = getattr(data, "shuffle", None) is True
        return (
            f"{type(data).__name__} with `shuffle=True`" if shuffles else None
        )
    return None
