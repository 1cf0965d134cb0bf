"""Runs a stored row again: how far the two may be apart."""

import argparse
import statistics
import sys
import time

import processes
import spread
from row_files import read_rows

# What a run on the same machine may differ by.
SAME_RUN = 0.003


def check(arguments):
    """Run a stored row again and compare; exit status 1 where it differs."""
    table, _, rest = arguments.check.partition("/")
    method, _, seed = rest.rpartition("/")
    rows = read_rows(arguments.results / f"{table}.jsonl")
    if not seed.isdecimal() or (method, int(seed)) not in rows:
        known = ", ".join(f"{table}/{name}/{each}" for name, each in rows)
        print(
            f"--check takes a stored row as TABLE/METHOD/SEED, not "
            f"{arguments.check}; of this table there are: {known or 'none'}",
            file=sys.stderr,
        )
        return 2
    stored = rows[method, int(seed)]
    aside = arguments.work / "check"
    again = argparse.Namespace(**vars(arguments))
    again.table, again.results, again.work = table, aside, aside
    again.threads = arguments.threads or stored["threads"]
    path = aside / f"{table}.jsonl"
    for name in (table, f"{table}-diverged"):  # what an earlier check found
        (aside / f"{name}.jsonl").unlink(missing_ok=True)
    process, _ = processes.start(again, method, int(seed), time.time())
    state = processes.state_of(again, (method, int(seed)), process.wait())
    if state:
        print(state)
        return 1
    found = read_rows(path)[method, int(seed)]
    status = 0
    for key in ("accuracy", "ece"):
        before, after = stored["test"][key], found["test"][key]
        limit = SAME_RUN
        if not same_machine(stored, found):
            limit = limit_elsewhere(rows, method, key)
        word = verdict(abs(before - after), limit)
        status |= word != "agrees"
        print(f"{key}: stored {before:.4f}, now {after:.4f}: {word}")
    return status


def limit_elsewhere(rows, method, key):
    """What a run on another machine may differ by; `None` if nothing tells.

    Two deviations over the seeds of the method; of one or two seeds, over those
    of all methods of the table.
    """
    values = {}
    for (name, _), row in rows.items():
        values.setdefault(name, []).append(row["test"][key])
    if len(values[method]) > 2:
        variance = statistics.variance(values[method])
    else:
        variance = spread.Spread(values.values()).variance
        if not variance:
            return None
    return max(SAME_RUN, 2 * variance**0.5)


def verdict(difference, limit):
    """What a check says of a difference."""
    if difference <= (limit or SAME_RUN):
        return "agrees"
    if limit is None:
        return "too few seeds to tell on another machine"
    return "DIFFERS"


def same_machine(stored, found):
    """Whether a run can be repeated in every digit, or nearly.

    Rows of before name no processor.
    """
    keys = "machine", "threads"
    return all(str(stored[key]) == str(found[key]) for key in keys)
