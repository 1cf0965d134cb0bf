"""`kc.check`: does a model fit its loss, its metrics and its labels?"""

import contextlib
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib._check_compiled import BINARY_LOSSES
from keras_calib._check_compiled import ROWS
from keras_calib._check_compiled import SPARSE
from keras_calib._check_compiled import about_one
from keras_calib._check_compiled import accuracies_of
from keras_calib._check_compiled import class_axis_of
from keras_calib._check_compiled import is_any
from keras_calib._check_compiled import is_ours
from keras_calib._check_compiled import metrics_of
from keras_calib._check_compiled import tells_logits
from keras_calib._check_compiled import titled_losses
from keras_calib._check_labels import about_accuracies
from keras_calib._check_labels import about_labels
from keras_calib._check_labels import about_multi_label
from keras_calib._typing import ArrayLike
from keras_calib.calibration._checks import check_model
from keras_calib.calibration._preprocessed import preprocessed_batches
from keras_calib.calibration._preprocessed import taken_apart
from keras_calib.data.batches import for_model
from keras_calib.data.predict import may_mask
from keras_calib.data.predict import outputs_and_mask
from keras_calib.inputs import rules
from keras_calib.inputs.arguments import require
from keras_calib.inputs.arrays import as_array
from keras_calib.keras_graph.applied_twice import TWICE
from keras_calib.keras_graph.applied_twice import is_applied_twice
from keras_calib.keras_graph.class_axis import class_axis
from keras_calib.keras_graph.endings import ending
from keras_calib.keras_graph.endings import has_graph
from keras_calib.keras_graph.endings import output_kind
from keras_calib.keras_graph.endings import refuse_several_sigmoids
from keras_calib.losses._batch_history import BatchHistory
from keras_calib.losses._batch_history import batch_history
from keras_calib.metrics._multilabel_calibration_error import (
    MultilabelCalibrationError,
)
from keras_calib.models import SampleHistoryModel


def check(
    model: keras.Model,
    x: Any,
    y: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
) -> list[str]:
    """Run one batch and say what does not fit together.

    Model, loss, metrics, labels, weights and masks are looked at together,
    eagerly, where values can be seen: a wrong `from_logits` or a forgotten
    `ignore_class` gives wrong numbers or NaN in compiled code, without an
    error. Nothing is trained or changed.

    Args:
        model: a built `keras.Model` with one output. Its loss and metrics are
            looked at if it is compiled. For a task of KerasHub with a
            preprocessor `x` is raw, as in `kc.calibrate`.
        x: inputs, if `y` is given; otherwise a dataset, generator or list of
            `(x, y)` or `(x, y, sample_weight)`, of which the first batch is
            taken.
        y: labels: class ids, or one-hot rows.
        sample_weight: `None`, or weights for arrays `x`, `y`.

    Returns:
        The findings, a list of strings, which are printed, too. An empty list
        says that nothing was found.

    Raises:
        ValueError: if `model` is not a model, or there is no batch.

    Example:
        >>> import keras, numpy as np, keras_calib as kc
        >>> model = keras.Sequential([keras.Input((2,)),
        ...                           keras.layers.Dense(3, "softmax")])
        >>> model.compile("sgd", kc.losses.FocalLoss(from_logits=True))
        >>> x = np.random.default_rng(0).normal(size=(8, 2))
        >>> findings = kc.check(model, x, np.arange(8) % 3)
        - FocalLoss has `from_logits=True`, but the model gives probabilities: \
pass `from_logits=False`.
        >>> model.compile("sgd", kc.losses.FocalLoss())
        >>> kc.check(model, x, np.arange(8) % 3)
        Nothing found.
        []
    """
    plain, preprocessor = taken_apart(model)
    check_model(plain)
    compiled = titled_losses(model), [*metrics_of(model)]
    batch = _first_batch(preprocessor, x, y, sample_weight)
    findings = list(dict.fromkeys(_findings(plain, *compiled, *batch)))
    for finding in findings:
        print(f"- {finding}")
    if not findings:
        print("Nothing found.")
    return findings


def _first_batch(preprocessor, *data):
    batch = next(iter(preprocessed_batches(preprocessor, *data)), None)
    if batch is None:
        raise ValueError(
            "There is nothing to check: the data has no batch. Pass at least "
            "one sample."
        )
    x, y, weights = batch
    weights = None if weights is None else as_array(weights)
    return for_model(x), as_array(y), weights


