"""The same seed gives the same numbers, bit for bit, in two processes."""

import hashlib
import json
import sys

import keras
import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from tests.helpers import run_python
from tests.helpers import value_and_gradient

RNG = np.random.default_rng(0)
Z = RNG.normal(0, 3, (96, 3)).astype("float32")
Y = (np.exp(Z) / np.exp(Z).sum(1, keepdims=True)).cumsum(1)
Y = (Y > RNG.random((96, 1))).argmax(1)
X = RNG.normal(size=(96, 4)).astype("float32")


def digest(*arrays):
    """A hash of all bits of arrays of any backend."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.asarray(ops.convert_to_numpy(array)).tobytes())
    return found.hexdigest()[:16]


def losses():
    """Value and gradient of every loss."""
    for name in kc.losses.__all__:
        make = getattr(kc.losses, name)
        if not name[0].isupper() or name in NOT_LOSSES:
            continue
        loss = make(from_logits=True)
        yield name, digest(*value_and_gradient(lambda z: loss(Y, z), Z))  # noqa: B023


# CRL needs a history; it is among the trainings.
NOT_LOSSES = (
    "CRL",
    "AdaFocalTable",
    "ClassificationLoss",
    "LossPart",
    "PenalizedLoss",
)


def maps():
    """The weights and the record of every map that can be fitted."""
    for name in kc.layers.__all__:
        make = getattr(kc.layers, name)
        if not hasattr(make, "adapt") or name in NOT_MAPS:
            continue
        binary = name in BINARY
        layer = make(**({"max_miscoverage": 0.2} if name == "MetaCal" else {}))
        layer.adapt(Z[:, :2] if binary else Z, Y.clip(0, 1) if binary else Y)
        record = json.dumps(getattr(layer, "record", None), default=str)
        yield name, digest(*layer.get_weights()) + record


NOT_MAPS = (
    *("CalibrationLayer", "CalibrationMixture", "DecisionLayer"),
    *("LocalTemperatureScaling", "LogProbabilities", "MultiLabelScaling"),
    "PriorCorrection",
)
BINARY = (*("BetaCalibration", "PlattScaling", "QuadraticScaling"),)


def measures():
    """What draws, or sums in parallel."""
    p = np.exp(Z) / np.exp(Z).sum(1, keepdims=True)
    found = kc.metrics.calibration_errors(
        Y, p, num_resamples=20, floor=True, verbose=0, seed=3
    )
    yield "calibration_errors", json.dumps(found, default=str)
    test = kc.metrics.consistency_test(Y, p, num_draws=50, verbose=0)
    yield "consistency_test", repr(test)
    images = RNG.integers(0, 256, (2, 16, 16, 3)).astype("uint8")
    for kind in ("gaussian_noise", "glass_blur", "snow", "elastic_transform"):
        yield kind, digest(kc.shift.corrupt(images, kind, 3))
    for name in ("ExpectedCalibrationError", "SmoothCalibrationError"):
        metric = getattr(kc.metrics, name)(from_logits=True)
        metric.update_state(Y, Z)
        yield name, digest(metric.result())


def network():
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, "relu"),
            keras.layers.Dense(3),
        ]
    )


def trainings():
    """Weights and logs of a `fit`, with shuffling and its monitors."""
    loss = kc.losses.FocalLoss(from_logits=True)
    procedures = {
        "DiffDML": lambda: (kc.models.DiffDML(network(), network()), loss, []),
        "CalibrationMonitor": lambda: (
            network(),
            loss,
            [
                kc.callbacks.CalibrationMonitor(
                    refinement=True, from_logits=True
                )
            ],
        ),
    }
    for name, make in procedures.items():
        keras.utils.set_random_seed(1)
        model, loss, callbacks = make()
        model.compile("adam", loss, metrics=["accuracy"])
        history = model.fit(
            X,
            Y,
            validation_data=(X, Y),
            epochs=2,
            callbacks=callbacks,
            verbose=0,
        ).history
        yield name, digest(*model.get_weights()) + json.dumps(history)
    pruning = kc.callbacks.DataPruning(X, Y, every=1, seed=2)
    keras.utils.set_random_seed(1)
    model = kc.models.SampleHistoryModel(network(), num_samples=len(X))
    model.compile("adam", kc.losses.CRL(from_logits=True))
    model.fit(pruning.data, epochs=2, callbacks=[pruning], verbose=0)
    yield "DataPruning", digest(*model.get_weights(), pruning.dropped)


GROUPS = {each.__name__: each for each in (losses, maps, measures, trainings)}


@pytest.mark.slow
def test_two_processes_have_the_same_bits():
    first, second = (
        json.loads(
            run_python(["-m", "tests.test_determinism"]).splitlines()[-1]
        )
        for _ in range(2)
    )
    assert set(first) == set(GROUPS)
    for group, found in first.items():
        assert len(found) >= 3, group
        assert found == second[group]


if __name__ == "__main__":
    keras.utils.set_random_seed(0)
    print(json.dumps({name: dict(each()) for name, each in GROUPS.items()}))
    sys.exit()
