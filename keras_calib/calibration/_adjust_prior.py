"""`kc.adjust_prior`: calibrated model + class frequencies -> new model."""

import dataclasses
from typing import Any

import keras
import numpy as np

from keras_calib._typing import ArrayLike
from keras_calib._warning import warn
from keras_calib.calibration import _checks as checks
from keras_calib.calibration import _network
from keras_calib.calibration import _target_prior
from keras_calib.calibration._compile import compile_for_evaluate
from keras_calib.calibration._compile import takes_rows
from keras_calib.calibration._preprocessed import preprocessed_batches
from keras_calib.calibration._preprocessed import taken_apart
from keras_calib.calibration._preprocessed import with_preprocessor
from keras_calib.calibration._read_record import calibration_record
from keras_calib.calibration._record import LOG_OF_PROBABILITIES
from keras_calib.calibration._record import fused_records
from keras_calib.calibration._record import keep_fused_records
from keras_calib.calibration._warnings import LARGEST_BIAS
from keras_calib.data.predict import states_kept
from keras_calib.inputs.arguments import in_class_order
from keras_calib.inputs.arguments import require_flags
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.arrays import as_floats
from keras_calib.keras_graph import endings
from keras_calib.keras_graph.calibrated_model import CalibratedModel
from keras_calib.keras_graph.head import find_head
from keras_calib.keras_graph.head import free_name
from keras_calib.layers._log_probabilities import LogProbabilities
from keras_calib.layers._prior_correction import PriorCorrection
from keras_calib.layers._prior_correction import as_prior
from keras_calib.models._networks import symbolic