def _findings(model, losses, metrics, x, y, sample_weight):
    try:
        outputs, mask = outputs_and_mask(model, x)
    except Exception as error:
        yield f"The model cannot run on the batch: {_first_line(error)}"
        return
    objects = losses + metrics
    if not np.isfinite(outputs).all():
        yield (
            f"{(~np.isfinite(outputs)).sum()} of {outputs.size} outputs are "
            "NaN or infinite: look at the inputs, the learning rate and half "
            "precision."
        )
        return
    known = class_axis(model)
    axis, found = _axis(known, objects, y, outputs)
    if found:
        yield from found
        return
    try:
        layout = rules.layout(y.shape, outputs.shape, axis)
    except ValueError as error:
        yield str(error)
        return
    if outputs.ndim > 1:
        outputs = np.moveaxis(outputs, axis, -1)
    multi_label = _is_multi_label(model, objects, y, outputs)
    stated = any(tells_logits(each) for _, each in objects)
    kind, about = _kind(model, outputs, known is not None, multi_label, stated)
    yield from about
    if is_applied_twice(model):
        yield f"{TWICE} Leave one out."
    yield from _about_masks(model, outputs, mask)
    weights, found = _weights(sample_weight, mask, layout)
    yield from found
    if multi_label:
        found = list(about_multi_label(y, objects, weights, axis))
    else:
        found = list(about_labels(y, layout, objects, weights, axis))
    yield from found
    if not (layout.one_hot or layout.single or multi_label):
        everywhere, _ = _weights(None, mask, layout)
        for kept, weighted in ((everywhere, False), (weights, True)):
            titles = accuracies_of(model, weighted)
            yield from about_accuracies(y, layout, kept, titles)
    said = set()
    for title, each in objects:
        for finding in about_one(title, each, kind, layout, multi_label):
            said.add(title)
            yield finding
    if not found:
        losses = [one for one in losses if one[0] not in said]
        with _history_of(model):
            yield from _about_values(losses, outputs, y, weights, axis)


def _axis(known, objects, y, outputs):
    """The class axis that losses or labels have, and findings.

    Args:
        known: the axis that the graph shows, or `None`.
        objects: list of `(title, loss or metric)`.
        y: labels.
        outputs: those of the model.
    """
    reader, axis = class_axis_of(objects)
    if axis is None:
        reader = "what the labels fit"
        axis = -1 if known is None or not _fits(y, outputs, known) else known
    if known in (None, axis % max(1, outputs.ndim)):
        return axis, []
    return axis, [
        f"The graph of the model has the classes on axis {known}, and {reader} "
        f"has them on axis {axis}. Pass `axis={known}` to all losses and "
        "metrics, or end the model with the classes on the last axis: a "
        "softmax over it, or `keras.layers.Permute`."
    ]


def _fits(y, outputs, axis):
    try:
        rules.layout(y.shape, outputs.shape, axis)
    except ValueError:
        return False
    return True


def _is_multi_label(model, objects, y, outputs):
    """Whether labels do not exclude each other, and nothing says they do."""
    if y.shape != outputs.shape or outputs.shape[-1] == 1:
        return False
    named = [
        isinstance(each, MultilabelCalibrationError) for _, each in objects
    ]
    for multi, (_, each) in zip(named, objects, strict=True):
        if not multi and (is_ours(each) or is_any(each, (*SPARSE, *ROWS))):
            return False
    try:
        refuse_several_sigmoids(model)
    except ValueError:
        return True
    return any(named) or _of_several_labels(model, objects, y)


def _of_several_labels(model, objects, y):
    """Whether a binary loss gets logits, and rows of several labels or none."""
    binary = any(is_any(each, BINARY_LOSSES) for _, each in objects)
    if not binary or ending(model)[0] == "softmax":
        return False
    rows = y.reshape(-1, y.shape[-1])
    return np.isin(rows, (0, 1)).all() and (rows.sum(axis=1) != 1).any()


