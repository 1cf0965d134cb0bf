"""Rows of a file by method and seed, and which epochs were measured."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import stored_rows


def read_rows(path):
    """Stored rows, the newest of each `(method, seed)`, as a dict.

    One that was measured between epochs keeps its history when the same run is
    repeated without that.
    """
    return newest(stored_rows.read(path) if path.exists() else ())


def newest(rows):
    """See `read_rows`, of rows in the order of a file."""
    found = {}
    for row in rows:
        key = row["method"], row["seed"]
        before = found.get(key, {})
        fewer = len(measured_epochs(row)) < len(measured_epochs(before))
        if fewer and same_results(before, row):
            row = {**row, "history": before["history"]}
        found[key] = row
    return found


def same_results(before, row):
    """Whether two rows are of the same run, but for what was measured."""
    keys = "accuracy", "nll", "ece"
    return before["settings"] == row["settings"] and all(
        before["test"][key] == row["test"][key] for key in keys
    )


def has_epochs(row, every=None):
    """Whether a row has the errors on validation samples between epochs.

    Args:
        row: as stored.
        every: of every so many epochs and the last one, or `None` for any.
    """
    found = row.get("history", {})
    if every is None or "val_ece" not in found:
        return "val_ece" in found
    epochs = found.get("epoch", ())
    wanted = {n for n in epochs if n % every == 0 or n == epochs[-1]}
    return wanted <= {*measured_epochs(row)}


def measured_epochs(row):
    """Epochs after which a row was measured on validation samples."""
    found = row.get("history", {})
    pairs = zip(found.get("epoch", ()), found.get("val_ece", ()), strict=False)
    return [epoch for epoch, error in pairs if error is not None]
