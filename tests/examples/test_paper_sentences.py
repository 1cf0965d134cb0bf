"""The sentences of the page of results are those of the stored rows."""

import numpy as np
import pytest

pytestmark = pytest.mark.one_backend
# What the sentences are made from.
ROWS = (
    *("S.jsonl", "S10k.jsonl", "F.jsonl", "F_shift.jsonl"),
    *("N9.jsonl", "N40.jsonl"),
    *("S-tuning.jsonl", "S-tuning.json", "F-tuning.jsonl"),
    *("G30.jsonl", "G100.jsonl"),
)


@pytest.fixture(scope="module")
def sentences(papers):
    import sentences

    return sentences


@pytest.fixture(scope="module")
def words(papers):
    import words

    return words


@pytest.fixture(scope="module")
def texts(sentences):
    import places

    return sentences.parts(places.RESULTS)


def test_page_holds_the_sentences_of_the_stored_rows(sentences, texts):
    page = sentences.PAGE.read_text()
    assert sentences.with_sentences(page, texts) == page


def test_only_what_stands_between_the_marks_changes(sentences):
    marks = [sentences.BEGIN.format(name) for name in ("a", "b")]
    page = "above\n"
    page += "".join(
        f"{m}\nold\n\n{sentences.stored_pages.END}\nmore\n" for m in marks
    )
    found = sentences.with_sentences(page, {"a": "new", "b": "newer"})
    assert found == page.replace("old", "new", 1).replace("old", "newer")
    with pytest.raises(ValueError, match="no place for the part 'c'"):
        sentences.with_sentences(page, {"c": "new"})


def test_no_rows_make_no_sentence(sentences, tmp_path):
    assert set(sentences.parts(tmp_path).values()) == {sentences.NOTHING}


@pytest.mark.parametrize("name", ROWS)
def test_every_file_is_read(sentences, texts, name, tmp_path):
    import places

    for each in ROWS:
        if each != name:
            (tmp_path / each).write_bytes((places.RESULTS / each).read_bytes())
    # Which rows there are is told by these alone.
    others = {"hardware", "commits"}
    found = sentences.parts(tmp_path)
    assert any(found[key] != texts[key] for key in {*texts} - others)


def made(sentences, **changes):
    """Rows of S, three seeds each; changes by key, for methods but CE."""
    methods = ("CE", "DML", "Diff-DML", "inverse focal", *sentences.HELD_DOWN)
    rows = {}
    for place, method in enumerate(methods):
        values = {"accuracy": 0.6, "ece": 0.2, "ece_floor": 0.01, "nll": 1.0}
        if method != "CE":
            values |= {
                key: values[key] + change.get(method, 0.0)
                for key, change in changes.items()
            }
        for seed in range(3):
            small = 1e-4 * place * (seed - 1)
            row = {key: value + small for key, value in values.items()}
            row = {"method": method, "seed": seed, "test": row}
            row["test_scaled"] = {"nll": values["nll"]}
            rows[method, seed] = row
    return {"S": rows, "F": {}}


def test_words_follow_the_numbers(sentences):
    held_down = sentences.HELD_DOWN
    rows = made(
        sentences,
        accuracy={"Diff-DML": -0.02, "ACLS": -0.08},
        ece={name: -0.1 for name in held_down} | {"LS": -0.05},
        nll={"DML": -0.08, "inverse focal": 0.002},
    )
    text = flat(sentences.of_scratch(rows))
    assert "accuracy is 2.0 points lower than that of DML (3 seeds, p" in text
    assert "the ECE is lower in all 8 (by 5.0 to 10.0 points)" in text
    assert "nats below that of cross-entropy: DML (0.080)." in text
    assert "of accuracy are lost by ACLS (8.0)." in text
    assert "its NLL is 0.002 nats higher than that of cross-entropy" in text
    assert "12 are of 3 seeds" in text
    rows = made(
        sentences,
        accuracy={"Diff-DML": 0.03},
        ece={name: 0.1 for name in held_down} | {"LS": -0.05},
    )
    text = flat(sentences.of_scratch(rows))
    assert "accuracy is 3.0 points higher than that of DML (3 seeds, p" in text
    assert (
        "the ECE is lower in 1 of 8 (by 5.0 points) and higher in 7 of 8 (by "
        "10.0 points)"
    ) in text
    assert "No method is better than cross-entropy by 0.04 nats" in text
    assert "No method loses 3 points of accuracy" in text
    assert "its NLL is within 0.001 nats of that of cross-entropy" in text


