"""The page of ranks: methods in order, by what does not reward coarse bins.

python examples/papers/table.py ranks
"""

import numpy as np
import shift_page
import shifted
import table
from row_files import read_rows

TABLE = "S"
SHIFTED = "F"
ABOUT = """\
Means over seeds, and in brackets the place. A low ECE alone is little: a
perfectly calibrated network shows one, too (its floor), and one that says the
same of every image has none. So the order is that of proper scores, NLL and
Brier score, and of the ECE above its floor, in points; the last column is the
mean of the three places. After temperature scaling (TS) the NLL tells what the
network has learned. Methods with few seeds change places easily.

A line with settings in brackets has those that were [chosen on validation
images](S-tuning.md). All others have their paper's or the default settings,
which of FL and ER are those that were chosen. Where a method has two lines,
that with brackets is the one to compare."""
# Of Diff-DML, whose rate is the one setting that came from test images.
NOT_CHOSEN = """\
One setting was not chosen on validation images: the rate of Diff-DML's
auxiliaries, 0.03, had been tried on test images of CIFAR-10 in an [earlier
protocol](mutual_learning_small.md). It is that of the lines "Diff-DML",
"Diff-DML-2" and "Diff-DML, labels 10 %" and "20 %"; the line with auxiliary
rate 0.1 is free of it."""
REFERENCE = """\
For comparison, not as a goal: SNGP, a WRN-28-10 on all of CIFAR-10, has in the
tables of uncertainty-baselines 96.0 % accuracy at an ECE of 0.7 %, with AugMix
96.9 % at 0.45 % and an ECE of 1.5 % under corruption. With 10,000 images and so
accurate a network the floor is 0.3 to 0.5 %."""
UNDER_SHIFT = """\
Networks of F on corrupted images (`kc.shift`), means over corruptions and
severities, in points above the floor; temperatures of clean images. No setting
was tuned on F. A dash: not measured."""


def page(results):
    """The whole page as Markdown, from the stored rows."""
    rows = read_rows(results / f"{TABLE}.jsonl")
    if not rows:
        raise SystemExit(f"No rows yet: python examples/papers/run.py {TABLE}")
    found = dict(table.of_method(TABLE, rows))
    found |= dict(table.of_tuned(results, TABLE).values())
    corrupted = read_rows(results / f"{SHIFTED}_shift.jsonl")
    used = [row for each in found.values() for row in each]
    texts = [
        "# Ranks",
        "Printed by `python examples/papers/table.py ranks` from the rows of "
        f"`{TABLE}.jsonl`, `{TABLE}-tuning.jsonl` and "
        f"`{SHIFTED}_shift.jsonl`.",
        table.made_by([*used, *corrupted.values()]),
        ABOUT,
        as_trained(found),
        NOT_CHOSEN,
        REFERENCE,
    ]
    if corrupted:
        texts += ["## Under corruption", UNDER_SHIFT, under_shift(corrupted)]
    return "\n\n".join(texts)


def as_trained(found):
    """Protocol S, the method with the lowest mean place first.

    Args:
        found: rows by the name of a method, with its settings if it was tuned.
    """

    def mean(key, part="test"):
        return {
            name: float(np.mean([row[part][key] for row in each]))
            for name, each in found.items()
        }

    floor = mean("ece_floor")
    ece = mean("ece")
    above = {name: 100 * (ece[name] - floor[name]) for name in found}
    scores = [mean("nll"), mean("brier"), above]
    columns = [*scores, mean("nll", "test_scaled")]
    places = [places_of(column) for column in scores]
    total = {name: np.mean([p[name] for p in places]) for name in found}
    cells = with_places(columns, (3, 3, 2, 3))
    lines = [
        [name, str(len(found[name])), *cells[name], f"{total[name]:.1f}"]
        for name in sorted(found, key=total.get)
    ]
    header = ["method", "seeds", "NLL", "Brier", "ECE above floor"]
    return table.markdown([*header, "NLL after TS", "mean place"], lines)


def places_of(values):
    """The place of each name, 1 for the lowest value."""
    order = sorted(values, key=values.get)
    return {name: order.index(name) + 1 for name in values}


def with_places(columns, digits):
    """The cells of each name: its values, and in brackets their places."""
    places = [places_of(column) for column in columns]
    return {
        name: [
            f"{column[name]:.{each}f} ({place[name]})"
            for column, place, each in zip(columns, places, digits, strict=True)
        ]
        for name in columns[0]
    }


def under_shift(rows):
    """ECE above its floor on corrupted images, the lowest first."""
    found = shift_page.in_order(SHIFTED, rows)

    def above(name, part):
        means = [row[part]["mean"] for row in found[name] if part in row]
        return 100 * np.mean([m["ece"] - m["ece_floor"] for m in means])

    columns = {
        part: {
            name: above(name, part)
            for name in shift_page.with_part(found, part)
        }
        for part in shift_page.PARTS
    }
    cells = {
        part: with_places([column], (1,)) if column else {}
        for part, column in columns.items()
    }
    order = sorted(found, key=columns[shifted.TRAINED].get)

    def cell(name, part):
        (text,) = cells[part].get(name, ["-"])
        return text + shift_page.of_fewer(found[name], part)

    lines = [
        [
            *(name, str(len(found[name]))),
            *(cell(name, part) for part in shift_page.PARTS),
        ]
        for name in order
    ]
    _, *others = shift_page.PARTS
    header = ["method", "seeds", "ECE above floor", *others]
    return table.markdown(header, lines)
