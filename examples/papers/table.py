"""Prints a table of stored rows: what each method did, beside its paper.

    python examples/papers/table.py S            # Markdown
    python examples/papers/table.py F --shift    # corrupted images
    python examples/papers/table.py F --people   # against answers of people
    python examples/papers/table.py verdicts     # methods beside cross-entropy
    python examples/papers/table.py questions    # what the papers leave open
    python examples/papers/table.py ranks        # methods in order
    python examples/papers/table.py S --figures examples/figures
    python examples/papers/table.py acls         # a paper's tables, ours beside
    python examples/papers/table.py papers --into examples/results   # all five
    python examples/papers/table.py all          # every page that has rows

Mean and standard error over seeds; differences from cross-entropy are paired
by seed, with the p-value of a paired t-test to which the spread of all methods
of the table lends degrees of freedom (see `spread`). ECE (15 bins of equal
width) stands beside its noise floor: what a perfectly calibrated network with
these confidences would show.
"""

import argparse
import importlib
import json
import math
import pathlib
import sys

import claims
import measures
import methods
import numpy as np
import protocols
import published
import spread
from places import HERE
from places import RESULTS
from row_files import read_rows

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from argument_types import one_of_many

BASELINE = "CE"
# Modules with a page of their own, from the rows of several tables.
PAGES = ("verdicts", "questions", "ranks")
FIGURES = HERE.parent / "figures"
PIXELS = ("miou", "ece_mass")
_RATE = (
    "The rate of Diff-DML's auxiliaries, 0.03, had been tried on test images "
    "of CIFAR-10 in an [earlier protocol](mutual_learning_small.md); "
)
# What to know of the settings of a table.
NOTES = {
    "S": f"{_RATE}the one that was chosen on validation images has rows in "
    "[S-tuning](S-tuning.md).",
    "S10k": f"{_RATE}it is kept here.",
    "C": f"{_RATE}it is kept here.",
    "S-square": "Rate and decay, three times and a third of S, were chosen on "
    "validation images in trials that are not stored.",
    "T": "The last table is about cross-entropy alone. How MbLS stands beside "
    "LS and FL, which its paper's own table is about: [the claims]"
    "(verdicts.md#claims-t).",
    "D": "The floor is that of the ECE; of the AECE no row has one.",
    "LT": "The published rows of the last table are of ratio 10 (20,431 "
    "images), ours of ratio 50, and of other networks: only which column is "
    "lower can be compared.",
}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    pages = (*PAGES, "formulas", "papers", "all", *published.PAPERS)
    add("table", **one_of_many([*pages, *protocols.TABLES]))
    add("--results", type=pathlib.Path, default=RESULTS)
    add("--shift", action="store_true", help="on corrupted images")
    add("--figures", type=pathlib.Path, help="folder to draw into")
    add("--work", type=pathlib.Path, default=pathlib.Path("papers_work"))
    add("--people", action="store_true", help="against answers of people")
    add("--into", type=pathlib.Path, help="folder for the pages of papers")
    arguments = parser.parse_args(arguments)
    if arguments.table == "all":
        import all_pages

        for path in all_pages.write(arguments):
            print(path)
    elif arguments.table in ("papers", *published.PAPERS):
        import paper_pages

        if arguments.table != "papers":
            print(paper_pages.page(arguments.table, arguments.results))
            return
        folder = arguments.into or arguments.results
        for path in paper_pages.write_all(arguments.results, folder):
            print(path)
    elif arguments.table in PAGES:
        module = importlib.import_module(arguments.table)
        print(module.page(arguments.results))
    elif arguments.table == "formulas":
        import figures

        print(figures.formula_page(arguments.figures or FIGURES))
    elif arguments.shift:
        import shift_page

        if not protocols.keeps_weights(arguments.table):
            raise SystemExit(protocols.NO_WEIGHTS)
        rows = stored(arguments, f"{arguments.table}_shift", " --shift")
        print(shift_page.page(arguments.table, rows, arguments.figures))
    elif arguments.people:
        import people_page

        rows = stored(arguments, arguments.table)
        print(people_page.page(arguments.table, rows))
    elif arguments.figures:
        import figures

        rows = stored(arguments, arguments.table)
        where = (arguments.results, arguments.work)
        source = figures.Source(arguments.table, rows, *where)
        print(figures.page(source, arguments.figures))
    else:
        rows = stored(arguments, arguments.table)
        print("\n\n".join(tables(arguments, rows)))


