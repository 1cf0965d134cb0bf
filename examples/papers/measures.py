"""What a row says of its stored logits: errors, and what maps make of them."""

import functools
import pathlib
import sys
import warnings

import data_sets
import keras
import methods
import numpy as np

import keras_calib as kc

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from maps import ANY_CLASSES


def results(path, protocol, method):
    """What a row says of its stored logits, as trained and with temperature.

    From the file, not from memory, so that a measure that comes later is made
    of the same numbers.

    Args:
        path: of the `.npz` file.
        protocol: `kinds.Protocol` of the row.
        method: its name.
    """
    logits, labels = read(path)
    if protocol.kind in ("segmentation", "streamed_pixels"):
        return of_pixels(logits, labels, protocol.ignore_class)
    found = of_samples(logits, labels)
    if protocol.kind == "long_tailed":
        found["class_balance"] = measure_balance(logits, labels)
    elif method == "CE":
        ways = NORMALIZATIONS
        found["class_scaling"] = measure_balance(logits, labels, ways)
    if method == "CE":
        found["objectives"] = measure_balance(logits, labels, OBJECTIVES)
    if methods.method(method)["loss"]["class"] == "SquaredLogitLoss":
        read_out = np.log(np.clip(logits["test"], LEAST, None))
        found["test_as_probabilities"] = measure(read_out, labels["test"])
    if protocol.kind == "fine_tuning":
        answers = data_sets.answers_of_people(protocol)
        temperature = found["test_scaled"]["temperature"]
        if answers:
            found["people"] = measure_people(logits, answers, temperature)
    return found


# The least probability where outputs of a square loss, cut here and divided by
# their sum, are read as probabilities.
LEAST = 1e-3


def read(path):
    """Logits and labels of a stored row, dicts from the name of a part."""
    with np.load(path, allow_pickle=False) as file:
        names = [key for key in file.files if key.endswith("_logits")]
        parts = [name.removesuffix("_logits") for name in names]
        logits, labels = (
            {part: file[f"{part}_{kind}"].astype(dtype) for part in parts}
            for kind, dtype in (("logits", "float64"), ("labels", "int64"))
        )
    return logits, labels


def of_samples(logits, labels):
    """Errors of all parts, as trained, scaled, and after every map.

    Args:
        logits: dict from the name of a part to `(n, classes)`.
        labels: dict from the name of a part to `(n,)`.
    """
    temperature = fit_temperature(logits["calibration"], labels["calibration"])
    scaled = measure(logits["test"] / temperature, labels["test"])
    found = {
        "test": measure(logits["test"], labels["test"]),
        "test_scaled": {"temperature": temperature, **scaled},
        "validation": measure(logits["validation"], labels["validation"]),
        "maps": measure_maps(logits, labels),
    }
    # TS-SB-ECE of the soft calibration objectives.
    soft = fit_temperature(
        logits["calibration"], labels["calibration"], "soft_binned_ece"
    )
    errors = measure(logits["test"] / soft, labels["test"])
    found["test_scaled_to_sb_ece"] = {"temperature": soft, **errors}
    if "train" in logits:
        found["train"] = measure(logits["train"], labels["train"])
    return found


# Of the valid pixels, every so many fit maps, and measure what maps do. The
# neighbors of a pixel say nearly the same, and there are millions.
FITTED_PIXELS, MAPPED_PIXELS = 16, 8


def of_pixels(logits, labels, ignore_class):
    """`of_samples` of valid pixels, and the mean overlap of the classes.

    Errors as trained and with temperature are of all valid test pixels.
    """
    overlaps = {
        part: mean_overlap(logits[part], labels[part], ignore_class)
        for part in ("validation", "test")
    }
    valid = {part: each != ignore_class for part, each in labels.items()}
    fitting = slice(None, None, FITTED_PIXELS)
    some = slice(None, None, MAPPED_PIXELS)
    # Maps that learn from folds keep the pixels of an image together.
    images = np.nonzero(valid["calibration"])[0][fitting]
    logits = {part: logits[part][valid[part]] for part in logits}
    labels = {part: labels[part][valid[part]] for part in labels}
    temperature = fit_temperature(
        logits["calibration"][fitting], labels["calibration"][fitting]
    )
    scaled = measure(logits["test"] / temperature, labels["test"])
    found = {
        "test": measure(logits["test"], labels["test"]),
        "test_scaled": {"temperature": temperature, **scaled},
        "validation": measure(logits["validation"], labels["validation"]),
        "maps": measure_maps(
            {
                "calibration": logits["calibration"][fitting],
                "test": logits["test"][some],
            },
            {
                "calibration": labels["calibration"][fitting],
                "test": labels["test"][some],
            },
            groups=images,
        ),
    }
    for part, overlap in overlaps.items():
        found[part]["miou"] = overlap
    return found


