"""Settings are chosen one after the other, on validation data alone."""

import json

import pytest


@pytest.fixture(scope="module")
def driver(papers):
    import run
    import table
    import tuning

    return run, table, tuning


def test_lowest_error_that_keeps_the_accuracy_is_chosen(driver):
    _, _, tuning = driver
    found = {
        0.01: {"accuracy": 0.62, "ece": 0.10},
        0.1: {"accuracy": 0.61, "ece": 0.05},  # loses one point: kept
        1.0: {"accuracy": 0.609, "ece": 0.01},  # loses more
        0.3: {"accuracy": 0.615, "ece": 0.07},
    }
    assert tuning.choose(found) == 0.1


def test_variants_are_methods_with_other_settings(driver):
    _, _, tuning = driver
    methods = tuning.methods
    name = methods.variant("FL+SB-ECE", {"temperature": 1e-4, "weight": 1.0})
    found = methods.method(name)
    expected = methods.METHODS["FL+SB-ECE"]
    loss = {**expected["loss"], "temperature": 1e-4, "weight": 1.0}
    assert found == {**expected, "loss": loss}
    assert methods.method("Diff-DML, labels 10 %")["train"] == "mutual"
    # What is of the training is no argument of the loss.
    found = methods.method("Diff-DML: auxiliary_rate=0.1")
    expected = methods.METHODS["Diff-DML"]
    assert found == {**expected, "auxiliary_rate": 0.1}
    with pytest.raises(KeyError):
        methods.method("no such method")


@pytest.mark.parametrize("method", ["S-AvUC", "LS", "MDCA"])
def test_every_value_of_a_grid_makes_a_loss(driver, method):
    import numpy as np
    import probes

    _, _, tuning = driver
    for setting in tuning.GRIDS[method]:
        settings = tuning.start(method)
        for name in tuning.candidates(method, settings, setting).values():
            spec = tuning.methods.method(name)
            assert np.isfinite(probes.loss_probe(spec)).all()


def rule(settings):
    """Errors of an imagined method; the test errors would choose otherwise."""
    ece = abs(settings.get("temperature", 1.0) - 1e-2)
    ece += abs(settings.get("weight", 1.0) - 0.3)
    accuracy = 0.6 - 0.05 * (settings.get("weight", 0.0) == 0.3)
    return {"accuracy": accuracy, "ece": ece, "ece_floor": 0.01}


@pytest.fixture
def trained(driver, monkeypatch):
    """Calls of what stands for the processes, which stores rows.

    Its arguments are the function from settings to the keys of a row, and how
    many rows the first call trains before it is stopped in time.
    """
    import data_at_hand
    import probes
    import stored_rows
    import tuned
    import work

    _, _, tuning = driver

    def stand_in(outcome, first=None):
        calls = []

        def train(arguments, rows):
            calls.append([name for name, _ in rows])
            for name, seed in rows[: first if len(calls) == 1 else None]:
                method = tuning.methods.method(name)
                row = {
                    "method": name,
                    "seed": seed,
                    "date": "today",
                    "settings": work.settings(arguments.table, name),
                    "probe": probes.loss_probe(method),
                    "machine": {"device": "a", "backend": "b", "keras": "c"},
                    **outcome(method["loss"]),
                }
                lost = "-diverged" if "diverged" in row else ""
                file = f"{arguments.table}{lost}.jsonl"
                stored_rows.append(arguments.results / file, row)
            return 0

        monkeypatch.setattr(tuned, "run_all", train)
        monkeypatch.setattr(data_at_hand, "absent", lambda arguments: None)
        return calls

    return stand_in


