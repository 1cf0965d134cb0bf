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
    return verdicts.get(key_of(row), {"verdict": "open"})["verdict"]


def key_of(row):
    """Seed and name: between two samples the code may change below a name."""
    return row["seed"], row["mutant"]


def counts_of(rows, verdicts):
    """How many mutants are in each state, and three numbers of them.

    Those that tests killed which were there before, those that tests kill now,
    and those that are not equivalent.
    """
    count = collections.Counter(state_of(row, verdicts) for row in rows)
    before = count["killed"] + count["timeout"] + count["other test"]
    after = before + count["test added"]
    return count, before, after, len(rows) - count["equivalent"]


def share(hits, number):
    """Cells of a share and of its interval."""
    low, high = wilson(hits, number)
    return percent(hits / max(number, 1)), f"{percent(low)} to {percent(high)}"


def table(rows, verdicts):
    """Lines of the table, a room each and all together."""
    rooms = list(dict.fromkeys(row["room"] for row in rows))
    for room in [*rooms, "all"]:
        part = [row for row in rows if room in (row["room"], "all")]
        count, before, after, number = counts_of(part, verdicts)
        cells = [
            room,
            len(part),
            count["equivalent"],
            count["killed"] + count["timeout"],
            count["other test"],
            *share(before, number),
            count["test added"],
            count["open"],
            *share(after, number),
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
            reason = verdicts.get(key_of(row), {}).get("reason", "")
            yield f"| `{place}`, {row['line']} | {change(row)} | {reason} |"


TOP = """# Mutation testing

A mutant is the library with one operator, number or comparison changed, by
cosmic-ray 8.7. It is killed if a test then fails. Mutants are seeded samples of
each room, of which there are three. Each mutant runs the fast tests of these
rooms, of `layers` and `metrics` that reach the changed line, the quickest ones
of about 40 seconds, on PyTorch; `tests/mutation/run.py` has the details.
Measured on x86-64, two cores.

A survivor is read. It is then killed by a test that this run left out (a slow
one, one of another room or of another backend), or by a new one, or it is
equivalent (no result differs, with the reason below), or it is open. Shares are
those of killed ones among those that are not equivalent, with Wilson's 95 %
interval: *before* with the tests that were there when the sample was drawn,
*after* with those that its survivors asked for. A share after is that of this
sample only. What another sample would show is rather the share before. In *all*
each room counts alike, however many mutants it has.
"""

# Of each sample, by its seed: the title, and when it ran.
SAMPLES = {
    2: ("The third sample", "2026-11-26"),
    1: ("The second sample", "2026-11-25"),
    0: ("The first sample", "2026-11-24"),
}
SUMMARY = """## {title}

{number} mutants with seed {seed}, {date}. Before any survivor was read, the run
killed {first} of them ({timeout} by its limit of time), which is {share} of all
({interval}).

| room | mutants | equivalent | killed by the run | by tests left out | \
before | 95 % interval | by new tests | open | after | 95 % interval |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"""

PARTS = {
    "open": "Open",
    "test added": "Survivors that new tests kill",
    "other test": "Survivors that tests kill which the run left out",
    "equivalent": "Equivalent mutants",
}


def print_sample(rows, verdicts):
    """The section of a sample."""
    count, *_ = counts_of(rows, verdicts)
    first = count["killed"] + count["timeout"]
    of_all, interval = share(first, len(rows))
    seed = rows[0]["seed"]
    title, date = SAMPLES[seed]
    numbers = {
        "title": title,
        "number": len(rows),
        "seed": seed,
        "date": date,
        "first": first,
        "timeout": count["timeout"],
        "share": of_all,
        "interval": interval,
    }
    print(SUMMARY.format(**numbers))
    print(*table(rows, verdicts), sep="\n")
    for verdict, heading in PARTS.items():
        found = list(survivors(rows, verdicts, verdict))
        if found:
            print(f"\n### {heading}\n\n| where | change | why |\n|---|---|---|")
            print(*found, sep="\n")


def main():
    rows = read("mutation.jsonl")
    verdicts = {key_of(row): row for row in read("mutation_verdicts.jsonl")}
    print(TOP, end="")
    for seed in SAMPLES:
        print()
        print_sample([row for row in rows if row["seed"] == seed], verdicts)


if __name__ == "__main__":
    main()
