"""Many hostile inputs to all public callables, in pieces.

    FUZZ_INPUTS=100000 python -m tests.fuzz.run RESULTS

Each line of `RESULTS` is a piece: up to 50 inputs to one callable, with a seed
of its own. A run goes on where the last one ended, in an order that gives all
callables the same part of their inputs at any time. Failures are printed and
stored, and the run continues. It ends with the number of inputs and, where an
input failed, status 1.
"""

import collections
import json
import pathlib
import sys
import time
import traceback

import keras

from tests.fuzz.test_fuzz import COUNTS
from tests.fuzz.test_fuzz import NAMES
from tests.fuzz.test_fuzz import SEED
from tests.fuzz.test_fuzz import run_inputs

PIECE = 50


def pieces(counts):
    """Name, number and size of each piece, evenly over the names."""
    found = []
    for name, count in counts.items():
        for number, begin in enumerate(range(0, count, PIECE)):
            size = min(PIECE, count - begin)
            found.append(((begin + size / 2) / count, name, number, size))
    return [each[1:] for each in sorted(found)]


def run_piece(name, number, size):
    """The row of a piece."""
    begin = time.process_time()
    seed = 1000 * SEED + number
    row = {"name": name, "piece": number, "seed": seed, "size": size}
    row["backend"] = keras.backend.backend()
    keras.utils.set_random_seed(0)
    try:
        row["inputs"], row["answers"] = run_inputs(name, seed, size)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        row["inputs"] = 0
        row["error"] = "".join(traceback.format_exception(error))[-20000:]
        print(f"{name}, seed {seed}, {size} inputs:\n{row['error']}")
    row["seconds"] = round(time.process_time() - begin, 3)
    return row


def main():
    path = pathlib.Path(sys.argv[1])
    rows = []
    if path.exists():
        rows = list(map(json.loads, path.read_text().splitlines()))
    done = {(row["name"], row["seed"], row["size"]) for row in rows}
    all_pieces = pieces(COUNTS)
    for name, number, size in all_pieces:
        if (name, 1000 * SEED + number, size) not in done:
            rows.append(run_piece(name, number, size))
            with path.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    failed = collections.Counter(row["name"] for row in rows if "error" in row)
    total = sum(row["inputs"] for row in rows)
    print(
        f"{total:,} inputs to {len(NAMES)} callables, seed {SEED}, "
        f"{sum(failed.values())} of {len(all_pieces)} pieces failed"
    )
    print(*failed, sep="\n")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
