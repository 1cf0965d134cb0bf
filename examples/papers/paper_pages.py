"""A page for each paper: its tables in its layout, ours beside its numbers.

python examples/papers/table.py papers --into examples/results
"""

import protocols
import published
import table
from missing import diverged
from row_files import read_rows

import keras_calib as kc
from keras_calib.solvers.temperature_search import CONFIDENCE_RANGE
from keras_calib.solvers.temperature_search import ends_at

# Of each column: part of a row, key, factor, digits.
METRICS = {
    "ACC": ("test", "accuracy", 100, 2),
    "ECE": ("test", "ece", 100, 2),
    "AECE": ("test", "ece_mass", 100, 2),
    "cw-ECE": ("test", "classwise_ece", 1000, 2),
    "mIoU": ("test", "miou", 100, 2),
    "PreT": ("test", "ece", 100, 2),
    "PosT": ("test_scaled", "ece", 100, 2),
    "T": ("test_scaled", "temperature", 1, 2),
    "ECE l2": ("test", "ece_mass_l2", 100, 2),
    "ECE l2+TS": ("test_scaled", "ece_mass_l2", 100, 2),
    "ECE l2+TS-SB-ECE": ("test_scaled_to_sb_ece", "ece_mass_l2", 100, 2),
    "ECE l2 w/ Dirichlet": ("@DirichletScaling", "ece_mass_l2", 100, 2),
    "Test ECE": ("test", "ece", 100, 2),
    "Train ECE": ("train", "ece", 100, 2),
    "KS": ("test", "ks", 100, 2),
    "sweep": ("test", "sweep", 100, 2),
    "marginal": ("test", "marginal_ece", 100, 2),
    "floor": ("test", "ece_floor", 100, 2),
}
RUN = "python examples/papers/run.py"
ABOUT = """\
The paper's own numbers, in percent, and beside them ours, mean ± standard error
over seeds. A cell is empty where there is no row yet, or only rows that were
stored before this number was. Ours are small networks on few images, but for
those of a GPU (G30, G100, G200: ResNet-34 on all of CIFAR-10, in as many
epochs): compare how the lines of a column differ, not a number with another
table's. The number of seeds is in brackets; a number without it is a single
run. The floor is the ECE of a perfectly calibrated network, in 15 bins of equal
width; of the other errors (AECE, cw-ECE, ECE l2, KS, sweep, marginal) no row
has a floor. cw-ECE is in units of 0.001."""
# Behind an error whose temperature is where the search of it ended.
AT_THE_END = " \\*"
ENDS = (
    "The search of this temperature, from "
    f"{CONFIDENCE_RANGE[0]:g} to {CONFIDENCE_RANGE[1]:g}, ended at the end of "
    "its range: a better one may lie beyond."
)
# Our errors of the confidence beside which the floor stands.
WITH_FLOOR = ("ECE", "PreT", "Test ECE")


def page(name, results):
    """The page of a paper as Markdown.

    Args:
        name: key of `published.PAPERS`.
        results: folder of the stored rows.
    """
    paper = published.PAPERS[name]
    texts = [
        f"# {paper.title}",
        f"Printed by `python examples/papers/table.py {name}`.",
        ABOUT,
    ]
    if paper.missing:
        texts.append(paper.missing)
    sources = {}
    for block in paper.blocks:
        used = {each: rows_of(each, results) for each in chosen(block, results)}
        sources |= {each: rows for each, rows in used.items() if rows}
        texts.append(f"## {block.title}")
        if block.note:
            texts.append(block.note)
        texts += ours_of(used)
        texts.append(layout(block, used))
        if AT_THE_END in texts[-1]:
            texts.append(f"{AT_THE_END.strip()} {ENDS}")
        if block.title.startswith("Table A,"):
            texts.append(grid(block, results))
    together = [row for rows in sources.values() for row in rows.values()]
    if together:
        texts.insert(2, table.made_by(together))
    return "\n\n".join(texts)


def rows_of(name, results):
    """Rows of a table, with those of its primaries and penalties crossed."""
    crossed = read_rows(results / f"{name}-cross.jsonl")
    return crossed | read_rows(results / f"{name}.jsonl")


def chosen(block, results):
    """Names of our tables; of several, those that `chosen_of` takes."""
    for several in block.groups():
        yield from chosen_of(several, results)


def chosen_of(several, results):
    """The first that has rows; of lengths of one training, all that have."""
    with_rows = [name for name in several if rows_of(name, results)]
    if with_rows and with_rows[0] in published.GPU:
        return with_rows
    return (with_rows or several)[:1]


