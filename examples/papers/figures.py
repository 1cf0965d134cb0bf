"""The page of figures: those of the papers, from stored rows and logits.

    python examples/papers/table.py S --figures examples/figures

Logits are looked for in `--work`, then beside the rows. A figure whose rows or
logits are missing is left out, and the page says which command makes them.
"""

import dataclasses
import functools
import json

import class_losses
import drawing
import formulas
import keras
import measures
import methods
import numpy as np
import protocols
import table
import words
from missing import base
from places import stored_logits
from row_files import has_epochs
from row_files import read_rows

import keras_calib as kc

RUN = "python examples/papers/run.py"
# What a figure of a few methods shows, the first that there are.
FIRST = ("CE", "LS", "FL", "MbLS", "ACLS", "FL+SB-ECE", "MDCA", "Diff-DML")
MOST = len(drawing.COLORS)
# Figures of rows alone.
OF_ROWS = ("by_epoch", "uncertainty", "sweeps")
# Beside the figures: which rows each of them shows.
RECORDS = "drawn.json"


class MissingRowsError(Exception):
    """There are no rows or logits for a figure; tells what makes them."""


@dataclasses.dataclass
class Source:
    """Where the numbers of the figures come from.

    Attributes:
        table: its name.
        rows: stored rows, a dict from `(method, seed)`.
        results: folder of the rows.
        work: folder in which the driver left logits.
        used: rows that the last figure shows.
    """

    table: str
    rows: dict
    results: object
    work: object
    used: list = dataclasses.field(default_factory=list)

    def first_seeds(self):
        """The row with the first seed of each method, in the table's order."""
        return {name: found[0] for name, found in table.of_method(*self.pair())}

    def pair(self):
        return self.table, self.rows

    def few(self, wanted):
        """Some of the methods `wanted`, those that come first.

        Methods that are not in `FIRST` fill up.
        """
        order = [*FIRST, *(name for name in wanted if name not in FIRST)]
        return [name for name in order if name in wanted][:MOST]

    def logits(self, method):
        """Logits and labels of the first seed that has them, or `None`."""
        seed, path = self.place(method)
        if path is None:
            return None
        self.used.append(self.rows[method, seed])
        return measures.read(path)

    def path(self, method):
        """The file of the logits of the first seed that has them."""
        return self.place(method)[1]

    def place(self, method):
        """That seed, and the file; `None` twice without one."""
        for seed in sorted(s for name, s in self.rows if name == method):
            path = stored_logits(self, method, seed)
            if path is not None:
                return seed, path
        return None, None

    def of_few(self):
        """Logits of a few methods that have them, by name."""
        found = [n for n in self.first_seeds() if self.path(n) is not None]
        if not found:
            raise MissingRowsError(
                f"no logits; they are in `--work` after `{RUN} {self.table}`"
            )
        return {name: self.logits(name) for name in self.few(found)}


def page(source, folder, kept=False):
    """The whole page as Markdown; draws into `folder`.

    Args:
        source: `Source`.
        folder: of the figures.
        kept: whether figures of logits stay as they were drawn, because the
            logits are not here. `drawn.json` has the rows that they show.
    """
    texts = [
        f"# Protocol {source.table}: figures",
        f"Drawn by `python examples/papers/table.py {source.table} --figures "
        f"examples/figures` from `{source.table}.jsonl` and the logits of its "
        "rows, where there are some. Rows are those of each method's first "
        "seed, or where logits are needed of the first seed that has them. "
        "`table.py all` draws those that need none again, and leaves the "
        "others as they are where logits are missing. Below each figure: which "
        "rows it shows, and of which days they are.",
    ]
    left_out, known = [], records(folder)
    for name, title, text, draw in FIGURES:
        file = f"{source.table}_{name}.png"
        if not (kept and name not in OF_ROWS and file in known):
            try:
                known[file] = save(source, folder, name, draw)
            except MissingRowsError as reason:
                left_out.append(f"- {title}: {reason}.")
                continue
        texts += [f"## {title}", text, f"![{title}](../figures/{file})"]
        texts.append(f"Shown: {known[file]}.")
    write_records(folder, known)
    if left_out:
        texts += ["## Left out", "\n".join(left_out)]
    return "\n\n".join(texts)