def mean_overlap(logits, labels, ignore_class):
    """Intersection over union of each class over all images, averaged.

    Classes that neither occur nor are predicted do not count.
    """
    valid = labels != ignore_class
    truth, guess = labels[valid], logits.argmax(axis=-1)[valid]
    classes = logits.shape[-1]
    table = np.bincount(classes * truth + guess, minlength=classes**2)
    table = table.reshape(classes, classes)
    both = np.diag(table)
    either = table.sum(axis=0) + table.sum(axis=1) - both
    return float((both[either > 0] / either[either > 0]).mean())


def measure_people(logits, answers, temperature):
    """Test errors against the distribution of people's answers.

    Args:
        logits: dict from the name of a part to `(n, classes)`.
        answers: dict from `"calibration"` and `"test"` to the fractions of
            people who chose each class, `(n, classes)`.
        temperature: fitted to one label per calibration image.

    Returns:
        A dict with `entropy`, the mean of the people's, in nats, and the
        errors as trained, scaled by `temperature`, and scaled by the
        temperature that fits the people's answers best. `kl` is the mean
        divergence from the people's distribution.
    """
    layer = kc.layers.TemperatureScaling()
    layer.adapt(logits["calibration"], answers["calibration"])
    fitted = float(layer.temperature)
    test = answers["test"]
    logs = np.log(np.where(test > 0, test, 1.0))
    entropy = float(-(test * logs).sum(axis=-1).mean())
    found = {"entropy": round(entropy, 6)}
    for name, factor in (
        ("test", 1.0),
        ("test_scaled", temperature),
        ("test_scaled_to_people", fitted),
    ):
        p = softmax(logits["test"] / factor)
        errors = errors_against(test, p)
        errors["kl"] = round(errors["nll"] - entropy, 6)
        found[name] = {"temperature": factor, **errors}
    return found


def errors_against(fractions, probabilities):
    """Errors where a label is drawn from `fractions`, in expectation.

    Each prediction stands once for each class, with the fraction as weight.
    """
    n, classes = fractions.shape
    weights = fractions.reshape(-1)
    counted = weights > 0
    names = ("accuracy", *SHOWN)
    found = kc.metrics.calibration_errors(
        np.tile(np.arange(classes), n)[counted],
        np.repeat(probabilities, classes, axis=0)[counted],
        weights[counted],
        metrics=list(names),
        verbose=0,
    )
    return {SHOWN.get(name, name): round(found[name], 6) for name in names}


# Maps of the class-wise scaling paper, and how they are fitted to rows with a
# tail: plainly, with class losses scaled as in the authors' code (the mean
# over a class, which also balances classes) and as in equation 3 (the sum),
# and without scaling but with weights that balance classes.
BALANCED_MAPS = (
    "TemperatureScaling",
    "EnsembleTemperatureScaling",
    "ParameterizedTemperatureScaling",
    "ClassTemperatureScaling",
)
_SUM = kc.layers.ClassLossScaling(normalization="normal", reduction="sum")
BALANCES = {
    "plain": {},
    "scaled": {"class_loss_scaling": "normal"},
    "scaled, sums": {"class_loss_scaling": _SUM},
    "weights 1 / n_y": {},
}


# The class-wise scaling paper's table 3: normalizations of the class losses.
NORMALIZATIONS = {
    "plain": {},
    "ND": {"class_loss_scaling": "normal"},
    "CM": {"class_loss_scaling": "centered"},
    "MM": {"class_loss_scaling": "min_max"},
}
# And its tables 1 and 2: other objectives, at their defaults.
OBJECTIVES = {
    "LS": {"objective": "label_smoothing"},
    "FL": {"objective": "focal"},
}


def measure_balance(logits, labels, ways=None):
    """Test errors of `BALANCED_MAPS`, fitted in each way.

    Args:
        logits: dict from the name of a part to `(n, classes)`.
        labels: dict from the name of a part to `(n,)`.
        ways: dict from a name to arguments of `adapt`; `BALANCES` by default.
    """
    fitted_to = labels["calibration"]
    weights = 1.0 / np.bincount(fitted_to)[fitted_to]
    found = {}
    for name in BALANCED_MAPS:
        found[name] = {}
        for way, options in (ways or BALANCES).items():
            if "weights" in way:
                options = {"sample_weight": weights}
            found[name][way] = after_map(name, logits, labels, **options)
    return found


def softmax(logits):
    logits = logits - logits.max(axis=-1, keepdims=True)
    exponentials = np.exp(logits)
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def fit_temperature(logits, labels, objective="nll"):
    layer = kc.layers.TemperatureScaling()
    layer.adapt(logits, labels, objective=objective)
    return float(layer.temperature)


