"""Numbers that a seed, or given weights, fix; each group a generator.

A group yields names, arrays, and a text of what are no arrays.
"""

import json

import keras
import numpy as np
from keras import ops

import keras_calib as kc
from tests.helpers import fitted_layers
from tests.helpers import value_and_gradient
from tests.layers.test_local_temperature_scaling import images

RNG = np.random.default_rng(0)
Z = RNG.normal(0, 3, (96, 3)).astype("float32")
Y = (np.exp(Z) / np.exp(Z).sum(1, keepdims=True)).cumsum(1)
Y = (Y > RNG.random((96, 1))).argmax(1)
X = RNG.normal(size=(96, 4)).astype("float32")
# Labels that the inputs tell something of.
LABELS = (2 * X[:, :3] + RNG.gumbel(size=(96, 3))).argmax(1)
WEIGHTS = RNG.uniform(0.5, 2.0, 96).astype("float32")
IMAGES = RNG.uniform(size=(4, 8, 8, 3)).astype("float32")


def arrays_of(*values):
    """NumPy arrays of the values of any backend."""
    return [np.asarray(ops.convert_to_numpy(value)) for value in values]


def losses():
    """Value and gradient of every loss."""
    for name in kc.losses.__all__:
        make = getattr(kc.losses, name)
        if not name[0].isupper() or name in NOT_LOSSES:
            continue
        loss = make(from_logits=True)
        found = value_and_gradient(lambda z: loss(Y, z), Z)  # noqa: B023
        yield name, arrays_of(*found), ""


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
    for name, layer, _ in fitted_layers(Z, Y):
        record = json.dumps(getattr(layer, "record", None), default=str)
        yield name, arrays_of(*layer.get_weights()), record

    layer = kc.layers.MultiLabelScaling().adapt(Z, (Z > RNG.normal()) * 1)
    yield "MultiLabelScaling", arrays_of(*layer.get_weights()), ""


def measures():
    """What draws, or sums in parallel."""
    p = np.exp(Z) / np.exp(Z).sum(1, keepdims=True)
    found = kc.metrics.calibration_errors(
        Y, p, num_resamples=20, floor=True, verbose=0, seed=3
    )
    ends = [[e.low, e.high] for e in found.values() if hasattr(e, "low")]
    yield "calibration_errors", [np.array(ends)], json.dumps(found, default=str)
    test = kc.metrics.consistency_test(Y, p, num_draws=50, verbose=0)
    yield "consistency_test", [], repr(test)
    pictures = RNG.integers(0, 256, (2, 16, 16, 3)).astype("uint8")
    for kind in ("gaussian_noise", "glass_blur", "snow", "elastic_transform"):
        yield kind, arrays_of(kc.shift.corrupt(pictures, kind, 3)), ""
    for name in kc.metrics.__all__:
        make = getattr(kc.metrics, name)
        if not isinstance(make, type) or name in NOT_METRICS:
            continue
        metric = make(from_logits=True)
        if name == "BinaryCalibrationError":
            metric.update_state(Y.clip(0, 1), Z[:, :2])
        elif name == "MultilabelCalibrationError":
            metric.update_state(np.eye(3)[Y], Z)
        else:
            metric.update_state(Y, Z)
        yield name, arrays_of(metric.result()), ""


NOT_METRICS = ("CalibrationMetric",)


def network():
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, "relu"),
            keras.layers.Dense(3),
        ]
    )


def monitors():
    """Every callback that watches a `fit` and writes into its logs."""
    schedule = kc.callbacks.AdaFocalSchedule()
    return {
        "CalibrationMonitor": [
            kc.callbacks.CalibrationMonitor(refinement=True, from_logits=True)
        ],
        "TemperatureTracker": [
            kc.callbacks.TemperatureTracker(from_logits=True)
        ],
        "RestoreCalibrated": [
            kc.callbacks.CalibrationMonitor(from_logits=True),
            kc.callbacks.RestoreCalibrated("val_expected_calibration_error"),
        ],
        "AdaFocalSchedule": [schedule],
    }


