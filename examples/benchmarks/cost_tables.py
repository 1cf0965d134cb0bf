"""The tables of costs in the READMEs, of the rows that benchmarks stored.

    python examples/benchmarks/cost_tables.py            # prints all
    python examples/benchmarks/cost_tables.py --write    # into the READMEs

The rows are made by the scripts beside this one, with `--store`. The last row
of each backend counts. A table whose rows are missing is left out.
"""

import argparse
import pathlib
import re
import statistics
import sys
import textwrap

import cost_rows

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import stored_pages

FOLDER = pathlib.Path(__file__).parents[2] / "keras_calib"
BEGIN = stored_pages.mark("python examples/benchmarks/cost_tables.py, {}")
BACKENDS = {"jax": "JAX", "torch": "PyTorch", "tensorflow": "TensorFlow"}
MIB = 2**20
WIDTH = 88
PLOTS = "seconds", "processor", "peak"
# The guard takes folds where it takes longer.
GUARDED = 1.5


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="into READMEs")
    parser.add_argument(
        "--rows", type=pathlib.Path, default=cost_rows.RESULTS, metavar="FILE"
    )
    arguments = parser.parse_args(arguments)
    for place, text in pages(arguments.rows).items():
        if arguments.write:
            place.write_text(text)
    for texts in parts(arguments.rows).values():
        for name, text in texts.items():
            print(f"{name}\n\n{text}\n")


def pages(rows):
    """The pages with what the rows say, by path."""
    found = {}
    for folder, texts in parts(rows).items():
        place = FOLDER / folder
        page = place.read_text()
        for name, text in texts.items():
            text = wrapped(text)
            otherwise = f"{place} has no place for the part {name!r}."
            mark = BEGIN.format(name)
            page = stored_pages.between(page, mark, text, otherwise)
        if folder == "layers/README.md":
            page = with_seconds(page, rows)
        found[place] = page
    return found


def parts(rows):
    """The parts of each page, by its path in the package and their names."""
    found = {
        "layers/README.md": {
            "maps": of_maps(rows),
            "guard": of_guard(rows),
            "tokens": of_tokens(rows),
            "fit": of_fits(rows),
            "defaults": of_defaults(rows),
            "held out": of_held_out(rows),
            "no penalty": of_no_penalty(rows),
        },
        "layers/SHRINKING.md": {"halves": of_halves(rows)},
        "losses/README.md": {
            "losses": of_losses(rows),
            "memory of CPC": of_memory(rows),
        },
        "metrics/README.md": {
            "metrics": of_metrics(rows),
            "intervals": of_intervals(rows),
            "above zero": of_calibrated_sets(rows),
        },
        "models/README.md": {
            "pairs": of_pairs(rows),
            "around one network": of_others(rows),
        },
        "plots/README.md": {"plots": of_plots(rows)},
        "shift/README.md": {"shift": of_shift(rows)},
    }
    return {
        place: {name: text for name, text in texts.items() if text}
        for place, texts in found.items()
    }


def wrapped(text):
    """The text with its sentences in short lines, and tables as they are."""
    blocks = text.split("\n\n")
    return "\n\n".join(
        block if block.startswith("|") else textwrap.fill(block, WIDTH)
        for block in blocks
    )


def markdown(head, lines):
    text = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(map(str, each))} |" for each in text)


def made_by(rows):
    """Machine, threads, backends and dates of rows: a sentence."""
    machines = sorted({row["machine"]["device"] for row in rows})
    threads = sorted({row["threads"] or "all" for row in rows})
    backends = {
        f"{BACKENDS[backend]} {row['versions'][backend]}"
        for row in rows
        for backend in [row["machine"]["backend"]]
    }
    keras = sorted({row["machine"]["keras"] for row in rows})
    dates = sorted({row["date"] for row in rows})
    dates = dict.fromkeys([dates[0], dates[-1]])
    number = (
        "one thread" if threads == ["1"] else f"{', '.join(threads)} threads"
    )
    return (
        f"{'; '.join(machines)}, which other work shared; {number}; "
        f"{', '.join(sorted(backends))}; Keras {', '.join(keras)}; "
        f"{' to '.join(dates)}."
    )


