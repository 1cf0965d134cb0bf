"""Can I believe this ECE? A page whose every number is simulated here.

Ten classes, and networks whose true probabilities are known: one is calibrated,
one overconfident by a factor on its logits. Many test sets are drawn, and the
page says what their ECEs would have told. NumPy does all of it; no network is
trained, nothing is downloaded.

    python examples/can_i_believe_this_ece.py

writes `examples/results/can_i_believe_this_ece.md` and three figures beside it,
in about seven minutes on one core; `--draws 20 --folder F` tries it out.
"""

import argparse
import pathlib

import numpy as np
import pictures
from argument_types import positive_int

import keras_calib as kc
from keras_calib.evaluation.consistency_bars import consistency_bars
from keras_calib.evaluation.events import sort_events

HERE = pathlib.Path(__file__).parent
PAGE = "can_i_believe_this_ece"
ECE, NLL = "expected_calibration_error", "negative_log_likelihood"
DEBIASED, BRIER = "debiased_calibration_error_l1", "brier_score"
CLASSES, SPREAD, FACTOR, BINS = 10, 10.0, 1.3, 15
SIZES = (100, 300, 1_000, 3_000, 10_000)
NUMBERS_OF_BINS = (5, 10, 15, 25, 50, 100)
MIDDLE = 2_000
POPULATION = 400_000


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


class World:
    """Inputs, their true probabilities, and what two networks say of them."""

    def __init__(self):
        self.rng = np.random.default_rng(0)
        z = SPREAD * self.rng.normal(size=(POPULATION, CLASSES))
        self.truth = softmax(z)
        self.networks = {
            "calibrated": self.truth,
            "overconfident": softmax(FACTOR * z),
        }

    def test_set(self, number):
        """Labels, and the probabilities of both networks by name."""
        rows = self.rng.integers(POPULATION, size=number)
        total = self.truth[rows].cumsum(axis=1)
        # Rounding may leave the last sum a little below 1.
        u = self.rng.random((number, 1)) * total[:, -1:]
        labels = (total > u).argmax(axis=1)
        return labels, {k: p[rows] for k, p in self.networks.items()}

    def true_error(self, name, num_bins=BINS):
        """ECE of a network with as many test samples as one likes."""
        p = self.networks[name]
        predicted = p.argmax(axis=1)
        every = np.arange(POPULATION)
        confidence, right = p[every, predicted], self.truth[every, predicted]
        place = np.ceil(confidence * num_bins).astype(int)
        gaps = np.bincount(place, confidence - right)
        return np.abs(gaps).sum() / POPULATION


def mean_and_error(values):
    """A mean and its Monte Carlo error, in points."""
    values = 100 * np.asarray(values)
    error = values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():.2f} ± {error:.2f}"


def percent_of(values):
    """A share and its Monte Carlo error, in percent."""
    return mean_and_error(values).replace(" ±", " % ±")


def ends(values):
    low, high = 100 * np.quantile(values, [0.025, 0.975])
    return f"{low:.2f} to {high:.2f}"


def table(heads, rows):
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in lines)


def by_size(world, draws):
    """ECE, floor and debiased error on test sets of every size."""
    found = {}
    for number in SIZES:
        for _ in range(draws):
            labels, networks = world.test_set(number)
            for name, p in networks.items():
                errors = kc.metrics.calibration_errors(
                    labels, p, metrics=[ECE, DEBIASED], floor=True
                )
                cell = found.setdefault((number, name), [])
                cell.append(
                    (
                        errors[ECE],
                        errors[f"{ECE}_floor"],
                        errors[f"{ECE}_floor_high"],
                        errors[DEBIASED],
                    )
                )
    return {key: np.transpose(cell) for key, cell in found.items()}


def by_bins(world, draws):
    """ECE of the same test sets by number of bins."""
    found = {}
    for _ in range(draws):
        labels, networks = world.test_set(MIDDLE)
        for name, p in networks.items():
            for bins in NUMBERS_OF_BINS:
                error = kc.metrics.calibration_errors(
                    labels, p, metrics=[ECE], num_bins=bins
                )[ECE]
                found.setdefault((bins, name), []).append(error)
    return found


