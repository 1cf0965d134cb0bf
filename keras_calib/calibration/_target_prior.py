"""The class frequencies of unlabeled target data, and a test of a shift."""

import numpy as np

from keras_calib._warning import warn
from keras_calib.calibration import _checks as checks
from keras_calib.calibration import _network
from keras_calib.calibration._record import LOG_OF_PROBABILITIES
from keras_calib.data.collect import collect_outputs
from keras_calib.inputs import arrays
from keras_calib.keras_private import keras_mask
from keras_calib.solvers import label_shift

# An estimate rules no class out: a class that the rows lack keeps this.
LEAST = 1e-8
# Above it, the rows could as well have the source prior.
LARGEST_P_VALUE = 0.05


def estimate(
    network, data, from_logits, source, known_by, verbose, model, ignored
):
    """Run a network over target data and estimate their prior by EM.

    Args:
        network: `Network`.
        data: `Batches` of `(x, None, sample_weight)`.
        from_logits: argument of `adjust_prior`, for messages.
        source: the source prior, `(num_classes,)`.
        known_by: number of samples that it was estimated from, or infinity.
        verbose: 0 for silence.
        model: the calibrated model.
        ignored: the label that calibration left out, or `None`.

    Returns:
        target: the target prior, `(num_classes,)`.
        record: dict of JSON values.
        kind: the `logits_source` of the network, see `CalibrationRecord`.
    """
    if ignored is not None and _are_told_apart(model, network, data):
        ignored = None
    with collect_outputs(network.model, data, verbose) as found:
        scores, weights, by_sample = found
        kind = network.logits_source or checks.source_by_values(scores)
        if kind == "logits":
            checks.refuse_probabilities(scores, from_logits)
        if kind == LOG_OF_PROBABILITIES:
            checks.check_probabilities(scores, False)
            _network.take_logarithm(scores)
        if scores.shape[1] == 1:
            scores = arrays.two_classes(scores)
        if scores.shape[1] != len(source):
            raise ValueError(
                "`source_prior` must be a probability for each class. "
                f"Received: {len(source)} probabilities, outputs of "
                f"{scores.shape[1]} classes."
            )
        if not np.isfinite(scores.max(axis=1)).all():
            raise ValueError(
                "The outputs of the model are not finite on the target data. "
                "Look for overflow in the network, and NaN in the data."
            )
        n = len(scores)
        ratios = label_shift.likelihood_ratios(scores, source)
        found = label_shift.estimate_prior(ratios, source, weights)
    # A label beside the classes is of padding only where rows have steps.
    if ignored is not None and (not by_sample or 0 <= ignored < len(source)):
        warn(
            f"Calibration ignored label {ignored}; of the target data each of "
            f"the {n} rows counts, whatever its label. Pass `sample_weight`, 0 "
            "for rows that do not count."
        )
    target = without_unseen(np.maximum(found.prior, LEAST), source)
    record = {
        "num_samples": n,
        "source_num_samples": None if np.isinf(known_by) else round(known_by),
        "iterations": found.iterations,
        "absent_classes": np.flatnonzero(found.prior < LEAST).tolist(),
        "log_likelihood": found.log_likelihood,
    }
    if not found.converged:
        warn(
            f"The estimate of the prior has not converged after "
            f"{found.iterations} steps. Use more target data."
        )
    # Of equal weights, and of rows that are independent.
    if by_sample and weights is None:
        record |= _test_of_no_shift(found, n, source, known_by)
    return target, record, kind


def _are_told_apart(model, network, data):
    """Whether weights or a mask tell which rows do not count."""
    example = _network.as_example(model, data.first_inputs())
    if data.first_weights() is not None:
        return True
    return keras_mask(network.model(example, training=False)) is not None


def _test_of_no_shift(found, n, source, known_by):
    """`2 n (L(q) - L(s)) / (1 + n / m)`, against chi-square; `L(s)` is 0.

    Without a shift, q differs from s by the errors of both. The source prior is
    of `m` independent samples of equal weight with labels, each of which tells
    at least as much about it as one without.
    """
    statistic = 2 * n * found.log_likelihood / (1 + n / known_by)
    degrees = int((source > 0).sum()) - 1
    p_value = label_shift.chi_square_tail(statistic, degrees)
    if p_value > LARGEST_P_VALUE:
        warn(
            f"The target data show no shift of the classes: p-value "
            f"{p_value:.2g} on {n} samples. The correction may be noise."
        )
    return {
        "shift_statistic": statistic,
        "degrees_of_freedom": degrees,
        "p_value": p_value,
    }


def without_unseen(target, source):
    """A target prior of 0 for classes with a source prior of 0."""
    unseen = (source <= 0) & (target > LEAST)
    if unseen.any():
        warn(
            "No prediction can have a class whose source prior is 0: the "
            f"target prior of class {np.flatnonzero(unseen).tolist()} is 0, "
            "too."
        )
    target = np.where(source > 0, target, 0.0)
    if not target.sum() > 0:
        raise ValueError(
            "`prior` is 0 for every class with a source prior above 0. "
            f"Received: prior of {target.tolist()}."
        )
    return target / target.sum()


def summary(record):
    """One line: the classes whose prior moved most."""
    source, target = record["source_prior"], record["target_prior"]
    moved = sorted(
        range(len(source)), key=lambda k: -abs(target[k] - source[k])
    )
    changes = ", ".join(
        f"class {k} {source[k]:.3g} -> {target[k]:.3g}" for k in moved[:3]
    )
    line = f"prior: {changes}"
    if len(source) > 3:
        line += f", and {len(source) - 3} more"
    if "num_samples" in record:
        line += f" on {record['num_samples']:,} samples"
    if "p_value" in record:
        line += f", shift with p-value {record['p_value']:.2g}"
    return line
