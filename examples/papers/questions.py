"""The page of questions: what papers leave open, and what the rows say of it.

python examples/papers/table.py questions
"""

import dataclasses
from collections.abc import Callable

import balancing
import numpy as np
import protocols
import published
import table
from row_files import read_rows


@dataclasses.dataclass(frozen=True)
class Question:
    """Something that the papers leave open.

    Attributes:
        title: in a few words.
        text: what is known, and from where.
        pairs: `(table, method, other)` whose difference decides.
        state: what is settled without these rows, or an empty text.
        gaps: methods of S whose confidence after temperature scaling is shown
            beside their accuracy.
        peers: tables in which the accuracy of the auxiliary networks is shown
            beside that of the primary one.
        measured: makes a paragraph of the folder of results.
    """

    title: str
    text: str
    pairs: tuple[tuple[str, str, str], ...]
    state: str = ""
    gaps: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    measured: Callable | None = None


# Seeds of what was chosen on validation images.
TUNED = {"S-tuning": 3}
# Auxiliaries at the first rate of the primary.
SAME_RATE = "Diff-DML: auxiliary_rate=0.1"
QUESTIONS = (
    Question(
        "ACLS: from where is the largest logit measured?",
        """\
Equation 13 measures it from the smallest logit (`reference="min"`), the
released code from zero (`reference="zero"`, the default: the published
results come from it). Equation 12 is half of the gradient of equation 13 with
the smallest logit held constant. Nothing then keeps all logits from falling
together: `examples/acls_stability.py` trains a small network with each form,
equation 12 to the letter among them (a sum over the other classes, no factor
2), and prints what becomes of the loss. So `reference="min"` has its own
gradient by default (`stop_gradient=False`), and equation 12 must be asked
for.""",
        (
            ("S", "ACLS, min", "ACLS"),
            ("F", "ACLS, min", "ACLS"),
        ),
        "Equation 12 diverges, the other two train: "
        "[the table](acls_stability.md). Which of the two is better depends on "
        "where the training begins: see the last column.",
    ),
    Question(
        "Diff-DML: what is its objective, and why is it below DML?",
        """\
The supplement has Proposition 1 and the tables, but no training objective,
weight, or rate of the auxiliary. That the
auxiliary sees no labels, that the primary minimizes KL(g || f) with weight 1,
and the rate are assumed here, from Proposition 1 and one other
implementation; the docstring of `DiffDML` says so. In S, S10k and on [4,000
images](mutual_learning_small.md), where DML is too sure, Diff-DML is far better
calibrated than DML and less accurate: an auxiliary that sees no labels learns
late there. In C, where cross-entropy ends with its ECE at the floor and DML is
too unsure, Diff-DML is more unsure still: less accurate, and with the higher
ECE. How much of it is the rate of the auxiliary, the rows of S-tuning
tell, in which it is that of the primary itself, 0.1, as chosen on validation
images ([grid](S-tuning.md)), and not 0.03. Whether it is only late, the rows of
G30, G100 and G200 tell: ResNet-34 on all of CIFAR-10, trained for longer and
longer. `label_warmup`,
which is not in the paper, gives it labels in the first steps; its default is
0. The paper's table S4 has a small CNN as the one auxiliary that spoils
Diff-DML (ECE of 8 % on CIFAR-10). ResNets of other sizes are no worse than
ResNet-18 on CIFAR-10 (with ResNet-34 as primary and auxiliary 0.65 beside
0.68), but on CIFAR-100 they are (1.17 beside 0.65), as here in G30, in a single
run. In the paper's own tables DML is below the baseline on CIFAR-10, so that a
part of its order is a weak DML.""",
        (
            *((name, "Diff-DML", "DML") for name in ("S", "S10k", "C")),
            ("S", "Diff-DML, labels 10 %", "Diff-DML"),
            ("S", "Diff-DML, labels 20 %", "Diff-DML"),
            ("S", "Diff-DML, labels 20 %", "DML"),
            ("S-tuning", SAME_RATE, "Diff-DML"),
            ("S-tuning", SAME_RATE, "DML"),
            *((name, "Diff-DML", "DML") for name in published.GPU[::-1]),
            ("G30", "Diff-DML, labels 20 %", "Diff-DML"),
            ("G100", "Diff-DML, labels 20 %", "DML"),
            ("G30", "Diff-DML, CNN", "Diff-DML"),
            ("G30", "Diff-DML, ResNet-34", "Diff-DML"),
        ),
        peers=("S", "S-tuning", "S10k", "C", *published.GPU),
    ),
    Question(
        "Class-wise scaling: does it help, or does balancing?",
        """\
In the authors' code a class loss is the mean over the class's samples, in
equation 3 the sum. With the mean, all classes weigh the same, and the paper's
test sets are balanced where its calibration sets have a tail. Protocol LT
separates the two: scaling with means, scaling with sums, and weights 1 / n_y
without scaling.""",
        (),
        "See [the page of the paper](paper_class_scaling.md), table 2. Of the "
        "paper's idea that the ECE follows the spread of the class losses: the "
        "figures of S and LT (`table.py LT --figures`) have the correlation "
        "over the iterations of four fits. It is there with a tail, where "
        "balancing lowers both; without a tail the ECE follows the total loss "
        "([figures of S](S_figures.md)).",
        measured=balancing.of_balancing,
    ),
    Question(
        "Soft calibration objectives: what is their MSE?",
        """\
The paper has an "MSE" primary and does not define it; it cites Hui and
Belkin, whose square loss acts on outputs without softmax, `SquaredLogitLoss`.
The penalties need probabilities, and how the paper reads them from such
outputs is not said. `BrierLoss` is the square of probabilities. In the
paper's own table 2 the MSE row is as accurate as focal loss and, on CIFAR-10,
the worst calibrated of the three primaries: neither form can be told from
that. Both are rows here. That no primary is the strongest everywhere is the
paper's own result: on ImageNet cross-entropy beat the other two, on CIFAR-100
NLL is more accurate than focal loss, and MSE alone has the lowest ECE of the
three.""",
        (
            ("S", "Brier", "CE"),
            ("S", "squared logit", "Brier"),
            ("S", "Brier+SB-ECE", "Brier"),
            ("S", "FL+SB-ECE", "SB-ECE"),
        ),
        "Open by nature: the paper's code of training is not public.",
    ),
    Question(
        "The square loss of Hui and Belkin: why does it fail in S?",
        """\
Two things. Its outputs estimate the probabilities themselves and lie near 0
and 1; the driver puts all outputs through a softmax, which for ten classes
then gives no confidence above 0.23, so that the ECE as trained is the accuracy
less such a confidence and the temperature far below 1. This says nothing of
the loss: read the columns after temperature scaling, or those of outputs read
as probabilities (rows from now on have them). The accuracy is another matter:
at cross-entropy's rate the loss underfits, because it is a mean over the
classes, with a fifth of the gradient of cross-entropy. `S-square` is S with
three times the rate and a third of the decay, which is the same as three times
the loss (chosen on validation images in trials that are not stored); that row
is to be compared with cross-entropy, and not the one of S.""",
        (
            ("S", "squared logit", "CE"),
            ("S-square", "squared logit", "CE"),
        ),
    ),
    Question(
        "Focal loss: why has it the higher ECE after temperature scaling?",
        """\
Focal loss is no proper loss: what minimizes it are not the probabilities of the
classes but, where one class is likely, probabilities that are bent towards
equal ones, the more so the larger gamma (Charoenphakdee et al., "On Focal Loss
for Class-Posterior Probability Estimation", 2021). To divide all logits by one
number does not undo that: where the NLL is least, the network is right more
often than it says, as the column "gap" shows (mean confidence minus accuracy).
It is so with gamma 3 and with losses that choose gamma by sample, little with
gamma 1 (FL+MDCA, FL+SB-ECE), and the other way round with inverse focal loss.
`IntraOrderPreserving`, which can bend back, takes most of the ECE away that
focal loss has above cross-entropy.""",
        (("S", "FL", "CE"),),
        gaps=(
            *("CE", "Brier", "FL", "FLSD-53", "AdaFocal", "dual focal"),
            *("FL+MDCA", "FL+SB-ECE", "inverse focal"),
        ),
    ),
)
ABOUT = """\
Differences of rows of the same seed, mean ± standard error over seeds:
accuracy and ECE in points. TS is temperature scaling, fitted to the
calibration images. p is that of a moderated paired t-test, as in the
[verdicts](verdicts.md), with the spread that differences from cross-entropy
have in the same table. With several seeds, p above 0.05 is not told apart from
0."""
HEADER = (
    "table | difference | pairs | accuracy | ECE | NLL | NLL after TS "
    "| p (accuracy) | p (ECE) | p (NLL after TS) | seen"
).split(" | ")
PEERS = """\
How far the auxiliaries are: accuracy on the validation images, and that of the
auxiliaries on the training images while they learn."""
# A map that can bend the scale of confidences.
BENT = "IntraOrderPreserving"
# What is compared: its name, its key and its part of a row.
COMPARED = (
    ("accuracy", "accuracy", "test"),
    ("ECE", "ece", "test"),
    ("NLL after TS", "nll", "test_scaled"),
)