def test_tuning_goes_step_by_step_and_can_be_stopped(
    driver, trained, tmp_path, capsys
):
    run, table, tuning = driver

    def outcome(loss):
        test = rule(loss) | {"accuracy": 0.5, "ece": 1 - rule(loss)["ece"]}
        return {"maps": {}, "validation": rule(loss), "test": test}

    calls = trained(outcome, first=2)
    command = ["miniature", "--tune", "--only", "SB-ECE", "--seeds", "2"]
    command += ["--results", str(tmp_path), "--work", str(tmp_path / "work")]
    assert run.main(command) == 0
    assert len(calls) == 1  # stopped
    path = tmp_path / "miniature-tuning.json"
    assert json.loads(path.read_text()) == {}
    assert run.main(command) == 0
    temperatures, weights = tuning.GRIDS["SB-ECE"].values()
    # Two of the first step were left; the weights are tried at the chosen
    # temperature; what both steps share and what is chosen runs once.
    assert [len(call) for call in calls] == [
        len(temperatures),
        len(temperatures) - 2,
        len(weights) - 1,
        1,
    ]
    assert all("temperature=0.01," in name for name in calls[2])
    choice = json.loads(path.read_text())["SB-ECE"]
    # 0.3 has the lowest error, but loses five points of accuracy.
    assert choice["variant"] == "SB-ECE: temperature=0.01, weight=0.1"
    assert calls[3] == [choice["variant"]]  # the second seed
    steps = {step["setting"]: step for step in choice["steps"]}
    tried = [each["value"] for each in steps["temperature"]["tried"]]
    assert tried == list(temperatures)
    assert run.main(command) == 0 and len(calls) == 4  # nothing is left
    table.main(["miniature-tuning", "--results", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "| temperature 0.01, weight 0.1 | 2 | 50.00 ± 0.00 |" in printed
    # Another method's choice stands beside it.
    command[command.index("SB-ECE")] = "MDCA"
    assert run.main(command) == 0
    choices = json.loads(path.read_text())
    assert choices["SB-ECE"] == choice
    assert choices["MDCA"]["variant"] == "MDCA: weight=1.0"


def test_a_setting_that_diverges_is_not_waited_for(
    driver, trained, tmp_path, capsys
):
    run, table, _ = driver

    def outcome(loss):
        if loss["weight"] == 1.0:
            return {"diverged": "not finite"}
        return {"maps": {}, "validation": rule(loss), "test": rule(loss)}

    calls = trained(outcome)
    command = ["miniature", "--tune", "--only", "MDCA"]
    command += ["--results", str(tmp_path), "--work", str(tmp_path / "work")]
    assert run.main(command) == 0 and len(calls) == 1
    assert run.main(command) == 0 and len(calls) == 1  # nothing is left
    path = tmp_path / "miniature-tuning.json"
    [step] = json.loads(path.read_text())["MDCA"]["steps"]
    assert {"value": 1.0, "diverged": True} in step["tried"]
    assert step["chosen"] == 3.0  # with the lowest error of the others
    table.main(["miniature-tuning", "--results", str(tmp_path)])
    assert ", 1: diverged, 3: " in capsys.readouterr().out


def test_a_method_that_diverges_always_is_said_so(driver):
    _, _, tuning = driver
    names = tuning.candidates("LS", tuning.start("LS"), "smoothing").values()
    lost = {(name, 0) for name in names}
    with pytest.raises(ValueError, match="LS diverges with every smoothing"):
        tuning.progress("LS", {}, lost)


def test_a_row_that_diverged_with_other_code_can_be_stopped(
    driver, trained, tmp_path
):
    import stored_rows

    run, _, tuning = driver
    for weight in tuning.GRIDS["MDCA"]["weight"]:
        old = {"method": f"MDCA: weight={weight}", "seed": 0, "settings": {}}
        stored_rows.append(tmp_path / "miniature-tuning-diverged.jsonl", old)
    calls = trained(
        lambda loss: {"maps": {}, "validation": rule(loss), "test": rule(loss)},
        first=0,
    )
    command = ["miniature", "--tune", "--only", "MDCA"]
    command += ["--results", str(tmp_path), "--work", str(tmp_path / "work")]
    assert run.main(command) == 0 and len(calls) == 1  # stopped
    assert run.main(command) == 0 and len(calls) == 2  # run again
