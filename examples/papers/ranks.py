"""The page of ranks: methods in order, by what does not reward coarse bins.

python examples/papers/table.py ranks
"""

import numpy as np
import run
import shift_page
import shifted
import table

TABLE = "S"
SHIFTED = "F"
ABOUT = """\
Means over seeds, and in brackets the place. A low ECE alone is little: a
perfectly calibrated network shows one, too (its floor), and one that says the
same of every image has none. So the order is that of proper scores, NLL and
Brier score, and of the ECE above its floor, in points; the last column is the
mean of the three places. After temperature scaling (TS) the NLL tells what the
network has learned. Methods with few seeds change places easily."""
REFERENCE = """\
For comparison, not as a goal: SNGP, a WRN-28-10 on all of CIFAR-10, has in the
tables of uncertainty-baselines 96.0 % accuracy at an ECE of 0.7 %, with AugMix
96.9 % at 0.45 % and an ECE of 1.5 % under corruption. With 10,000 images and so
accurate a network the floor is 0.3 to 0.5 %."""
UNDER_SHIFT = """\
Networks of F on corrupted images (`kc.shift`), means over corruptions and
severities, in points above the floor; temperatures of clean images."""


def page(results):
    """The whole page as Markdown, from the stored rows."""
    rows = run.read_rows(results / f"{TABLE}.jsonl")
    if not rows:
        raise SystemExit(f"No rows yet: python examples/papers/run.py {TABLE}")
    texts = [
        "# Ranks",
        "Printed by `python examples/papers/table.py ranks` from the rows of "
        f"`{TABLE}.jsonl` and `{SHIFTED}_shift.jsonl`.",
        table.made_by(rows.values()),
        ABOUT,
        as_trained(rows),
        REFERENCE,
    ]
    corrupted = run.read_rows(results / f"{SHIFTED}_shift.jsonl")
    if corrupted:
        texts += ["## Under corruption", UNDER_SHIFT, under_shift(corrupted)]
    return "\n\n".join(texts)


def as_trained(rows):
    """Protocol S, the method with the lowest mean place first."""
    found = dict(table.of_method(TABLE, rows))

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
        means = [row[part]["mean"] for row in found[name]]
        return 100 * np.mean([m["ece"] - m["ece_floor"] for m in means])

    columns = [
        {name: above(name, part) for name in found}
        for part in (shifted.TRAINED, shifted.SCALED)
    ]
    cells = with_places(columns, (1, 1))
    lines = [
        [name, str(len(found[name])), *cells[name]]
        for name in sorted(found, key=columns[0].get)
    ]
    header = ["method", "seeds", "ECE above floor", "after TS"]
    return table.markdown(header, lines)
