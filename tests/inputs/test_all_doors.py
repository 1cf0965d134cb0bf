"""The same inputs through every public door: one verdict, equal numbers."""

import dataclasses
import functools

import keras
import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from tests.helpers import compiled
from tests.helpers import to_numpy

RNG = np.random.default_rng(3)
N = 24
Z = RNG.normal(0, 2, (N, 3)).astype("float32")
Y = RNG.integers(0, 3, N)
W = RNG.uniform(0.2, 3.0, N)
P = np.exp(Z) / np.exp(Z).sum(-1, keepdims=True)
ONE_HOT = np.eye(3)[Y]
BINARY = RNG.integers(0, 2, N)
UNIT = RNG.normal(0, 2, (N, 1)).astype("float32")
TWO = np.concatenate([np.zeros_like(UNIT), UNIT], axis=1)
SIGMOID = 1 / (1 + np.exp(-UNIT))


@dataclasses.dataclass(frozen=True)
class Input:
    """What a user passes in."""

    y: object
    p: object
    w: object = None
    from_logits: bool = True
    void: object = None
    mask: object = None

    def but(self, **changes):
        return dataclasses.replace(self, **changes)


PLAIN = Input(Y, Z)
WEIGHTED = Input(Y, Z, W)
UNIT_PLAIN = Input(BINARY, TWO)
PROBABILITIES = Input(Y, P, from_logits=False)
IMAGE = Input(Y.reshape(2, 3, 4), Z.reshape(2, 3, 4, 3))


def put(values, row, value):
    values = np.array(values)
    if values.dtype.kind in "iu" and not isinstance(value, int):
        values = values.astype("float32")
    values[row] = value
    return values


def without(rows, source=WEIGHTED):
    keep = np.setdiff1d(np.arange(N), rows)
    w = None if source.w is None else source.w[keep]
    return source.but(y=source.y[keep], p=source.p[keep], w=w)


NAN, INF = float("nan"), float("inf")
SPOILED = put(put(Z, 1, NAN), 4, INF)
REAL = put(np.ones(N, bool), [1, 4], False)

