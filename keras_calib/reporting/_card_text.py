"""The words of a model card: metadata, sections and tables."""

import json
import math
import re
from typing import Any

from keras_calib._documents import escape
from keras_calib._documents import markdown_table
from keras_calib._documents import to_json
from keras_calib.calibration._record import name_of_map
from keras_calib.keras_private import flatten_layers
from keras_calib.layers._conformal_sets import ConformalSets
from keras_calib.layers._decision import DecisionLayer
from keras_calib.layers._meta_cal import MetaCal
from keras_calib.layers._risk_threshold import RiskThreshold
from keras_calib.reporting._definitions import HEADLINE
from keras_calib.reporting._measure import NUM_BINS
from keras_calib.reporting._render import interval
from keras_calib.reporting._render import number
from keras_calib.reporting._render import why_below

TAGS = ["calibration", "keras-calib"]
USE = """```python
{imports}

model = keras.saving.load_model("model.keras")  # or "hf://user/name"
model.predict(x)
```"""
NAMES_OF_THREE = {
    "map": "the fitted layer",
    "temperature_scaling": "temperature scaling",
    "no_calibration": "the model as it came",
}
LIMITS = [
    "Probabilities are calibrated on average, for data like the calibration "
    "data. They are not calibrated for each group or each sample, nor after a "
    "change of the inputs or of the class frequencies.",
    "The ECE of a perfectly calibrated model is not 0 on a finite number of "
    "samples: compare it with its noise floor.",
    "Training the network further undoes the calibration: fit it again.",
]
NO_TEST = (
    "Nothing was measured on test data. The figures after calibration are of "
    "the data that the layer was fitted to; on new data they are worse as a "
    "rule."
)
NO_PROMISE = (
    "What the decision layers promise holds for samples that are drawn like "
    "those they were fitted to, and for no single class or sample."
)


def metadata(name, measured, task, dataset):
    """What stands above the page; see https://huggingface.co/docs/hub.

    Args:
        name: that of the model.
        measured: `Measured`, or `None`.
        task: see `model_card`.
        dataset: see `model_card`.

    Returns:
        dict of strings, numbers, lists and dicts.
    """
    found: dict[str, Any] = {"library_name": "keras", "tags": list(TAGS)}
    if task is not None:
        found["pipeline_tag"] = task
    if measured is None:
        return found
    metrics = []
    for key, short in HEADLINE.items():
        row = measured.metrics[key]
        if not math.isfinite(row["value"]):
            continue
        title = short
        if row["floor"] is not None:
            title = f"{short} (noise floor {row['floor']:.4f})"
        value = round(row["value"], 6)
        metrics.append({"type": key, "name": title, "value": value})
    dataset = dataset or "test data"
    kind = re.sub("[^a-z0-9]+", "-", dataset.lower()).strip("-")
    result = {
        # The Hub requires a task, and has this one for all others.
        "task": {"type": task or "other"},
        "dataset": {"name": dataset, "type": kind or "test-data"},
        "metrics": metrics,
    }
    found["model-index"] = [{"name": name, "results": [result]}]
    return found


def body(calibrated, record, report, measured, others, dataset):
    """The page without its metadata.

    Args:
        calibrated: the model.
        record: its record.
        report: `Report`, or `None`.
        measured: `Measured` of `calibrated`, or `None`.
        others: list of `Measured` of the other models.
        dataset: see `model_card`.
    """
    layers = flatten_layers(calibrated)
    decisions = [each for each in layers if isinstance(each, DecisionLayer)]
    ours = any(type(x).__module__.startswith("keras_calib.") for x in layers)
    unit = "classes"
    if "num_labels" in record:
        unit = "labels"
    lines = [
        f"# {escape(calibrated.name)}",
        "",
        f"A Keras classifier of {record['num_classes']} {unit}, calibrated on "
        f"{record['num_samples']:,} samples ({escape(name_of_map(record))}) "
        f"with keras_calib {record['keras_calib_version']}.",
        "",
        USE.format(imports="import keras" + "\nimport keras_calib" * ours),
        "",
        *_calibration(record),
    ]
    if measured is not None:
        lines += _test_data(report, measured, others, dataset)
    if decisions:
        lines += ["", "## Decisions", ""]
        lines += [f"- {_promise(layer)}" for layer in decisions]
    limits = LIMITS + [NO_TEST] * (measured is None)
    limits += [NO_PROMISE] * bool(decisions)
    lines += ["", "## Limits", "", *(f"- {each}" for each in limits)]
    lines += ["", "## Calibration record", "", *_as_json(record)]
    return "\n".join(lines) + "\n"


