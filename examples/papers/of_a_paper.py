"""The tables that the page of a paper shows, and which of its methods."""

import protocols
import published


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