def adjust_prior(
    model: keras.Model,
    x: Any = None,
    sample_weight: ArrayLike | None = None,
    *,
    prior: ArrayLike | float | None = None,
    source_prior: ArrayLike | float | None = None,
    from_logits: bool | None = None,
    batch_size: int | None = None,
    steps: int | None = None,
    verbose: str | int = "auto",
) -> keras.Model:
    """Correct a calibrated model for other class frequencies (label shift).

    Under label shift the inputs of each class are distributed as before, and
    the class frequencies move from a source prior s to a target prior q:

        p'_k = p_k q_k / s_k / sum_l p_l q_l / s_l

    The source prior is the mean prediction of the calibrated model on its
    calibration data, which `kc.calibrate` records. The target prior is
    `prior`, or is estimated from unlabeled target data `x` by maximum
    likelihood (EM). It is estimated once and stored: the prediction for a
    sample does not depend on its batch.

    Calibrate with a layer that has a bias for each class, such as
    `method="bias_corrected_temperature"` or `"vector"`: a bias that is left is
    taken for a shift. Decision layers (`ConformalSets`, `RiskThreshold`) must
    be fitted again afterwards. Nothing here helps if the inputs of a class
    change as well (covariate shift).

    `model` is not changed, and the new model uses the same weights. A corrected
    model can be corrected again, from the prior that it has now. Its file
    needs `import keras_calib` before `keras.saving.load_model`.

    Args:
        model: a calibrated classifier: what `kc.calibrate` returned, also
            after loading; or any other, with `source_prior`. It has one
            output: of several, pass `keras.Model(model.inputs,
            model.outputs[i])`. For a task of KerasHub with a preprocessor
            `x` is raw, as in `kc.calibrate`.
        x: unlabeled target data: arrays, or a `tf.data.Dataset`, a
            `keras.utils.PyDataset`, a torch `DataLoader` or an iterable of
            `x`, `(x, y)` or `(x, y, sample_weight)`, where `y` is not used.
            With `prior`, only the first batch is used, to see the outputs of
            a model without a graph.
        sample_weight: weights for arrays `x`.
        prior: the target prior if it is known, probabilities `(num_classes,)`,
            or a dict or pandas Series of them by class id.
            A class with the probability 0 is never predicted. For two classes
            also a float, the probability of the second class.
        source_prior: the source prior of a model that carries none (not from
            `kc.calibrate`, or fused and saved), as `prior`.
        from_logits: whether `model` returns logits. By default the end of the
            model's graph decides.
        batch_size: for arrays; defaults to 32.
        steps: number of batches of a dataset to take.
        verbose: `"auto"` for a line that says what was found, and a progress
            bar after a few seconds; 1 for a bar from the start; 0 for silence.

    Returns:
        A `keras.Model` with outputs of the same kind, probabilities or logits,
        compiled for `evaluate`. `kc.calibration_record` has, as
        `"prior_correction"`, both priors, the number of rows and EM steps,
        and for outputs of one row per sample, all of equal weight, a test of
        no shift:
        `shift_statistic`, 2 n times the gain in log-likelihood divided by
        1 + n / m, with its `degrees_of_freedom` and `p_value` (chi-square).
        `m` is the number of calibration samples that the source prior was
        estimated from (`source_num_samples`; fewer with unequal weights, and
        the number of groups with `groups=`); one that is passed in counts as
        known.

    Raises:
        ValueError: for bad input; if neither `x` nor `prior` is given; if the
            model carries no source prior. Nothing is changed then.

    Warns:
        UserWarning: if calibration left a bias of classes (above 4 standard
            errors on the calibration data); if the target data show no shift
            (p-value above 0.05); if the source prior of a class is 0, which
            then stays 0; if EM has not converged after 10,000 steps; if the
            calibration ignored a label (`ignore_class`), and neither weights
            nor a mask tell which rows of the target data have it.

    Example:
        >>> import numpy as np, keras, keras_calib as kc
        >>> model = keras.Sequential([keras.Input((2,)),
        ...                           keras.layers.Dense(2, "softmax")])
        >>> x = np.random.default_rng(0).normal(size=(100, 2))
        >>> calibrated = kc.calibrate(
        ...     model, x, np.arange(100) % 2,
        ...     method="bias_corrected_temperature", verbose=0,
        ... )
        >>> corrected = kc.adjust_prior(
        ...     calibrated, prior=[0.9, 0.1], verbose=0
        ... )
        >>> bool(corrected.predict(x, verbose=0)[:, 0].mean() > 0.7)
        True

    Reference:
        Saerens et al., "Adjusting the Outputs of a Classifier to New a Priori
        Probabilities", Neural Computation 14, 2002. Alexandari et al.,
        "Maximum Likelihood with Bias-Corrected Calibration is Hard-To-Beat at
        Label Shift Adaptation", ICML 2020.
    """
    require_flags(none=True, from_logits=from_logits)
    given = model
    model, preprocessor = taken_apart(model)
    _check(model, x, prior)
    source, known_by = _source(model, source_prior)
    data = None
    if x is not None:
        data = preprocessed_batches(
            preprocessor,
            x,
            sample_weight=sample_weight,
            batch_size=batch_size,
            steps=steps,
            labeled=False,
        )
    with states_kept(model):
        network, num_units = _network_of(model, from_logits, data, len(source))
        if prior is None:
            # A model with its preprocessor is compiled, not the one inside.
            about = known_by, verbose, model, _ignored_by(given)
            target, record, kind = _target_prior.estimate(
                network, data, from_logits, source, *about
            )
            network = dataclasses.replace(network, logits_source=kind)
        else:
            target = _vector(prior, "prior", len(source))
            target, record = _target_prior.without_unseen(target, source), {}
        layer = PriorCorrection(
            source_prior=source,
            target_prior=target,
            record={
                "source_prior": source.tolist(),
                "target_prior": target.tolist(),
                "estimated": prior is None,
                **record,
            },
            name=free_name(network.model, "prior_correction"),
        )
        corrected = _assemble(model, network, layer, num_units)
        if preprocessor is not None:
            corrected = with_preprocessor(corrected, preprocessor)
    _compile(corrected, given, network, num_units)
    if verbose:
        print(_target_prior.summary(layer.record))
    return corrected


def _ignored_by(model):
    """The label that calibration left out, or `None`."""
    return getattr(getattr(model, "loss", None), "ignore_class", None)


def _check(model, x, prior):
    checks.check_model(model)
    if endings.has_outputs(model):
        endings.check_one_output(model)
    if prior is None and x is None:
        raise ValueError(
            "The target prior is unknown. Received: neither `x` nor `prior`. "
            "Pass unlabeled target data, or the class frequencies."
        )