def _kind(model, outputs, axis_known, multi_label, stated):
    """`"logits"`, `"probabilities"`, `"multi-label"` or `None`; findings.

    Where the graph shows the axis of the classes, and it is not the last one,
    what the values sum to on it tells.

    Args:
        model: a `keras.Model`.
        outputs: those of the batch, with the classes last.
        axis_known: whether the graph shows the axis of the classes.
        multi_label: whether labels do not exclude each other.
        stated: whether a loss or metric says what it reads. It is compared
            with the values, which the graph need not explain then.
    """
    scores = outputs.reshape(-1, outputs.shape[-1] if outputs.ndim > 1 else 1)
    scores = scores.astype("float64")
    width = scores.shape[-1]
    inside = scores.min() >= 0 and scores.max() <= 1
    kind, findings = output_kind(model), []
    if width > 1 and not multi_label:
        try:
            refuse_several_sigmoids(model)
        except ValueError as error:
            return "multi-label", [str(error)]
        off = np.abs(scores.sum(axis=-1) - 1).max()
        exact = rules.EXACT if outputs.dtype.itemsize > 2 else rules.OFF
        seen = "probabilities" if inside and off <= exact else "logits"
    elif kind == "probabilities" and ending(model)[0] == "softmax":
        return None, [
            "The model gives 1 for every sample: a softmax over a single unit "
            "does. Use a sigmoid, or two units."
        ]
    else:
        seen = None if inside else "logits"
    proven = seen == "probabilities" or not inside
    if kind is None and not axis_known and not (stated and proven):
        why = "its last layer is not one that proves it"
        if not has_graph(model):
            why = "a subclassed model has no graph"
        looks = {
            "probabilities": "Rows that are non-negative and sum to 1 are "
            "probabilities.",
            "logits": "Rows that are not in [0, 1] or do not sum to 1 are no "
            "probabilities: logits, or several sigmoid units (multi-label).",
            None: "One unit between 0 and 1 may be either.",
        }[seen]
        findings.append(
            "Whether the outputs are logits or probabilities cannot be told "
            f"from the model: {why}. {looks} Pass `from_logits=` to everything "
            "that takes it."
        )
    elif None not in (kind, seen) and seen != kind:
        findings.append(
            f"The graph of the model ends as if it gave {kind}, but its "
            f"outputs, from {scores.min():.6g} to {scores.max():.6g}, are "
            f"{'no probabilities' if seen == 'logits' else 'probabilities'}."
        )
    return seen or kind, findings


def _about_masks(model, outputs, mask):
    if mask is not None and not mask.any():
        yield "Keras' mask is false everywhere: no element of the batch counts."
    if mask is None and outputs.ndim > 2 and may_mask(model):
        yield (
            "A layer makes a mask, and the outputs have none: a layer after it "
            "does not pass it on (`supports_masking`), and padding counts like "
            "any other element. Give padding a weight of 0, or `ignore_class`."
        )


def _weights(sample_weight, mask, layout):
    """Weights of rows, `(n,)`, and findings."""
    rows = np.ones(layout.lead)
    findings = []
    if sample_weight is not None:
        try:
            shape = rules.shape_per_row(sample_weight.shape, layout.lead)
            require(
                sample_weight.dtype.kind in "biuf",
                "Sample weights must be numbers.",
                dtype=str(sample_weight.dtype),
            )
            weights = sample_weight.astype("float64").reshape(shape)
            rules.check_weights(weights.reshape(-1))
            rows = rows * weights
        except ValueError as error:
            findings.append(str(error))
    if mask is not None:
        shape = rules.shape_per_row(mask.shape, layout.lead, "Masks")
        rows = np.where(mask.reshape(shape), rows, 0.0)
    if rows.size and not rows.any():
        findings.append("All weights are 0: no sample of the batch counts.")
    return rows.reshape(-1), findings


def _about_values(losses, outputs, y, weights, axis):
    """Run the losses on the batch."""
    lead = outputs.shape[:-1] if outputs.ndim > 1 else outputs.shape
    scores = np.moveaxis(outputs, -1, axis) if outputs.ndim > 1 else outputs
    for title, loss in losses:
        try:
            value = as_array(_value(loss, y, scores, weights.reshape(lead)))
        except Exception as error:
            yield f"{title} fails on the batch: {_first_line(error)}"
            continue
        if not np.isfinite(value.astype("float64")).all():
            yield f"{title} is NaN or infinite on the batch."


def _history_of(model):
    """Where CRL finds a history, an empty one, if the model keeps one."""
    if isinstance(model, SampleHistoryModel):
        return batch_history(BatchHistory())
    return contextlib.nullcontext()


def _value(loss, y, scores, weights):
    if isinstance(loss, keras.losses.Loss):
        return loss(y, ops.convert_to_tensor(scores), sample_weight=weights)
    if y.ndim == scores.ndim - 1 and scores.shape[-1] == 1:
        y = y[..., None]  # as Keras does for a function
    return loss(ops.convert_to_tensor(y), ops.convert_to_tensor(scores))


def _first_line(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) or type(error).__name__
