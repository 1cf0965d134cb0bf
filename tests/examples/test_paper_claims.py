"""Claims of one method beside another are those of paired rows."""

import numpy as np
import pytest

from tests.examples.test_paper_verdicts import row
from tests.examples.test_paper_verdicts import store
from tests.examples.test_paper_verdicts import store_choice
from tests.examples.test_paper_verdicts import tables_of


@pytest.fixture
def verdicts(papers):
    import verdicts

    return verdicts


@pytest.fixture
def claimed(papers):
    import claimed

    return claimed


def test_claims_are_tested_between_two_methods(claimed, tmp_path):
    rows = []
    for seed in range(3):
        noise = 0.001 * seed
        rows += [
            row("CE", seed, 0.20, 1.0),
            row("LS", seed, 0.15 + noise, 1.0),
            row("FL", seed, 0.05 - noise, 1.0),
            row("MbLS", seed, 0.10 + noise, 1.0),
        ]
    rows.append(row("ACLS", 0, 0.12, 1.0))
    lines = claims_of(claimed, tmp_path, {"S": rows})
    found = {(each["method"], each["claim"]): each for each in lines}
    below_ls = found["MbLS", "ECE below LS"]
    assert below_ls["difference"] == "-5.00 ± 0.00"
    assert below_ls["pairs"] == "3"
    assert below_ls["verdict"] == "holds"
    assert float(below_ls["p"].lstrip("< ")) < 0.001
    assert found["MbLS", "ECE below FL"]["verdict"] == "does not hold"
    assert "margin" in found["MbLS", "ECE below FL"]["why"]
    assert below_ls["why"] == ""
    # The accuracy of these rows is 10 points lower, too.
    kept = found["MbLS", "accuracy at most 1 point below CE"]
    assert kept["difference"] == "-9.90 ± 0.06"
    assert kept["verdict"] == "does not hold"
    one = found["ACLS", "ECE below MbLS"]
    assert one["verdict"] == "open: not as claimed, one seed"
    assert one["pairs"] == "1"


def test_claims_are_tested_with_tuned_settings_too(claimed, tmp_path):
    rows = [
        *(row("CE", 0, 0.20, 1.0), row("MDCA", 0, 0.19, 1.0)),
        *(row("FL", 0, 0.10, 1.0), row("FL+MDCA", 0, 0.09, 1.0)),
    ]
    store_choice(tmp_path, [row("MDCA: weight=3.0", 0, 0.05, 1.0)])
    lines = claims_of(claimed, tmp_path, {"S": rows})
    found = {
        (each["method"], each["rows of"], each["claim"]): each["difference"]
        for each in lines
    }
    assert found["MDCA", "S", "ECE below CE"] == "-1.00"
    assert found["MDCA", "S-tuning", "ECE below CE"] == "-15.00"
    # Beside what was tuned, a method that was not says nothing.
    assert found["FL+MDCA", "S", "ECE below MDCA"] == "-10.00"
    assert ("FL+MDCA", "S-tuning", "ECE below MDCA") not in found


def claims_of(claimed, folder, rows):
    """Lines of the tables of claims."""
    store(folder, rows)
    return tables_of("\n\n".join(claimed.page(folder)), claimed.HEADER)


def test_a_point_may_be_lost(claimed):
    import claims
    import spread

    scatter = spread.Spread([np.array([0.001, -0.001, 0.0])])
    kept = claims.Claim("MbLS", "CE", "accuracy", 1, 0.01)
    for difference, says in ((-0.005, "holds"), (-0.02, "does not hold")):
        rows = {}
        for seed in range(3):
            for name, value in (("CE", 0.6), ("MbLS", 0.6 + difference)):
                found = {"accuracy": value + 1e-4 * seed * (name == "CE")}
                rows[name, seed] = {
                    "method": name,
                    "seed": seed,
                    "test": found,
                }
        (line,) = claimed.claim_line(kept, "S", rows, scatter)
        assert line[-3] == says
    assert claimed.claim_line(kept, "S", {}, scatter) == []


