"""The page of verdicts: what each method does beside what its paper says."""

import claimed
import claims
import protocols
import reasons
import sources
import table
import words
from row_files import read_rows

# In this order; those of one section stand in one table.
SECTIONS = {
    "S": ("S", "S-cross", "S-square"),
    **{name: (name,) for name in ("S10k", "F", "C", "T", "D", "N9", "N40")},
    **{name: (name,) for name in ("G30", "G100")},
}
TABLES = tuple(name for names in SECTIONS.values() for name in names)
# What a protocol is, in a few words.
IN_SHORT = {
    "S": "ResNet-8 from scratch on 5,000 images of CIFAR-10. S-cross crosses "
    "primaries and penalties, S-square has three times the square loss, "
    "S-tuning the settings that were chosen on validation images; all are "
    "compared with cross-entropy of S.",
    "S10k": "The same with 10,000 images.",
    "F": "A published ResNet-20, fine-tuned for three epochs.",
    "C": "ResNet-8 from scratch on CIFAR-100's 20 super-classes, 12,500 images "
    "and 16 epochs: cross-entropy ends with an ECE at its floor, so that "
    "nothing is to be gained as trained.",
    "T": "Text, 20 Newsgroups.",
    "D": "Segmentation, CamVid; accuracy and ECE of all pixels.",
    "N9": "S with 9 % of wrong labels.",
    "N40": "S with 40 % of wrong labels.",
    "G30": "ResNet-34 on all of CIFAR-10, 30 epochs on a GPU, single runs.",
    "G100": "The same in 100 epochs.",
}
HEADER = (
    "method | its paper says | ECE there | rows of | pairs | accuracy | ECE "
    "| NLL | p (ECE) | as trained | ECE after TS | NLL after TS "
    "| p (NLL after TS) | after TS | note"
).split(" | ")
AT_ONCE = """\
Of how many methods the ECE as trained, and the NLL after TS, is told apart from
that of cross-entropy; in brackets the direction of methods of one seed. Rows of
chosen settings are not counted."""


def page(results):
    """The whole page as Markdown, from the stored rows of `TABLES`."""
    found = {name: read_rows(results / f"{name}.jsonl") for name in TABLES}
    together = [row for rows in found.values() for row in rows.values()]
    if not together:
        raise SystemExit("No rows yet: python examples/papers/run.py S")
    sections, counted, known = [], [], {table.BASELINE}
    for section, names in SECTIONS.items():
        lines = [line for name in names for line in lines_of(results, name)]
        if not lines:
            continue
        sections += [f"## {section}", IN_SHORT[section]]
        sections.append(table.markdown(HEADER, lines))
        counted += [count(name, results) for name in names if found[name]]
        known |= {line[0] for line in lines}
    names = dict.fromkeys(n for each in TABLES for n in protocols.TABLES[each])
    missing = [name for name in names if name not in known]
    texts = [
        "# Verdicts",
        "Printed by `python examples/papers/table.py verdicts` from the rows "
        f"of {words.listed([f'`{n}.jsonl`' for n in TABLES if found[n]])}, of "
        "the settings that were chosen on validation images (`S-tuning.jsonl`) "
        "and, for claims, of corrupted images (`F_shift.jsonl`).",
        table.made_by(used(results, together)),
        ABOUT,
        AT_ONCE,
        table.markdown(COUNTED, counted),
        *sections,
    ]
    if missing:
        texts.append(f"Without a row: {'; '.join(missing)}.")
    texts += claimed.page(results)
    return "\n\n".join(texts)


def used(results, rows):
    """All rows of which numbers stand on the page, for their dates."""
    others = [f"{name}-tuning" for name in protocols.TUNED]
    others.append(f"{claimed.SHIFTED}_shift")
    for name in others:
        rows = [*rows, *read_rows(results / f"{name}.jsonl").values()]
    return rows


def lines_of(results, name):
    """The verdicts of one table, with those of what was tuned on it."""
    rows = sources.rows_of(results, name)
    pairs = dict(table.paired(name, rows))
    spreads = spreads_of(sources.base(name), rows)
    chosen = table.of_tuned(results, name)
    lines = []
    for method in protocols.TABLES[name]:
        if method in pairs:
            *cells, note = line(method, name, pairs[method], spreads)
            if method in chosen:
                note = note or reasons.NOT_CHOSEN
            lines.append([*cells, note])
        if method in chosen:
            shown, tuned = chosen[method]
            beside = table.beside_baseline(tuned, rows)
            lines += tuned_line(method, shown, name, beside, spreads)
    return lines


COUNTED = (
    "rows of | methods | seeds | ECE lower | ECE higher | ECE not told apart "
    "| NLL after TS better | NLL worse | NLL not told apart"
).split(" | ")