def page(results):
    """The whole page as Markdown, from stored rows."""
    texts = [
        "# Open questions",
        "Printed by `python examples/papers/table.py questions`.",
        ABOUT,
    ]
    used = used_rows(results)
    if used:
        texts.insert(2, table.made_by(used))
    for question in QUESTIONS:
        texts += [f"## {question.title}", question.text]
        lines, open_pairs = [], []
        for name, method, other in question.pairs:
            rows = rows_of(results, name)
            pairs = of_seeds(rows, method, other)
            if pairs and name in TUNED:
                rows = rows_of(results, untuned(name))
            if pairs:
                lines.append(line(name, method, other, pairs, rows))
            missing = wanted(name, method, other) - len(pairs)
            if missing > 0:
                open_pairs.append(command(name, method, other, missing))
        if lines:
            texts.append(table.markdown(HEADER, lines))
        if question.gaps:
            texts.append(gaps(rows_of(results, "S"), question.gaps))
        texts += peers(results, question.peers)
        if question.measured:
            texts += filter(None, [question.measured(results)])
        if question.state:
            texts.append(question.state)
        if open_pairs:
            texts.append("Open:\n\n" + "\n".join(open_pairs))
        elif question.pairs:
            texts.append("All rows are there.")
    return "\n\n".join(texts)


