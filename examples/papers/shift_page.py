"""The page of corrupted images: errors by severity and by corruption.

python examples/papers/table.py F --shift --figures examples/figures
"""

import claims
import numpy as np
import protocols
import shifted
import table
import words

import keras_calib as kc

CLEAN = "clean"
# Behind the name of a network.
LABELS = {
    shifted.TRAINED: "",
    shifted.SCALED: " + TS",
    shifted.TO_SB_ECE: " + TS-SB-ECE",
}
PARTS = tuple(LABELS)
# Of each figure: its name, what it shows, and its curves (a method, and what
# was done to it). Six curves are told apart.
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
        "soft_as_trained",
        "Soft calibration objectives as trained, beside cross-entropy after TS",
        [
            *(("CE", part) for part in (shifted.TRAINED, shifted.SCALED)),
            *((name, shifted.TRAINED) for name in ("SB-ECE", "FL+SB-ECE")),
            *((name, shifted.TRAINED) for name in ("MMCE", "S-AvUC")),
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

# A figure of both temperatures, of the first of these that have both.
TEMPERATURES = (
    "temperatures",
    "TS and TS-SB-ECE",
    ("CE", "FL", "as published", *protocols.OTHER_PUBLISHED),
)
BARS = """\
Lines are means over corruptions, thick bars hold the middle half of them, thin
ones all; of several seeds, each corruption's mean over them."""


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
        *beside_scaled(methods),
        "## ECE, mean of severities 1 to 5, %",
        "In brackets its floor. A dash: not measured.",
        at_once(methods),
        "## ECE by severity, %",
        by_severity(methods, "ece", scale=100, floor=True),
        "## Floor of the ECE by severity, %",
        by_severity(methods, "ece_floor", scale=100),
        "## NLL by severity",
        by_severity(methods, "nll", digits=3),
        "## Accuracy by severity, %",
        by_severity(methods, "accuracy", scale=100, parts=(shifted.TRAINED,)),
    ]
    for part in PARTS:
        if with_part(methods, part):
            texts += [
                f"## ECE by corruption, {part}, %",
                "Mean over the severities; the last line is the mean floor.",
                by_corruption(methods, part),
            ]
    texts += ["## Figures", BARS]
    for kind, title, curves in (*FIGURES, both_temperatures(methods)):
        file = f"{name}_shift_{kind}.png"
        known = (method in with_part(methods, part) for method, part in curves)
        if curves and all(known):
            texts.append(f"![{title}](../figures/{file})")
            if figures is not None:
                draw(methods, curves, title, figures / file)
    return "\n\n".join(texts)


def with_part(methods, part):
    """Lines that have a part, of the methods that have such lines."""
    found = {
        method: [row for row in rows if part in row]
        for method, rows in methods.items()
    }
    return {method: rows for method, rows in found.items() if rows}


def both_temperatures(methods):
    """The figure of `TEMPERATURES`; without lines it has no curves."""
    kind, title, names = TEMPERATURES
    known = with_part(methods, shifted.TO_SB_ECE)
    names = [name for name in names if name in known][:3]
    parts = (shifted.SCALED, shifted.TO_SB_ECE)
    return kind, title, [(name, part) for name in names for part in parts]


def mean(rows, part, key="ece"):
    """Of lines that have the part, over severities and seeds, in percent."""
    return 100 * float(np.mean([row[part]["mean"][key] for row in rows]))


def beside_scaled(methods):
    """What the soft objectives' figure 7 says, and what these lines say."""
    names = [name for name in claims.FOR_CALIBRATION if name in methods]
    if table.BASELINE not in methods or not names:
        return []
    base = mean(methods[table.BASELINE], shifted.SCALED)
    found = {name: mean(methods[name], shifted.TRAINED) for name in names}
    below = [name for name in names if found[name] < base]
    shown = ", ".join(f"{name} {ece:.2f}" for name, ece in found.items())
    seen = f"so with {words.listed(below)} only" if below else "not so"
    return [
        "The soft calibration objectives' figures 7 to 9 say that networks "
        "trained for calibration have a lower ECE on corrupted images than "
        f"cross-entropy after TS. Here it is {seen}: as trained they have, in "
        f"percent, {shown}; cross-entropy after TS has {base:.2f}. With "
        "p-values: [the claims](verdicts.md#claims-corrupted-images). Networks "
        "that were fine-tuned for three epochs are nearly as sure as the "
        "published one."
    ]


