"""What decisions by a confidence cost: risk by coverage, net benefit."""

import numpy as np

from keras_calib.evaluation.events import Events
from keras_calib.evaluation.events import running
from keras_calib.ops.bin_errors import divide

# Sums of shares may miss a limit by their rounding.
ROUNDING = 1e-12


def risk_coverage(events: Events) -> tuple[np.ndarray, np.ndarray]:
    """The risk-coverage curve: errors among the most confident samples.

        coverage = weight of samples with c >= threshold / weight of all
        risk     = weight of errors among them / their weight

    Equal confidences are accepted together.

    Args:
        events: `Events` with one sample at least.

    Returns:
        coverage: ascending, ends at 1, `(num_distinct,)`.
        risk: at each coverage, `(num_distinct,)`.

    Example:
        >>> import numpy as np
        >>> from keras_calib.evaluation.events import sort_events
        >>> events = sort_events(np.array([0.5, 0.7, 0.9]), np.array([0, 1, 1]))
        >>> coverage, risk = risk_coverage(events)
        >>> coverage.round(2).tolist(), risk.round(2).tolist()
        ([0.33, 0.67, 1.0], [0.0, 0.0, 0.33])

    Reference:
        Geifman and El-Yaniv, "Selective Classification for Deep Neural
        Networks", NeurIPS 2017, arXiv:1705.08500, Section 2.
    """
    kept, wrong = _accepted(events)
    return kept / kept[-1], wrong / kept


def area_under_generalized_risk(events: Events) -> np.ndarray:
    """AUGRC: mean over coverages of errors that are accepted.

        AUGRC = int_0^1 E(g) dg
              = (1 - AUROC) a (1 - a) + (1 - a)^2 / 2,  a = accuracy

    `E(g)` is the share of all samples that are accepted at the coverage `g` and
    wrong; inside a run of equal confidences it rises linearly. It is between
    `(1 - a)^2 / 2`, all errors last, and `(1 - a) / 2`, at random.

    Args:
        events: `Events`.

    Returns:
        One value for each replicate, `(...)`; 0 without samples.

    Reference:
        Traub et al., "Overcoming Common Flaws in the Evaluation of Selective
        Classification Systems", NeurIPS 2024, arXiv:2407.01032.
    """
    kept, wrong = _accepted(events)
    before = np.zeros((*kept.shape[:-1], 1))
    step = np.diff(kept, axis=-1, prepend=before)
    sums = wrong + np.concatenate([before, wrong[..., :-1]], axis=-1)
    area = (step * sums).sum(axis=-1) / 2
    return divide(area, kept[..., -1] ** 2)[()]


def coverage_at_risk(
    events: Events, risk: float
) -> tuple[np.ndarray, np.ndarray]:
    """The largest coverage whose selective risk is at most `risk`.

    In the sample: for a threshold that keeps a promise on other samples see
    `kc.layers.RiskThreshold`.

    Args:
        events: `Events`.
        risk: float in [0, 1], share of errors among accepted samples.

    Returns:
        coverage: `(...)`, one for each replicate; 0 if there is none.
        threshold: samples of at least this confidence are accepted; NaN if
            there is none.

    Reference:
        Geifman and El-Yaniv, "Selective Classification for Deep Neural
        Networks", NeurIPS 2017, arXiv:1705.08500, Section 3.
    """
    kept, wrong = _accepted(events)
    total = kept[..., -1:]
    allowed = (wrong <= risk * kept + ROUNDING * total) & (kept > 0)
    count = kept.shape[-1]
    last = count - 1 - allowed[..., ::-1].argmax(axis=-1)
    found = allowed.any(axis=-1)
    share = divide(_at(kept, last), total[..., 0])
    coverage = np.where(found, share, 0.0)
    return coverage[()], np.where(found, _threshold(events, last), np.nan)[()]


