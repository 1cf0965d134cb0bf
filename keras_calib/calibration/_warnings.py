"""What `kc.calibrate` warns of when a map was fitted."""

import numpy as np

from keras_calib._warning import FewSamplesWarning
from keras_calib._warning import warn
from keras_calib.calibration._guard import MAP
from keras_calib.calibration._guard import TEMPERATURE
from keras_calib.calibration._methods import samples_needed
from keras_calib.calibration._no_calibration import UNCHANGED
from keras_calib.inputs.arrays import TINY
from keras_calib.layers import BayesianTemperatureScaling
from keras_calib.layers import TemperatureScaling

# Samples that a temperature needs; see `examples/results/few_samples.md`.
FEWEST = 50
# By how many standard errors, and by which factor, the mean probability of a
# class may be off its frequency by chance.
LARGEST_BIAS, LARGEST_RATIO = 4, 1.5
# Names that Keras gives to the share of correct predictions.
ACCURACIES = (
    "accuracy",
    "acc",
    "sparse_categorical_accuracy",
    "categorical_accuracy",
    "binary_accuracy",
)
# A smaller rise of the ECE is not worth a warning.
LEAST_RISE = 0.01


def warn_if_few(layer, num_samples, num_classes, effective=None):
    """Warn of fewer than ten samples for each parameter, and of `FEWEST`.

    Args:
        layer: the map.
        num_samples: int.
        num_classes: int.
        effective: how many samples of equal weight tell as much, if fewer.
    """
    needed = samples_needed(layer, num_classes)
    effective = num_samples if effective is None else effective
    shown = f"{num_samples} calibration samples"
    if effective < 0.99 * num_samples:
        shown += f" (of unequal weight, which tell as much as {effective:.0f})"
    if effective < needed:
        count, smaller = needed // 10, ""
        parameters = "1 parameter"
        if count > 1:
            parameters = f"{count} parameters"
            smaller = ', or a smaller layer such as "temperature"'
        warn(
            f"{type(layer).__name__} has {parameters}, and should have ten "
            f"samples for each: {needed}. Received: {shown}. Use more{smaller}."
        )
    elif effective < FEWEST and not isinstance(
        layer, BayesianTemperatureScaling
    ):
        warn(
            f"{shown} leave open which temperature is right, and one that is "
            f"too low makes new predictions worse. Use {FEWEST} or more, or "
            '`method="bayesian_temperature"`, which averages over '
            "temperatures.",
            FewSamplesWarning,
        )


def warn_of_few_groups(layer, group):
    """Warn that nothing was held out to compare a map with others on.

    Args:
        layer: the map.
        group: the group of each sample, `(n,)`.
    """
    count = len(np.unique(group))
    warn(
        f"{type(layer).__name__} was not compared with others on samples that "
        "are held out: the samples of a group (or the pixels of an image) are "
        f"alike, and stay together. Received: {count} "
        f"group{'s' * (count > 1)}. Use three or more, better fifty.",
        FewSamplesWarning,
    )


def warn_of_pixels():
    """Warn that `"auto"` has nothing but a temperature to choose from."""
    warn(
        '`method="auto"` tries temperature scaling alone where it is not known '
        "which images are alike. Pass `groups`, an id of the patient, film or "
        "place of each image, or `np.arange(len(x))` if no images are."
    )


def warn_of_rejection(layer, found, verdict, worse):
    """Warn that a map was rejected, with the figures that decided it.

    Args:
        layer: the fitted map.
        found: `ece_before`, `ece_after`, `nll_before` and `nll_after`.
        verdict: `Verdict`, without figures if nothing was compared.
        worse: whether the calibration data rejected the map.
    """
    name, nll = type(layer).__name__, verdict.held_out_nll
    figures = f"{nll[TEMPERATURE]:.5g} with temperature scaling" if nll else ""
    instead = "the model stays as it is"
    if verdict.returned == TEMPERATURE:
        instead = "temperature scaling is used instead"
    if worse:
        message = (
            f"{name} was rejected, because it made the model worse on the "
            f"calibration data: NLL {found['nll_before']:.4g} before, "
            f"{found['nll_after']:.4g} after; ECE {found['ece_before']:.4g} "
            f"before, {found['ece_after']:.4g} after."
        )
        if nll:
            message += (
                f" And {instead}: the NLL to expect on new samples is "
                f"{figures}, and {nll[UNCHANGED]:.5g} without calibration."
            )
        warn(message)
        return
    why = ""
    if verdict.failure is not None:
        why = (
            f", because it cannot be fitted to a part of the calibration "
            f"samples ({verdict.failure})"
        )
    elif isinstance(layer, TemperatureScaling):
        figures = f"{nll[MAP]:.5g} with {name}"
    else:
        figures = f"{nll[MAP]:.5g} with {name}, {figures}"
    warn(
        f"{name} was rejected{why}, and {instead}: the NLL to expect on new "
        f"samples is {figures}, and {nll[UNCHANGED]:.5g} without calibration. "
        "`guard=False` keeps it."
    )


