"""Whether a fitted map is the best of three on data it was not fitted to.

The map is compared with temperature scaling and with the model as it came, by
the mean negative log-likelihood of calibration samples that are left out:

- three folds for most maps;
- for maps that are mixed with temperature scaling (`shrinkage="auto"`), the
  five folds of their own fit;
- for averages of ridge fits (`regularization="auto"`), which contain
  temperature scaling, the folds of temperature scaling and the log evidence
  `E` of the average against it: NLL = NLL of temperature scaling - E / n.
  Evidence takes rows for independent; with groups there are folds instead.

Few samples often tell nothing about the temperature, and most networks need
one. So the model as it came must be better by 3 nats in all samples together,
odds of 20 to 1. Without this, 50 samples of a network that needs a temperature
of 2 lost 0.01 nats more; with it, a model that is calibrated loses 0.001 more
at 200 samples.
"""

import dataclasses

import numpy as np

from keras_calib.calibration._held_out import folds
from keras_calib.calibration._held_out import groups_from_zero
from keras_calib.calibration._held_out import held_out_losses
from keras_calib.calibration._held_out import held_out_tempered
from keras_calib.calibration._held_out import losses_of_folds
from keras_calib.calibration._held_out import losses_of_model
from keras_calib.calibration._held_out import subsample
from keras_calib.layers import TemperatureScaling
from keras_calib.layers._base import ROUNDING

NUM_FOLDS = 3
# Elements of logits above which a part of the rows decides.
MAX_SIZE = 1 << 26
# Log of the prior odds against a model that needs no calibration.
PRIOR = 3.0
MAP, TEMPERATURE = "map", "temperature_scaling"
MODEL = "no_calibration"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the guard found.

    Attributes:
        returned: which of the three is best: "map", "temperature_scaling" or
            "no_calibration".
        held_out_nll: mean NLL of each of the three, in nats; empty if they
            were not compared.
        by: `"folds"` or `"evidence"`, how the map was judged.
        skipped: why they were not compared, or `None`.
    """

    returned: str = MAP
    held_out_nll: dict[str, float] = dataclasses.field(default_factory=dict)
    by: str | None = None
    skipped: str | None = None

    def to_dict(self):
        """The keys that say something, as JSON values."""
        if self.skipped is not None:
            return {"skipped": self.skipped}
        known = dataclasses.asdict(self)
        del known["skipped"]
        return known


def judge(layer, rows, *, seconds=np.inf, taken=0.0):
    """Compare a fitted map with temperature scaling and with the model.

    Args:
        layer: `CalibrationLayer`, fitted to `rows` by likelihood.
        rows: `CalibrationRows`.
        seconds: what is left of the time.
        taken: seconds that the fit took.

    Returns:
        `Verdict`.
    """
    if len(rows.labels) != rows.num_samples:
        return Verdict(skipped="soft labels")
    mixed = losses_of_folds(layer, rows)
    by_evidence = rows.group is None and "log_evidence" in (layer.record or {})
    known = mixed is not None or by_evidence
    if taken * (NUM_FOLDS - 1) * (not known) > seconds:
        return Verdict(skipped="max_seconds")
    part = subsample(rows, max(1, MAX_SIZE // rows.logits.shape[1]))
    fold = folds(part, NUM_FOLDS)
    if fold is None:
        return Verdict(skipped=f"fewer than {NUM_FOLDS} samples or groups")

    def mean(losses):
        return float(np.average(losses, weights=part.weight))

    try:
        if mixed is not None:
            part = rows
            found, plain = map(mean, mixed)
        else:
            start = (layer.record or {}).get("temperature", 1.0)
            plain, rich = held_out_tempered(part, fold, start, layer)
            plain = mean(plain)
        if by_evidence:
            # The average contains temperature scaling.
            gain = layer.record["log_evidence"] / rows.num_samples
            found = plain - max(0.0, gain)
        elif type(layer) is TemperatureScaling:
            found = plain
        elif mixed is None:
            if rich is None:
                rich = held_out_losses(layer, part, fold)
            found = mean(rich)
    except (ArithmeticError, TypeError, ValueError) as error:
        return Verdict(skipped=f"{type(error).__name__}: {error}")
    model = mean(losses_of_model(part))
    means = {MAP: found, TEMPERATURE: plain, MODEL: model}
    num_units = groups_from_zero(part).max() + 1
    handicap = {MAP: -ROUNDING, TEMPERATURE: 0.0, MODEL: PRIOR / num_units}
    # Of equals the first; NaN is never best.
    best = min(
        means,
        key=lambda name: np.nan_to_num(
            means[name] + handicap[name], nan=np.inf
        ),
    )
    return Verdict(best, means, "evidence" if by_evidence else "folds")
