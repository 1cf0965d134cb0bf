"""A process for each row, several at a time, until all are done."""

import datetime
import os
import pathlib
import subprocess
import sys
import time

import logs
from places import HERE
from places import log_of

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import stored_rows

# Exit statuses of the process of a row: another one trains it, its time was
# over before its training, its training ended without finite logits.
BUSY, STOPPED, DIVERGED = 75, 76, 77
DIFFERENT_FILES = """\
Files differ from their commit: each new row names it with a "+", and nobody can
go back to the code that made it. Commit before rows are to be kept."""


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


def files_differ():
    """Whether rows would name a commit that is not their code."""
    commit = stored_rows.commit()
    return commit is not None and commit.endswith("+")


def start(arguments, method, seed, begin):
    command = [sys.executable, HERE / "run.py", arguments.table]
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


def late(arguments, begin):
    return (
        arguments.seconds is not None
        and time.time() - begin > arguments.seconds - 30
    )


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