def count(name, results):
    """A line: how many methods of a table are told apart, as they are trained.

    What was tuned is left out.
    """
    rows = sources.rows_of(results, name)
    of_ece, of_nll = spreads_of(sources.base(name), rows)
    pairs = [each for _, each in table.paired(name, rows)]
    numbers = sorted({len(each) for each in pairs})
    cells = [name, str(len(pairs)), " to ".join(map(str, ends(numbers)))]
    for scatter, what in ((of_ece, ("ece",)), (of_nll, ("nll", SCALED))):
        said = [
            scatter.words(table.difference(each, *what), "below", "above")
            for each in pairs
        ]
        for word in ("below", "above"):
            alone = said.count(f"{word}, one seed")
            cells.append(f"{said.count(word)}" + f" ({alone})" * bool(alone))
        cells.append(str(said.count("not told apart")))
    return cells


def ends(values):
    """The first and the last one, or the only one."""
    return (values[0], values[-1])[: 1 + (len(values) > 1)]


SCALED = "test_scaled"
CHOSEN = "chosen on validation images"
ABOUT = """\
All numbers are differences from cross-entropy (CE) with the same seed, mean ±
standard error over seeds; accuracy and ECE in points. TS is temperature
scaling, fitted to the calibration images. "ECE there" is the difference from
cross-entropy in each published table of `claims.py` that has the method,
often another paper's than the method's own; the verdict as trained names the
tables in which the ECE goes the same way and those in which it does not. As
trained a verdict is about the ECE; after TS it is about the NLL, where a loss
can only win by better refinement. p is that of a paired t-test in which the
variance of a method is drawn towards that of all methods of the table, because
few seeds hardly tell it (a moderated t-test, `spread.py`); with one seed the
variance is theirs alone. So p can be small beside a large standard error of two
seeds, and large beside a small one. With several seeds, a difference with p
above 0.05 is not told apart from 0. All differences of a table share the seeds
of cross-entropy, so that p is a little too small where seeds are few: in a
simulation of 8,000 tables without any difference, p was below 0.05 in 6.6 % of
the lines with 2 seeds of 30 methods, and in 6.2 % with 3 seeds of 46."""


def spreads_of(name, rows):
    """The spread of the two differences that verdicts are about."""
    return (
        table.spread_of(name, rows, "ece"),
        table.spread_of(name, rows, "nll", "test_scaled"),
    )


def line(name, each, pairs, spreads):
    """One method with the rows of one table."""
    of_ece, of_nll = spreads
    ece = table.difference(pairs, "ece")
    after = table.difference(pairs, "nll", "test_scaled")
    published = {
        source.short: ece - source.baseline[1]
        for source, (_, ece) in claims.of_method(name, each)
    }
    there = [f"{source}: {value:+.2f}" for source, value in published.items()]
    return [
        name,
        claims.SAYS.get(name, "-"),
        "; ".join(there) or "-",
        each,
        str(len(pairs)),
        table.cell(table.difference(pairs, "accuracy"), 100),
        table.cell(ece, 100),
        table.cell(table.difference(pairs, "nll"), digits=3),
        of_ece.cell(ece),
        as_trained(ece, published, of_ece),
        table.cell(table.difference(pairs, "ece", "test_scaled"), 100),
        table.cell(after, digits=3),
        of_nll.cell(after),
        of_nll.words(after, "better", "worse"),
        reason_of(each, name, of_ece.words(ece, "lower", "higher")),
    ]


def reason_of(each, name, said):
    """What is known of a row; of a table, where its ECE is not lower."""
    found = reasons.REASONS.get((each, name), "")
    if not found and "SB-ECE" in name:
        found = reasons.WARM
    return found or reasons.OF_TABLE.get(each, "") * (said[:5] != "lower")


def tuned_line(name, shown, each, pairs, spreads):
    """The same with the settings that were chosen on validation images.

    A list of one line, or of none where cross-entropy has no such seeds.
    """
    if not pairs:
        return []
    _, says, there, _, *cells, _ = line(name, each, pairs, spreads)
    place = f"{each}-tuning"
    note = "; ".join(filter(None, (CHOSEN, reasons.REASONS.get((place, name)))))
    return [[shown, says, there, place, *cells, note]]


def as_trained(here, published, of_ece):
    """The direction of the ECE, and in which published tables it is the same.

    A method's own paper may say otherwise than another paper's table.

    Args:
        here: differences from cross-entropy.
        published: the same of published tables, by their short names.
        of_ece: their `spread.Spread`.
    """
    found = of_ece.words(here, "lower", "higher")
    if not published or found.startswith("not"):
        return found
    same = [s for s, there in published.items() if there * here.mean() > 0]
    others = [s for s in published if s not in same]
    for known, tables in (("as", same), ("not as", others)):
        if tables:
            found += f"; {known} in {' and '.join(tables)}"
    return found
