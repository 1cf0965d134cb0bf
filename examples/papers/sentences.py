"""Prints the sentences of the page of results, and writes them there.

    python examples/papers/sentences.py            # prints
    python examples/papers/sentences.py --write    # into results/README.md

What a sentence says, also whether an error is lower or higher, comes from the
stored rows: means over seeds, and differences from rows of the same seeds. A
sentence whose rows are missing is left out.
"""

import argparse
import inspect
import json
import pathlib
import sys

import claims
import numpy as np
import provenance_page
import readme
import shift_page
import shifted
import table
import tuning
from methods import SB_ECE
from places import RESULTS
from row_files import read_rows
from words import amounts
from words import beside
from words import changes
from words import listed
from words import over_seeds
from words import paragraph
from words import percent
from words import seeds

import keras_calib as kc

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import stored_pages

PAGE = RESULTS / "README.md"
BEGIN = stored_pages.mark("python examples/papers/sentences.py, {}")
# Losses that hold the confidence of single samples down.
HELD_DOWN = (
    "LS",
    "MbLS",
    "ACLS",
    "CPC",
    "Brier",
    "FL",
    "FLSD-53",
    "dual focal",
)
INTERLEAVED = {
    "S": ("SB-ECE", "FL+SB-ECE", "Brier+SB-ECE"),
    "F": ("MDCA", "SB-ECE", "MMCE", "FL+SB-ECE"),
}
# One training of a large network, in three lengths.
LENGTHS = ("G30", "G100", "G200")
# Differences that are worth a name: in nats, and in accuracy.
BETTER, COSTLY = 0.04, 0.03
# Standard errors beyond which an error is clearly another.
CLEAR = 2
SCALED = "test_scaled"
NOTHING = provenance_page.NOTHING


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="into the page")
    arguments = parser.parse_args(arguments)
    for name, text in parts(RESULTS).items():
        print(f"{name}\n\n{text}\n")
    if arguments.write:
        write(PAGE, RESULTS)


def write(page, results):
    """Write the sentences of stored rows into a page."""
    text = page.read_text(encoding="utf-8")
    text = with_sentences(text, parts(results))
    page.write_text(text, encoding="utf-8")


def parts(results):
    """The text of each part of the page, by its name."""
    rows = {
        name: read_rows(results / f"{name}.jsonl")
        for name in (
            *("S", "S10k", "F", "F_shift", "N9", "N40"),
            *("S-tuning", "F-tuning", *LENGTHS),
        )
    }
    path = results / "S-tuning.json"
    chosen = json.loads(path.read_text()) if path.exists() else {}
    found = {
        "S": (of_scratch(rows), ("S", "F")),
        "S10k": (of_two_sizes(rows["S"], rows["S10k"]), ("S", "S10k")),
        "F under corruption": (of_corruption(rows["F_shift"]), ("F_shift",)),
        "wrong labels": (of_wrong_labels(rows), ("N9", "N40")),
        "tuning": (of_tuning(rows, chosen), ("S", "S-tuning", "F-tuning")),
        "GPU": (of_lengths(rows), LENGTHS),
    }
    texts = {
        "hardware": provenance_page.table_of(results),
        "commits": of_commits(results),
    }
    for name, (text, sources) in found.items():
        used = [row for each in sources for row in rows[each].values()]
        made = f"Rows: {table.made_by(used)}." if used else ""
        known = text != NOTHING and made
        texts[name] = f"{text}\n\n{paragraph(made)}" if known else text
    return texts


def of_commits(results):
    text = provenance_page.of_commits(results)
    return text and paragraph(text)


def with_sentences(page, texts):
    """The page with each text between its two marks.

    One that is `None`, because nothing tells it here, stays as it is.
    """
    for name, text in texts.items():
        if text is None:
            continue
        otherwise = f"The page has no place for the part {name!r}."
        page = stored_pages.between(page, BEGIN.format(name), text, otherwise)
    return page


# Values of rows.


def means(name, rows):
    """Mean test errors of each method over its seeds."""
    return {
        method: {key: mean(found, key) for key in ("ece", "ece_floor")}
        for method, found in table.of_method(name, rows)
    }


def mean(rows, key):
    return float(np.mean([row["test"][key] for row in rows]))


