"""What each calibration layer makes of a confidence.

Every layer is fitted to the same made predictions, which are overconfident, and
then applied to others. Left to right is the probability that the network gives
to the class it predicts, upwards the calibrated probability of this class. The
true one is known, because the labels are drawn from it: a broken line for each
predicted class. A point above its line is overconfident. Layers of two classes
have the probability of the second class on both axes.

Each panel has the map of the paper: layers are fitted with `shrinkage=None`
and `regularization=None` (Dirichlet with `"odir"`); PTS and order-preserving
maps keep this library's `penalty`. At their defaults, few samples leave them
nearer to temperature scaling.

    python examples/map_curves.py

writes `examples/figures/maps.png`.
"""

import argparse
import pathlib

import keras
import numpy as np
import pictures
from argument_types import positive_int

import keras_calib as kc

FOLDER = pathlib.Path(__file__).parent / "figures"
CLASSES, COLUMNS = 3, 4
# The temperature that each predicted class needs.
TEMPERATURES = np.array([1.2, 2.0, 4.0])
COLORS = "#0072B2", "#E69F00", "#CC79A7"
DARK = "#003F66", "#8F6200", "#7E3560"
NETWORK = {"color": "#999999", "linewidth": 0.9, "label": "network"}
TRUE = {"linestyle": "--", "linewidth": 1.4, "zorder": 3}
PLAIN = {"regularization": None}
ALONE = {"shrinkage": None}
PANELS = {
    "TemperatureScaling": {},
    "BayesianTemperatureScaling": {},
    "EnsembleTemperatureScaling": {},
    "ParameterizedTemperatureScaling": ALONE,
    "BiasCorrectedTemperatureScaling": PLAIN,
    "ClassTemperatureScaling": PLAIN,
    "VectorScaling": PLAIN,
    "MatrixScaling": PLAIN,
    "DirichletScaling": {"regularization": "odir"},
    "IntraOrderPreserving": ALONE,
    "SplineCalibration": ALONE,
    "IsotonicCalibration": ALONE,
    "HistogramBinning": ALONE,
    "BetaCalibration": ALONE,
    "PlattScaling": ALONE,
    "QuadraticScaling": ALONE,
}
TWO_CLASSES = "BetaCalibration", "PlattScaling", "QuadraticScaling"


def made_logits(n, num_classes, seed):
    """Logits of samples of every confidence, `(n, num_classes)`."""
    rng = np.random.default_rng(seed)
    size = rng.uniform(0.3, 4, (n, 1))
    return (size * rng.normal(size=(n, num_classes))).astype("float32")


def true_of_predicted(confidence, predicted):
    """Probability that the predicted class is the label.

    The others have equal probabilities here, and the temperature is that of
    the predicted class.
    """
    others = (1 - confidence) / (CLASSES - 1)
    power = 1 / TEMPERATURES[predicted]
    odds = (confidence / others) ** power / (CLASSES - 1)
    return odds / (1 + odds)


def true_of_second(p):
    """Probability of the second of two classes, from the predicted one.

    The temperature rises with the probability, from 1.2 to 3.5.
    """
    log_odds = np.log(p) - np.log1p(-p)
    return 1 / (1 + np.exp(-log_odds / (1.2 + 2.3 * p)))


def true_probabilities(logits):
    """What the labels are drawn from, `(n, num_classes)`."""
    p = softmax(logits)
    if p.shape[1] == 2:
        second = true_of_second(p[:, 1])
        return np.stack([1 - second, second], axis=1)
    rows, predicted = np.arange(len(p)), p.argmax(axis=1)
    confidence = p[rows, predicted]
    right = true_of_predicted(confidence, predicted)
    # The other classes keep their ratio.
    q = p * ((1 - right) / (1 - confidence))[:, None]
    q[rows, predicted] = right
    return q


def made_labels(logits, seed):
    """Labels that are drawn from the true probabilities, `(n,)`."""
    below = true_probabilities(logits).cumsum(axis=1)[:, :-1]
    draws = np.random.default_rng(seed).random((len(logits), 1))
    return (draws > below).sum(axis=1)


