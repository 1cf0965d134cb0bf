"""Each loss, and its gradient, against the confidence.

The first picture has the losses of one sample. Its label has the logit z and
all other classes 0, so that the label has the probability p and the others
share `1 - p`. Left to right: p, or z for the losses with a margin. Below is
the derivative by z, which for cross-entropy is `p - 1`: above 0 a loss lowers
the confidence, below 0 it raises it.

The second has the penalties of a batch. Of 2,000 samples the predicted
probabilities stay as they are, and labels are drawn so that the mean
confidence minus the accuracy is the number below the panels. In the left panel
all classes have this gap, in the right one half of the classes have it, and
the others none.

The third is what `kc.plots.loss_profile` draws of any losses.

    python examples/loss_curves.py

writes `examples/figures/losses_sample.png`, `losses_batch.png` and
`losses_profile.png`.
"""

import argparse
import itertools
import pathlib

import keras
import numpy as np

import keras_calib as kc

FOLDER = pathlib.Path(__file__).parent / "figures"
CLASSES = 10
BY_P, BY_Z = "probability of the label", "logit of the label"
LOGITS = {"from_logits": True}
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(**LOGITS)
# The default weights of the penalties are small: 0.3 can be seen.
PANELS = {
    "smoothing": (
        BY_P,
        {
            "LabelSmoothing": kc.losses.LabelSmoothing(**LOGITS),
            "EntropyRegularization(0.3)": kc.losses.EntropyRegularization(
                weight=0.3, **LOGITS
            ),
            "CPC": kc.losses.CPC(**LOGITS),
        },
    ),
    "focal": (
        BY_P,
        {
            "FocalLoss": kc.losses.FocalLoss(**LOGITS),
            "SampleDependentFocalLoss": kc.losses.SampleDependentFocalLoss(
                **LOGITS
            ),
            "DualFocalLoss": kc.losses.DualFocalLoss(**LOGITS),
            "InverseFocalLoss": kc.losses.InverseFocalLoss(**LOGITS),
        },
    ),
    "squares": (
        BY_P,
        {
            "BrierLoss": kc.losses.BrierLoss(**LOGITS),
            "SquaredLogitLoss": kc.losses.SquaredLogitLoss(**LOGITS),
        },
    ),
    "margins": (
        BY_Z,
        {
            "MarginLabelSmoothing": kc.losses.MarginLabelSmoothing(
                margin=6.0, **LOGITS
            ),
            "ACLS": kc.losses.ACLS(margin=6.0, **LOGITS),
        },
    ),
}
PROFILE = {
    "cross-entropy": CROSS_ENTROPY,
    "focal loss, gamma 3": kc.losses.FocalLoss(gamma=3.0, **LOGITS),
    "label smoothing": kc.losses.LabelSmoothing(**LOGITS),
    "margin 6": kc.losses.MarginLabelSmoothing(margin=6.0, **LOGITS),
}
BATCH = {
    "DCA": kc.losses.DCA,
    "MDCA": kc.losses.MDCA,
    "MMCE": kc.losses.MMCE,
    "SoftBinnedECE": kc.losses.SoftBinnedECE,
    "AvUC": kc.losses.AvUC,
    "SoftAvUC": kc.losses.SoftAvUC,
}
GAPS = np.linspace(-0.25, 0.25, 21)


def curve(loss, z):
    """The loss of samples of class 0 with logits `(z, 0, ..., 0)`."""
    logits = np.zeros((len(z), CLASSES), "float32")
    logits[:, 0] = z
    labels = keras.ops.zeros(len(z), "int32")
    values = loss.call(labels, keras.ops.convert_to_tensor(logits))
    return keras.ops.convert_to_numpy(values).astype("float64")


def slope(values, z):
    """The derivative by z, and nothing where the loss jumps."""
    found = np.gradient(values, z)
    jumps = np.abs(np.diff(values)) > 0.15
    found[:-1][jumps] = found[1:][jumps] = np.nan
    return found


def draw_samples(style):
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        2, 4, figsize=(15, 7), height_ratios=(3, 2), layout="constrained"
    )
    for column, (title, (by, losses)) in enumerate(PANELS.items()):
        above, below = axes[:, column]
        z = np.linspace(-4, 8.5 if by == BY_P else 15, 401)
        p = 1 / (1 + (CLASSES - 1) * np.exp(-z))
        x = p if by == BY_P else z
        losses = {"cross-entropy": CROSS_ENTROPY, **losses}
        for look, (name, loss) in zip(
            itertools.cycle(style), losses.items(), strict=False
        ):
            values = curve(loss, z)
            above.plot(x, values, label=name, **look)
            below.plot(x, slope(values, z), **look)
        above.set(title=title, ylim=(-0.1, 4))
        above.legend(loc="upper right", fontsize=9)
        below.axhline(0, color="black", linewidth=0.8)
        below.set(xlabel=by, ylim=(-1.5, 1))
    axes[0, 0].set_ylabel("loss")
    axes[1, 0].set_ylabel("derivative by the logit")
    return figure


def made_batch(gap, some, rng):
    """Labels and logits of samples that are overconfident by `gap`.

    Args:
        gap: mean confidence minus accuracy.
        some: whether only predictions of the first five classes have the gap.
        rng: where uniform numbers come from; the same give the same samples.
    """
    n = 2000
    confidence = rng.uniform(0.35, 0.75, n)
    predicted = rng.integers(CLASSES, size=n)
    p = np.repeat((1 - confidence[:, None]) / (CLASSES - 1), CLASSES, axis=1)
    p[np.arange(n), predicted] = confidence
    own = np.where(some & (predicted >= CLASSES // 2), 0.0, gap)
    right = rng.random(n) < confidence - own
    others = (predicted + rng.integers(1, CLASSES, n)) % CLASSES
    return np.where(right, predicted, others), np.log(p).astype("float32")


def draw_batches(style):
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(12, 5), layout="constrained")
    titles = "every class has the gap", "half of the classes have the gap"
    for some, (panel, title) in enumerate(zip(axes, titles, strict=True)):
        for look, (name, kind) in zip(
            itertools.cycle(style), BATCH.items(), strict=False
        ):
            penalty = kind(primary=None, weight=1.0, **LOGITS)
            values = [
                float(penalty(*made_batch(gap, bool(some), rng)))
                for gap, rng in zip(GAPS, generators(), strict=True)
            ]
            panel.plot(GAPS, values, label=name, **look)
        panel.set(title=title, xlabel="mean confidence minus accuracy")
        panel.axvline(0, color="black", linewidth=0.8)
    axes[0].set_ylabel("penalty")
    axes[1].legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def generators():
    return (np.random.default_rng(0) for _ in GAPS)


def main(arguments=None):
    import matplotlib

    matplotlib.use("Agg")
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=pathlib.Path, default=FOLDER)
    folder = parser.parse_args(arguments).folder
    colors = "#0072B2 #D55E00 #009E73 #CC79A7 #E69F00 #56B4E9".split()
    lines = "-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (8, 2))
    style = [
        {"color": color, "linestyle": line, "linewidth": 1.8}
        for color, line in zip(colors, lines, strict=True)
    ]
    pictures = {
        "sample": draw_samples(style),
        "batch": draw_batches(style),
        "profile": kc.plots.loss_profile(PROFILE),
    }
    for name, figure in pictures.items():
        # A file without the version of what has drawn it.
        path = folder / f"losses_{name}.png"
        figure.savefig(path, dpi=80, metadata={"Software": None})
        print(path)


if __name__ == "__main__":
    main()
