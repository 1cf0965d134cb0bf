"""Which official examples and guides of keras.io run with our parts put in.

    export KERAS_IO_EXAMPLES=~/keras-io
    nice python examples/benchmarks/keras_io.py run
    python examples/benchmarks/keras_io.py show > examples/results/keras_io.md

`KERAS_IO_EXAMPLES` names a checkout of keras-team/keras-io; its `guides` are
those of keras-team/keras. `keras_io_scripts.py` lists what is run on which
backend and what is altered. A row of `examples/results/keras_io.jsonl` is a
run; `show` takes the last of each script. Nothing of the scripts is copied,
nothing is downloaded.
"""

import argparse
import datetime
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version

FOLDER = pathlib.Path(__file__).parent
ROWS = FOLDER.parent / "results" / "keras_io.jsonl"
VARIABLE = "KERAS_IO_EXAMPLES"
PACKAGES = ("keras", "tensorflow", "jax", "torch", "keras-tuner")
HEADING = """# Official examples of keras.io

    export KERAS_IO_EXAMPLES=~/keras-io
    nice python examples/benchmarks/keras_io.py run
    python examples/benchmarks/keras_io.py show > examples/results/keras_io.md

Guides and examples of the Keras team, run from their own files on a CPU with
parts of this library put in:

- the loss of the table replaces their cross-entropy, in `compile` or where they
  call it;
- the expected calibration error is one more metric of `compile`, or replaces
  the metric that a loop of theirs keeps;
- `kc.calibrate` takes the model that was trained last and its validation data,
  or its training data where there are none.

Data that would be downloaded are made: noise with the shapes and types of the
real data, 256 rows where the table has no other number. `fit` runs one epoch.
Everything else that was altered is in the table. A script "works" if it runs to
its end, the loss and the metric were called, and calibration does not increase
the NLL of the calibration data by more than 5 %. The data are noise, so the two
numbers say nothing about how good a method is.
"""
SOURCES = """
The rows were made on a machine with two shared x86-64 cores, from the guides of
keras-team/keras in August 2026 (3422977a5e), the examples of keras.io that
keras-team/keras had in January 2024 (e5dad39059^), and of keras-team/keras-io
the TabTransformer, the text transformer and, of May 2024, the guide to
KerasTuner. A row of `keras_io.jsonl` has the SHA-256 of its script.
"""


def sibling(name):
    """A module of this folder."""
    path = FOLDER / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPTS = sibling("keras_io_scripts").SCRIPTS
stored_rows = sibling("../stored_rows")


def missing(name, folder):
    """What a script needs and is not there, or `None`."""
    if not (pathlib.Path(folder) / name).exists():
        return f"no {name} in the folder"
    for module in (SCRIPTS[name].backend, *SCRIPTS[name].needs):
        if not importlib.util.find_spec(module):
            return f"no {module}"
    return None


def outcome(found):
    """Whether what a run told is as it should be, in a word or a sentence."""
    if not found["loss_calls"] or not found["metric_calls"]:
        return "failed: our loss or metric was not called"
    before, after = found["nll_before"], found["nll_after"]
    if not 0 <= after <= 1.05 * before:
        return f"failed: the NLL was {before}, is {after}"
    return "works"


def run(name, folder):
    """A row: what the script did."""
    path = pathlib.Path(folder).resolve() / name
    entry = SCRIPTS[name]
    row = {
        "script": name,
        "backend": entry.backend,
        "date": str(datetime.date.today()),
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "versions": {each: version(each) for each in installed()},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        **entry.settings,
    }
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [
                sys.executable,
                str(FOLDER / "keras_io_script.py"),
                str(path),
                json.dumps(entry.settings),
            ],
            cwd=empty,
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "KERAS_BACKEND": entry.backend,
                "MPLBACKEND": "Agg",
                "PYTHONPATH": str(FOLDER.parents[1]),
            },
        )
    row["seconds"] = round(time.monotonic() - began)
    if done.returncode:
        print(done.stderr[-3000:], file=sys.stderr)
        return {**row, "outcome": f"failed: {last_line(done.stderr)}"}
    found = json.loads(done.stdout.splitlines()[-1])
    return {**row, **found, "outcome": outcome(found)}


def installed():
    """Those of `PACKAGES` that are."""
    names = importlib.metadata.packages_distributions().values()
    there = {each for several in names for each in several}
    return [name for name in PACKAGES if name in there]


def last_line(text):
    """The last line that names an error."""
    lines = re.findall(r"^[\w.]+(?:Error|Exception): .*", text, flags=re.M)
    return lines[-1] if lines else "no message"


def stored():
    """The last row of each script that has one."""
    found = {row["script"]: row for row in stored_rows.read(ROWS)}
    return [found[name] for name in SCRIPTS if name in found]


def table():
    """The page."""
    rows = stored()
    dates = sorted({row["date"] for row in rows})
    days = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    numbers = ", ".join(
        f"{name} {number}" for name, number in rows[-1]["versions"].items()
    )
    yield HEADING + SOURCES
    yield f"{days}, {numbers}.\n"
    yield "| script | backend | loss | altered | result | NLL before | after |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        values = ["-", "-"]
        if "nll_after" in row:
            values = [f"{row['nll_before']:.3f}", f"{row['nll_after']:.3f}"]
        altered = SCRIPTS[row["script"]].altered or "-"
        cells = [f"`{row['script']}`", row["backend"], f"`{row['loss']}`"]
        yield f"| {' | '.join([*cells, altered, row['outcome'], *values])} |"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("do", choices=("run", "show"))
    parser.add_argument("--only", nargs="+", choices=SCRIPTS)
    parser.add_argument("--missing", action="store_true", help="only new rows")
    given = parser.parse_args(arguments)
    if given.do == "show":
        print("\n".join(table()))
        return
    folder = os.environ.get(VARIABLE)
    if not folder:
        parser.error(f"set {VARIABLE} to a checkout of keras-team/keras-io")
    there = {row["script"] for row in stored()} if given.missing else ()
    for name in given.only or SCRIPTS:
        if name in there:
            continue
        if reason := missing(name, folder):
            print(f"{name}: not run, {reason}")
            continue
        row = run(name, folder)
        stored_rows.append(ROWS, row)
        print(f"{name}: {row['outcome']}, {row['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
