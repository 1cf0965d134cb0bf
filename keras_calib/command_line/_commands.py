"""What each command of `keras-calib` does; each returns what is printed."""

import dataclasses
import json
import pathlib
import warnings

import keras
import numpy as np

from keras_calib._documents import markdown_table
from keras_calib._documents import to_json
from keras_calib._whole_file import whole_file
from keras_calib.calibration import calibrate as calibrate_model
from keras_calib.calibration import calibration_record
from keras_calib.command_line._classes import places_of
from keras_calib.command_line._errors import errors_of
from keras_calib.command_line._sources import check_logits_known
from keras_calib.command_line._sources import inputs_of
from keras_calib.command_line._sources import names_of
from keras_calib.command_line._sources import one_input_of
from keras_calib.command_line._sources import read_models_or_predictions
from keras_calib.command_line._sources import refuse_text
from keras_calib.command_line._sources import remember_scores
from keras_calib.evaluation.calibration_errors import errors_of_predictions
from keras_calib.evaluation.named_errors import METRICS
from keras_calib.evaluation.named_errors import defined_for
from keras_calib.inputs.arrays import class_probabilities
from keras_calib.reporting import report as make_report
from keras_calib.reporting._read import read_all
from keras_calib.reporting._render import number
from keras_calib.reporting._render import require_packages
from keras_calib.reporting._render import title_of
from keras_calib.shift import evaluate as evaluate_shift

REPORTS = (".html", ".md", ".json")
FIGURES = (".svg", ".png", ".pdf")
SHIFTS = (".md", ".json", *FIGURES)


def evaluate(options) -> str:
    """Every metric of each file or model, beside its noise floor."""
    models, data = read_models_or_predictions(
        options.files, options.from_logits
    )
    if models:
        sources = [
            (name, model, inputs_of(model, data[0]), data[0])
            for name, model in models.items()
        ]
    else:
        names = names_of([each.path for each in data])
        sources = [
            (name, each.scores, None, each)
            for name, each in zip(names, data, strict=True)
        ]
    errors = {
        name: _errors(name, given, x, each, options)
        for name, given, x, each in sources
    }
    if options.json:
        return _as_json(errors)
    heads = ["metric"]
    for name in errors:
        heads += [name, "noise floor"]
    rows = [
        [title_of(metric)]
        + [
            number(found.get(key))
            for found in errors.values()
            for key in (metric, f"{metric}_floor")
        ]
        for metric in METRICS
        if any(metric in found for found in errors.values())
    ]
    counted = ", ".join(
        f"{name}: {found['num_rows']:,} rows" for name, found in errors.items()
    )
    return "\n".join([counted, "", *markdown_table(heads, rows)])


def _errors(name, given, x, data, options):
    """The errors of one model or of one array of predictions."""
    from_logits = data.from_logits
    if isinstance(given, keras.Model):
        from_logits = options.from_logits
        check_logits_known(given, from_logits)
    settings = {
        "sample_weight": data.sample_weight,
        "groups": None,
        "from_logits": from_logits,
        "ignore_class": options.ignore_class,
        "batch_size": None,
        "verbose": _verbose(options),
    }
    with errors_of(data.path):
        rows = read_all({name: given}, x, data.labels, settings)[name]
    found = errors_of_predictions(
        rows,
        defined_for(rows.num_classes),
        floor=True,
        seed=options.seed,
        verbose=_verbose(options),
    )
    return {"num_rows": len(rows.labels), **found}


def report(options) -> str:
    """Write a report, and print its verdicts."""
    output = _output(options, REPORTS)
    models, data = read_models_or_predictions(
        options.files, options.from_logits
    )
    first = data[0]
    data = [first, *(_of_same_rows(each, first) for each in data[1:])]
    if models:
        for each in models.values():
            check_logits_known(each, options.from_logits)
        given, from_logits = models, options.from_logits
        x = one_input_of(models, first)
    else:
        names = names_of([each.path for each in data])
        x, from_logits = None, all(each.from_logits for each in data)
        scores = [
            each.scores if from_logits else _probabilities(each)
            for each in data
        ]
        given = dict(zip(names, scores, strict=True))
    # Several files of predictions are named by what they hold.
    with errors_of(first.path if len(data) == 1 else ""):
        made = make_report(
            given,
            x,
            first.labels,
            sample_weight=first.sample_weight,
            groups=first.groups,
            class_names=first.class_names,
            from_logits=from_logits,
            ignore_class=options.ignore_class,
            seed=options.seed,
            verbose=_verbose(options),
        )
    made.save(output)
    if options.json:
        return _as_json({"output": str(output), "verdicts": made.verdicts})
    lines = list(made.comparison)
    for name, sentences in made.verdicts.items():
        lines += [f"{name}: {sentence}" for sentence in sentences]
    return "\n".join([*lines, f"Written: {output}"])