# Name: (an input, the one that gives the same numbers).
ACCEPTED = {
    "labels of int8": (PLAIN.but(y=Y.astype("int8")), PLAIN),
    "labels of uint8": (PLAIN.but(y=Y.astype("uint8")), PLAIN),
    "whole labels of float32": (PLAIN.but(y=Y.astype("float32")), PLAIN),
    "whole labels of float64": (PLAIN.but(y=Y.astype("float64")), PLAIN),
    "labels as a column": (PLAIN.but(y=Y[:, None]), PLAIN),
    "labels as a list": (PLAIN.but(y=Y.tolist()), PLAIN),
    "one-hot of float32": (PLAIN.but(y=ONE_HOT.astype("float32")), PLAIN),
    "one-hot of int32": (PLAIN.but(y=ONE_HOT.astype("int32")), PLAIN),
    "one-hot of bool": (PLAIN.but(y=ONE_HOT.astype(bool)), PLAIN),
    "logits of float64": (PLAIN.but(p=Z.astype("float64")), PLAIN),
    "logits of float16": (
        PLAIN.but(p=Z.astype("float16")),
        PLAIN.but(p=Z.astype("float16").astype("float32")),
    ),
    "whole logits of int32": (
        PLAIN.but(p=np.round(Z).astype("int32")),
        PLAIN.but(p=np.round(Z)),
    ),
    "rank 4": (IMAGE, PLAIN),
    "rank 4, one-hot": (
        IMAGE.but(y=ONE_HOT.reshape(2, 3, 4, 3)),
        PLAIN,
    ),
    "rank 4, a weight per image": (
        IMAGE.but(w=np.array([1.0, 3.0])),
        PLAIN.but(w=np.repeat([1.0, 3.0], 12)),
    ),
    "rank 4, a weight per pixel": (
        IMAGE.but(w=W.reshape(2, 3, 4)),
        WEIGHTED,
    ),
    "rank 4, a weight per row of an image": (
        IMAGE.but(w=W[:6].reshape(2, 3)),
        PLAIN.but(w=np.repeat(W[:6], 4)),
    ),
    "one sigmoid unit": (UNIT_PLAIN.but(p=UNIT), UNIT_PLAIN),
    "one sigmoid unit without an axis": (
        UNIT_PLAIN.but(p=UNIT[:, 0]),
        UNIT_PLAIN,
    ),
    "one sigmoid unit, labels as floats in a column": (
        UNIT_PLAIN.but(p=UNIT, y=BINARY[:, None].astype("float32")),
        UNIT_PLAIN,
    ),
    "one sigmoid unit, one-hot labels": (
        UNIT_PLAIN.but(p=UNIT, y=np.eye(2)[BINARY]),
        UNIT_PLAIN,
    ),
    "one sigmoid unit, labels of bool": (
        UNIT_PLAIN.but(p=UNIT, y=BINARY.astype(bool)),
        UNIT_PLAIN,
    ),
    "one sigmoid unit, probabilities": (
        UNIT_PLAIN.but(p=SIGMOID, from_logits=False),
        UNIT_PLAIN,
    ),
    "probabilities": (PROBABILITIES, PLAIN),
    "probabilities slightly negative": (
        PROBABILITIES.but(p=put(P, 0, [0.6, 0.4005, -5e-4])),
        PROBABILITIES.but(p=put(P, 0, [0.6, 0.4005, 0.0])),
    ),
    "a class that is ruled out": (
        PLAIN.but(p=put(Z, (0, (Y[0] + 1) % 3), -INF)),
        PLAIN.but(p=put(Z, (0, (Y[0] + 1) % 3), -1e4)),
    ),
    "a class that is ruled out, one-hot": (
        PLAIN.but(p=put(Z, (0, (Y[0] + 1) % 3), -INF), y=ONE_HOT),
        PLAIN.but(p=put(Z, (0, (Y[0] + 1) % 3), -1e4)),
    ),
    "logits that are one-hot": (PLAIN.but(p=np.eye(3)[Y[::-1]]),) * 2,
    "logits of zero": (PLAIN.but(p=np.zeros((N, 3))),) * 2,
    "void labels": (
        WEIGHTED.but(y=put(Y, [1, 4], 255), void=255, p=SPOILED),
        without([1, 4]),
    ),
    "negative void labels": (
        WEIGHTED.but(y=put(Y, [1, 4], -1), void=-1),
        without([1, 4]),
    ),
    "a void label of uint8": (
        WEIGHTED.but(y=put(Y, [1, 4], 255).astype("uint8"), void=255),
        without([1, 4]),
    ),
    "weights as a column": (WEIGHTED.but(w=W[:, None]), WEIGHTED),
    "weights as a list": (WEIGHTED.but(w=W.tolist()), WEIGHTED),
    "weights times a small constant": (WEIGHTED.but(w=W * 1e-3), WEIGHTED),
    "weights times a large constant": (WEIGHTED.but(w=W * 1e3), WEIGHTED),
    "equal weights": (PLAIN.but(w=np.full(N, 0.01)), PLAIN),
    "whole weights": (
        PLAIN.but(w=np.arange(N) % 3 + 1),
        PLAIN.but(w=(np.arange(N) % 3 + 1) / 7),
    ),
    "weight zero, whatever the row holds": (
        WEIGHTED.but(
            w=put(W, [1, 4], 0), y=put(put(Y, 1, 77), 4, NAN), p=SPOILED
        ),
        without([1, 4]),
    ),
    "masked, whatever the row holds": (
        WEIGHTED.but(
            w=put(W, 1, NAN), y=put(put(Y, 1, 77), 4, NAN), p=SPOILED, mask=REAL
        ),
        without([1, 4]),
    ),
    "masked probabilities": (
        PROBABILITIES.but(p=put(P, [1, 4], 7.0), mask=REAL),
        without([1, 4], PROBABILITIES),
    ),
}

