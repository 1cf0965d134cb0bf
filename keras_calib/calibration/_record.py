"""What `kc.calibrate` did, as the dictionary that a model's file carries."""

import dataclasses
from typing import Any

from keras_calib.version import __version__

# The `logits_source` of a model that gives probabilities. It is "logits" for
# one that gives these, and "before softmax" or "before sigmoid" where an
# activation was taken off.
LOG_OF_PROBABILITIES = "log of probabilities"
# A temperature that is off by more than this part is another one than that of
# the record, and not the same in half precision.
ROUNDING = 0.01
# Left out where they are `None`.
OPTIONAL = "trials", "source_prior", "source_num_samples", "class_bias"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CalibrationRecord:
    """Every key of `kc.calibration_record`, written once.

    All values are JSON values. NLL is in nats, ECE in `[0, 1]`; both are
    weighted means over the calibration data.

    Attributes:
        method: name of the method, or the class of a layer that was passed in.
        objective: name of what the fit minimizes.
        objective_arguments: the settings of the objective.
        class_loss_scaling: `None`, or the normalization of the class losses.
        num_samples: number of samples with a weight above 0 and a valid label.
        num_classes: number of classes; 2 for one sigmoid unit; with
            `multi_label=True` the number of labels.
        rejected: whether the fitted layer made the model worse, so that the
            new model predicts what the old one predicts.
        guard: which of three is expected to be best on new samples:
            `returned` (`"map"`, `"temperature_scaling"` or
            `"no_calibration"`), `held_out_nll`, the NLL expected of each, and
            whether folds or evidence judged the layer (`by`); or why nothing
            was compared (`skipped`). The NLL of a layer is `None` if the
            calibration data rejected it, or if it cannot be fitted to a part of
            them (`failure` has the error). `None` if the calibration data
            rejected the layer and nothing was compared. With `multi_label=True`
            a list of these, `by_label`.
        logits_source: `"logits"`, `"before softmax"`, `"before sigmoid"` or
            `"log of probabilities"`.
        nll_before: NLL of the model.
        nll_after: NLL with the fitted layer, also if it was rejected; with
            `multi_label=True` that of the new model. There NLL and ECE are
            means over labels, weighted by their numbers of samples.
        ece_before: ECE of the model; with `multi_label=True` that of the
            probability of each label, as `MultilabelCalibrationError` has it.
        ece_after: ECE with the fitted layer, also if it was rejected.
        ece_num_bins: number of bins of equal width of both ECEs.
        source_prior: mean prediction of each class on the calibration data,
            with the layer; `kc.adjust_prior` starts from it. Not with
            `multi_label=True`.
        source_num_samples: how many independent samples of equal weight tell as
            much about it, `(sum w)^2 / sum w^2`; of groups, with groups. Not
            with `stream=True`.
        class_bias: largest difference between it and the frequency of a class
            in the calibration data, in standard errors.
        fingerprint: hash of the inputs, which does not depend on their order.
        keras_calib_version: version of the library that wrote the record.
        prior_correction: after `kc.adjust_prior` only: its own record.
        trials: for `method="auto"` only: for each candidate its held-out
            `nll`, `seconds`, `weight` and the `standard_error` of the
            difference to temperature scaling; or why it was `skipped`. With few
            samples also its `expected_nll`, if the mixture is right, or why
            it was `not_compared`; and which other map it is the `same_as`.
            The model as it is also has the `temperature_log_evidence` against
            it, which decides its weight.
        fitted: what the layer's `solve` found; its keys stand beside the
            others.

            - `temperature`, `temperature_quartiles`, `mixture`, `slope`,
              `slopes`, `negative_scales`, `intercept`, `curvature`, `a`, `b`,
              `c`, `margin`: parameters;
            - `num_bins`, `num_knots`, `num_levels`, `per_class`, `family`,
              `smooth_targets`: settings;
            - `temperature_scaling_probability`, `log_evidence`, `scale_width`,
              `bias_width`, `matrix_width`, `dispersion`, `scale_factor`: what
              `regularization="auto"` found, see `solvers.evidence.Average`;
            - `log_temperature_width`, `uniform_weight`: what
              `BayesianTemperatureScaling` found;
            - `mixture_weight`: that of the layer beside temperature scaling,
              with `shrinkage="auto"`; `mixture_weights`: of each layer, with
              `mixture=True`, and `maps`: what each layer's fit found;
            - `kept`, `reason`, `num_images`, `num_groups` (with `groups`),
              `num_held_out_images`, `epochs`, `best_epoch`, `held_out_nll`,
              `held_out_nll_temperature`, `standard_error`: of
              `"local_temperature"`, see `LocalTemperatureScaling`;
            - `num_labels`, `num_positive`, `num_negative`,
              `nll_before_by_label` and so on, with `multi_label=True`; other
              numbers are then lists, too;
            - `num_passes`: how often the fit read the data, with
              `stream=True`; once more for the errors;
            - `stop_reason`, `iterations`, `largest_gradient`,
              `objective_value`: how the solver ended;
            - `absent_classes`, `num_absent_classes`: classes without a sample;
            - `scaling_slope`, `scaling_span`, `class_weights`,
              `class_weights_change`, `class_loss_reduction`: with
              `class_loss_scaling` only.
    """

    method: str
    objective: str = "nll"
    objective_arguments: dict[str, Any] = dataclasses.field(
        default_factory=dict
    )
    class_loss_scaling: str | None = None
    num_samples: int
    num_classes: int
    rejected: bool = False
    guard: dict[str, Any] | None
    logits_source: str
    nll_before: float
    nll_after: float
    ece_before: float
    ece_after: float
    ece_num_bins: int
    fingerprint: str
    keras_calib_version: str = __version__
    source_prior: list[float] | None = None
    source_num_samples: float | None = None
    class_bias: float | None = None
    trials: dict[str, dict[str, Any]] | None = None
    fitted: dict[str, Any] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """All keys on one level, without optional ones that are `None`."""
        # Not `asdict`, which would copy the lists in `fitted`.
        known = dict(vars(self))
        fitted = known.pop("fitted")
        for name in OPTIONAL:
            if known[name] is None:
                del known[name]
        # Both have `nll_after`: the one here is that of the model's outputs.
        return {**fitted, **known}