def warn_of_no_comparison(layer, verdict):
    """Warn that a map comes back that was not compared, because of an error."""
    warn(
        f"{type(layer).__name__} was not compared with temperature scaling and "
        f"with the model as it came. Received: {verdict.failure}."
    )


def warn_if_predictions_changed(layer, num_changed, num_samples):
    """Warn of a map that changes predicted classes, with their number."""
    if not num_changed:
        return
    warn(
        f"{type(layer).__name__} changes {num_changed} of {num_samples} "
        "predicted classes of the calibration data. `preserve_accuracy=True` "
        "refuses such layers, and `preserve_accuracy=False` silences this."
    )


def warn_of_class_bias(layer, prior, rows):
    """Warn of a class that a map leaves too likely or too unlikely.

    The ECE of the predicted class hardly shows it.

    Args:
        layer: the fitted map.
        prior: of `source_prior`.
        rows: `CalibrationRows`.
    """
    mean = np.array(prior["source_prior"])
    frequency = np.bincount(rows.labels, rows.weights, len(mean))
    frequency = frequency / frequency.sum()
    # Of as many independent samples, the binomial error; that of the root is
    # the larger one where a few samples of a class would be many.
    n = prior["source_num_samples"]
    error = np.sqrt(mean * (1 - mean) / n)
    away = np.abs(mean - frequency)
    of_roots = 2 * np.sqrt(n) * np.abs(np.sqrt(mean) - np.sqrt(frequency))
    low, high = np.minimum(mean, frequency), np.maximum(mean, frequency)
    off = (away > LARGEST_BIAS * error) & (of_roots > LARGEST_BIAS)
    off &= high > LARGEST_RATIO * low
    if not off.any():
        return
    k = int(np.where(off, away / np.maximum(error, TINY), 0).argmax())
    remedy = '"bias_corrected_temperature"` or `"vector"'
    if len(mean) == 2:
        remedy = '"platt"` or `"auto"'
    warn(
        f"With {type(layer).__name__} the mean probability of class {k} is "
        f"{mean[k]:.3g}, and its frequency in the calibration data is "
        f"{frequency[k]:.3g}: probabilities of this class are wrong by more "
        f"than the ECE shows. Try `method={remedy}`."
    )


def warn_if_ece_rose(layer, found, noise, objectives, scaling=None):
    """Warn of an ECE that rose by more than chance while the NLL fell.

    Args:
        layer: the fitted map.
        found: `ece_before`, `ece_after`, `nll_before` and `nll_after`.
        noise: ECE of a perfectly calibrated model on as many samples.
        objectives: names of those that can be chosen.
        scaling: `None`, or the class-wise loss scaling of the fit.
    """
    rise = found["ece_after"] - found["ece_before"]
    if rise <= max(LEAST_RISE, noise):
        return
    remedy = "Try another `method`."
    for objective in ("ece", "soft_binned_ece"):
        if objective in objectives:
            remedy = f'`objective="{objective}"` lowers the ECE itself.'
            break
    if scaling is not None:
        remedy = (
            "The fit counts classes alike, and these figures do not: expect "
            "them where classes are as frequent as here, and leave out "
            "`class_loss_scaling` then."
        )
    warn(
        f"With {type(layer).__name__} the ECE on the calibration data rose "
        f"from {found['ece_before']:.3f} to {found['ece_after']:.3f}; the NLL "
        f"went from {found['nll_before']:.4g} to {found['nll_after']:.4g}. "
        f"{remedy}"
    )


def warn_if_trained_on(model, accuracy, num_samples):
    """Warn of calibration data that the network seems to be trained on."""
    history = getattr(getattr(model, "history", None), "history", None) or {}
    for key in ACCURACIES:
        if key not in history or f"val_{key}" not in history:
            continue
        trained, held_out = history[key][-1], history[f"val_{key}"][-1]
        error = np.sqrt(held_out * (1 - held_out) / num_samples)
        middle = (trained + held_out) / 2
        if trained - held_out > 6 * error and accuracy > middle:
            warn(
                "The network seems to have been trained on the calibration "
                f"data: accuracy there is {accuracy:.3f}; it was {trained:.3f} "
                f"in training and {held_out:.3f} on validation data. A layer "
                "fitted to such data makes the model overconfident."
            )
