"""The part of a model that returns logits; the calibrated model around it."""

import dataclasses

import keras
import numpy as np

from keras_calib.calibration import _checks as checks
from keras_calib.calibration._compile import compile_for_evaluate
from keras_calib.calibration._one_output import OneOutput
from keras_calib.calibration._passed_layer import as_it_was
from keras_calib.calibration._preprocessed import with_preprocessor
from keras_calib.calibration._record import LOG_OF_PROBABILITIES
from keras_calib.calibration._record import keep_fused_records
from keras_calib.calibration._record import summary
from keras_calib.data.predict import stateful_layers
from keras_calib.data.predict import states_kept
from keras_calib.inputs import arrays
from keras_calib.inputs import rules
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.calibration_rows import rows_of
from keras_calib.keras_graph import endings
from keras_calib.keras_graph.calibrated_model import CalibratedModel
from keras_calib.keras_graph.fuse import fuse as fuse_into
from keras_calib.keras_graph.head import Head
from keras_calib.keras_graph.head import find_head
from keras_calib.keras_graph.head import free_name
from keras_calib.layers._local_temperature_scaling import (
    LocalTemperatureScaling,
)
from keras_calib.layers._log_probabilities import LogProbabilities
from keras_calib.solvers.blocks import TENSOR_BLOCK
from keras_calib.solvers.blocks import row_blocks


@dataclasses.dataclass(frozen=True)
class Network:
    """What is run over the calibration data.

    Attributes:
        model: a `keras.Model`, without the final activation if it was found.
        head: where `model` ends, or `None` if it is the user's model.
        logits_source: see `CalibrationRecord`; `None` if the graph does not
            show it.
    """

    model: keras.Model
    head: Head | None
    logits_source: str | None


def as_example(model, inputs):
    """The first samples of a batch, or all of them if their number is fixed."""
    if _has_fixed_batch(model):
        return inputs
    return keras.tree.map_structure(lambda leaf: leaf[:4], inputs)


def _has_fixed_batch(model):
    given = keras.tree.flatten(getattr(model, "inputs", None) or [])
    return bool(stateful_layers(model)) or any(
        tensor.shape[:1] != (None,) for tensor in given
    )


def _build_graph(model, example):
    """Call a Sequential model without an `Input`, which builds its graph."""
    if isinstance(model, keras.Sequential) and not endings.has_graph(model):
        model(example, training=False)


def up_to_logits(model, from_logits, fuse, example, multi_label=False):
    """Find the part of a model that returns logits.

    Args:
        model: the user's model.
        from_logits: `None`, or whether its outputs are logits.
        fuse: whether the layer that computes the logits must be copied.
        example: inputs on which the part is compared with the model.
        multi_label: see `calibrate`.

    Returns:
        `Network`.

    Raises:
        ValueError: with `fuse`, if the logits are not found; if the model's
            end cannot be read, or contradicts `from_logits`.
    """
    _build_graph(model, example)
    checks.check_ending(model, from_logits, multi_label)
    if endings.has_graph(model):
        head = find_head(model)
        twin = fuse and (head.activation or from_logits is not False)
        if twin:
            head = find_head(model, twin=True)
        if twin or head.activation:
            network = keras.Model(head.inputs, head.tensor)
            if _computes_the_same(model, network, head.activation, example):
                before = f"before {head.activation}"
                return Network(
                    network, head, before if head.activation else "logits"
                )
            checks.refuse_or_warn_of_other_outputs(model, head, fuse)
            return Network(model, None, LOG_OF_PROBABILITIES)
    elif fuse:
        raise ValueError(
            "`fuse=True` needs a Functional or Sequential model, whose "
            f"last layer can be found. Received: {type(model).__name__}. "
            "Leave out `fuse`."
        )
    else:
        _check_one_tensor(model, example)
    kind = endings.output_kind(model)
    if from_logits is not None:
        kind = "logits" if from_logits else "probabilities"
    source = LOG_OF_PROBABILITIES if kind == "probabilities" else kind
    return Network(model, None, source)


def _check_one_tensor(model, example):
    """Refuse a model without a graph that gives a dict or a list."""
    with states_kept(model):
        outputs = model(example, training=False)
    if not keras.ops.is_tensor(outputs):
        raise ValueError(
            "The model must give one tensor of class scores. Received: a "
            f"{type(outputs).__name__} of {len(outputs)} outputs. Wrap it: "
            "`inputs = keras.Input(...)`, and `keras.Model(inputs, "
            "model(inputs)[key])`."
        )


