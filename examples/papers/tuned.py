"""Runs what the choices of `tuning` need, one after the other."""

import argparse
import time

import protocols
import tuning
from data_at_hand import ready
from missing import changed
from missing import refused
from missing import still_diverged
from missing import to_run
from processes import run_all
from row_files import read_rows


def tune(arguments):
    """Run what the next choices need, choose, and go on until all is chosen.

    Rows go to `<table>-tuning.jsonl`, grids and choices to
    `<table>-tuning.json`. With `--seeds`, the chosen variants are run with
    more seeds afterwards.
    """
    inside = protocols.TABLES[arguments.table]
    names = every = [name for name in tuning.GRIDS if name in inside]
    if refused(arguments, every, "Grids have"):
        return 2
    if arguments.only:
        names = [name for name in names if name in arguments.only]
    again = argparse.Namespace(**vars(arguments))
    again.table = f"{arguments.table}-tuning"
    path = arguments.results / f"{again.table}.jsonl"
    begin = time.time()
    while True:
        stored = read_rows(path)
        good = {
            row: values
            for row, values in stored.items()
            if not changed(again.table, row[0], values)
        }
        lost = still_diverged(again.table, arguments.results)
        waiting = [tuning.progress(name, good, lost)[1] for name in names]
        rows = [(name, 0) for step in waiting for name in step]
        # Also what was chosen for others: the file is written anew.
        choices = tuning.store(path.with_suffix(".json"), every, good, lost)
        if not rows:
            seeds = range(arguments.seeds or 1)
            chosen = [choices[name]["variant"] for name in names]
            wanted = [(name, seed) for seed in seeds for name in chosen]
            wanted = [row for row in wanted if row not in lost]
            rows = to_run(again.table, wanted, good)
        if not rows:
            return 0
        print(f"{again.table}: {len(rows)} rows to run now", flush=True)
        if not ready(again):
            return 2
        if arguments.seconds is not None:
            again.seconds = arguments.seconds - (time.time() - begin)
        status = run_all(again, rows)
        lost = still_diverged(again.table, arguments.results)
        rows = [row for row in rows if row not in lost]
        if status or to_run(again.table, rows, read_rows(path)):
            return status
