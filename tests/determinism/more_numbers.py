"""More groups of `numbers.py`: procedures of training, options of maps."""

import dataclasses

import keras
import numpy as np

import keras_calib as kc
from tests.determinism.numbers import IMAGES
from tests.determinism.numbers import LABELS
from tests.determinism.numbers import WEIGHTS
from tests.determinism.numbers import X
from tests.determinism.numbers import Y
from tests.determinism.numbers import Z
from tests.determinism.numbers import arrays_of
from tests.determinism.numbers import local_temperature
from tests.determinism.numbers import started

PICTURES = IMAGES.repeat(2, axis=1).repeat(2, axis=2)
QUIET = {"epochs": 3, "batch_size": 32, "shuffle": False, "verbose": 0}


def fitted(name, model, loss, *data, callbacks=(), **arguments):
    """Compile, `fit`; then the name and arrays of each log, and the weights."""
    parts = getattr(loss, "component_metrics", list)()
    model.compile(keras.optimizers.SGD(1.0), loss, metrics=["accuracy", *parts])
    logs = model.fit(*data, callbacks=[*callbacks], **{**QUIET, **arguments})
    for key in sorted(logs.history):
        yield f"{name}, {key}", arrays_of(logs.history[key]), ""
    yield f"{name}, weights", model.get_weights(), ""


def procedures():
    """What sees the samples of earlier epochs, or divides the data."""
    focal = kc.losses.FocalLoss(from_logits=True)
    validation = {"validation_data": (X, LABELS)}
    model = kc.models.SampleHistoryModel(started(0), num_samples=len(X))
    crl = kc.losses.CRL(from_logits=True)
    yield from fitted("CRL", model, crl, kc.add_sample_index(X), LABELS)
    yield "CRL, history", list(model.sample_history().values()), ""

    schedule = kc.callbacks.AdaFocalSchedule()
    loss = kc.losses.AdaFocalLoss(num_bins=5, from_logits=True)
    yield from fitted(
        *("AdaFocal", started(0), loss, X, LABELS),
        callbacks=[schedule],
        **validation,
    )
    restore = [
        kc.callbacks.CalibrationMonitor(from_logits=True, refinement=True),
        # The worst epoch: the weights of the first one come back.
        kc.callbacks.RestoreCalibrated(
            "val_refinement_loss", mode="max", max_accuracy_loss=1.0
        ),
    ]
    yield from fitted(
        *("RestoreCalibrated", started(0), focal, X, LABELS),
        callbacks=restore,
        **validation,
    )
    parted = kc.models.InterleavedTraining(started(0), penalty_split=0.25)
    penalty = kc.losses.MDCA(from_logits=True)
    yield from fitted(
        *("InterleavedTraining", parted, penalty, X, LABELS),
        sample_weight=WEIGHTS,
    )

    pruning = kc.callbacks.DataPruning(X, LABELS, every=1, seed=2)
    model = kc.models.SampleHistoryModel(started(0), num_samples=len(X))
    yield from fitted(
        *("DataPruning", model, kc.losses.CRL(from_logits=True), pruning.data),
        callbacks=[pruning],
        batch_size=None,
    )
    yield "DataPruning, dropped", arrays_of(pruning.dropped), ""

    targets = kc.callbacks.EmpiricalTargets(
        X, LABELS, num_classes=3, from_logits=True, seed=2
    )
    soft = keras.losses.CategoricalCrossentropy(from_logits=True)
    yield from fitted(
        *("EmpiricalTargets", started(0), soft, targets.data),
        callbacks=[targets],
        batch_size=None,
    )
    yield "EmpiricalTargets, targets", [targets.targets], ""