# Of `kc.calibrate`: what it chooses among, and what it chooses.
CALIBRATED = {
    "bayesian_temperature": {"method": "bayesian_temperature", "guard": False},
    "structured_matrix": {"method": "structured_matrix", "guard": False},
    "auto": {"method": "auto"},
    "auto, mixture": {"method": "auto", "mixture": True},
}
# Layers that stand beside them in a table: those that `"auto"` tries.
TRIED = (
    *("SplineCalibration", "MatrixScaling", "IntraOrderPreserving"),
    "ParameterizedTemperatureScaling",
)


def measure_maps(logits, labels, groups=None):
    """Test errors with every map at its defaults, fitted to calibration rows.

    Args:
        logits: dict from the name of a part to `(n, classes)`.
        labels: dict from the name of a part to `(n,)`.
        groups: of `adapt`, ids of the calibration rows, or `None`.

    Returns:
        A dict from the name of a layer of `kc.layers`, or a key of
        `CALIBRATED`, to `nll`, `brier`, `ece` and `accuracy`, or to `error`,
        why it could not be fitted.
    """
    names = (name for name in ANY_CLASSES if " " not in name)
    found = {
        name: after_map(name, logits, labels, groups=groups) for name in names
    }
    for name, options in CALIBRATED.items():
        fit = functools.partial(calibrated, groups=groups, **options)
        found[name] = errors_after(fit, logits, labels)
    return found


def after_map(name, logits, labels, **options):
    """Test errors after one map; `options` are arguments of `adapt`."""

    def fit(logits, labels):
        layer = getattr(kc.layers, name)().adapt(logits, labels, **options)
        return lambda z: keras.ops.convert_to_numpy(layer(z))

    return errors_after(fit, logits, labels)


def calibrated(logits, labels, **options):
    """What `kc.calibrate` makes of logits, as a function of logits."""
    inputs = keras.Input(logits.shape[1:])
    found = kc.calibrate(
        keras.Model(inputs, keras.layers.Identity()(inputs)),
        logits,
        labels,
        from_logits=True,
        output="logits",
        verbose=0,
        **options,
    )
    return lambda z: found.predict(z, batch_size=1000, verbose=0)


def errors_after(fit, logits, labels):
    """Test errors of what `fit` makes of the calibration rows."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mapped = fit(logits["calibration"], labels["calibration"])
    except ValueError as error:
        return {"error": str(error)}
    mapped = mapped(logits["test"]).astype("float64")
    wanted = [k for k, short in SHOWN.items() if short in AFTER_MAPS]
    errors = kc.metrics.calibration_errors(
        labels["test"], softmax(mapped), metrics=wanted, verbose=0
    )
    accuracy = (mapped.argmax(axis=-1) == labels["test"]).mean()
    return {
        **{SHOWN[key]: round(errors[key], 6) for key in wanted},
        "accuracy": float(accuracy),
    }


def measure(logits, labels):
    """Accuracy, proper scores and calibration errors of one set of logits."""
    probabilities = softmax(logits.astype("float64"))
    found = kc.metrics.calibration_errors(
        labels, probabilities, metrics=list(SHOWN), verbose=0
    )
    # The other floors would be drawn, which takes longer than all errors.
    found |= kc.metrics.calibration_errors(
        labels, probabilities, metrics=[ECE], floor=True, verbose=0
    )
    accuracy = float((logits.argmax(axis=-1) == labels).mean())
    floor = f"{ECE}_floor"
    return {
        "accuracy": accuracy,
        "ece_floor": round(found[floor], 6),
        "ece_floor_high": round(found[f"{floor}_high"], 6),
        **{short: round(found[name], 6) for name, short in SHOWN.items()},
        "num": len(labels),
    }


AFTER_MAPS = (
    *("nll", "brier", "ece", "ece_mass", "ece_mass_l2", "classwise_ece"),
)
ECE = "expected_calibration_error"
SHOWN = {
    ECE: "ece",
    "adaptive_calibration_error": "ece_mass",
    "classwise_calibration_error": "classwise_ece",
    "adaptive_calibration_error_l2": "ece_mass_l2",
    "marginal_calibration_error": "marginal_ece",
    "sweep_calibration_error": "sweep",
    "ks_calibration_error": "ks",
    "smooth_calibration_error": "smooth_ece",
    "debiased_calibration_error": "debiased_ece",
    "negative_log_likelihood": "nll",
    "brier_score": "brier",
    "mean_confidence": "confidence",
    "mean_entropy": "mean_entropy",
}
# Of the validation samples between epochs, with `run.py --history`.
SHOWN_BY_EPOCH = ("accuracy", ECE, "negative_log_likelihood")
