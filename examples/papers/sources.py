"""Rows of a table with those of cross-entropy that they are compared with."""

from row_files import read_rows

# Tables without a baseline of their own: their protocol is that of another one
# in all that a baseline feels.
BASES = {"S-cross": "S", "S-square": "S"}


def base(name):
    """The table that has the baseline, and tells how differences scatter."""
    return BASES.get(name, name)


def rows_of(results, name):
    """Rows by `(method, seed)`; a method of the table is not the base's."""
    own = read_rows(results / f"{name}.jsonl")
    if base(name) == name or not own:
        return own
    known = {method for method, _ in own}
    others = read_rows(results / f"{base(name)}.jsonl")
    return {key: r for key, r in others.items() if key[0] not in known} | own