def outside_bands(world, draws):
    """Whether some bin leaves its bar, for the calibrated network."""
    found = {"pointwise": [], "simultaneous": []}
    for _ in range(draws):
        labels, networks = world.test_set(MIDDLE)
        p = networks["calibrated"]
        events = sort_events(p.max(axis=1), p.argmax(axis=1) == labels)
        bins = events.bins(events.width_cuts(BINS))
        for name, outside in found.items():
            low, high = consistency_bars(
                bins, simultaneous=name == "simultaneous"
            )
            used = bins.weight > 0
            accuracy = bins.accuracy[used]
            # A sum of floats may round to just beyond a bar that it touches.
            beyond = (accuracy < low[used] - 1e-9) | (
                accuracy > high[used] + 1e-9
            )
            outside.append(beyond.any())
    return found


def ranking(world, draws):
    """Whether each score puts the calibrated network first."""
    found = {}
    for number in SIZES:
        for _ in range(draws):
            labels, networks = world.test_set(number)
            scores = {
                name: kc.metrics.calibration_errors(
                    labels, p, metrics=[ECE, NLL, BRIER]
                )
                for name, p in networks.items()
            }
            for key in (ECE, NLL, BRIER):
                first = scores["calibrated"][key] < scores["overconfident"][key]
                found.setdefault((number, key), []).append(first)
    return found


def three_networks(world):
    """Scores of both networks, and of one that knows frequencies alone."""
    labels, networks = world.test_set(10_000)
    frequencies = np.full((len(labels), CLASSES), 1 / CLASSES)
    # The first class is predicted, and not by a tie.
    frequencies[:, 0] += 1e-6
    frequencies /= frequencies.sum(axis=1, keepdims=True)
    rows = []
    for name, p in {**networks, "class frequencies": frequencies}.items():
        found = kc.metrics.calibration_errors(
            labels, p, metrics=["accuracy", NLL, BRIER, ECE], floor=True
        )
        rows.append(
            [
                name,
                f"{100 * found['accuracy']:.1f}",
                f"{found[NLL]:.3f}",
                f"{found[BRIER]:.3f}",
                f"{100 * found[ECE]:.2f}",
                f"{100 * found[f'{ECE}_floor']:.2f}",
            ]
        )
    return rows


def draw_sizes(pyplot, sizes, truth, path):
    figure, axes = pyplot.subplots(figsize=(6.4, 4.2), layout="constrained")
    for name, color, shift, style in (
        ("calibrated", "C0", 0.94, "o-"),
        ("overconfident", "C1", 1.06, "s--"),
    ):
        cells = [100 * sizes[number, name][0] for number in SIZES]
        means = [cell.mean() for cell in cells]
        low, high = np.transpose(
            [np.quantile(c, [0.025, 0.975]) for c in cells]
        )
        axes.errorbar(
            np.multiply(SIZES, shift),
            means,
            [means - low, high - means],
            fmt=style,
            color=color,
            capsize=3,
            label=f"ECE, {name}",
        )
        axes.axhline(
            100 * truth[name],
            color=color,
            linestyle=":",
            label=f"true error, {name}",
        )
    floors = [100 * sizes[n, "overconfident"][1].mean() for n in SIZES]
    label = "floor, overconfident"
    axes.plot(SIZES, floors, "x-.", color="gray", label=label)
    axes.set_xscale("log")
    axes.set_xticks(SIZES, [f"{number:,}" for number in SIZES])
    axes.minorticks_off()
    axes.set(xlabel="test samples", ylabel="points", ylim=(0, None))
    axes.legend(title="bars: 95 % of test sets")
    pictures.save(figure, path, dpi=100)


def draw_bins(pyplot, bins, world, path):
    figure, axes = pyplot.subplots(figsize=(6.4, 3.8), layout="constrained")
    for name, color, style in (
        ("calibrated", "C0", "o-"),
        ("overconfident", "C1", "s--"),
    ):
        means = [100 * np.mean(bins[b, name]) for b in NUMBERS_OF_BINS]
        label = f"mean ECE, {name}"
        axes.plot(NUMBERS_OF_BINS, means, style, color=color, label=label)
        true = [100 * world.true_error(name, b) for b in NUMBERS_OF_BINS]
        label = f"true error, {name}"
        axes.plot(NUMBERS_OF_BINS, true, ":", color=color, label=label)
    axes.set(
        xlabel="bins", ylabel="points", ylim=(0, None), xticks=NUMBERS_OF_BINS
    )
    axes.set_title(f"{MIDDLE:,} test samples")
    axes.legend()
    pictures.save(figure, path, dpi=100)


