"""Rows of results as lines of JSON, appended by runs that may be killed.

`provenance` is what made a row.
"""

import argparse
import contextlib
import datetime
import fcntl
import importlib
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import tempfile


def run_and_show(doc, run, show):
    """The command line of a script that appends rows, and shows them.

    Args:
        doc: of the script.
        run: function of the arguments.
        show: another one.

    Returns:
        The parser, whose arguments have the `function` to call, and those of
        the commands `run` and `show`, which take the file of the rows.
    """
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    commands = parser.add_subparsers(required=True)
    found = []
    for name, function in (("run", run), ("show", show)):
        command = commands.add_parser(name)
        command.add_argument("results", type=pathlib.Path)
        command.set_defaults(function=function)
        found.append(command)
    return parser, *found


def read(path):
    """The rows of a file, a list of what each line holds.

    Raises:
        ValueError: if a line is no JSON; empty lines are left out.
    """
    rows = []
    for number, line in enumerate(_whole_lines(path.read_bytes()), 1):
        try:
            rows += [json.loads(line)] if line.strip() else []
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    return rows


def require_writable(path):
    """Ask before the work whether rows can be appended to a file.

    The file is not made here, the folder is.

    Raises:
        OSError: if they cannot be appended.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        open(path, "ab").close()
    else:
        tempfile.TemporaryFile(dir=path.parent).close()


def append(path, row):
    """One line, whole or not at all, whoever else writes to the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = (json.dumps(row) + "\n").encode()
    with _locked(path) as file:
        text = file.read()
        end = sum(len(each) + 1 for each in _whole_lines(text))
        if end > len(text):  # somebody's editor left out the last newline
            file.write(b"\n")
        file.truncate(end)
        try:
            while line:
                line = line[file.write(line) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(end)
            raise


def change(path, function):
    """Replace all rows of a file, which nobody else writes meanwhile.

    Args:
        path: of the file, which is replaced, never half written.
        function: makes a list of rows of that of all rows.
    """
    with _locked(path):
        lines = [json.dumps(row) + "\n" for row in function(read(path))]
        part = path.with_suffix(".part")
        try:
            part.write_text("".join(lines))
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path):
    """The file, open at its beginning, to which nobody else writes."""
    while True:
        with open(path, "a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Somebody may have replaced the file while this one waited.
            if not os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                continue
            file.seek(0)
            yield file
            return


def provenance(threads=None):
    """What made a row: code, machine, versions, date; a dict."""
    return {
        "threads": threads or os.environ.get("OMP_NUM_THREADS"),
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
        "machine": _machine(),
        "python": platform.python_version(),
        "versions": _versions(),
    }


def made_with():
    """Kind of machine, versions of Keras and its backends, date; a line."""
    found = []
    # Packages under the name by which the first one is installed.
    for names in ("keras", "tensorflow tensorflow-cpu", "jax", "torch"):
        for name in names.split():
            try:
                found.append(f"{name} {importlib.metadata.version(name)}")
            except importlib.metadata.PackageNotFoundError:
                continue
            break
    date = datetime.date.today().isoformat()
    return "; ".join((_device(), ", ".join(found), date)) + "."


def _device():
    return platform.machine() + f", {os.cpu_count()} processors"


def _processor():
    """Its model, where the system tells it."""
    info = pathlib.Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _machine():
    """Kind of machine and software, as one dict."""
    import keras

    import keras_calib as kc

    device = _device()
    if keras.backend.backend() == "jax":
        import jax

        if jax.devices()[0].platform != "cpu":
            device = jax.devices()[0].device_kind
    return {
        "device": device,
        "processor": _processor(),
        "backend": keras.backend.backend(),
        "keras": keras.__version__,
        "keras_calib": kc.__version__,
    }


def _versions():
    """Of the backend and of NumPy, by name."""
    import keras

    names = keras.backend.backend(), "numpy"
    return {name: importlib.import_module(name).__version__ for name in names}


def commit():
    """The commit of the code, with a plus where files differ from it.

    `None` where it is not known, as without git.
    """
    # A copy of the tree without its history is told its commit.
    if "SOURCE_COMMIT" in os.environ:
        return os.environ["SOURCE_COMMIT"]
    here = pathlib.Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty=+"]
    command += ["--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return None
    return found.stdout.strip() or None


def _whole_lines(text):
    """Lines of a file, without what a process that was killed left of one."""
    *lines, last = text.split(b"\n")
    try:
        json.loads(last)
    except ValueError:  # nothing, or a part of a line
        return lines
    return [*lines, last]


def add_also(parser, what):
    """`--also FILE ...` of a script that shows rows: those of more files."""
    parser.add_argument(
        "--also",
        nargs="*",
        default=[],
        type=pathlib.Path,
        help=f"further rows: print what is over all {what} only",
    )
