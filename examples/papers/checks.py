"""How far a stored row and another run of it may be apart."""

import statistics

import spread

# What a run on the same machine may differ by.
SAME_RUN = 0.003


def limit_elsewhere(rows, method, key):
    """What a run on another machine may differ by; `None` if nothing tells.

    Two deviations over the seeds of the method; of one or two seeds, over those
    of all methods of the table.
    """
    values = {}
    for (name, _), row in rows.items():
        values.setdefault(name, []).append(row["test"][key])
    if len(values[method]) > 2:
        variance = statistics.variance(values[method])
    else:
        variance = spread.Spread(values.values()).variance
        if not variance:
            return None
    return max(SAME_RUN, 2 * variance**0.5)


def verdict(difference, limit):
    """What a check says of a difference."""
    if difference <= (limit or SAME_RUN):
        return "agrees"
    if limit is None:
        return "too few seeds to tell on another machine"
    return "DIFFERS"


def same_machine(stored, found):
    """Whether a run can be repeated in every digit, or nearly.

    Rows of before name no processor.
    """
    keys = "machine", "threads"
    return all(str(stored[key]) == str(found[key]) for key in keys)
