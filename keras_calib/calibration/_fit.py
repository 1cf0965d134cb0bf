"""Fit a map, compare the model with and without it, reject what does harm."""

import contextlib
import dataclasses
import time
from typing import Any
from typing import NamedTuple

import keras
import numpy as np

from keras_calib._progress import ProgressBar
from keras_calib.calibration._guard import MAP
from keras_calib.calibration._guard import TEMPERATURE
from keras_calib.calibration._guard import TOO_FEW
from keras_calib.calibration._guard import Verdict
from keras_calib.calibration._guard import judge
from keras_calib.calibration._held_out import adapt
from keras_calib.calibration._held_out import losses_and_probabilities
from keras_calib.calibration._methods import as_map
from keras_calib.calibration._no_calibration import UNCHANGED
from keras_calib.calibration._no_calibration import NoCalibration
from keras_calib.calibration._passed_layer import AsItWas
from keras_calib.calibration._source_prior import source_prior
from keras_calib.calibration._warnings import warn_if_ece_rose
from keras_calib.calibration._warnings import warn_if_few
from keras_calib.calibration._warnings import warn_if_predictions_changed
from keras_calib.calibration._warnings import warn_of_class_bias
from keras_calib.calibration._warnings import warn_of_few_groups
from keras_calib.calibration._warnings import warn_of_no_comparison
from keras_calib.calibration._warnings import warn_of_rejection
from keras_calib.evaluation.confidence_error import expected_calibration_error
from keras_calib.evaluation.floor import normal_floor
from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.arrays import at_least_two
from keras_calib.inputs.predictions import top_label
from keras_calib.keras_graph.head import free_name
from keras_calib.layers._base import ROUNDING
from keras_calib.layers._base import CalibrationLayer
from keras_calib.layers._loss_objective import LossObjective
from keras_calib.layers._loss_objective import resolve_objective
from keras_calib.losses import SoftBinnedECE
from keras_calib.solvers.blocks import TENSOR_BLOCK
from keras_calib.solvers.blocks import each_pass
from keras_calib.solvers.blocks import row_blocks

NUM_BINS = 15
ERRORS = ("nll_before", "nll_after", "ece_before", "ece_after")
CROSS_ENTROPIES = (
    keras.losses.CategoricalCrossentropy,
    keras.losses.SparseCategoricalCrossentropy,
)


@dataclasses.dataclass(frozen=True)
class Options:
    """What `fit` and `choose` need to know of `calibrate`'s arguments.

    Attributes:
        objective: an `Objective`, or what stands for one.
        class_loss_scaling: see `CalibrationLayer.adapt`.
        affine: whether a new layer should be affine in the logits.
        unguarded: why the map is not compared on held-out samples; `None` if
            it is.
        preserve_accuracy: see `calibrate`.
        of_pixels: whether the samples are images with a row for each pixel,
            and it was not said which images belong together.
        of_label: whether the rows are those of one of several labels, whose
            errors are measured and warned of once all labels are fitted.
        max_seconds: see `calibrate`.
        deadline: `time.perf_counter()` when the time is over.
        seed: int, for folds.
    """

    objective: Any = "nll"
    class_loss_scaling: Any = None
    affine: bool = False
    unguarded: str | None = None
    preserve_accuracy: bool | None = None
    of_pixels: bool = False
    of_label: bool = False
    max_seconds: float | None = None
    deadline: float = np.inf
    seed: int = 0

    def __post_init__(self):
        require_integer(0, seed=self.seed)

    def started(self):
        """The same, with the deadline that is `max_seconds` from now."""
        if self.max_seconds is None:
            return self
        deadline = time.perf_counter() + self.max_seconds
        return dataclasses.replace(self, deadline=deadline)

    def for_samples(self, samples, groups):
        """The same, knowing whether the rows are pixels of unknown images."""
        undecided = groups is None and self.preserve_accuracy is None
        return dataclasses.replace(
            self, of_pixels=samples.of_pixels and undecided
        )

    def seconds_left(self):
        return self.deadline - time.perf_counter()


