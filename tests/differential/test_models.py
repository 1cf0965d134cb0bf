"""Networks that learn together, averages and wrapped networks: what they log.

The networks are rows of embeddings, so that the reference knows what each of
them predicts; a learning rate of 0 leaves them as they are.
"""

import dataclasses

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.differential import reference as ref
from tests.differential.cases import BY_NAME
from tests.differential.cases import cover
from tests.helpers import to_numpy

COMPARED = {
    "DeepEnsemble",
    "DiffDML",
    "InterleavedTraining",
    "MonteCarloDropout",
    "MutualLearning",
    "SampleHistoryModel",
    "kl_divergence",
}
ELSEWHERE = {
    "MutualOptimizer": "steps of two optimizers: tests/models",
}


def test_every_public_model_has_a_case():
    assert set(kc.models.__all__) - COMPARED == set(ELSEWHERE)


def near(value, rel=3e-5, absolute=3e-5):
    return pytest.approx(value, rel=rel, abs=absolute)


def peer(case, seed):
    """The case as another network sees it: other predictions, same data."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=case.predictions.shape)
    if not case.from_logits:
        if case.one_unit:
            scores = 1 / (1 + np.exp(-scores))
        else:
            scores = np.exp(scores)
            scores /= scores.sum(axis=case.axis, keepdims=True)
    scores = scores.astype(case.dtype).astype("float64")
    # What cannot be stands where it does not count, in every network.
    wrong = ~np.isfinite(case.predictions) | (np.abs(case.predictions) > 1e9)
    scores = np.where(wrong, case.predictions, scores)
    return dataclasses.replace(case, predictions=scores)


def cut(case, part):
    """Some of the samples of a case."""
    return dataclasses.replace(
        case,
        labels=case.labels[part],
        predictions=case.predictions[part],
        weight=None if case.weight is None else case.weight[part],
        mask=None if case.mask is None else case.mask[part],
    )


def unlabeled(case):
    """The rows that count where no label is needed: void ones as well."""
    return ref.read(
        np.zeros(case.lead, int),
        case.predictions,
        case.weight,
        case.mask,
        axis=case.axis,
        from_logits=case.from_logits,
    )


def halves(case):
    size = max(1, case.lead[0] // 2)
    return [slice(i, i + size) for i in range(0, case.lead[0], size)]


def compiled_ones(names, compiled):
    """Each case eagerly; of some the compiled code as well.

    A few cases that reach every kind run always, the others as slow tests.
    """
    always = cover(names)
    for name in names:
        marks = [] if name in always else [pytest.mark.slow]
        yield pytest.param(name, True, id=f"{name}-eager", marks=marks)
        # Dynamo takes minutes, and on PyTorch nothing is compiled unasked.
        if name in compiled and keras.backend.backend() != "torch":
            marks = [] if name == compiled[0] else [pytest.mark.slow]
            yield pytest.param(name, False, id=f"{name}-compiled", marks=marks)


# Networks that learn together.

PAIRS = [
    "ids",
    "probabilities",
    "one_hot",
    "soft",
    "float16",
    "weights",
    "weights_column",
    "weights_0_garbage",
    "uint8_void_255",
    "masked",
    "masked_probabilities_garbage",
    "tokens_masked",
    "tokens_masked_weights",
    "tokens_masked_weights_garbage",
    "tokens_masked_void",
    "tokens_weights_full",
    "tokens_weights_full_garbage",
    "tokens_axis_1",
    "images_weights",
    "images_weights_column",
    "images_void",
    "images_masked",
    "images_axis_1",
    "images_axis_1_one_hot",
    "volumes_axis_1",
    "sigmoid",
    "sigmoid_probabilities",
    "sigmoid_tokens_garbage",
]
COMPILED = (
    "tokens_masked_weights_garbage",
    "images_axis_1",
    "sigmoid_tokens_garbage",
    "sigmoid_tokens",
)
WEIGHT = 0.7
# Name: how to make it, what each network's label loss and divergence are
# multiplied by, and whom it learns from.
PEERS = {
    "MutualLearning": (
        kc.models.MutualLearning,
        {},
        lambda i: (1.0, WEIGHT, "others"),
    ),
    "DiffDML": (
        kc.models.DiffDML,
        {},
        lambda i: (1.0, WEIGHT, "others") if i == 0 else (0.0, 1.0, "primary"),
    ),
    "DiffDML_all": (
        kc.models.DiffDML,
        {"peers": "all"},
        lambda i: (1.0, WEIGHT, "others") if i == 0 else (0.0, 1.0, "others"),
    ),
    "DiffDML_labels": (
        kc.models.DiffDML,
        {"diversity_preserving": False},
        lambda i: (1.0, WEIGHT, "others"),
    ),
}


def kl(teacher, own):
    """Of each row, from two networks' rows."""
    return (np.exp(teacher.log_p) * (teacher.log_p - own.log_p)).sum(axis=1)


