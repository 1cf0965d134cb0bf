"""What decisions by a confidence cost: risk by coverage, net benefit."""

import numpy as np

from keras_calib.evaluation.events import Events
from keras_calib.evaluation.events import running


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
    bins = events.tie_bins
    weight = np.asarray(bins.weight, "float64")[::-1]
    kept = running(weight)[1:]
    wrong = running(weight - bins.hits[::-1])[1:]
    return kept / kept[-1], np.maximum(wrong, 0.0) / kept


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
