"""Each loss, and its gradient, against the confidence.

The first picture has the losses of one sample. Its label has the logit z and
all other classes 0, so that the label has the probability p and the others
share `1 - p`. Left to right: p, or z for the losses with a margin. Below is
the gradient by z that training sees, for cross-entropy `p - 1`: above 0 a loss
lowers the confidence, below 0 it raises it.

The second has the penalties of a batch. Above, the predicted probabilities of
2,000 samples stay as they are, and labels are drawn so that the mean confidence
minus the accuracy is the number below the panels. In the left panel all classes
have this gap, in the right one half of the classes have it, and the others
none. Below is the derivative by the logit of the predicted class, times the
number of samples, against the confidence: of the samples that are predicted as
class 0, left those that are right, right those that are wrong, in one batch of
20,000 samples with confidences from 0.2 to 0.98, where class 0 and four others
are overconfident by 0.15.

The third has what changes while a network trains. AdaFocal: a focal loss with
other gammas in each of five bins. CRL: the term of a pair of samples, of which
the other one has confidence 0.5 and was right half of the time.

The fourth is what `kc.plots.loss_profile` draws of any losses.

    python examples/loss_curves.py

writes `losses_sample.png`, `losses_batch.png`, `losses_adaptive.png` and
`losses_profile.png` into `examples/figures`.
"""

import argparse
import itertools
import pathlib

import keras
import numpy as np
import pictures

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
# Gammas of five bins of the probability, by what is said of them.
GAMMAS = {
    "1 in each bin (start)": [1.0] * 5,
    "1, 1, 2, 3, 5": [1.0, 1.0, 2.0, 3.0, 5.0],
    "-1 in each bin": [-1.0] * 5,
}
# How often the sample was right whose confidence varies; the other: half.
OFTEN = [1.0, 0.75, 0.5, 0.25, 0.0]


def curve(loss, z):
    """The loss of samples of class 0 with logits `(z, 0, ..., 0)`."""
    labels, logits = samples(z)
    values = loss.call(labels, keras.ops.convert_to_tensor(logits))
    return keras.ops.convert_to_numpy(values).astype("float64")


def samples(z):
    """Labels, and logits."""
    logits = np.zeros((len(z), CLASSES), "float32")
    logits[:, 0] = z
    return np.zeros(len(z), "int32"), logits


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
            above.plot(x, curve(loss, z), label=name, **look)
            below.plot(x, derivative(loss, *samples(z))[:, 0], **look)
        above.set(title=title, ylim=(-0.1, 4))
        above.legend(loc="upper right", fontsize=9)
        below.axhline(0, color="black", linewidth=0.8)
        below.set(xlabel=by, ylim=(-1.5, 1))
    axes[0, 0].set_ylabel("loss")
    axes[1, 0].set_ylabel("derivative by the logit")
    return figure


def derivative(loss, labels, logits):
    """Of a loss by each logit, times the number of samples.

    The logits are weights, and one step of SGD changes them by this much.
    """
    number = len(logits)
    table = keras.layers.Embedding(number, logits.shape[1])
    model = keras.Sequential([keras.Input((), dtype="int32"), table])
    table.set_weights([logits])
    model.compile(keras.optimizers.SGD(float(number)), loss)
    model.train_on_batch(np.arange(number, dtype="int32"), labels)
    return logits - table.get_weights()[0]