def differences(rows, first, second, key, part="test", others=None):
    """First minus second method, of each seed that both have.

    Args:
        rows: stored rows by `(method, seed)`.
        first: name of a method.
        second: name of a method.
        key: of an error.
        part: of a row.
        others: the rows of the second method, by default `rows`.
    """
    others = rows if others is None else others
    return np.array(
        [
            row[part][key] - others[second, seed][part][key]
            for (method, seed), row in rows.items()
            if method == first and (second, seed) in others
        ]
    )


def from_baseline(rows, names, key, part="test"):
    """Mean difference from cross-entropy of each method that has rows."""
    found = {
        name: differences(rows, name, table.BASELINE, key, part)
        for name in names
    }
    return {name: each.mean() for name, each in found.items() if len(each)}


# Protocol S.


def of_scratch(rows):
    if not rows["S"]:
        return NOTHING
    found = means("S", rows["S"])
    numbers = [
        method_rows for _, method_rows in table.of_method("S", rows["S"])
    ]
    start = (
        "[The tables](S.md) and [what each paper says](verdicts.md). "
        f"{readme.seeds_of(numbers, 'lines of the table')} What one seed "
        "shows is to be confirmed by more."
    )
    parts = (
        held_down(rows["S"]),
        better_networks(rows["S"], found),
        of_diff_dml(rows["S"], found),
        of_reference(found),
        costly(rows["S"], found),
        hardly_changed(rows["S"]),
        interleaved(rows),
        inverse_focal(rows["S"]),
    )
    entries = [paragraph(each, "- ") for each in parts if each]
    return "\n\n".join([paragraph(start), "\n".join(entries)])


def held_down(rows):
    ece = from_baseline(rows, HELD_DOWN, "ece")
    if not ece:
        return ""
    return (
        f"Losses that hold the confidence of a sample down ({listed([*ece])}): "
        "as trained the ECE is "
        f"{told(rows, 'ece', 'test', 100, 'points', 1)} beside cross-entropy. "
        "After temperature scaling the NLL is "
        f"{told(rows, 'nll', SCALED, 1, 'nats', 3)}."
    )


def told(rows, key, part, scale, unit, digits):
    """`changes` of `HELD_DOWN` that are told apart from 0, and the others."""
    scatter = table.spread_of("S", rows, key, part)
    found = {
        name: differences(rows, name, table.BASELINE, key, part)
        for name in HELD_DOWN
    }
    return told_of(found, scatter, scale, unit, digits)


def told_of(found, scatter, scale, unit, digits):
    """The same of `differences` by the name of a method, some of them empty."""
    found = {name: each for name, each in found.items() if len(each)}
    clear = [
        scale * each.mean()
        for each in found.values()
        if scatter.told_apart(each)
    ]
    unclear = [n for n, each in found.items() if not scatter.told_apart(each)]
    words = [changes(clear, unit, digits, len(found))] if clear else []
    if unclear:
        words.append(f"not told apart with {listed(unclear)}")
    return ", ".join(words)


def better_networks(rows, found):
    after = from_baseline(rows, found, "nll", SCALED)
    best = sorted((n for n in after if after[n] <= -BETTER), key=after.get)
    if not best:
        return (
            f"No method is better than cross-entropy by {BETTER} nats after "
            "temperature scaling."
        )
    shown = [f"{name} ({-after[name]:.3f}{few(rows, name)})" for name in best]
    return (
        "Better networks, by an NLL after temperature scaling that is at least "
        f"{BETTER} nats below that of cross-entropy: {'; '.join(shown)}."
    )


def few(rows, name):
    """The number of seeds, in words, where it is below three."""
    number = sum(method == name for method, _ in rows)
    return f", {seeds(number)}" if number < 3 else ""


def of_diff_dml(rows, found):
    loses = differences(rows, "Diff-DML", "DML", "accuracy")
    if not len(loses):
        return ""
    own = found["Diff-DML"]
    order = sorted(each["ece"] for each in found.values())
    place = 1 + order.index(own["ece"])
    paper = next(p.methods for p in claims.PUBLISHED if "Diff-DML" in p.methods)
    there = paper["Diff-DML"][0] - paper["DML"][0]
    of_accuracy, of_ece = (
        table.spread_of("S", rows, key) for key in ("accuracy", "ece")
    )
    less = over_seeds(loses, "that of DML", of_accuracy)
    text = (
        f"Diff-DML has an ECE of {percent(own['ece'])} as trained, beside a "
        f"floor of {percent(own['ece_floor'])} (place {place} of {len(order)} "
        f"methods). Its accuracy is {less}; in its paper it is "
        f"{beside(there, 2, 'points', 'that')}."
    )
    warm = "Diff-DML, labels 20 %"
    gains = differences(rows, warm, "Diff-DML", "accuracy")
    if len(gains):
        ece = differences(rows, warm, "Diff-DML", "ece")
        text += (
            " With labels for the auxiliary in the first 20 % of the steps "
            "(`label_warmup`, which is ours) the accuracy is "
            f"{over_seeds(gains, 'without', of_accuracy)}, and the ECE "
            f"{over_seeds(ece, 'without', of_ece)}."
        )
    return text


