"""Models or predictions, with labels, as `Predictions`."""

import keras
import numpy as np

from keras_calib._warning import warn
from keras_calib.calibration._checks import fingerprints_in
from keras_calib.calibration._preprocessed import preprocessed_batches
from keras_calib.calibration._preprocessed import taken_apart
from keras_calib.data.batches import Source
from keras_calib.data.collect import fingerprint_of
from keras_calib.data.collect import hashes_of
from keras_calib.data.collect import run_by_batch
from keras_calib.data.collect import samples_told
from keras_calib.data.order import refuse_shuffled
from keras_calib.inputs.arguments import errors_named
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.predictions import Predictions
from keras_calib.inputs.predictions import read_predictions
from keras_calib.inputs.predictions import relative_weights
from keras_calib.keras_graph.endings import check_one_output
from keras_calib.keras_graph.endings import gives_logits

MOST = 6


def read_all(given, x, y, settings):
    """`Predictions` by name.

    Args:
        given: a model or predictions, or a dict of them by name.
        x: inputs of models, or a dataset.
        y: labels.
        settings: dict of `sample_weight`, `groups`, `from_logits`,
            `ignore_class`, `batch_size` and `verbose`.

    Raises:
        ValueError: if nothing, or more than six came; if labels are missing;
            for bad input; see `read_predictions`.
    """
    if not isinstance(given, dict):
        name = given.name if isinstance(given, keras.Model) else "model"
        given = {name: given}
    if not 1 <= len(given) <= MOST:
        raise ValueError(
            f"A report compares one to {MOST} models. Received: {len(given)}."
        )
    if len({str(name) for name in given}) < len(given):
        raise ValueError(
            f"Names of models must differ as text. Received: {list(given)}."
        )
    models = sum(isinstance(each, keras.Model) for each in given.values())
    if models > 1:
        Source(x, y).refuse_iterators()
    found = {}
    for name, each in given.items():
        with errors_named(name if len(given) > 1 else ""):
            if isinstance(each, keras.Model):
                found[str(name)] = _of_model(each, x, y, **settings)
            else:
                found[str(name)] = _of_array(name, each, x, y, **settings)
    _check_same_rows(found)
    return found


def _of_array(name, scores, x, y, from_logits, batch_size, verbose, **rows):
    if y is None or x is not None:
        raise ValueError(
            f"Predictions need labels, and no inputs. Received: {name!r} of "
            f"type {type(scores).__name__}, x of type {type(x).__name__}, y of "
            f"type {type(y).__name__}. Pass `kc.report(predictions, y=labels)`."
        )
    return read_predictions(y, scores, from_logits=bool(from_logits), **rows)


def _of_model(
    model,
    x,
    y,
    sample_weight,
    groups,
    from_logits,
    ignore_class,
    batch_size,
    verbose,
):
    if x is None:
        raise ValueError(
            "A model needs inputs: pass `kc.report(model, x, y)`, or a dataset "
            "as `x`. Received: x=None."
        )
    if len(getattr(model, "outputs", None) or []) > 1:
        check_one_output(model)
    from_logits = gives_logits(model, from_logits)
    refuse_shuffled(x, groups)
    groups = None if groups is None else as_array(groups)
    # Preprocessing may change labels and weights, too.
    model, preprocessor = taken_apart(model)
    data = preprocessed_batches(
        preprocessor, x, y, sample_weight, batch_size=batch_size
    )
    parts, start = [], 0
    known, hashes = fingerprints_in(model), []
    for inputs, scores, mask, labels, weights in run_by_batch(
        model, data, verbose
    ):
        end = start + len(labels)
        if known:
            hashes.append(hashes_of(inputs, len(labels)))
        with samples_told(start, len(labels)):
            part = read_predictions(
                labels,
                scores,
                weights,
                from_logits,
                ignore_class=ignore_class,
                mask=mask,
                # Weights are relative to those of other batches, too.
                relative=False,
                groups=None if groups is None else groups[start:end],
            )
        parts.append(part)
        start = end
    if groups is not None and len(groups) != start:
        raise ValueError(
            "`groups` must have one id per sample. Received: "
            f"{len(groups)} ids for {start} samples."
        )
    if known and fingerprint_of(hashes) in known:
        warn(
            f"The model {model.name!r} was calibrated on these very samples, "
            "so that it looks better on them than on others. Pass samples that "
            "nothing was fitted to."
        )
    return _joined(parts)


def _joined(parts):
    """The rows of all batches."""
    if not parts:
        raise ValueError("The data is empty. Received: 0 batches.")

    def join(name):
        values = [getattr(part, name) for part in parts]
        if all(value is None for value in values):
            return None
        return np.concatenate(
            [
                _default(name, part) if value is None else value
                for part, value in zip(parts, values, strict=True)
            ]
        )

    return Predictions(
        labels=join("labels"),
        probabilities=join("probabilities"),
        logits=join("logits"),
        targets=join("targets"),
        weights=relative_weights(join("weights")),
        unit=_units_joined(parts),
        units=sum(part.units for part in parts),
        group=join("group"),
    )


def _units_joined(parts):
    """The unit of each row of all batches, numbered on from batch to batch."""
    # A batch of images may be one of void ones, or have a pixel of each.
    if all(part.unit is None for part in parts):
        return None
    starts = np.cumsum([0, *(part.units for part in parts[:-1])])
    return np.concatenate(
        [
            start + (np.arange(part.units) if part.unit is None else part.unit)
            for start, part in zip(starts, parts, strict=True)
        ]
    )


def _default(name, part):
    """What `None` stands for in one batch, where another one has values."""
    if name == "targets":
        return np.eye(part.num_classes)[part.labels]
    return np.ones(len(part.labels))


def _check_same_rows(found):
    """Models can be compared on the same labels only."""
    first_name, first = next(iter(found.items()))
    if not len(first.labels):
        raise ValueError(
            "There is nothing to report. Received: 0 samples with a weight "
            "above 0 and a label that counts."
        )
    for name, each in found.items():
        if not np.array_equal(each.labels, first.labels):
            raise ValueError(
                "All models of a report must be measured on the same labels. "
                f"Received: {len(first.labels)} rows for {first_name!r}, "
                f"{len(each.labels)} others for {name!r}. A dataset must give "
                "its samples in the same order each time it is read."
            )
        if each.num_classes != first.num_classes:
            raise ValueError(
                "All models of a report must have the same classes. Received: "
                f"{first.num_classes} for {first_name!r}, {each.num_classes} "
                f"for {name!r}."
            )