def by_backend(rows):
    """Rows of each backend, in the order of `BACKENDS`."""
    found = {
        name: [row for row in rows if row["machine"]["backend"] == backend]
        for backend, name in BACKENDS.items()
    }
    return {name: each for name, each in found.items() if each}


def span(numbers, digits=1):
    """`"0.3 to 1.2"`, or one number where both are the same."""
    ends = [f"{each:,.{digits}f}" for each in (min(numbers), max(numbers))]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


# Maps.


def with_seconds(page, rows):
    """The page with the last cell of each map in its first table."""
    first, *rest = page.partition("\n## ")
    for row in cost_rows.newest(rows, "maps", "map"):
        if row["paper"] is None:
            continue
        cell = ", ".join(seconds(row[key]) for key in ("paper", "default"))
        line = rf"^(\| `{re.escape(row['map'])}` \|.*\| )[\d., ]+( \|)$"
        first = re.sub(line, rf"\g<1>{cell}\g<2>", first, flags=re.MULTILINE)
    return "".join([first, *rest])


def seconds(number):
    return f"{number:.2f}" if number >= 0.1 else f"{number:.3f}"


def of_maps(rows):
    rows = cost_rows.newest(rows, "maps", "map")
    auto = [row for row in rows if row["paper"] is None]
    if not auto:
        return ""
    each = " and ".join(
        f"{row['default']:.1f} s with `{row['map']}`" for row in auto
    )
    return f"`kc.calibrate` took {each} there. {made_by(rows)}"


def of_guard(rows):
    rows = cost_rows.newest(rows, "maps", "map")
    found = {
        row["map"]: (row["guarded_default"], row["guarded_paper"])
        for row in rows
        if row["guarded_default"] is not None
    }
    if not found:
        return ""
    quick = [own for own, _ in found.values() if own < GUARDED]
    more = ", ".join(
        f"{own:.1f} for `{name}`"
        for name, (own, _) in sorted(found.items(), key=lambda each: each[1])
        if own >= GUARDED
    )
    papers = [other for own, other in found.values() if own != other]
    return (
        f"Fit and guard together take {span(quick)} times as long as the fit "
        f"for maps at their defaults, but {more}; and {span(papers)} times for "
        f"the papers' maps. {made_by(rows)}"
    )


def of_tokens(rows):
    rows = cost_rows.newest(rows, "tokens", "tokens", "classes")
    if not rows:
        return ""
    lines = [
        [
            f"{row['tokens']:,}",
            row["passes"],
            f"{row['seconds']:.1f}",
            *(f"{row[key] / MIB:,.0f} MiB" for key in ("peak", "before")),
            f"{row['tokens'] * row['classes'] * 4 / MIB:,.0f} MiB",
        ]
        for row in rows
    ]
    head = ["tokens", "passes", "seconds", "peak resident"]
    text = markdown([*head, "before the fit", "all logits"], lines)
    first, last = rows[0], rows[-1]
    number = last["tokens"] - first["tokens"]
    each = (last["seconds"] - first["seconds"]) / max(number, 1)
    hours = (last["seconds"] + each * (10**7 - last["tokens"])) / 3600
    return (
        f"{text}\n\nExtrapolated from the first and the last row, not "
        f"measured: {hours:.1f} hours for 10 million tokens, at "
        f"{1e3 * each:.1f} ms a token. {made_by(rows)}"
    )


def of_fits(rows):
    rows = cost_rows.newest(rows, "fit", "map", "package")
    found = {}
    for row in rows:
        found.setdefault(row["map"], {})[row["package"]] = row
    if not found:
        return ""
    others = dict.fromkeys(
        name.split()[0] for each in found.values() for name in each
    )
    others = [name for name in others if name != "keras_calib"]
    lines = []
    for name, each in found.items():
        ours = each["keras_calib"]
        shape = "{:,} x {:,}".format(*ours["shape"])
        line = [name, shape, f"{ours['processor']:.2f} s"]
        for other in others:
            their = [r for key, r in each.items() if key.split()[0] == other]
            ratio = their and their[0]["processor"] / ours["processor"]
            line.append(f"{ratio:.1f}" if their else "")
        lines.append([*line, f"{ours['memory']:.1f}"])
    head = ["map", "shape", "ours", *others, "memory of ours, times the logits"]
    return f"{markdown(head, lines)}\n\n{made_by(rows)}"


