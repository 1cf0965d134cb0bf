"""Every method has a verdict, from stored rows alone."""

import json

import numpy as np
import pytest


def row(method, seed, ece, nll):
    """A stored row; accuracy and errors after scaling follow from these."""
    errors = {"accuracy": 0.6 + ece, "ece": ece, "nll": 1.0 + ece}
    return {
        "method": method,
        "seed": seed,
        "test": errors,
        "test_scaled": {"ece": ece / 2, "nll": nll},
        "machine": {"device": "a", "backend": "b", "keras": "c"},
        "date": "today",
    }


@pytest.fixture
def verdicts(papers):
    import verdicts

    return verdicts


def store(folder, rows):
    """Write rows, a dict of lists by the name of a table."""
    for table, found in rows.items():
        text = "".join(json.dumps(each) + "\n" for each in found)
        (folder / f"{table}.jsonl").write_text(text)


def page(verdicts, folder, rows):
    store(folder, rows)
    text, _, _ = verdicts.page(folder).partition("## Claims")
    lines = text.strip().splitlines()
    cells = [line[2:-2].split(" | ") for line in lines if " | " in line]
    header, *rest = cells
    return lines, [dict(zip(header, each, strict=True)) for each in rest[1:]]


def test_a_method_of_ones_own_needs_no_claim(verdicts, tmp_path, monkeypatch):
    monkeypatch.delitem(verdicts.claims.SAYS, "LS")
    rows = {"S": [row("CE", 0, 0.05, 0.3), row("LS", 0, 0.01, 0.2)]}
    _, (found,) = page(verdicts, tmp_path, rows)
    assert found["method"] == "LS" and found["its paper says"] == "-"


def test_verdicts_are_those_of_paired_rows(verdicts, tmp_path):
    rows = {"S": [], "F": [row("CE", 0, 0.05, 0.3), row("LS", 0, 0.01, 0.2)]}
    for seed in range(3):
        noise = 0.001 * seed
        rows["S"] += [
            row("CE", seed, 0.2 + noise, 1.0 + noise),
            row("LS", seed, 0.1 + 2 * noise, 1.1),
            row("FL", seed, 0.2 + 10 * (seed - 1) * noise, 1.0 + noise),
        ]
    rows["S"].append(row("LS", 9, 0.9, 0.9))  # without a partner
    lines, found = page(verdicts, tmp_path, rows)
    places = [(each["method"], each["rows of"]) for each in found]
    assert places == [("LS", "S"), ("LS", "F"), ("FL", "S")]
    first, one_seed, focal = found
    differences = np.array([-10.0, -9.9, -9.8])
    error = differences.std(ddof=1) / np.sqrt(3)
    assert first["pairs"] == "3"
    assert first["ECE"] == f"-9.90 ± {error:.2f}"
    assert first["ECE after TS"] == f"-4.95 ± {error / 2:.2f}"
    assert first["NLL after TS"] == "0.099 ± 0.001"
    assert float(first["p (ECE)"].lstrip("< ")) < 0.001
    assert first["as trained"] == "lower; as in ACLS, table 3"
    assert first["ECE there"] == "ACLS, table 3: -3.06"
    assert first["after TS"] == "worse"
    assert one_seed["ECE"] == "-4.00"
    assert one_seed["p (ECE)"] == "-"
    assert one_seed["as trained"] == "lower, one seed; as in ACLS, table 3"
    assert one_seed["after TS"] == "better, one seed"
    assert focal["as trained"] == "not told apart"
    assert focal["after TS"] == "not told apart"
    assert "Without a row: MbLS; ACLS; " in lines[-1]


def store_choice(folder, rows):
    """MDCA tuned on S, with these rows of what was chosen."""
    variant = "MDCA: weight=3.0"
    steps = [{"setting": "weight", "chosen": 3.0, "tried": []}]
    choices = {"MDCA": {"variant": variant, "steps": steps}}
    (folder / "S-tuning.json").write_text(json.dumps(choices))
    rows = [{**each, "method": variant} for each in rows]
    text = "".join(json.dumps(each) + "\n" for each in rows)
    (folder / "S-tuning.jsonl").write_text(text)


