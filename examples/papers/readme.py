"""Prints the README's table of evidence, and writes it there.

    python examples/papers/readme.py            # prints
    python examples/papers/readme.py --write    # into README.md

Stored rows of protocol S, with the settings that were chosen on validation
images where they were: means over seeds, errors of the mean where there are
several.
"""

import argparse
import collections
import pathlib
import sys

import table
from places import RESULTS
from row_files import read_rows

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import stored_pages

README = pathlib.Path(__file__).parents[2] / "README.md"
BEGIN = stored_pages.mark("python examples/papers/readme.py")
PROTOCOL = "S"
SHOWN = (
    *("CE", "LS", "FL", "MbLS", "ACLS", "DCA", "MDCA", "FL+MDCA", "SB-ECE"),
    *("MMCE", "DML", "Diff-DML", "ensemble of 3"),
)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="into README.md")
    arguments = parser.parse_args(arguments)
    text = evidence(RESULTS)
    print(text)
    if arguments.write:
        README.write_text(with_evidence(README.read_text(), text))


def evidence(results):
    """Table of the methods that are shown, and what it was made on."""
    rows = read_rows(results / f"{PROTOCOL}.jsonl")
    rows = dict(table.of_method(PROTOCOL, rows))
    tuned = table.of_tuned(results, PROTOCOL)
    header = ["loss or procedure", "seeds", "accuracy %", "ECE %"]
    header += ["its floor %", "NLL", "ECE % after TS", "its floor %"]
    header += ["NLL after TS"]
    found = {}
    for name in SHOWN:
        if name in tuned:
            found |= [tuned[name]]
        elif name in rows:
            found[name] = rows[name]
    lines = [line(name, each) for name, each in found.items()]
    used = [row for each in found.values() for row in each]
    made = f"{table.made_by(used)}\n\n{seeds_of(found.values())}"
    return f"{table.markdown(header, lines)}\n\n{made}"


def seeds_of(methods, name="rows"):
    """A sentence: how many rows are of three seeds, of two, of one."""
    numbers = collections.Counter(map(len, methods))
    parts = [
        f"{numbers[n]} {'is' if numbers[n] == 1 else 'are'} of {n} "
        f"seed{'' if n == 1 else 's'}"
        for n in sorted(numbers, reverse=True)
    ]
    return f"Of {sum(numbers.values())} {name}, {', '.join(parts)}."


def line(name, rows):
    def values(key, part="test"):
        return [row[part][key] for row in rows]

    return [
        name,
        str(len(rows)),
        table.cell(values("accuracy"), 100, 1),
        table.cell(values("ece"), 100, 1),
        table.floor(values("ece_floor"), 1),
        table.cell(values("nll"), digits=3),
        table.cell(values("ece", "test_scaled"), 100, 1),
        table.floor(values("ece_floor", "test_scaled"), 1),
        table.cell(values("nll", "test_scaled"), digits=3),
    ]


def with_evidence(page, text):
    """The page with this table between its two marks."""
    otherwise = "README.md has no place for the table."
    return stored_pages.between(page, BEGIN, text, otherwise)


if __name__ == "__main__":
    sys.exit(main())
