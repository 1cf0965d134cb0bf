"""What class losses do while a map is fitted to stored logits.

The class-wise scaling paper's figures 1, 3 and 4. The map is class-based
temperature scaling, `z_k / T_k`, fitted by gradient descent, so that there are
iterations to look at; `kc.layers.ClassTemperatureScaling` goes to the optimum
in a few steps of Newton's method.
"""

import drawing
import numpy as np
from measures import softmax

import keras_calib as kc
from keras_calib.solvers.class_weights import class_weights

STEPS, RATE, EVERY = 300, 0.02, 5
# Objectives by name, with the settings of the paper.
SMOOTHING, GAMMA, SLOPE, SPAN = 0.05, 3.0, 1.0, 1.5
OBJECTIVES = ("CE", "LS", "FL", "CE, class losses scaled")
WORST = 3


def fit(logits, labels, objective, keep=None):
    """Class temperatures by iteration, from 1 on: Adam on `1 / T_k`.

    Args:
        logits: of the calibration samples, `(n, classes)`.
        labels: `(n,)`.
        objective: one of `OBJECTIVES`.
        keep: class ids whose samples alone are fitted, or `None` for all.

    Returns:
        `1 / T_k` of every `EVERY`th iteration, `(steps, classes)`.
    """
    classes = logits.shape[1]
    one_hot = np.eye(classes)[labels]
    used = np.ones(len(labels))
    if keep is not None:
        used = np.isin(labels, keep).astype(float)
    scale, first, second = np.ones(classes), 0.0, 0.0
    history = []
    for step in range(STEPS + 1):
        if step % EVERY == 0:
            history.append(scale)
        p = softmax(logits * scale)
        slope = slopes(p, one_hot, objective)
        weights = used
        if objective == OBJECTIVES[3]:
            losses = of_classes(p, labels)
            factors = 1 + class_weights(losses, SLOPE, SPAN, "normal")
            weights = (factors / np.bincount(labels, minlength=classes))[labels]
            weights = weights * len(labels) / classes
        gradient = (weights[:, None] * slope * logits).mean(axis=0)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        unbiased = first / (1 - 0.9 ** (step + 1))
        length = np.sqrt(second / (1 - 0.999 ** (step + 1))) + 1e-8
        scale = np.maximum(scale - RATE * unbiased / length, 1e-3)
    return np.array(history)


def slopes(p, one_hot, objective):
    """Gradient of each sample's objective by its scaled logits."""
    if objective == "LS":
        one_hot = (1 - SMOOTHING) * one_hot + SMOOTHING / p.shape[1]
    if objective != "FL":
        return p - one_hot
    of_label = (p * one_hot).sum(axis=1, keepdims=True)
    rest = 1 - of_label
    # -(1 - p)^g log p, by p, times dp / dz = p (q - p).
    factor = GAMMA * rest ** (GAMMA - 1) * of_label * np.log(of_label)
    return (rest**GAMMA - factor) * (p - one_hot)


def of_classes(p, labels):
    """Mean cross-entropy of each class."""
    losses = -np.log(np.maximum(p[np.arange(len(labels)), labels], 1e-30))
    counts = np.bincount(labels, minlength=p.shape[1])
    sums = np.bincount(labels, losses, minlength=p.shape[1])
    return sums / counts


def measure(history, logits, labels):
    """Losses on calibration rows and ECE on test rows, by iteration.

    Returns:
        A dict with `total` (mean over samples), `classes`, `spread` (their
        standard deviation) and `ece` in percent.
    """
    found = {"total": [], "classes": [], "spread": [], "ece": []}
    counts = np.bincount(labels["calibration"], minlength=history.shape[1])
    for scale in history:
        p = softmax(logits["calibration"] * scale)
        classes = of_classes(p, labels["calibration"])
        found["classes"].append(classes)
        found["total"].append(np.average(classes, weights=counts))
        found["spread"].append(classes.std())
        errors = kc.metrics.calibration_errors(
            labels["test"],
            softmax(logits["test"] * scale),
            metrics=["expected_calibration_error"],
            verbose=0,
        )
        found["ece"].append(100 * errors["expected_calibration_error"])
    return {key: np.array(values) for key, values in found.items()}


