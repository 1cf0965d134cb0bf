"""What `method="auto"` does otherwise with few samples; see `choose`.

Maps are compared by their probabilities of all samples, to which they are
fitted for that.
"""

import numpy as np

from keras_calib.calibration._held_out import losses_and_probabilities
from keras_calib.calibration._held_out import quiet_fit
from keras_calib.calibration._methods import as_map
from keras_calib.calibration._no_calibration import UNCHANGED
from keras_calib.inputs.arrays import as_array

# Weights below are left out of a mixture, and of what it is compared with.
LEAST_WEIGHT = 0.01
# Probabilities that differ by less are those of the same map.
SAME = 1e-5
# Least log-probability in a cross-entropy.
FLOOR = -50.0


def credit_temperature(weights, trials, rows, options, fitted):
    """Give temperature scaling the weight of maps that ended there.

    Args:
        weights: dict from name to weight, which changes.
        trials: see `Choice`; those of these maps say so.
        rows: `CalibrationRows`.
        options: `Options`.
        fitted: see `Choice`; what is fitted on the way is added.
    """
    names = [name for name in fitted if weights.get(name)]
    if not names or _fit("temperature", rows, options, fitted):
        return
    q = {}
    for name in ("temperature", *names):
        scores = as_array(fitted[name][0](rows.logits))
        _, q[name] = losses_and_probabilities(scores, rows.labels)
    for name in names:
        if np.allclose(q[name], q["temperature"], rtol=0, atol=SAME):
            weights["temperature"] += weights[name]
            weights[name] = 0.0
            trials[name]["same_as"] = "temperature"


def probabilities_of_maps(weights, rows, options, fitted, trials):
    """Probabilities of all samples by each map that has some weight.

    What is fitted to all samples on the way is added to `fitted`; why a map is
    left out, to `trials`.
    """
    q = {}
    for name, weight in weights.items():
        if weight < LEAST_WEIGHT:
            continue
        scores = rows.logits
        if name != UNCHANGED:
            if name not in fitted and q and options.seconds_left() <= 0:
                trials[name]["not_compared"] = "max_seconds"
                continue
            reason = _fit(name, rows, options, fitted)
            if reason:
                trials[name]["not_compared"] = reason
                continue
            scores = as_array(fitted[name][0](rows.logits))
        _, q[name] = losses_and_probabilities(scores, rows.labels)
    return q


def _fit(name, rows, options, fitted):
    """Fit a map to all samples, unless it was; or say why it cannot be."""
    if name not in fitted:
        layer = as_map(name, affine=options.affine)
        try:
            fitted[name] = layer, quiet_fit(layer, rows, options)
        except (ArithmeticError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
    return None


def expected_losses(weights, rows, q):
    """Mean cross-entropy between the mixture of all maps and each map.

        - mean_n sum_k q_nk log q_mnk,    q = sum_m w_m q_m

    These are the losses that are expected of each map if the mixture is right.
    """
    mean = sum(weights[name] * q[name].astype(float) for name in q)
    least = np.exp(FLOOR)
    losses = {}
    for name in q:
        log_q = np.log(np.maximum(q[name], least))
        loss = -(mean * log_q).sum(axis=1) / mean.sum(axis=1)
        losses[name] = float(np.average(loss, weights=rows.weights))
    return losses
