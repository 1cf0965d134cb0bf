"""How many inputs each public name gets, by the seconds that one takes.

    python -m tests.fuzz.seconds RESULTS [RESULTS ...]

writes `seconds.json` from the results of `tests.fuzz.run`, of one or more
backends: the mean seconds of the processor for an input to each name, on each.
"""

import json
import pathlib
import sys

FILE = pathlib.Path(__file__).with_name("seconds.json")
# Of all inputs, so many are for each name, however long they take.
LEAST = 1 / 1000
# The rest is shared so that all names take equal time; quicker inputs than this
# count as if they took as long.
QUICK = 0.01
# Of a name that nobody has measured.
USUAL = 0.05


def seconds_of(backend):
    """Seconds of an input to each name; PyTorch's where none were measured."""
    found = json.loads(FILE.read_text())
    return found.get(backend, found["torch"])


def counts(names, inputs, backend):
    """The number of inputs to each name, a dict."""
    known = seconds_of(backend)
    speeds = {each: 1 / max(QUICK, known.get(each, USUAL)) for each in names}
    rest = max(0.0, inputs * (1 - LEAST * len(names)))
    unit = rest / sum(speeds.values())
    return {
        name: max(1, round(inputs * LEAST + unit * speed))
        for name, speed in speeds.items()
    }


def main(paths):
    found = json.loads(FILE.read_text()) if FILE.exists() else {}
    totals = {}
    for path in paths:
        for line in pathlib.Path(path).read_text().splitlines():
            row = json.loads(line)
            if "error" in row:  # most of the time went to a smaller example
                continue
            each = totals.setdefault(row["backend"], {})
            seconds, inputs = each.get(row["name"], (0.0, 0))
            each[row["name"]] = (
                seconds + row["seconds"],
                inputs + row["inputs"],
            )
    for backend, names in totals.items():
        found[backend] = {
            name: round(seconds / inputs, 4)
            for name, (seconds, inputs) in sorted(names.items())
        }
    FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
