"""Print the page of results from the rows that `run.py` stored.

python -m tests.mutation.page > examples/results/mutation.md
"""

import collections
import json
import math
import pathlib

ROOT = pathlib.Path(__file__).parents[2]
RESULTS = ROOT / "examples" / "results"
Z = 1.959964  # normal quantile of 97.5 %


def wilson(hits, number):
    """The 95 % interval of a share, by Wilson (1927)."""
    if number == 0:
        return 0.0, 1.0
    share, z2 = hits / number, Z**2 / number
    middle = (share + z2 / 2) / (1 + z2)
    half = math.sqrt(share * (1 - share) * z2 + z2**2 / 4) / (1 + z2)
    return middle - half, middle + half


def read(name):
    path = RESULTS / name
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def percent(share):
    return f"{100 * share:.0f} %"


def state_of(row, verdicts):
    """What became of a mutant: the outcome, or what its reader found."""
    if row["outcome"] != "survived":
        return row["outcome"]
    return verdicts.get(row["mutant"], {"verdict": "open"})["verdict"]


def counts_of(rows, verdicts):
    """How many mutants of a room are in each state."""
    count = collections.Counter(state_of(row, verdicts) for row in rows)
    first = sum(row["outcome"] != "survived" for row in rows)
    caught = first + count["test added"] + count["other test"]
    return count, first, caught, len(rows) - count["equivalent"]


def table(rows, verdicts):
    """Lines of the table, a room each and all together."""
    rooms = list(dict.fromkeys(row["room"] for row in rows))
    for room in [*rooms, "all"]:
        part = [row for row in rows if room in (row["room"], "all")]
        count, first, caught, number = counts_of(part, verdicts)
        low, high = wilson(caught, number)
        cells = [
            room,
            len(part),
            first,
            count["timeout"],
            count["other test"],
            count["test added"],
            count["equivalent"],
            count["open"],
            percent(caught / max(number, 1)),
            f"{percent(low)} to {percent(high)}",
        ]
        yield "| " + " | ".join(map(str, cells)) + " |"


def shares(rows):
    """Lines: how many mutants of a room, and of all, were killed."""
    for room in [*dict.fromkeys(row["room"] for row in rows), "all"]:
        part = [row for row in rows if room in (row["room"], "all")]
        killed = sum(row["outcome"] != "survived" for row in part)
        low, high = wilson(killed, len(part))
        yield (
            f"{room}: {killed} of {len(part)} killed, "
            f"{percent(killed / len(part))} (95 % interval {percent(low)} to "
            f"{percent(high)}); no survivor was read"
        )


def change(row):
    """The changed line, before and after."""
    return " ".join(
        f"`{line.replace('|', chr(92) + '|')}`"
        for line in row["diff"]
        if not line.startswith("@@")
    )


def survivors(rows, verdicts, verdict):
    """Lines of a table of the mutants that a reader put there."""
    for row in rows:
        if row["outcome"] == "survived" and verdict == state_of(row, verdicts):
            place = row["mutant"].split(":")[0].removeprefix("keras_calib/")
            reason = verdicts.get(row["mutant"], {}).get("reason", "")
            yield f"| `{place}`, {row['line']} | {change(row)} | {reason} |"


TOP = """# Mutation testing

A mutant is the library with one operator, number or comparison changed, by
cosmic-ray {version}. It is killed if a test then fails. Mutants are a seeded
sample of each room (seed {seed}). Each runs the fast tests of these rooms, of
`layers` and `metrics` that reach the changed line, the quickest ones of about
40 seconds, on PyTorch; `tests/mutation/run.py` has the details. Measured on
x86-64, two cores, 2026-11-24.

A survivor is read. It is then killed by a test that this run left out (a slow
one, or one of another backend), or by a new one, or it is equivalent (no result
differs, with the reason below), or it is open. The share is that of killed ones
among those that are not equivalent, with Wilson's 95 % interval. It is that of
this sample after its survivors were read. A new sample would show less, about
what this one showed without the new tests: {before}.

| room | mutants | killed at first | of these, by time limit | by tests left \
out | by new tests | equivalent | open | killed share | 95 % interval |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"""

PARTS = {
    "other test": "Survivors that tests kill which the run left out",
    "test added": "Survivors that new tests kill",
    "equivalent": "Equivalent mutants",
    "open": "Open",
}


def main():
    rows = read("mutation.jsonl")
    verdicts = {row["mutant"]: row for row in read("mutation_verdicts.jsonl")}
    count, first, _, number = counts_of(rows, verdicts)
    known = first + count["other test"]
    low, high = wilson(known, number)
    before = (
        f"{known} of {number}, {percent(known / number)} "
        f"({percent(low)} to {percent(high)})"
    )
    print(TOP.format(version="8.7", seed=rows[0]["seed"], before=before))
    print(*table(rows, verdicts), sep="\n")
    for verdict, title in PARTS.items():
        found = list(survivors(rows, verdicts, verdict))
        if found:
            print(f"\n## {title}\n\n| where | change | why |\n|---|---|---|")
            print(*found, sep="\n")


if __name__ == "__main__":
    main()
