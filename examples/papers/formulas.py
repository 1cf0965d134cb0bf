"""Figures of the losses' formulas: no rows are needed.

Soft bins and soft uncertainty (soft calibration objectives, figures 3 and 4).
Every loss and its gradient against the confidence, the idea of ACLS, figure 1,
is drawn by `examples/loss_curves.py`.
"""

import drawing
import numpy as np

from keras_calib.ops.soft_bins import memberships


def soft_bins():
    """Membership of a bin and of its neighbors, at three temperatures."""
    figure, axes = drawing.panels(1, 3, (10.0, 3.2), sharey=True)
    centers = (np.arange(15) + 0.5) / 15
    confidence = np.linspace(0, 1, 1001)
    for panel, temperature in zip(axes, (1e-1, 1e-2, 1e-3), strict=True):
        members = memberships(confidence, centers, temperature)
        for place, number in enumerate((5, 7, 9)):
            look = {**drawing.style(place), "markevery": 100}
            label = f"bin at {centers[number]:.2f}"
            panel.plot(confidence, members[:, number], label=label, **look)
        panel.set(xlabel="confidence", title=f"T = {temperature:g}")
    axes[0].set_ylabel("membership")
    axes[0].legend(fontsize=8)
    return figure


def soft_uncertainty():
    """The soft uncertainty by entropy, for thresholds and temperatures."""
    figure, axes = drawing.panels(1, 2, (7.4, 3.2), sharey=True)
    h = np.linspace(1e-4, 1 - 1e-4, 1001)
    odds = np.log(h) - np.log1p(-h)
    settings = (
        [(kappa, 0.1, rf"$\kappa$ = {kappa}") for kappa in (0.1, 0.3, 0.5)],
        [(0.3, t, f"T = {t}") for t in (0.1, 0.5, 1.0)],
    )
    for panel, curves in zip(axes, settings, strict=True):
        for place, (kappa, temperature, label) in enumerate(curves):
            step = (odds - np.log(kappa / (1 - kappa))) / temperature
            values = 1 / (1 + np.exp(-step))
            look = {**drawing.style(place), "markevery": 100}
            panel.plot(h, values, label=label, **look)
        panel.set_xlabel("entropy / log C")
        panel.legend(fontsize=8)
    axes[0].set(ylabel="soft uncertainty", title="T = 0.1")
    axes[1].set_title(r"$\kappa$ = 0.3")
    return figure


FIGURES = (
    (
        "soft_bins",
        "Soft bins",
        "As figure 3 of the soft calibration objectives: membership of three "
        "of 15 bins. As T falls it becomes that of hard bins.",
        soft_bins,
    ),
    (
        "soft_uncertainty",
        "Soft uncertainty",
        "As figure 4 of the soft calibration objectives: kappa is the "
        "threshold, T how sharp it is.",
        soft_uncertainty,
    ),
)
