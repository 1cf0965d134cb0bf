"""Losses and metrics inside `fit` and `evaluate`, compiled and not.

The predictions are the rows of an embedding, so that the reference knows them;
its learning rate is 0, so that they stay.
"""

import collections

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.differential import reference as ref
from tests.differential import test_losses
from tests.differential import test_metrics
from tests.differential.cases import BY_NAME
from tests.helpers import to_numpy

# Each kind of input; a compiled function is built anew for each of them.
SHORT = (
    "tokens_masked_void_garbage",
    "images_axis_1",
    "weights_0_garbage",
    "tokens_masked",
    "tokens_masked_weights",
    "images_masked",
    "masked_probabilities",
    "uint8_void_255",
    "weights_0",
    "sigmoid_tokens",
)
MODES = {
    "eager": {"run_eagerly": True},
    "plain": {"jit_compile": False},
    "jit": {"jit_compile": True},
}


def in_turn(names, case, mode):
    """Which of the names run in one function, compiled with one kind of input.

    All of them with the first kind, a third of them with each other kind: the
    time is that of the compiler, and each is still compiled with several.
    """
    number = SHORT.index(case)
    if number == 0 and mode != "eager":
        return list(names)
    return [n for i, n in enumerate(names) if i % 3 == number % 3]


@pytest.mark.parametrize(
    "module, names",
    [
        (test_losses, test_losses.LOSSES),
        (test_metrics, test_metrics.METRICS),
    ],
    ids=["losses", "metrics"],
)
def test_each_is_compiled_with_several_kinds_of_input(module, names):
    seen = collections.Counter(
        name
        for case in SHORT
        for name in in_turn(names, case, "plain")
        if module.applies(name, BY_NAME[case])
    )
    names = set(names) - {"foreign_primary"}  # it takes none of these kinds
    assert set(seen) == names
    # Of the kinds here, one sigmoid unit is the only one it takes.
    binary = {"BinaryCalibrationError"}
    assert all(seen[name] >= 2 for name in names - binary)


def modes(names, always):
    """Each case in each mode that the backend has.

    Args:
        names: of cases.
        always: pairs of a case and a mode that are no slow tests.

    Yields:
        A case's name and a mode, as parameters.
    """
    backend = keras.backend.backend()
    for name in names:
        for mode in MODES:
            # Dynamo takes minutes: `tests/losses/test_base.py` has it once.
            if backend == "torch" and mode != "plain":
                continue
            # JAX always compiles what is not eager.
            if backend == "jax" and mode == "plain":
                continue
            # XLA on a CPU takes ten times what a graph takes.
            if backend == "tensorflow" and mode == "jit" and name != names[0]:
                continue
            fast = backend == "torch" or (name, mode) in always
            marks = [] if fast else [pytest.mark.slow]
            yield pytest.param(name, mode, id=f"{name}-{mode}", marks=marks)


ALWAYS = {
    "tensorflow": {
        ("tokens_masked_void_garbage", "plain"),
        ("images_axis_1", "plain"),
        ("sigmoid_tokens", "eager"),
        ("weights_0_garbage", "eager"),
    },
    "jax": {
        ("tokens_masked_void_garbage", "jit"),
        ("images_axis_1", "jit"),
        ("sigmoid_tokens", "jit"),
    },
}.get(keras.backend.backend(), set())


def losses_of(case, mode):
    return [
        name
        for name in in_turn(test_losses.LOSSES, case.name, mode)
        if test_losses.applies(name, case) and name != "foreign_primary"
    ]


def with_all_losses(case, mode):
    """One output for each loss: what each logs is seen by itself."""
    base = case.network()
    names = losses_of(case, mode)
    outputs = {
        name: keras.layers.Activation("linear", name=name, dtype=case.dtype)(
            base.output
        )
        for name in names
    }
    model = keras.Model(base.input, outputs)
    losses = {
        name: test_losses.LOSSES[name][0](**case.options) for name in names
    }
    model.compile(keras.optimizers.SGD(0.0), losses, **MODES[mode])
    x = case.inputs()
    y = dict.fromkeys(names, case.labels)
    weight = None
    if case.weight is not None:
        weight = dict.fromkeys(names, case.weight)
    return model, names, (x, y, weight)


def parts_of(case, size):
    """The rows of each batch."""
    for start in range(0, len(case.lead and case.labels), size):
        cut = slice(start, start + size)
        yield (
            len(case.labels[cut]),
            ref.read(
                case.labels[cut],
                case.predictions[cut],
                None if case.weight is None else case.weight[cut],
                None if case.mask is None else case.mask[cut],
                axis=case.axis,
                ignore_class=case.options.get("ignore_class"),
                from_logits=case.from_logits,
            ),
        )