def trained(logits, labels, **options):
    """`measure` of the fit with each objective, by name."""
    parts = logits["calibration"], labels["calibration"]
    return {
        name: measure(fit(*parts, name, **options), logits, labels)
        for name in OBJECTIVES
    }


QUANTITIES = (
    ("total", "total loss, nats"),
    ("spread", "std of class losses, nats"),
    ("ece", "ECE on test images, %"),
)


def objectives(logits, labels):
    """Total loss, spread of the class losses, and ECE, by objective."""
    figure, axes = drawing.panels(1, 3, (10.5, 3.4))
    found = trained(logits, labels)
    for panel, (key, label) in zip(axes, QUANTITIES, strict=True):
        for place, (name, values) in enumerate(found.items()):
            steps = EVERY * np.arange(len(values[key]))
            look = {**drawing.style(place), "markevery": 12}
            panel.plot(steps, values[key], label=name, **look)
        panel.set(xlabel="iteration", ylabel=label)
    axes[2].set_ylim(bottom=0)
    axes[0].legend(fontsize=8)
    return figure


def top_classes(logits, labels):
    """The fit to the worst classes: total, class losses, spread, ECE."""
    parts = logits["calibration"], labels["calibration"]
    before = of_classes(softmax(parts[0]), parts[1])
    worst = np.sort(np.argsort(before)[-WORST:])
    values = measure(fit(*parts, "CE", keep=worst), logits, labels)
    steps = EVERY * np.arange(len(values["total"]))
    figure, axes = drawing.panels(2, 2, (8.4, 5.8))
    shown = (QUANTITIES[0], ("classes", "class losses, nats"), *QUANTITIES[1:])
    for panel, (key, label) in zip(axes, shown, strict=True):
        if key == "classes":
            for number, curve in enumerate(values[key].T):
                chosen = number in worst
                panel.plot(
                    steps,
                    curve,
                    color=drawing.COLORS[1] if chosen else "#777777",
                    linestyle="-" if chosen else ":",
                    label={
                        int(worst[0]): "fitted",
                        int(np.setdiff1d(np.arange(len(before)), worst)[0]): (
                            "others"
                        ),
                    }.get(number),
                )
            panel.legend(fontsize=8)
        else:
            panel.plot(steps, values[key], color=drawing.COLORS[0])
            places = same_total(values["total"])
            for place, name in zip(places, "AB"[: len(places)], strict=True):
                at = steps[place], values[key][place]
                panel.plot(*at, "o", color=drawing.COLORS[1])
                panel.annotate(
                    name, at, xytext=(5, 5), textcoords="offset points"
                )
        panel.set(xlabel="iteration", ylabel=label)
        panel.margins(y=0.12)
    return figure


def same_total(total):
    """Two iterations on both sides of the least total with the same value."""
    least = int(total.argmin())
    if least in (0, len(total) - 1):
        return ()
    end = min(total[0], total[-1])
    level = total[least] + 0.8 * (end - total[least])
    before = int(np.abs(total[: least + 1] - level).argmin())
    after = least + int(np.abs(total[least:] - total[before]).argmin())
    return before, after


def correlation(logits, labels):
    """ECE against total loss and spread, in all iterations of all fits."""
    found = trained(logits, labels)
    figure, axes = drawing.panels(1, 2, (8.4, 3.8), sharey=True)
    for panel, (key, label) in zip(axes, QUANTITIES[:2], strict=True):
        for place, (name, values) in enumerate(found.items()):
            look = {**drawing.style(place), "linestyle": "none"}
            panel.plot(values[key], values["ece"], label=name, **look)
        x = np.concatenate([values[key] for values in found.values()])
        y = np.concatenate([values["ece"] for values in found.values()])
        panel.set_title(f"r = {np.corrcoef(x, y)[0, 1]:.2f}")
        panel.set_xlabel(label)
    axes[0].set_ylabel(QUANTITIES[2][1])
    axes[0].set_ylim(bottom=0)
    axes[1].legend(fontsize=8)
    return figure
