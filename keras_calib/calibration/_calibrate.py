"""`kc.calibrate`: trained model + calibration data -> calibrated model."""

import contextlib
import itertools
import warnings

import keras
import numpy as np

from keras_calib.calibration import _checks as checks
from keras_calib.calibration._auto import choose
from keras_calib.calibration._checks import LOG_OF_PROBABILITIES
from keras_calib.calibration._fit import BLOCK
from keras_calib.calibration._fit import fit
from keras_calib.calibration._samples import collect
from keras_calib.data.batches import batches
from keras_calib.data.batches import for_model
from keras_calib.inputs import arrays
from keras_calib.inputs.arrays import as_array
from keras_calib.keras_graph.calibrated_model import CalibratedModel
from keras_calib.keras_graph.heads import find_head
from keras_calib.keras_graph.heads import free_name
from keras_calib.keras_graph.heads import fuse as fuse_into
from keras_calib.keras_graph.heads import has_graph
from keras_calib.keras_graph.heads import inputs_of
from keras_calib.keras_graph.heads import output_kind
from keras_calib.keras_private import flatten_layers
from keras_calib.layers._base import CalibrationLayer
from keras_calib.layers._base import read_rows
from keras_calib.layers._log_probabilities import LogProbabilities
from keras_calib.version import __version__


