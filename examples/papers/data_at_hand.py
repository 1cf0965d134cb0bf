"""Whether rows of a table can be trained and stored here."""

import functools
import pathlib
import sys

import protocols
from places import folder_of

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import stored_rows


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