def _computes_the_same(model, network, activation, example):
    """Whether a network's logits give the model's outputs on real data."""
    with states_kept(model):
        expected = as_array(model(example, training=False))
    with states_kept(model):
        logits = as_array(network(example, training=False))
    # Half precision, or the fast float32 of a GPU, has fewer digits.
    half = min(expected.dtype.itemsize, logits.dtype.itemsize) < 4
    tolerance = 2e-2 if half else 1e-3
    expected, logits = (part.astype("float64") for part in (expected, logits))
    if activation == "softmax":
        logits = np.exp(arrays.log_softmax(logits))
    elif activation == "sigmoid":
        logits = arrays.sigmoid(logits)
    else:
        tolerance *= max(1.0, np.abs(expected).max(initial=0))
    if logits.shape != expected.shape:
        return False
    # NaN is refused later, with a message.
    difference = np.abs(logits - expected)
    return bool(np.nan_to_num(difference).max(initial=0) <= tolerance)


def calibration_rows(network, samples, from_logits, fuse, *, warn=True):
    """What a map is fitted to, and where the logits come from.

    Args:
        network: `Network`.
        samples: `Samples` of it; their scores may be overwritten.
        from_logits: argument of `calibrate`, for messages.
        fuse: argument of `calibrate`.
        warn: whether to warn where the logits were not found.

    Returns:
        rows: `CalibrationRows`.
        logits_source: see `CalibrationRecord`.

    Raises:
        ValueError: if the outputs contradict what is known, or nothing is.
    """
    scores = samples.scores
    source = network.logits_source or checks.source_by_values(scores)
    if source == "logits":
        checks.refuse_probabilities(scores, from_logits)
    elif source == LOG_OF_PROBABILITIES:
        checks.check_probabilities(scores, fuse)
        if warn:
            checks.warn_no_softmax(network.model)
            checks.warn_of_zeros(network.model, scores, samples.labels)
        take_logarithm(scores)
    else:
        rules.check_finite(scores)
    rows = rows_of(scores, samples.labels, samples.weights, samples.group)
    return rows, source


def blocks_of_rows(network, batches, from_logits, fuse):
    """`calibration_rows` of one batch after the other.

    The first batch decides what unknown outputs are, the others must agree.

    Args:
        network: `Network`.
        batches: iterable of `BatchOutputs`; their scores may be overwritten.
        from_logits: argument of `calibrate`, for messages.
        fuse: argument of `calibrate`.

    Yields:
        rows: `CalibrationRows`; weights are those of the batch, as they came.
        logits_source: see `CalibrationRecord`.
    """
    first = True
    for batch in batches:
        if not len(batch.labels):
            continue
        rows, source = calibration_rows(
            network, batch, from_logits, fuse, warn=first
        )
        network = dataclasses.replace(network, logits_source=source)
        first = False
        yield dataclasses.replace(rows, weights=batch.weights), source


def take_logarithm(scores, multi_label=False):
    """Overwrite probabilities by their logarithms, or by log-odds."""
    layer = LogProbabilities(multi_label=multi_label)
    for part in row_blocks(*scores.shape, TENSOR_BLOCK):
        scores[part] = as_array(layer(scores[part]))


def assemble(model, network, layer, settings, num_units):
    """The calibrated model: network, map, and the final activation.

    Args:
        model: the user's model.
        network: `Network` that was run.
        layer: the fitted map, with its record.
        settings: `Settings`.
        num_units: size of the class axis of the outputs.

    Returns:
        A `keras.Model`.
    """
    multi_label = settings.multi_label
    record = layer.record
    name = f"{model.name}_calibrated"
    stages = [layer]
    if record["logits_source"] == LOG_OF_PROBABILITIES:
        name_of_log = free_name(network.model, "log_probabilities")
        log = LogProbabilities(multi_label=multi_label, name=name_of_log)
        stages = [log, layer]
    if settings.fuse:
        fuse_into(network.head.layer, layer.as_affine(max(2, num_units)))
        # Plain Keras files carry no record: see `refuse_the_same_data`.
        name = f"{name}_{settings.mark(record['fingerprint'])}"
        stages = []
    if settings.output == "probabilities":
        one_by_one = 1 if multi_label else num_units
        stages = [*stages, final_activation(network.model, one_by_one)]
    calibrated = followed_by(model, network, stages, name)
    if settings.fuse:
        keep_fused_records(calibrated, {None: record})
    return calibrated


