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
import contextlib
import datetime
import fcntl
import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import checks
import logs
import methods
import protocols
import published

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import stored_rows
from argument_types import one_of_many
from argument_types import positive_int
from checks import same_machine
from row_files import has_epochs
from row_files import newest
from row_files import read_rows
from stored_rows import append

HISTORY = "measure validation samples every N epochs, too: a pass over them"
HERE = pathlib.Path(__file__).parent
RESULTS = HERE.parent / "results"
NO_WEIGHTS = "Weights are kept only where a network is fine-tuned."
# Exit statuses of the process of a row: another one trains it, its time was
# over before its training, its training ended without finite logits.
BUSY, STOPPED, DIVERGED = 75, 76, 77
# By how much the accuracy of stored logits, float16, differs from their row's.
SAME_LOGITS = 2e-4


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


DIFFERENT_FILES = """\
Files differ from their commit: each new row names it with a "+", and nobody can
go back to the code that made it. Commit before rows are to be kept."""


def files_differ():
    """Whether rows would name a commit that is not their code."""
    commit = stored_rows._commit()
    return commit is not None and commit.endswith("+")


def run_table(arguments):
    inside = dict.fromkeys(map(base, protocols.TABLES[arguments.table]))
    if refused(arguments, inside, f"{arguments.table} has"):
        return 2
    if arguments.history and nothing_between_epochs(arguments):
        return 2
    rows = missing(arguments)
    print(f"{arguments.table}: {len(rows)} rows to run", flush=True)
    unnoticed = without_probes(arguments)
    if unnoticed:
        print(unnoticed, flush=True)
    if rows and not ready(arguments):
        return 2
    return run_all(arguments, rows)


def refused(arguments, known, who):
    """Whether none of the methods that were asked for is known.

    It names the unknown ones.
    """
    wanted = arguments.only or known
    unknown = [name for name in wanted if name not in known]
    if unknown or not known:
        text = f"{who} {', '.join(known) or 'no methods'}."
        if unknown:
            text += f" Not among them: {', '.join(unknown)}."
        print(text, file=sys.stderr)
    return len(unknown) == len(wanted)


def ready(arguments):
    """Whether rows can be trained and stored; it says what is in the way."""
    path = arguments.results / f"{arguments.table}.jsonl"
    try:
        stored_rows.require_writable(path)
        folder_of(arguments)
    except OSError as error:
        print(f"Nothing can be stored: {error}", file=sys.stderr)
        return False
    reason = absent(arguments)
    if reason:
        print(f"{arguments.table}: {reason}", file=sys.stderr)
    return not reason


def absent(arguments):
    """Why the data of a table cannot be read, or `None`.

    They are read, once, so that they lie in the working folder afterwards.
    """
    return _absent(arguments.table, arguments.work)


@functools.cache
def _absent(table, folder):
    import data_sets

    return data_sets.absent(protocols.PROTOCOLS[table], folder)


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
    rows, name = missing(arguments), arguments.table
    reason = absent(arguments) if rows else None
    if reason:
        print(f"{name}: skipped, {reason}", flush=True)
        return False
    epochs = len(rows) * protocols.PROTOCOLS[name].epochs
    print(f"{name}: {len(rows)} rows to run, {epochs} epochs", flush=True)
    return True


def methods_of(paper, table):
    """Methods of the page of a paper that a table has."""
    inside = protocols.TABLES[table]
    found = published.methods_of(paper, table.removesuffix("-cross"))
    return [name for name in found if name in inside]


def tables_of(paper, size):
    """Our tables on the page of a paper and their methods, in its order.

    Where several stand for each other, the first one, which is the paper's own
    network and schedule.
    """
    names = {}
    for block in published.PAPERS[paper].blocks:
        for name, *_ in block.groups():
            # Rows that are stored apart stand in the same column.
            names |= dict.fromkeys((name, f"{name}-cross"))
    found = {
        name: methods_of(paper, name)
        for name in names
        if name in protocols.TABLES
        and (name in protocols.GPU) == (size == "gpu")
    }
    swept = published.PAPERS[paper].swept
    if swept and size == "cpu":
        found["S-sweep"] = list(swept)
    return {name: wanted for name, wanted in found.items() if wanted}


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
    if arguments.shift and not keeps_weights(arguments.table):
        parser.error(NO_WEIGHTS)
    return arguments


def keeps_weights(table):
    return protocols.PROTOCOLS[table].kind == "fine_tuning"


def missing(arguments):
    """Rows to run: method and seed, every method's first seed first."""
    return not_done(arguments, wanted_rows(arguments), tell=True)


