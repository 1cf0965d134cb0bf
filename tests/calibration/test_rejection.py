"""Which fits are rejected: the rule, however an objective is passed in."""

import itertools

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.calibration._fit import is_likelihood
from keras_calib.calibration._fit import is_worse
from keras_calib.layers._loss_objective import resolve_objective
from keras_calib.layers._objectives import NAMES
from tests.calibration.networks import X
from tests.calibration.networks import Y
from tests.calibration.networks import built
from tests.calibration.networks import dense
from tests.calibration.networks import functional

LOGITS = {"from_logits": True}
SAME = {
    "nll": [
        "nll",
        NAMES["nll"](),
        keras.losses.SparseCategoricalCrossentropy(**LOGITS),
        keras.losses.CategoricalCrossentropy(**LOGITS),
    ],
    "ece": ["ece", NAMES["ece"]()],
    "soft-binned ECE": [
        "soft_binned_ece",
        NAMES["soft_binned_ece"](),
        kc.losses.SoftBinnedECE(primary=None, **LOGITS),
    ],
    "focal": [
        "focal",
        NAMES["focal"](),
        kc.losses.FocalLoss(gamma=3.0, **LOGITS),
    ],
    "smoothing": [
        "label_smoothing",
        NAMES["label_smoothing"](),
        keras.losses.CategoricalCrossentropy(label_smoothing=0.05, **LOGITS),
    ],
    "ignoring": [
        keras.losses.SparseCategoricalCrossentropy(ignore_class=1, **LOGITS)
    ],
}
# By the objective: whether NLL, ECE, or both must have risen.
RULES = {
    "nll": lambda nll, ece: nll,
    "ece": lambda nll, ece: ece,
    "soft-binned ECE": lambda nll, ece: ece,
    "focal": lambda nll, ece: nll and ece,
    "smoothing": lambda nll, ece: nll and ece,
    "ignoring": lambda nll, ece: nll and ece,
}


class OwnTemperature(kc.layers.TemperatureScaling):
    pass


class OwnHistogram(kc.layers.HistogramBinning):
    pass


def verdicts(layer, objective, scaling=None):
    likelihood = scaling is None and is_likelihood(objective, 3)
    return [
        is_worse(
            layer,
            objective,
            likelihood,
            {
                "nll_before": 1.0,
                "nll_after": 1.1 if nll else 0.9,
                "ece_before": 0.1,
                "ece_after": 0.2 if ece else 0.05,
            },
        )
        for nll, ece in itertools.product([False, True], repeat=2)
    ]


@pytest.mark.parametrize("kind", SAME)
def test_rule_depends_on_the_objective_alone(kind):
    layer = OwnTemperature()
    expected = [
        RULES[kind](nll, ece)
        for nll, ece in itertools.product([False, True], repeat=2)
    ]
    for objective in SAME[kind]:
        objective = resolve_objective(objective, layer)
        assert verdicts(layer, objective) == expected


@pytest.mark.parametrize(
    "kind", [kc.layers.HistogramBinning, OwnHistogram], ids=["ours", "own"]
)
def test_maps_fitted_by_frequencies_must_be_worse_in_both(kind):
    layer = kind()
    objective = resolve_objective("nll", layer)
    assert verdicts(layer, objective) == [False, False, False, True]


@pytest.mark.parametrize(("n", "both"), [(40, True), (4000, False)])
def test_a_map_that_hedges_must_be_worse_in_both(n, both):
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(n, 3))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    layer = kc.layers.VectorScaling().adapt(logits, labels)
    assert (layer.record["scale_factor"] < 1) == both
    objective = resolve_objective("nll", layer)
    assert verdicts(layer, objective) == [False, False, not both, True]


def test_class_loss_scaling_must_be_worse_in_both():
    layer = kc.layers.TemperatureScaling()
    objective = resolve_objective("nll", layer)
    expected = [False, False, False, True]
    assert verdicts(layer, objective, "normal") == expected


def test_binary_cross_entropy_is_the_likelihood_of_one_unit():
    loss = keras.losses.BinaryCrossentropy(**LOGITS)
    objective = resolve_objective(loss, kc.layers.TemperatureScaling())
    assert is_likelihood(objective, 1)
    assert not is_likelihood(objective, 3)
    # That of as many sigmoids is another loss, whose minimum is no temperature
    # to compare with.
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(1000, 10)).astype("float32")
    labels = (logits / 1.5 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    model = keras.Sequential([keras.Input((10,)), keras.layers.Softmax()])
    records = []
    for loss in (
        keras.losses.BinaryCrossentropy(**LOGITS),
        keras.losses.BinaryFocalCrossentropy(gamma=0.0, **LOGITS),
    ):
        with pytest.warns(UserWarning, match="worse on the calibration data"):
            found = kc.calibrate(
                model, logits, labels, objective=loss, verbose=0
            )
        records.append(kc.calibration_record(found))
    assert records[0]["temperature"] == pytest.approx(6.07, abs=0.01)
    assert records[0]["rejected"] and records[1]["rejected"]
    assert records[0]["guard"] is None is records[1]["guard"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["ece", "soft-binned ECE"])
def test_equal_objectives_give_equal_models(kind):
    model = built(functional(dense("softmax")))
    # Labels that no temperature calibrates, so that a fit may do harm.
    labels = np.where(np.arange(len(Y)) % 3 == 0, (Y + 1) % 3, Y)
    found = [
        kc.calibration_record(
            kc.calibrate(model, X, labels, objective=objective, verbose=0)
        )
        for objective in SAME[kind][:2]
    ]
    assert found[0] == found[1]


def test_fuse_with_a_softmax_and_from_logits_false():
    model = built(functional(dense("softmax")))
    plain = kc.calibrate(model, X, Y, verbose=0)
    fused = kc.calibrate(model, X, Y, fuse=True, from_logits=False, verbose=0)
    np.testing.assert_allclose(
        fused.predict(X, verbose=0), plain.predict(X, verbose=0), atol=1e-6
    )
