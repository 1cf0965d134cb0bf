"""The page of verdicts: what each method does beside what its paper says."""

import claims
import protocols
import questions
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
    spreads = {each: spreads_of(each, rows[each]) for each in TABLES}
    lines, missing = [], []
    chosen = {each: table.of_tuned(results, each) for each in TABLES}
    for name in names:
        found = [each for each in TABLES if name in pairs[each]]
        for each in found:
            *cells, note = line(name, each, pairs[each][name], spreads[each])
            if name in chosen[each]:
                note = note or claims.NOT_CHOSEN
            lines.append([*cells, note])
        if not found:
            missing.append(name)
        for each in TABLES:
            if name in chosen[each]:
                shown, tuned = chosen[each][name]
                beside = table.beside_baseline(tuned, rows[each])
                lines += tuned_line(name, shown, each, beside, spreads[each])
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
    texts += claimed(results)
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
can only win by better refinement. p is that of a paired t-test in which the
variance of a method is drawn towards that of all methods of the table, because
few seeds hardly tell it (a moderated t-test, `spread.py`); with one seed the
variance is theirs alone. So p can be small beside a large standard error of two
seeds, and large beside a small one. With several seeds, a difference with p
above 0.05 is not told apart from 0. All differences of a table share the seeds
of cross-entropy, so that p is a little too small where seeds are few: in a
simulation of 8,000 tables without any difference, p was below 0.05 in 6.6 % of
the lines with 2 seeds of 30 methods, and in 6.2 % with 3 seeds of 46."""
# Where the claims are looked up.
CLAIMED = ("S", "G100", "G30", "F")
ABOUT_CLAIMS = """\
The papers' claims, each beside the rows of both methods: "holds" if the
difference goes the claimed way and is told apart from 0 (p below 0.05), "does
not hold" if it is told apart and goes the other way, else "open". One seed
alone is "open", with its direction. Differences of accuracy and ECE in points.
The variance of other differences stands in for that of these. "S-tuning" are
the rows of S, with those of the chosen settings where a method, or what it is
compared with, was tuned.

"Behind" is what lies behind: for a claim about the ECE the confidence
minus the accuracy, of the method and of the other, in points; for one about
the accuracy that on training images, in percent. On S the ECE as trained is
the confidence minus the accuracy, as long as it is well above its floor: a
small network that knows its training images by heart is too sure of others by
19 points. Which of two methods is ahead is there which one takes more
confidence away. The networks of the papers, right on 93 to 96 % of the test
images, have an ECE of 2 to 6 % with cross-entropy, and what takes most away
may take too much. A training accuracy that is far below says that a loss is too
strong for the network to learn from: DCA at the paper's weight, squared
logits. "Why" says what is known of a claim that does not hold."""
FAILS = "does not hold"
# What stands beside a claim about a key: its name among the results, the key
# that is subtracted, and the part, if it is not that of the claim.
BEHIND = {
    "ece": ("confidence", "accuracy", None),
    "accuracy": ("accuracy", None, "train"),
}


def spreads_of(name, rows):
    """The spread of the two differences that verdicts are about."""
    return (
        table.spread_of(name, rows, "ece"),
        table.spread_of(name, rows, "nll", "test_scaled"),
    )


def claimed(results):
    """The table of claims, under its heading; nothing without rows."""
    lines = []
    for name in CLAIMED:
        rows = run.read_rows(results / f"{name}.jsonl")
        tuned = table.of_tuned(results, name)
        with_tuned = as_tuned(rows, tuned)
        spreads = {}
        for claim in claims.CLAIMS:
            what = claim.key, claim.part
            if what not in spreads:
                spreads[what] = table.spread_of(name, rows, *what)
            lines += claim_line(claim, name, rows, spreads[what])
            if claim.method in tuned:
                place = f"{name}-tuning"
                lines += claim_line(claim, place, with_tuned, spreads[what])
    if not lines:
        return []
    header = (
        "method | claim | rows of | pairs | difference | p | verdict | behind "
        "| why"
    )
    order = [each.method for each in claims.CLAIMS]
    lines.sort(key=lambda line: order.index(line[0]))
    return [
        "## Claims",
        ABOUT_CLAIMS,
        table.markdown(header.split(" | "), lines),
    ]


def as_tuned(rows, tuned):
    """Rows in which tuned methods have the settings that were chosen.

    Args:
        rows: of a table, a dict from `(method, seed)`.
        tuned: what `table.of_tuned` found for it.
    """
    found = {key: row for key, row in rows.items() if key[0] not in tuned}
    for method, (_, variants) in tuned.items():
        found |= {(method, row["seed"]): row for row in variants}
    return found


def claim_line(claim, name, rows, scatter):
    """A claim with the rows of a table: a list of one line, or of none."""
    found = questions.of_seeds(rows, claim.method, claim.other)
    found = table.with_key(found, claim.key, claim.part)
    if not found:
        return []
    here = table.difference(found, claim.key, claim.part)
    points = claim.key != "nll"
    shown = table.cell(here, *((100,) if points else (1.0, 3)))
    toward = claim.sign * here + claim.margin
    verdict = holds(toward, scatter)
    why = claims.WHY.get((name, claim), "") if verdict == FAILS else ""
    return [
        [
            claim.method,
            str(claim),
            name,
            str(len(found)),
            shown,
            scatter.cell(toward),
            verdict,
            behind(claim, found),
            why,
        ]
    ]


def behind(claim, pairs):
    """What may explain a difference: the mean of either method.

    Args:
        claim: `claims.Claim`.
        pairs: rows of the method and of the other with the same seed.

    Returns:
        Two numbers, or nothing where no row has them.
    """
    if claim.key not in BEHIND:
        return ""
    key, less, part = BEHIND[claim.key]
    pairs = table.with_key(pairs, key, part or claim.part)
    if not pairs:
        return ""
    means = []
    for rows in zip(*pairs, strict=True):
        found = [row[part or claim.part] for row in rows]
        numbers = [each[key] - (each[less] if less else 0) for each in found]
        means.append(100 * sum(numbers) / len(numbers))
    return ", ".join(f"{mean:.1f}" for mean in means)


def holds(toward, scatter):
    """What the rows say; differences above 0 are what is claimed."""
    if len(toward) == 1:
        return f"open: {'as' if toward[0] > 0 else 'not as'} claimed, one seed"
    if not scatter.told_apart(toward):
        return "open"
    return "holds" if toward.mean() > 0 else FAILS


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
        claims.REASONS.get((each, name), ""),
    ]


def tuned_line(name, shown, each, pairs, spreads):
    """The same with the settings that were chosen on validation images.

    A list of one line, or of none where cross-entropy has no such seeds.
    """
    if not pairs:
        return []
    _, says, there, _, *cells, _ = line(name, each, pairs, spreads)
    place = f"{each}-tuning"
    note = "; ".join(filter(None, (CHOSEN, claims.REASONS.get((place, name)))))
    return [[shown, says, there, place, *cells, note]]


def as_trained(here, published, of_ece):
    """The direction of the ECE, and in which published tables it is the same.

    A method's own paper may say otherwise than another paper's table.

    Args:
        here: differences from cross-entropy.
        published: the same of published tables, by their short names.
        of_ece: their `spread.Spread`.
    """
    words = of_ece.words(here, "lower", "higher")
    if not published or words.startswith("not"):
        return words
    same = [s for s, there in published.items() if there * here.mean() > 0]
    others = [s for s in published if s not in same]
    for known, sources in (("as", same), ("not as", others)):
        if sources:
            words += f"; {known} in {' and '.join(sources)}"
    return words