def save(source, folder, name, draw):
    """Draw one figure into a folder; returns in words which rows it shows."""
    source.used.clear()
    drawing.save(draw(source), folder / f"{source.table}_{name}.png")
    return shown(source.used)


def shown(rows):
    """Which rows a figure shows, their machines and dates."""
    names = list(dict.fromkeys(row["method"] for row in rows))
    seeds = sorted({row["seed"] for row in rows})
    methods = words.listed(names)
    if len(names) > MOST:
        methods = f"{len(names)} rows"
    of_seed = (
        f"seed{'s' * (len(seeds) > 1)} {words.listed(list(map(str, seeds)))}"
    )
    return f"{methods}, {of_seed}; {table.made_by(rows)}"


def records(folder):
    """What each figure of a folder shows, by its file's name."""
    path = folder / RECORDS
    return json.loads(path.read_text()) if path.exists() else {}


def write_records(folder, known):
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(dict(sorted(known.items())), indent=1)
    (folder / RECORDS).write_text(text + "\n")


def by_epoch(source):
    """ECE on validation images between epochs."""
    found = {
        name: row["history"]
        for name, row in source.first_seeds().items()
        if has_epochs(row)
    }
    if not found:
        known = [n for n in FIRST if n in protocols.TABLES[source.table]]
        words = " ".join(f'"{n}"' if " " in n else n for n in known[:MOST])
        raise MissingRowsError(
            "no row was measured between epochs; "
            f"`{RUN} {source.table} --only {words} --seeds 1 --history 4` "
            "runs them again"
        )
    names = source.few(found)
    # A period in common: the callback also measures the last epoch.
    every = {name: first_measured(found[name]["val_ece"]) for name in names}
    names = [name for name in names if every[name] == every[names[0]]]
    source.used += [source.first_seeds()[name] for name in names]
    logs = {"loss": found[names[0]]["loss"]}
    for name in names:
        known = [v for v in found[name]["val_ece"] if v is not None]
        logs[name] = [100 * value for value in known]
    figure, axes = drawing.panels(1, 1, (5.4, 3.8))
    kc.plots.calibration_history(
        logs,
        keys=names,
        every=every[names[0]],
        title="Validation images, seed 0",
        axes=axes,
    )
    axes[0].set_ylabel("ECE, %")
    return figure


def first_measured(values):
    return 1 + [value is not None for value in values].index(True)


def reliability(source):
    """Accuracy against confidence, several methods on one axis."""
    found = source.of_few()
    labels = next(iter(found.values()))[1]["test"]
    logits = {name: each[0]["test"] for name, each in found.items()}
    return kc.plots.reliability_diagram(
        labels,
        logits,
        from_logits=True,
        band=None,
        title="Test images, as trained",
    )


# Accuracy below the best from which a method has no place in a figure of all.
FAR = 0.15


def accurate(rows):
    """Rows that are not far less accurate than the best, and others' names."""
    accuracy = {name: row["test"]["accuracy"] for name, row in rows.items()}
    least = max(accuracy.values(), default=0.0) - FAR
    left_out = [name for name, value in accuracy.items() if value < least]
    kept = {name: row for name, row in rows.items() if name not in left_out}
    return kept, left_out


def uncertainty(source):
    """ECE against 1 - mean confidence, a point for each method."""
    rows, left_out = accurate(source.first_seeds())
    if len(rows) < 2:
        raise MissingRowsError("rows of one method only")
    source.used += rows.values()
    x = [100 * (1 - row["test"]["confidence"]) for row in rows.values()]
    y = [100 * row["test"]["ece"] for row in rows.values()]
    error = 100 * (1 - np.mean([r["test"]["accuracy"] for r in rows.values()]))
    figure, (axes,) = drawing.panels(1, 1, (7.2, 5.2))
    axes.plot(x, y, "o", color=drawing.COLORS[0], markersize=5)
    axes.axvline(error, color="#222222", linestyle="--", linewidth=1)
    axes.set(xlabel="mean uncertainty, 1 - confidence, %", ylabel="ECE, %")
    axes.set_title("Test images, as trained")
    if left_out:
        axes.text(
            0.98,
            0.97,
            "left out, far less accurate:\n" + "\n".join(left_out),
            transform=axes.transAxes,
            ha="right",
            va="top",
            fontsize=8,
        )
    axes.margins(0.12)
    axes.set_ylim(bottom=0)
    axes.annotate(
        "mean error rate",
        (error, 0.97),
        xycoords=axes.get_xaxis_transform(),
        xytext=(-4, 0),
        textcoords="offset points",
        rotation=90,
        va="top",
        ha="right",
        fontsize=8,
    )
    drawing.label_points(axes, x, y, list(rows))
    return figure