def test_interleaved_penalties_are_told_apart_or_not(sentences):
    changes = {"MDCA": -0.05, "SB-ECE": 0.0, "MMCE": 0.0, "FL+SB-ECE": 0.0}
    rows = {}
    for place, (name, change) in enumerate(changes.items()):
        for seed in range(3):
            noise = 0.002 * ((seed + place) % 3 - 1)
            for method, more in (
                (name, 0.0),
                (f"{name}, interleaved", change + noise),
            ):
                rows[method, seed] = {
                    **{"method": method, "seed": seed},
                    "test": {"ece": 0.2 + more, "accuracy": 0.6 + more / 5},
                    "test_scaled": {"nll": 1.0 - more},
                }
    del rows["FL+SB-ECE", 2]
    text = sentences.interleaved({"S": {}, "F": rows})
    others = "not told apart with SB-ECE, MMCE and FL+SB-ECE"
    assert text.endswith(
        "beside the plain penalty: in F (2 to 3 seeds) the ECE as trained is "
        f"lower in 1 of 4 (by 5.0 points), {others}; the accuracy lower in 1 "
        f"of 4 (by 1.0 points), {others}; the NLL after temperature scaling "
        f"higher in 1 of 4 (by 0.050 nats), {others}."
    )


def test_interleaved_penalties_scatter_like_all_methods(sentences):
    rows = {}
    for seed in range(2):
        for place, name in enumerate(("CE", "MDCA", "LS", "FL", "ER")):
            far = 0.1 * (2 * seed - 1) * place
            values = {"ece": 0.2 + far, "accuracy": 0.6}
            row = {"test": values, "test_scaled": {"nll": 1.0}}
            rows[name, seed] = {"method": name, "seed": seed, **row}
        near = {"ece": rows["MDCA", seed]["test"]["ece"] - 0.05 - 1e-4 * seed}
        near["accuracy"] = 0.6
        rows["MDCA, interleaved", seed] = {
            **{"method": "MDCA, interleaved", "seed": seed},
            "test": near,
            "test_scaled": {"nll": 1.0},
        }
    text = sentences.interleaved({"S": {}, "F": rows})
    # Two equal differences among others that scatter widely.
    assert "the ECE as trained is not told apart with MDCA;" in text


def test_two_sizes_are_compared_where_both_are_told_apart(sentences):
    small = made(
        sentences, accuracy={"LS": 0.01, "DML": 0.02}, nll={"DML": 0.1}
    )["S"]
    large = made(
        sentences, accuracy={"LS": -0.03, "DML": 0.01}, nll={"DML": -0.2}
    )["S"]
    kept = ("CE", "LS", "DML")
    large = {key: row for key, row in large.items() if key[0] in kept}
    text = sentences.of_two_sizes(small, large)
    assert "| LS | +1.00 ± 0.02 | -3.00 ± 0.02 |" in text
    assert "| DML | +2.00 ± 0.01 | +1.00 ± 0.01 |" in text
    assert "| +0.100 ± 0.000 | -0.200 ± 0.000 |" in text
    assert "FL" not in text
    assert (
        "Of 6 differences from cross-entropy 3 are told apart from 0 at both "
        "sizes; 1 of these go the same way, but not the accuracy of LS and the "
        "NLL after temperature scaling of DML. The others are told apart at "
        "neither size."
    ) in flat(text)
    large["LS", 0]["test"]["accuracy"] += 0.2
    text = flat(sentences.of_two_sizes(small, large))
    assert "but not with 10,000: the accuracy of LS (p 0." in text


