"""The clinical panel of a report: two classes, the second is the event."""

from collections.abc import Sequence
from typing import Any

from keras_calib.evaluation.clinical_panel import panel_of_predictions
from keras_calib.inputs.predictions import Predictions

# Sets of labels for the floor of the ICI.
FLOOR_DRAWS = 200
HEADS = ["quantity", "value", "of a calibrated model", "definition"]
# Name, ideal value, definition; `None` where the ideal is the noise floor.
ROWS = (
    ("observed_expected_ratio", "1", "events / sum of their probabilities"),
    (
        "calibration_in_the_large",
        "0",
        "share of events minus mean probability",
    ),
    (
        "calibration_intercept",
        "0",
        "of the logistic fit with the slope 1 (offset)",
    ),
    (
        "calibration_slope",
        "1",
        "of the joint logistic fit; below 1: risks too extreme",
    ),
    ("joint_intercept", "0", "of the joint logistic fit"),
    (
        "spiegelhalter_z",
        "0",
        "above 0: the Brier score is worse than the probabilities promise",
    ),
    (
        "integrated_calibration_index",
        None,
        "ICI: mean distance of the probability from a loess curve",
    ),
    ("e50", "", "median of the same distance"),
    ("e90", "", "its .9 quantile"),
    ("emax", "", "its maximum"),
)
TITLES = {
    "observed_expected_ratio": "O/E",
    "integrated_calibration_index": "ICI",
    "spiegelhalter_z": "Spiegelhalter's z",
    "emax": "Emax",
}
P_VALUES = {
    "calibration_slope": "slope_p",
    "spiegelhalter_z": "spiegelhalter_p",
}


def measure_panel(
    data: Predictions, thresholds: Sequence[float] | None, seed: int
) -> dict[str, Any] | None:
    """The panel of two classes, with `notes` in words; else `None`.

    Without `thresholds` the net benefit is at those of `clinical_panel`.
    """
    if data.num_classes != 2 or data.targets is not None:
        return None
    options: dict[str, Any] = {}
    if thresholds is not None:
        options["thresholds"] = thresholds
    panel, notes = panel_of_predictions(
        data, num_draws=FLOOR_DRAWS, seed=seed, **options
    )
    if panel["num_clipped"]:
        notes.append(
            f"{panel['num_clipped']:,} probabilities of 0 or 1 were clipped "
            "for the logistic fits"
        )
    if data.unit is not None:
        notes.append(
            "rows of an image, a text or a cluster depend on each other: "
            "standard errors and p-values are too small"
        )
    return {**panel, "notes": notes}


def panel_rows(panel: dict[str, Any]) -> list[list[str]]:
    """The rows of the table, a cell for each of `HEADS`."""
    rows = [
        [
            "Events",
            f"{panel['event_rate']:.4f}",
            f"{panel['mean_probability']:.4f}",
            "share of rows with class 1, and their mean probability",
        ]
    ]
    for name, ideal, definition in ROWS:
        title = TITLES.get(name, name.replace("_", " ").capitalize())
        ideal = _floor(panel, name) if ideal is None else ideal
        rows.append([title, _value(panel, name), ideal, definition])
    for threshold, value in panel["net_benefit"].items():
        everybody = panel["net_benefit_of_all"][threshold]
        rows.append(
            [
                f"Net benefit at {threshold:g}",
                f"{value:.4f}",
                "",
                f"of treating from this probability on; all: {everybody:.4f}",
            ]
        )
    return rows


def _floor(panel, name):
    mean, low, high = (
        panel[f"{name}_floor{end}"] for end in ("", "_low", "_high")
    )
    return "" if mean != mean else f"{mean:.4f} ({low:.4f} to {high:.4f})"


def _value(panel, name):
    value = panel[name]
    if value != value:
        return "undefined"
    text = f"{value:.4f}"
    if f"{name}_se" in panel:
        text += f" ± {panel[f'{name}_se']:.4f}"
    if name in P_VALUES:
        p = panel[P_VALUES[name]]
        text += " (p < 0.001)" if p < 0.001 else f" (p = {p:.3f})"
    return text
