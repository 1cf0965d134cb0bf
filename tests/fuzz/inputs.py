"""What people pass in: batches, mostly good, and settings, sometimes silly."""

import dataclasses
import inspect

import numpy as np
from hypothesis import strategies as st

NAN, INF = float("nan"), float("inf")


@dataclasses.dataclass
class Batch:
    """One batch, and how it is to be read.

    Attributes:
        y: labels.
        p: logits or probabilities.
        w: sample weights, or `None`.
        options: `from_logits`, and at times `ignore_class` and `axis`.
        mask: what Keras keeps on predictions, or `None`.
        good: whether everything fits together.
    """

    y: object
    p: object
    w: object
    options: dict
    mask: object
    good: bool


LEADS = [(6,), (6,), (1,), (24,), (2, 3), (3, 1), (1, 2, 3), (0,), (0, 3)]
KINDS = ["ids", "ids", "column", "floats", "one-hot", "soft", "list", "binary"]
SPECIAL = [NAN, INF, -INF, -1.0, 0.0, 0.5, 1.0, 2.0, 255.0, 1e30, -1e30, 1e-30]
DTYPES = [
    *("float16", "float32", "float64", "int8", "uint8", "int64", "bool"),
    *("complex64", "object", "str", "datetime64[s]"),
]
NOT_ARRAYS = [
    *(None, 0, 1.5, "labels", "", b"x", [], {}, (), [[]], [1, [2, 3]], [None]),
    *({"a": [1]}, [["a"]], object(), np.array(3), np.zeros((0, 0)), [NAN]),
]


@st.composite
def batches(draw, only_logits=False):
    """A `Batch`; in half of the cases nothing is wrong with it."""
    lead = draw(st.sampled_from(LEADS))
    num_classes = draw(st.sampled_from([2, 3, 3, 5, 1]))
    from_logits = only_logits or draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.sampled_from([1.0, 1.0, 0.0, 30.0, 1000.0]))
    z = (scale * rng.normal(size=(*lead, num_classes))).astype("float32")
    p = z if from_logits else probabilities(z)
    kind = draw(st.sampled_from(KINDS))
    y, options = labels(rng, kind, lead, max(2, num_classes)), {}
    w = None
    if draw(st.booleans()):
        ranks = draw(st.integers(1, len(lead)))
        w = rng.uniform(0, 2, lead[:ranks])
    mask = draw(masks(rng, lead)) if draw(st.booleans()) else None
    void = draw(st.sampled_from([None, None, None, 0, 255, -1]))
    if void is not None:
        options["ignore_class"] = void
    if from_logits or draw(st.booleans()):
        options["from_logits"] = from_logits
    arrays = {"y": y, "p": p, "w": w}
    spoils = draw(st.sampled_from([0, 0, 0, 1, 1, 2]))
    for _ in range(spoils):
        key = draw(st.sampled_from(["y", "p", "w"]))
        arrays[key] = draw(spoiled(arrays[key]))
    if draw(st.integers(0, 9)) == 0:
        options["axis"] = draw(st.sampled_from([1, 0, -2, 7, "1", None, 1.0]))
        spoils += 1
    size = int(np.prod(lead))
    good = not spoils and size > 0 and kind != "binary"
    # The loss of a label that is ruled out is infinite.
    good = good and (from_logits or 0 < p.min() <= p.max() < 1)
    good = good and np.shape(mask) in ((), *(lead[:n] for n in (1, 2, 3)))
    return Batch(**arrays, options=options, mask=mask, good=good)


@st.composite
def masks(draw, rng, lead):
    """A mask of rows or of whole samples, at times all false or wrong."""
    mask = rng.uniform(size=lead[: draw(st.integers(1, len(lead)))]) < 0.6
    way = draw(st.integers(0, 7))
    if way == 0:
        return np.zeros_like(mask)
    if way == 1:
        return draw(st.sampled_from([mask[..., None], mask[:-1], mask.T]))
    return mask


def probabilities(z):
    z = z.astype("float64")
    if z.shape[-1] == 1:
        return (1 / (1 + np.exp(-np.clip(z, -700, 700)))).astype("float32")
    e = np.exp(z - z.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)).astype("float32")


def labels(rng, kind, lead, num_classes):
    ids = rng.integers(0, num_classes, lead)
    return {
        "ids": ids,
        "column": ids[..., None],
        "floats": ids.astype("float32"),
        "one-hot": np.eye(num_classes, dtype="float32")[ids],
        "soft": rng.dirichlet(np.ones(num_classes), lead),
        "list": ids.tolist(),
        "binary": rng.integers(0, 2, (*lead, num_classes)),
    }[kind]