def final_activation(model, num_units):
    """The layer that turns logits into probabilities at the end of a model."""
    return keras.layers.Activation(
        "sigmoid" if num_units == 1 else "softmax",
        dtype="float32",
        name=free_name(model, "probabilities"),
    )


def followed_by(model, network, stages, name):
    """A model of a network and further layers.

    Args:
        model: the user's model.
        network: `Network` of it.
        stages: list of layers.
        name: name of the new model.
    """
    if endings.has_graph(model):
        tensor = network.model.outputs[0]
        for stage in stages:
            local = isinstance(stage, LocalTemperatureScaling)
            tensor = stage([model.inputs[0], tensor] if local else tensor)
        return keras.Model(endings.inputs_of(model), tensor, name=name)
    top = keras.Sequential(stages, name="calibrated_head")
    return CalibratedModel(model, top, name=name)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Arguments of `kc.calibrate` about the model; see there."""

    fuse: bool
    output: str
    from_logits: bool | None
    ignore_class: int | None
    verbose: str | int
    place: OneOutput | None = None
    multi_label: bool = False
    preprocessor: keras.layers.Layer | None = None

    def mark(self, fingerprint):
        """What the name of a fused model says of its calibration data."""
        return self.place.mark(fingerprint) if self.place else fingerprint


@dataclasses.dataclass(frozen=True)
class Facts:
    """What `calibrated_by` needs to know of the data.

    Attributes:
        num_units: size of the class axis of the outputs.
        one_hot: whether labels are one-hot rows.
    """

    num_units: int
    one_hot: bool


def calibrated_by_samples(
    fit, collect, model, source, method, settings, *, groups
):
    """A calibrated model, from a fit to samples that are kept.

    Args:
        fit: function of a `Network` and its `Samples`; see `calibrated_by`.
        collect: `collect` or `collect_labels`.
        model: the user's model.
        source: `Source`, which is read once.
        method: see `calibrated_by`.
        settings: `Settings`.
        groups: see `kc.calibrate`.

    Returns:
        A `keras.Model`, compiled.
    """
    data = source.open()

    def fit_to_data(network):
        ignore, verbose = settings.ignore_class, settings.verbose
        with collect(
            network.model, data, ignore, verbose, groups=groups
        ) as samples:
            checks.refuse_the_same_data(model, samples.fingerprint, settings)
            return fit(network, samples)

    return calibrated_by(fit_to_data, model, data, method, settings)


def calibrated_by(fit, model, data, method, settings):
    """A calibrated model, from a fit that runs the network.

    Args:
        fit: function of a `Network` that returns the fitted map, its record
            and `Facts`.
        model: the user's model.
        data: `Batches`, of which the first is read, and stays there.
        method: a name, or a layer, which stays as it was if anything fails.
        settings: `Settings`.

    Returns:
        A `keras.Model`, compiled.
    """
    fuse, output = settings.fuse, settings.output
    example = as_example(model, data.first_inputs())
    with states_kept(model), as_it_was(method):
        network = up_to_logits(
            model, settings.from_logits, fuse, example, settings.multi_label
        )
        checks.check_name(method, network.model)
        layer, record, facts = fit(network)
        layer.record = record
        # `fit` of the calibrated model would train the map on training data,
        # and leave its record.
        layer.trainable = False
        calibrated = assemble(model, network, layer, settings, facts.num_units)
        if settings.place is not None:
            calibrated = settings.place.with_others(calibrated)
        if settings.preprocessor is not None:
            calibrated = with_preprocessor(calibrated, settings.preprocessor)
        # Called once, so that it is built, and can be saved and exported.
        outputs = calibrated(example, training=False)
        if settings.place is not None:
            outputs = outputs[settings.place.key]
    compile_for_evaluate(
        calibrated,
        output,
        facts.num_units,
        facts.one_hot,
        settings.ignore_class,
        settings.place,
        settings.multi_label,
        plain=fuse or len(outputs.shape) == 2,
        alone=fuse,
    )
    if settings.verbose:
        print(summary(layer.record))
    return calibrated