def objectives(cases, role, per_row, batch=None):
    """What each network minimizes on a batch: its label part, KL and sum."""
    labeled = [case.rows() for case in cases]
    rows = [unlabeled(case) for case in cases]
    found = []
    for i, own in enumerate(labeled):
        factor, weight, learns_from = role(i)
        supervised = factor * ref.reduced(
            own, per_row(own), batch(own) if batch and len(own) else 0.0
        )
        teachers = [j for j in range(len(cases)) if j != i]
        if learns_from == "primary":
            teachers = [0]
        divergence = np.mean(
            [ref.reduced(rows[i], kl(rows[j], rows[i])) for j in teachers]
        )
        found.append((supervised, divergence, supervised + weight * divergence))
    return found


def pair_logs(cases, role, per_row, batch=None):
    """What `fit` logs: the mean over batches by their length."""
    total, size = (
        dict.fromkeys(
            ("loss", "supervised_loss", "peer_divergence", "auxiliary_loss"),
            0.0,
        ),
        0,
    )
    for part in halves(cases[0]):
        batches = [cut(case, part) for case in cases]
        length = len(batches[0].labels)
        (supervised, divergence, loss), *others = objectives(
            batches, role, per_row, batch
        )
        total["loss"] += length * loss
        total["supervised_loss"] += length * supervised
        total["peer_divergence"] += length * divergence
        total["auxiliary_loss"] += length * sum(o[2] for o in others)
        size += length
    logs = {name: value / size for name, value in total.items()}
    rows = [case.rows() for case in cases[1:]]
    if len(rows[0]):
        logs["auxiliary_accuracy"] = np.mean([r.mean(r.a) for r in rows])
    return logs


def pair_of(name, cases, loss, eager, rate=0.0):
    make, arguments, role = PEERS[name]
    networks = [case.network() for case in cases]
    pair = make(
        networks[0],
        networks[1:],
        weight=WEIGHT,
        from_logits=cases[0].from_logits,
        **arguments,
    )
    pair.compile(
        keras.optimizers.SGD(rate),
        loss,
        run_eagerly=eager,
        weighted_metrics=[
            kc.metrics.NegativeLogLikelihood(name="nll", **cases[0].options)
        ],
        **(
            {"auxiliary_optimizer": keras.optimizers.SGD(rate)}
            if make is kc.models.DiffDML
            else {}
        ),
    )
    return pair, role


