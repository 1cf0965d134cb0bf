"""`kc.calibrate`: trained model + calibration data -> calibrated model."""

import keras
import numpy as np

from keras_calib.calibration.logits import find_logits
from keras_calib.calibration.model import CalibratedModel
from keras_calib.data import as_array
from keras_calib.data import batches
from keras_calib.data import predict_once
from keras_calib.layers.base import CalibrationLayer
from keras_calib.layers.base import as_samples
from keras_calib.layers.log_probabilities import LogProbabilities
from keras_calib.layers.temperature_scaling import TemperatureScaling
from keras_calib.metrics import exact
from keras_calib.version import __version__

METHODS = {"temperature": TemperatureScaling}
NUM_BINS = 15


def calibrate(
    model,
    x,
    y=None,
    sample_weight=None,
    method="temperature",
    output="probabilities",
    from_logits=None,
    ignore_class=None,
    batch_size=None,
    steps=None,
    verbose="auto",
):
    """Make a trained classifier's confidence right.

    Runs the model once over calibration data, fits a calibration map to its
    logits, and returns a new model: network, map, softmax. A final softmax (or
    sigmoid) of the network is taken off first. `model` itself is not changed;
    the new model shares its weights.

    The file of the new model needs `import keras_calib` before
    `keras.saving.load_model`.

    Args:
        model: a built Functional, Sequential or subclassed classifier with one
            output of shape `(..., num_classes)`, or `(..., 1)` for one sigmoid
            unit.
        x: inputs, if `y` is given; otherwise a `tf.data.Dataset`, a
            `keras.utils.PyDataset`, a torch `DataLoader` or an iterable of
            `(x, y)` or `(x, y, sample_weight)`. Data that the network has been
            trained on would teach the map nothing: hold some back.
        y: labels: class ids, or one-hot rows.
        sample_weight: weights for arrays `x`, `y`.
        method: `"temperature"`, or a calibration layer.
        output: `"probabilities"` or `"logits"`, what the new model gives.
        from_logits: whether `model` gives logits. By default a final softmax
            in the model's graph decides; without one, the outputs are taken
            for probabilities if every row of them is non-negative and sums to
            one, and for logits otherwise.
        ignore_class: samples with this label do not count.
        batch_size: for arrays; 32 by default.
        steps: how many batches of a dataset to take.
        verbose: `"auto"` or 1 for a progress bar, 0 for silence.

    Returns:
        A `keras.Model`, compiled for `evaluate`. `kc.calibration_record` tells
        what was fitted.

    Raises:
        ValueError: for bad input; nothing is changed then.

    Example:
        >>> import numpy as np, keras, keras_calib as kc
        >>> model = keras.Sequential([keras.Input((2,)),
        ...                           keras.layers.Dense(2)])
        >>> x = np.random.default_rng(0).normal(size=(100, 2))
        >>> y = np.arange(100) % 2
        >>> calibrated = kc.calibrate(model, x, y, verbose=0)
        >>> calibrated.predict(x, verbose=0).shape
        (100, 2)

    Reference:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017.
    """
    layer = _map(method)
    if output not in ("probabilities", "logits"):
        raise ValueError(
            '`output` must be "probabilities" or "logits". '
            f"Received: output={output!r}."
        )
    network, head, kind = _up_to_logits(model, from_logits)
    scores, labels, weight = predict_once(
        network, *batches(x, y, sample_weight, batch_size, steps), verbose
    )
    before = []
    if kind is None:
        kind = (
            "log of probabilities" if _are_probabilities(scores) else "logits"
        )
    if kind == "log of probabilities":
        before = [LogProbabilities(name="log_probabilities")]
        _check_probabilities(scores)
        scores = as_array(before[0](scores))
    layer.adapt(scores, labels, weight, ignore_class=ignore_class)
    layer.record = {
        "method": method if isinstance(method, str) else type(layer).__name__,
        "objective": "nll",
        "logits": kind,
        "num_classes": max(2, scores.shape[-1]),
        **layer.record,
        **_before_and_after(layer, scores, labels, weight, ignore_class),
        "keras_calib": __version__,
    }
    if output == "probabilities":
        single = scores.shape[-1] == 1
        after = [
            keras.layers.Activation(
                "sigmoid" if single else "softmax",
                dtype="float32",
                name="probabilities",
            )
        ]
    else:
        after = []
    calibrated = _assemble(model, network, head, [*before, layer, *after])
    if after:
        _compile(calibrated, labels, scores)
    return calibrated


