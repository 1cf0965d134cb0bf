"""Stored rows, measured again from their logits with today's code."""

import pathlib
import sys

import protocols
from missing import base
from missing import refused
from places import stored_logits
from row_files import newest
from row_files import read_rows

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import stored_rows

# By how much the accuracy of stored logits, float16, differs from their row's.
SAME_LOGITS = 2e-4


def measure_again(arguments):
    """Measure the stored logits of all rows with today's code.

    Logits of another training of a row, whose accuracy differs, are left out.
    """
    import work

    path = arguments.results / f"{arguments.table}.jsonl"
    rows, measured = read_rows(path), []
    inside = dict.fromkeys(base(method) for method, _ in rows)
    if rows and refused(arguments, inside, f"{path.name} has"):
        return 2
    for (method, seed), row in rows.items():
        if arguments.only and base(method) not in arguments.only:
            continue
        found = stored_logits(arguments, method, seed)
        if not found:
            print(f"{method}, seed {seed}: no logits in {arguments.work}")
            continue
        protocol = protocols.PROTOCOLS[arguments.table]
        results = work.results(found, protocol, method)
        there = results["test"]["accuracy"]
        here = row["test"].get("accuracy", there)
        if abs(there - here) > SAME_LOGITS:
            print(
                f"{method}, seed {seed}: {found} is of another training, with "
                f"an accuracy of {there:.4f} instead of {here:.4f}; not used"
            )
            continue
        measured.append((row, results))
    if not rows:
        print(f"no rows in {path}")
        return 1
    stored_rows.change(path, lambda found: with_measures(found, measured))
    return 0


def with_measures(rows, measured):
    """The newest of each row, with results that replace some of its own.

    Args:
        rows: of a file, in its order.
        measured: pairs of a row as it was when it was measured, and results.
    """
    found = newest(rows)
    for row, results in measured:
        key = row["method"], row["seed"]
        if found.get(key) == row:  # else it was trained again meanwhile
            found[key] = {**row, **results}
    return list(found.values())
