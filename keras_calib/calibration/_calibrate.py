"""`kc.calibrate`: trained model + calibration data -> calibrated model."""

import dataclasses
import functools
from typing import Any

import keras

from keras_calib._typing import ArrayLike
from keras_calib.calibration import _checks as checks
from keras_calib.calibration import _network
from keras_calib.calibration._choose import choose
from keras_calib.calibration._choose import mixture_of
from keras_calib.calibration._fit import Options
from keras_calib.calibration._fit import fit
from keras_calib.calibration._fit import passes_shown
from keras_calib.calibration._local import calibrate_locally
from keras_calib.calibration._methods import is_auto
from keras_calib.calibration._methods import is_local
from keras_calib.calibration._multi_label import calibrate_labels
from keras_calib.calibration._multi_label import map_of_label
from keras_calib.calibration._one_output import one_output
from keras_calib.calibration._preprocessed import preprocess_labeled
from keras_calib.calibration._preprocessed import raw_arrays
from keras_calib.calibration._preprocessed import taken_apart
from keras_calib.calibration._record import CalibrationRecord
from keras_calib.calibration._stream import calibrate_in_stream
from keras_calib.calibration._warnings import warn_if_trained_on
from keras_calib.calibration._warnings import warn_of_pixels
from keras_calib.data.batches import Source
from keras_calib.data.collect import collect
from keras_calib.data.order import refuse_shuffled
from keras_calib.inputs.arguments import require_flags
from keras_calib.layers._base import CalibrationLayer
from keras_calib.layers._shrunk import ShrunkCalibration


