"""Run a seeded sample of mutants against the tests that run their lines.

    python -m tests.mutation.run DATA_FILE SECONDS_FILE RESULTS [--each 100]

Results are JSON lines, and a run goes on where the last one ended. It ends with
the share that was killed, of each room and of all, and its interval. What runs
at import is tested in a process that imports the changed file, and a changed
function in one that has imported the file before. (A survivor may then be one
that a table made at import would kill: survivors are read.)
"""

import argparse
import difflib
import json
import pathlib
import sys
import time

from tests.mutation.covering import Covering
from tests.mutation.mutants import ROOT
from tests.mutation.mutants import in_random_order
from tests.mutation.page import shares
from tests.mutation.server import Server

ROOMS = ("ops", "inputs", "losses", "evaluation", "solvers")


def changed_lines(before, after):
    """Lines that differ, in the manner of `diff`."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), lineterm="", n=0
    )
    return [line for line in lines if line[:3] not in ("---", "+++")]


def one_mutant(mutant, covering, server, budget):
    """The row of a mutant, or `None` where it is no other program."""
    source = mutant.source()
    if source is None:
        return None
    begin = time.monotonic()
    tests, num_known = covering.tests(mutant, budget)
    outcome, by = "survived", None
    if tests:
        seconds = sum(covering.seconds[name] for name in tests)
        given = mutant.path, source, tests, seconds
        outcome, by = server.run(*given, imported=True)
        if outcome == "unpatched":
            outcome, by = server.run(*given, imported=False)
    return {
        "mutant": mutant.key,
        "line": mutant.line,
        "diff": changed_lines((ROOT / mutant.path).read_text(), source),
        "outcome": outcome,
        "by": by,
        "tests_run": len(tests),
        "tests_that_run_the_line": num_known,
        "seconds": round(time.monotonic() - begin, 1),
    }


def control(covering, server, room, budget):
    """The quickest tests of a room pass here where nothing is changed."""
    tests = [n for n in covering.seconds if n.startswith(f"tests/{room}/")]
    tests = sorted(tests, key=covering.seconds.get)
    while sum(map(covering.seconds.get, tests)) > budget:
        tests.pop()
    path = f"keras_calib/{room}/__init__.py"
    source = (ROOT / path).read_text()
    for imported in (True, False):
        outcome, by = server.run(path, source, tests, budget, imported=imported)
        assert outcome == "survived", (room, imported, by)
    print(f"{room}: {len(tests)} tests pass without a change", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_file")
    parser.add_argument("seconds_file")
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--each", type=int, default=100, help="of a room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds")
    parser.add_argument("--rooms", nargs="*", default=ROOMS)
    given = parser.parse_args()
    covering = Covering(given.data_file, given.seconds_file)
    orders = {r: iter(in_random_order(r, given.seed)) for r in given.rooms}
    done = {}
    if given.results.exists():
        lines = given.results.read_text().splitlines()
        done = {row["mutant"]: row for row in map(json.loads, lines)}
    server = Server(covering.seconds)
    for room in () if done else given.rooms:
        control(covering, server, room, given.budget / 8)
    for number in range(given.each):
        for room, order in orders.items():
            row = None
            while row is None:  # until one is another program
                mutant = next(order)
                row = done.get(mutant.key) or one_mutant(
                    mutant, covering, server, given.budget
                )
            if mutant.key in done:
                continue
            row = {"room": room, "seed": given.seed, **row}
            with given.results.open("a") as file:
                file.write(json.dumps(row) + "\n")
            done[mutant.key] = row
            print(number, row["outcome"], row["mutant"], row["by"], flush=True)
    print(*shares(list(done.values())), sep="\n")


if __name__ == "__main__":
    sys.exit(main())