def softmax(logits):
    p = np.exp(logits.astype("float64") - logits.max(axis=1, keepdims=True))
    # A confidence of 1 would leave nothing to the others.
    p = np.clip(p, 1e-9, None)
    return p / p.sum(axis=1, keepdims=True)


def fitted(name, num_samples):
    """A layer that is fitted to made data, and its number of classes."""
    num_classes = 2 if name in TWO_CLASSES else CLASSES
    logits = made_logits(num_samples, num_classes, seed=0)
    layer = getattr(kc.layers, name)(**PANELS[name])
    return layer.adapt(logits, made_labels(logits, seed=1)), num_classes


def probabilities_of(layer, logits):
    return softmax(keras.ops.convert_to_numpy(layer(logits)))


def before_and_after(layer, logits):
    """A probability without and with the layer, and the predicted class.

    Of the class that the network predicts; of two classes, of the second one.
    """
    p, q = softmax(logits), probabilities_of(layer, logits)
    predicted = p.argmax(axis=1)
    shown = np.ones_like(predicted) if p.shape[1] == 2 else predicted
    rows = np.arange(len(p))
    return p[rows, shown], q[rows, shown], predicted


def draw(num_samples, num_points):
    from matplotlib import pyplot

    rows = -(-len(PANELS) // COLUMNS)
    figure, axes = pyplot.subplots(
        rows, COLUMNS, figsize=(10, 2.75 * rows), layout="constrained"
    )
    panels = list(axes.flat)
    for panel in panels[len(PANELS) :]:
        panel.axis("off")
    for panel, name in zip(panels, PANELS, strict=False):
        layer, num_classes = fitted(name, num_samples)
        logits = made_logits(num_points, num_classes, seed=2)
        found = before_and_after(layer, logits)
        (network,) = panel.plot([0, 1], [0, 1], **NETWORK)
        if num_classes == 2:
            two = draw_two(panel, *found)
        else:
            many = draw_many(panel, *found)
        panel.set_title(name, fontsize=8.5)
        panel.tick_params(labelsize=8)
    for row in axes:
        row[0].set_ylabel("calibrated probability")
    # Also where only a blank panel is below.
    lowest = zip(panels, PANELS, strict=False)
    for panel, name in list(lowest)[-2 * COLUMNS :]:
        of_two = name in TWO_CLASSES
        panel.set_xlabel("probability of class 2" if of_two else "confidence")
    figure.legend(
        handles=[*many, *two, network],
        loc="outside lower center",
        ncols=5,
        markerscale=2.5,
    )
    return figure


def draw_many(panel, before, after, predicted):
    """Points and true curve of each predicted class, for the legend."""
    x, lines = np.linspace(1 / CLASSES, 1, 401)[:-1], []
    for k, (color, dark) in enumerate(zip(COLORS, DARK, strict=True)):
        of, name = predicted == k, f"class {k + 1} of {CLASSES}"
        lines += points(panel, before[of], after[of], color, name)
        true = true_of_predicted(x, k)
        lines += panel.plot(x, true, color=dark, label="true", **TRUE)
    panel.set(xlim=(0.31, 1.02), ylim=(0.1, 1.03))
    return lines


def draw_two(panel, before, after, _):
    x = np.linspace(0, 1, 401)[1:-1]
    lines = points(panel, before, after, "#009E73", "two classes")
    lines += panel.plot(
        x, true_of_second(x), color="black", label="true", **TRUE
    )
    panel.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
    return lines


def points(panel, before, after, color, label):
    look = {"color": color, "markersize": 3, "label": label}
    return panel.plot(before, after, ".", **look)


def main(arguments=None):
    import matplotlib

    matplotlib.use("Agg")
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=pathlib.Path, default=FOLDER)
    parser.add_argument("--samples", type=positive_int, default=5000)
    parser.add_argument("--points", type=positive_int, default=900)
    options = parser.parse_args(arguments)
    figure = draw(options.samples, options.points)
    path = options.folder / "maps.png"
    pictures.save(figure, path, dpi=90)
    print(path)


if __name__ == "__main__":
    main()
