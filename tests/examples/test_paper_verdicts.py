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
    return lines, tables_of(text, verdicts.HEADER)


def tables_of(text, header):
    """Lines of all tables with this header, as dicts."""
    cells = [line[2:-2].split(" | ") for line in text.splitlines()]
    places = [n for n, each in enumerate(cells) if each == header]
    found = []
    for place in places:
        for each in cells[place + 2 :]:
            if len(each) < 2:
                break
            found.append(dict(zip(header, each, strict=True)))
    return found


def test_a_method_of_ones_own_needs_no_claim(verdicts, tmp_path, monkeypatch):
    monkeypatch.delitem(verdicts.claims.SAYS, "LS")
    rows = {"S": [row("CE", 0, 0.05, 0.3), row("LS", 0, 0.01, 0.2)]}
    _, (found,) = page(verdicts, tmp_path, rows)
    assert found["method"] == "LS" and found["its paper says"] == "-"


def of_three_seeds():
    """LS has a lower ECE and a higher NLL than CE, FL differs by chance."""
    rows = []
    for seed in range(3):
        noise = 0.001 * seed
        rows += [
            row("CE", seed, 0.2 + noise, 1.0 + noise),
            row("LS", seed, 0.1 + 2 * noise, 1.1),
            row("FL", seed, 0.2 + 10 * (seed - 1) * noise, 1.0 + noise),
        ]
    return rows


def test_verdicts_are_those_of_paired_rows(verdicts, tmp_path):
    rows = {"S": [], "F": [row("CE", 0, 0.05, 0.3), row("LS", 0, 0.01, 0.2)]}
    rows["S"] += of_three_seeds()
    rows["S"].append(row("LS", 9, 0.9, 0.9))  # without a partner
    lines, found = page(verdicts, tmp_path, rows)
    places = [(each["method"], each["rows of"]) for each in found]
    assert places == [("LS", "S"), ("FL", "S"), ("LS", "F")]
    first, focal, one_seed = found
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
    import reasons

    reason = reasons.REASONS["S-tuning", "MDCA"]
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


def test_every_method_says_what_its_paper_claims(papers):
    import claims
    import methods
    import protocols
    import reasons

    assert set(claims.SAYS) == set(methods.METHODS)
    for table, method in reasons.REASONS:
        assert method in protocols.TABLES[table.removesuffix("-tuning")]
    known = {*claims.CLAIMS, *claims.SHIFT_CLAIMS}
    assert {claim for _, claim in reasons.WHY} <= known


def test_page_without_rows_tells_the_command(papers, tmp_path):
    import table

    with pytest.raises(SystemExit, match=r"run\.py S"):
        table.main(["verdicts", "--results", str(tmp_path)])


@pytest.mark.one_backend
def test_where_rows_and_papers_differ_a_reason_stands_beside(verdicts):
    import places

    reasons = verdicts.reasons
    results = places.RESULTS
    for name in verdicts.table.of_tuned(results, "S"):
        assert "not tuned" not in reasons.REASONS.get(("S", name), "")
    lines = verdicts.page(results).splitlines()
    cells = [line[2:-2].split(" | ") for line in lines if line[:1] == "|"]
    differ = [each for each in cells if "; not as in" in " ".join(each)]
    assert len(differ) > 10
    for *_, note in differ:
        assert note.strip(), differ
    failing = [each for each in cells if verdicts.claimed.FAILS in each]
    assert len(failing) > 10
    for *_, why in failing:
        assert why.strip(), failing
    # Where its paper says lower, and it is not lower, the row says why.
    found = tables_of("\n".join(lines), verdicts.HEADER)
    unseen = [
        each
        for each in found
        if each["its paper says"].startswith("lower ECE")
        and each["as trained"].partition(";")[0] in ("higher", "not told apart")
    ]
    assert len(unseen) > 30
    assert [each for each in unseen if not each["note"].strip()] == []


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
    assert len(notes) == 23
    assert all(note.startswith(said) for note in notes.values())


def test_verdicts_are_counted_by_table(verdicts, tmp_path):
    rows = {"S": [], "C": [row("CE", 0, 0.05, 0.3), row("LS", 0, 0.09, 0.2)]}
    rows["S"] += of_three_seeds()
    rows["S"] += [row("MbLS", seed, 0.3, 0.9) for seed in range(3)]
    _, _ = page(verdicts, tmp_path, rows)
    text = verdicts.page(tmp_path)
    assert "\n| S | 3 | 3 | 1 | 1 | 1 | 1 | 1 | 1 |\n" in text
    assert "\n| C | 1 | 1 | 0 | 0 (1) | 0 | 0 (1) | 0 | 0 |\n" in text


def test_crossed_losses_are_compared_with_the_rows_of_s(verdicts, tmp_path):
    rows = {
        "S": [row("CE", 0, 0.2, 1.0), row("Brier", 0, 0.12, 1.0)],
        "S-cross": [row("Brier+MMCE", 0, 0.1, 0.9)],
        "S-square": [row("squared logit", 0, 0.3, 1.2)],
    }
    _, found = page(verdicts, tmp_path, rows)
    shown = {each["method"]: (each["rows of"], each["ECE"]) for each in found}
    assert shown["Brier+MMCE"] == ("S-cross", "-10.00")
    assert shown["squared logit"] == ("S-square", "10.00")


def counts(verdicts, name):
    import places

    cells = verdicts.count(name, places.RESULTS)
    return dict(zip(verdicts.COUNTED, cells, strict=True))


def lower(found):
    return int(found["ECE lower"].split()[0])


@pytest.mark.one_backend
def test_pages_of_losses_and_metrics_say_what_is_counted(verdicts):
    import pathlib

    import places
    import sentences

    folder = pathlib.Path(verdicts.__file__).parents[2] / "keras_calib"
    text = " ".join((folder / "losses" / "README.md").read_text().split())
    assert "most methods have a lower ECE as trained in protocol S" in text
    s, f, c, t = (counts(verdicts, name) for name in "SFCT")
    for most in (s, t):
        assert lower(most) > int(most["methods"]) / 2
    assert "In F, three epochs from a published network, about half are" in text
    assert 0.4 < int(f["ECE not told apart"]) / int(f["methods"]) < 0.6
    assert int(f["ECE higher"]) > 2 and lower(f) > 2
    assert "at its floor, none is lower and more than half are higher" in text
    assert lower(c) == 0 and int(c["ECE higher"]) > int(c["methods"]) / 2
    # Where that is: cross-entropy at its floor.
    rows = verdicts.read_rows(places.RESULTS / "C.jsonl")
    found = [row["test"] for (name, _), row in rows.items() if name == "CE"]
    ece, floor = (
        np.mean([each[key] for each in found]) for key in ("ece", "ece_floor")
    )
    assert abs(ece - floor) < 0.001
    text = " ".join((folder / "metrics" / "README.md").read_text().split())
    rows = verdicts.read_rows(places.RESULTS / "S.jsonl")
    as_trained = sentences.told(rows, "ece", "test", 100, "points", 1)
    after = sentences.told(rows, "nll", "test_scaled", 1, "nats", 3)
    number = len(sentences.HELD_DOWN)
    assert as_trained.startswith(f"lower in all {number} ")
    assert f"in {number} of {number}" in text
    lost = after.partition(" (")[0].removeprefix("higher in ")
    assert "In protocol S losses that" in text
    assert f"a higher NLL in {lost}" in text
