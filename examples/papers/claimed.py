"""The claims of the page of verdicts: one method beside another one."""

import claims
import methods
import questions
import reasons
import shifted
import sources
import spread
import table
from row_files import read_rows

# Where the claims are looked up.
CLAIMED = (
    *("S", "S-cross", "S10k", "F", "C", "T", "D", "N9", "N40"),
    *("G30", "G100"),
)
# Networks of this table were measured on corrupted images.
SHIFTED = "F"
ABOUT = """\
The papers' claims, each beside the rows of both methods: "holds" if the
difference goes the claimed way and is told apart from 0 (p below 0.05), "does
not hold" if it is told apart and goes the other way, else "open". One seed
alone is "open", with its direction. Differences of accuracy and ECE in points.
The variance of other differences stands in for that of these. "S-tuning" are
the rows of S, with those of the chosen settings where a method, or what it is
compared with, was tuned; those of S-cross are compared with rows of S. Where
the focal loss in a method has another gamma than the row "FL", it is compared
with focal loss of its own gamma, from the rows of the tuning, and a claim
without such rows is open.

"Behind" is what lies behind: for a claim about the ECE the confidence
minus the accuracy, of the method and of the other, in points; for one about
the accuracy that on training images, in percent. On S the ECE as trained is
the confidence minus the accuracy, as long as it is well above its floor: a
small network that knows its training images by heart is too sure of others by
19 points. Which of two methods is ahead is there which one takes more
confidence away. In C, of 16 epochs, cross-entropy is too sure by less than a
point, and what takes confidence away makes the network too unsure. The
networks of the papers, right on 93 to 96 % of the test images, have an ECE of 2
to 6 % with cross-entropy, and what takes most away may take too much. A
training accuracy that is far below says that a loss is too strong for the
network to learn from: DCA at its authors' weight, squared logits. "Why" says
what is known of a claim that does not hold."""
SHORT = """\
All claims at once: "yes" where one holds, "no" where it does not, else "open";
"yes?" and "no?" are the direction of one seed. A cell is empty without rows of
both methods."""
UNDER_SHIFT = """\
The soft calibration objectives' figures 2 and 7 to 9, and AvUC's paper, on
[corrupted images](F_shift.md): means over 15 corruptions and severities 1 to 5,
networks as trained unless "after" is said, temperatures of clean images."""
FAILS = "does not hold"
# What stands beside a claim about a key: its name among the results, the key
# that is subtracted, and the part, if it is not that of the claim.
BEHIND = {
    "ece": ("confidence", "accuracy", None),
    "accuracy": ("accuracy", None, "train"),
}
HEADER = (
    "method | claim | rows of | pairs | difference | p | verdict | behind | why"
).split(" | ")


def page(results):
    """The claims as texts, under a heading; nothing without rows."""
    of_tables = {name: lines_of(results, name) for name in CLAIMED}
    corrupted = under_shift(results)
    together = [line for lines in of_tables.values() for line in lines]
    if not together + corrupted:
        return []
    texts = ["## Claims", ABOUT]
    if together:
        texts += [SHORT, at_once(together)]
    for name, lines in of_tables.items():
        if lines:
            texts += [f"### Claims, {name}", table.markdown(HEADER, lines)]
    if corrupted:
        texts += ["### Claims, corrupted images", UNDER_SHIFT]
        texts.append(table.markdown(HEADER, corrupted))
    return texts


def at_once(lines):
    """One line for each claim, one column for each table."""
    places = list(dict.fromkeys(place for _, _, place, *_ in lines))
    found = {}
    for method, claim, place, *_, verdict, _, _ in lines:
        # One line, whether or not the gamma had to be looked up.
        claim = claim.partition(" with gamma")[0]
        found.setdefault((method, claim), {})[place] = word(verdict)
    order = [(each.method, str(each)) for each in claims.CLAIMS]
    cells = [
        [*key, *(found[key].get(place, "") for place in places)]
        for key in order
        if key in found
    ]
    return table.markdown(["method", "claim", *places], cells)


def word(verdict):
    """A verdict in one word."""
    if verdict == FAILS:
        return "no"
    if verdict.endswith("one seed"):
        return "no?" if "not as" in verdict else "yes?"
    return "yes" if verdict == "holds" else "open"


def lines_of(results, name):
    """The claims with the rows of one table, and of what was tuned on it."""
    rows = sources.rows_of(results, name)
    base = sources.base(name)
    tuned = table.of_tuned(results, name)
    # Of which gamma a focal loss is looked up.
    variants = read_rows(results / f"{base}-tuning.jsonl")
    with_tuned = as_tuned(rows, tuned)
    spreads, lines = {}, []
    own = {method for method, _ in read_rows(results / f"{name}.jsonl")}
    for claim in claims.CLAIMS:
        if claim.method not in own:
            continue
        what = claim.key, claim.part
        if what not in spreads:
            spreads[what] = table.spread_of(base, rows, *what)
        lines += claim_line(claim, name, rows, spreads[what], variants)
        if claim.method in tuned:
            place = f"{name}-tuning"
            lines += claim_line(
                claim, place, with_tuned, spreads[what], variants
            )
    order = [each.method for each in claims.CLAIMS]
    return sorted(lines, key=lambda line: order.index(line[0]))


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