def of_reference(found):
    if not {"ACLS", "ACLS, min"} <= found.keys():
        return ""
    least, default = found["ACLS, min"], found["ACLS"]
    return (
        "ACLS that measures from the smallest logit, as in the paper, has an "
        f"ECE of {above(least)} as trained; with the released code's "
        f"reference, the default, it has {above(default)}."
    )


def above(errors):
    """An ECE and its floor."""
    floor = percent(errors["ece_floor"])
    return f"{percent(errors['ece'])} (floor {floor})"


def costly(rows, found):
    accuracy = from_baseline(rows, found, "accuracy")
    lost = sorted(
        (n for n in accuracy if accuracy[n] <= -COSTLY), key=accuracy.get
    )
    if not lost:
        return f"No method loses {100 * COSTLY:.0f} points of accuracy."
    shown = [f"{name} ({-100 * accuracy[name]:.1f})" for name in lost]
    return (
        f"At least {100 * COSTLY:.0f} points of accuracy are lost by "
        f"{'; '.join(shown)}. DCA has its authors' weight here; for its tuned "
        "weight see [tuning](#tuning)."
    )


def hardly_changed(rows):
    found = {
        name: differences(rows, name, table.BASELINE, "ece")
        for name in ("MDCA", "SB-ECE")
    }
    scatter = table.spread_of("S", rows, "ece")
    temperature = SB_ECE["temperature"]
    notes = {"SB-ECE": f" (with temperature {temperature:g})"}
    shown = [
        f"of {name}{notes.get(name, '')} "
        f"{over_seeds(each, 'that of cross-entropy', scatter)}"
        for name, each in found.items()
        if len(each)
    ]
    return f"As trained, the ECE is {listed(shown)}." if shown else ""


def of_two_sizes(rows, larger):
    """The differences from cross-entropy with 5,000 and 10,000 images."""
    names = [name for name, _ in table.of_method("S10k", larger)]
    found = {}
    for what, key, part in SIZED:
        for size, each in (("S", rows), ("S10k", larger)):
            spread_of = table.spread_of(size, each, key, part)
            for name in names:
                values = differences(each, name, table.BASELINE, key, part)
                found[what, size, name] = values, spread_of
    names = [
        name
        for name in names[1:]
        if all(len(found[what, size, name][0]) for what, size, _ in found)
    ]
    if not names:
        return NOTHING
    header = ["method - CE"]
    for what in ("accuracy, points", "ECE, points", "NLL after TS"):
        header += [what, "with 10,000"]
    lines = [
        [
            name,
            *(sized(found[what, size, name][0], what) for what, size in BOTH),
        ]
        for name in names
    ]
    most = max(len(each) for _, each in table.of_method("S10k", larger))
    text = (
        f"{agreement(found, names)} With 10,000 images there "
        f"{'are' if most > 1 else 'is'} {seeds(most)} of a method"
        f"{' at most' * (most > 1)}, so that less is told apart. "
        "[The table](S10k.md)."
    )
    return f"{table.markdown(header, lines)}\n\n{paragraph(text)}"


# What is compared at both sizes: its name, its key and its part of a row.
SIZED = (
    ("accuracy", "accuracy", "test"),
    ("ECE", "ece", "test"),
    ("NLL after temperature scaling", "nll", SCALED),
)
BOTH = [(what, size) for what, *_ in SIZED for size in ("S", "S10k")]


def sized(values, what):
    """A cell, with a sign and its standard error."""
    scale, digits = (1, 3) if what.startswith("NLL") else (100, 2)
    text = table.cell(values, scale, digits)
    return text if text.startswith("-") else f"+{text}"