NOT_WHOLE = "Labels must be class ids, whole numbers"
RANGE = "A label is not one of the 3 classes 0 to 2"
ROWS = "One-hot or soft labels must be rows that sum to one"
WEIGHTS = "Sample weights cannot be negative, infinite or NaN"
FIT = "Sample weights do not fit the predictions"
LOGITS = "Logits must be finite, or minus infinity for a class that is ruled"
SOFTMAX = "Logits are scores before softmax, and rows that are non-negative and"
VECTOR = "With `from_logits=False` each prediction must be a probability vector"
NUMBERS = "Probabilities must be numbers. Received: NaN"
SHAPES = "Labels and predictions do not fit"
# Name: (an input, how the message begins).
REFUSED = {
    "a label of 0.4": (PLAIN.but(y=put(Y, 3, 0.4)), NOT_WHOLE),
    "a label of NaN": (PLAIN.but(y=put(Y, 3, NAN)), NOT_WHOLE),
    "a label below zero": (PLAIN.but(y=put(Y, 3, -1)), RANGE),
    "labels that start at one": (PLAIN.but(y=put(Y, 3, 3)), RANGE),
    "a void label that is not announced": (PLAIN.but(y=put(Y, 3, 255)), RANGE),
    "rows that do not sum to one": (
        PLAIN.but(y=put(ONE_HOT, 3, 0.5)),
        ROWS,
    ),
    "rows with NaN": (PLAIN.but(y=put(ONE_HOT, (3, 0), NAN)), ROWS),
    "too few labels": (PLAIN.but(y=Y[:-1]), SHAPES),
    "rows of labels of other classes": (PLAIN.but(y=np.eye(4)[Y]), SHAPES),
    "a negative weight": (WEIGHTED.but(w=put(W, 3, -1.0)), WEIGHTS),
    "a weight of NaN": (WEIGHTED.but(w=put(W, 3, NAN)), WEIGHTS),
    "an infinite weight": (WEIGHTED.but(w=put(W, 3, INF)), WEIGHTS),
    "a weight per class": (WEIGHTED.but(w=np.ones((N, 3))), FIT),
    "too few weights": (WEIGHTED.but(w=W[:-1]), FIT),
    "a logit of NaN": (PLAIN.but(p=put(Z, (3, 1), NAN)), LOGITS),
    "a logit of infinity": (PLAIN.but(p=put(Z, (3, 1), INF)), LOGITS),
    "no class left": (PLAIN.but(p=put(Z, 3, -INF)), LOGITS),
    "probabilities as logits": (PLAIN.but(p=P), SOFTMAX),
    "probabilities as logits, one sure": (
        PLAIN.but(p=put(P, 3, [0.0, 1.0, 0.0])),
        SOFTMAX,
    ),
    "logits as probabilities": (PROBABILITIES.but(p=Z), VECTOR),
    "probabilities off": (PROBABILITIES.but(p=put(P, 3, 0.3)), VECTOR),
    "a probability of NaN": (PROBABILITIES.but(p=put(P, 3, NAN)), NUMBERS),
    "a sigmoid unit above one": (
        UNIT_PLAIN.but(p=UNIT, from_logits=False),
        VECTOR,
    ),
}


def masked(x):
    """Predictions that carry a mask, as Keras makes them."""
    return Mask(x.mask)(ops.convert_to_tensor(x.p))


class Mask(keras.layers.Layer):
    """The identity, with a mask on its output."""

    def __init__(self, mask):
        super().__init__(autocast=False)
        self.mask = mask

    def call(self, inputs):
        return ops.copy(inputs)

    def compute_mask(self, inputs, previous_mask=None):
        return ops.convert_to_tensor(self.mask)


def loss_door(x, make):
    loss = make(
        from_logits=x.from_logits,
        ignore_class=x.void,
        # The one reduction of Keras in which weights are relative.
        reduction="mean_with_sample_weight",
    )
    return loss(x.y, x.p if x.mask is None else masked(x), x.w)


def metric_door(x, make):
    metric = make(from_logits=x.from_logits, ignore_class=x.void)
    metric.update_state(x.y, x.p if x.mask is None else masked(x), x.w)
    return metric.result()


def errors_door(x):
    found = kc.metrics.calibration_errors(
        x.y, x.p, x.w, from_logits=x.from_logits, ignore_class=x.void
    )
    return list(found.values())