def test_behind_a_claim_is_overconfidence_or_training_accuracy(claimed):
    import claims

    rows = {}
    for name, confidence, trained in (("LS", 0.7, 0.98), ("CE", 0.8, 1.0)):
        rows[name] = {
            "test": {"ece": 0.1, "accuracy": 0.61, "confidence": confidence},
            "train": {"accuracy": trained},
        }
    both = rows["LS"], rows["CE"]
    say = claimed.behind
    assert say(claims.Claim("LS", "CE"), [both]) == "9.0, 19.0"
    more = {**rows["LS"], "test": {"confidence": 0.5, "accuracy": 0.61}}
    pairs = [both, (more, rows["CE"])]
    assert say(claims.Claim("LS", "CE"), pairs) == "-1.0, 19.0"
    assert say(claims.Claim("LS", "CE", "accuracy"), [both]) == "98.0, 100.0"
    assert say(claims.Claim("LS", "CE", "nll"), [both]) == ""
    # Of older rows nothing is known, and pairs without it do not count.
    older = ({"test": {"ece": 0.1}}, {"test": {"ece": 0.1}})
    assert say(claims.Claim("LS", "CE"), [older]) == ""
    assert say(claims.Claim("LS", "CE"), [older, both]) == "9.0, 19.0"


def test_every_claim_is_of_methods_that_are_run(verdicts):
    import claims
    import protocols

    run_by = {
        name: {*protocols.TABLES[name]}
        | {*protocols.TABLES[verdicts.sources.base(name)]}
        for name in verdicts.claimed.CLAIMED
    }
    for claim in claims.CLAIMS:
        both = {claim.method, claim.other}
        assert any(both <= names for names in run_by.values()), claim
        assert claim.sign in (-1, 1)
    for claim in claims.SHIFT_CLAIMS:
        assert {claim.method, claim.other} <= {*protocols.TABLES["F"]}


def test_focal_losses_are_compared_at_the_same_gamma(claimed, tmp_path):
    rows = {
        "S": [row("FL", seed, 0.03, 1.0) for seed in range(3)],
        "F": [row("FL", 0, 0.05, 1.0), row("FL+SB-ECE", 0, 0.06, 1.0)],
        "S-tuning": [row("FL: gamma=1.0", 0, 0.12, 1.0)],
        "S-cross": [row("FL+AvUC", 0, 0.15, 1.0)],
    }
    rows["S"] += [row("FL+SB-ECE", n, 0.1 + n / 500, 1.0) for n in range(3)]
    rows["S"] += [row("FLSD-53", 0, 0.05, 1.0)]

    def lines():
        return {
            (each["method"], each["rows of"]): each
            for each in claims_of(claimed, tmp_path, rows)
        }

    one = lines()["FL+SB-ECE", "S"]
    assert one["claim"] == "ECE below FL with gamma 1"
    assert one["pairs"] == "1" and one["difference"] == "-2.00"
    assert one["verdict"] == "open: as claimed, one seed"
    crossed = lines()["FL+AvUC", "S-cross"]
    assert crossed["claim"] == "ECE below FL with gamma 1"
    assert crossed["difference"] == "3.00"
    # A gamma for each sample has no partner of its own.
    assert lines()["FLSD-53", "S"]["difference"] == "2.00"
    # Without rows of that gamma nothing is said.
    other = lines()["FL+SB-ECE", "F"]
    assert other["claim"] == "ECE below FL"
    assert other["verdict"] == "open: another gamma"
    assert "has gamma 1" in other["why"] and "only with 3" in other["why"]
    # As many seeds as there are.
    more = [row("FL: gamma=1.0", n, 0.12 + n / 400, 1.0) for n in (1, 2)]
    rows["S-tuning"] += more
    three = lines()["FL+SB-ECE", "S"]
    assert three["pairs"] == "3" and three["verdict"] == "holds"


def test_claims_stand_in_one_line_for_all_tables(claimed, tmp_path):
    rows = [row("CE", n, 0.2, 1.0) for n in range(3)]
    rows += [row("LS", n, 0.1 + n / 1000, 1.0) for n in range(3)]
    rows += [row("FL", n, 0.3 + n / 1000, 1.1) for n in range(3)]
    other = [row("CE", 0, 0.1, 1.0), row("LS", 0, 0.2, 1.0)]
    store(tmp_path, {"S": rows, "N9": other})
    text = "\n\n".join(claimed.page(tmp_path))
    found = tables_of(text, ["method", "claim", "S", "N9"])
    cells = {(each["method"], each["claim"]): each for each in found}
    below = cells["LS", "ECE below CE"]
    assert (below["S"], below["N9"]) == ("yes", "no?")
    assert cells["FL", "ECE below CE"]["S"] == "no"


