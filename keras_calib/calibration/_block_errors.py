"""Errors and mean predictions of maps that divide logits, block by block."""

import functools

import numpy as np

from keras_calib.calibration._fit import NUM_BINS
from keras_calib.calibration._source_prior import prior_and_bias
from keras_calib.evaluation.floor import normal_means
from keras_calib.inputs.arrays import LOWEST
from keras_calib.inputs.arrays import two_classes
from keras_calib.ops.bin_errors import Bins
from keras_calib.ops.bin_errors import calibration_error
from keras_calib.ops.binning import bin_index
from keras_calib.solvers.blocks import IN_CACHE
from keras_calib.solvers.blocks import row_blocks
from keras_calib.solvers.blocks import sum_groups

# Rows of a block, where classes are many.
LEAST_ROWS = 8


def before_and_after_in_blocks(read):
    """What `before_and_after` and `source_prior` find, from sums over blocks.

    Args:
        read: iterable of `(logits, labels, weights, beta)`; the map multiplies
            logits by `beta`, a float or `(n,)`.
    """
    sums, class_sums, num_rows = np.zeros((2, 5, NUM_BINS)), 0.0, 0
    for logits, labels, weights, beta in read:
        if logits.shape[1] == 1:
            logits = two_classes(logits)
        beta = np.broadcast_to(np.asarray(beta, "float64"), len(labels))
        block = logits, labels, weights, beta
        # Sums over classes are as long as a row: a block has several.
        size = max(IN_CACHE, LEAST_ROWS * logits.shape[1])
        blocks = row_blocks(*logits.shape, size)
        found = sum_groups(functools.partial(_sums, *block), blocks)
        sums += found[: sums.size].reshape(sums.shape)
        class_sums += found[sums.size :].reshape(3, -1)
        num_rows += len(labels)
    found = {"ece_num_bins": NUM_BINS}
    for moment, part in zip(("before", "after"), sums, strict=True):
        weight, residual, loss, hits, variance = part
        total = weight.sum()
        found[f"nll_{moment}"] = float(loss.sum() / total)
        bins = Bins(weight, residual, xp=np)
        found[f"ece_{moment}"] = float(calibration_error(bins))
        # A temperature changes no prediction; the noise is that after it.
        found["accuracy"] = float(hits.sum() / total)
        noise = normal_means(variance).sum()
        found["ece_noise"] = float(noise / total)
    mean, variance, frequency = class_sums / [[total], [total**2], [total]]
    return found | prior_and_bias(mean, variance, frequency, num_rows)


def _sums(logits, labels, weights, beta, rows):
    """Sums over rows, one after the other in one array.

    Those in each bin, at 1 and at `beta`, `(2, 5, NUM_BINS)`; and those of
    each class at `beta`, `(3, num_classes)`: predictions, their variances, and
    labels.
    """
    z, labels, w = logits[rows], labels[rows], weights[rows]
    each, predicted = np.arange(len(z)), z.argmax(axis=1)
    d = z - z[each, predicted][:, None]
    np.maximum(d, LOWEST, out=d)  # minus infinity is a probability of 0
    gap, correct = d[each, labels].astype("float64"), predicted == labels
    sums = []
    for scale in (np.ones(len(z)), beta[rows]):
        e = d * scale.astype(d.dtype)[:, None]
        total = np.exp(e, out=e).sum(axis=1)
        index = bin_index(1 / total, NUM_BINS)
        total = total.astype("float64")
        confidence = 1 / total
        values = (
            w,
            w * (confidence - correct),
            w * (np.log(total) - scale * gap),
            w * correct,
            w**2 * confidence * (1 - confidence),
        )
        sums += [np.bincount(index, each, NUM_BINS) for each in values]
    share = w / total
    # `@` would copy `e` as float64.
    over_rows = functools.partial(np.einsum, "i,ij->j")
    prediction, variance = over_rows(share, e), over_rows(w * share, e)
    variance -= over_rows(share**2, np.square(e, out=e))
    frequency = np.bincount(labels, w, z.shape[1])
    return np.concatenate([*sums, prediction, variance, frequency])