def risk_at_coverage(
    events: Events, coverage: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The selective risk where at least a share of the samples is accepted.

    Equal confidences are accepted together, so that the coverage that is
    reached may be larger.

    Args:
        events: `Events`.
        coverage: float in (0, 1], the share.

    Returns:
        risk: `(...)`, one for each replicate; 0 without samples.
        coverage: the one that is reached.
        threshold: samples of at least this confidence are accepted.

    Reference:
        Geifman and El-Yaniv, "Selective Classification for Deep Neural
        Networks", NeurIPS 2017, arXiv:1705.08500, Section 2.
    """
    kept, wrong = _accepted(events)
    total = kept[..., -1:]
    first = (kept >= (coverage - ROUNDING) * total).argmax(axis=-1)
    accepted = _at(kept, first)
    risk = divide(_at(wrong, first), accepted)
    reached = divide(accepted, total[..., 0])
    return risk[()], reached[()], _threshold(events, first)


def _accepted(events):
    """Weight of accepted samples and of errors among them, at ends of ties."""
    bins = events.tie_bins
    weight = np.asarray(bins.weight, "float64")[..., ::-1]
    kept = running(np.broadcast_to(weight, bins.hits.shape))[..., 1:]
    wrong = running(weight - bins.hits[..., ::-1])[..., 1:]
    return kept, np.maximum(wrong, 0.0)


def _at(sums, place):
    """Sums at a place of each replicate."""
    place = np.asarray(place)[..., None]
    return np.take_along_axis(sums, place, axis=-1)[..., 0]


def _threshold(events, place):
    """The confidence of the run of ties at a place, from the most confident."""
    if not len(events):
        return np.full(np.shape(place), np.nan)
    first = events.tie_bins.cuts[:-1][::-1]
    return events.confidence64[first[place]]


def net_benefit(
    events: Events, thresholds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Net benefit of treating those whose probability is high enough.

        model: TP / n - FP / n t / (1 - t),  treated if p >= t
        all:   prevalence - (1 - prevalence) t / (1 - t)

    Treating nobody has net benefit 0.

    Args:
        events: `Events` of the probability of the event, with 1 where it
            happened.
        thresholds: in (0, 1), `(num_thresholds,)`.

    Returns:
        model: net benefit of the model, `(num_thresholds,)`.
        everybody: that of treating everybody.

    Example:
        >>> import numpy as np
        >>> from keras_calib.evaluation.events import sort_events
        >>> events = sort_events(np.array([0.2, 0.8]), np.array([0, 1]))
        >>> model, everybody = net_benefit(events, np.array([0.5]))
        >>> float(model[0]), float(everybody[0])
        (0.5, 0.0)

    Reference:
        Vickers and Elkin, "Decision curve analysis", Medical Decision Making,
        2006; Vickers, van Calster and Steyerberg, 2019.
    """
    # Probabilities may be float32: the threshold is compared in their dtype.
    limits = np.asarray(thresholds).astype(events.confidence.dtype)
    start = np.searchsorted(events.confidence, limits, side="left")
    total = float(events.total)
    hits = (events.hits_below[-1] - events.hits_below[start]) / total
    treated = (events.weights_below[-1] - events.weights_below[start]) / total
    odds = thresholds / (1 - thresholds)
    prevalence = events.hits_below[-1] / total
    everybody = prevalence - (1 - prevalence) * odds
    return hits - (treated - hits) * odds, everybody


def pareto_front(gain: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """The candidates that no other one beats, by ascending gain.

    Args:
        gain: more is better, `(n,)`.
        cost: less is better, `(n,)`.

    Returns:
        Indices of those for which no other has at least as much gain and at
        most as much cost, and one of them better.

    Example:
        >>> import numpy as np
        >>> pareto_front(
        ...     np.array([0.7, 0.8, 0.9]), np.array([0.1, 0.2, 0.15])
        ... ).tolist()
        [0, 2]
    """
    order = np.lexsort((cost, -gain))
    kept: list[int] = []
    for i in order:
        same = kept and (gain[i], cost[i]) == (gain[kept[-1]], cost[kept[-1]])
        if not kept or cost[i] < cost[kept[-1]] or same:
            kept.append(int(i))
    return np.array(kept[::-1])