DEFAULTS = {
    "TemperatureScaling / TS": "`TemperatureScaling` / TS",
    "VectorScaling / SVS": "`VectorScaling` / SVS",
    "MatrixScaling / SMS": "`MatrixScaling` / SMS",
    "structured vector / SVS": (
        '`VectorScaling(regularization="structured")` / SVS'
    ),
    "structured matrix / SMS": (
        '`MatrixScaling(regularization="structured")` / SMS'
    ),
}


def of_defaults(rows):
    keys = "maps", "file", "samples"
    over_cells = [
        row
        for row in cost_rows.newest(rows, "cells", "maps", "data")
        if row["data"] == "test"
    ]
    rows = cost_rows.newest(rows, "defaults", *keys)
    if not rows:
        return ""
    classes = sorted({row["classes"] for row in rows})
    lines = []
    for name, shown in DEFAULTS.items():
        own = [row for row in rows if row["maps"] == name]
        spans = [
            span([row["fit"] for row in own if row["classes"] == number])
            for number in classes
        ]
        medians = [
            f"{row[key]:.2f}"
            for row in over_cells
            for key in ("fit", "both")
            if row["maps"] == name
        ]
        lines.append([shown, *spans, *medians])
    head = ["maps", *(f"{number} classes, fit" for number in classes)]
    for row in over_cells[:1]:
        head += [f"{row['cells']} cells, fit (median)", "fit and predict"]
    return f"{markdown(head, lines)}\n\n{made_by(rows + over_cells)}"


def of_held_out(rows):
    rows = cost_rows.newest(rows, "held out", "map", "file")
    rows = [row for row in rows if row["map"] != NO_PENALTY]
    if not rows:
        return ""
    files = list(dict.fromkeys(row["file"] for row in rows))
    lines = []
    for name in dict.fromkeys(row["map"] for row in rows):
        own = {row["file"]: row for row in rows if row["map"] == name}
        cells = [
            f"{own[file]['ours']:.4f}, {own[file]['theirs']:.4f}"
            for file in files
        ]
        lines.append([f"`{HELD_OUT.get(name, name)}`", *cells])
    head = ["map", *(file.removesuffix(".npz") for file in files)]
    return f"{markdown(head, lines)}\n\n{made_by(rows)}"


NO_PENALTY = "MatrixScaling, no penalty"


def of_no_penalty(rows):
    rows = cost_rows.newest(rows, "held out", "map", "file")
    rows = [row for row in rows if row["map"] == NO_PENALTY]
    if not rows:
        return ""
    lines = []
    for row in rows:
        ours, theirs = row["processor"]
        values = "{:.6f}, {:.6f}".format(*row["fitted"])
        file = row["file"].removesuffix(".npz")
        lines.append([file, f"{ours:.2f} s", f"{theirs / ours:.1f}", values])
    head = ["data", "ours", "probmetrics / ours", "NLL of the fitted samples"]
    return f"{markdown(head, lines)}\n\n{made_by(rows)}"


HELD_OUT = {
    "VectorScaling": "VectorScaling(regularization=None)",
    "MatrixScaling": 'MatrixScaling(regularization="structured")',
    "IntraOrderPreserving": 'IntraOrderPreserving(family="order_invariant")',
}


def of_halves(rows):
    rows = cost_rows.newest(rows, "halves", "data", "file")
    lines = []
    for data in dict.fromkeys(row["data"] for row in rows):
        own = [row for row in rows if row["data"] == data]
        means = []
        for key in ("vector", "with_uniform_part"):
            values = [row[key] for row in own]
            error = statistics.stdev(values) / len(values) ** 0.5
            means.append(f"{statistics.mean(values):+.5f} ± {error:.5f}")
        lines.append([data, len(own), *means])
    if not lines:
        return ""
    head = ["data", "files", "NLL of `VectorScaling` minus that of SVS"]
    text = markdown([*head, "on the input with which SVS begins"], lines)
    draws = rows[0]["draws"]
    return f"{text}\n\nMeans of {draws} draws, ± over files. {made_by(rows)}"


