"""Losses that are computed another way than they are written in their paper.

Each plain formula stands here as the docstring has it; value and gradient of
the fast form agree with it, on random logits and on tied ones.
"""

import keras
import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from tests.helpers import value_and_gradient

RNG = np.random.default_rng(0)
LOGITS = 3 * RNG.normal(size=(40, 5)).astype("float32")
LABELS = RNG.integers(0, 5, 40).astype("int32")


def label_probability(z):
    return ops.take_along_axis(ops.softmax(z), LABELS[:, None], axis=1)[:, 0]


def focal(z, gamma=3.0):
    p = label_probability(z)
    return -((1 - p) ** gamma) * ops.log(p)


def margin_label_smoothing(z, margin=1.0):
    largest = ops.max(z, axis=1, keepdims=True)
    return ops.mean(ops.relu(largest - z - margin), axis=1)


def dual_focal(z, gamma=5.0):
    p = ops.softmax(z)
    p_y = label_probability(z)
    p_m = ops.max(ops.where(p < p_y[:, None], p, 0.0), axis=1)
    return -((1 - p_y + p_m) ** gamma) * ops.log(p_y)


def acls(reference, negatives):
    def formula(z, margin=1.0):
        largest = ops.max(z, axis=1, keepdims=True)
        low = ops.min(z, axis=1, keepdims=True) if reference == "min" else 0.0
        held = largest
        if reference == "zero":
            held = ops.stop_gradient(largest)
        positive = ops.square(ops.relu(largest - low - margin))[:, 0]
        other = ops.cast(z < largest, z.dtype)
        terms = other * ops.square(ops.relu(held - z - margin))
        negative = ops.sum(terms, axis=1)
        if negatives == "mean":
            negative = negative / (z.shape[1] - 1)
        return 0.1 * positive + 0.01 * negative

    return formula


def mdca(z):
    one_hot = ops.one_hot(LABELS, z.shape[1])
    gap = ops.mean(ops.softmax(z) - one_hot, axis=0)
    return ops.mean(ops.abs(gap))


def entropy(z):
    p = ops.softmax(z)
    return ops.sum(p * ops.log(p), axis=1)


CASES = {
    "focal": (focal, lambda z: kc.losses.focal_loss(LABELS, z)),
    "margin": (
        margin_label_smoothing,
        lambda z: kc.losses.margin_label_smoothing(LABELS, z, margin=1.0),
    ),
    "dual focal": (dual_focal, lambda z: kc.losses.dual_focal_loss(LABELS, z)),
    "mdca": (mdca, lambda z: kc.losses.mdca(LABELS, z)),
    "entropy": (
        entropy,
        lambda z: kc.losses.entropy_regularization(LABELS, z),
    ),
}
for reference in ("zero", "min"):
    for negatives in ("mean", "sum"):
        CASES[f"acls {reference} {negatives}"] = (
            acls(reference, negatives),
            lambda z, reference=reference, negatives=negatives: kc.losses.acls(
                LABELS,
                z,
                margin=1.0,
                reference=reference,
                negatives=negatives,
            ),
        )


@pytest.mark.parametrize("case", CASES)
def test_fast_form_is_the_plain_formula(case):
    plain, fast = CASES[case]
    expected = value_and_gradient(lambda z: ops.sum(plain(z)), LOGITS)
    found = value_and_gradient(lambda z: ops.sum(fast(z)), LOGITS)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("case", ["focal", "margin", "dual focal", "mdca"])
def test_tied_logits_have_the_same_value(case):
    plain, fast = CASES[case]
    tied = np.round(LOGITS)
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(fast(ops.convert_to_tensor(tied))),
        keras.ops.convert_to_numpy(plain(ops.convert_to_tensor(tied))),
        rtol=2e-5,
        atol=1e-6,
    )
