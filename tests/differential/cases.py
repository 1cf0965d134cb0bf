"""Batches of every kind that a user can hand over, each with its own numbers.

Every case has 24 rows, whatever its rank, so that what follows the flattening
is compiled once. A row that does not count (masked, void, weight 0) is sure of
a class that is not its label, which every result would show; or, in the second
form of a case, it holds NaN or 1e30 as prediction and -7 as label.
"""

import collections
import dataclasses
import zlib

import keras
import ml_dtypes
import numpy as np
import pytest

from tests.differential import reference

LEADS = {1: (24,), 2: (6, 4), 3: (2, 3, 4), 4: (2, 3, 2, 2)}


@dataclasses.dataclass(frozen=True)
class Case:
    """One batch.

    Attributes:
        name: for the test's id.
        labels: as a user gives them.
        predictions: as a network gives them, the classes on `axis`.
        weight: sample weights, or `None`.
        mask: true where a row is valid, `lead`, or `None`.
        options: `from_logits`, `axis`, `ignore_class` where they are not the
            default.
        dtype: of the predictions.
        garbage: whether rows that do not count hold values that cannot be.
    """

    name: str
    labels: np.ndarray
    predictions: np.ndarray
    weight: np.ndarray | None
    mask: np.ndarray | None
    options: dict
    dtype: str
    garbage: bool = False

    @property
    def from_logits(self):
        return self.options.get("from_logits", False)

    @property
    def axis(self):
        return self.options.get("axis", -1)

    @property
    def num_units(self):
        return self.predictions.shape[self.axis]

    @property
    def one_unit(self):
        return self.num_units == 1

    @property
    def soft(self):
        """Whether labels are distributions that are not one-hot."""
        return "soft" in self.name

    @property
    def lead(self):
        return np.moveaxis(self.predictions, self.axis, -1).shape[:-1]

    def rows(self):
        return reference.read(
            self.labels,
            self.predictions,
            self.weight,
            self.mask,
            axis=self.axis,
            ignore_class=self.options.get("ignore_class"),
            from_logits=self.from_logits,
        )

    def tensor(self):
        """The predictions as the layers of a network give them, mask and all.

        A mask can be had from Keras' own layers only: the rows of an embedding
        are the predictions, and its number 0 is masked.
        """
        if self.mask is None:
            values = keras.ops.convert_to_tensor(
                np.asarray(self.predictions, "float64"), dtype=self.dtype
            )
            return values
        return self.network()(self.inputs())

    def inputs(self):
        """What the network of the case eats: where its rows stand."""
        index = np.arange(1, 1 + np.prod(self.lead)).reshape(self.lead)
        if self.mask is not None:
            index = np.where(self.mask, index, 0)
        return index.astype("int32")

    def network(self, batched=True):
        """A model whose outputs for `inputs()` are the predictions.

        Its only weights are those of an embedding, the predictions row by row.
        """
        shape = self.lead[1:] if batched else self.lead
        scores = np.moveaxis(self.predictions, self.axis, -1)
        scores = scores.reshape(-1, self.num_units).astype("float64")
        first = np.zeros((1, self.num_units))
        if self.mask is not None:
            first = scores[~self.mask.reshape(-1)][:1]
        table = keras.layers.Embedding(
            len(scores) + 1,
            self.num_units,
            mask_zero=self.mask is not None,
            dtype=self.dtype,
        )
        inputs = keras.Input(shape, dtype="int32")
        outputs = table(inputs)
        if self.axis not in (-1, scores.ndim):
            rank = len(self.lead)
            order = [*range(1, rank), rank]
            order.insert(self.axis % (rank + 1) - 1, order.pop())
            outputs = keras.layers.Permute(order)(outputs)
        model = keras.Model(inputs, outputs)
        table.set_weights([np.concatenate([first, scores])])
        return model


def _spread(rows, gap=2e-3):
    """Whether no confidence is near another, nor near the edge of a bin.

    Rounding to float32 then moves no row across any border, and cells of a
    fine histogram hold one row each.
    """
    c = np.sort(rows.c)
    if (np.diff(c) < gap).any():
        return False
    z = np.sort(rows.p, axis=1)
    if (z[:, -1] - z[:, -2] < 1e-2).any():
        return False
    edges = np.arange(1, 15) / 15
    near = np.abs(rows.p.reshape(-1, 1) - edges).min()
    return near > 2e-5