def several():
    """Probabilities of several networks."""
    ensemble = kc.models.DeepEnsemble(
        [started(0), started(1)], from_logits=True
    )
    yield "DeepEnsemble", arrays_of(ensemble(X)), ""
    likely = np.asarray(arrays_of(ensemble(X))[0]).argmax(axis=1)
    labels = np.where(np.arange(96) % 3, likely, Y)
    calibrated = kc.calibrate(ensemble, X, labels, WEIGHTS, verbose=0)
    yield "DeepEnsemble, calibrated", arrays_of(calibrated(X)), ""


def options():
    """What maps minimize, and how they are chosen."""
    objectives = {
        "FocalObjective": kc.layers.FocalObjective(),
        "LabelSmoothingObjective": kc.layers.LabelSmoothingObjective(),
        "SoftBinnedECEObjective": kc.layers.SoftBinnedECEObjective(),
        "ece": kc.layers.ExpectedCalibrationErrorObjective(),
        "LossObjective": kc.losses.BrierLoss(from_logits=True),
    }
    for name, objective in objectives.items():
        layer = kc.layers.TemperatureScaling()
        layer.adapt(Z, Y, WEIGHTS, objective=objective)
        yield name, arrays_of(layer.temperature), ""
    for reduction in ("mean", "sum"):
        scaling = kc.layers.ClassLossScaling(reduction=reduction)
        layer = kc.layers.TemperatureScaling()
        layer.adapt(Z, Y, class_loss_scaling=scaling)
        yield f"ClassLossScaling, {reduction}", arrays_of(layer.temperature), ""
    # What it predicts: Adam's first steps divide gradients by their own size,
    # so a weight whose gradient is all but zero follows the last bit.
    local, inputs = local_temperature(epochs=3)
    yield "LocalTemperatureScaling", arrays_of(local(inputs)), ""
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Softmax()(inputs))
    for name, arguments in {
        "auto": {"method": "auto"},
        "mixture": {"method": "auto", "mixture": True},
        "isotonic": {"method": "isotonic", "guard": False},
    }.items():
        found = kc.calibrate(model, Z, Y, WEIGHTS, verbose=0, **arguments)
        yield name, arrays_of(found(Z)), ""


def judgements():
    """What is measured of a model, or of two classes."""
    p = np.exp(Z) / np.exp(Z).sum(1, keepdims=True)
    risk, event = p[:, 1], (Y == 1).astype(int)
    panel = kc.metrics.clinical_panel(event, risk, WEIGHTS)
    yield from numbers_in("clinical_panel", panel)
    squared = kc.metrics.squared_kernel_calibration_error(Y, p, seed=0)
    yield from numbers_in("squared_kernel", squared)
    errors = kc.metrics.calibration_errors(
        *(Y, p, WEIGHTS),
        num_resamples=20,
        floor=True,
        refinement=True,
        verbose=0,
    )
    yield from numbers_in("calibration_errors", errors)
    inputs = keras.Input((16, 16, 3))
    pooled = keras.layers.GlobalAveragePooling2D()(inputs)
    outputs = keras.layers.Softmax()(pooled / 20)
    result = kc.shift.evaluate(
        *(keras.Model(inputs, outputs), 255 * PICTURES, np.arange(4) % 3),
        corruptions=["gaussian_noise", "contrast"],
        severities=[1, 5],
        num_resamples=10,
        verbose=0,
    )
    yield from numbers_in("shift", result.to_dict())


def numbers_in(name, found):
    """Every number of nested dicts, lists of them and dataclasses, by key."""
    if dataclasses.is_dataclass(found):
        found = dataclasses.asdict(found)
    if isinstance(found, list) and found and isinstance(found[0], dict):
        found = dict(enumerate(found))
    if isinstance(found, dict):
        for key, value in found.items():
            yield from numbers_in(f"{name}, {key}", value)
    elif isinstance(found, (int, float, np.ndarray, np.number, list, tuple)):
        if hasattr(found, "low"):  # ends of an interval
            found = [found, found.low, found.high]
        array = np.asarray(found)
        if array.dtype.kind in "iufb":
            yield name, [array], ""
