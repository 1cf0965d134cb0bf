"""How others cut bins and sum pairs, to reproduce published tables."""

import itertools

import numpy as np

from keras_calib.evaluation.events import Events


def equal_mass_index(confidence, num_bins, rule):
    """Index of the equal-mass bin of each confidence, by the rule of others.

    - `"group"`: ours, in which equal values are never separated;
    - `"split"`: `np.array_split` of the sorted values (torch-uncertainty);
    - `"floor"`: rank `r` goes to bin `floor(r num_bins / n)` (caltrain);
    - `"midpoint"`: as `"split"`, edges half-way between neighbors
      (uncertainty-calibration);
    - `"quantile"`: edges by `np.quantile`, left-closed (netcal);
    - `"lower_edge"`: the value of rank `round(j n / num_bins)` opens bin `j`
      (uncertainty-metrics, robustness-metrics);
    - `"interpolated"`: edges interpolated between ranks, left-open, so that
      the smallest value gets -1 (focal_calibration, MbLS, ACLS).
    """
    n = len(confidence)
    order = np.argsort(confidence, kind="stable")
    ordered = confidence[order]
    if rule == "group":
        cuts = Events(ordered, np.zeros(n)).mass_cuts(num_bins)
        index = np.empty(n, int)
        index[order] = np.repeat(np.arange(num_bins), np.diff(cuts))
        return index
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


def error_of_index(confidence, correct, index, norm=1):
    """Calibration error of bins given by the index of each sample.

    Samples without a bin (index -1) count in the number of samples.
    """
    total = 0.0
    for m in np.unique(index[index >= 0]):
        part = index == m
        gap = abs(confidence[part].mean() - correct[part].mean())
        total += part.mean() * gap**norm
    return total ** (1 / norm)


class TornTies(Events):
    """Events whose bins of equal mass separate equal confidences."""

    def mass_cuts(self, num_bins, rule="group"):
        return -(-np.arange(num_bins + 1) * len(self) // num_bins)


class LeftClosed(Events):
    """Events whose `mass_cuts` are bins of equal width, closed on the left."""

    def mass_cuts(self, num_bins, rule="group"):
        cell = np.minimum(num_bins - 1, np.floor(self.confidence64 * num_bins))
        cuts = np.searchsorted(cell, np.arange(1, num_bins))
        return np.concatenate([[0], cuts, [len(self)]])


def unbiased_kernel_square(events, width=0.4):
    """Mean over pairs of distinct samples of `r_i r_j k_ij` (MMCE squared)."""
    c, r = events.confidence64, events.residuals
    total = 0.0
    for i in range(len(c)):
        row = np.exp(-np.abs(c - c[i]) / width) * r
        total += r[i] * (row.sum() - row[i])
    return total / (len(c) * (len(c) - 1))
