"""Open questions are answered by pairs of rows, and say what is missing."""

import json
import shlex

import pytest


@pytest.fixture
def questions(papers):
    import questions

    return questions


def row(method, seed, accuracy, ece):
    errors = {"accuracy": accuracy, "ece": ece, "nll": 1.0}
    return {
        "method": method,
        "seed": seed,
        "test": errors,
        "test_scaled": {"nll": 1.0 + ece},
        "machine": {"device": "a", "backend": "b", "keras": "c"},
        "date": f"day {seed}",
    }


def test_pairs_are_of_the_same_seed(questions, tmp_path, capsys):
    import table

    rows = [row("Diff-DML", seed, 0.60, 0.02) for seed in (0, 1, 4)]
    rows += [row("DML", seed, 0.62 + 0.01 * seed, 0.10) for seed in (0, 1, 2)]
    text = "".join(json.dumps(each) + "\n" for each in rows)
    (tmp_path / "S.jsonl").write_text(text)
    table.main(["questions", "--results", str(tmp_path)])
    printed = capsys.readouterr().out
    expected = "| S | Diff-DML - DML | 2 | -2.50 ± 0.50 | -8.00 ± 0.00 |"
    assert expected in printed
    assert "- S, Diff-DML and DML: 3 seeds, `python" in printed
    assert 'run.py G200 --only "Diff-DML" "DML"`' in printed


def test_square_loss_is_compared_with_cross_entropy_of_s(questions, tmp_path):
    for name, method in (("S", "CE"), ("S-square", "squared logit")):
        text = json.dumps(row(method, 0, 0.6, 0.1)) + "\n"
        (tmp_path / f"{name}.jsonl").write_text(text)
    printed = questions.page(tmp_path)
    assert "| S-square | squared logit - CE | 1 | 0.00 | 0.00 |" in printed
    assert 'run.py S-square --only "squared logit"`' in printed


def test_gaps_are_of_the_scaled_test_images(questions, tmp_path):
    rows = []
    for seed, confidence in enumerate((0.57, 0.59)):
        of_seed = row("FL", seed, 0.7, 0.1)
        of_seed["maps"] = {questions.BENT: {"ece": 0.014}}
        of_seed["test_scaled"] |= {
            "temperature": 1.2,
            "confidence": confidence,
            "accuracy": 0.6,
            "ece": 0.023,
            "ece_floor": 0.011,
        }
        rows.append(of_seed)
    text = "".join(json.dumps(each) + "\n" for each in rows)
    (tmp_path / "S.jsonl").write_text(text)
    printed = questions.page(tmp_path)
    line = "| FL | 2 | 1.20 ± 0.00 | -2.00 ± 1.00 | 2.30 ± 0.00 | 1.10 | 1.40 ±"
    assert line in printed
    assert "\n\na, b, Keras c; day 0 to day 1\n\n" in printed
    assert "| CE | 0 |" not in printed


def test_questions_name_rows_that_are_planned(questions):
    import run

    for question in questions.QUESTIONS:
        for name, method, other in question.pairs:
            assert questions.wanted(name, method, other) >= 1
            text = questions.command(name, method, other, 1)
            _, _, words = text.strip("`").partition("examples/papers/run.py ")
            found = run.parse(shlex.split(words))
            assert {found.table, f"{found.table}-tuning"} & {name}
            assert found.tune == name.endswith("-tuning")
            assert found.only[0] == method.partition(":")[0]


def test_auxiliaries_stand_beside_their_primary(questions, tmp_path):
    rows = []
    for seed, accuracy in enumerate((0.5, 0.6)):
        of_seed = row("DML-2", seed, 0.7, 0.1)
        of_seed["validation"] = {"accuracy": accuracy}
        of_seed["auxiliary_accuracy"] = [0.4, 0.6 + 0.2 * seed]
        rows.append(of_seed)
    rows[1]["history"] = {"auxiliary_accuracy": [0.3, 0.9]}
    rows.append({**row("CE", 0, 0.7, 0.1), "validation": {"accuracy": 0.6}})
    text = "".join(json.dumps(each) + "\n" for each in rows)
    (tmp_path / "S.jsonl").write_text(text)
    [_, table] = questions.peers(tmp_path, ("S", "G30"))
    assert table.splitlines()[2:] == [
        "| S | DML-2 | 2 | 55.00 ± 5.00 | 55.00 ± 5.00 | 90.00 |"
    ]
    assert questions.peers(tmp_path, ("G30",)) == []


@pytest.mark.one_backend
def test_diff_dml_beside_dml_goes_the_way_that_is_told(questions):
    import places
    import row_files
    import table

    way = {"S": -1, "S10k": -1, "C": 1}
    for name, sign in way.items():
        rows = row_files.read_rows(places.RESULTS / f"{name}.jsonl")
        pairs = questions.of_seeds(rows, "Diff-DML", "DML")
        found = table.difference(pairs, "ece")
        assert table.spread_of(name, rows, "ece").told_apart(found)
        assert sign * found.mean() > 0
        gap = [
            other["test"]["confidence"] - other["test"]["accuracy"]
            for _, other in pairs
        ]
        assert sign * sum(gap) < 0  # DML is too sure, or too unsure
    # Table S4, CIFAR-100: the ECE by auxiliary.
    import published

    (block,) = [
        each
        for each in published.DIFF_DML.blocks
        if each.title == "Table S4, Diff-DML by auxiliary, CIFAR-100"
    ]
    ece = {line[1]: line[3][1] for line in block.lines()}
    assert ece["Diff-DML, ResNet-34"] == "1.17" and ece["Diff-DML"] == "0.65"


def test_share_of_balancing_is_that_of_the_rows(questions, tmp_path):
    rows = []
    for seed in range(2):
        ece = (0.16 + 0.02 * seed, 0.05, 0.18, 0.08)
        ways = dict(
            zip(questions.balancing.measures.BALANCES, ece, strict=True)
        )
        ways = {way: {"ece": value} for way, value in ways.items()}
        balance = {"TemperatureScaling": ways}
        rows.append({**row("CE", seed, 0.5, 0.3), "class_balance": balance})
    text = "".join(json.dumps(each) + "\n" for each in rows)
    (tmp_path / "LT.jsonl").write_text(text)
    # (0.17 - 0.08) / (0.17 - 0.05) = 3 / 4.
    found = questions.balancing.of_balancing(tmp_path)
    assert "temperature scaling is 17.00 ± 1.00 %, with scaling 5.00 ±" in found
    assert "balancing has 75 % of the gain" in found
    assert "18.00 ± 0.00 %, 1.0 points higher than without them." in found
    assert found in questions.page(tmp_path)
    assert questions.balancing.of_balancing(tmp_path / "none") == ""