def calibrate(
    model,
    x,
    y=None,
    sample_weight=None,
    method="temperature",
    objective="nll",
    class_loss_scaling=None,
    fuse=False,
    output="probabilities",
    from_logits=None,
    ignore_class=None,
    batch_size=None,
    steps=None,
    seed=0,
    verbose="auto",
):
    """Make a trained classifier's confidence right.

    Runs the model once over calibration data, fits a calibration map to its
    logits, and returns a new model: network, map, softmax. A final softmax (or
    sigmoid) of the network is taken off first, and a few samples prove that
    what is left computes the same; otherwise the logarithm of the
    probabilities is used, and a warning says so. Elements that Keras masks are
    left out, and the new model keeps the mask.

    `model` itself is not changed. The new model has the same weights, not
    copies of them: if `model` is trained further, the new model changes, too,
    and has to be calibrated again. With `fuse=True` its last layer alone is a
    copy.

    The new model is never worse than `model` on the calibration data: a map
    that does harm is rejected, with a warning, and the new model then is
    `model`. Harm is a higher NLL after a fit by likelihood, a higher ECE after
    a fit by calibration error, and both after any other fit.

    Logits above 1 GiB go to a temporary file while they are needed.

    The file of the new model needs `import keras_calib` before
    `keras.saving.load_model`, except with `fuse=True`.

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
        method: a calibration layer; or one of `"temperature"`,
            `"bias_corrected_temperature"`, `"class_temperature"`,
            `"ensemble_temperature"`, `"parameterized_temperature"`,
            `"vector"`, `"matrix"`, `"dirichlet"`, `"order_preserving"`,
            `"spline"`, `"isotonic"`, `"histogram"`, `"beta"`, `"platt"`; or
            `"auto"`, the map with the best 5-fold
            cross-validated NLL, which is temperature scaling unless another is
            better by more than two standard errors. Maps too rich for the
            samples are not tried; `"trials"` in the record tells.
        objective: what the map minimises, by default `"nll"`; see
            `CalibrationLayer.adapt`.
        class_loss_scaling: `None`, `"normal"`, `"min_max"` or `"centered"`;
            see `CalibrationLayer.adapt`.
        fuse: put an affine map (temperature, class temperature, bias-corrected
            temperature, vector, matrix) into the weights of the model's last
            layer: inference costs nothing more, and the file needs nothing but
            Keras. Such a file carries no record; the model's name ends in the
            fingerprint of the calibration data.
        output: `"probabilities"` or `"logits"`, what the new model gives.
        from_logits: whether `model` gives logits. By default the end of the
            model's graph decides. Where it does not tell (subclassed models,
            custom layers, `Lambda`, recurrent layers), rows that are
            non-negative and sum to one are probabilities, rows with negative
            values are logits, and anything else raises.
        ignore_class: samples with this label do not count.
        batch_size: for arrays; 32 by default.
        steps: how many batches of a dataset to take.
        seed: int, for the folds of `"auto"`.
        verbose: `"auto"` or 1 for a progress bar, 0 for silence.

    Returns:
        A `keras.Model`, compiled for `evaluate`. `kc.calibration_record` tells
        what was fitted.

    Raises:
        ValueError: for bad input; if the model has several sigmoid units
            (multi-label) or several outputs; if its outputs contradict
            `from_logits`, or do not tell what they are; if it has already been
            calibrated on these very samples. Nothing is changed then.

    Warns:
        UserWarning: if there are fewer than ten calibration samples per number
            that the map learns; if accuracy on the calibration data is closer
            to the accuracy on the training data than to that on the
            validation data, so that the network seems to know them; if a
            final softmax was not found; if the map was rejected.

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
    if output not in ("probabilities", "logits"):
        raise ValueError(
            '`output` must be "probabilities" or "logits". '
            f"Received: output={output!r}."
        )
    checks.check_model(model)
    checks.check_method(method, objective, fuse)
    source, total = batches(x, y, sample_weight, batch_size, steps)
    source, example = _with_example(model, source)
    with _states_kept(model):
        if isinstance(model, keras.Sequential) and not has_graph(model):
            model(example)  # which builds its graph
        checks.check_ending(model, from_logits)
        network, head, logits_source = _up_to_logits(
            model, from_logits, fuse, example
        )
        checks.check_name(method, network)
        with collect(network, source, total, ignore_class, verbose) as samples:
            checks.refuse_the_same_data(model, samples.fingerprint)
            before, scores = [], samples.scores
            if logits_source is None:
                logits_source = checks.source_of(scores)
            if logits_source == LOG_OF_PROBABILITIES:
                checks.check_probabilities(scores, fuse)
                warnings.warn(
                    "No final softmax was found in the model's graph: the map "
                    "is fitted to the logarithm of its probabilities.",
                    stacklevel=2,
                )
                before = [LogProbabilities(name="log_probabilities")]
                scores = _in_blocks(before[0], scores)
            elif logits_source == "logits":
                checks.refuse_probabilities(scores, from_logits)
            rows = read_rows(scores, samples.labels, samples.weight)
            if method == "auto":
                method, trials = choose(rows, class_loss_scaling, seed, fuse)
            else:
                trials = None
            layer, found = fit(
                method, network, rows, objective, class_loss_scaling
            )
            checks.warn_if_known(
                model, found.pop("accuracy"), len(samples.labels)
            )
        layer.record = {
            **layer.record,
            "logits_source": logits_source,
            **found,
            **({} if trials is None else {"trials": trials}),
            "fingerprint": samples.fingerprint,
            "keras_calib_version": __version__,
        }
        num_units = scores.shape[-1]
        after = []
        if output == "probabilities":
            after = [
                keras.layers.Activation(
                    "sigmoid" if num_units == 1 else "softmax",
                    dtype="float32",
                    name=free_name(network, "probabilities"),
                )
            ]
        name = f"{model.name}_calibrated"
        if fuse:
            fuse_into(head.layer, layer.as_affine(max(2, num_units)))
            # See `refuse_the_same_data`.
            name = f"{name}_{samples.fingerprint}"
            calibrated = _assemble(model, network, head, after, name)
            calibrated._calibration_record = layer.record
        else:
            layers = [*before, layer, *after]
            calibrated = _assemble(model, network, head, layers, name)
        # Once, so that it is built, and can be saved and exported.
        calibrated(example)
    _compile(calibrated, samples.one_hot, num_units, ignore_class, not after)
    return calibrated


def calibration_record(model):
    """What `kc.calibrate` fitted, read from a calibrated model or its file.

    Args:
        model: a model that `kc.calibrate` returned, also after loading. With
            `fuse=True` only before saving: the file is plain Keras.

    Returns:
        dict: method, objective, number of samples and classes, fitted values,
        NLL and ECE on the calibration data before and after, a fingerprint of
        that data, what `"auto"` tried, and the version that wrote it.

    Raises:
        ValueError: if the model holds no calibration map; a file saved after
            `fuse=True` holds none.

    Example:
        >>> import numpy as np, keras, keras_calib as kc
        >>> model = keras.Sequential([keras.Input((2,)),
        ...                           keras.layers.Dense(2)])
        >>> x = np.random.default_rng(0).normal(size=(100, 2))
        >>> calibrated = kc.calibrate(model, x, np.arange(100) % 2, verbose=0)
        >>> kc.calibration_record(calibrated)["num_samples"]
        100
    """
    fused = getattr(model, "_calibration_record", None)
    if fused is not None:
        return fused
    records = [
        layer.record
        for layer in flatten_layers(model, include_self=False)
        if isinstance(layer, CalibrationLayer) and layer.record
    ]
    if not records:
        raise ValueError(
            f"The model {model.name!r} holds no calibration map. Pass what "
            "`kc.calibrate` returned; a file saved after `fuse=True` is plain "
            "Keras and carries no record."
        )
    return records[-1]


def _in_blocks(layer, scores):
    """A layer without weights of its own, over many rows."""
    rows = max(1, BLOCK // scores.shape[-1])
    for start in range(0, len(scores), rows):
        scores[start : start + rows] = as_array(
            layer(scores[start : start + rows])
        )
    return scores


def _with_example(model, source):
    """The batches again, and a few inputs of the first one."""
    source = iter(source)
    first = next(source, None)
    if first is None:
        raise ValueError("The calibration data is empty: 0 batches.")
    inputs = for_model(first[0])
    if not _has_fixed_batch(model):
        inputs = keras.tree.map_structure(lambda leaf: leaf[:4], inputs)
    return itertools.chain([first], source), inputs


def _has_fixed_batch(model):
    if _stateful_layers(model):
        return True
    given = keras.tree.flatten(getattr(model, "inputs", None) or [])
    return any(tensor.shape[:1] != (None,) for tensor in given)


def _stateful_layers(model):
    return [
        layer
        for layer in flatten_layers(model)
        if isinstance(layer, keras.layers.RNN) and layer.stateful
    ]


@contextlib.contextmanager
def _states_kept(model):
    """Put the states of recurrent layers back when the block ends."""
    # Keras does not track them as variables of the layer.
    variables = keras.tree.flatten(
        [layer.states for layer in _stateful_layers(model) if layer.states]
    )
    before = [np.array(as_array(variable.value)) for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)


def _up_to_logits(model, from_logits, fuse, example):
    """The network to run, its head where it has a graph, and what it gives."""
    if not has_graph(model):
        if fuse:
            raise ValueError(
                "`fuse=True` needs a Functional or Sequential model, whose "
                f"last layer can be found. Received: {type(model).__name__}. "
                "Leave out `fuse`."
            )
    elif fuse and from_logits is not False:
        head = find_head(model, twin=True)
        network = keras.Model(head.inputs, head.tensor)
        if not _computes_the_same(model, network, head.activation, example):
            raise ValueError(
                "`fuse=True` needs the logits, and what was found in the "
                f"graph of {model.name!r} does not compute its outputs. "
                "Received: a model whose layers change their `call`. Leave "
                "out `fuse`."
            )
        found = f"before {head.activation}" if head.activation else "logits"
        return network, head, found
    else:
        head = find_head(model)
        if head.activation is not None:
            network = keras.Model(head.inputs, head.tensor)
            if _computes_the_same(model, network, head.activation, example):
                return network, head, f"before {head.activation}"
            warnings.warn(
                f"What precedes the final {head.activation} in the model's "
                "graph does not compute the model's outputs: layers change "
                "their `call`, or differ from call to call.",
                stacklevel=3,
            )
            return model, None, LOG_OF_PROBABILITIES
    kinds = {"logits": False, "probabilities": True}
    probabilities = kinds.get(output_kind(model))
    if from_logits is not None:
        probabilities = not from_logits
    sources = {None: None, False: "logits", True: LOG_OF_PROBABILITIES}
    return model, None, sources[probabilities]


def _computes_the_same(model, network, activation, example):
    """Whether a network's logits give the model's outputs on real data."""
    with _states_kept(model):
        expected = as_array(model(example, training=False))
    with _states_kept(model):
        logits = as_array(network(example, training=False))
    # Digits of half precision, or of a GPU's fast float32.
    tolerance = 2e-2 if expected.dtype.itemsize < 4 else 1e-3
    if logits.dtype.itemsize < 4:
        tolerance = 2e-2
    expected, logits = (part.astype("float64") for part in (expected, logits))
    if activation == "softmax":
        logits = np.exp(arrays.log_softmax(logits))
    elif activation == "sigmoid":
        logits = arrays.sigmoid(logits)
    else:
        tolerance *= max(1.0, np.abs(expected).max(initial=0))
    if logits.shape != expected.shape:
        return False
    # NaN has a message of its own, later.
    difference = np.abs(logits - expected)
    return bool(np.nan_to_num(difference).max(initial=0) <= tolerance)


def _assemble(model, network, head, layers, name):
    if not has_graph(model):
        top = keras.Sequential(layers, name="calibrated_head")
        return CalibratedModel(model, top, name=name)
    tensor = model.outputs[0] if head is None else network.outputs[0]
    for layer in layers:
        tensor = layer(tensor)
    return keras.Model(inputs_of(model), tensor, name=name)


def _compile(model, one_hot, num_units, ignore_class, from_logits):
    """So that `evaluate` works at once, with parts that Keras itself loads."""
    metrics = ["accuracy"]
    if num_units == 1:
        if from_logits:
            metrics = [keras.metrics.BinaryAccuracy(threshold=0.0)]
        loss = keras.losses.BinaryCrossentropy(from_logits)
    elif one_hot:
        loss = keras.losses.CategoricalCrossentropy(from_logits)
    else:
        loss = keras.losses.SparseCategoricalCrossentropy(
            from_logits, ignore_class
        )
        if ignore_class is not None:
            metrics = []  # Keras' accuracy would count the ignored label
    # An optimizer without slots, so that a saved file loads without a warning.
    model.compile("sgd", loss=loss, metrics=metrics)
