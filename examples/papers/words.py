"""Numbers in words: how much, in how many, lower or higher."""

import textwrap

import numpy as np
from spread import LEAST

WIDTH = 86


def amounts(values, digits):
    """`a`, or `a to b`, of absolute values."""
    sizes = np.abs(values)
    low, high = (f"{each:.{digits}f}" for each in (min(sizes), max(sizes)))
    return low if low == high else f"{low} to {high}"


def changes(values, unit, digits, of_all=None):
    """How many of several differences are lower and higher, and by how much.

    Args:
        values: the differences.
        unit: in words.
        digits: int.
        of_all: how many there are, where not all of them are passed.
    """
    values = np.asarray(values)
    of_all = len(values) if of_all is None else of_all
    parts = {"lower": values[values < 0], "higher": values[values >= 0]}
    found = []
    for word, part in parts.items():
        of = f"in {len(part)} of {of_all} "
        if len(part) == of_all:
            of = f"in all {len(part)} " if len(part) > 1 else ""
        if len(part):
            found.append(f"{word} {of}(by {amounts(part, digits)} {unit})")
    return " and ".join(found)


def beside(value, digits, unit, other):
    """A difference: `2.4 points lower than that of DML`."""
    size = f"{abs(value):.{digits}f}"
    if not float(size):
        return f"within {10**-digits:g} {unit} of {other}"
    return f"{size} {unit} {'lower' if value < 0 else 'higher'} than {other}"


def over_seeds(values, other, scatter):
    """`beside` of the mean of fractions, in points, and what it is of.

    Args:
        values: a difference for each seed.
        other: what is subtracted.
        scatter: `spread.Spread` of the table.
    """
    note = seeds(len(values))
    if len(values) > 1:
        p = scatter.p_value(values)
        if p is not None:
            note += f", p {p:.2g}" if p >= LEAST else f", p < {LEAST:.0e}"
        if not scatter.told_apart(values):
            note += ": not told apart"
    return f"{beside(100 * values.mean(), 1, 'points', other)} ({note})"


def percent(value):
    return f"{100 * value:.1f} %"


def seeds(number):
    return f"{number} seed{'' if number == 1 else 's'}"


def listed(words):
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def paragraph(text, mark=""):
    """Lines of one width; with a mark, those of an entry of a list."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=mark,
        subsequent_indent=" " * len(mark),
        break_long_words=False,
        break_on_hyphens=False,
    )