def regularizer(source):
    """Histograms of the ACLS regularizer, per sample."""
    found = {
        name: source.logits(name)
        for name in ("CE", "LS", "MbLS", "ACLS")
        if name in source.first_seeds()
    }
    found = {name: each for name, each in found.items() if each}
    if not found:
        raise MissingRowsError(
            "no logits of CE, LS, MbLS or ACLS; they are in `--work` after "
            f"`{RUN} {source.table} --only ACLS`"
        )
    settings = {**methods.METHODS["ACLS"]["loss"]}
    settings.pop("class")
    edges = np.linspace(0.0, 0.1, 21)
    figure, axes = drawing.panels(
        1, len(found), (2.6 * len(found) + 0.8, 3.0), sharey=True
    )
    for panel, (name, (logits, labels)) in zip(
        axes, found.items(), strict=True
    ):
        part = "train" if "train" in logits else "validation"
        values = keras.ops.convert_to_numpy(
            kc.losses.acls(
                labels[part].astype("int32"),
                logits[part].astype("float32"),
                **settings,
            )
        ).astype("float64")
        share = np.full(len(values), 100 / len(values))
        clipped = np.clip(values, 0.0, 0.1)
        panel.hist(clipped, edges, weights=share, color=drawing.COLORS[0])
        none = 100 * (values == 0).mean()
        panel.set_title(f"{name}, {part}\ninactive: {none:.0f} %", fontsize=9)
        panel.set_xlabel("regularizer")
    axes[0].set_ylabel("samples, %")
    return figure


def sweeps(source):
    """ECE and accuracy against weights and margins."""
    if f"{source.table}-sweep" not in protocols.TABLES:
        raise MissingRowsError("no table of sweeps belongs to this protocol")
    rows = {}
    for kind in ("tuning", "sweep"):
        name = f"{source.table}-{kind}"
        rows |= read_rows(source.results / f"{name}.jsonl")
    curves = {
        "weight or smoothing": {
            "LS": points(rows, "LS", "smoothing"),
            "MbLS, margin 0": points(rows, "MbLS", "weight", margin=0.0),
            "MbLS, margin 6": points(rows, "MbLS", "weight", margin=6.0),
        },
        "margin": {
            "MbLS, weight 0.1": points(rows, "MbLS", "margin", weight=0.1),
            "ACLS": points(rows, "ACLS", "margin"),
        },
    }
    if not any(len(c) > 1 for each in curves.values() for c in each.values()):
        raise MissingRowsError(
            f"no rows; `{RUN} {source.table}-sweep --only LS MbLS ACLS` runs "
            "them"
        )
    points_of = [c for each in curves.values() for c in each.values()]
    source.used += [row for curve in points_of for row in curve.values()]
    figure, axes = drawing.panels(2, 2, (8.4, 6.0), sharex="col")
    for column, (label, found) in enumerate(curves.items()):
        for line, key in enumerate(("ece", "accuracy")):
            panel = axes[2 * line + column]
            for place, (name, of_curve) in enumerate(found.items()):
                if len(of_curve) < 2:
                    continue
                values = sorted(of_curve)
                for part, dash in (("validation", "-"), ("test", "--")):
                    panel.plot(
                        values,
                        [100 * of_curve[v][part][key] for v in values],
                        color=drawing.COLORS[place],
                        marker=drawing.MARKERS[place],
                        markersize=4,
                        linestyle=dash,
                        label=f"{name}, {part}",
                    )
            panel.set_ylabel(f"{'ECE' if key == 'ece' else key}, %")
            if label.startswith("weight"):
                panel.set_xscale("log")
        axes[2 + column].set_xlabel(label)
        axes[column].legend(fontsize=7)
    return figure