def at_once(methods):
    """The mean ECE of each network in each way, a dash where there is none."""
    lines = []
    for method, rows in methods.items():
        line = [method, str(len(rows))]
        for part in PARTS:
            known = [row for row in rows if part in row]
            text = "-"
            if known:
                floor = mean(known, part, "ece_floor")
                text = f"{mean(known, part):.2f} ({floor:.2f})"
                text += of_fewer(rows, part)
            line.append(text)
        lines.append(line)
    return table.markdown(["network", "seeds", *PARTS], lines)


def of_fewer(rows, part):
    """`, 1 seed` where only so many of a method's lines have a part."""
    known = sum(part in row for row in rows)
    return f", {words.seeds(known)}" if 0 < known < len(rows) else ""


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
        "calibration images, TS-SB-ECE that with the lowest soft-binned ECE on "
        f"them. ECE of {bins} bins. The floor is the mean ECE "
        "of a perfectly calibrated network with these confidences; ± is a "
        "standard error over images. Where there are several seeds, all "
        "numbers are means over them."
    )


def models(methods, parts=PARTS):
    """Yields label, temperature and lines of each model, part by part.

    Lines without a part are left out.
    """
    for method, rows in methods.items():
        for part in parts:
            known = [row for row in rows if part in row]
            if known:
                used = [temperature(row, part) for row in known]
                label = f"{method}{LABELS[part]}"
                yield label, np.mean(used), [row[part] for row in known]


def temperature(row, part):
    """What the logits were divided by in a part of a line."""
    if part == shifted.TO_SB_ECE:
        return row[part]["temperature"]
    return row["temperature"] if part == shifted.SCALED else 1.0


def by_severity(methods, key, *, scale=1, digits=2, floor=False, **options):
    """A value on clean images, at each severity, and its mean over these."""
    steps = next(models(methods))[2][0]["severities"]
    header = ["network", "seeds", "T", CLEAN, *steps, "mean of 1 to 5"]
    header += ["floor of the mean"] * floor
    lines = []
    for label, divisor, found in models(methods, **options):

        def shown(places, key=key):
            return f"{scale * np.mean([p[key] for p in places]):.{digits}f}"

        means = [each["mean"] for each in found]
        line = [label, str(len(found)), f"{divisor:.2f}"]
        line.append(shown([each["clean"] for each in found]))
        for step in steps:
            line.append(shown([each["severities"][step] for each in found]))
        over_images = f"{key}_se"
        known = over_images in means[0]
        error = f" ± {shown(means, over_images)}" if known else ""
        line.append(f"{shown(means)}{error}")
        line += [shown(means, "ece_floor")] * floor
        lines.append(line)
    return table.markdown(header, lines)


def by_corruption(methods, part):
    """ECE in percent of each corruption, a column for each network."""
    methods = with_part(methods, part)
    found = list(models(methods, (part,)))
    lines = []
    for kind in found[0][2][0]["corruptions"]:
        line = [kind.replace("_", " ")]
        for _, _, rows in found:
            values = [row["corruptions"][kind]["ece"] for row in rows]
            line.append(f"{100 * np.mean(values):.1f}")
        lines.append(line)
    floors = [mean(rows, part, "ece_floor") for rows in methods.values()]
    lines.append(["floor", *(f"{floor:.1f}" for floor in floors)])
    return table.markdown(["corruption", *methods], lines)


def draw(methods, curves, title, path):
    """ECE against severity; of several seeds, the mean of each cell."""
    drawn = []
    for method, part in curves:
        known = [row[part] for row in methods[method] if part in row]
        drawn += cells(f"{method}{LABELS[part]}", known)
    figure = kc.plots.shift_curves({"rows": drawn})
    figure.axes[0].set_title(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def cells(label, found):
    """Rows of one model as those of `kc.shift.ShiftResult`, but no floors.

    Twelve lines in a figure would be too many. Each is a mean over seeds.
    """
    start = {"model": label, "corruption": CLEAN, "severity": 0}
    clean = np.mean([part["clean"]["ece"] for part in found])
    rows = [{**start, "ece": float(clean)}]
    for kind in found[0]["cells"]:
        values = np.mean([part["cells"][kind]["ece"] for part in found], axis=0)
        for severity, ece in enumerate(values.tolist(), 1):
            place = {"corruption": kind, "severity": severity}
            rows.append({"model": label, **place, "ece": ece})
    return rows