def consistency_door(x):
    found = kc.metrics.consistency_test(
        x.y,
        x.p,
        x.w,
        from_logits=x.from_logits,
        ignore_class=x.void,
        num_draws=20,
        verbose=0,
    )
    return [found.value, found.expected]


def adapt_door(x):
    layer = kc.layers.TemperatureScaling()
    layer.adapt(x.p, x.y, x.w, ignore_class=x.void)
    return layer.temperature


def plot_door(x):
    figure = kc.plots.reliability_diagram(
        x.y, x.p, x.w, from_logits=x.from_logits, ignore_class=x.void
    )
    text = figure.axes[0].texts[0].get_text()
    return float(text.split()[1])


def network(x):
    """A model that gives its input."""
    shape = np.shape(x.p)[1:]
    inputs = keras.Input(shape)
    return keras.Model(inputs, keras.layers.Identity()(inputs))


def calibrate_door(x):
    model = kc.calibrate(
        network(x),
        np.asarray(x.p),
        x.y,
        x.w,
        from_logits=x.from_logits,
        ignore_class=x.void,
        verbose=0,
    )
    return kc.calibration_record(model)["temperature"]


def monitor_door(x):
    monitor = kc.callbacks.CalibrationMonitor(
        (np.asarray(x.p), x.y) if x.w is None else (np.asarray(x.p), x.y, x.w),
        from_logits=x.from_logits,
        ignore_class=x.void,
    )
    monitor.set_model(network(x))
    monitor.set_params({"epochs": 1})
    logs = {}
    monitor.on_epoch_end(0, logs)
    return logs["val_expected_calibration_error"]


LOSSES = {
    "cross-entropy": functools.partial(kc.losses.FocalLoss, gamma=0.0),
    "batch statistic": functools.partial(
        kc.losses.MMCE, weighted=True, double_normalized=True
    ),
    "AvUC": kc.losses.AvUC,
    "SB-ECE": kc.losses.SoftBinnedECE,
}
METRICS = {
    "ECE": kc.metrics.ExpectedCalibrationError,
    "NLL": kc.metrics.NegativeLogLikelihood,
    "entropy": kc.metrics.MeanEntropy,
    "Brier": kc.metrics.BrierScore,
}
COMPILED = {
    name: functools.partial(loss_door, make=make)
    for name, make in LOSSES.items()
} | {
    name: functools.partial(metric_door, make=make)
    for name, make in METRICS.items()
}
DOORS = COMPILED | {
    "calibration_errors": errors_door,
    "consistency_test": consistency_door,
    "adapt": adapt_door,
    "plot": plot_door,
    "calibrate": calibrate_door,
    "monitor": monitor_door,
}


# What runs a model compares lengths before it looks at predictions.
LENGTHS = "Inputs, labels and weights must have the same length"
WITH_MODEL = ("calibrate", "monitor")
# A network may give these after a while, and `fit` goes on: the monitor warns.
DIVERGED = {
    "a logit of NaN",
    "a logit of infinity",
    "no class left",
    "a probability of NaN",
}


def applies(door, x):
    """Whether a door has what the input needs."""
    if x.mask is not None:
        return door in COMPILED
    if door == "calibrate" and np.ndim(x.p) == 1:
        return False  # a model has a class axis, an array of sigmoids need not
    return x.from_logits or door != "adapt"


def pairs(cases):
    return [
        pytest.param(door, name, id=f"{door}-{name}")
        for name, (x, _) in cases.items()
        for door in DOORS
        if applies(door, x)
    ]


def numbers(door, x):
    return np.asarray([float(v) for v in np.ravel(to_numpy(DOORS[door](x)))])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("door", "name"), pairs(ACCEPTED))
def test_accepted_with_equal_numbers(door, name):
    x, same = ACCEPTED[name]
    found, expected = numbers(door, x), numbers(door, same)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, expected, rtol=3e-5, atol=2e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("door", "name"), pairs(REFUSED))
