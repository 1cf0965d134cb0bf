"""The page of corrupted images: errors by severity and by corruption.

python examples/papers/table.py F --shift --figures examples/figures
"""

import numpy as np
import protocols
import shifted
import table

import keras_calib as kc

CLEAN = "clean"
# Of each figure: its name, what it shows, and its curves (a method, and
# whether after temperature scaling). Six curves are told apart.
FIGURES = (
    (
        "as_trained",
        "Losses as trained, beside cross-entropy after temperature scaling",
        [
            *((name, shifted.TRAINED) for name in ("CE", "LS", "FL")),
            *((name, shifted.TRAINED) for name in ("MbLS", "ACLS")),
            ("CE", shifted.SCALED),
        ],
    ),
    (
        "after_ts",
        "All after temperature scaling",
        [
            (name, shifted.SCALED)
            for name in ("CE", "LS", "FL", "MbLS", "ACLS", "DCA")
        ],
    ),
    (
        "soft",
        "Soft calibration objectives and S-AvUC, after temperature scaling",
        [
            *((name, shifted.SCALED) for name in ("CE", "SB-ECE", "FL+SB-ECE")),
            *((name, shifted.SCALED) for name in ("Brier+SB-ECE", "AvUC")),
            ("S-AvUC", shifted.SCALED),
        ],
    ),
    (
        "published",
        "The published networks",
        [
            (name, part)
            for name in ("as published", *protocols.OTHER_PUBLISHED)
            for part in (shifted.TRAINED, shifted.SCALED)
        ],
    ),
)

BARS = """\
Lines are means over corruptions, thick bars hold the middle half of them, thin
ones all."""


def page(name, rows, figures=None):
    """The whole page as Markdown.

    Args:
        name: of the table that the networks are from.
        rows: lines of `shifted`, a dict from `(method, seed)`.
        figures: folder to draw into, or `None`.
    """
    methods = in_order(name, rows)
    texts = [
        f"# Protocol {name}: corrupted images",
        f"Printed by `python examples/papers/table.py {name} --shift` from "
        f"`{name}_shift.jsonl`.",
        table.made_by(rows.values()),
        about(name, rows),
        "## ECE by severity, %",
        by_severity(methods, "ece", scale=100, floor=True),
        "## NLL by severity",
        by_severity(methods, "nll", digits=3),
        "## Accuracy by severity, %",
        by_severity(methods, "accuracy", scale=100, parts=(shifted.TRAINED,)),
    ]
    for part in (shifted.TRAINED, shifted.SCALED):
        texts += [
            f"## ECE by corruption, {part}, %",
            "Mean over the severities.",
            by_corruption(methods, part),
        ]
    texts += ["## Figures", BARS]
    for kind, title, curves in FIGURES:
        file = f"{name}_shift_{kind}.png"
        if all(method in methods for method, _ in curves):
            texts.append(f"![{title}](../figures/{file})")
            if figures is not None:
                draw(methods, curves, title, figures / file)
    return "\n\n".join(texts)


def in_order(name, rows):
    """Lines of each method: those of the table, then other networks."""
    names = [*protocols.TABLES[name], *protocols.OTHER_PUBLISHED]
    found = {each: [] for each in names}
    for (method, _), row in sorted(rows.items()):
        found[method].append(row)
    return {each: lines for each, lines in found.items() if lines}


def about(name, rows):
    """What was measured, from the lines themselves."""
    protocol = protocols.PROTOCOLS[name]
    first, sizes = protocol.rows[-1], {r["num_images"] for r in rows.values()}
    counts = " or ".join(f"{size:,}" for size in sorted(sizes))
    bins = next(iter(rows.values()))["num_bins"]
    seeds = {row["corruption_seed"] for row in rows.values()}
    return (
        f"The 15 corruptions of `kc.shift` (seed {min(seeds)}) at severities 1 "
        f"to 5, of the first {counts} test images from row {first:,} on; "
        f"severity 0 is clean images. TS is the temperature (T) of the clean "
        f"calibration images. ECE of {bins} bins. The floor is the mean ECE "
        "of a perfectly calibrated network with these confidences; ± is a "
        "standard error over images. Where there are several seeds, all "
        "numbers are means over them."
    )


def models(methods, parts=(shifted.TRAINED, shifted.SCALED)):
    """Yields label, temperature and lines of each model, part by part."""
    for method, rows in methods.items():
        for part in parts:
            scaled = part == shifted.SCALED
            label = f"{method} + TS" if scaled else method
            used = [row["temperature"] if scaled else 1.0 for row in rows]
            yield label, np.mean(used), [row[part] for row in rows]


def by_severity(methods, key, *, scale=1, digits=2, floor=False, **options):
    """A value on clean images, at each severity, and its mean over these."""
    steps = next(models(methods))[2][0]["severities"]
    header = ["network", "seeds", "T", CLEAN, *steps, "mean of 1 to 5"]
    header += ["floor of the mean"] * floor
    lines = []
    for label, temperature, found in models(methods, **options):

        def shown(places, key=key):
            return f"{scale * np.mean([p[key] for p in places]):.{digits}f}"

        means = [each["mean"] for each in found]
        line = [label, str(len(found)), f"{temperature:.2f}"]
        line.append(shown([each["clean"] for each in found]))
        for step in steps:
            line.append(shown([each["severities"][step] for each in found]))
        line.append(f"{shown(means)} ± {shown(means, f'{key}_se')}")
        line += [shown(means, "ece_floor")] * floor
        lines.append(line)
    return table.markdown(header, lines)


def by_corruption(methods, part):
    """ECE in percent of each corruption, a column for each network."""
    found = list(models(methods, (part,)))
    lines = []
    for kind in found[0][2][0]["corruptions"]:
        line = [kind.replace("_", " ")]
        for _, _, rows in found:
            values = [row["corruptions"][kind]["ece"] for row in rows]
            line.append(f"{100 * np.mean(values):.1f}")
        lines.append(line)
    return table.markdown(["corruption", *methods], lines)


def draw(methods, curves, title, path):
    """ECE against severity, the curves of the first seeds."""
    drawn = []
    for method, part in curves:
        label = f"{method} + TS" if part == shifted.SCALED else method
        drawn += cells(label, methods[method][0][part])
    figure = kc.plots.shift_curves({"rows": drawn})
    figure.axes[0].set_title(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def cells(label, found):
    """Rows of one model as those of `kc.shift.ShiftResult`, but no floors.

    Twelve lines in a figure would be too many.
    """
    start = {"model": label, "corruption": CLEAN, "severity": 0}
    rows = [{**start, "ece": found["clean"]["ece"]}]
    for kind, values in found["cells"].items():
        for severity, ece in enumerate(values["ece"], 1):
            place = {"corruption": kind, "severity": severity}
            rows.append({"model": label, **place, "ece": ece})
    return rows