def test_what_was_tuned_has_a_verdict_of_its_own(verdicts, tmp_path):
    rows = {"S": [row("CE", 0, 0.2, 1.0), row("MDCA", 0, 0.1, 1.1)], "F": []}
    store_choice(tmp_path, [row("MDCA", 0, 0.05, 0.9)])
    _, (plain, tuned) = page(verdicts, tmp_path, rows)
    assert plain["ECE"] == "-10.00"
    assert tuned["method"] == "MDCA (weight 3)"
    assert tuned["rows of"] == "S-tuning"
    assert tuned["its paper says"] == plain["its paper says"]
    assert tuned["ECE"] == "-15.00"
    assert tuned["after TS"] == "better, one seed"
    import claims

    reason = claims.REASONS["S-tuning", "MDCA"]
    assert tuned["note"] == f"{verdicts.CHOSEN}; {reason}"
    # Without cross-entropy of the same seed there is nothing to compare with.
    store_choice(tmp_path, [row("MDCA", 1, 0.05, 0.9)])
    _, found = page(verdicts, tmp_path, rows)
    assert [each["method"] for each in found] == ["MDCA"]


def test_a_choice_of_what_was_there_has_no_verdict_of_its_own(
    verdicts, tmp_path, monkeypatch
):
    import methods

    rows = {"S": [row("CE", 0, 0.2, 1.0), row("MDCA", 0, 0.1, 1.1)], "F": []}
    store_choice(tmp_path, [row("MDCA", 0, 0.1, 1.1)])
    own = methods.method("MDCA: weight=3.0")
    monkeypatch.setitem(methods.METHODS, "MDCA", own)
    _, found = page(verdicts, tmp_path, rows)
    assert [each["method"] for each in found] == ["MDCA"]


def test_readme_shows_what_was_tuned_instead(papers, tmp_path):
    import readme

    rows = [row("CE", 0, 0.2, 1.0), row("MDCA", 0, 0.1, 1.1)]
    tuned = row("MDCA", 0, 0.05, 0.9)
    for each in (*rows, tuned):
        each["test"]["ece_floor"] = 0.01
        each["test_scaled"]["ece_floor"] = 0.02
    text = "".join(json.dumps(each) + "\n" for each in rows)
    (tmp_path / "S.jsonl").write_text(text)
    shown = readme.evidence(tmp_path)
    assert "| MDCA | 1 | 70.0 | 10.0 | 1.0 | 1.100 | 5.0 | 2.0 |" in shown
    store_choice(tmp_path, [tuned])
    shown = readme.evidence(tmp_path)
    assert "| MDCA (weight 3) | 1 | 65.0 | 5.0 |" in shown
    assert "| MDCA |" not in shown


def test_verdict_names_the_tables_that_agree(verdicts):
    import spread

    lower = np.array([-0.03, -0.02, -0.04])
    scatter = spread.Spread([lower] * 4)

    def say(here, published):
        return verdicts.as_trained(here, published, scatter)

    assert say(lower, {"A, table 1": -1.0}) == "lower; as in A, table 1"
    assert say(lower, {"A": -1.0, "B": -2.0}) == "lower; as in A and B"
    assert say(lower, {"A": 1.0}) == "lower; not as in A"
    assert say(lower, {"A": 1.0, "B": -1.0}) == "lower; as in B; not as in A"
    assert say(-lower, {"A": 1.0}) == "higher; as in A"
    assert say(-lower, {}) == "higher"
    unclear = np.array([-0.03, 0.02, 0.01])
    assert say(unclear, {"A": 1.0}) == "not told apart"


def test_claims_are_tested_between_two_methods(verdicts, tmp_path):
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
    lines = claims_of(verdicts, tmp_path, {"S": rows})
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