@st.composite
def spoiled(draw, array):
    """An array with something wrong in it, or in its place."""
    way = draw(st.integers(0, 5))
    if array is None or way == 0:
        return draw(st.sampled_from(NOT_ARRAYS))
    try:
        array = np.asarray(array)
    except ValueError:  # lists of different lengths, spoiled before
        return array
    if way == 1 and array.size and array.dtype.kind in "biuf":
        array = array.astype("float64")
        for _ in range(draw(st.integers(1, 3))):
            at = draw(st.integers(0, array.size - 1))
            array.reshape(-1)[at] = draw(st.sampled_from(SPECIAL))
        return array
    if way == 2 or not array.ndim:
        dtype = draw(st.sampled_from(DTYPES))
        return as_dtype(array, dtype)
    if way == 3:
        return array[:-1] if draw(st.booleans()) else array[..., None]
    if way == 4:
        return array.T
    return array.reshape(-1)


def as_dtype(array, dtype):
    try:
        return array.astype(dtype)
    except (TypeError, ValueError):
        return array


SILLY = [
    *(None, 0, -1, 1, 2, 7, 0.5, -0.5, 1e-30, 1e30, NAN, INF, -INF, True),
    *("", "no", (), [], {}, [0.5], (0.2, 0.8), (0.8, 0.2), [3, 2, 1]),
    *(np.float32(0.3), np.int64(3), np.array([1.0, 2.0]), 1j, b"x"),
    *(object(), "1", [None], [[1]], {"a": 1}, -3.5),
]
# Good values of settings by their names, beside the default.
NAMED = {
    "binning": ["width", "mass"],
    "num_bins": [1, 2, 10],
    "norm": [1, 2, 3, INF],
    "primary": ["cross_entropy", "brier", "focal"],
    "weight": [0.0, 1.0],
    "ignore_class": [0, 255, -1],
    "from_logits": [True, False],
    "metrics": [["accuracy"], ["expected_calibration_error", "no"]],
    "floor": [True],
    "refinement": [True],
    "interval": ["auto", "basic", "percentile"],
    "kind": ["bars", "corp", "smooth"],
    "band": [None, "pointwise", "simultaneous"],
    "class_id": [0, 1, 5],
    "objective": ["nll", "ece", "focal", "label_smoothing"],
    "output": ["logits", "probabilities"],
    "form": ["bin", "label"],
    "smoother": ["loess", "isotonic"],
    "estimator": ["unbiased", "biased", "linear"],
    "bin_range": [(0.0, 1.0), (0.3, 1.0)],
    "method": ["lac", "aps", "raps", "platt", "temperature"],
    "reference": ["zero", "min"],
    "normalization": ["normal", "min_max", "none"],
    "hidden": [(3,), ()],
    "num_classes": [3],
    "class_names": [["a", "b", "c"]],
    "seed": [0, 5],
}
# What takes time is kept small; here nothing silly and large is drawn.
FIXED = {
    "verbose": [0],
    "num_resamples": [2, 5, 1, 0, -1, "5", None, NAN],
    "num_draws": [2, 5, 1, 0, -1, "5", None, NAN],
    "iterations": [3, 0, -1, "3"],
    "epochs": [1, 0, -1, "3"],
    "num_points": [63, 0, -1, None],
    "num_masks": [2, 0, -1, None, 0.5],
    "max_bins": [5, 0, -1, None],
    "max_seconds": [None, 5.0, -1.0],
    "download": [False],
    "data_dir": ["/no/such/folder"],
    "axes": [None, 3, "axes"],
    "steps": [None, 1, 0, -1],
    "severities": [(1,), (), (9,), "1", None, 3],
    "corruptions": [("contrast",), (), ("no",), "fog", None],
}


@st.composite
def settings_of(draw, function, leave_out=()):
    """Keyword arguments: most are the defaults, some are good, few silly."""
    found = {}
    rate = draw(st.sampled_from([0, 0, 15, 40]))
    for name, each in inspect.signature(function).parameters.items():
        if each.kind is not each.KEYWORD_ONLY or name in leave_out:
            continue
        if name in FIXED:
            found[name] = FIXED[name][0]
            if draw(st.integers(0, 99)) < rate:
                found[name] = draw(st.sampled_from(FIXED[name]))
        elif draw(st.integers(0, 99)) < rate:
            good = NAMED.get(name, [])
            if good and draw(st.booleans()):
                found[name] = draw(st.sampled_from(good))
            elif isinstance(each.default, bool):
                found[name] = draw(st.sampled_from([not each.default, *SILLY]))
            else:
                found[name] = draw(st.sampled_from(SILLY))
    return found
