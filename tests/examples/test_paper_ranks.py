"""Methods are ranked by proper scores and by the ECE above its floor."""

import json

import pytest

pytestmark = pytest.mark.one_backend


def row(method, seed, nll, brier, ece, floor=0.01, after=1.0):
    errors = {"nll": nll, "brier": brier, "ece": ece, "ece_floor": floor}
    return {
        "method": method,
        "seed": seed,
        "test": errors,
        "test_scaled": {"nll": after},
        "machine": {"device": "a", "backend": "b", "keras": "c"},
        "date": "today",
    }


def write(path, rows):
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))


def cells(text):
    lines = [each[2:-2].split(" | ") for each in text.splitlines()]
    return {line[0]: line[1:] for line in lines if len(line) > 3}


def test_places_are_those_of_three_errors(papers, tmp_path):
    import ranks

    rows = [
        row("CE", 0, 1.0, 0.5, 0.2),
        row("CE", 1, 1.2, 0.5, 0.2),
        row("LS", 0, 0.9, 0.6, 0.05, floor=0.02),
        row("FL", 0, 0.8, 0.4, 0.3, after=0.7),
    ]
    write(tmp_path / "S.jsonl", rows)
    text = ranks.page(tmp_path)
    found = cells(text)
    shown = ["2", "1.100 (3)", "0.500 (2)", "19.00 (2)", "1.000 (2)", "2.3"]
    assert found["CE"] == shown
    assert found["LS"][3] == "3.00 (1)"
    assert found["FL"][-1] == "1.7" and found["FL"][4] == "0.700 (1)"
    names = [name for name in found if name in ("CE", "LS", "FL")]
    assert names == ["FL", "LS", "CE"]
    assert "Under corruption" not in text


def test_corrupted_images_have_a_table(papers, tmp_path):
    import ranks

    def under(method, ece, after):
        mean = {"ece": ece, "ece_floor": 0.02}
        scaled = {"ece": after, "ece_floor": 0.01}
        parts = {"as trained": {"mean": mean}, "after TS": {"mean": scaled}}
        if method == "CE":
            soft = {"ece": 0.03, "ece_floor": 0.01}
            parts["after TS-SB-ECE"] = {"mean": soft, "temperature": 3.0}
        machine = {"device": "z", "backend": "b", "keras": "c"}
        return {
            **{"method": method, "seed": 0, **parts},
            **{"machine": machine, "date": "tomorrow"},
        }

    write(tmp_path / "S.jsonl", [row("CE", 0, 1.0, 0.5, 0.2)])
    rows = [under("CE", 0.3, 0.05), under("LS", 0.1, 0.11)]
    write(tmp_path / "F_shift.jsonl", rows)
    text = ranks.page(tmp_path)
    assert "a, b, Keras c; z, b, Keras c; today to tomorrow" in text
    _, text = text.split("## Under corruption")
    found = cells(text)
    assert found["LS"] == ["1", "8.0 (1)", "10.0 (2)", "-"]
    assert found["CE"] == ["1", "28.0 (2)", "4.0 (1)", "2.0 (1)"]
    assert list(found).index("LS") < list(found).index("CE")


def test_chosen_settings_have_a_place_of_their_own(papers, tmp_path):
    import ranks

    rows = [row("CE", 0, 1.0, 0.5, 0.2), row("MDCA", 0, 0.9, 0.4, 0.1)]
    write(tmp_path / "S.jsonl", rows)
    variant = "MDCA: weight=3.0"
    steps = [{"setting": "weight", "chosen": 3.0, "tried": []}]
    choices = {"MDCA": {"variant": variant, "steps": steps}}
    (tmp_path / "S-tuning.json").write_text(json.dumps(choices))
    tuned = {**row(variant, 0, 0.8, 0.3, 0.05), "date": "tomorrow"}
    write(tmp_path / "S-tuning.jsonl", [tuned])
    text = ranks.page(tmp_path)
    found = cells(text)
    assert found["MDCA (weight 3)"][-1] == "1.0"
    assert found["MDCA"][-1] == "2.0" and found["CE"][-1] == "3.0"
    assert "today to tomorrow" in text


def test_without_rows_the_command_is_told(papers, tmp_path):
    import table

    with pytest.raises(SystemExit, match=r"run\.py S"):
        table.main(["ranks", "--results", str(tmp_path)])


def test_methods_whose_choice_they_have_anyway_are_named(papers):
    import places
    import ranks

    path = places.RESULTS / "S-tuning.json"
    chosen = json.loads(path.read_text())
    same = {*chosen} - {*ranks.table.of_tuned(places.RESULTS, "S")}
    assert same == {"FL", "ER"}
    assert "which of FL and ER are those that were chosen" in ranks.ABOUT
