"""Errors of each group of the samples, and which group is worst."""

import math

import numpy as np

from keras_calib.evaluation.interval_ends import DEBIASED
from keras_calib.evaluation.named_errors import SIGNED

# Larger is better; for all others, but those without a direction, worse.
BETTER = {"accuracy", "auroc", "coverage_at_risk"}
NO_DIRECTION = {"mean_confidence", "mean_entropy"}
# These are worse the farther from their ideal value on either side.
IDEAL = {
    # Below 0, a debiased error is noise, and not as bad as above.
    **{name: 0.0 for name in SIGNED if name not in DEBIASED},
    "calibration_intercept": 0.0,
    "calibration_slope": 1.0,
    "spiegelhalter_z": 0.0,
}


def by_group(data, names, errors_of):
    """Errors by group.

    Args:
        data: `Predictions` with groups.
        names: the errors that are compared.
        errors_of: function of `Predictions` that returns a dict of errors.

    Returns:
        dict with two keys. `groups`: dict from group to its errors, with the
        number of its rows as `num_rows`. `worst_group`: dict from the name of
        an error to the group where it is worst.
    """
    table, ranks = {}, {}
    for group in np.unique(data.group):
        part = data.part(data.group == group)
        key = _key(group)
        table[key] = {"num_rows": len(part.labels), **errors_of(part)}
        # Of hits alone, or of misses alone, an AUROC is undefined.
        ranks[key] = len(np.unique(part.top_label[1])) > 1

    def badness(name, group):
        if name == "auroc" and not ranks[group]:
            return -math.inf
        return _badness(name, table[group])

    worst = {
        name: max(table, key=lambda group: badness(name, group))
        for name in names
        if table and name not in NO_DIRECTION
    }
    return {"groups": table, "worst_group": worst}


def _key(group):
    """An id as a Python object that is equal to it."""
    found = group.item() if isinstance(group, np.generic) else group
    if isinstance(group, np.datetime64 | np.timedelta64) and isinstance(
        found, int
    ):
        # Finer than Python's dates, as those of pandas: a number says little.
        coarse = group.astype(f"{group.dtype.kind}8[us]")
        found = coarse.item() if coarse == group else group
    return found


def _badness(name, errors):
    """How bad a value is; an error with a noise floor counts above it."""
    value = float(errors[name])
    if name in BETTER:
        return -value
    if math.isnan(value):  # undefined: a group of which nothing is known
        return -math.inf
    if name == "observed_expected_ratio":  # a half is as bad as twice
        return abs(math.log(value)) if value > 0 else math.inf
    if name in IDEAL:
        return abs(value - IDEAL[name])
    return value - errors.get(f"{name}_floor", 0.0)
