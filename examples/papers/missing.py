"""Which rows of a table are still to be run, or again.

A row whose loss gives other values, or another gradient, than when the row was
made no longer stands for its method; see `unfinished.changed_code`.
"""

import sys

import methods
import protocols
from row_files import has_epochs
from row_files import read_rows


def missing_rows(arguments):
    """Rows to run: method and seed, every method's first seed first."""
    return not_done(arguments, wanted_rows(arguments), tell=True)


def wanted_rows(arguments):
    """Rows of a table that were asked for, in the order of `missing_rows`."""
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
        arguments: of `run.parse`.
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


def changed(table, method, row):
    """Why a stored row does not stand for today's code, or `None`."""
    if "maps" not in row:
        return "no maps were fitted to its logits"
    if protocols.PROTOCOLS[table].kind == "long_tailed" and (
        "class_balance" not in row
    ):
        return "no maps were balanced on its logits"
    return changed_code(table, method, row)


def changed_code(table, method, row):
    """See `unfinished`, which is imported, with Keras, where there are rows."""
    import unfinished

    return unfinished.changed_code(table, method, row)


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