def used_rows(results):
    """All rows that a question is about."""
    found = []
    for question in QUESTIONS:
        for name, method, other in question.pairs:
            for pair in of_seeds(rows_of(results, name), method, other):
                found += pair
        for name in question.peers:
            stored = read_rows(results / f"{name}.jsonl").values()
            found += [row for row in stored if row.get("auxiliary_accuracy")]
        if question.gaps:
            stored = rows_of(results, "S").items()
            found += [r for (name, _), r in stored if name in question.gaps]
        if question.measured:
            found += read_rows(results / "LT.jsonl").values()
    return found


def gaps(rows, methods):
    """A table of confidence beside accuracy, after temperature scaling."""
    lines = []
    for method in methods:
        of_method = [
            row
            for (name, _), row in rows.items()
            if name == method and BENT in row.get("maps", ())
        ]
        if not of_method:
            continue
        found = [
            (
                after["temperature"],
                100 * (after["confidence"] - after["accuracy"]),
                100 * after["ece"],
                100 * row["maps"][BENT]["ece"],
            )
            for row in of_method
            for after in [row["test_scaled"]]
        ]
        cells = [table.cell(values) for values in zip(*found, strict=True)]
        floors = [row["test_scaled"]["ece_floor"] for row in of_method]
        cells.insert(3, table.floor(floors))
        lines.append([method, str(len(of_method)), *cells])
    header = ["method, in S", "seeds", "T", "gap, points", "ECE % after TS"]
    header += ["its floor %", f"ECE % after {BENT}"]
    return table.markdown(header, lines)


