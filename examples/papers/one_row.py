"""Trains, measures and stores one row, in a process of its own."""

import contextlib
import fcntl
import json
import os
import pathlib
import sys
import time

from missing import not_done
from places import folder_of
from places import slug
from processes import BUSY
from processes import DIVERGED
from processes import STOPPED

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import stored_rows
from stored_rows import append


def run_row(arguments, method, seed):
    """Train, measure and store one row, in this process; its exit status."""
    begin, seed = time.time(), int(seed)
    path = folder_of(arguments) / slug(method, seed)
    with alone(f"{path}.lock"):
        # Another driver may have stored it since this one was started.
        if not not_done(arguments, [(method, seed)]):
            print("already stored", flush=True)
            return 0
        return train_row(arguments, method, seed, path, begin)


def train_row(arguments, method, seed, path, begin):
    """See `run_row`; nobody else trains or stores this row meanwhile."""
    import unfinished
    import work

    deadline = None
    if arguments.seconds is not None:
        deadline = begin + arguments.seconds
    name = arguments.table
    # What fails here would fail after the training.
    stored_rows.require_writable(arguments.results / f"{name}.jsonl")
    made_on = stored_rows.provenance(
        arguments.threads or os.environ.get(threads_variable())
    )
    made = unfinished.begin(path, name, method)
    given = path, arguments.work, deadline, arguments.history
    status = 0
    try:
        row = work.run(name, method, seed, *given)
    except FloatingPointError as error:
        status, row = DIVERGED, {"diverged": str(error)}
    if row is None:
        print("stopped in time; start again to go on", flush=True)
        return STOPPED
    kind = {"table": name, "method": method, "seed": seed}
    if status == DIVERGED:
        name += "-diverged"
    append(
        arguments.results / f"{name}.jsonl",
        {**kind, **row, **made, **made_on},
    )
    unfinished.remove(path)
    print(json.dumps(row.get("test") or row["diverged"]), flush=True)
    return status


@contextlib.contextmanager
def alone(path):
    """Only one process at a time is inside; its end, by any cause, frees it."""
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(
                "Another process trains this row, perhaps of a driver that was "
                "killed alone. Wait for it, or end it.",
                file=sys.stderr,
            )
            raise SystemExit(BUSY) from None
        yield


def threads_variable():
    """What decides how many threads the backend has."""
    import keras

    if keras.backend.backend() == "tensorflow":
        return "TF_NUM_INTRAOP_THREADS"
    return "OMP_NUM_THREADS"