def wanted_rows(arguments):
    """Rows of a table that were asked for, in the order of `missing`."""
    table = protocols.TABLES[arguments.table]
    wanted = []
    for name, seeds in table.items():
        if arguments.only and base(name) not in arguments.only:
            continue
        seeds = min(seeds, arguments.seeds or seeds)
        wanted += [(seed, name) for seed in range(seeds)]
    ranks = {name: rank for rank, name in enumerate(table)}
    wanted.sort(key=lambda row: (row[0], ranks[row[1]]))
    return [row[::-1] for row in wanted]


def not_done(arguments, wanted, tell=False):
    """Those of the wanted rows that are to be run, as the files are now.

    Args:
        arguments: of `parse`.
        wanted: pairs of method and seed.
        tell: whether to print how many diverged.
    """
    table, every = arguments.table, arguments.history
    stored = read_rows(arguments.results / f"{table}.jsonl")
    if every:
        # Their newer rows will stand in their place.
        stored = {
            row: of
            for row, of in stored.items()
            if has_epochs(of, every) or not has_logs(table, row[0])
        }
    lost = still_diverged(table, arguments.results).intersection(wanted)
    if lost and tell:
        print(f"{len(lost)} rows diverged earlier and are not run again")
    return to_run(table, [row for row in wanted if row not in lost], stored)


def without_probes(arguments):
    """A sentence about rows whose change of code is not noticed, or `""`."""
    stored = read_rows(arguments.results / f"{arguments.table}.jsonl")
    rows = [stored[row] for row in wanted_rows(arguments) if row in stored]
    counts = [
        f"{count} have no probe of their {what}"
        for key, what in (("network", "network"), ("procedure", "training"))
        if (count := sum(not row.get(key) for row in rows))
    ]
    if not counts:
        return ""
    return (
        f"Of {len(rows)} stored rows, {' and '.join(counts)}: a change there "
        "is not noticed."
    )


def diverged(table, results):
    """Rows whose training ended without finite logits, as `read_rows`."""
    return read_rows(results / f"{table}-diverged.jsonl")


def still_diverged(table, results):
    """Those that are not run again: their training is the same today."""
    return {
        row
        for row, values in diverged(table, results).items()
        if not changed_code(table, row[0], values)
    }


def changed_code(table, method, row):
    """See `unfinished`, which is imported, with Keras, where there are rows."""
    import unfinished

    return unfinished.changed_code(table, method, row)


def base(name):
    """The method that a variant is of."""
    return name.partition(": ")[0]


def has_logs(table, method):
    """Whether a row can be measured between its epochs.

    Of several networks none is the one that is measured in the end; a stream
    has no arrays of validation samples.
    """
    train = methods.method(method)["train"]
    streamed = protocols.PROTOCOLS[table].streamed
    return not streamed and train not in ("ensemble", "as_it_is")


def nothing_between_epochs(arguments):
    """Whether no row can be measured between its epochs; it names those."""
    wanted = dict.fromkeys(name for name, _ in wanted_rows(arguments))
    names = [name for name in wanted if not has_logs(arguments.table, name)]
    if names:
        print(
            "--history: nothing is measured between the epochs of "
            f"{', '.join(names)}.",
            file=sys.stderr,
        )
    return len(names) == len(wanted)


def to_run(table, wanted, stored):
    """Those of the wanted rows that are not stored, or no longer hold.

    Args:
        table: key of `protocols.TABLES`.
        wanted: pairs of method and seed.
        stored: from `read_rows`.
    """
    rows = []
    for name, seed in wanted:
        row = stored.get((name, seed))
        reason = row and changed(table, name, row)
        if reason:
            print(f"{name}, seed {seed}: {reason}: to be run again")
        if row is None or reason:
            rows.append((name, seed))
    return rows


def tune(arguments):
    """Run what the next choices need, choose, and go on until all is chosen.

    Rows go to `<table>-tuning.jsonl`, grids and choices to
    `<table>-tuning.json`. With `--seeds`, the chosen variants are run with
    more seeds afterwards.
    """
    import tuning

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


def changed(table, method, row):
    """Why a stored row does not stand for today's code, or `None`."""
    if "maps" not in row:
        return "no maps were fitted to its logits"
    if protocols.PROTOCOLS[table].kind == "long_tailed" and (
        "class_balance" not in row
    ):
        return "no maps were balanced on its logits"
    return changed_code(table, method, row)