def points(rows, method, name, **fixed):
    """Rows of a method by the value of one of its settings.

    Args:
        rows: dict from `(variant, seed)`.
        method: the method that the variants are of.
        name: of the setting.
        **fixed: other settings that must have a value; all that are not
            named here must be as in `methods.METHODS`.
    """
    plain = methods.METHODS[method]["loss"]
    found = {}
    for (variant, seed), row in rows.items():
        if base(variant) != method or seed != 0:
            continue
        loss = methods.method(variant)["loss"]
        if loss == {**plain, **fixed, name: loss.get(name)}:
            found[loss[name]] = row
    return found


def losses_by_iteration(source, draw):
    """A figure of `class_losses`, of cross-entropy's logits."""
    found = source.logits(table.BASELINE)
    if found is None:
        raise MissingRowsError(
            "no logits of CE; they are in `--work` after "
            f"`{RUN} {source.table} --only CE`"
        )
    return draw(*found)


# Of each figure: the end of its file's name, title, caption, and what draws it.
FIGURES = (
    (
        "by_epoch",
        "ECE by epoch",
        "ECE (15 bins) on the validation images between epochs.",
        by_epoch,
    ),
    (
        "reliability",
        "Reliability curves",
        "As figure 6 of the soft calibration objectives, which has several "
        "methods on one axis: 15 bins of equal width, test images, one seed. A "
        "point above the diagonal is underconfident.",
        reliability,
    ),
    (
        "uncertainty",
        "ECE against mean uncertainty",
        "As figure 10 of the soft calibration objectives, which plots the "
        "average uncertainty: here 1 - mean confidence on the test images. "
        "Methods 15 points less accurate than the best are named only. "
        "Methods left of the mean error rate are overconfident.",
        uncertainty,
    ),
    (
        "regularizer",
        "Histograms of the ACLS regularizer",
        "As figure 3 of ACLS, right: the regularizer of each sample, cut to "
        "0 to 0.1, 20 bins, a panel for each network, on training images where "
        "their logits are stored, else on validation images, one seed. The "
        "left of that figure has a ranking condition in place of the margin; "
        'trained with it is the row "ACLS, ranking".',
        regularizer,
    ),
    (
        "sweeps",
        "Weights and margins",
        "As figure 1 of MbLS (weights) and figure A of ACLS (margins), one "
        "seed: solid on validation images, dashed on test images.",
        sweeps,
    ),
    (
        "class_losses",
        "Class losses while a map is fitted",
        "As figure 4 of the class-wise scaling paper: class-based temperature "
        "scaling of cross-entropy's logits by gradient descent, with four "
        "objectives. Losses are cross-entropy on the calibration images, "
        "whatever the objective; the ECE is that of the test images. One seed.",
        functools.partial(losses_by_iteration, draw=class_losses.objectives),
    ),
    (
        "top_classes",
        "Fitting to the three worst classes",
        "As figure 3 of the class-wise scaling paper: the same map, fitted to "
        "the three classes with the largest losses alone. A and B have the "
        "same total loss. One seed.",
        functools.partial(losses_by_iteration, draw=class_losses.top_classes),
    ),
    (
        "loss_correlation",
        "Calibration error and losses",
        "As figure 1 of the class-wise scaling paper: all iterations of the "
        "four fits above; r is the coefficient of correlation.",
        functools.partial(losses_by_iteration, draw=class_losses.correlation),
    ),
)


def formula_page(folder):
    """The page of figures that need no rows, as Markdown."""
    texts = [
        "# Losses as figures",
        "Drawn by `python examples/papers/table.py formulas --figures "
        "examples/figures` from the losses themselves; nothing is trained. "
        "Every loss and its gradient against the confidence, the idea of "
        "figure 1 of ACLS: [the page of the losses]"
        "(../../keras_calib/losses/README.md#what-they-look-like).",
    ]
    for name, title, text, draw in formulas.FIGURES:
        file = f"formulas_{name}.png"
        drawing.save(draw(), folder / file)
        texts += [f"## {title}", text, f"![{title}](../figures/{file})"]
    return "\n\n".join(texts)
