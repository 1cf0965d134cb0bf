"""What the record of a map for several labels has of each."""

import numpy as np

from keras_calib.inputs.arrays import as_array
from keras_calib.solvers.logistic import binary_nll


def counts_of(rows):
    """Numbers of negative and positive samples."""
    if rows is None:
        return 0, 0
    positive = int(rows.labels.sum())
    return len(rows.labels) - positive, positive


def untouched(rows):
    """NLL of a label that is not fitted."""
    nll = binary_nll(
        rows.logits[:, 0].astype("float64"), rows.labels, rows.weights
    )
    return {"nll_before": nll, "nll_after": nll}


def summary_of(layer, data, records, counts):
    """What is known of all labels, as JSON values."""
    weights = {
        variable.name: as_array(variable).tolist() for variable in layer.weights
    }
    share = [sum(count) for count in counts]
    found = {
        "num_samples": int((data.weights > 0).any(axis=1).sum()),
        "num_labels": data.num_labels,
        "objective": "nll",
        **weights,
        "num_positive": [positive for _, positive in counts],
        "num_negative": [negative for negative, _ in counts],
    }
    for error in ("nll", "ece"):
        for moment in ("before", "after"):
            key = f"{error}_{moment}"
            values = [record.get(key) for record in records]
            known = [value is not None for value in values]
            if any(known):
                mean = np.average(
                    np.array(values)[known].astype("float64"),
                    weights=np.array(share)[known],
                )
                found[key] = float(mean)
                found[f"{key}_by_label"] = values
    return found