def agreement(found, names):
    """Which differences are told apart from 0 at both sizes, and their way."""
    same, other, only = [], [], {"S": [], "S10k": []}
    for what, *_ in SIZED:
        for name in names:
            told = {}
            for size in ("S", "S10k"):
                values, scatter = found[what, size, name]
                if scatter.told_apart(values):
                    told[size] = values.mean() > 0
            error = f"the {what} of {in_a_list(name)}"
            if len(told) == 2:
                (same if told["S"] == told["S10k"] else other).append(error)
            elif told:
                lost = "S10k" if "S" in told else "S"
                values, scatter = found[what, lost, name]
                error += f" (p {scatter.cell(values)} there)"
                only[next(iter(told))].append(error)
    number = len(SIZED) * len(names)
    text = (
        f"Of {number} differences from cross-entropy {len(same) + len(other)} "
        "are told apart from 0 at both sizes; "
    )
    text += (
        "all of these go the same way"
        if not other
        else (f"{len(same)} of these go the same way, but not {listed(other)}")
    )
    sizes = {"S": "5,000", "S10k": "10,000"}
    for size, other_size in (("S", "S10k"), ("S10k", "S")):
        if only[size]:
            text += (
                f". Told apart with {sizes[size]} images but not with "
                f"{sizes[other_size]}: {listed(only[size])}"
            )
    return f"{text}. The others are told apart at neither size."


def interleaved(rows):
    """Penalties on images that are kept for them, beside the plain ones."""
    texts = []
    for name, methods in INTERLEAVED.items():
        pairs = [(f"{method}, interleaved", method) for method in methods]
        number = {len(differences(rows[name], *p, "ece")) for p in pairs} - {0}
        if not number:
            continue
        ece, accuracy, after = (
            beside_plain(name, rows[name], methods, *error)
            for error in (
                ("ece", "test", 100, "points", 1),
                ("accuracy", "test", 100, "points", 1),
                ("nll", SCALED, 1, "nats", 3),
            )
        )
        most = seeds(max(number))
        if len(number) > 1:
            most = f"{min(number)} to {most}"
        texts.append(
            f"in {name} ({most}) the ECE as trained is {ece}; the accuracy "
            f"{accuracy}; the NLL after temperature scaling {after}"
        )
    if not texts:
        return ""
    return (
        "With a penalty that learns from images kept for it, after each epoch "
        "(interleaved), instead of from the training images, beside the plain "
        f"penalty: {'. '.join(texts).replace('. in', '. In')}."
    )


def beside_plain(name, rows, methods, key, part, *words_of):
    """What interleaving changes, in words.

    Whether differences are told apart says the spread of those from
    cross-entropy, as in the verdicts.
    """
    found = {
        method: differences(rows, f"{method}, interleaved", method, key, part)
        for method in methods
    }
    return told_of(found, table.spread_of(name, rows, key, part), *words_of)


def inverse_focal(rows):
    found = differences(rows, "inverse focal", table.BASELINE, "nll", SCALED)
    if not len(found):
        return ""
    scatter = table.spread_of("S", rows, "nll", SCALED)
    size = beside(found.mean(), 3, "nats", "that of cross-entropy")
    if len(found) > 1 and not scatter.told_apart(found):
        size += ", not told apart"
    return (
        "Inverse focal loss is made to be scaled afterwards; after temperature "
        f"scaling its NLL is {size}{few(rows, 'inverse focal')}."
    )


# The other protocols.