def flat(text):
    return " ".join(text.split())


def test_sentences_without_rows_are_left_out(sentences):
    rows = made(sentences)
    kept = {key: row for key, row in rows["S"].items() if key[0] == "CE"}
    text = sentences.of_scratch({"S": kept, "F": {}})
    assert "Diff-DML" not in text and "Inverse" not in text
    assert "Of 1 lines of the table, 1 is of 3 seeds." in flat(text)


def test_networks_below_cross_entropy_under_corruption_are_named(sentences):
    errors = {"ece": 0.1, "ece_se": 0.01, "nll": 1.0, "ece_floor": 0.02}
    parts = ("as trained", "after TS")
    rows = {
        (name, 0): {part: {"mean": errors} for part in parts}
        for name in ("CE", "LS", "MbLS", "FL")
    }
    text = flat(sentences.of_corruption(rows))
    assert "None lies below cross-entropy" in text
    assert "have 10.0 %." in text
    # Two standard errors of the difference are 2.8 points.
    for ece, who in ((0.074, "None lies"), (0.07, "LS lies")):
        rows["LS", 0]["after TS"] = {"mean": {**errors, "ece": ece}}
        assert f"{who} below" in flat(sentences.of_corruption(rows))
    # Seeds of cross-entropy that differ make another difference less sure.
    again = {part: {"mean": {**errors, "ece": 0.12}} for part in parts}
    rows["CE", 1] = again
    text = flat(sentences.of_corruption(rows))
    # LS: 4 points, with 2 sqrt(1^2 + 1^2 + 1.41^2 (1 + 1 / 2)) = 4.5.
    assert "None lies" in text and "over images and seeds (as far as" in text
    del rows["CE", 1]
    rows["FL", 0]["after TS"] = {"mean": {**errors, "ece": 0.01}}
    assert "LS and FL lie below" in flat(sentences.of_corruption(rows))
    for name in ("dual focal", "CRL, margin"):
        rows[name, 0] = rows["FL", 0]
    del rows["LS", 0], rows["FL", 0]
    text = flat(sentences.of_corruption(rows))
    assert "Dual focal and CRL (margin) lie below" in text


@pytest.mark.parametrize("change, word", [(-0.02, "lower"), (0.02, "higher")])
def test_sentence_of_wrong_labels_has_the_direction(sentences, change, word):
    known = {"FL", "CE"}
    rows = made(sentences, accuracy={"FL": change}, nll={"FL": change})["S"]
    rows = {key: row for key, row in rows.items() if key[0] in known}
    text = flat(sentences.of_noisy("N9", rows))
    assert f"the accuracy is {word} (by 2.0 points)" in text
    assert f"the NLL is {word} (by 0.020 nats)" in text
    assert text.startswith("[N9](N9.md), 3 seeds each, FL beside")


def test_differences_are_of_the_same_seeds(sentences):
    def row(value):
        return {"test": {"ece": value}}

    rows = {("a", 0): row(0.5), ("a", 1): row(0.25), ("a", 2): row(9.0)}
    rows |= {("b", 1): row(0.125), ("b", 0): row(1.0)}
    found = sentences.differences(rows, "a", "b", "ece")
    np.testing.assert_array_equal(found, [-0.5, 0.125])


def test_changes_in_words(words):
    assert words.changes([-1.0, -2.5], "points", 1) == (
        "lower in all 2 (by 1.0 to 2.5 points)"
    )
    assert words.changes([0.5], "nats", 2) == "higher (by 0.50 nats)"
    assert words.changes([0.5, -1.0, -1.0], "nats", 1) == (
        "lower in 2 of 3 (by 1.0 nats) and higher in 1 of 3 (by 0.5 nats)"
    )