def trainings():
    """Weights and logs of a `fit`, with shuffling and its monitors."""
    focal = kc.losses.FocalLoss(from_logits=True)
    procedures = {
        "DiffDML": lambda: (kc.models.DiffDML(network(), network()), focal, []),
    }
    for name, callbacks in monitors().items():
        loss = focal
        if name == "AdaFocalSchedule":
            loss = kc.losses.AdaFocalLoss(num_bins=5, from_logits=True)
        procedures[name] = lambda loss=loss, callbacks=callbacks: (
            network(),
            loss,
            callbacks,
        )
    for name, make in procedures.items():
        keras.utils.set_random_seed(1)
        model, loss, callbacks = make()
        parts = getattr(loss, "component_metrics", list)()
        model.compile("adam", loss, metrics=["accuracy", *parts])
        history = model.fit(
            X,
            Y,
            validation_data=(X, Y),
            epochs=2,
            callbacks=callbacks,
            verbose=0,
        ).history
        yield name, model.get_weights(), json.dumps(history)
    pruning = kc.callbacks.DataPruning(X, Y, every=1, seed=2)
    keras.utils.set_random_seed(1)
    model = kc.models.SampleHistoryModel(network(), num_samples=len(X))
    model.compile("adam", kc.losses.CRL(from_logits=True))
    model.fit(pruning.data, epochs=2, callbacks=[pruning], verbose=0)
    yield "DataPruning", [*model.get_weights(), *arrays_of(pruning.dropped)], ""
    targets = kc.callbacks.EmpiricalTargets(
        X, Y, num_classes=3, from_logits=True, seed=2
    )
    keras.utils.set_random_seed(1)
    model = network()
    model.compile(
        "adam", keras.losses.CategoricalCrossentropy(from_logits=True)
    )
    model.fit(targets.data, epochs=2, callbacks=[targets], verbose=0)
    yield "EmpiricalTargets", [*model.get_weights(), targets.targets], ""
    local, _ = local_temperature()
    yield "LocalTemperatureScaling", arrays_of(*local.get_weights()), ""


def local_temperature(epochs=8):
    """A map that was trained, of images that are too sure where bright."""
    x, logits, labels = images(40, size=8)
    local = kc.layers.LocalTemperatureScaling(epochs=epochs)
    local.adapt([x, logits], labels)
    if local.record["kept"] != "local":
        raise AssertionError(f"Nothing was trained: {local.record}.")
    return local, [x, logits]


def rows_in_use():
    """Losses and metrics of sequences, with a mask and weights."""
    inputs = keras.Input((5, 3))
    model = keras.Model(inputs, keras.layers.Masking(9.0)(inputs))
    z = np.array(Z[:90].reshape(18, 5, 3))
    z[::2, 3:] = 9.0
    y, w = Y[:90].reshape(18, 5), WEIGHTS[:90].reshape(18, 5)
    for room in (kc.losses, kc.metrics):
        for name in room.__all__:
            make = getattr(room, name)
            left_out = (*NOT_LOSSES, *NOT_METRICS, *OTHER_LABELS)
            if not isinstance(make, type) or name in left_out:
                continue
            each = make(from_logits=True)
            yield name, arrays_of(each(y, model(z), w)), ""


OTHER_LABELS = ("BinaryCalibrationError", "MultilabelCalibrationError")


def decisions():
    """What is decided with calibrated scores."""
    for name, layer in {
        "LAC": kc.layers.ConformalSets(method="lac"),
        "RAPS": kc.layers.ConformalSets(method="raps", randomized=True),
        "RiskThreshold": kc.layers.RiskThreshold(target_risk=0.2),
    }.items():
        layer.adapt(Z, Y)
        yield name, arrays_of(*layer.get_weights(), layer(Z)), ""
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Softmax()(inputs))
    model = kc.calibrate(
        *(model, Z, Y, WEIGHTS),
        method="bias_corrected_temperature",
        verbose=0,
    )
    yield "calibrate", arrays_of(model(Z)), ""
    shifted = kc.adjust_prior(model, prior=[0.6, 0.3, 0.1])
    yield "adjust_prior", arrays_of(shifted(Z)), ""
    shifted = kc.adjust_prior(model, Z[Y != 0], verbose=0)
    yield "adjust_prior, estimated", arrays_of(shifted(Z)), ""


def started(seed):
    """A network whose weights every backend has."""
    model, rng = network(), np.random.default_rng(seed)
    model.set_weights(
        [rng.normal(0, 0.5, each.shape) for each in model.get_weights()]
    )
    return model


def steps():
    """A few steps of `fit` from given weights, with weights and monitors."""
    loss = kc.losses.MDCA(from_logits=True)
    for name, model in {
        "MDCA": started(0),
        "DiffDML": kc.models.DiffDML(started(0), started(1)),
        "MutualLearning": kc.models.MutualLearning(started(0), started(1)),
    }.items():
        model.compile(keras.optimizers.SGD(1.0), loss, metrics=["accuracy"])
        logs = model.fit(
            X,
            LABELS,
            batch_size=32,
            sample_weight=WEIGHTS,
            validation_data=(X, LABELS),
            epochs=2,
            shuffle=False,
            callbacks=[
                kc.callbacks.CalibrationMonitor(from_logits=True),
                kc.callbacks.TemperatureTracker(from_logits=True),
            ],
            verbose=0,
        ).history
        for key in sorted(logs):
            yield f"{name}, {key}", arrays_of(logs[key]), ""
        yield f"{name}, weights", model.get_weights(), ""
