"""Copies of a model that train at once, each on its part of the batch.

TensorFlow has them in a `tf.distribute` strategy, PyTorch as processes of
`torch.distributed`. On JAX, `keras.distribution` shows the whole batch.
"""

import functools

import keras
from keras import ops

from keras_calib._typing import ArrayLike
from keras_calib._typing import Tensor
from keras_calib.keras_private import in_symbolic_scope

# Types that every way of communication has.
SENT = ("float32", "float64", "int32", "int64")


def num_replicas(model=None):
    """Replicas of the strategy of `model`, or of the one that is active.

    Args:
        model: a `keras.Model`; `None` inside a step, or a strategy's scope.
    """
    if keras.backend.backend() != "tensorflow":
        return 1
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is None:
        import tensorflow as tf

        strategy = tf.distribute.get_strategy()
    return strategy.num_replicas_in_sync


def of_all_replicas(values: ArrayLike) -> Tensor:
    """Rows of this replica and of all others, in the order of the replicas.

    The gradient of a row is the sum of what the replicas have for it. If each
    computes the same loss of all rows, the mean over the replicas (which
    `DistributedDataParallel` and Keras under a strategy take) of the gradients
    of the weights is that of one device.

    Args:
        values: rows, shape `(n, ...)`. With PyTorch the same in all processes.

    Returns:
        Shape `(num_replicas * n, ...)`; `values` where there is one replica.

    Raises:
        ValueError: if the numbers of rows of PyTorch's processes differ.
    """
    rows: Tensor = ops.convert_to_tensor(values)
    gather = {"tensorflow": _of_strategy, "torch": _of_processes}.get(
        keras.backend.backend()
    )
    if gather is None or in_symbolic_scope():
        return rows
    dtype = keras.backend.standardize_dtype(rows.dtype)
    if dtype in SENT:
        return gather(rows)
    wide = "float32" if "float" in dtype else "int32"
    return ops.cast(gather(ops.cast(rows, wide)), dtype)


def _of_strategy(rows):
    import tensorflow as tf

    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return rows
    whole = replica.all_gather(rows, axis=0)
    whole.set_shape([None, *rows.shape[1:]])
    return whole


def _of_processes(rows):
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        return rows
    if distributed.get_world_size() == 1:
        return rows
    return _gathering().apply(rows)


def _check_lengths(rows):
    """Raise, in each process, unless all have as many rows.

    The gathering itself would end the processes, or wait forever.
    """
    import torch
    from torch import distributed

    length = torch.tensor([len(rows)], device=rows.device)
    parts = [
        torch.empty_like(length) for _ in range(distributed.get_world_size())
    ]
    distributed.all_gather(parts, length)
    lengths = torch.cat(parts).tolist()
    if len(set(lengths)) > 1:
        raise ValueError(
            "A statistic of the batch over all processes needs batches of one "
            f"size. Received: batches of {lengths} rows, by process. Leave out "
            "the last, smaller batch: `drop_last=True` of PyTorch's "
            "`DataLoader` and `DistributedSampler`."
        )


@functools.cache
def _gathering():
    """A function of PyTorch: `all_gather`, with its gradient."""
    import torch
    from torch import distributed

    class Gathering(torch.autograd.Function):
        @staticmethod
        def forward(context, rows):
            context.length = len(rows)
            rows = rows.contiguous()
            _check_lengths(rows)
            parts = [
                torch.empty_like(rows)
                for _ in range(distributed.get_world_size())
            ]
            distributed.all_gather(parts, rows)
            return torch.cat(parts)

        @staticmethod
        def backward(context, gradient):
            total = gradient.clone()
            distributed.all_reduce(total)
            return total.split(context.length)[distributed.get_rank()]

    return Gathering
