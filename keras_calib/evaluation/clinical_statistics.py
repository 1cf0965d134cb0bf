"""The numbers of the clinical panel among those of `calibration_errors`."""

from collections.abc import Collection

import numpy as np

from keras_calib._progress import ProgressBar
from keras_calib._warning import warn
from keras_calib.evaluation.calibration_index import SmoothGaps
from keras_calib.evaluation.clinical_panel import panel_of_predictions
from keras_calib.evaluation.clinical_panel import refuse_soft_outcomes
from keras_calib.evaluation.events import sort_events
from keras_calib.evaluation.grid_bootstrap import SCALES
from keras_calib.evaluation.named_errors import INDICES
from keras_calib.evaluation.replicates import Resamples
from keras_calib.inputs.predictions import Predictions


def clinical_statistics(
    data: Predictions,
    names: Collection[str],
    num_resamples: int,
    *,
    num_draws: int,
    scales: bool = False,
    seed: int,
    verbose: int | str,
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Numbers of the panel of the second of two classes, and their resamples.

    A resample is a data set of its own, with all rows of a unit as often as it
    was drawn, and the fits and the curve are made anew. Thus the intervals also
    hold for several rows of a patient, whose standard errors the panel has too
    small.

    Args:
        data: `Predictions` of two classes.
        names: out of `named_errors.CLINICAL`.
        num_resamples: int.
        num_draws: int, sets of labels for the floor of the ICI.
        scales: whether the indices have their grid bootstrap, in a second
            axis, as `replicates` has it for `GRID`.
        seed: int.
        verbose: as `calibration_errors` has it.

    Returns:
        `found, floor`: dict of `(1 + num_resamples,)` arrays, NaN where a
        number does not exist, and what the panel has of the floor of the ICI.

    Raises:
        ValueError: if labels are soft.
    """
    if not names:
        return {}, {}
    refuse_soft_outcomes(data)
    panel, reasons = panel_of_predictions(
        data, names=names, num_draws=num_draws, seed=seed
    )
    for reason in reasons:
        warn(f"`calibration_errors`: {reason}.")
    scaled = [n for n in names if scales and num_resamples and n in INDICES]
    plain = [name for name in names if name not in scaled]
    values = [[panel[name] for name in plain]]
    gaps = SmoothGaps(_events(data)) if scaled else None
    at_scales = [gaps.indices_at(SCALES)] if gaps else []
    resamples = Resamples(data, num_resamples, seed, 0, 0)
    bar = ProgressBar(num_resamples, verbose, unit_name="resample")
    for rng, size in resamples.chunks():
        for rows in resamples.drawn_rows(rng, size):
            drawn = data.part(rows)
            if gaps:
                at_scales.append(gaps.indices_at(SCALES, _events(drawn)))
            if plain:
                drawn, _ = panel_of_predictions(drawn, names=plain, num_draws=0)
                values.append([drawn[name] for name in plain])
            bar.step()
    bar.finish()
    found = dict(zip(plain, np.array(values).T, strict=True))
    for name in scaled:
        scaled_values = np.array(at_scales)[:, :, INDICES.index(name)]
        value = np.full((len(at_scales), 1), panel[name])
        found[name] = np.concatenate([value, scaled_values], axis=1)
    floor = {k: v for k, v in panel.items() if "_floor" in k}
    return found, floor


def _events(data):
    return sort_events(data.by_class[1], data.labels == 1, data.weights)