def made_batch(gap, some, rng, n=2000, between=(0.35, 0.75)):
    """Labels and logits of samples that are overconfident by `gap`.

    Args:
        gap: mean confidence minus accuracy.
        some: whether only predictions of the first five classes have the gap.
        rng: where uniform numbers come from; the same give the same samples.
        n: number of samples.
        between: the least and the largest confidence.
    """
    confidence = rng.uniform(*between, n)
    predicted = rng.integers(CLASSES, size=n)
    p = np.repeat((1 - confidence[:, None]) / (CLASSES - 1), CLASSES, axis=1)
    p[np.arange(n), predicted] = confidence
    own = np.where(some & (predicted >= CLASSES // 2), 0.0, gap)
    right = rng.random(n) < confidence - own
    others = (predicted + rng.integers(1, CLASSES, n)) % CLASSES
    return np.where(right, predicted, others), np.log(p).astype("float32")


def draw_batches(style):
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(12, 9), layout="constrained")
    titles = "every class has the gap", "half of the classes have the gap"
    for some, (panel, title) in enumerate(zip(axes[0], titles, strict=True)):
        for name, look, penalty in penalties(style):
            values = [
                float(penalty(*made_batch(gap, bool(some), rng)))
                for gap, rng in zip(GAPS, generators(), strict=True)
            ]
            panel.plot(GAPS, values, label=name, **look)
        panel.set(title=title, xlabel="mean confidence minus accuracy")
        panel.axvline(0, color="black", linewidth=0.8)
    for name, look, penalty in penalties(style):
        for panel, curve in zip(axes[1], forces(penalty), strict=True):
            panel.plot(*curve, label=name, **look)
    for panel, which in zip(axes[1], ("right", "wrong"), strict=True):
        panel.set(
            title=f"samples whose prediction is {which}",
            xlabel="confidence of the sample",
            ylim=(-0.6, 0.6),
        )
        panel.axhline(0, color="black", linewidth=0.8)
    axes[0, 0].set_ylabel("penalty")
    axes[1, 0].set_ylabel("derivative by the logit, times samples")
    axes[0, 1].legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def penalties(style):
    """Name, look and penalty of each curve."""
    for look, (name, kind) in zip(
        itertools.cycle(style), BATCH.items(), strict=False
    ):
        yield name, look, kind(primary=None, weight=1.0, **LOGITS)


def forces(penalty):
    """Confidences, and derivatives by the logit of the predicted class 0.

    Yields:
        Both for the right predictions, then for the wrong ones.
    """
    rng = np.random.default_rng(0)
    labels, logits = made_batch(0.15, True, rng, 20_000, (0.2, 0.98))
    found = derivative(penalty, labels, logits)[:, 0]
    confidence = np.exp(logits[:, 0])
    order = np.argsort(confidence)
    for right in (True, False):
        # Of class 0, in the order of their confidence.
        chosen = order[
            (logits.argmax(axis=1) == 0)[order]
            & ((labels == 0) == right)[order]
        ]
        yield confidence[chosen], found[chosen]


def generators():
    return (np.random.default_rng(0) for _ in GAPS)


def ada_focal(gammas):
    """`AdaFocalLoss` with these gammas, in bins of equal width."""
    loss = kc.losses.AdaFocalLoss(num_bins=len(gammas), **LOGITS)
    edges = np.linspace(0, 1, len(gammas) + 1)[1:-1]
    loss.table.set(edges, np.array(gammas))
    return loss


def pair(often, z):
    """The ranking loss of a sample with logits `(z, 0, ..., 0)` and another.

    The other has confidence 0.5 and was right half of the time.
    """
    logits = np.zeros((2, CLASSES), "float32")
    logits[1, 0] = np.log(CLASSES - 1)
    values = []
    for logits[0, 0] in z:
        value = kc.losses.crl([0, 0], logits, correctness=[often, 0.5])
        values.append(float(value))
    return np.array(values)


def draw_adaptive(style):
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        2, 2, figsize=(11, 7), height_ratios=(3, 2), layout="constrained"
    )
    z = np.linspace(-4, 8.5, 801)
    p = 1 / (1 + (CLASSES - 1) * np.exp(-z))
    losses = {"cross-entropy": CROSS_ENTROPY}
    losses |= {f"gamma: {name}": ada_focal(g) for name, g in GAMMAS.items()}
    for look, (name, loss) in zip(style, losses.items(), strict=False):
        axes[0, 0].plot(p, curve(loss, z), label=name, **look)
        axes[1, 0].plot(p, derivative(loss, *samples(z))[:, 0], **look)
    # Where the class with the logit z is predicted.
    z = np.linspace(0, 8.5, 201)
    p = 1 / (1 + (CLASSES - 1) * np.exp(-z))
    for look, often in zip(style, OFTEN, strict=False):
        values = pair(often, z)
        axes[0, 1].plot(p, values, label=f"right in {often:.0%}", **look)
        axes[1, 1].plot(p, np.gradient(values, z), **look)
    axes[0, 0].set(title="AdaFocalLoss", ylabel="loss", ylim=(-0.1, 4))
    axes[0, 1].set(ylim=(-0.05, 1.6))
    axes[0, 1].set(title="CRL: a pair, the other one right in 50%")
    axes[1, 0].set(xlabel=BY_P, ylabel="derivative by the logit")
    axes[1, 1].set(xlabel="confidence of the sample (the other's is 0.5)")
    for above, below in axes.T:
        above.legend(loc="upper right", fontsize=9)
        below.axhline(0, color="black", linewidth=0.8)
    return figure


def save(figure, path):
    """A small file, without the version of what has drawn it."""
    from PIL import Image

    pictures.save(figure, path)
    with Image.open(path) as image:
        few_colors = image.convert("RGB").quantize(256)
    few_colors.save(path, optimize=True)


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
    drawn = {
        "sample": draw_samples(style),
        "batch": draw_batches(style),
        "adaptive": draw_adaptive(style),
        "profile": kc.plots.loss_profile(PROFILE),
    }
    for name, figure in drawn.items():
        path = folder / f"losses_{name}.png"
        save(figure, path)
        print(path)


if __name__ == "__main__":
    main()