def test_claims_are_tested_with_tuned_settings_too(verdicts, tmp_path):
    rows = [
        *(row("CE", 0, 0.20, 1.0), row("MDCA", 0, 0.19, 1.0)),
        *(row("FL", 0, 0.10, 1.0), row("FL+MDCA", 0, 0.09, 1.0)),
    ]
    store_choice(tmp_path, [row("MDCA: weight=3.0", 0, 0.05, 1.0)])
    lines = claims_of(verdicts, tmp_path, {"S": rows})
    found = {
        (each["method"], each["rows of"], each["claim"]): each["difference"]
        for each in lines
    }
    assert found["MDCA", "S", "ECE below CE"] == "-1.00"
    assert found["MDCA", "S-tuning", "ECE below CE"] == "-15.00"
    # Beside what was tuned, a method that was not says nothing.
    assert found["FL+MDCA", "S", "ECE below MDCA"] == "-10.00"
    assert ("FL+MDCA", "S-tuning", "ECE below MDCA") not in found


def claims_of(verdicts, folder, rows):
    """Lines of the table of claims."""
    store(folder, rows)
    *_, text = verdicts.claimed(folder)
    header, _, *lines = [each[2:-2].split(" | ") for each in text.splitlines()]
    return [dict(zip(header, each, strict=True)) for each in lines]


def test_a_point_may_be_lost(verdicts):
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
        (line,) = verdicts.claim_line(kept, "S", rows, scatter)
        assert line[-3] == says
    assert verdicts.claim_line(kept, "S", {}, scatter) == []


def test_behind_a_claim_is_overconfidence_or_training_accuracy(verdicts):
    import claims

    rows = {}
    for name, confidence, trained in (("LS", 0.7, 0.98), ("CE", 0.8, 1.0)):
        rows[name] = {
            "test": {"ece": 0.1, "accuracy": 0.61, "confidence": confidence},
            "train": {"accuracy": trained},
        }
    both = rows["LS"], rows["CE"]
    say = verdicts.behind
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

    for claim in claims.CLAIMS:
        assert {claim.method, claim.other} <= set(protocols.TABLES["S"])
        assert claim.sign in (-1, 1)


def test_every_method_says_what_its_paper_claims(papers):
    import claims
    import methods
    import protocols

    assert set(claims.SAYS) == set(methods.METHODS)
    for table, method in claims.REASONS:
        assert method in protocols.TABLES[table.removesuffix("-tuning")]
    assert {claim for _, claim in claims.WHY} <= set(claims.CLAIMS)


def test_page_without_rows_tells_the_command(papers, tmp_path):
    import table

    with pytest.raises(SystemExit, match=r"run\.py S"):
        table.main(["verdicts", "--results", str(tmp_path)])


@pytest.mark.one_backend
def test_where_rows_and_papers_differ_a_reason_stands_beside(verdicts):
    import claims

    results = verdicts.run.RESULTS
    for name in verdicts.table.of_tuned(results, "S"):
        assert "not tuned" not in claims.REASONS.get(("S", name), "")
    lines = verdicts.page(results).splitlines()
    cells = [line[2:-2].split(" | ") for line in lines if line[:1] == "|"]
    differ = [each for each in cells if "; not as in" in " ".join(each)]
    assert len(differ) > 10
    for *_, note in differ:
        assert note.strip(), differ
    failing = [each for each in cells if verdicts.FAILS in each]
    assert len(failing) > 10
    for *_, why in failing:
        assert why.strip(), failing


def test_the_temperature_of_sb_ece_is_told(verdicts, tmp_path):
    import methods

    said = f"with temperature {methods.SB_ECE['temperature']:g}, "
    rows = {
        table: [row(name, 0, 0.1, 1.0) for name in methods_of]
        for table, methods_of in verdicts.protocols.TABLES.items()
        if table in verdicts.TABLES
    }
    _, found = page(verdicts, tmp_path, rows)
    notes = {
        (each["rows of"], each["method"]): each["note"]
        for each in found
        if "SB-ECE" in each["method"]
    }
    assert len(notes) == 11
    assert all(note.startswith(said) for note in notes.values())