# Losses.


def of_losses(rows):
    rows = cost_rows.newest(rows, "losses", "shape", "loss")
    columns = {}
    # Shapes first, then the step.
    for step in (False, True):
        for backend, own in by_backend(rows).items():
            for row in own:
                if (row["shape"] == "step") == step:
                    column = columns.setdefault((backend, row["shape"]), {})
                    column[row["loss"]] = row["seconds"]
    if not columns:
        return ""
    base = "cross-entropy"
    cells = [f"{1e3 * column[base]:.3g} ms" for column in columns.values()]
    lines = [["Keras' cross-entropy", *cells]]
    for name in dict.fromkeys(row["loss"] for row in rows):
        if name != base:
            cells = [
                f"{column[name] / column[base]:.2f}" if name in column else "-"
                for column in columns.values()
            ]
            lines.append([f"`{name}`", *cells])
    head = ["loss", *(f"{name}, {shape}" for name, shape in columns)]
    return f"{markdown(head, lines)}\n\n{made_by(rows)}"


def of_memory(rows):
    rows = cost_rows.newest(rows, "memory of CPC")
    if not rows:
        return ""
    each = " and ".join(
        f"{own[0]['mebibytes']:.0f} MiB on {name}"
        for name, own in by_backend(rows).items()
    )
    return (
        f"`CPC` compares all pairs of classes. At 256 x 1000 it adds {each} to "
        f"the peak memory; one tensor of all pairs would take "
        f"{256 * 1000 * 1000 * 4 / MIB:.0f} MiB."
    )


# Metrics.


def of_metrics(rows):
    rows = cost_rows.newest(rows, "metrics", "what", "name", "batches")
    if not rows:
        return ""

    def values(what, name, batches=0, key="seconds", scale=1e6):
        return {
            # Of an epoch, or of a call.
            backend: scale * row[key] / max(batches, 1)
            for backend, own in by_backend(rows).items()
            for row in own
            if (row["what"], row["name"]) == (what, name)
            and row["batches"] == batches
        }

    def each(found, unit, digits=0):
        return ", ".join(f"{k} {v:,.{digits}f}{unit}" for k, v in found.items())

    lines = []
    reads = "{}, read at every batch"
    for batches in (50, 400):
        what = f"ECE updated and read, {batches} batches of 1,000 x 10"
        ours = values("update", reads.format("keras_calib"), batches)
        theirs = values("update", reads.format("torchmetrics"), batches)
        theirs = f"torchmetrics {span(theirs.values(), 0)} us a batch"
        lines.append([what, each(ours, " us"), theirs])
    keras = values("update", reads.format("Keras' accuracy"), 400)
    lines.append(["the same, Keras' own accuracy", "", each(keras, " us")])
    kept = values("update", "torchmetrics, never read", 400)
    kept = f"torchmetrics {span(kept.values(), 0)} us a batch"
    lines.append(["the same, never read", "", kept])
    sizes = [
        max(values("state", name, key="size", scale=1).values())
        for name in ("keras_calib", "torchmetrics")
    ]
    held = f"torchmetrics {sizes[1]:,.0f} bytes a batch, growing"
    lines.append(["its state", f"{sizes[0]:,.0f} bytes", held])
    plain = values("compile", "none")
    ratios = {
        name: value / plain[name]
        for name, value in values("compile", "ExpectedCalibrationError").items()
    }
    what = "training step of a ResNet-20, batch 128, with the metric"
    lines.append([what, each(ratios, " times", 3), "without"])
    once = [row for row in rows if row["what"] == "all"]
    once = {row["name"]: f"{row['seconds']:.2f} s" for row in once}
    same = f"{once.pop('all of these')}, each by the fastest package"
    ours = once.pop("keras_calib, the same eight")
    what = "1,000,000 x 10 predictions, eight errors that other packages have"
    lines.append([what, ours, same])
    for name, value in once.items():
        if name.startswith("keras_calib, "):
            lines.append([name.removeprefix("keras_calib, "), value, ""])
    text = markdown(["what", "ours", "baseline"], lines)
    return f"{text}\n\n{made_by(rows)}"