def test_refused_in_the_same_words(door, name):
    x, message = REFUSED[name]
    if door in WITH_MODEL and name in ("too few labels", "too few weights"):
        message = LENGTHS
    if door == "monitor" and name in DIVERGED:
        with pytest.warns(UserWarning, match="not finite from epoch 1 on"):
            assert np.isnan(numbers(door, x)).all()
        return
    with pytest.raises(ValueError) as error:
        numbers(door, x)
    assert str(error.value).startswith(message)
    assert " Received: " in str(error.value)


# Compiled code cannot tell these apart, or cannot raise with them.
UNSEEN = {
    "probabilities as logits",
    "probabilities as logits, one sure",
    "no class left",
}


@pytest.mark.parametrize("door", COMPILED)
@pytest.mark.backends("tensorflow", "jax", reason="torch is eager, and raises")
def test_compiled_code_gives_nan_for_what_is_refused(door):
    # What was compiled, by kind of input: to compile takes longest.
    known = {}
    for name, (x, message) in REFUSED.items():
        if message in (SHAPES, FIT) or name in UNSEEN:
            continue
        kind = np.shape(x.p)[1:], x.from_logits, x.void, x.w is None
        if kind not in known:
            known[kind] = in_compiled_code(door, x)
        assert np.isnan(known[kind](x)), name


def in_compiled_code(door, kind):
    """A function of inputs of a kind to the value of a loss or a metric."""
    if door in METRICS:
        metric = METRICS[door](from_logits=kind.from_logits)
        model = network(kind)
        model.compile(loss="mse", weighted_metrics=[metric], jit_compile=True)

        def evaluate(x):
            y = np.asarray(x.y)
            logs = model.evaluate(
                x.p,
                y[:, None] if y.ndim == 1 else y,
                sample_weight=x.w,
                verbose=0,
                return_dict=True,
            )
            return logs[metric.name]

        return evaluate

    @compiled
    def value(y, p, w=None):
        return DOORS[door](kind.but(y=y, p=p, w=w))

    def call(x):
        arrays = [x.y, x.p] if x.w is None else [x.y, x.p, x.w]
        return float(value(*map(ops.convert_to_tensor, arrays)))

    return call


SOFT = 0.7 * P + 0.3 * RNG.dirichlet([1, 1, 1], N)


def test_soft_labels():
    log_p = np.log(P)
    expected = -(SOFT * log_p).sum(-1)
    x = PLAIN.but(y=SOFT, w=W)
    mean = np.average(expected, weights=W)
    assert numbers("cross-entropy", x) == pytest.approx(mean, rel=1e-5)
    assert numbers("NLL", x) == pytest.approx(mean, rel=1e-5)
    found = kc.metrics.calibration_errors(SOFT, Z, W, from_logits=True)
    assert found["negative_log_likelihood"] == pytest.approx(mean, rel=1e-5)
    # The temperature with the least expected likelihood.
    layer = kc.layers.TemperatureScaling().adapt(Z, SOFT, W)
    temperatures = layer.temperature * np.exp([-0.02, 0.0, 0.02])
    z = Z / temperatures[:, None, None]
    losses = np.log(np.exp(z).sum(-1)) - (SOFT * z).sum(-1)
    losses = np.average(losses, axis=1, weights=W)
    assert losses.argmin() == 1
    assert layer.record["num_samples"] == N
    assert calibrate_door(x) == pytest.approx(layer.temperature, rel=1e-5)


WITHOUT_ROWS = (
    PLAIN.but(y=Y[:0], p=Z[:0]),
    PLAIN.but(y=Y[:0], p=Z[:0], w=W[:0]),
    PROBABILITIES.but(y=ONE_HOT[:0], p=P[:0]),
    IMAGE.but(y=IMAGE.y[:0], p=IMAGE.p[:0]),
    UNIT_PLAIN.but(y=BINARY[:0], p=UNIT[:0]),
    PLAIN.but(y=np.full(N, 9), void=9),
)


@pytest.mark.parametrize("door", COMPILED)
def test_a_batch_without_rows(door):
    for x in WITHOUT_ROWS:
        found = numbers(door, x)
        assert set(found) <= {0.0, 0.5}, x


def test_arrays_without_rows_are_refused():
    for x in WITHOUT_ROWS:
        with pytest.raises(ValueError, match="No row counts"):
            errors_door(x)
