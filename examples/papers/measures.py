"""What a row says of its stored logits: errors, and what maps make of them."""

import pathlib
import sys
import warnings

import keras
import numpy as np

import keras_calib as kc

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from maps import ANY_CLASSES


def results(path, protocol):
    """What a row says of its stored logits, as trained and with temperature.

    From the file, not from memory, so that a measure that comes later is made
    of the same numbers.

    Args:
        path: of the `.npz` file.
        protocol: `protocols.Protocol` of the row.
    """
    with np.load(path, allow_pickle=False) as file:
        logits, labels = (
            {
                part: file[f"{part}_{kind}"].astype(dtype)
                for part in ("validation", "calibration", "test")
            }
            for kind, dtype in (("logits", "float64"), ("labels", "int64"))
        )
    temperature = fit_temperature(logits["calibration"], labels["calibration"])
    scaled = measure(logits["test"] / temperature, labels["test"])
    return {
        "test": measure(logits["test"], labels["test"]),
        "test_scaled": {"temperature": temperature, **scaled},
        "validation": measure(logits["validation"], labels["validation"]),
        "maps": measure_maps(logits, labels),
    }


def softmax(logits):
    logits = logits - logits.max(axis=-1, keepdims=True)
    exponentials = np.exp(logits)
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def fit_temperature(logits, labels):
    layer = kc.layers.TemperatureScaling()
    return float(layer.adapt(logits, labels).temperature)


def measure_maps(logits, labels):
    """Test errors with every map at its defaults, fitted to calibration rows.

    Returns:
        A dict from the name of a layer of `kc.layers` to `nll`, `brier`,
        `ece` and `accuracy`, or to `error`, why it could not be fitted.
    """
    names = {"nll", "brier", "ece"}
    wanted = [name for name, short in SHOWN.items() if short in names]
    found = {}
    for name in (name for name in ANY_CLASSES if " " not in name):
        layer = getattr(kc.layers, name)()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                layer.adapt(logits["calibration"], labels["calibration"])
        except ValueError as error:
            found[name] = {"error": str(error)}
            continue
        mapped = keras.ops.convert_to_numpy(layer(logits["test"]))
        mapped = mapped.astype("float64")
        errors = kc.metrics.calibration_errors(
            labels["test"], softmax(mapped), metrics=wanted, verbose=0
        )
        accuracy = (mapped.argmax(axis=-1) == labels["test"]).mean()
        found[name] = {
            **{SHOWN[key]: round(errors[key], 6) for key in wanted},
            "accuracy": float(accuracy),
        }
    return found


def measure(logits, labels):
    """Accuracy, proper scores and calibration errors of one set of logits."""
    probabilities = softmax(logits.astype("float64"))
    found = kc.metrics.calibration_errors(
        labels, probabilities, metrics=list(SHOWN), floor=True, verbose=0
    )
    accuracy = float((logits.argmax(axis=-1) == labels).mean())
    floor = "expected_calibration_error_floor"
    return {
        "accuracy": accuracy,
        "ece_floor": round(found[floor], 6),
        "ece_floor_high": round(found[f"{floor}_high"], 6),
        **{short: round(found[name], 6) for name, short in SHOWN.items()},
        "num": len(labels),
    }


SHOWN = {
    "expected_calibration_error": "ece",
    "adaptive_calibration_error": "ece_mass",
    "classwise_calibration_error": "classwise_ece",
    "smooth_calibration_error": "smooth_ece",
    "debiased_calibration_error": "debiased_ece",
    "negative_log_likelihood": "nll",
    "brier_score": "brier",
    "mean_confidence": "confidence",
}