def _network_of(model, from_logits, data, num_classes):
    """`Network`, and the size of the class axis of its outputs.

    Where neither data nor a graph show that, it is what the prior is of.
    """
    if data is not None:
        example = _network.as_example(model, data.first_inputs())
        network = _network.up_to_logits(model, from_logits, False, example)
        with states_kept(model):
            scores = as_array(network.model(example, training=False))
        if network.logits_source is None:
            seen = scores.reshape(-1, scores.shape[-1])
            source = checks.source_by_values(seen)
            network = dataclasses.replace(network, logits_source=source)
        return network, scores.shape[-1]
    checks.check_ending(model, from_logits)
    has_graph = endings.has_graph(model)
    if has_graph and isinstance(model.layers[-1], keras.layers.Activation):
        # It is an activation only, so that nothing need be compared.
        head = find_head(model)
        if head.activation:
            network = keras.Model(head.inputs, head.tensor)
            source = f"before {head.activation}"
            found = _network.Network(network, head, source)
            return found, head.tensor.shape[-1]
    kind = endings.output_kind(model)
    if from_logits is not None:
        kind = "logits" if from_logits else "probabilities"
    if kind is None or not (has_graph or isinstance(model, CalibratedModel)):
        raise ValueError(
            "The graph of the model does not show its outputs. Received: "
            f"model {model.name!r} without data. Pass `x`, a few samples, and "
            "`from_logits=`."
        )
    source = LOG_OF_PROBABILITIES if kind == "probabilities" else kind
    if has_graph:
        num_units = model.outputs[0].shape[-1]
    else:
        one = endings.final_activation(model) == "sigmoid"
        num_units = 1 if one else num_classes
    return _network.Network(model, None, source), num_units


def _assemble(model, network, layer, num_units):
    """The corrected model, with outputs as those of `model`."""
    stages = [layer]
    if network.logits_source == LOG_OF_PROBABILITIES:
        name = free_name(network.model, "log_probabilities")
        stages = [LogProbabilities(name=name), layer]
    if network.logits_source != "logits":
        stages.append(_network.final_activation(network.model, num_units))
    layer.build((None, num_units))
    name = f"{model.name}_adjusted"
    corrected = _network.followed_by(model, network, stages, name)
    correction = {"prior_correction": layer.record}
    fused = fused_records(model).items()
    keep_fused_records(
        corrected, {key: {**r, **correction} for key, r in fused}
    )
    shape = (model.get_build_config() or {}).get("input_shape")
    if not corrected.built and model.built and shape is not None:
        # Without data, by the shapes that the model was called with.
        corrected(symbolic(shape, corrected.network.input_dtype))
    return corrected


def _compile(corrected, given, network, num_units):
    """Compile, for labels as those of the model that was passed in."""
    loss = getattr(given, "loss", None)
    if isinstance(loss, str):
        loss = keras.losses.get(loss)
    logits = network.logits_source == "logits"
    compile_for_evaluate(
        corrected,
        "logits" if logits else "probabilities",
        num_units,
        takes_rows(loss, num_units),
        getattr(loss, "ignore_class", None),
    )


def _source(model, given):
    """The source prior of a model: the argument, or what its record has.

    Returns:
        source: `(num_classes,)`.
        known_by: number of samples that it was estimated from; infinity for a
            prior that was passed in.
    """
    if given is not None:
        return _vector(given, "source_prior"), np.inf
    try:
        record = calibration_record(model)
    except ValueError:  # it has none
        record = {}
    correction = record.get("prior_correction")
    if correction is not None:
        # The errors of both estimates add up.
        counts = [
            correction.get(key) or np.inf
            for key in ("num_samples", "source_num_samples")
        ]
        known_by = np.inf
        if correction["estimated"]:
            known_by = 1 / sum(1 / count for count in counts)
        return np.array(correction["target_prior"]), known_by
    if "source_prior" not in record:
        raise ValueError(
            "The model carries no source prior. Received: model "
            f"{model.name!r}, which `kc.calibrate` did not return, which has "
            "more layers after the map, or which was saved after `fuse=True`. "
            "Pass `source_prior=`, the mean prediction of the model on its "
            "calibration data."
        )
    # Pixels of an image are no independent samples, and the errors are not
    # those of their number.
    rank = len(getattr(model, "output_shape", None) or (None, None))
    if record["class_bias"] > LARGEST_BIAS and rank == 2:
        warn(
            f"The layer {record['method']!r} leaves a bias of classes: on the "
            "calibration data mean prediction and frequency of a class differ "
            f"by {record['class_bias']:.1f} standard errors, which looks like "
            'a shift. Calibrate with `method="bias_corrected_temperature"` '
            'or "vector" first.'
        )
    # Older files and streams have the number of samples only.
    known_by = record.get("source_num_samples", record["num_samples"])
    return np.array(record["source_prior"]), known_by


def _vector(prior, name, num_classes=None):
    """A prior as probabilities of all classes; a float is the second of two."""
    prior = in_class_order(prior, name)
    prior = as_floats(prior, f"`{name}`", "float64")
    if prior.ndim == 0 and num_classes in (None, 2):
        prior = np.array([1 - prior, prior])
    return as_prior(prior, name, num_classes)
