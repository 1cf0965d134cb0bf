"""Whether a fitted map is expected to be the best of three on new data.

The map is compared with temperature scaling by the mean negative log-likelihood
of calibration samples that are left out:

- three folds for most maps, each fitted with at most as many Newton steps as
  all samples took;
- for maps that are mixed with temperature scaling (`shrinkage="auto"`), the
  five folds of their own fit;
- for averages of ridge fits (`regularization="auto"`) nothing is fitted again:
  their record has the log evidence `E` of the average against temperature
  scaling, in which `n` samples count as `n / phi`, and NLL = NLL of temperature
  scaling - phi E / n. Evidence takes rows for independent; with groups there
  are three folds instead.

A map that cannot be fitted without a fold is out, and so is one that raises the
NLL of the calibration data themselves.

Temperature scaling is compared with the model as it came by the log evidence
`E_T` of a temperature with the prior `log T ~ N(0, 0.5^2)`: NLL of temperature
scaling = NLL of the model - E_T / n, where samples of unequal weight count as
`n = (sum w)^2 / sum w^2`. Few samples often tell nothing about the
temperature, and most networks need one. So the model stays as it is only if
`E_T` is below -2 nats.

The width 0.5 and the 2 nats were chosen on three files of predictions, each as
it is, calibrated, sharper and softer, with 50 to 500 samples. Three folds were
tried instead: one of them may hold most of the errors, and then a model that
needs a temperature was left as it was. In the mean of the draws of one file and
number of samples, the NLL was up to 0.0017 above that of temperature scaling
with folds, and 0.0001 with evidence. With groups there are folds, and the model
must be better by 3 nats in all groups together.

The likeliest temperature of few samples can be too low, where hardly one of
them is wrong. So the model also stays as it is where the temperature is
expected to raise the NLL (`expected_gain`). On ten development files, each as
it is, calibrated and softer, this lowers the NLL with 50 samples by 0.017,
0.019 and 0.015 on average (`examples/results/few_samples.md`).
"""

import dataclasses

import numpy as np

from keras_calib.calibration._held_out import folds
from keras_calib.calibration._held_out import groups_from_zero
from keras_calib.calibration._held_out import held_out_losses
from keras_calib.calibration._held_out import held_out_tempered
from keras_calib.calibration._held_out import losses_of_folds
from keras_calib.calibration._held_out import losses_of_model
from keras_calib.calibration._held_out import starts_tempered
from keras_calib.calibration._held_out import subsample
from keras_calib.calibration._no_calibration import UNCHANGED
from keras_calib.inputs.arrays import at_least_two
from keras_calib.layers import TemperatureScaling
from keras_calib.layers._base import ROUNDING
from keras_calib.solvers.temperature import BOUNDS
from keras_calib.solvers.temperature import fit_temperature
from keras_calib.solvers.temperature import log_evidence
from keras_calib.solvers.temperature_posterior import expected_gain

