"""Trains what a table of the papers needs, one row at a time.

    python examples/papers/run.py S                     # all missing rows
    python examples/papers/run.py S --only ACLS --seeds 1
    python examples/papers/run.py G30 --jobs 2 --seconds 540
    python examples/papers/run.py --paper acls --size gpu   # and its page
    python examples/papers/run.py tiny-resnet50 --only CE   # one of them
    python examples/papers/run.py --check S/ACLS/0      # run a row again
    python examples/papers/run.py S --measure           # from stored logits
    python examples/papers/run.py S --tune              # choose settings
    python examples/papers/run.py F --shift             # corrupted images
    python examples/papers/run.py S --only CE --history 4   # ECE by epoch
    python examples/papers/run.py S-sweep --only MbLS   # margins and weights

A finished row is one JSON line in `examples/results/<table>.jsonl`; the
logits of validation, calibration and test images go to `--work`, outside git.
Stopped and started again, it goes on where it was, epoch by epoch; killed, from
its checkpoint of the last minute (`CHECKPOINT_SECONDS=0`: of the last epoch).
CRL and AdaFocal leave their shuffling to Keras: theirs is another order then. A
row whose loss gives other values, or another gradient, than when the row was
made is run again. For the data see `kc.datasets.load`.
"""

import argparse
import pathlib
import sys
import time

import methods
import protocols
import published
from checks import check
from data_at_hand import absent
from data_at_hand import ready
from measured_again import measure_again
from missing import base
from missing import missing_rows
from missing import nothing_between_epochs
from missing import refused
from missing import without_probes
from of_a_paper import methods_of
from of_a_paper import tables_of
from one_row import run_row
from places import RESULTS
from processes import run_all
from tuned import tune

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from argument_types import one_of_many
from argument_types import positive_int

HISTORY = "measure validation samples every N epochs, too: a pass over them"


def main(arguments=None):
    arguments = parse(arguments)
    if arguments.download:
        import data_sets

        data_sets.DOWNLOAD = True
    if arguments.check:
        return check(arguments)
    if arguments.row:
        return run_row(arguments, *arguments.row)
    if arguments.measure:
        return measure_again(arguments)
    if arguments.tune:
        return tune(arguments)
    if arguments.shift:
        import shifted

        return shifted.measure_missing(arguments)
    if arguments.table is None:
        return run_paper(arguments)
    return run_table(arguments)


def run_table(arguments):
    inside = dict.fromkeys(map(base, protocols.TABLES[arguments.table]))
    if refused(arguments, inside, f"{arguments.table} has"):
        return 2
    if arguments.history and nothing_between_epochs(arguments):
        return 2
    rows = missing_rows(arguments)
    print(f"{arguments.table}: {len(rows)} rows to run", flush=True)
    unnoticed = without_probes(arguments)
    if unnoticed:
        print(unnoticed, flush=True)
    if rows and not ready(arguments):
        return 2
    return run_all(arguments, rows)


def run_paper(arguments):
    """Run what the page of a paper shows of all tables of a size; print it.

    Tables whose data are not there are left out.
    """
    begin, status = time.time(), 0
    plans = []
    for name, wanted in tables_of(arguments.paper, arguments.size).items():
        again = argparse.Namespace(**vars(arguments))
        again.table, again.only = name, wanted
        if announced(again):
            plans.append(again)
        else:
            status = 1
    for again in plans:
        if arguments.seconds is not None:
            again.seconds = arguments.seconds - (time.time() - begin)
        status |= run_table(again)
    import paper_pages

    print(paper_pages.page(arguments.paper, arguments.results))
    return status


def announced(arguments):
    """Print what of a table is to be run; whether its data are there."""
    rows, name = missing_rows(arguments), arguments.table
    reason = absent(arguments) if rows else None
    if reason:
        print(f"{name}: skipped, {reason}", flush=True)
        return False
    epochs = len(rows) * protocols.PROTOCOLS[name].epochs
    print(f"{name}: {len(rows)} rows to run, {epochs} epochs", flush=True)
    return True


def parse(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0],
    )
    add = parser.add_argument
    add("table", nargs="?", **one_of_many(protocols.TABLES))
    names = [*methods.METHODS, *protocols.OTHER_PUBLISHED]
    add("--only", nargs="+", metavar="METHOD", **one_of_many(names))
    add("--paper", choices=published.PAPERS, help="methods of its page only")
    add("--size", choices=("cpu", "gpu"), help="of all tables of a --paper")
    add("--history", type=positive_int, metavar="N", help=HISTORY)
    add(
        "--seeds",
        type=positive_int,
        help="so many seeds of each method at most",
    )
    add(
        "--jobs",
        type=positive_int,
        default=1,
        help="rows at a time, a process each",
    )
    add("--threads", type=positive_int, help="threads of each process (CPU)")
    add("--seconds", type=float, help="stop in time; run again to go on")
    add("--results", type=pathlib.Path, default=RESULTS)
    add("--work", type=pathlib.Path, default=pathlib.Path("papers_work"))
    add("--check", metavar="TABLE/METHOD/SEED", help="run a stored row again")
    add("--measure", action="store_true", help="measure stored logits again")
    add("--tune", action="store_true", help="choose settings on validation")
    add("--shift", action="store_true", help="measure on corrupted images")
    add("--download", action="store_true", help="data that are not there")
    add(
        "--images",
        type=positive_int,
        help="so many test images to corrupt, not all",
    )
    add("--row", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args(arguments)
    of_paper = arguments.paper and not arguments.table
    if of_paper and arguments.size is None:
        arguments.size = "cpu"
    size = "gpu" if arguments.table in protocols.GPU else "cpu"
    if arguments.size and arguments.table and arguments.size != size:
        parser.error(f"{arguments.table} has one size, {size}.")
    if not (arguments.table or arguments.check or of_paper):
        parser.error("Which table? One of " + ", ".join(protocols.TABLES))
    if of_paper and (arguments.only or arguments.measure or arguments.shift):
        parser.error("--only, --measure and --shift need a table.")
    if arguments.tune and arguments.table not in protocols.TUNED:
        parser.error("Tuned are " + ", ".join(protocols.TUNED))
    if arguments.paper and arguments.only:
        parser.error("--only and --paper both name methods: pass one.")
    if arguments.paper and arguments.table:
        arguments.only = methods_of(arguments.paper, arguments.table)
        if not arguments.only:
            parser.error(
                f"{arguments.table} is not on the page of {arguments.paper}."
            )
    if arguments.images and not arguments.shift:
        parser.error("--images is about --shift.")
    if arguments.shift and not protocols.keeps_weights(arguments.table):
        parser.error(protocols.NO_WEIGHTS)
    return arguments


if __name__ == "__main__":
    sys.exit(main())