def fit(method, network, rows, options, *, adapt_map=adapt):
    """Fit one map, and judge it.

    Args:
        method: a name or a layer.
        network: the model that returns the logits; a new layer gets a name
            that is free in it.
        rows: `CalibrationRows`.
        options: `Options`.
        adapt_map: what fits the map, with the arguments of `adapt`.

    Returns:
        layer: the map; temperature scaling where the guard found that better;
            or `NoCalibration` if the map was rejected.
        record: keys of `CalibrationRecord` that the fit decides.
        accuracy: weighted accuracy of the model, without the map.
    """
    layer = _layer_of(method, network, options)
    num_units = rows.logits.shape[-1]
    if options.unguarded != "auto":  # which has compared it with smaller ones
        warn_if_few(
            layer,
            rows.num_samples,
            max(2, num_units),
            rows.effective_num_samples,
        )
    as_it_was = AsItWas(layer)
    objective = resolve_objective(options.objective, layer)
    scaling = options.class_loss_scaling
    begin = time.perf_counter()
    adapt_map(layer, rows, objective=objective, class_loss_scaling=scaling)
    taken = time.perf_counter() - begin
    before = measured(None, rows, of_label=options.of_label)
    found = before_and_after(before, layer, rows)
    likelihood = scaling is None and is_likelihood(objective, num_units)
    worse = is_worse(layer, objective, likelihood, found, before.accuracy == 1)
    verdict = Verdict(skipped="not fitted by likelihood")
    if likelihood:
        verdict = _judge(layer, rows, options, taken, worse)
    not_compared = worse and (verdict.skipped or verdict.returned == MAP)
    if not_compared:
        verdict = Verdict(returned=UNCHANGED)
    elif verdict.skipped:
        _warn_of_skipped(layer, rows, verdict)
    name = method if isinstance(method, str) else type(layer).__name__
    fitted = dict(layer.record or {})
    if worse or verdict.returned != MAP:
        warn_of_rejection(layer, found, verdict, worse)
        as_it_was.restore()
        layer = NoCalibration(name=free_name(network, UNCHANGED))
    if verdict.returned == TEMPERATURE:
        name = "temperature"
        layer = as_map(name, free_name(network, name))
        adapt(layer, rows)
        fitted = dict(layer.record)
        found = before_and_after(before, layer, rows)
    prior = source_prior(layer, rows)
    if verdict.returned != UNCHANGED and not options.of_label:
        warn_of_changes(layer, found, rows, options)
        if scaling is None and options.unguarded != "auto":
            warn_of_class_bias(layer, prior, rows)
    record = {
        "method": name,
        "objective": objective.title,
        "objective_arguments": objective.arguments(),
        "class_loss_scaling": getattr(scaling, "normalization", scaling),
        "num_samples": rows.num_samples,
        "num_classes": max(2, num_units),
        "rejected": verdict.returned == UNCHANGED,
        "guard": None if not_compared else verdict.to_dict(),
        "fitted": fitted,
        "ece_num_bins": NUM_BINS,
        **{key: found[key] for key in ERRORS},
        **prior,
    }
    return layer, record, before.accuracy


def _layer_of(method, network, options):
    if isinstance(method, CalibrationLayer):
        return method
    name = free_name(network, method)
    return as_map(method, name, affine=options.affine)


def _judge(layer, rows, options, taken, worse):
    if options.unguarded:
        return Verdict(skipped=options.unguarded)
    left = options.seconds_left()
    return judge(layer, rows, seconds=left, taken=taken, out=worse)


def _warn_of_skipped(layer, rows, verdict):
    if verdict.failure is not None:
        warn_of_no_comparison(layer, verdict)
    elif verdict.skipped == TOO_FEW and rows.group is not None:
        warn_of_few_groups(layer, rows.group)


def is_worse(layer, objective, likelihood, found, all_right=False):
    """Whether a map raised the error that it was fitted to lower.

    That is the NLL for a fit by likelihood, and the ECE for a fit by
    calibration error. For any other fit both must have risen.

    Args:
        layer: the map; its class says in `fitted_by` how it is fitted.
        objective: an `Objective`, however it was passed in.
        likelihood: whether that is the negative log-likelihood, and classes
            are not weighted.
        found: what `before_and_after` returned.
        all_right: whether the model is right on all samples, which then ask for
            sharper predictions alone: they are no judge of a map, or of one in
            a mixture, that is soft for the sake of others.
    """
    maps = getattr(layer, "maps", [layer])
    if all_right and any(each.averages for each in maps):
        return False
    nll = found["nll_after"] > found["nll_before"] + ROUNDING
    ece = found["ece_after"] > found["ece_before"] + ROUNDING
    if _is_calibration_error(objective):
        return ece
    # What hedges for other samples costs something on its own.
    scaled = (layer.record or {}).get("scale_factor", 1.0) < 1
    hedged = layer.averages or scaled
    if likelihood and layer.fitted_by == "likelihood" and not hedged:
        return nll
    return nll and ece