def by_statistic(rows):
    found = {}
    for row in rows:
        found.setdefault(row["statistic"], []).append(row)
    return found


def of_intervals(rows):
    rows = cost_rows.newest(rows, "intervals", "statistic", "rows")
    found = by_statistic(rows)
    if not found:
        return ""

    def cell(own, kind):
        return ", ".join(f"{100 * row[kind]:.0f}" for row in own) + " %"

    lines = []
    for name, own in found.items():
        both = [cell(own, kind) for kind in ("percentile", "auto")]
        same = both[0] == both[1]
        lines.append([f"`{name}`", both[0], "the same" if same else both[1]])
    forms = ", ".join(row["rows"] for row in next(iter(found.values())))
    text = markdown(["statistic", f"percentiles: {forms}", "default"], lines)
    return f"{text}\n\n{made_by(rows)}"


def of_calibrated_sets(rows):
    rows = cost_rows.newest(rows, "above zero", "statistic", "size")
    rows = sorted(rows, key=lambda row: row["size"])
    found = by_statistic(rows)
    if not found:
        return ""
    lines = [
        [f"`{name}`", *(f"{100 * row['above']:.1f} %" for row in own)]
        for name, own in found.items()
    ]
    sizes = [f"{row['size']:,} rows" for row in next(iter(found.values()))]
    head = ["interval above 0", *sizes]
    return f"{markdown(head, lines)}\n\n{made_by(rows)}"


# Models, plots, corruptions.


def ratios_of(rows, names):
    """A table with a column for each of `names`, keys of `whole`."""
    rows = cost_rows.newest(rows, "models", "whole")
    rows = [row for row in rows if row["whole"] in names]
    lines = []
    for backend, own in by_backend(rows).items():
        ratios = {row["whole"]: f"{row['ratio']:.2f}" for row in own}
        lines.append([backend, *(ratios.get(name, "") for name in names)])
    if not lines:
        return ""
    return f"{markdown(['', *names.values()], lines)}\n\n{made_by(rows)}"


def of_pairs(rows):
    return ratios_of(
        rows,
        {
            "step of the pair": "step",
            "evaluate the pair": "evaluate",
            "predict with the pair": "predict",
        },
    )


def of_others(rows):
    return ratios_of(
        rows,
        {
            "predict, 20 masks": "`MonteCarloDropout`, 20 masks: predict",
            "epoch, MDCA interleaved": "`InterleavedTraining`: epoch",
            "epoch, history": "`SampleHistoryModel`: epoch",
            "epoch, history and CRL": "with CRL: epoch",
        },
    )


def of_plots(rows):
    rows = cost_rows.newest(rows, "plots", "figure")
    if not rows:
        return ""
    lines = [
        [row["figure"], *(f"{row[key]:.2f}" for key in PLOTS)] for row in rows
    ]
    head = ["figure", "s", "s of processor", "GiB, peak"]
    return f"{markdown(head, lines)}\n\n{made_by(rows)}"


def of_shift(rows):
    rows = cost_rows.newest(rows, "shift", "corruption", "severity")
    if not rows:
        return ""
    severities = sorted({row["severity"] for row in rows})
    totals = [
        sum(row["processor"] for row in rows if row["severity"] == each)
        for each in severities
    ]
    least, most = (
        choose(rows, key=lambda row: row["processor"]) for choose in (min, max)
    )
    ends = " and ".join(
        f"{total:.1f} s of the processor at severity {each}"
        for total, each in zip(totals, severities, strict=True)
    )
    return (
        f"All {len({row['corruption'] for row in rows})} corruptions of "
        f"{rows[0]['images']:,} images of 32 x 32 pixels took {ends}; "
        f"`{least['corruption']}` took {least['processor']:.2f} s, "
        f"`{most['corruption']}` {most['processor']:.1f} s. {made_by(rows)}"
    )


if __name__ == "__main__":
    main()
