"""Blocks of rows, threads over them, and relative weights, for every solver."""

import concurrent.futures
import contextlib
import contextvars
import functools
import os
import threading

import numpy as np
import threadpoolctl

# Elements of one block whose work arrays stay in a level-2 cache.
IN_CACHE = 1 << 16
# Threads that sum large results.
GROUPS = 4
# Classes that are worth a thread.
CLASSES = 16
# Elements of one block of float64 scores.
BLOCK = 1 << 18
# Elements of one block that Keras computes, where each call costs time.
TENSOR_BLOCK = 1 << 20
# Floor of float64 numbers before a logarithm or a reciprocal.
TINY64 = 1e-300


def row_blocks(count: int, width: int, elements: int = BLOCK) -> list[slice]:
    """Slices that cut `count` rows of `width` numbers into small blocks."""
    rows = max(1, elements // width)
    return [slice(start, start + rows) for start in range(0, count, rows)]


@functools.cache
def threads():
    """The pool of threads that passes over the logits share."""
    # NumPy releases the interpreter lock inside its loops.
    return concurrent.futures.ThreadPoolExecutor(
        max_workers=min(8, os.cpu_count() or 1)
    )


_LIMIT = threading.Lock()


@functools.cache
def _libraries():
    return threadpoolctl.ThreadpoolController()


@contextlib.contextmanager
def one_blas_thread():
    """In the block, products of matrices take one thread each.

    Blocks of rows have `threads` of their own. Products that start more of them
    wait for each other: on cores that have other work to do, fits took twenty
    to fifty times as long.
    """
    # The limit is that of the process. One block sets it and takes it back;
    # those inside of it find it set, and those beside it as long as it lasts.
    if not _LIMIT.acquire(blocking=False):
        yield
        return
    try:
        with _libraries().limit(limits=1, user_api="blas"):
            yield
    finally:
        _LIMIT.release()


_ON_PASS = contextvars.ContextVar("on_pass", default=None)


@contextlib.contextmanager
def each_pass(call):
    """In the block, `call()` after each pass of a solver over many rows."""
    token = _ON_PASS.set(call)
    try:
        yield
    finally:
        _ON_PASS.reset(token)


def passed():
    """A solver has read all rows, as many, or a batch of images once more."""
    call = _ON_PASS.get()
    if call is not None:
        call()


def sum_blocks(function, blocks, add_up=sum):
    """The sum of `function(block)` over blocks, computed in threads."""
    if len(blocks) == 1:  # a thread would cost more than it saves
        return function(blocks[0])
    found = add_up(threads().map(function, blocks))
    passed()
    return found


def sum_groups(function, blocks):
    """`sum_blocks` for large results, of which few exist at a time.

    The groups do not depend on the machine, so that no result does.
    """
    groups = [blocks[start::GROUPS] for start in range(GROUPS)]

    def total(group):
        return _sum_in_place(map(function, group))

    return sum_blocks(total, list(filter(None, groups)), _sum_in_place)


def _sum_in_place(arrays):
    """Their sum in float64; of arrays of objects, of each one."""
    found = None
    for array in arrays:
        if found is None:
            if array.dtype == object:
                array[:] = [np.asarray(each, float)[()] for each in array]
            else:
                array = array.astype(float, copy=False)
            found = array
        elif found.dtype == object:
            for i in range(len(found)):
                found[i] += array[i]
        else:
            found += array
        del array  # before the next one is computed
    return found


def for_groups(function, num_classes):
    """Call `function(classes)` for groups of class ids, in threads."""
    count = max(1, min(GROUPS, num_classes // CLASSES))
    groups = np.array_split(np.arange(num_classes), count)
    if count == 1:
        function(*groups)
    else:
        list(threads().map(function, groups))


def normalized_weights(weights: np.ndarray | None, count: int) -> np.ndarray:
    """Weights divided by their sum, float64; equal weights for `None`."""
    if weights is None:
        return np.full(count, 1 / count)
    weights = np.asarray(weights, "float64")
    return weights / weights.sum()


def objective_in_blocks(function, objective, shape, weights):
    """Evaluate an objective block by block if it is a mean over samples.

    Args:
        function: `function(rows, weights)` for a slice of rows and their
            weights; returns the value, and the gradient with respect to the
            scores of these rows or a linear function of that gradient.
        objective: `Objective`.
        shape: `(n, num_classes)`, the shape of the scores.
        weights: `(n,)`.

    Returns:
        value: float.
        pieces: list of the gradients, scaled to the mean over all samples.
    """
    blocks = row_blocks(*shape) if objective.per_sample else [slice(None)]
    total = weights.sum()
    value, pieces = 0.0, []
    for rows in blocks:
        fraction = weights[rows].sum() / total
        found, piece = function(rows, weights[rows])
        value += fraction * found
        pieces.append(fraction * piece)
    if len(blocks) > 1:
        passed()
    return value, pieces