def ours_of(used):
    """Sentences: our tables in a few words, and those without rows."""
    found = [describe(name) for name, rows in used.items() if rows]
    missing = [f"`{name}`" for name, rows in used.items() if not rows]
    if found:
        yield f"Ours: {'; '.join(found)}."
    if missing:
        yield f"No rows yet (`{RUN} TABLE`): {', '.join(missing)}."


def describe(name):
    """Our table in a few words."""
    protocol = protocols.PROTOCOLS[name]
    network = "ResNet-20" if protocol.kind == "fine_tuning" else ""
    network = network or protocol.network.replace("resnet", "ResNet-")
    return f"{name}, {network}"


def layout(block, used):
    """A table with the paper's columns first, then ours that have rows."""
    used = {name: rows for name, rows in used.items() if rows}
    several = len(block.networks) > 1
    header = [
        f"{network}: {metric}" if several or place == 0 else metric
        for network in block.networks
        for place, metric in enumerate(block.metrics)
    ]
    metrics = list(block.metrics)
    if set(metrics) & set(WITH_FLOOR):
        metrics.append("floor")
    for name in used:
        header += [f"ours, {name}: {metric}" for metric in metrics]
    lines = []
    for label, method, after, numbers in block.lines():
        line = [label, *numbers]
        for rows in used.values():
            found = [row for (name, _), row in rows.items() if name == method]
            line += [cell(metric, found, after) for metric in metrics]
        lines.append(line)
    return table.markdown(["method", *header], lines)


def cell(metric, rows, after=""):
    """Mean and standard error of a column over rows; empty without any."""
    if metric == "ratio":
        pairs = [
            (row["test"]["ece"], row["train"]["ece"])
            for row in rows
            if row.get("train", {}).get("ece")
        ]
        found = [test / train for test, train in pairs]
        return of_seeds(found)
    if metric == "floor" and after not in ("", "TS"):
        return ""  # that of other confidences than the row's
    part, key, factor, digits = METRICS[metric]
    if after and part == "test":
        part = "test_scaled" if after == "TS" else f"@{after}"
    found = values(rows, part, key)
    if metric == "floor" and found:
        return f"{factor * sum(found) / len(found):.{digits}f}"
    text = of_seeds(found, factor, digits)
    if part == "test_scaled_to_sb_ece":
        objective = kc.layers.SoftBinnedECEObjective()
        temperatures = values(rows, part, "temperature")
        if any(ends_at(each, objective) for each in temperatures):
            text += AT_THE_END
    return text


def of_seeds(found, factor=1.0, digits=2):
    """Mean, standard error and number of seeds; empty without any."""
    if not found:
        return ""
    text = table.cell(found, factor, digits)
    return f"{text} ({len(found)})" if len(found) > 1 else text


def values(rows, part, key):
    """What rows have of a key: one value for each row that has it.

    Args:
        rows: stored rows of a method.
        part: a part of a row; `@map` is what a map makes of the test rows,
            `@way map` a map that is fitted in a way of `class_balance`,
            `class_scaling` or `objectives`.
        key: of the part.
    """
    found = [_part(row, part).get(key) for row in rows]
    return [value for value in found if value is not None]


def _part(row, part):
    if not part.startswith("@"):
        return row.get(part, {})
    way, _, name = part[1:].rpartition(" ")
    if not way:
        return row.get("maps", {}).get(name, {})
    for source in ("class_balance", "class_scaling", "objectives"):
        found = row.get(source, {}).get(name, {})
        if way in found:
            return found[way]
    return {}


def grid(block, results):
    """Ours of ACLS' table A, from the sweep, on validation images."""
    rows = rows_of("S-sweep", results)
    lost = diverged("S-sweep", results)
    lines = []
    for label, *_ in block.lines():
        line = [label]
        for weight in block.networks:
            settings = {
                "positive_weight": float(label),
                "negative_weight": float(weight),
            }
            key = protocols.variant("ACLS", settings), 0
            cell = "diverged" if key in lost else ""
            if key in rows:
                found = rows[key]["validation"]
                cell = f"{100 * found['accuracy']:.2f} / "
                cell += f"{100 * found['ece']:.2f}"
            line.append(cell)
        lines.append(line)
    words = "Ours, S, validation images, seed 0, margin 6"
    if all(line[1:] == [""] * len(block.networks) for line in lines):
        words += f" (no rows yet: `{RUN} S-sweep --only ACLS`)"
    columns = [f"negative {weight}" for weight in block.networks]
    return f"{words}:\n\n" + table.markdown(["positive", *columns], lines)


def write_all(results, folder):
    """Write the pages of all papers; yields their files."""
    for name in published.PAPERS:
        path = folder / f"paper_{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page(name, results) + "\n")
        yield path