def of_corruption(rows):
    found = shift_page.in_order("F", rows)
    if table.BASELINE not in found:
        return NOTHING
    number = len(found[table.BASELINE])

    def value(name, part, key="ece"):
        return float(np.mean([row[part]["mean"][key] for row in found[name]]))

    base = value(table.BASELINE, shifted.SCALED)
    text = (
        "What these rows show, as means over severities 1 to 5 (cross-entropy "
        f"has {seeds(number)}). The ECE of cross-entropy is "
        f"{percent(value(table.BASELINE, shifted.TRAINED))} as trained, and "
        f"{percent(base)} with the temperature of clean images, beside a floor "
        f"of {percent(value(table.BASELINE, shifted.SCALED, 'ece_floor'))}."
    )
    smooth = [name for name in ("LS", "MbLS", "ACLS") if name in found]
    if smooth:
        trained = [100 * value(name, shifted.TRAINED) for name in smooth]
        nll = [
            value(name, shifted.TRAINED, "nll")
            - value(table.BASELINE, shifted.SCALED, "nll")
            for name in smooth
        ]
        text += (
            f" {listed(smooth)} have {amounts(trained, 1)} % as trained, at an "
            f"NLL that is {changes(nll, 'nats', 2)} beside that of "
            "cross-entropy with its temperature."
        )
    scaled = {name: value(name, shifted.SCALED) for name in found}
    over = "standard errors over images"
    own = [row[shifted.SCALED]["mean"]["ece"] for row in found[table.BASELINE]]
    spread = 0.0  # of one seed
    if len(own) > 1:
        spread = float(np.std(own, ddof=1))
        over += " and seeds (as far as those of cross-entropy are spread)"

    def error(name):
        """Standard error of a mean over seeds, images included."""
        images = value(name, shifted.SCALED, "ece_se")
        return np.hypot(images, spread / np.sqrt(len(found[name])))

    clear = [
        in_a_list(name)
        for name, ece in scaled.items()
        if base - ece > CLEAR * np.hypot(error(name), error(table.BASELINE))
    ]
    who = (
        f"{listed(clear)} lie{'s' * (len(clear) == 1)}"
        if clear
        else "None lies"
    )
    return paragraph(
        f"{text} After temperature scaling the networks have "
        f"{amounts([100 * ece for ece in scaled.values()], 1)} %. "
        f"{who[0].upper()}{who[1:]} below cross-entropy by more than two "
        f"{over}."
    )


def in_a_list(name):
    """`CRL (margin)` for `CRL, margin`."""
    first, comma, rest = name.partition(", ")
    return f"{first} ({rest})" if comma else name


def of_wrong_labels(rows):
    return entries(of_noisy(name, rows[name]) for name in ("N9", "N40"))


def entries(texts):
    """The texts that say something as the entries of a list."""
    texts = [paragraph(text, "- ") for text in texts if text]
    return "\n".join(texts) if texts else NOTHING


def of_noisy(name, rows):
    found = means(name, rows)
    others = [method for method in found if method != table.BASELINE]
    accuracy = from_baseline(rows, others, "accuracy")
    after = from_baseline(rows, others, "nll", SCALED)
    if not accuracy:
        return ""
    numbers = {len(each) for _, each in table.of_method(name, rows)}
    each = "each" if len(numbers) == 1 else "at most"
    order = sorted(found, key=lambda method: found[method]["ece"])
    first, second = (
        f"{m} ({percent(found[m]['ece'])}, floor "
        f"{percent(found[m]['ece_floor'])})"
        for m in order[:2]
    )
    return (
        f"[{name}]({name}.md), {seeds(max(numbers))} {each}, {listed(others)} "
        "beside cross-entropy: the accuracy is "
        f"{changes([100 * a for a in accuracy.values()], 'points', 1)}. As "
        f"trained {first} has the lowest ECE of all, then {second}. After "
        "temperature scaling the NLL is "
        f"{changes([*after.values()], 'nats', 3)}."
    )


def of_lengths(rows):
    """A large network on all of CIFAR-10, trained for longer and longer."""
    return entries(of_length(name, rows[name]) for name in LENGTHS)


def of_length(name, rows):
    found = means(name, rows)
    others = [method for method in found if method != table.BASELINE]
    ece, after = (
        from_baseline(rows, others, *error)
        for error in (("ece",), ("nll", SCALED))
    )
    if not ece:
        return ""
    base = found[table.BASELINE]
    lower = sorted((m for m in after if after[m] < 0), key=after.get)
    shown = [f"{m} ({-after[m]:.3f})" for m in lower] or ["none"]
    numbers = {len(each) for _, each in table.of_method(name, rows)}
    runs = "single runs" if numbers == {1} else f"at most {seeds(max(numbers))}"
    return (
        f"[{name}]({name}.md), {runs}, {len(ece)} methods beside "
        f"cross-entropy, whose ECE is {percent(base['ece'])} as trained (floor "
        f"{percent(base['ece_floor'])}): that of the others is "
        f"{changes([100 * e for e in ece.values()], 'points', 1)}. After "
        "temperature scaling the NLL is lower with "
        f"{'; '.join(shown)}.{pair_of_length(name, rows, found)}"
    )