def shifted_line(method, seed, trained, scaled, soft=None):
    parts = {"as trained": trained, "after TS": scaled}
    if soft is not None:
        parts["after TS-SB-ECE"] = soft
    means = {name: {"mean": {"ece": ece}} for name, ece in parts.items()}
    return {"method": method, "seed": seed, **means}


def test_claims_under_shift_are_of_paired_lines(claimed, tmp_path):
    lines = [
        shifted_line("CE", n, 0.23, 0.1 + n / 1000, 0.09) for n in range(3)
    ]
    lines += [shifted_line("FL", n, 0.2 + n / 500, 0.1) for n in range(3)]
    lines.append(shifted_line("AvUC", 0, 0.22, 0.1))
    found = claims_of(claimed, tmp_path, {"F_shift": lines})
    shown = {(each["method"], each["claim"]): each for each in found}
    focal = shown["FL", "ECE below CE after TS"]
    assert focal["rows of"] == "F, corrupted" and focal["pairs"] == "3"
    assert focal["difference"] == "10.10 ± 0.06"
    assert focal["verdict"] == "does not hold" and focal["why"]
    soft = shown["CE", "ECE after TS-SB-ECE below CE after TS"]
    assert soft["difference"] == "-1.10 ± 0.06"
    assert soft["verdict"] == "holds"
    assert shown["AvUC", "ECE below CE"]["difference"] == "-1.00"


def mean_of(table, method, part, key):
    """In percent; of the confidence minus the accuracy for the key "gap"."""
    import places
    import row_files

    rows = row_files.read_rows(places.RESULTS / f"{table}.jsonl")
    parts = [
        row[part]
        for (name, _), row in rows.items()
        if name == method and "accuracy" in row.get(part, {})
    ]
    if key == "gap":
        found = [each["confidence"] - each["accuracy"] for each in parts]
    else:
        found = [each[key] for each in parts]
    return 100 * np.mean(found)


@pytest.mark.one_backend
def test_numbers_in_reasons_are_those_of_the_rows(verdicts):
    import places

    reasons = verdicts.reasons
    said = {
        # C: nothing to take away, and what MMCE does instead.
        ("C", "CE", "train", "gap", -9): reasons.REASONS["C", "MMCE"],
        ("F", "ACLS, min", "test", "gap", -11): reasons.REASONS[
            "F", "ACLS, min"
        ],
        ("F", "MMCE-w", "test", "gap", -14): reasons.REASONS["F", "MMCE-w"],
        ("D", "FL", "test", "gap", -11): reasons.REASONS["D", "FL"],
        ("D", "CE", "test", "gap", 6): reasons.REASONS["D", "LS"],
    }
    for (*where, number), text in said.items():
        assert round(mean_of(*where)) == number
        assert f"{abs(number)} points" in text
    assert "too unsure" in reasons.REASONS["C", "MMCE"]
    # More than half of what is lacking on the training images.
    assert mean_of("C", "MMCE", "train", "gap") > -9 / 2
    assert mean_of("C", "MMCE", "test", "gap") > 1
    assert round(mean_of("F", "ACLS, min", "train", "accuracy")) == 95
    assert round(mean_of("F", "CE", "train", "accuracy")) == 99
    assert round(mean_of("T", "MDCA", "train", "accuracy")) == 99
    assert round(mean_of("T", "MMCE", "train", "accuracy")) == 99
    taken = mean_of("D", "CE", "test", "gap") - mean_of(
        "D", "LS", "test", "gap"
    )
    assert round(taken) == 4 and "takes 4 of" in reasons.REASONS["D", "LS"]
    # One temperature cannot bend.
    assert 0.7 < -mean_of("S10k", "FL", "test_scaled", "gap") < 1.2
    assert round(-mean_of("S", "FL", "test_scaled", "gap"), 1) == 1.6
    assert 0.8 < mean_of("S", "inverse focal", "test_scaled", "gap") < 1.6
    assert mean_of("S", "CE", "test_scaled", "gap") < 0.5
    # Auxiliaries of Diff-DML and DML in C.
    rows = verdicts.read_rows(places.RESULTS / "C.jsonl")
    for name, number in (("Diff-DML", 37), ("DML", 49)):
        of_peers = [
            row["auxiliary_accuracy"]
            for (method, _), row in rows.items()
            if method == name
        ]
        assert round(100 * np.mean(of_peers)) == number
        assert f"{number} %" in reasons.REASONS["C", "Diff-DML"]