def stored(arguments, name, option=""):
    """Rows of a file of results; there must be some."""
    rows = read_rows(arguments.results / f"{name}.jsonl")
    if not rows:
        command = f"python examples/papers/run.py {arguments.table}{option}"
        raise SystemExit(f"No rows yet: {command}")
    return rows


def tables(arguments, rows):
    """The tables of a protocol, or of what was tuned on it."""
    texts = [made_by(rows.values()), pace(arguments.table, rows)]
    texts.append(NOTES.get(arguments.table, ""))
    if arguments.table.endswith("-tuning"):
        path = arguments.results / f"{arguments.table}.json"
        if path.exists():
            texts.append(tuned(json.loads(path.read_text()), rows))
        else:  # some values only, none of them chosen here
            texts.append(trained(arguments.table, rows))
        return filter(None, texts)
    parts = (trained, outputs_as_probabilities, against_baseline, after_maps)
    parts += (after_calibrate, balanced, against_people, beside_the_papers)
    for part in parts:
        texts.append(part(arguments.table, rows))
    return filter(None, texts)


def made_by(rows):
    """Machine kinds, versions, dates: one line."""
    machines = sorted(
        {
            f"{row['machine']['device']}, {row['machine']['backend']}, "
            f"Keras {row['machine']['keras']}"
            for row in rows
        }
    )
    dates = sorted({row["date"] for row in rows})
    days = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    return f"{'; '.join(machines)}; {days}"