def under_shift(results):
    """Lines of the claims about corrupted images."""
    rows = corrupted(results, SHIFTED)
    place = f"{SHIFTED}, corrupted"
    lines = []
    for claim in claims.SHIFT_CLAIMS:
        scatter = spread.Spread(
            parts_of(claim, with_parts(pairs, claim))
            for pairs in pairs_of(rows, claim)
        )
        lines += claim_line(claim, place, rows, scatter)
    return lines


def pairs_of(rows, claim):
    """Pairs of rows like those of a claim, method by method.

    Each with cross-entropy, or with itself, where a claim is of two
    temperatures of one network.
    """
    for name in dict.fromkeys(method for method, _ in rows):
        if claim.method == claim.other:
            yield questions.of_seeds(rows, name, name)
        elif name != table.BASELINE:
            yield questions.of_seeds(rows, name, table.BASELINE)


def corrupted(results, name):
    """Means over corrupted images in the shape of rows.

    Returns:
        A dict from `(method, seed)`; the parts have the names of `CLAIMS`.
    """
    stored = read_rows(results / f"{name}_shift.jsonl")
    parts = {
        shifted.TRAINED: "test",
        shifted.SCALED: "test_scaled",
        shifted.TO_SB_ECE: "test_scaled_to_sb_ece",
    }
    return {
        key: {
            part: line[stored_as]["mean"]
            for stored_as, part in parts.items()
            if stored_as in line
        }
        for key, line in stored.items()
    }


def with_parts(pairs, claim):
    """Those pairs of rows that have what a claim is about."""
    return table.with_key(pairs, claim.key, claim.part, claim.other_part)


def parts_of(claim, pairs):
    """The differences that a claim is about, one for each pair of rows."""
    return table.difference(pairs, claim.key, claim.part, claim.other_part)


def focal_loss(method):
    """The focal loss of a method, or of its primary; `None` without one."""
    loss = methods.METHODS[method]["loss"]
    for found in (loss, loss.get("primary")):
        if isinstance(found, dict) and found["class"] == "FocalLoss":
            return found
    return None


def reference(claim, rows, variants):
    """Focal loss with the gamma that it has in the method.

    Args:
        claim: `claims.Claim`.
        rows: of a table, a dict from `(method, seed)`.
        variants: rows of what was tried on it.

    Returns:
        `name, rows, note`: with which name in which rows the method is
        compared, and what to say of it: `None` if there are only rows of
        another gamma.
    """
    own, other = focal_loss(claim.method), focal_loss(claim.other)
    if None in (own, other) or own == other:
        return claim.other, rows, ""
    gamma = {"gamma": own["gamma"]}
    name = methods.variant(claim.other, gamma)
    if any(method == name for method, _ in variants):
        return name, {**rows, **variants}, f" with gamma {own['gamma']:g}"
    return claim.other, rows, None


def claim_line(claim, name, rows, scatter, variants=None):
    """A claim with the rows of a table: a list of one line, or of none."""
    other, together, note = reference(claim, rows, variants or {})
    found = questions.of_seeds(together, claim.method, other)
    found = with_parts(found, claim)
    if not found:
        return []
    here = parts_of(claim, found)
    points = claim.key != "nll"
    shown = table.cell(here, *((100,) if points else (1.0, 3)))
    toward = claim.sign * here + claim.margin
    if note is None:
        verdict, why = "open: another gamma", other_gamma(claim)
    else:
        verdict = holds(toward, scatter)
        why = reasons.WHY.get((name, claim), "") if verdict == FAILS else ""
    return [
        [
            claim.method,
            f"{claim}{note or ''}",
            name,
            str(len(found)),
            shown,
            scatter.cell(toward),
            verdict,
            behind(claim, found),
            why,
        ]
    ]


def other_gamma(claim):
    own, other = focal_loss(claim.method), focal_loss(claim.other)
    return (
        f"its focal loss has gamma {own['gamma']:g}, and there is no row of "
        f"{claim.other} alone with it, only with {other['gamma']:g}"
    )


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
    seen = part or claim.part
    seen_other = part or claim.other_part or claim.part
    pairs = [
        (row[seen], other[seen_other])
        for row, other in pairs
        if key in row.get(seen, {}) and key in other.get(seen_other, {})
    ]
    if not pairs:
        return ""
    means = []
    for found in zip(*pairs, strict=True):
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
