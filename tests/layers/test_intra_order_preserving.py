import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from keras_calib.layers import NegativeLogLikelihoodObjective
from keras_calib.layers._intra_order_preserving import order_preserving
from keras_calib.solvers.increasing_function import IncreasingFunction
from keras_calib.solvers.increasing_function import fit_slopes
from keras_calib.solvers.increasing_function import knots_for
from tests.helpers import to_numpy
from tests.layers.generated import generated
from tests.layers.generated import nll


def test_order_preserving():
    # The sheet's example, moved to a largest score of 0.
    scores = np.array([[2.0, 1.0, 0.0], [3.0, 1.0, 0.5]], "float32")
    stretch = np.array([[0.0, 1.0, -1.0], [0.0, 0.5, 2.0]], "float32")
    expected = np.array(
        [
            [1.62652337504, 1.31326168752, 0.0],
            [4.74089451418, 0.48703849209, 0.0],
        ]
    )
    np.testing.assert_allclose(
        to_numpy(
            order_preserving(
                ops.convert_to_tensor(scores), ops.convert_to_tensor(stretch)
            )
        ),
        expected - expected[:, :1],
        atol=1e-6,
    )


def passes(count=200, segments=8, strength=1e-3):
    logits, labels = generated(count)
    weight = np.random.default_rng(0).uniform(0.5, 2.0, count)
    knots = knots_for(logits, segments - 1, weight)
    return IncreasingFunction(
        logits,
        labels,
        weight,
        NegativeLogLikelihoodObjective(),
        knots,
        strength,
    ), (logits, labels, weight, knots)


def test_passes_are_the_likelihood_and_its_derivatives():
    function, (logits, labels, weight, knots) = passes()
    slopes = np.random.default_rng(1).uniform(0.5, 1.5, 8)
    (value, gradient), hessian = (
        function.evaluate(slopes),
        function.hessian(slopes),
    )
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    low, high = np.append(-np.inf, knots), np.append(knots, 0.0)
    scores = (np.clip(log_p[..., None], low, high) - high) @ slopes
    assert value - function.penalty(slopes) == pytest.approx(
        nll(scores, labels, weight), abs=1e-12
    )
    for i, unit in enumerate(np.eye(8) * 1e-6):
        above = function.evaluate(slopes + unit)
        below = function.evaluate(slopes - unit)
        assert gradient[i] == pytest.approx(
            (above[0] - below[0]) / 2e-6, abs=1e-8
        )
        np.testing.assert_allclose(
            hessian[i], (above[1] - below[1]) / 2e-6, atol=1e-8
        )


def test_the_optimum_from_any_start():
    function, _ = passes()
    found = [
        fit_slopes(function, np.full(8, start), 1e-3)
        for start in (0.01, 1.0, 5.0)
    ]
    for minimum in found:
        slopes = minimum.parameters
        _, gradient = function.evaluate(slopes)
        inside = slopes > 1e-3
        assert np.abs(gradient[inside]).max() < 1e-8
        assert (gradient[~inside] >= 0).all()
        assert minimum.value == pytest.approx(found[0].value, abs=1e-12)


def test_a_large_penalty_is_temperature_scaling():
    logits, labels = generated()
    layer = kc.layers.IntraOrderPreserving(penalty=1e6).adapt(logits, labels)
    slopes = layer.record["slopes"]
    assert slopes == pytest.approx([1 / 1.97593901124] * 16, rel=1e-4)
    assert layer.record["nll_after"] == pytest.approx(0.692067035915, abs=1e-6)


def test_a_large_penalty_on_the_network_is_temperature_scaling():
    # Also on the biases: each of them stretches a gap by its own.
    logits, labels = generated()
    found = []
    for penalty in (1e6, 10.0):
        layer = kc.layers.IntraOrderPreserving(
            family="order_invariant",
            hidden=(4,),
            penalty=penalty,
            shrinkage=None,
        ).adapt(logits, labels)
        found.append(layer.record["nll_after"])
    assert found[0] == pytest.approx(0.692067035915, abs=1e-5)
    assert found[1] < found[0] - 1e-4


@pytest.mark.parametrize("family", ["diagonal", "order_invariant"])
def test_all_classes_keep_their_order(family):
    logits, labels = generated()
    layer = kc.layers.IntraOrderPreserving(
        family=family, hidden=(4,), iterations=20
    )
    layer.adapt(logits, labels)
    out = to_numpy(layer(logits))
    np.testing.assert_array_equal(out.argsort(-1), logits.argsort(-1))
    tied = np.array([[1.0, 0.0, 1.0, 0.0, -1.0]], "float32")
    out = to_numpy(layer(tied))[0]
    assert out[0] == out[2] > out[1] == out[3] > out[4]


def test_permuted_classes_give_permuted_scores():
    logits, labels = generated()
    layer = kc.layers.IntraOrderPreserving(
        family="order_invariant", hidden=(4,), iterations=20
    ).adapt(logits, labels)
    order = np.array([3, 1, 4, 0, 2])
    np.testing.assert_allclose(
        to_numpy(layer(logits[:, order])),
        to_numpy(layer(logits))[:, order],
        atol=1e-5,
    )


@pytest.mark.parametrize(
    "arguments",
    [{"family": "other"}, {"num_segments": 12}, {"num_segments": 1}],
    ids=["family", "not a power", "too few"],
)
def test_bad_arguments(arguments):
    with pytest.raises(ValueError, match="must be"):
        kc.layers.IntraOrderPreserving(**arguments)
