"""Fit a map, compare before and after, and reject what does harm."""

import warnings

import numpy as np

from keras_calib.calibration._auto import losses_and_probabilities
from keras_calib.calibration._checks import warn_if_few
from keras_calib.calibration._methods import as_map
from keras_calib.calibration._no_calibration import NoCalibration
from keras_calib.evaluation import bin_sums as exact
from keras_calib.inputs.arrays import as_array
from keras_calib.keras_graph.heads import free_name
from keras_calib.layers._base import CalibrationLayer

NUM_BINS = 15
# Numbers that are worked on at once.
BLOCK = 1 << 22
# Objectives that a calibration error decides, and maps that are not fitted by
# their likelihood.
BY_CALIBRATION_ERROR = ("soft_binned_ece", "ece")
NOT_BY_LIKELIHOOD = (
    "HistogramBinning",
    "IsotonicCalibration",
    "SplineCalibration",
)


def fit(method, network, rows, objective, class_loss_scaling):
    """A fitted layer, and NLL and ECE on its data before and after."""
    layer = as_map(method)
    if not isinstance(method, CalibrationLayer):
        layer = as_map(method, free_name(network, method))
    scores, labels, weight = rows.logits, rows.labels, rows.weight
    warn_if_few(layer, len(labels), max(2, scores.shape[-1]))
    old = layer.get_weights() if layer.built else None, layer.record
    try:
        if type(layer).adapt is CalibrationLayer.adapt:
            layer.adapt_to_rows(
                rows,
                objective=objective,
                class_loss_scaling=class_loss_scaling,
            )
        else:  # a map of the user's
            layer.adapt(
                scores,
                labels,
                weight,
                objective=objective,
                class_loss_scaling=class_loss_scaling,
            )
        found = before_and_after(layer, scores, labels, weight)
    except BaseException:
        _restore(layer, old, scores.shape[-1])
        raise
    named = isinstance(objective, str)
    record = {
        "method": method if isinstance(method, str) else type(layer).__name__,
        "objective": objective if named else type(objective).__name__,
        "class_loss_scaling": class_loss_scaling,
        "num_classes": max(2, scores.shape[-1]),
        **layer.record,
    }
    plain = objective == "nll" and class_loss_scaling is None
    record["rejected"] = is_worse(layer, objective, plain, found)
    if record["rejected"]:
        warnings.warn(
            f"{type(layer).__name__} made the model worse on the calibration "
            f"data and was rejected: NLL {found['nll_before']:.4g} before, "
            f"{found['nll_after']:.4g} after; ECE {found['ece_before']:.4g} "
            f"before, {found['ece_after']:.4g} after.",
            stacklevel=3,
        )
        _restore(layer, old, scores.shape[-1])
        layer = NoCalibration(name=free_name(network, "no_calibration"))
    layer.record = record
    return layer, found


def is_worse(layer, objective, plain, found):
    """Whether a map raised what it was meant to lower.

    Likelihood decides for a fit by likelihood, the calibration error for a
    fit by calibration error; otherwise a map is worse if both are.
    """
    nll = found["nll_after"] > found["nll_before"] + 1e-6
    ece = found["ece_after"] > found["ece_before"] + 1e-6
    if objective in BY_CALIBRATION_ERROR:
        return ece
    if plain and type(layer).__name__ not in NOT_BY_LIKELIHOOD:
        return nll
    return nll and ece


def _restore(layer, old, num_units):
    weights, record = old
    if weights is None and layer.built:
        fresh = type(layer).from_config(layer.get_config())
        fresh.build((None, num_units))
        weights = fresh.get_weights()
    if weights is not None:
        layer.set_weights(weights)
    layer.record = record


def before_and_after(layer, scores, labels, weight):
    """NLL, ECE and accuracy on the calibration data, without and with a map."""
    found = {"ece_num_bins": NUM_BINS}
    for moment, apply in (("after", layer), ("before", None)):
        confidence = np.empty(len(labels), "float32")
        correct, losses = np.empty((2, len(labels)))
        rows = max(1, BLOCK // scores.shape[-1])
        for start in range(0, len(labels), rows):
            part = slice(start, start + rows)
            z = scores[part]
            z = z if apply is None else as_array(apply(z))
            losses[part], probabilities = losses_and_probabilities(
                z, labels[part]
            )
            confidence[part], correct[part] = exact.top_label(
                labels[part], probabilities
            )
        found[f"nll_{moment}"] = float(np.average(losses, weights=weight))
        found[f"ece_{moment}"] = exact.expected_calibration_error(
            confidence, correct, NUM_BINS, weight=weight
        )
    # Of the network itself, which came last.
    found["accuracy"] = float(np.average(correct, weights=weight))
    return found