def calibrate(
    model: keras.Model,
    x: Any,
    y: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    *,
    method: str | CalibrationLayer = "temperature",
    objective: Any = "nll",
    class_loss_scaling: Any = None,
    fuse: bool = False,
    output: str = "probabilities",
    output_name: str | None = None,
    multi_label: bool = False,
    from_logits: bool | None = None,
    ignore_class: int | None = None,
    batch_size: int | None = None,
    steps: int | None = None,
    stream: bool = False,
    groups: ArrayLike | None = None,
    guard: bool = True,
    max_seconds: float | None = None,
    preserve_accuracy: bool | None = None,
    mixture: bool = False,
    seed: int = 0,
    verbose: str | int = "auto",
) -> keras.Model:
    """Calibrate a trained classifier on held-out data, return a new model.

    The model runs once over the calibration data, a calibration layer is
    fitted to its logits, and the new model consists of the network, this layer
    and a softmax. If the model ends in a softmax (or sigmoid), this activation
    is removed first. If the logits that are left do not reproduce the outputs
    on a few samples, the logarithm of the probabilities is used instead, with
    a warning. Elements that Keras masks are left out, and the new model keeps
    the mask.

    `model` is not changed. The new model uses the same weights, not copies of
    them: if `model` is trained further, the new model changes, too, and has to
    be calibrated again. `fit` of the new model trains the network and leaves
    the map, which is not trainable, unless `trainable = True` is set on the
    whole model: Keras then sets it on each layer, so set it on those that are
    to learn. With `fuse=True` the last layer is a copy.

    A layer fitted by likelihood is compared with temperature scaling (`guard`):
    on samples that are left out of the fit, or, if it is an average of ridge
    fits (vector, matrix, Dirichlet, class and bias-corrected temperatures) and
    there are no `groups`, by its evidence. Temperature scaling is compared with
    `model` itself by its evidence. The best of the three is returned; if it is
    not the layer, a warning gives the figures. `model` must be ahead by 2 nats
    in total (with `groups`, which are always left out, by 3), because networks
    that need no calibration are rare; or the temperature, which few samples
    with hardly an error make too low, must be expected to do harm. This is an
    estimate: from some 50 samples on it makes harm on new data rare and small,
    and cannot exclude it.

    A layer that increases the error on the calibration data is rejected with a
    warning, and so is one that cannot be fitted without the samples that are
    left out. The best of the other two is returned; where nothing is compared,
    it is `model`. The error is the NLL after a fit by likelihood, the ECE after
    one by it; after others, and where few samples make a layer hedge, both must
    rise.

    Logits above 256 MiB go to a temporary file while they are needed. Where a
    file does not hold them, either, `stream=True` keeps none: see below.

    The file of the new model needs `import keras_calib` before
    `keras.saving.load_model`, except with `fuse=True`.

    Args:
        model: a built Functional, Sequential or subclassed classifier with one
            output of shape `(..., num_classes)`, or `(..., 1)` for one sigmoid
            unit; or an average of networks (`kc.models.DeepEnsemble`,
            `MonteCarloDropout`). For a task of KerasHub with a preprocessor
            `x` is raw, as in its `predict`, and so are the inputs of the new
            model's `predict` and `evaluate`; see `PreprocessedModel`.
        x: inputs, if `y` is given; otherwise a `tf.data.Dataset`, a
            `keras.utils.PyDataset`, a torch `DataLoader` or an iterable of
            `(x, y)` or `(x, y, sample_weight)`. The network must not have been
            trained on this data.
        y: labels, class ids or one-hot rows. `None` if `x` has them, or if the
            preprocessor of a task makes them (`CausalLM`).
        sample_weight: weights for arrays `x`, `y`. A constant factor changes
            nothing; unequal weights count as fewer samples.
        method: a calibration layer, or one of `"temperature"`,
            `"bayesian_temperature"`, `"bias_corrected_temperature"`,
            `"class_temperature"`, `"ensemble_temperature"`,
            `"parameterized_temperature"`, `"vector"`, `"matrix"`,
            `"dirichlet"`, `"order_preserving"`,
            `"structured_matrix"`, `"spline"`, `"isotonic"`, `"histogram"`,
            `"beta"`, `"platt"`, `"quadratic"`; or `"local_temperature"`, for
            a model of images that gives scores per pixel, see
            `LocalTemperatureScaling`: images and logits above 256 MiB go to
            files, and temperature scaling is kept unless held-out images show
            a lower NLL, in place of the guard; or `"auto"`, which tries
            several, and the model as it is, in the order of `"trials"` in
            the record, and takes the one that wins most often on left-out
            samples that are redrawn (Bayesian bootstrap); with at most 200
            samples, the one that is nearest to the mean of all, weighted by
            this. Some are not tried with more than 100 classes. Where a class
            is ruled out, `"dirichlet"` takes the place of `"matrix"`.
        objective: what the layer minimizes; see `CalibrationLayer.adapt`.
        class_loss_scaling: `None`, `"normal"`, `"min_max"` or `"centered"`;
            see `CalibrationLayer.adapt`.
        fuse: whether to put an affine layer (temperature, class temperature,
            bias-corrected temperature, vector, matrix, Platt) into the weights
            of the model's last layer. Inference then costs nothing more, and
            the file needs Keras only. `"class_temperature"`, `"vector"` and
            `"matrix"` are fitted to logits minus their mean then, `"platt"`
            without shrinkage, so that these are other maps than without
            `fuse`: compare them on new data. In half precision the layer
            rounds once more: probabilities differ by up to 0.01, and a class
            may win that tied. Such a file carries no record; the
            model's name ends in the fingerprint of the calibration data. Where
            no loss of Keras fits (`ignore_class` with rows, one unit or
            several labels; rows for one unit), it is not compiled.
        output: `"probabilities"` or `"logits"`, what the new model returns.
        output_name: which of several outputs is calibrated: its key, where
            `model` returns a dict, else its name in `model.output_names`. The
            others stay as they are. (Keras names an output in a list by its
            last layer: there the calibrated one has a new name.) Labels and
            weights are those of this output, or a dict, a list or a table of
            pandas, with the outputs as columns, of those of all outputs.
        multi_label: whether the units are sigmoids of labels that do not
            exclude each other, or their logits. `y` has 0 or 1 for each,
            `(..., num_labels)`, and weights may be of this shape, too. Each
            label gets its own temperature, which few samples leave near that of
            all labels, and with `method="platt"` its own Platt map beside it. A
            `TemperatureScaling` or `PlattScaling` that is passed as a layer is
            fitted to each label by itself; a `MultiLabelScaling` says which.
            The guard judges each label alone; labels without a positive or
            without a negative sample have the temperature that all labels and
            their own samples tell (a high one where the model expects the
            other class often: is it the right column?), or, where there is
            none, stay as they are; a warning names them. `ignore_class=-1`
            leaves out unknown labels, also in the new model's `evaluate`.
            Other layers and objectives, and `stream`, are refused. See
            `MultiLabelScaling`.
        from_logits: whether `model` returns logits. By default the end of the
            model's graph decides. If that is unknown (subclassed models,
            custom layers, `Lambda`, recurrent layers), rows that are
            non-negative and sum to one are probabilities, rows with negative
            values are logits, and anything else raises an error.
        ignore_class: samples with this label are ignored. `evaluate` of the
            result then returns the loss alone: Keras' accuracy would count
            them.
        batch_size: for arrays; defaults to 32.
        steps: number of batches of a dataset to take.
        stream: whether to keep no logits at all, and run the model again for
            every step of the fit, three to nine times, with the memory of one
            batch: for token scores `(batch, time, vocabulary)` or pixels. Only
            for `method="temperature"` with `objective="nll"`, and without the
            guard; the temperature is that of the ordinary fit. `x` must give
            the same samples whenever it is read: arrays, a dataset, or a
            function that returns a new generator of batches. This is not
            chosen by itself, because a model usually takes longer to run than
            a file to read.
        groups: ids of groups of samples that are alike (patient, document), one
            per sample, in the order of the data, which must not be shuffled
            while it is read. Folds and standard errors keep groups together,
            affine maps take a group as less than its samples where these are
            wrong together, and `"local_temperature"` holds out whole groups of
            images. By default the elements of one sample, such as the pixels of
            an image, are a group. Over pixels `"auto"` then tries temperature
            scaling alone, with a warning, because images of one film or patient
            say too much of each other; `np.arange(len(x))` says they do not.
        guard: whether to compare the layer with temperature scaling and with
            `model`, see above. With other objectives than `"nll"`, with
            class-wise loss scaling, and with soft labels there is no guard.
        max_seconds: `None`, or seconds after the network's pass over the data.
            When they are over, `"auto"` ends the folds of the layer that it
            tries, which no longer counts, and tries no more; the guard does not
            begin; and local temperature scaling ends with its best epoch so
            far. The record says what was left out.
        preserve_accuracy: `True` refuses layers that can change a predicted
            class; `False` allows them; `None` (default) allows them with a
            warning that says how many predictions changed.
        mixture: with `method="auto"`, whether to average the probabilities of
            all candidates by how often they win. It predicts better than one
            layer, and cannot be fused.
        seed: int, for the folds and draws of `"auto"`.
        verbose: `"auto"` for a line that says what was found, and progress
            bars after a few seconds: batches predicted, then passes over the
            logits (or batches of images), of which no number is known before,
            or labels; 1 for bars from the start; 0 for silence.

    Returns:
        A `keras.Model`, compiled for `evaluate`. `kc.calibration_record`
        returns what was fitted.

    Raises:
        ValueError: for bad input; if the model has several sigmoid units and
            `multi_label` is not set, or several outputs and no `output_name`;
            if its outputs contradict `from_logits`, or could be either; if the
            model has already been calibrated on these very samples. Nothing
            is changed then.

    Warns:
        UserWarning: if there are fewer than ten calibration samples per
            parameter of a map that does not shrink by itself, or fewer than 50
            (not with `"auto"`); if the accuracy on the calibration data is
            closer to that on the training data than to that on the validation
            data, so that the network seems to have been trained on them; if no
            final softmax was found, or the model was trained by a loss of
            regression; if labels have a probability of 0; if the layer was
            rejected; if the ECE on the calibration data rose by more than
            chance; if the mean probability of a class is far from its frequency
            there.

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
    require_flags(fuse=fuse, guard=guard, mixture=mixture, stream=stream)
    require_flags(multi_label=multi_label)
    require_flags(none=True, from_logits=from_logits)
    refuse_shuffled(x, groups)
    method = map_of_label(method) if multi_label else method
    model, preprocessor = taken_apart(model)
    checks.check_arguments(model, method, objective, fuse, output)
    checks.check_choice(method, mixture, fuse, preserve_accuracy, max_seconds)
    place = one_output(model, output_name)
    model = place.alone() if place else model
    source = _source(
        x, y, sample_weight, batch_size, steps, place, preprocessor
    )
    settings = _network.Settings(
        fuse=fuse,
        output=output,
        from_logits=from_logits,
        ignore_class=ignore_class,
        verbose=verbose,
        place=place,
        multi_label=multi_label,
        preprocessor=preprocessor,
    )
    options = Options(
        objective=objective,
        class_loss_scaling=class_loss_scaling,
        affine=fuse,
        unguarded=None if guard else "guard=False",
        preserve_accuracy=preserve_accuracy,
        max_seconds=max_seconds,
        seed=seed,
    )
    way = _way(method, stream, multi_label, mixture, groups)
    return way(model, source, method, options, settings)


def _source(x, y, sample_weight, batch_size, steps, place, preprocessor):
    """The calibration data, of one output, and preprocessed."""
    if preprocessor is not None:
        x = raw_arrays(x)
    return Source(
        x,
        y,
        sample_weight,
        batch_size,
        steps,
        part_of=place.part_of if place else None,
        preprocess=preprocess_labeled(preprocessor) if preprocessor else None,
    )


def _way(method, stream, multi_label, mixture, groups):
    """The function that calibrates such a model, by such a method."""
    if multi_label:
        return functools.partial(calibrate_labels, groups=groups, stream=stream)
    if stream:
        checks.refuse_groups(groups)
        return calibrate_in_stream
    if is_local(method):
        return functools.partial(calibrate_locally, groups=groups)
    return functools.partial(_calibrate_rows, mixture=mixture, groups=groups)


def _calibrate_rows(
    model, source, method, options, settings, *, mixture, groups
):
    """`calibrate` of class scores that are kept: the usual way."""
    how = settings.from_logits, method, mixture

    def fit_one(network, samples):
        mine = options.for_samples(samples, groups)
        with passes_shown(settings.verbose, "pass over the logits"):
            return _fit_to_samples(model, network, samples, *how, mine)

    return _network.calibrated_by_samples(
        fit_one, collect, model, source, method, settings, groups=groups
    )


def _fit_to_samples(
    model, network, samples, from_logits, method, mixture, options
):
    """Fit a map to all logits.

    Returns:
        layer: the map.
        record: see `calibration_record`.
        facts: `Facts`.
    """
    rows, logits_source = _network.calibration_rows(
        network, samples, from_logits, options.affine
    )
    options = options.started()
    layer, record, accuracy = _fit(
        method, mixture, network.model, rows, options
    )
    if isinstance(layer, ShrunkCalibration):
        layer.folds = None  # arrays of the size of the data
    warn_if_trained_on(model, accuracy, len(samples.labels))
    facts = _network.Facts(samples.scores.shape[-1], samples.one_hot)
    return layer, _whole_record(record, logits_source, samples), facts


def _whole_record(record, logits_source, samples):
    return CalibrationRecord(
        **record,
        logits_source=logits_source,
        fingerprint=samples.fingerprint,
    ).to_dict()


def _fit(method, mixture, network, rows, options):
    """Fit a map, after choosing one if the method is "auto"; see `fit`."""
    if not is_auto(method):
        return fit(method, network, rows, options)
    options = dataclasses.replace(options, unguarded="auto")
    if options.of_pixels:
        warn_of_pixels()
    choice = choose(rows, options, mixture=mixture)
    method = choice.best
    if mixture:
        method = mixture_of(choice, network, options)
    layer, record, accuracy = fit(
        method, network, rows, options, adapt_map=choice.adapt
    )
    return layer, {**record, "trials": choice.trials}, accuracy