def test_one_difference_in_words(words):
    import spread

    assert words.beside(-0.26, 1, "points", "b") == "0.3 points lower than b"
    assert words.beside(0.26, 1, "points", "b") == "0.3 points higher than b"
    assert words.beside(-0.04, 1, "points", "b") == "within 0.1 points of b"
    values = np.array([0.01, 0.02, 0.03])
    alone = spread.Spread([])
    # The mean is 0.02, its standard error 0.00577: t = 3.46, 2 degrees.
    assert words.over_seeds(values, "b", alone) == (
        "2.0 points higher than b (3 seeds, p 0.074: not told apart)"
    )
    # With 0.0333 it is 5.77, and p 0.0287.
    assert words.over_seeds(values + 1 / 75, "b", alone) == (
        "3.3 points higher than b (3 seeds, p 0.029)"
    )
    assert words.over_seeds(values[:1], "b", alone) == (
        "1.0 points higher than b (1 seed)"
    )
    # Methods that scatter as much, or hardly, tell it better.
    like = spread.Spread([values - values.mean()] * 20)
    assert words.over_seeds(values, "b", like) == (
        f"2.0 points higher than b (3 seeds, p {like.p_value(values):.2g})"
    )
    assert like.p_value(values) < 0.05
    none = spread.Spread([1e-6 * values] * 20)
    text = words.over_seeds(values[:2], "b", none)
    assert text == "1.5 points higher than b (2 seeds, p < 1e-06)"
    assert words.listed(["a"]) == "a"
    assert words.listed(["a", "b", "c"]) == "a, b and c"


def test_page_is_written(sentences, tmp_path):
    import places

    page = tmp_path / "README.md"
    text = (places.RESULTS / "README.md").read_text()
    begin = sentences.BEGIN.format("tuning")
    before, _, rest = text.partition(begin)
    old = f"{before}{begin}\nold words\n\n"
    page.write_text(
        old
        + sentences.stored_pages.END
        + rest.partition(sentences.stored_pages.END)[2]
    )
    sentences.write(page, places.RESULTS)
    assert page.read_text() == text


@pytest.mark.parametrize("with_page", [True, False])
def test_command_for_all_pages_writes_the_page(
    sentences, tmp_path, monkeypatch, with_page
):
    import argparse

    import all_pages
    import places

    monkeypatch.setattr(all_pages, "pages", lambda *_: [])
    monkeypatch.setattr(all_pages.paper_pages, "write_all", lambda *_: [])
    page = tmp_path / "README.md"
    if with_page:
        page.write_text(
            sentences.PAGE.read_text().replace("3 seeds", "5 seeds")
        )
    options = argparse.Namespace(
        into=tmp_path, figures=tmp_path, results=places.RESULTS
    )
    assert list(all_pages.write(options)) == [page] * with_page
    assert page.exists() == with_page
    if with_page:
        assert page.read_text() == sentences.PAGE.read_text()


def test_choices_are_those_of_the_file(sentences):
    def tried(value, accuracy):
        return {"value": value, "accuracy": accuracy, "ece": 0.1}

    step = {"setting": "weight", "chosen": 3.0}
    step["tried"] = [tried(3.0, 0.66), tried(10.0, 0.55), tried(0.3, 0.64)]
    chosen = {"DCA": {"variant": "DCA: weight=3.0", "steps": [step]}}
    none = {"S-tuning": {}, "F-tuning": {}, "S": {}, "F": {}}
    text = flat(sentences.of_tuning(none, chosen))
    assert text.startswith("[What was chosen](S-tuning.md): DCA with weight 3.")
    assert "is 11.0 points lower than with weight 3." in text
    assert "not tuned so far: LS" in text and " DCA," not in text
    step["chosen"] = 0.3
    text = flat(sentences.of_tuning(none, chosen))
    assert "is 9.0 points lower than with weight 0.3." in text
    assert sentences.of_tuning(none, {}) == sentences.NOTHING
    every = dict.fromkeys(sentences.tuning.GRIDS, chosen["DCA"])
    assert "so far" not in flat(sentences.of_tuning(none, every))