def pair_of_length(name, rows, found):
    """What Diff-DML gains and loses beside DML."""
    scatter = table.spread_of(name, rows, "accuracy")
    values = {
        key: differences(rows, "Diff-DML", "DML", key, part)
        for key, part in (("accuracy", "test"), ("nll", "test"))
    }
    if not len(values["accuracy"]):
        return ""
    own = above(found["Diff-DML"])
    text = (
        f" Diff-DML has an ECE of {own} as trained, DML "
        f"{above(found['DML'])}; its accuracy is "
        f"{over_seeds(values['accuracy'], 'that of DML', scatter)}, its NLL as "
        "trained "
        f"{beside(values['nll'].mean(), 3, 'nats', 'that of DML')}."
    )
    gains = differences(rows, "Diff-DML, labels 20 %", "Diff-DML", "accuracy")
    if len(gains):
        text += (
            " With labels for the auxiliary in the first 20 % of the steps the "
            f"accuracy is {over_seeds(gains, 'without', scatter)}."
        )
    return text


def of_tuning(rows, chosen):
    if not chosen:
        return NOTHING
    texts = [what_was_chosen(rows, chosen), of_papers_weight(chosen)]
    cost = sorted(tuned_on_published(rows), key=lambda found: found[1].mean())
    if cost:
        shown = [
            f"`{name}` {100 * values.mean():+.1f} ({seeds(len(values))})"
            for name, values in cost
        ]
        texts.append(
            "[On the published network](F-tuning.md), fine-tuned, the accuracy "
            "on its validation images minus that of cross-entropy is, in "
            "points: "
            f"{'; '.join(shown)}."
        )
    texts.append(
        "Both tables decided the defaults, "
        f"{in_code('DCA', 'weight')} and "
        f"{in_code('SoftBinnedECE', 'temperature', 'weight')}; the first alone "
        f"{in_code('AvUC', 'weight')}."
    )
    others = [name for name in tuning.GRIDS if name not in chosen]
    if others:
        texts.append(f"With a grid, but not tuned so far: {listed(others)}.")
    return paragraph(" ".join(filter(None, texts)))


def what_was_chosen(rows, chosen):
    """The settings of each tuned method, and its test errors."""
    texts, tuned = [], rows["S-tuning"]
    found = dict(table.of_variants(tuned))
    other = "that of cross-entropy"
    scatter = table.spread_of("S", rows["S"], "accuracy")
    for method, choice in chosen.items():
        pair = choice["variant"], table.BASELINE
        accuracy, nll = (
            differences(tuned, *pair, *which, others=rows["S"])
            for which in (("accuracy",), ("nll", SCALED))
        )
        text = f"{method} with {table.settings_of(choice)}"
        if len(accuracy):
            errors = {
                key: mean(found[pair[0]], key) for key in ("ece", "ece_floor")
            }
            text += (
                f", whose test ECE is {above(errors)}, "
                f"whose accuracy is {over_seeds(accuracy, other, scatter)}, "
                "and whose NLL after temperature scaling is "
                f"{beside(nll.mean(), 3, 'nats', other)}"
            )
        texts.append(text)
    return f"[What was chosen](S-tuning.md): {'; '.join(texts)}."


def of_papers_weight(chosen):
    """What the weight of DCA's paper costs beside the chosen one."""
    steps = chosen.get("DCA", {"steps": []})["steps"]
    found = {
        each["value"]: each["accuracy"]
        for step in steps
        for each in step["tried"]
        if step["setting"] == "weight" and "diverged" not in each
    }
    if 10.0 not in found:
        return ""
    chosen_weight = steps[-1]["chosen"]
    cost = found[10.0] - found[chosen_weight]
    other = f"with weight {chosen_weight:g}"
    return (
        "With the authors' weight of 10 the accuracy of DCA on the validation "
        f"images is {beside(100 * cost, 1, 'points', other)}."
    )


def tuned_on_published(rows):
    """Differences in accuracy from cross-entropy of each variant in F.

    On validation images: they decided a default.
    """
    tuned = rows["F-tuning"]
    for name in dict.fromkeys(method for method, _ in tuned):
        base = (name, table.BASELINE)
        found = differences(
            tuned, *base, "accuracy", "validation", others=rows["F"]
        )
        if len(found):
            yield name, found


def in_code(loss, *names):
    """A loss with some of its defaults, as a call."""
    known = inspect.signature(getattr(kc.losses, loss)).parameters
    given = ", ".join(f"{name}={known[name].default:g}" for name in names)
    return f"`{loss}({given})`"


if __name__ == "__main__":
    sys.exit(main())