def calibrate(options) -> str:
    """Write a calibrated model, or a map of predictions as a model."""
    output = _output(options, (".keras",))
    models, data = read_models_or_predictions(
        options.files, options.from_logits
    )
    if len(models or data) > 1:
        raise ValueError("One model, or one file of predictions, is wanted.")
    if models:
        [model] = models.values()
        x, from_logits = inputs_of(model, data[0]), options.from_logits
    else:
        model, x = _model_of_scores(data[0])
        from_logits = data[0].from_logits
    with errors_of(data[0].path), warnings.catch_warnings():
        if not models:
            # Scores without a network have no softmax to be found.
            warnings.filterwarnings("ignore", "No final softmax was found")
        calibrated = calibrate_model(
            model,
            x,
            data[0].labels,
            data[0].sample_weight,
            method=options.method,
            groups=data[0].groups,
            from_logits=from_logits,
            ignore_class=options.ignore_class,
            max_seconds=options.max_seconds,
            seed=options.seed,
            verbose=_verbose(options),
        )
    if not models:
        remember_scores(calibrated, data[0])
    with whole_file(output) as place:
        calibrated.save(place)
    record = calibration_record(calibrated)
    if options.json:
        return _as_json({"output": str(output), "record": record})
    return f"Written: {output}"


def shift(options) -> str:
    """Accuracy and calibration of models on corrupted images."""
    output = _output(options, SHIFTS) if options.output else None
    models, data = read_models_or_predictions(
        options.files, options.from_logits
    )
    if not models:
        raise ValueError("Models and a file with their images are wanted.")
    if data[0].x is None:
        raise ValueError(f"{data[0].path}: it has no images `x`.")
    for what in ("sample_weight", "groups"):
        if getattr(data[0], what) is not None:
            raise ValueError(
                f"{data[0].path}: corrupted images all count alike. Leave out "
                f"its {what}."
            )
    for each in models.values():
        refuse_text(each, data[0])
        check_logits_known(each, options.from_logits)
    if output is not None and output.suffix in FIGURES:
        require_packages("A figure", "matplotlib")
    with errors_of(data[0].path):
        result = evaluate_shift(
            models,
            data[0].x,
            data[0].labels,
            corruptions=options.corruptions,
            severities=options.severities,
            seed=options.seed,
            value_range=tuple(options.value_range),
            from_logits=options.from_logits,
            verbose=_verbose(options),
        )
    if output is not None:
        _save_shift(result, output)
    if options.json:
        return _as_json(result.to_dict())
    text = result.to_markdown()
    return f"{text}\nWritten: {output}" if output else text.rstrip()


def _save_shift(result, output):
    """Write the tables, or the figure of the ECE."""
    with whole_file(output) as place:
        if output.suffix == ".md":
            place.write_text(result.to_markdown(), encoding="utf-8")
        elif output.suffix == ".json":
            place.write_text(_as_json(result.to_dict()) + "\n")
        else:
            result.plot().savefig(place)


def _model_of_scores(data):
    """A model that gives what it gets, and its inputs, `(n, ..., units)`."""
    inputs = keras.Input(data.scores.shape[1:], name="scores")
    outputs = keras.layers.Identity(name="scores_as_they_are")(inputs)
    return keras.Model(inputs, outputs), data.scores


def _of_same_rows(data, first):
    """A file of the rows of the first one, its classes in the same order.

    Raises:
        ValueError: for other classes, labels, weights or groups.
    """
    if data.class_names and first.class_names:
        data = _in_order_of(first.class_names, data)
    for what in ("labels", "sample_weight", "groups"):
        both = (getattr(each, what) for each in (data, first))
        if what == "labels":
            both = map(_as_ids, both)
        if not _are_equal(*both):
            raise ValueError(
                f"{data.path}: its {what} are not those of {first.path}."
            )
    return data


def _as_ids(labels):
    """Class ids of a column, or of one-hot rows; others as they are."""
    labels = np.asarray(labels)
    if labels.ndim != 2:
        return labels
    if labels.shape[1] == 1:
        return labels[:, 0]
    one_hot = ((labels == 0) | (labels == 1)).all() and labels.sum(axis=1) == 1
    return labels.argmax(axis=1) if np.all(one_hot) else labels


def _are_equal(values, others):
    """Whether two arrays, or `None`, are the same; NaN is a missing value."""
    kinds = {np.asarray(each).dtype.kind for each in (values, others)}
    return np.array_equal(values, others, equal_nan=kinds == {"f"})


def _in_order_of(class_names, data):
    """A table with its columns of scores in the order of these classes."""
    own = data.class_names
    places = places_of(class_names, own) or {}
    order = [places[name] for name in class_names if name in places]
    if sorted(order) != list(range(len(own))):
        raise ValueError(
            f"{data.path}: its classes, {own}, are not those of the first "
            f"file, {class_names}."
        )
    labels = data.labels.copy()
    for place, class_id in enumerate(order):
        labels[data.labels == class_id] = place
    return dataclasses.replace(
        data, scores=np.take(data.scores, order, axis=1), labels=labels
    )


def _probabilities(data):
    """Logits and probabilities, side by side, are all probabilities."""
    return class_probabilities(data.scores, data.from_logits)


def _output(options, suffixes):
    """The path to write to, before any work is done.

    Raises:
        ValueError: for another suffix, a missing folder, or an input's path.
    """
    path = pathlib.Path(options.output)
    if path.suffix not in suffixes:
        raise ValueError(f"{path}: the suffix must be {', '.join(suffixes)}.")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no such folder.")
    if path.resolve() in [pathlib.Path(p).resolve() for p in options.files]:
        raise ValueError(f"{path}: it is read, and would be overwritten.")
    return path


def _verbose(options):
    return 0 if options.quiet else "auto"


def _as_json(values):
    """JSON, with `null` for NaN and `"Infinity"` for infinite numbers."""
    return json.dumps(to_json(values), indent=2)
