"""How others cut bins, to reproduce published tables; ours is `"group"`."""

import itertools

import numpy as np

RULES = (
    "group",
    "split",
    "floor",
    "midpoint",
    "quantile",
    "lower_edge",
    "interpolated",
)


def equal_mass_index(confidence, num_bins, weight=None, rule="group"):
    """Index of the equal-mass bin of each confidence.

    The upper edge of bin `j` is the value of rank `ceil(j n / num_bins)`, bins
    are right-closed, and equal values are never separated: the result does not
    depend on the order of the samples. With weights, ranks are sums of weight.

    Other rules, without weights, as released code has them:

    - `"split"`: `np.array_split` of the sorted values (torch-uncertainty);
    - `"floor"`: rank `r` goes to bin `floor(r num_bins / n)` (caltrain);
    - `"midpoint"`: as `"split"`, edges half-way between neighbours
      (uncertainty-calibration);
    - `"quantile"`: edges by `np.quantile`, left-closed (netcal);
    - `"lower_edge"`: the value of rank `round(j n / num_bins)` opens bin `j`
      (uncertainty-metrics, robustness-metrics);
    - `"interpolated"`: edges interpolated between ranks, left-open, so that
      the smallest value gets -1 (focal_calibration, MbLS, ACLS).

    Args:
        confidence: shape `(n,)`, `n` above 0.
        num_bins: int.
        weight: `None`, or sample weights, `(n,)`.
        rule: one of the above, or `"group"`.

    Returns:
        int, `(n,)`.
    """
    if rule not in RULES:
        raise ValueError(f"`rule` must be one of {RULES}. Received: {rule!r}.")
    n = len(confidence)
    order = np.argsort(confidence, kind="stable")
    ordered = confidence[order]
    if rule == "group":
        if weight is None:
            rank = np.arange(1, n + 1, dtype="float64")
        else:
            rank = np.cumsum(weight[order], dtype="float64")
        share = np.arange(1, num_bins) / num_bins * rank[-1]
        # A rank is reached although the division above was rounded up.
        first = np.searchsorted(rank, share - 1e-9 * rank[-1], side="left")
        edges = ordered[np.minimum(first, n - 1)]
        return np.searchsorted(edges, confidence, side="left")
    if rule == "quantile":
        edges = np.quantile(confidence, np.linspace(0, 1, num_bins + 1))[1:-1]
        return np.searchsorted(edges, confidence, side="right")
    if rule == "lower_edge":
        start = np.round(np.linspace(0, n, num_bins, endpoint=False))
        edges = ordered[np.minimum(start.astype(int), n - 1)][1:]
        return np.searchsorted(edges, confidence, side="right")
    if rule == "interpolated":
        rank = np.linspace(0, n, num_bins + 1)
        edges = np.interp(rank, np.arange(n), ordered)
        return np.searchsorted(edges, confidence, side="left") - 1
    if rule == "midpoint":
        parts = np.array_split(ordered, min(num_bins, n))
        edges = [(a[-1] + b[0]) / 2 for a, b in itertools.pairwise(parts)]
        return np.searchsorted(np.unique(edges), confidence, side="left")
    index = np.empty(n, int)
    index[order] = np.arange(n) * num_bins // n
    if rule == "split":
        for part, rows in enumerate(np.array_split(order, num_bins)):
            index[rows] = part
    return index