def logged(name, case, size):
    """What Keras logs: the mean over batches, by their length."""
    values, sizes = [], []
    for length, rows in parts_of(case, size):
        values.append(test_losses.expected(name, rows))
        sizes.append(length)
    return np.average(values, weights=sizes)


@pytest.mark.parametrize("name, mode", modes(SHORT, ALWAYS))
def test_losses_in_evaluate_and_fit(name, mode):
    case = BY_NAME[name]
    model, names, (x, y, weight) = with_all_losses(case, mode)
    size = max(1, case.lead[0] // 2)
    wanted = {n: logged(n, case, size) for n in names}
    before = [to_numpy(w) for w in model.weights]
    logs = model.evaluate(
        x,
        y,
        sample_weight=weight,
        batch_size=size,
        verbose=0,
        return_dict=True,
    )
    found = {n: logs[f"{n}_loss"] for n in names}
    wrong = different(found, wanted)
    history = model.fit(
        x,
        y,
        sample_weight=weight,
        batch_size=size,
        shuffle=False,
        verbose=0,
    )
    found = {n: history.history[f"{n}_loss"][0] for n in names}
    wrong |= {f"fit {k}": v for k, v in different(found, wanted).items()}
    assert not wrong, f"found, expected: {wrong}"
    # A gradient that is NaN would be one times a learning rate of 0, too.
    for variable, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(to_numpy(variable), value)


def different(found, wanted, tolerance=3e-5):
    return {
        name: (float(found[name]), float(value))
        for name, value in wanted.items()
        if found[name] != pytest.approx(value, rel=3e-5, abs=tolerance)
    }


@pytest.mark.parametrize("name, mode", modes(SHORT, ALWAYS))
def test_metrics_in_evaluate_and_fit(name, mode):
    case = BY_NAME[name]
    names = in_turn(test_metrics.METRICS, name, mode)
    names = [n for n in names if test_metrics.applies(n, case)]
    model = case.network()
    metrics = [
        test_metrics.METRICS[n][0](**case.options, name=f"key_{n}")
        for n in names
    ]
    weighted = case.weight is not None
    model.compile(
        keras.optimizers.SGD(0.0),
        kc.losses.DCA(**case.options),
        metrics=None if weighted else metrics,
        weighted_metrics=metrics if weighted else None,
        **MODES[mode],
    )
    data = dict(x=case.inputs(), y=case.labels, sample_weight=case.weight)
    size = max(1, case.lead[0] // 2)
    wanted = {n: test_metrics.expected(n, case.rows()) for n in names}
    logs = model.evaluate(**data, batch_size=size, verbose=0, return_dict=True)
    history = model.fit(**data, batch_size=size, shuffle=False, verbose=0)
    wrong = {}
    for where, values in (("evaluate", logs), ("fit", history.history)):
        found = {n: np.ravel(values[f"key_{n}"])[0] for n in names}
        # Of nodes that are 1/4096 apart.
        found = different(found, wanted, 3e-4)
        wrong |= {f"{where} {key}": value for key, value in found.items()}
    assert not wrong, f"found, expected: {wrong}"


PARTS = ("EntropyRegularization", "ACLS_min", "DCA", "MDCA_focal")


@pytest.mark.parametrize(
    "name, mode", modes(("tokens_masked", "weights_0"), ())
)
def test_the_parts_of_a_penalized_loss(name, mode):
    case = BY_NAME[name]
    rows = case.rows()
    size = case.lead[0]
    for loss_name in PARTS:
        loss = test_losses.LOSSES[loss_name][0](**case.options)
        model = case.network()
        parts = loss.component_metrics()
        weighted = case.weight is not None
        model.compile(
            keras.optimizers.SGD(0.0),
            loss,
            metrics=None if weighted else parts,
            weighted_metrics=parts if weighted else None,
            **MODES[mode],
        )
        logs = model.evaluate(
            case.inputs(),
            case.labels,
            sample_weight=case.weight,
            batch_size=size,
            verbose=0,
            return_dict=True,
        )
        assert logs["loss"] == pytest.approx(
            logs["primary_loss"] + loss.weight * logs["penalty"], rel=2e-5
        )
        assert logs["loss"] == pytest.approx(
            test_losses.expected(loss_name, rows), rel=2e-5, abs=2e-5
        )


@pytest.mark.parametrize("activation", [None, "softmax"])
@pytest.mark.parametrize("kind", ["tokens", "images", "sigmoid"])
def test_a_real_network(kind, activation):
    """A network of layers that a user writes, its mask and all."""
    rng = np.random.default_rng(0)
    if kind == "tokens":
        x = rng.integers(1, 30, (12, 6)).astype("int32")
        x[rng.random(x.shape) < 0.3] = 0
        steps = [
            keras.Input((6,), dtype="int32"),
            keras.layers.Embedding(30, 8, mask_zero=True),
            keras.layers.LSTM(8, return_sequences=True),
            keras.layers.Dense(3, activation, kernel_initializer="normal"),
        ]
        y, mask = rng.integers(0, 3, (12, 6)), x > 0
    elif kind == "images":
        x = rng.normal(size=(6, 4, 4, 2)).astype("float32")
        steps = [
            keras.Input((4, 4, 2)),
            keras.layers.Conv2D(4, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(3, 1, activation=activation),
        ]
        y, mask = rng.integers(0, 3, (6, 4, 4)), None
    else:
        x = rng.normal(size=(12, 4)).astype("float32")
        activation = activation and "sigmoid"
        steps = [
            keras.Input((4,)),
            keras.layers.Dense(1, activation),
        ]
        y, mask = rng.integers(0, 2, (12, 1)), None
    model = keras.Sequential(steps)
    if not all(step.supports_masking for step in model.layers):
        mask = None  # recurrent layers of Keras 3.16 pass no mask on
    logits = activation is None
    loss = kc.losses.MMCE(
        primary=kc.losses.FocalLoss(from_logits=logits), from_logits=logits
    )
    metrics = [
        kc.metrics.ExpectedCalibrationError(from_logits=logits),
        kc.metrics.NegativeLogLikelihood(from_logits=logits),
    ]
    model.compile("adam", loss, metrics=metrics)
    model.fit(x, y, epochs=2, batch_size=6, verbose=0)
    logs = model.evaluate(x, y, batch_size=6, verbose=0, return_dict=True)
    p = model.predict(x, verbose=0)
    values = []
    for cut in (slice(0, 6), slice(6, 12)):
        if len(y[cut]):
            part = None if mask is None else mask[cut]
            rows = ref.read(y[cut], p[cut], mask=part, from_logits=logits)
            values.append(
                ref.reduced(rows, ref.focal(rows), 2 * ref.mmce(rows))
            )
    rows = ref.read(y, p, mask=mask, from_logits=logits)
    assert logs["loss"] == pytest.approx(np.mean(values), rel=1e-4)
    ece = ref.binned(rows.c, rows.a, rows.w, ref.width_bins(rows.c))
    assert logs["expected_calibration_error"] == pytest.approx(ece, abs=2e-5)
    assert logs["negative_log_likelihood"] == pytest.approx(
        ref.nll(rows), rel=1e-4
    )


def test_several_outputs():
    """Two heads, each with a mask, a loss and metrics of its own."""
    tokens = BY_NAME["tokens_masked"]
    other = BY_NAME["tokens_masked_weights"]
    first, second = tokens.network(), other.network()
    model = keras.Model(
        {"a": first.input, "b": second.input},
        {"a": first.output, "b": second.output},
    )
    model.compile(
        keras.optimizers.SGD(0.0),
        {name: kc.losses.DCA(weight=10.0, from_logits=True) for name in "ab"},
        loss_weights={"a": 1.0, "b": 0.5},
        weighted_metrics={
            name: [kc.metrics.ExpectedCalibrationError(from_logits=True)]
            for name in "ab"
        },
    )
    logs = model.evaluate(
        {"a": tokens.inputs(), "b": other.inputs()},
        {"a": tokens.labels, "b": other.labels},
        sample_weight={"a": np.ones(6), "b": other.weight},
        verbose=0,
        return_dict=True,
    )
    values = []
    for name, case in (("a", tokens), ("b", other)):
        rows = case.rows()
        values.append(
            ref.reduced(rows, ref.cross_entropy(rows), 10 * ref.dca(rows))
        )
        assert logs[f"{name}_loss"] == pytest.approx(values[-1], rel=3e-5)
        key = f"{name}_expected_calibration_error"
        assert logs[key] == pytest.approx(
            ref.binned(rows.c, rows.a, rows.w, ref.width_bins(rows.c)),
            abs=2e-5,
        )
    assert logs["loss"] == pytest.approx(values[0] + values[1] / 2, rel=3e-5)
