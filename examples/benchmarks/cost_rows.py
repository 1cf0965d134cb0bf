"""The rows of `costs.jsonl`: what the scripts beside this one measure.

With `--store` a script appends what it prints; `cost_tables.py` makes the
tables of the READMEs of the rows.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import stored_rows

RESULTS = pathlib.Path(__file__).parents[1] / "results" / "costs.jsonl"


def add_option(parser):
    """`--store [FILE]` of a script."""
    parser.add_argument(
        "--store",
        type=pathlib.Path,
        nargs="?",
        const=RESULTS,
        metavar="FILE",
        help=f"append rows, by default to {RESULTS.name}",
    )


def store(path, benchmark, **values):
    """Append a row, if there is a file for it."""
    if path is not None:
        row = {"benchmark": benchmark, **values}
        stored_rows.append(path, {**row, **stored_rows.provenance()})


def newest(path, benchmark, *keys):
    """The last row of each backend and of each value of `keys`."""
    found = {}
    for row in stored_rows.read(path) if path.exists() else []:
        if row["benchmark"] == benchmark:
            name = row["machine"]["backend"], *(row[key] for key in keys)
            found[name] = row
    return list(found.values())
