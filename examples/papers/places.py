"""Where the files of stored rows are, and of those in training."""

import pathlib
import re

HERE = pathlib.Path(__file__).parent
RESULTS = HERE.parent / "results"


def slug(method, seed):
    """A file name for a row."""
    return re.sub(r"[^A-Za-z0-9+-]+", "_", method) + f"-{seed}"


def folder_of(arguments):
    """Where the files of a table's rows are, but for the rows themselves."""
    folder = arguments.work / arguments.table
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def log_of(arguments, method, seed):
    return folder_of(arguments) / f"{slug(method, seed)}.log"


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
