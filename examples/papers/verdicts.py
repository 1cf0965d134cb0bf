"""The page of verdicts: what each method does beside what its paper says."""

import claims
import protocols
import run
import table

TABLES = ("S", "F")
HEADER = (
    "method | its paper says | ECE there | rows of | pairs | accuracy | ECE "
    "| NLL | p (ECE) | as trained | ECE after TS | NLL after TS "
    "| p (NLL after TS) | after TS | note"
).split(" | ")


def page(results):
    """The whole page as Markdown, from the stored rows of `TABLES`."""
    rows = {name: run.read_rows(results / f"{name}.jsonl") for name in TABLES}
    together = [row for found in rows.values() for row in found.values()]
    if not together:
        raise SystemExit("No rows yet: python examples/papers/run.py S")
    names = {name: None for each in TABLES for name in protocols.TABLES[each]}
    names.pop(table.BASELINE)
    pairs = {each: dict(table.paired(each, rows[each])) for each in TABLES}
    lines, missing = [], []
    chosen = {each: table.of_tuned(results, each) for each in TABLES}
    for name in names:
        found = [each for each in TABLES if name in pairs[each]]
        lines += [line(name, each, pairs[each][name]) for each in found]
        if not found:
            missing.append(name)
        for each in TABLES:
            if name in chosen[each]:
                shown, tuned = chosen[each][name]
                beside = table.beside_baseline(tuned, rows[each])
                lines += tuned_line(name, shown, each, beside)
    texts = [
        "# Verdicts",
        "Printed by `python examples/papers/table.py verdicts` from the rows "
        f"of {' and '.join(f'`{name}.jsonl`' for name in TABLES)}.",
        table.made_by(together),
        ABOUT,
        table.markdown(HEADER, lines),
    ]
    if missing:
        texts.append(f"Without a row: {'; '.join(missing)}.")
    return "\n\n".join(texts)


CHOSEN = "chosen on validation images"
ABOUT = """\
All numbers are differences from cross-entropy (CE) with the same seed, mean ±
standard error over seeds; accuracy and ECE in points. TS is temperature
scaling, fitted to the calibration images. "ECE there" is the difference from
cross-entropy in each published table of `claims.py` that has the method,
often another paper's than the method's own; the verdict as trained names the
tables in which the ECE goes the same way and those in which it does not. As
trained a verdict is about the ECE; after TS it is about the NLL, where a loss
can only win by better refinement. With several seeds, a difference below two
standard errors is not told apart from 0; p is that of a paired t-test, from
three seeds on."""


def line(name, each, pairs):
    """One method with the rows of one table."""
    ece = table.difference(pairs, "ece")
    after = table.difference(pairs, "nll", "test_scaled")
    published = {
        source.short: ece - source.baseline[1]
        for source, (_, ece) in claims.of_method(name, each)
    }
    there = [f"{source}: {value:+.2f}" for source, value in published.items()]
    return [
        name,
        claims.SAYS[name],
        "; ".join(there) or "-",
        each,
        str(len(pairs)),
        table.cell(table.difference(pairs, "accuracy"), 100),
        table.cell(ece, 100),
        table.cell(table.difference(pairs, "nll"), digits=3),
        table.p_value(ece),
        as_trained(ece, published),
        table.cell(table.difference(pairs, "ece", "test_scaled"), 100),
        table.cell(after, digits=3),
        table.p_value(after),
        in_words(after, "better", "worse"),
        claims.REASONS.get((each, name), ""),
    ]


def tuned_line(name, shown, each, pairs):
    """The same with the settings that were chosen on validation images.

    A list of one line, or of none where cross-entropy has no such seeds.
    """
    if not pairs:
        return []
    _, says, there, _, *cells, _ = line(name, each, pairs)
    return [[shown, says, there, f"{each}-tuning", *cells, CHOSEN]]


def as_trained(here, published):
    """The direction of the ECE, and in which published tables it is the same.

    A method's own paper may say otherwise than another paper's table.

    Args:
        here: differences from cross-entropy.
        published: the same of published tables, by their short names.
    """
    words = in_words(here, "lower", "higher")
    if not published or words.startswith("not"):
        return words
    same = [s for s, there in published.items() if there * here.mean() > 0]
    others = [s for s in published if s not in same]
    for known, sources in (("as", same), ("not as", others)):
        if sources:
            words += f"; {known} in {' and '.join(sources)}"
    return words


def in_words(differences, below, above):
    """`below` or `above` 0, or that the two cannot be told apart."""
    mean = differences.mean()
    if len(differences) == 1:
        return f"{below if mean < 0 else above}, one seed"
    if abs(mean) <= 2 * table.standard_error(differences):
        return "not told apart"
    return below if mean < 0 else above