def peers(results, names):
    """A table of the accuracy of both kinds of networks, on validation data.

    Returns:
        A list of what stands above it and the table; without rows it is empty.
    """
    lines = []
    for name in names:
        stored = read_rows(results / f"{name}.jsonl")
        for method, rows in table.of_variants(stored):
            found = [
                (row["validation"]["accuracy"], np.mean(of_peers), last)
                for row in rows
                for of_peers in [row.get("auxiliary_accuracy")]
                if of_peers
                for last in [row.get("history", {}).get("auxiliary_accuracy")]
            ]
            if not found:
                continue
            *validated, learned = zip(*found, strict=True)
            cells = [table.cell(values, 100) for values in validated]
            learned = [values[-1] for values in learned if values]
            cells.append(table.cell(learned, 100) if learned else "")
            lines.append([name, method, str(len(found)), *cells])
    header = ["table", "method", "seeds", "primary %", "auxiliaries %"]
    header.append("auxiliaries %, training data, last epoch")
    return [PEERS, table.markdown(header, lines)] if lines else []


def rows_of(results, name):
    """Rows of a table, with those of S that they are compared with."""
    rows = read_rows(results / f"{name}.jsonl")
    beside = {"S-square": ("CE",), "S-tuning": ("DML", "Diff-DML")}
    plain = read_rows(results / "S.jsonl") if name in beside else {}
    for (method, seed), row in plain.items():
        if method in beside[name]:
            rows[method, seed] = row
    return rows


def of_seeds(rows, method, other):
    """Pairs of rows of two methods with the same seed, by seed."""
    seeds = sorted(seed for name, seed in rows if name == method)
    return [
        (rows[method, seed], rows[other, seed])
        for seed in seeds
        if (other, seed) in rows
    ]


def wanted(name, *methods):
    """How many seeds both methods have in the end."""
    if name in TUNED:
        return TUNED[name]
    table_of = {**protocols.TABLES[name]}
    if name == "S-square":
        table_of["CE"] = protocols.TABLES["S"]["CE"]
    return min(table_of.get(method, 0) for method in methods)


def command(name, method, other, missing):
    """What makes the pairs that are missing, as an item of a list."""
    seeds = "seed" if missing == 1 else "seeds"
    which = f"- {name}, {method} and {other}: {missing} {seeds}"
    words = f'{name} --only "{method}"'
    if name in TUNED:
        method, _, _ = method.partition(":")
        words = f'{untuned(name)} --tune --only "{method}"'
        words += f" --seeds {TUNED[name]}"
    elif name != "S-square":
        words += f' "{other}"'
    return f"{which}, `python examples/papers/run.py {words}`"


def untuned(name):
    """The table of whose methods some are tuned, or the table itself."""
    return name.removesuffix("-tuning")


def line(name, method, other, pairs, rows):
    like = untuned(name)  # whose methods tell how far differences scatter
    found = [
        (table.difference(pairs, *what), table.spread_of(like, rows, *what))
        for _, *what in COMPARED
    ]
    accuracy, ece, after = (values for values, _ in found)
    seen = [
        f"{what} {scatter.words(values, 'lower', 'higher')}"
        for (what, *_), (values, scatter) in zip(COMPARED, found, strict=True)
    ]
    return [
        name,
        f"{method} - {other}",
        str(len(pairs)),
        table.cell(accuracy, 100),
        table.cell(ece, 100),
        table.cell(table.difference(pairs, "nll"), digits=3),
        table.cell(after, digits=3),
        *(scatter.cell(values) for values, scatter in found),
        "; ".join(seen),
    ]