def calibration_record(model):
    """What `kc.calibrate` fitted, read from a calibrated model or its file.

    Args:
        model: a model that `kc.calibrate` returned, also after loading.

    Returns:
        dict: method, objective, number of samples and classes, fitted values,
        NLL and ECE on the calibration data before and after, and the version
        that wrote it.

    Raises:
        ValueError: if the model holds no calibration map.

    Example:
        >>> import numpy as np, keras, keras_calib as kc
        >>> model = keras.Sequential([keras.Input((2,)),
        ...                           keras.layers.Dense(2)])
        >>> x = np.random.default_rng(0).normal(size=(100, 2))
        >>> calibrated = kc.calibrate(model, x, np.arange(100) % 2, verbose=0)
        >>> kc.calibration_record(calibrated)["num_samples"]
        100
    """
    layers = model._flatten_layers(include_self=False, recursive=True)
    records = [
        layer.record
        for layer in layers
        if isinstance(layer, CalibrationLayer) and layer.record
    ]
    if not records:
        raise ValueError(
            f"The model {model.name!r} holds no calibration map. Pass what "
            "`kc.calibrate` returned."
        )
    return records[-1]


def _map(method):
    if isinstance(method, CalibrationLayer):
        return method
    if method not in METHODS:
        raise ValueError(
            f"`method` must be one of {sorted(METHODS)}, or a layer of "
            f"`kc.layers`. Received: method={method!r}."
        )
    return METHODS[method](name=method)


def _up_to_logits(model, from_logits):
    """The network to run, its head where it has a graph, and what it gives."""
    if getattr(model, "outputs", None):
        head = find_logits(model)
        if head.activation is not None and from_logits is not True:
            network = keras.Model(head.inputs, head.tensor)
            return network, head, f"before {head.activation}"
    kinds = {None: None, True: "logits", False: "log of probabilities"}
    return model, None, kinds[from_logits]


def _are_probabilities(scores):
    """Whether every row could be a distribution, and not one row could not."""
    if scores.min() < 0 or scores.max() > 1.001:
        return False
    if scores.shape[-1] == 1:
        return True
    return bool(np.abs(scores.sum(axis=-1) - 1).max() < 1e-2)


def _check_probabilities(scores):
    if not _are_probabilities(scores):
        sums = scores.sum(axis=-1)
        raise ValueError(
            "With `from_logits=False` the model must give probabilities. "
            f"Received: outputs from {scores.min():.6g} to {scores.max():.6g}, "
            f"rows that sum to {sums.min():.6g} up to {sums.max():.6g}. Pass "
            "`from_logits=True`, or nothing."
        )


def _before_and_after(layer, scores, labels, weight, ignore_class):
    """NLL and ECE on the calibration data, without the map and with it."""
    scores, labels, weight = as_samples(scores, labels, weight, ignore_class)
    found = {"num_bins": NUM_BINS}
    for moment, apply in (("before", None), ("after", layer)):
        confidence = np.empty(len(labels), "float32")
        correct, log_likelihood = np.empty((2, len(labels)))
        rows = max(1, (1 << 22) // scores.shape[-1])
        for start in range(0, len(labels), rows):
            part = slice(start, start + rows)
            z = scores[part]
            z = z if apply is None else as_array(apply(z))
            if z.shape[-1] == 1:
                z = np.concatenate([np.zeros_like(z), z], axis=-1)
            log_p = _log_softmax(z)
            confidence[part], correct[part] = exact.top_label(
                labels[part], np.exp(log_p)
            )
            log_likelihood[part] = log_p[np.arange(len(z)), labels[part]]
        found[f"nll_{moment}"] = float(
            -np.average(log_likelihood, weights=weight)
        )
        found[f"ece_{moment}"] = exact.expected_calibration_error(
            confidence, correct, NUM_BINS, weight=weight
        )
    return found


def _log_softmax(z):
    z = z - z.max(axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def _assemble(model, network, head, layers):
    name = f"{model.name}_calibrated"
    if not getattr(model, "outputs", None):
        top = keras.Sequential(layers, name="calibrated_head")
        return CalibratedModel(model, top, name=name)
    if head is None:
        head = find_logits(model)
        tensor = model.outputs[0]
    else:
        tensor = network.outputs[0]
    for layer in layers:
        tensor = layer(tensor)
    return keras.Model(head.inputs, tensor, name=name)


def _compile(model, labels, scores):
    """So that `evaluate` works at once, with parts that Keras itself loads."""
    if scores.shape[-1] == 1:
        loss = "binary_crossentropy"
    elif labels.ndim == scores.ndim and labels.shape[-1] > 1:
        loss = "categorical_crossentropy"
    else:
        loss = "sparse_categorical_crossentropy"
    # An optimizer without slots, so that a saved file loads without a warning.
    model.compile("sgd", loss=loss, metrics=["accuracy"])