def _calibration(record):
    """What was calibrated, on what, and NLL and ECE before and after."""
    objective = record["objective"]
    settings = record["objective_arguments"]
    if settings:
        words = ", ".join(f"{key}={each}" for key, each in settings.items())
        objective = f"{objective} ({words})"
    rows = [
        ["layer", name_of_map(record)],
        ["fitted by", objective],
        ["logits", record["logits_source"]],
        ["calibration samples", f"{record['num_samples']:,}"],
        ["fingerprint of the calibration data", record["fingerprint"]],
    ]
    if record["class_loss_scaling"] is not None:
        rows.insert(
            2, ["class-wise loss scaling", record["class_loss_scaling"]]
        )
    lines = ["## Calibration", "", *markdown_table(["what", "value"], rows), ""]
    heads = ["on the calibration data", "NLL", f"ECE ({record['ece_num_bins']}"]
    heads[-1] += " bins)"
    lines += markdown_table(
        heads,
        [
            [when, *(number(record[f"{key}_{when}"]) for key in ("nll", "ece"))]
            for when in ("before", "after")
        ],
    )
    sentences = [*_guard(record), *_prior(record)]
    return lines + ([""] if sentences else []) + sentences


def _guard(record):
    """Whether the layer was kept, and why."""
    guard = record["guard"]
    if record["rejected"]:
        yield (
            "The fitted layer was **rejected**: the model predicts what it "
            "predicted before."
        )
    if guard is None or "by_label" in guard:
        return
    if "trials" in record:
        yield (
            "The layer was chosen by the NLL of left-out samples, among others "
            "that the record names (`trials`), temperature scaling and the "
            "model as it came."
        )
        return
    if "skipped" in guard:
        yield (
            "The layer was not compared with temperature scaling and with the "
            f"model as it came ({escape(guard['skipped'])})."
        )
        return
    figures = ", ".join(
        f"{value:.4f} for {NAMES_OF_THREE[key]}"
        for key, value in guard["held_out_nll"].items()
        if value is not None  # a layer that is out
    )
    yield (
        f"NLL expected on new samples, judged by {guard['by']}: {figures}. The "
        f"model has {NAMES_OF_THREE[guard['returned']]}."
    )


def _prior(record):
    """What `kc.adjust_prior` did."""
    correction = record.get("prior_correction")
    if correction is not None:
        how = "passed in"
        if correction["estimated"]:
            how = "estimated from unlabeled samples"
        yield (
            "The probabilities are corrected for other class frequencies, "
            f"which were {how}."
        )


def _test_data(report, measured, others, dataset):
    """What the report found."""
    where = f" ({escape(dataset)})" if dataset else ""
    lines = ["", "## On test data", ""]
    lines += [f"{measured.num_rows:,} samples{where}.", ""]
    sentences = [*report.verdicts[measured.name], *report.comparison]
    lines += [f"- {escape(each)}" for each in sentences]
    heads = ["metric", *(each.name for each in others), measured.name]
    rows = []
    for key, short in HEADLINE.items():
        row = measured.metrics[key]
        values = [each.metrics[key]["value"] for each in others]
        cells = [*map(number, [*values, row["value"]])]
        rows.append([short, *cells, interval(row), number(row["floor"])])
    lines += ["", *markdown_table([*heads, "95 % interval", "floor"], rows), ""]
    return [
        *lines,
        f"Interval and noise floor are those of {escape(measured.name)}; the "
        "floor is the mean of a perfectly calibrated model with these "
        f"confidences. ECE over {NUM_BINS} bins of equal width."
        + why_below(measured.metrics[key] for key in HEADLINE),
        "",
        "![Reliability diagram](reliability.png)",
    ]


def _promise(layer):
    """What a decision layer does, in a sentence or two."""
    name = f"`{escape(layer.name)}`"
    record = layer.record
    if record is None:
        return f"{name} ({type(layer).__name__}) is not fitted."
    [words] = [w for kind, w in PROMISES.items() if isinstance(layer, kind)]
    return f"{name} {words(layer, record)}"


def _of_sets(layer, record):
    return (
        f"gives sets of classes ({layer.method.upper()}) that contain the "
        f"label with a probability of at least {layer.coverage:.4g}, over "
        "calibration sets and test samples together. Threshold from "
        f"{record['num_samples_for_threshold']:,} samples, on which a set has "
        f"{record['mean_size']:.2f} classes on average."
    )


def _of_threshold(layer, record):
    return (
        "gives the predicted class, or -1 where it is not sure enough: with a "
        f"confidence of {layer.confidence:.4g} at most {layer.target_risk:.4g} "
        "of the accepted predictions are wrong. Of "
        f"{record['num_samples_for_threshold']:,} samples it accepted "
        f"{record['accepted']:,}, {record['errors']:,} of them wrong."
    )


def _of_meta_cal(layer, record):
    promise = (
        "rejects a correct prediction with a probability of at most "
        f"{layer.max_miscoverage}"
    )
    if layer.max_miscoverage is None:
        promise = (
            f"accepts predictions of an accuracy of at least "
            f"{layer.min_accuracy}, with a confidence of {layer.confidence}"
        )
    return (
        f"{promise}. Of {record['num_samples']:,} samples it accepted "
        f"{record['accepted']:,}, {record['accepted_correct']:,} of them right."
    )


PROMISES = {
    ConformalSets: _of_sets,
    RiskThreshold: _of_threshold,
    MetaCal: _of_meta_cal,
}


def _as_json(record):
    """The record as JSON, a key per line."""
    lines = [
        f"  {json.dumps(key)}: {json.dumps(value)}"
        for key, value in to_json(dict(record)).items()
    ]
    return ["```json", "{", *",\n".join(lines).split("\n"), "}", "```"]