NUM_FOLDS = 3
# Elements of logits above which a part of the rows decides.
MAX_SIZE = 1 << 26
# Log of the prior odds against a model that needs no calibration, judged by
# folds and by evidence.
PRIOR = 3.0
PRIOR_OF_EVIDENCE = 2.0
TOO_FEW = f"fewer than {NUM_FOLDS} samples or groups"
MAP, TEMPERATURE = "map", "temperature_scaling"
# What a fit raises that cannot be done.
FAILURES = ArithmeticError, TypeError, ValueError


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the guard found.

    Attributes:
        returned: which of the three is best: "map", "temperature_scaling" or
            "no_calibration".
        held_out_nll: mean NLL of each of the three, in nats: the model's on
            the calibration data, the others' as expected on new samples, with
            infinity for a map that is out; empty if they were not compared.
        by: `"folds"` or `"evidence"`, how the map was judged.
        skipped: why they were not compared, or `None`.
        failure: the error of the fit to a part of the samples, or `None`.
    """

    returned: str = MAP
    held_out_nll: dict[str, float] = dataclasses.field(default_factory=dict)
    by: str | None = None
    skipped: str | None = None
    failure: str | None = None

    def to_dict(self):
        """The keys that say something, as JSON values."""
        if self.skipped is not None:
            return {"skipped": self.skipped}
        nll = {
            name: value if np.isfinite(value) else None
            for name, value in self.held_out_nll.items()
        }
        known = {"returned": self.returned, "held_out_nll": nll, "by": self.by}
        if self.failure is not None:
            known["failure"] = self.failure
        return known


def judge(layer, rows, *, seconds=np.inf, taken=0.0, out=False):
    """Compare a map, temperature scaling and the model by `_expected_nll`.

    Args:
        layer: `CalibrationLayer`, fitted to `rows` by likelihood.
        rows: `CalibrationRows`.
        seconds: what is left of the time.
        taken: seconds that the fit took.
        out: whether the map is out, so that only the others are compared.

    Returns:
        `Verdict`.
    """
    if len(rows.labels) != rows.num_samples:
        return Verdict(skipped="soft labels")
    mixed = losses_of_folds(layer, rows)
    by_evidence = rows.group is None and "log_evidence" in (layer.record or {})
    is_temperature = _is_temperature(layer)
    known = out or mixed is not None or by_evidence or is_temperature
    # Each of the three fits has two thirds of the samples.
    if not known and taken * (NUM_FOLDS - 1) > seconds:
        return Verdict(skipped="max_seconds")
    part = subsample(rows, max(1, MAX_SIZE // rows.logits.shape[1]))
    fold = folds(part, NUM_FOLDS)
    if fold is None:
        return Verdict(skipped=TOO_FEW)
    plain = rich = failure = None
    try:
        if mixed is not None and not out:
            part = rows
            rich, plain = (_mean(losses, rows) for losses in mixed)
        elif rows.group is not None or not known:
            plain, rich, failure = _held_out(
                layer, part, fold, alone=out or is_temperature
            )
        ahead = 0.0 if rich is None else plain - rich
        if out:
            ahead = -np.inf
        elif by_evidence:
            # The average contains temperature scaling.
            phi = layer.record.get("dispersion", 1.0)
            nats = phi * layer.record["log_evidence"]
            ahead = max(0.0, nats / rows.num_samples)
        means, prior = _expected_nll(part, layer, plain, ahead)
    except FAILURES as error:
        failure = _words_of(error)
        return Verdict(skipped=failure, failure=failure)
    best = _best(means, prior)
    if best == MAP and failure is not None:
        return Verdict(skipped=failure, failure=failure)
    judged = by_evidence or ((out or is_temperature) and rows.group is None)
    by = "evidence" if judged else "folds"
    return Verdict(best, means, by, failure=failure)


def _expected_nll(rows, layer, plain, ahead):
    """Mean NLL of the three on new samples, and the prior against the model.

        model:                  on the calibration data
        temperature scaling:    model - E_T / n, or with groups `plain`
        map:                    temperature scaling - ahead

    Where the temperature is expected to raise the NLL, by `g`:

        temperature scaling:    model + g
        map:                    with the `g` of its own scale, minus ahead

    Args:
        rows: `CalibrationRows`.
        layer: the map.
        plain: held-out NLL of temperature scaling; unused without groups.
        ahead: how far the NLL of the map is below that of temperature scaling,
            by its evidence or on held-out samples.
    """
    model = _mean(losses_of_model(rows), rows)
    own = temperature = plain
    if rows.group is not None:
        prior = PRIOR / (groups_from_zero(rows).max() + 1)
    else:
        n = rows.effective_num_samples
        evidence = evidence_of_temperature(rows, _temperature_of(layer))
        own = temperature = model - evidence / n
        prior = PRIOR_OF_EVIDENCE / n
        # An average over temperatures is what is expected.
        gain = None if layer.averages else expected_gains(rows, layer)
        if gain is not None and gain[0] < 0:
            temperature, own, prior = model - gain[0], model - gain[1], 0.0
    means = {MAP: own - ahead, TEMPERATURE: temperature, UNCHANGED: model}
    return {name: float(mean) for name, mean in means.items()}, prior


def _best(means, prior):
    """The least of: map - ROUNDING, temperature scaling, model + prior."""
    handicap = {MAP: -ROUNDING, TEMPERATURE: 0.0, UNCHANGED: prior}
    values = [means[name] + handicap[name] for name in means]
    # Of equals the first; NaN is never best.
    return list(means)[np.nan_to_num(values, nan=np.inf).argmin()]


def _is_temperature(layer):
    """Whether there is nothing to compare with temperature scaling.

    An average over temperatures is temperature scaling with a hedge, for
    samples that are too few to tell the two apart. A mixture without a weight
    is temperature scaling, too.
    """
    weight = (layer.record or {}).get("mixture_weight")
    return type(layer) is TemperatureScaling or layer.averages or weight == 0


def _mean(losses, rows):
    return float(np.average(losses, weights=rows.weights))


def _held_out(layer, rows, fold, alone):
    """Held-out NLL of temperature scaling and of a map.

    Args:
        layer: the map.
        rows: `CalibrationRows`.
        fold: from `folds`.
        alone: whether temperature scaling alone is asked for.

    Returns:
        plain: of temperature scaling.
        rich: of the map; infinite if it cannot be fitted to the samples outside
            of a fold, and `None` if nobody asks for it.
        failure: why it cannot, or `None`.
    """
    start = _temperature_of(layer)
    if alone:
        return _mean(held_out_tempered(rows, fold, start)[0], rows), None, None
    try:
        plain, rich = held_out_tempered(rows, fold, start, layer)
        if rich is None:
            # Classes that fewer rows separate would take parameters ever
            # further, for a loss on other rows that is poor long before.
            steps = (layer.record or {}).get("iterations")
            rich = held_out_losses(layer, rows, fold, most_steps=steps)
    except FAILURES as error:
        plain, _ = held_out_tempered(rows, fold, start)
        return _mean(plain, rows), np.inf, _words_of(error)
    return _mean(plain, rows), _mean(rich, rows), None


def _words_of(error):
    return f"{type(error).__name__}: {error}"


def expected_gains(rows, layer):
    """`expected_gain` of the likeliest temperature, and with a map's scale.

    `None` where enough samples tell the temperature.
    """
    logits, labels = at_least_two(rows.logits), rows.labels
    temperature = _temperature_of(layer)
    if type(layer) is not TemperatureScaling and not starts_tempered(layer):
        start = _within_bounds(temperature)
        fit = fit_temperature(
            logits, labels, rows.weights, start=start, before=False
        )
        temperature = fit.temperature
    weights = rows.full_weights
    weights = weights * (rows.effective_num_samples / weights.sum())
    factors = 1.0, (layer.record or {}).get("scale_factor", 1.0)
    return expected_gain(logits, labels, weights, temperature, factors)


def evidence_of_temperature(rows, start=1.0):
    """Log evidence that the logits need a temperature, in nats.

    Samples that are all right speak for ever sharper predictions, which
    temperature scaling does not take; they tell nothing of it here.
    """
    logits, labels = at_least_two(rows.logits), rows.labels
    chosen = logits[np.arange(len(labels)), labels]
    if (chosen == logits.max(axis=1)).all():
        return 0.0
    start = _within_bounds(start)
    return log_evidence(logits, labels, rows.weights, start=start)


def _temperature_of(layer):
    """That of its record, for a fit to start from."""
    return (layer.record or {}).get("temperature", 1.0)


def _within_bounds(temperature):
    return float(np.clip(temperature, *BOUNDS))