def fused_records(model: Any) -> dict[str | int | None, dict[str, Any]]:
    """Records of maps that are in the weights of a layer, by output.

    The key is `None` for a model with one output. No file keeps them.
    """
    return getattr(model, "_fused_records", {})


def keep_fused_records(
    model: Any, records: dict[str | int | None, dict[str, Any]]
) -> None:
    """Have `fused_records` return these."""
    if records:
        model._fused_records = records


def has_another_fit(layer: Any) -> bool:
    """Whether a layer has another temperature than that of its record."""
    said = (getattr(layer, "record", None) or {}).get("temperature")
    is_now = getattr(layer, "temperature", None)
    if not (isinstance(said, float) and isinstance(is_now, float)):
        return False
    return abs(is_now - said) > ROUNDING * said


def name_of_map(record):
    """The method and its temperature, or the parts of a mixture.

    The temperature of a map with `mixture_weight` is that of the other part.
    """
    name = record["method"].replace("_", " ")
    if "mixture_weights" in record:
        weights = record["mixture_weights"].items()
        parts = [f"{w:.2f} {part.replace('_', ' ')}" for part, w in weights]
        name = f"mixture of {' + '.join(parts)}"
    temperature = record.get("temperature")
    if isinstance(temperature, list):
        low, high = min(temperature), max(temperature)
        if "mixture" in record:
            least, most = min(record["mixture"]), max(record["mixture"])
            name = f"{least:.2f} to {most:.2f} {name} + temperature"
        name = f"{name} {low:.3g} to {high:.3g} for {len(temperature)} labels"
    elif temperature is not None:
        found = f"{temperature:.3g}"
        if "mixture_weight" in record:
            own = record["mixture_weight"]
            return f"{own:.2f} {name} + {1 - own:.2f} temperature {found}"
        if record.get("kept") == "temperature":  # and no local ones
            return f"temperature {found} for all pixels ({record['reason']})"
        is_all = name in ("temperature", "TemperatureScaling")
        name = f"{name} {found}" if is_all else f"{name} (temperature {found})"
    return name


def summary(record):
    """One line: the map, and ECE and NLL before and after."""
    name = name_of_map(record)
    if record["rejected"]:
        name += " rejected, the model is unchanged; with the map"
    errors = ", ".join(
        f"{error.upper()} {record[f'{error}_before']:.3f} -> "
        f"{record[f'{error}_after']:.3f}"
        for error in ("ece", "nll")
    )
    return f"{name}: {errors} on {record['num_samples']:,} samples"