def data_of(case, x=None):
    return {
        "x": case.inputs() if x is None else x,
        "y": case.labels,
        "sample_weight": case.weight,
        "batch_size": max(1, case.lead[0] // 2),
        "verbose": 0,
    }


@pytest.mark.parametrize("case, eager", compiled_ones(PAIRS, COMPILED))
@pytest.mark.parametrize("name", ["MutualLearning", "DiffDML"])
def test_two_networks(name, case, eager):
    case = BY_NAME[case]
    cases = [case, peer(case, 1)]
    loss = kc.losses.FocalLoss(gamma=1.0, **case.options)
    pair, role = pair_of(name, cases, loss, eager)
    data = data_of(case)
    before = [to_numpy(variable) for variable in pair.weights[:2]]
    logs = pair.fit(**data, shuffle=False).history
    wanted = pair_logs(cases, role, lambda r: ref.focal(r, 1.0))
    found = {key: logs[key][0] for key in wanted}
    assert found == near(wanted)
    # A gradient that is NaN would be one times a learning rate of 0, too.
    for variable, value in zip(pair.weights[:2], before, strict=True):
        np.testing.assert_array_equal(to_numpy(variable), value)
    rows = case.rows()
    if len(rows):
        assert logs["nll"][0] == near(ref.nll(rows))
    logs = pair.evaluate(**data, return_dict=True)
    values = [
        ref.reduced(rows, ref.focal(rows, 1.0))
        for rows in (cut(case, part).rows() for part in halves(case))
    ]
    assert set(logs) == {"loss", "nll"}
    assert logs["loss"] == near(np.mean(values))


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize(
    "case",
    [
        "tokens_masked_weights",
        pytest.param("images_axis_1", marks=pytest.mark.slow),
    ],
)
def test_three_networks(case, name):
    case = BY_NAME[case]
    cases = [case, peer(case, 1), peer(case, 2)]
    loss = kc.losses.DCA(weight=10.0, **case.options)
    pair, role = pair_of(name, cases, loss, True)
    logs = pair.fit(**data_of(case), shuffle=False).history
    wanted = pair_logs(
        cases, role, ref.cross_entropy, lambda r: 10 * ref.dca(r)
    )
    assert {key: logs[key][0] for key in wanted} == near(wanted)


@pytest.mark.parametrize("case", ["tokens_masked_weights", "images_weights"])
@pytest.mark.parametrize("name", ["MutualLearning", "DiffDML"])
def test_a_loss_of_keras(name, case):
    case = BY_NAME[case]
    cases = [case, peer(case, 1)]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    pair, role = pair_of(name, cases, loss, True)
    logs = pair.fit(**data_of(case), shuffle=False).history
    wanted = pair_logs(cases, role, ref.cross_entropy)
    assert {key: logs[key][0] for key in wanted} == near(wanted)


@pytest.mark.parametrize("case", ["tokens_masked_weights", "weights"])
@pytest.mark.parametrize("name", ["MutualLearning", "DiffDML"])
def test_each_network_goes_down_its_own_objective(name, case):
    case = BY_NAME[case]
    cases = [case, peer(case, 1)]
    loss = kc.losses.FocalLoss(gamma=1.0, **case.options)
    pair, role = pair_of(name, cases, loss, True, rate=1.0)
    data = {**data_of(case), "batch_size": case.lead[0]}
    pair.fit(**data)
    table = case.inputs().reshape(-1)
    for i, network in enumerate(pair.networks):
        start = cases[i].predictions
        after = to_numpy(network.trainable_variables[0])[table]
        step = start - after.reshape(start.shape)
        rng = np.random.default_rng(i)
        silent = np.setdiff1d(np.arange(24), case.rows().place)
        direction = rng.normal(size=start.shape)
        direction.reshape(24, -1)[silent] = 0.0
        ends = []
        for sign in (1, -1):
            moved = list(cases)
            moved[i] = dataclasses.replace(
                cases[i], predictions=start + sign * 1e-5 * direction
            )
            # What a peer predicts is a constant to the network.
            focal = objectives(moved, role, lambda r: ref.focal(r, 1.0))
            ends.append(focal[i][2])
        slope = (ends[0] - ends[1]) / 2e-5
        assert (step * direction).sum() == pytest.approx(slope, rel=1e-3)


def test_kl_divergence():
    rng = np.random.default_rng(0)
    p, q = (np.log(rng.dirichlet(np.ones(3), (4, 5))) for _ in range(2))
    found = to_numpy(kc.models.kl_divergence(p, q))
    wanted = (np.exp(p) * (p - q)).sum(axis=-1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


# Averages.

AVERAGED = [
    "ids",
    "probabilities",
    "one_hot",
    "soft",
    "float16",
    "weights",
    "weights_0_garbage",
    "uint8_void_255",
    "masked",
    "masked_probabilities_garbage",
    "tokens_masked",
    "tokens_masked_weights_garbage",
    "tokens_weights_full",
    "images_void_garbage",
    "images_masked",
    "volumes_masked",
    "sigmoid",
    "sigmoid_probabilities",
    "sigmoid_tokens",
    "sigmoid_void_garbage",
]


def averaged(cases):
    """The case whose predictions are the mean probability of several."""
    rows = [
        ref.read(
            np.zeros(case.lead, int),
            np.nan_to_num(case.predictions, nan=1.0),
            from_logits=case.from_logits,
        )
        for case in cases
    ]
    p = np.mean([np.exp(r.log_p) for r in rows], axis=0)
    if cases[0].one_unit:
        p = p[:, 1:]
    options = {k: v for k, v in cases[0].options.items() if k != "from_logits"}
    return dataclasses.replace(
        cases[0],
        predictions=p.reshape(cases[0].predictions.shape),
        options=options,
    )


def compare_average(model, case, eager):
    rows = case.rows()
    model.compile(
        loss=kc.losses.DCA(weight=3.0, **case.options),
        weighted_metrics=[
            kc.metrics.NegativeLogLikelihood(name="nll", **case.options),
            kc.metrics.ExpectedCalibrationError(name="ece", **case.options),
            kc.metrics.ClasswiseCalibrationError(name="cw", **case.options),
        ],
        run_eagerly=eager,
    )
    data = {**data_of(case), "batch_size": case.lead[0]}
    logs = model.evaluate(**data, return_dict=True)
    loss = ref.reduced(rows, ref.cross_entropy(rows), 3 * ref.dca(rows))
    errors = ref.per_class(
        rows, lambda c, a, w: ref.binned(c, a, w, ref.width_bins(c))
    )
    wanted = {
        "loss": loss,
        "nll": ref.nll(rows),
        "ece": ref.binned(rows.c, rows.a, rows.w, ref.width_bins(rows.c)),
        "cw": errors.mean(),
    }
    assert logs == near(wanted)
    found = model.predict(case.inputs(), verbose=0)
    assert found.shape == case.predictions.shape
    wanted = case.predictions.reshape(24, -1)[rows.place]
    np.testing.assert_allclose(
        found.reshape(24, -1)[rows.place], wanted, rtol=3e-5, atol=1e-6
    )


@pytest.mark.parametrize("case, eager", compiled_ones(AVERAGED, COMPILED))
def test_ensemble(case, eager):
    case = BY_NAME[case]
    cases = [case, peer(case, 1), peer(case, 2)]
    model = kc.models.DeepEnsemble(
        [c.network() for c in cases], from_logits=case.from_logits
    )
    compare_average(model, averaged(cases), eager)


@pytest.mark.parametrize("case, eager", compiled_ones(AVERAGED, COMPILED))
def test_monte_carlo_dropout_that_drops_nothing(case, eager):
    case = BY_NAME[case]
    network = case.network()
    # A rate above 0, at which nothing is dropped.
    drop = keras.layers.Dropout(1e-30, dtype=case.dtype)
    network = keras.Model(network.input, drop(network.output))
    model = kc.models.MonteCarloDropout(
        network, num_masks=3, from_logits=case.from_logits
    )
    compare_average(model, averaged([case]), eager)


# Wrapped networks.

WRAPPED = [
    "ids",
    "probabilities",
    "soft",
    "float16",
    "weights_column",
    "weights_0_garbage",
    "uint8_void_255",
    "masked",
    "tokens_masked",
    "tokens_masked_weights_garbage",
    "tokens_weights_full",
    "images_masked",
    "images_axis_1",
    "volumes_axis_1_garbage",
    "sigmoid",
    "sigmoid_tokens",
]


@pytest.mark.parametrize("case, eager", compiled_ones(WRAPPED, COMPILED))
def test_interleaved_training(case, eager):
    case = BY_NAME[case]
    majority, held_out = (cut(case, part) for part in halves(case))
    model = kc.models.InterleavedTraining(case.network())
    model.compile(
        keras.optimizers.SGD(0.0),
        kc.losses.DCA(weight=3.0, **case.options),
        run_eagerly=eager,
    )
    x = case.inputs()
    first, second = (x[part] for part in halves(case))
    data = second, held_out.labels
    if case.weight is not None:
        data = (*data, held_out.weight)
    logs = model.fit(
        **data_of(majority, first) | {"batch_size": len(first)},
        penalty_data=data,
        shuffle=False,
    ).history
    rows, others = majority.rows(), held_out.rows()
    primary = ref.reduced(rows, ref.cross_entropy(rows))
    penalty = ref.dca(others) if len(others) else 0.0
    found = {key: value[0] for key, value in logs.items()}
    assert found == near(
        {
            "loss": (primary + 3 * penalty) / 2,
            "primary_loss": primary,
            "penalty": penalty,
        }
    )


SAMPLES = [
    "ids",
    "probabilities",
    "one_hot",
    "soft",
    "float16",
    "weights",
    "weights_column",
    "weights_0_garbage",
    "uint8_void_255",
    "void_minus_1_garbage",
    "masked",
    "masked_probabilities_garbage",
    "sigmoid",
    "sigmoid_void_garbage",
]


@pytest.mark.parametrize(
    "case, eager",
    compiled_ones(SAMPLES, ("weights_0_garbage", "masked", "sigmoid")),
)
def test_sample_history(case, eager):
    case = BY_NAME[case]
    model = kc.models.SampleHistoryModel(case.network(), num_samples=24)
    model.compile(
        keras.optimizers.SGD(0.0),
        kc.losses.CRL(weight=2.0, **case.options),
        run_eagerly=eager,
    )
    data = data_of(case, kc.add_sample_index(case.inputs()))
    data["batch_size"] = 24
    logs = model.fit(**data, shuffle=False, epochs=2).history
    rows = case.rows()
    primary = ref.reduced(rows, ref.cross_entropy(rows))
    assert logs["primary_loss"] == near([primary, primary])
    # After one epoch: right once, or never; all right leave nothing to rank.
    assert 0 < rows.a.sum() < len(rows)
    penalty = ref.crl(rows, rows.a)
    assert logs["penalty"] == near([0.0, penalty])
    assert logs["loss"] == near([primary, primary + 2 * penalty])
    history = model.sample_history()
    wanted = {name: np.zeros(24) for name in ("seen", "correct", "confidence")}
    wanted["seen"][rows.place] = 2
    wanted["correct"][rows.place] = 2 * rows.a
    wanted["confidence"][rows.place] = rows.c
    for name, value in wanted.items():
        np.testing.assert_allclose(history[name], value, rtol=2e-5)


def test_a_class_without_probability_adds_nothing():
    with np.errstate(divide="ignore"):
        p, q = np.log([[1.0, 0.0], [0.5, 0.5]]), np.log([[0.5, 0.5], [1, 0]])
    found = to_numpy(kc.models.kl_divergence(p[:1], q[:1]))
    np.testing.assert_allclose(found, [np.log(2)], rtol=1e-6)
    assert to_numpy(kc.models.kl_divergence(p[1:], q[1:])) == [np.inf]
    assert to_numpy(kc.models.kl_divergence(p[:1], p[:1])) == [0]