def run_all(arguments, rows):
    """Start a process per row, `jobs` at a time, until all are done."""
    if rows and files_differ():
        print(DIFFERENT_FILES, file=sys.stderr)
    begin = time.time()
    running, total, ended = [], len(rows), []
    rows = list(rows)
    while rows or running:
        while (
            rows
            and len(running) < arguments.jobs
            and not late(arguments, begin)
        ):
            row = rows.pop(0)
            running.append((row, *start(arguments, *row, begin)))
        time.sleep(0.5)
        for each in list(running):
            row, process, name = each
            if process.poll() is None:
                continue
            running.remove(each)
            ended.append(process.returncode)
            pace = (time.time() - begin) / len(ended)
            left = datetime.timedelta(seconds=int(pace * (total - len(ended))))
            state = state_of(arguments, row, process.returncode)
            state = state or f"done, {left} left"
            print(f"[{len(ended)}/{total}] {name}: {state}", flush=True)
            if len(ended) >= 3 and all(map(failed, ended)):
                rows.clear()
                print(f"the first {len(ended)} rows failed")
        if late(arguments, begin) and not running:
            break
    left = len(rows) + ended.count(STOPPED)
    if left:
        print(f"time is over, {left} rows left", flush=True)
    return 1 if BUSY in ended or any(map(failed, ended)) else 0


def failed(status):
    return status not in (0, BUSY, STOPPED, DIVERGED)


def state_of(arguments, row, status):
    """What to say of a row that is not stored by its process, or `None`."""
    if status == BUSY:
        return "not trained here, another process does"
    if status == STOPPED:
        return "stopped, goes on at the next call"
    if status == DIVERGED:
        return f"diverged, see {arguments.table}-diverged.jsonl"
    return why_failed(log_of(arguments, *row), status) if status else None


def why_failed(log, status):
    end = f": {logs.last_line(log)}" if log.exists() else ""
    return f"FAILED with status {status}; the end of {log}{end}"


def late(arguments, begin):
    return (
        arguments.seconds is not None
        and time.time() - begin > arguments.seconds - 30
    )


def start(arguments, method, seed, begin):
    command = [sys.executable, __file__, arguments.table]
    command += ["--row", method, str(seed)]
    command += ["--results", arguments.results, "--work", arguments.work]
    if arguments.history:
        command += ["--history", arguments.history]
    if arguments.download:
        command += ["--download"]
    if arguments.seconds is not None:
        left = arguments.seconds - (time.time() - begin)
        command += ["--seconds", str(left)]
    environment = dict(os.environ)
    if arguments.threads:
        for key in (
            *("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"),
            "TF_NUM_INTEROP_THREADS",
        ):
            environment[key] = str(arguments.threads)
    name = f"{method}, seed {seed}"
    log = open(log_of(arguments, method, seed), "ab")
    process = subprocess.Popen(
        list(map(str, command)), env=environment, stdout=log, stderr=log
    )
    log.close()
    return process, name


def folder_of(arguments):
    """Where the files of a table's rows are, but for the rows themselves."""
    folder = arguments.work / arguments.table
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def log_of(arguments, method, seed):
    return folder_of(arguments) / f"{slug(method, seed)}.log"


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


def slug(method, seed):
    """A file name for a row."""
    return re.sub(r"[^A-Za-z0-9+-]+", "_", method) + f"-{seed}"


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


def threads_variable():
    """What decides how many threads the backend has."""
    import keras

    if keras.backend.backend() == "tensorflow":
        return "TF_NUM_INTRAOP_THREADS"
    return "OMP_NUM_THREADS"


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


def stored_logits(arguments, method, seed):
    """The file of a row's logits, in the working folder or beside the rows."""
    name, table = slug(method, seed), arguments.table
    for path in (
        arguments.work / table / f"{name}.npz",
        arguments.results / "logits" / f"{table}-{name}.npz",
    ):
        if path.exists():
            return path
    return None


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
    process, _ = start(again, method, int(seed), time.time())
    state = state_of(again, (method, int(seed)), process.wait())
    if state:
        print(state)
        return 1
    found = read_rows(path)[method, int(seed)]
    status = 0
    for key in ("accuracy", "ece"):
        before, after = stored["test"][key], found["test"][key]
        limit = checks.SAME_RUN
        if not same_machine(stored, found):
            limit = checks.limit_elsewhere(rows, method, key)
        word = checks.verdict(abs(before - after), limit)
        status |= word != "agrees"
        print(f"{key}: stored {before:.4f}, now {after:.4f}: {word}")
    return status


if __name__ == "__main__":
    sys.exit(main())