def pace(table, rows):
    """How long a row takes, from the median second of its epochs."""
    epochs = protocols.PROTOCOLS[table].epochs
    times = [row.get("epoch_seconds", 0) for row in rows.values()]
    times = sorted(epochs * each / 60 for each in times if each)
    if not times:
        return ""
    least, middle, most = (
        f"{times[place]:.0f}" for place in (0, len(times) // 2, -1)
    )
    span = least if least == most else f"{least} to {most} (median {middle})"
    return (
        f"The {epochs} epochs of a row took {span} minutes, at the median pace "
        "of its epochs, on a machine that others used as well."
    )


def of_method(table, rows):
    """Rows of each method in the order of the table, by seed.

    The variants of what is tuned are in no list: they come as they are stored.
    """
    found = dict(of_variants(rows))
    for name in protocols.TABLES[table] or found:
        if name in found:
            yield name, found[name]


def of_tuned(results, table):
    """Rows with the settings that were chosen on validation data, by method.

    Where they are the ones that the method has anyway, its own rows are these,
    and it is left out.

    Returns:
        dict from a method to `name, rows`, the name with the settings, as in
        `"DCA (weight 3)"`.
    """
    path = results / f"{table}-tuning.json"
    if not path.exists():
        return {}
    rows = dict(of_variants(read_rows(path.with_suffix(".jsonl"))))
    choices = json.loads(path.read_text())
    return {
        method: (f"{method} ({settings_of(choice)})", rows[choice["variant"]])
        for method, choice in choices.items()
        if choice["variant"] in rows
        and methods.method(choice["variant"]) != methods.METHODS[method]
    }


def of_variants(rows):
    """Rows of each method that has some, by seed."""
    for name in dict.fromkeys(method for method, _ in rows):
        found = [row for row in rows.values() if row["method"] == name]
        yield name, sorted(found, key=lambda row: row["seed"])


def settings_of(choice):
    """What was chosen in words, as in `"temperature 0.0001, weight 0.1"`."""
    return ", ".join(
        f"{step['setting'].replace('_', ' ')} {step['chosen']:g}"
        for step in choice["steps"]
    )


def cell(values, scale=1.0, digits=2):
    """`mean ± standard error`; a single value has none."""
    values = scale * np.asarray(values, "float64")
    text = f"{values.mean():.{digits}f}"
    if len(values) > 1:
        text += f" ± {standard_error(values):.{digits}f}"
    return text


def floor(values, digits=2):
    """Of an ECE, in percent: the mean over seeds."""
    return f"{100 * np.mean(values):.{digits}f}"


def standard_error(values):
    """Of the mean over seeds."""
    return values.std(ddof=1) / math.sqrt(len(values))


def markdown(header, lines):
    rule = ["---"] * len(header)
    return "\n".join(
        "| " + " | ".join(line) + " |" for line in [header, rule, *lines]
    )


def trained(table, rows):
    """Accuracy and calibration as trained, and after temperature scaling.

    Of images with a class for each pixel, also the mean overlap (mIoU) and the
    error in bins of equal mass (AECE).
    """
    pixels = any("miou" in row["test"] for row in rows.values())
    header = ["method", "seeds", *["mIoU %", "AECE %"] * pixels, "accuracy %"]
    header += ["ECE %", "floor %", "NLL"]
    header += ["Brier", "T", "ECE % after TS", "floor % after TS"]
    header += ["NLL after TS"]
    lines = []
    for name, found in of_method(table, rows):

        def values(key, part="test", found=found):
            return [row[part][key] for row in found]

        scaled = "test_scaled"
        lines.append(
            [
                name,
                str(len(found)),
                *(cell(values(key), 100) for key in PIXELS * pixels),
                cell(values("accuracy"), 100),
                cell(values("ece"), 100),
                floor(values("ece_floor")),
                cell(values("nll"), digits=3),
                cell(values("brier"), digits=3),
                f"{np.mean(values('temperature', scaled)):.2f}",
                cell(values("ece", scaled), 100),
                floor(values("ece_floor", scaled)),
                cell(values("nll", scaled), digits=3),
            ]
        )
    return markdown(header, lines)


def outputs_as_probabilities(table, rows):
    """Errors of a square loss whose outputs are themselves probabilities.

    They are cut at a small number and divided by their sum; a softmax of them,
    as in the table above, is far underconfident.
    """
    header = ["outputs read as probabilities", "seeds", "ECE %", "floor %"]
    lines = []
    for name, found in of_method(table, rows):
        read = [row.get("test_as_probabilities") for row in found]
        read = [errors for errors in read if errors]
        if read:
            line = [name, str(len(read)), cell([e["ece"] for e in read], 100)]
            line.append(floor([e["ece_floor"] for e in read]))
            nll = cell([e["nll"] for e in read], digits=3)
            brier = cell([e["brier"] for e in read], digits=3)
            lines.append([*line, nll, brier])
    return markdown([*header, "NLL", "Brier"], lines) if lines else ""


def tuned(choices, rows):
    """What was tried and chosen on validation data, and its test errors.

    Errors in percent: accuracy / ECE of each value on validation data.
    """
    header = ["method", "tried (accuracy / ECE on validation)", "chosen"]
    header += ["seeds", "test accuracy %", "test ECE %", "floor %"]
    lines = []
    found = dict(of_variants(rows))
    for method, choice in choices.items():
        tests = [row["test"] for row in found[choice["variant"]]]
        tried = "; ".join(
            f"{step['setting']} "
            + ", ".join(
                f"{each['value']:g}: diverged"
                if "diverged" in each
                else f"{each['value']:g}: {100 * each['accuracy']:.1f} / "
                f"{100 * each['ece']:.1f}"
                for each in step["tried"]
            )
            for step in choice["steps"]
        )
        chosen = settings_of(choice)
        scores = [
            cell([test[key] for test in tests], 100)
            for key in ("accuracy", "ece")
        ]
        scores.append(floor([test["ece_floor"] for test in tests]))
        lines.append([method, tried, chosen, str(len(tests)), *scores])
    return markdown(header, lines)


def paired(table, rows):
    """Each method with its rows beside cross-entropy's of the same seeds."""
    for name, found in of_method(table, rows):
        pairs = beside_baseline(found, rows)
        if name != BASELINE and pairs:
            yield name, pairs


def beside_baseline(found, rows):
    """Pairs of a row and cross-entropy's of the same seed, where it has one.

    Args:
        found: rows of a method.
        rows: a dict from `(method, seed)`, with those of cross-entropy.
    """
    pairs = [(row, rows.get((BASELINE, row["seed"]))) for row in found]
    return [pair for pair in pairs if pair[1] is not None]


def difference(pairs, key, part="test", other_part=""):
    """First minus second row of each pair, of a key of one part or of two."""
    other_part = other_part or part
    return np.array([a[part][key] - b[other_part][key] for a, b in pairs])


def against_baseline(table, rows):
    """Differences from cross-entropy, seed by seed."""
    if not any(paired(table, rows)):
        return ""
    header = ["method - CE", "pairs", "accuracy, points", "ECE, points"]
    header += ["NLL", "NLL after TS", "p (ECE)", "p (NLL after TS)"]
    lines = []
    of_ece = spread_of(table, rows, "ece")
    of_nll = spread_of(table, rows, "nll", "test_scaled")
    for name, pairs in paired(table, rows):
        ece = difference(pairs, "ece")
        after = difference(pairs, "nll", "test_scaled")
        lines.append(
            [
                name,
                str(len(pairs)),
                cell(difference(pairs, "accuracy"), 100),
                cell(ece, 100),
                cell(difference(pairs, "nll"), digits=3),
                cell(after, digits=3),
                of_ece.cell(ece),
                of_nll.cell(after),
            ]
        )
    return markdown(header, lines)


def spread_of(table, rows, key, part="test"):
    """How far differences from cross-entropy scatter over seeds."""
    found = [with_key(pairs, key, part) for _, pairs in paired(table, rows)]
    return spread.Spread(difference(pairs, key, part) for pairs in found)


def with_key(pairs, key, part="test", other_part=""):
    """Those pairs of rows that have a key; older rows may not."""
    other_part = other_part or part
    return [
        (row, other)
        for row, other in pairs
        if key in row.get(part, {}) and key in other.get(other_part, {})
    ]


def after_maps(table, rows):
    """NLL on test images after every map, fitted to calibration images."""
    names = keys_of(rows.values(), "maps")
    names = [name for name in names if name not in measures.CALIBRATED]
    return of_maps("NLL after", names, of_method(table, rows))


def keys_of(rows, part):
    """Keys that a part of any row has, such as the maps, in their order."""
    return [*dict.fromkeys(key for row in rows for key in row.get(part, {}))]


def after_calibrate(table, rows):
    """The same after `kc.calibrate`, of the rows that have it.

    Maps that it tries stand beside what it chooses.
    """
    names = [*measures.TRIED, *measures.CALIBRATED]
    found = {
        name: [row for row in own if {*names} <= {*row.get("maps", {})}]
        for name, own in of_method(table, rows)
    }
    found = {name: own for name, own in found.items() if own}
    if not found:
        return ""
    return of_maps("NLL after `kc.calibrate`", names, found.items(), True)


def of_maps(title, names, methods, seeds=False):
    """A table of the NLL on test images after each of these maps."""
    lines = []
    for name, found in methods:
        plain = [row["test_scaled"]["nll"] for row in found]
        lines.append([name, *[str(len(found))] * seeds, cell(plain, digits=3)])
        for each in names:
            maps = [row.get("maps", {}).get(each, {}) for row in found]
            values = [result.get("nll") for result in maps]
            known = None not in values
            lines[-1].append(cell(values, digits=3) if known else "-")
    header = [title, *["seeds"] * seeds, "TemperatureScaling", *names]
    return markdown(header, lines)


def balanced(table, rows):
    """ECE after each map, fitted in each way to rows with a tail."""
    if not keys_of(rows.values(), "class_balance"):
        return ""
    lines = []
    for name, found in of_method(table, rows):
        for each in keys_of(found, "class_balance"):
            line = [name, each]
            ways = [row.get("class_balance", {}).get(each, {}) for row in found]
            for way in measures.BALANCES:
                of_way = [result.get(way, {}) for result in ways]
                known = all("ece" in result for result in of_way)
                values = [result.get("ece") for result in of_way]
                line.append(cell(values, 100) if known else "-")
            lines.append(line)
    for network, (plain, scaled) in claims.LONG_TAILED.items():
        source = f"published, {network}"
        line = [source, "TemperatureScaling", f"{plain:.2f}", f"{scaled:.2f}"]
        lines.append(line + ["-"] * (len(measures.BALANCES) - 2))
    ways = [f"ECE %, {way}" for way in measures.BALANCES]
    return markdown(["method", "map", *ways], lines)


def against_people(table, rows):
    """Errors against the answers of people (CIFAR-10H), as far as stored.

    After temperature scaling to one label per image, and to the answers.
    """
    if not any("people" in row for row in rows.values()):
        return ""
    header = ["against people", "seeds", "ECE %", "KL", "T", "ECE % after TS"]
    header += ["KL after TS", "T of people", "ECE % after it", "KL after it"]
    header += ["entropy after TS", "entropy of people"]
    lines = []
    for name, found in of_method(table, rows):
        found = [row["people"] for row in found if "people" in row]
        line = [name, str(len(found))]
        for part in ("test", "test_scaled", "test_scaled_to_people"):
            of_part = {
                key: [each[part][key] for each in found]
                for key in ("temperature", "ece", "kl", "mean_entropy")
            }
            if part != "test":
                line.append(cell(of_part["temperature"]))
            line.append(cell(of_part["ece"], 100))
            line.append(cell(of_part["kl"], digits=3))
            if part == "test_scaled":
                entropy = cell(of_part["mean_entropy"], digits=3)
        line += [entropy, f"{found[0]['entropy']:.3f}"]
        lines.append(line)
    return markdown(header, lines)


def beside_the_papers(table, rows):
    """Claims and what is seen here: differences from cross-entropy, points.

    The papers train large networks to the end; these protocols train small
    ones on few samples. Only directions can be compared.
    """
    header = ["method - CE", "published in", "accuracy there", "ECE there"]
    header += ["accuracy here", "ECE here", "ECE goes"]
    lines = []
    of_ece = spread_of(table, rows, "ece")
    for name, pairs in paired(table, rows):
        here = difference(pairs, "ece")
        for source, (score, ece) in claims.of_method(name, table):
            there = ece - source.baseline[1]
            note = f" ({source.ece})" if source.ece else ""
            known = score is not None
            change = f"{score - source.baseline[0]:+.2f}" if known else "-"
            lines.append(
                [
                    name,
                    source.source,
                    change,
                    f"{there:+.2f}{note}",
                    cell(difference(pairs, source.score), 100),
                    cell(here, 100),
                    verdict(there, here, of_ece),
                ]
            )
    if not lines:
        return ""
    if "miou" in next(iter(rows.values()))["test"]:
        header = [each.replace("accuracy", "mIoU") for each in header]
    return markdown(header, lines)


def verdict(there, here, of_ece):
    """Whether the error goes the way that it went in the paper."""
    if len(here) > 1 and not of_ece.told_apart(here):
        return "not told apart from 0 here"
    direction = "the same way" if there * here.mean() > 0 else "the other way"
    return direction if len(here) > 1 else f"{direction}, one seed"


def p_value(differences):
    """Of a paired t-test; a dash below three pairs."""
    if len(differences) < 3:
        return "-"
    from scipy import stats

    return f"{stats.ttest_1samp(differences, 0.0).pvalue:.3g}"


if __name__ == "__main__":
    sys.exit(main())