def draw_bands(pyplot, world, path):
    figure, axes = pyplot.subplots(
        2,
        2,
        figsize=(9.6, 6.0),
        sharex=True,
        height_ratios=(3, 1),
        layout="constrained",
    )
    labels, networks = world.test_set(MIDDLE)
    for column, (name, p) in zip(axes.T, networks.items(), strict=True):
        kc.plots.reliability_diagram(labels, p, title=name, axes=column)
    pictures.save(figure, path, dpi=100)


def page_of(world, sizes, bins, outside, ranks, draws):
    """The text with its numbers."""
    truth = {name: world.true_error(name) for name in world.networks}
    good, bad = "calibrated", "overconfident"
    largest = SIZES[-1]
    excess = sizes[1_000, bad][0] - sizes[1_000, bad][1]
    p = world.networks[good]
    shares = {
        key: percent_of(ranks[1_000, key]).split(" ±")[0]
        for key in (ECE, NLL, BRIER)
    }
    return TEXT.format(
        draws=f"{draws:,}",
        factor=FACTOR,
        accuracy=f"{100 * p.max(axis=1).mean():.1f}",
        true_bad=f"{100 * truth[bad]:.2f}",
        small_good=mean_and_error(sizes[100, good][0]),
        large_good=mean_and_error(sizes[largest, good][0]),
        range_1000=ends(sizes[1_000, bad][0]),
        size_table=table(
            [
                "test samples",
                "ECE, calibrated",
                "95 % of test sets",
                "ECE, overconfident",
                "95 % of test sets",
            ],
            [
                [
                    f"{n:,}",
                    mean_and_error(sizes[n, good][0]),
                    ends(sizes[n, good][0]),
                    mean_and_error(sizes[n, bad][0]),
                    ends(sizes[n, bad][0]),
                ]
                for n in SIZES
            ],
        ),
        bin_table=table(
            ["bins", "ECE, calibrated", "ECE, overconfident", "its true error"],
            [
                [
                    b,
                    mean_and_error(bins[b, good]),
                    mean_and_error(bins[b, bad]),
                    f"{100 * world.true_error(bad, b):.2f}",
                ]
                for b in NUMBERS_OF_BINS
            ],
        ),
        middle=f"{MIDDLE:,}",
        few_bins=NUMBERS_OF_BINS[0],
        many_bins=NUMBERS_OF_BINS[-1],
        good_few=mean_and_error(bins[NUMBERS_OF_BINS[0], good]),
        good_many=mean_and_error(bins[NUMBERS_OF_BINS[-1], good]),
        floor_table=table(
            [
                "test samples",
                "calibrated: ECE above the range",
                "overconfident: ECE above the range",
                "its ECE minus floor",
                "its debiased error",
            ],
            [
                [
                    f"{n:,}",
                    percent_of(sizes[n, good][0] > sizes[n, good][2]),
                    percent_of(sizes[n, bad][0] > sizes[n, bad][2]),
                    mean_and_error(sizes[n, bad][0] - sizes[n, bad][1]),
                    mean_and_error(sizes[n, bad][3]),
                ]
                for n in SIZES
            ],
        ),
        excess=mean_and_error(excess),
        debiased=mean_and_error(sizes[1_000, bad][3]),
        debiased_small=mean_and_error(sizes[100, bad][3]),
        pointwise=percent_of(outside["pointwise"]),
        simultaneous=percent_of(outside["simultaneous"]),
        bins=BINS,
        score_table=table(
            ["network", "accuracy %", "NLL", "Brier", "ECE %", "its floor %"],
            three_networks(world),
        ),
        rank_table=table(
            ["test samples", "by ECE", "by NLL", "by Brier score"],
            [
                [
                    f"{n:,}",
                    *(percent_of(ranks[n, key]) for key in (ECE, NLL, BRIER)),
                ]
                for n in SIZES
            ],
        ),
        by_ece=shares[ECE],
        by_nll=shares[NLL],
        by_brier=shares[BRIER],
    )