def _is_calibration_error(objective):
    if isinstance(objective, LossObjective):
        loss = objective.loss
        return isinstance(loss, SoftBinnedECE) and loss.primary is None
    return objective.of_confidence


def is_likelihood(objective, num_units):
    """Whether an objective is the plain negative log-likelihood.

    Args:
        objective: an `Objective`, however it was passed in.
        num_units: int, of the head. With several, binary cross-entropy is the
            sum of the losses of as many sigmoids, which is another one.
    """
    if isinstance(objective, LossObjective):
        loss = objective.loss
        changed = getattr(loss, "label_smoothing", 0)
        changed = changed or getattr(loss, "ignore_class", None) is not None
        kinds = CROSS_ENTROPIES
        if num_units == 1:
            kinds += (keras.losses.BinaryCrossentropy,)
        return isinstance(loss, kinds) and not changed
    return objective.is_plain_nll


class Measured(NamedTuple):
    """Predictions for the calibration samples, and their mean errors.

    Attributes:
        nll: in nats.
        ece: with `NUM_BINS` bins.
        accuracy: from 0 to 1.
        confidence: probability that the ECE compares, `(n,)`.
        predicted: class of each row, `(n,)`.
        of_label: see `measured`.
    """

    nll: float
    ece: float
    accuracy: float
    confidence: np.ndarray
    predicted: np.ndarray
    of_label: bool


def measured(layer, rows, expected=None, of_label=False):
    """`Measured` of the model with a map, or with `None` as it came.

    Of classes with the same score, that of `expected` is the predicted one.
    The ECE is that of the predicted class, and with `of_label` that of class 1,
    as `MultilabelCalibrationError` has it.
    """
    scores, labels, weights = rows.logits, rows.labels, rows.weights
    confidence = np.empty(len(labels), "float32")
    predicted = np.empty(len(labels), "int32")
    correct, losses = np.empty((2, len(labels)))
    for part in row_blocks(*scores.shape, TENSOR_BLOCK):
        z = scores[part] if layer is None else as_array(layer(scores[part]))
        losses[part], probabilities = losses_and_probabilities(z, labels[part])
        confidence[part], correct[part] = top_label(labels[part], probabilities)
        if of_label:
            confidence[part] = probabilities[:, 1]
        # Unequal scores may have probabilities that are rounded to be equal.
        z = at_least_two(z)
        own = predicted[part] = z.argmax(axis=-1)
        if expected is not None:
            each, wanted = np.arange(len(z)), expected[part]
            ties = z[each, wanted] == z[each, own]
            predicted[part] = np.where(ties, wanted, own)
    return Measured(
        float(np.average(losses, weights=weights)),
        expected_calibration_error(
            confidence,
            labels if of_label else correct,
            NUM_BINS,
            weights=weights,
        ),
        float(np.average(correct, weights=weights)),
        confidence,
        predicted,
        of_label,
    )


def before_and_after(before, layer, rows):
    """NLL and ECE on the calibration data, without and with a map.

    `ece_noise` is the ECE that the model with the map would have on average if
    it were perfectly calibrated; `num_changed` is the number of predictions
    that the map changes.

    Args:
        before: `Measured` without a map.
        layer: the map.
        rows: `CalibrationRows`.
    """
    after = measured(layer, rows, before.predicted, before.of_label)
    changed = (before.predicted != after.predicted)[rows.first_rows]
    noise = normal_floor(
        after.confidence[rows.first_rows], rows.sample_weights, NUM_BINS
    )
    return {
        "nll_before": before.nll,
        "nll_after": after.nll,
        "ece_before": before.ece,
        "ece_after": after.ece,
        "ece_noise": noise,
        "num_changed": int(changed.sum()),
    }


def warn_of_changes(layer, found, rows, options):
    """Warn of an ECE that rose, and of predictions that changed.

    Args:
        layer: the map.
        found: of `before_and_after`.
        rows: `CalibrationRows`.
        options: `Options`.
    """
    # Several labels have no objective but the likelihood.
    objectives = () if options.of_label else layer.objectives
    scaling = options.class_loss_scaling
    warn_if_ece_rose(layer, found, found["ece_noise"], objectives, scaling)
    if options.preserve_accuracy is None:
        changed = found["num_changed"]
        warn_if_predictions_changed(layer, changed, rows.num_samples)


@contextlib.contextmanager
def passes_shown(verbose, unit):
    """In the block, a progress bar counts what a solver has read."""
    bar = ProgressBar(None, verbose, unit_name=unit)
    with each_pass(bar.step):
        yield
    bar.finish()