def make(
    name,
    rank=1,
    classes=4,
    *,
    from_logits=True,
    dtype="float32",
    labels="ids",
    label_dtype="int32",
    weight=None,
    mask=False,
    axis=-1,
    void=None,
    dead=False,
    scale=1.0,
    valid=None,
    garbage=False,
):
    """Build a case from a seed that its name gives.

    Args:
        name: of the case.
        rank: of one value per row.
        classes: how many; 1 for one sigmoid unit.
        from_logits: or probabilities.
        dtype: of the predictions.
        labels: `"ids"`, `"column"` (ids with a last axis of 1), `"one_hot"` or
            `"soft"`.
        label_dtype: as it says.
        weight: `None`, or the shape of the weights.
        mask: whether a third of the rows is masked.
        axis: the class axis.
        void: `None`, or the label of void rows.
        dead: whether some weights are 0, over rows that hold garbage.
        scale: what all weights are multiplied by.
        valid: how many rows are not void, where that is asked for.
        garbage: whether rows that do not count hold values that cannot be.
    """
    lead = LEADS[rank]
    start = zlib.crc32(name.encode())
    for attempt in range(20000):
        rng = np.random.default_rng([start, attempt])
        scores = 2.0 * rng.normal(size=(*lead, classes))
        if not from_logits:
            if classes == 1:
                scores = 1 / (1 + np.exp(-scores))
            else:
                scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
                scores /= scores.sum(axis=-1, keepdims=True)
        scores = scores.astype(
            ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
        ).astype("float64")
        # A calibrated network would have errors that are all about 0.
        every = max(2, classes)
        ids = rng.integers(0, every, lead)
        likely = (
            scores.argmax(axis=-1)
            if classes > 1
            else (scores[..., 0] > (0.0 if from_logits else 0.5))
        )
        ids = np.where(rng.random(lead) < 0.45, likely, ids).astype("int64")
        counts = np.ones(lead, bool)
        valid_mask = None
        if mask:
            valid_mask = rng.random(lead) > 0.33
            counts &= valid_mask
        if void is not None:
            if valid is None:
                off = rng.random(lead) < 0.25
            else:
                off = np.arange(24).reshape(lead) >= valid
            counts &= ~off
        w = None
        if weight is not None:
            w = scale * rng.choice([0.5, 1.0, 2.0, 0.8], size=weight)
            if dead:
                flat = w.reshape(-1)
                flat[rng.permutation(flat.size)[: max(1, flat.size // 4)]] = 0
        rows = reference.read(
            ids,
            scores,
            w,
            counts,
            from_logits=from_logits,
        )
        if not len(rows) or _spread(rows):
            break
    else:
        raise AssertionError(f"no seed for {name}")

    if void is not None:
        ids = np.where(off, void, ids)
    silent = np.ones(24, bool)
    silent[rows.place] = False
    silent = silent.reshape(lead)
    given = ids.astype(label_dtype)
    if labels in ("one_hot", "soft"):
        given = np.eye(every)[np.where(silent & (ids < 0), 0, ids) % every]
        if labels == "soft":
            given = 0.7 * given + 0.3 * rng.dirichlet(np.ones(every), lead)
        given = given.astype(label_dtype)
    given = np.moveaxis(given, -1, axis) if given.ndim > rank else given
    if garbage and label_dtype != "uint8":
        # Void rows keep the label that makes them void.
        spoiled = silent if void is None else silent & ~off
        if given.ndim > rank:
            spoiled = np.expand_dims(spoiled, axis)
        given = np.where(spoiled, -7, given).astype(given.dtype)
    if labels == "column":
        given = given[..., None]
    if garbage:
        odd = np.arange(24).reshape(lead) % 2
        scores[silent] = np.where(odd, np.nan, 1e30)[silent][:, None]
    elif silent.any():
        wrong = np.eye(every)[(ids[silent] + 1) % every][:, -classes:]
        if from_logits:
            scores[silent] = 18.0 * wrong - 9.0
        else:
            scores[silent] = 0.01 + (1 - 0.01 * every) * wrong
    options = {}
    if from_logits:
        options["from_logits"] = True
    if axis != -1:
        options["axis"] = axis
    if void is not None:
        options["ignore_class"] = void
    return Case(
        f"{name}_garbage" if garbage else name,
        given,
        np.moveaxis(scores, -1, axis),
        None if w is None else w.astype("float32"),
        valid_mask,
        options,
        dtype,
        garbage,
    )


def both(name, *arguments, **options):
    """The two forms of a case that has rows that do not count."""
    return [
        make(name, *arguments, **options, garbage=garbage)
        for garbage in (False, True)
    ]


CASES = [
    # One row per sample.
    make("ids"),
    make("probabilities", from_logits=False),
    make("one_hot", labels="one_hot", label_dtype="float32"),
    make("one_hot_int8", labels="one_hot", label_dtype="int8"),
    make("soft", labels="soft", label_dtype="float32"),
    make(
        "soft_probabilities",
        labels="soft",
        label_dtype="float64",
        from_logits=False,
    ),
    make("float_ids", label_dtype="float32"),
    make("int64_ids", label_dtype="int64"),
    make("int8_ids", label_dtype="int8"),
    *both("uint8_void_255", label_dtype="uint8", void=255),
    *both("void_minus_1", label_dtype="int64", void=-1),
    make("column_ids", labels="column"),
    make("weights", weight=(24,)),
    make("weights_column", weight=(24, 1)),
    *both("weights_0", weight=(24,), dead=True),
    make("weights_small", weight=(24,), scale=1e-3),
    make("weights_large", weight=(24,), scale=1e3, from_logits=False),
    *both("masked", mask=True),
    *both("masked_probabilities", mask=True, from_logits=False, weight=(24,)),
    make("two_classes", classes=2),
    make("two_classes_probabilities", classes=2, from_logits=False),
    # Half precision and double.
    make("float16", dtype="float16"),
    make("bfloat16", dtype="bfloat16"),
    make("float64", dtype="float64"),
    make("float16_probabilities", dtype="float16", from_logits=False),
    # Tokens.
    make("tokens", rank=2),
    *both("tokens_masked", rank=2, mask=True),
    *both("tokens_masked_weights", rank=2, mask=True, weight=(6,)),
    make("tokens_weights_column", rank=2, weight=(6, 1)),
    *both("tokens_weights_full", rank=2, weight=(6, 4), dead=True),
    *both(
        "tokens_masked_void",
        rank=2,
        mask=True,
        weight=(6, 4),
        void=-1,
        label_dtype="int64",
    ),
    *both(
        "tokens_one_hot_masked",
        rank=2,
        mask=True,
        labels="one_hot",
        label_dtype="float32",
        from_logits=False,
    ),
    make(
        "tokens_soft_weights",
        rank=2,
        labels="soft",
        label_dtype="float32",
        weight=(6,),
    ),
    make("tokens_axis_1", rank=2, axis=1, weight=(6,)),
    # Images.
    make("images_weights", rank=3, weight=(2,)),
    make("images_weights_column", rank=3, weight=(2, 1), from_logits=False),
    make("images_weights_rows", rank=3, weight=(2, 3)),
    *both(
        "images_void",
        rank=3,
        weight=(2, 3, 4),
        void=255,
        dead=True,
        label_dtype="int32",
    ),
    *both("images_masked", rank=3, mask=True, weight=(2, 1, 1)),
    *both("images_axis_1", rank=3, axis=1, void=255, label_dtype="uint8"),
    make(
        "images_axis_1_one_hot",
        rank=3,
        axis=1,
        labels="one_hot",
        label_dtype="float32",
        from_logits=False,
    ),
    make("images_axis_minus_2", rank=3, axis=-2, labels="ids"),
    # Volumes.
    *both("volumes", rank=4, weight=(2,), void=255),
    *both("volumes_masked", rank=4, mask=True, from_logits=False),
    *both("volumes_axis_1", rank=4, axis=1, weight=(2, 3, 2, 2), dead=True),
    # One sigmoid unit.
    make("sigmoid", classes=1),
    make("sigmoid_probabilities", classes=1, from_logits=False),
    make(
        "sigmoid_column",
        classes=1,
        labels="column",
        label_dtype="float32",
        weight=(24, 1),
    ),
    *both("sigmoid_void", classes=1, void=-1, weight=(24,), dead=True),
    *both("sigmoid_tokens", rank=2, classes=1, mask=True, weight=(6,)),
    make("sigmoid_images", rank=3, classes=1, from_logits=False),
    # What little counts.
    *both("one_row", void=255, valid=1),
    *both("no_row", void=255, valid=0),
]
BY_NAME = {case.name: case for case in CASES}


# Each name is compared on a case of each kind.
KINDS = {
    "masked": lambda case: case.mask is not None,
    "void": lambda case: "ignore_class" in case.options,
    "one per sample": lambda case: np.ndim(case.weight) == 1,
    "a column": lambda case: (
        np.ndim(case.weight) > 1 and case.weight.shape[1:] == (1,)
    ),
    "one per row": lambda case: (
        len(case.lead) > 1 and np.shape(case.weight) == case.lead
    ),
    "one-hot": lambda case: "one_hot" in case.name,
    "soft": lambda case: case.soft,
    "one sigmoid": lambda case: case.one_unit,
    "garbage": lambda case: case.garbage,
    "half": lambda case: "16" in case.dtype,
    "axis": lambda case: case.axis != -1,
    "probabilities": lambda case: not case.from_logits,
}


def covering(names, applies=lambda name, case: True, cases=CASES):
    """Pairs of a name and a case: each name on each kind, each case thrice.

    Which case of a kind a name gets is the one that fewest have had.

    Args:
        names: of what is compared.
        applies: whether a name can be compared on a case.
        cases: the cases to choose from.

    Returns:
        A set of `(name, case's name)`.
    """
    chosen = collections.defaultdict(set)
    uses = collections.Counter()

    def take(name, case):
        if case.name not in chosen[name]:
            chosen[name].add(case.name)
            uses[case.name] += 1

    for name in names:
        for belongs in KINDS.values():
            fit = [c for c in cases if belongs(c) and applies(name, c)]
            fresh = [c for c in fit if c.name not in chosen[name]]
            if fresh:
                take(name, min(fresh, key=lambda c: uses[c.name]))
    for case in cases:
        fit = [n for n in names if applies(n, case)]
        fit.sort(key=lambda n: (case.name in chosen[n], len(chosen[n])))
        for name in fit[: max(0, 3 - uses[case.name])]:
            take(name, case)
    return {(name, case) for name in names for case in chosen[name]}


def pairs(names, applies=lambda name, case: True, cases=CASES):
    """`covering`, as parameters; on PyTorch the other pairs are slow tests.

    There each operation runs by itself and the whole product takes seconds;
    other backends compile each operation anew for each shape and dtype.
    """
    wanted = covering(names, applies, cases)
    everything = keras.backend.backend() == "torch"
    found = []
    for case in cases:
        for name in names:
            pair = name, case.name
            if not applies(name, case) or not (everything or pair in wanted):
                continue
            marks = [] if pair in wanted else [pytest.mark.slow]
            found.append(
                pytest.param(name, case, id="-".join(pair), marks=marks)
            )
    return found


def cover(names):
    """A few of these cases that reach every kind that any of them is of.

    Args:
        names: of cases.

    Returns:
        A list of names, found greedily.
    """
    missing = {
        kind
        for kind, belongs in KINDS.items()
        if any(belongs(BY_NAME[name]) for name in names)
    }
    found = []
    while missing:
        reached = {
            name: {kind for kind in missing if KINDS[kind](BY_NAME[name])}
            for name in names
        }
        best = max(names, key=lambda name: len(reached[name]))
        found.append(best)
        missing -= reached[best]
    return found


def some(names):
    """Cases as parameters: those of `cover` always, the others as slow tests.

    For what is built or compiled anew for each case.
    """
    always = cover(names)
    return [
        pytest.param(
            name, id=name, marks=[] if name in always else [pytest.mark.slow]
        )
        for name in names
    ]