TEXT = """\
# Can I believe this ECE?

Written by `examples/can_i_believe_this_ece.py`, numbers and all: {draws} test
sets of each size, seed 0; ± is the Monte Carlo error (one standard error of the
mean over test sets). The inputs have known probabilities of ten classes. One
network says exactly these: it is calibrated, and right on {accuracy} % of the
samples. The other multiplies the logits by {factor}: it predicts the same
classes, is overconfident, and its true error is {true_bad} points. All errors
below are in points (0.01).

## How many test samples?

{size_table}

A calibrated network hardly ever has an ECE of 0. On 100 samples its mean is
{small_good}, and on 10,000 still {large_good}: the accuracy of a bin is noisy,
and the ECE adds up the noise without its sign. The ECE of the overconfident
network on 1,000 samples is anywhere from {range_1000}, by the choice of the
test samples alone.

![ECE by number of test samples](can_i_believe_this_ece_samples.png)

## How many bins?

{bin_table}

These are the same predictions on the same test sets of {middle} samples. From
{few_bins} to {many_bins} bins the ECE of the calibrated network goes from
{good_few} to {good_many}. A published ECE without its number of bins and of
samples is no number, and two ECEs with different bins cannot be compared.

![ECE by number of bins](can_i_believe_this_ece_bins.png)

## What would a calibrated network show?

`kc.metrics.calibration_errors(..., floor=True)` answers for your confidences
and your number of samples: `expected_calibration_error_floor` is the mean ECE
of a network that is calibrated, and `_floor_low` and `_floor_high` are 95 % of
its range. An ECE above the range is evidence of miscalibration; a calibrated
network is there in 2.5 % of the test sets.

{floor_table}

An ECE inside the range is no evidence of calibration: the overconfident network
is there, too, while test sets are small. And the ECE minus its floor is no
estimate of the error. On 1,000 samples its mean is {excess}, and the true
error is {true_bad}: it understates small errors most.
`debiased_calibration_error_l1` estimates the error itself: {debiased} there, on
100 samples still too large ({debiased_small}). Single values can be negative.

## What does the band of a diagram mean?

On {middle} samples and {bins} bins, the diagram of the calibrated network
leaves a pointwise band of 95 % somewhere in {pointwise} of the test sets,
because each bin has its own chance to. It leaves the simultaneous band in
{simultaneous}. Only the second answers the question that a reader asks, whether
the curve leaves the band; it is the default of `kc.plots.reliability_diagram`.

![Both networks, with simultaneous bands](can_i_believe_this_ece_bands.png)

## Which score comes first?

{score_table}

The last row answers every input with the frequencies of the classes. It knows
nothing, and has the lowest ECE of the three. Proper scores (NLL, Brier score)
cannot be fooled so: on average they are best for the true probabilities. How
often does each score put the calibrated network before the overconfident one,
on one test set?

{rank_table}

On 1,000 samples the ECE is right in {by_ece} of the test sets, the NLL in
{by_nll}, and the Brier score in {by_brier}. Which score sees a difference
with the fewest samples depends on the difference, but no proper one is fooled
by a network that knows nothing.

## So, can I?

1. Compare NLL and Brier score first, on the same samples, with the interval of
   the difference: `kc.report` writes both.
2. State samples, bins and floor beside every ECE.
3. Within the range of the floor: say that miscalibration cannot be shown, not
   that there is none.
4. Look at a diagram with a simultaneous band to see where the error is.
5. Do not stop, tune or choose by ECE alone.
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draws", type=positive_int, default=400)
    parser.add_argument("--folder", type=pathlib.Path, default=HERE / "results")
    arguments = parser.parse_args()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    world = World()
    draws, folder = arguments.draws, arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    sizes, bins = by_size(world, draws), by_bins(world, draws)
    outside, ranks = outside_bands(world, draws), ranking(world, draws)
    text = page_of(world, sizes, bins, outside, ranks, draws)
    truth = {name: world.true_error(name) for name in world.networks}
    draw_sizes(pyplot, sizes, truth, folder / f"{PAGE}_samples.png")
    draw_bins(pyplot, bins, world, folder / f"{PAGE}_bins.png")
    draw_bands(pyplot, world, folder / f"{PAGE}_bands.png")
    (folder / f"{PAGE}.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
