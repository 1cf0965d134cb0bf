"""The page of human answers: errors against what people said (CIFAR-10H).

python examples/papers/table.py F --people
"""

import table

PARTS = ("test", "test_scaled", "test_scaled_to_people")
ABOUT = """\
About 50 people chose a class for each test image. Here a label is drawn from
their answers, in expectation: the ECE compares the confidence with the fraction
of people who agree, and KL is the mean divergence, in nats, of the network's
probabilities from the people's. TS is temperature scaling, fitted to one label
per calibration image; "T of people" is fitted to the people's answers to the
same images."""


def page(name, rows):
    """The whole page as Markdown.

    Args:
        name: of the table that the rows are from.
        rows: stored rows, a dict from `(method, seed)`.
    """
    rows = {key: row for key, row in rows.items() if "people" in row}
    if not rows:
        raise SystemExit(f"No row of {name} was compared with people.")
    return "\n\n".join(
        [
            f"# Protocol {name}: the answers of people",
            f"Printed by `python examples/papers/table.py {name} --people` "
            f"from `{name}.jsonl`.",
            table.made_by(rows.values()),
            ABOUT,
            table.against_people(name, rows),
            "## One label per image, and people",
            "ECE in percent on the same test images.",
            both_errors(name, rows),
            "## Differences from cross-entropy",
            "Of the same seed, mean ± standard error over seeds; ECE in "
            "points. p is that of a paired t-test, from three seeds on.",
            differences(name, rows),
        ]
    )


def both_errors(name, rows):
    """ECE against one label and against people, as trained and after TS."""
    header = ["method", "seeds", "one label", "its floor", "people"]
    header += ["one label, after TS", "its floor", "people, after TS"]
    lines = []
    for method, found in table.of_method(name, rows):
        line = [method, str(len(found))]
        for part in PARTS[:2]:
            own = [row[part] for row in found]
            people = [row["people"][part] for row in found]
            line.append(table.cell([each["ece"] for each in own], 100))
            line.append(table.floor([each["ece_floor"] for each in own]))
            line.append(table.cell([each["ece"] for each in people], 100))
        lines.append(line)
    return table.markdown(header, lines)


def differences(name, rows):
    """ECE and KL against people, less those of cross-entropy."""
    header = ["method - CE", "pairs", "ECE", "KL", "ECE after TS"]
    header += ["KL after TS", "ECE after T of people", "KL after T of people"]
    lines = []
    for method, pairs in table.paired(name, rows):
        found = [(a["people"], b["people"]) for a, b in pairs]
        line = [method, str(len(found))]
        for part in PARTS:
            line.append(table.cell(table.difference(found, "ece", part), 100))
            kl = table.difference(found, "kl", part)
            line.append(table.cell(kl, digits=3))
        lines.append([*line, table.p_value(kl)])
    return table.markdown([*header, "p (last)"], lines)
