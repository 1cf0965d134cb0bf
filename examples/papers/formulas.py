"""Figures of the losses' formulas: no rows are needed.

Soft bins and soft uncertainty (soft calibration objectives, figures 3 and 4),
and every loss and its gradient against the confidence (ACLS, figure 1's idea).
"""

import drawing
import methods
import numpy as np
import work
from measures import softmax

import keras_calib as kc


def soft_bins():
    """Membership of a bin and of its neighbors, at three temperatures."""
    figure, axes = drawing.panels(1, 3, (10.0, 3.2), sharey=True)
    centers = (np.arange(15) + 0.5) / 15
    confidence = np.linspace(0, 1, 1001)
    for panel, temperature in zip(axes, (1e-1, 1e-2, 1e-3), strict=True):
        scores = -((confidence[:, None] - centers) ** 2) / temperature
        members = softmax(scores)
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


# Of each pair of panels: its title, and methods.
PROFILES = (
    (
        "Losses of a sample",
        ("CE", "LS", "FL", "FLSD-53", "dual focal", "inverse focal"),
    ),
    (
        "Squares, and penalties of a sample",
        ("Brier", "squared logit", "ER", "MbLS", "ACLS", "CPC"),
    ),
    (
        "Penalties of a batch of one sample",
        ("MDCA", "DCA", "MMCE", "AvUC", "S-AvUC", "SB-ECE"),
    ),
)


def profiles():
    """Every loss of a method, and its gradient, against the confidence."""
    figure, axes = drawing.panels(
        2, 3, (13.0, 6.4), sharex=True, height_ratios=(3, 2)
    )
    for column, (title, names) in enumerate(PROFILES):
        losses = {
            name: work.build_loss(methods.METHODS[name]["loss"])
            for name in names
        }
        kc.plots.loss_profile(
            losses, title=title, axes=[axes[column], axes[column + 3]]
        )
        above, below = axes[column], axes[column + 3]
        above.set_ylim(0, 6)
        below.set_ylim(-3, 3)
        # Below the panels, because the curves of batches are everywhere.
        lines, texts = above.get_legend_handles_labels()
        above.get_legend().remove()
        below.legend(
            lines,
            texts,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.22),
            ncols=3,
            fontsize=8,
        )
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
    (
        "profiles",
        "Every loss against the confidence",
        "The idea of figure 1 of ACLS for all losses of `methods.py`: one "
        "sample with the logits (z, 0, ..., 0), ten classes; above the loss, "
        "below its derivative by z. Where a loss jumps, its derivative is a "
        "vertical line.",
        profiles,
    ),
)
