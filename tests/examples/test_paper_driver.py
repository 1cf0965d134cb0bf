"""The driver's options, on a network and data of seconds."""

import argparse
import ast
import dataclasses
import importlib
import json
import types

import keras
import numpy as np
import pytest

from tests.examples.test_paper_protocols import images
from tests.examples.test_papers import small_network

SIZES = {"train": 96, "validation": 40, "calibration": 40, "test": 50}


@pytest.fixture
def driver(work, monkeypatch):
    """The driver, whose rows are trained in this process, in four epochs."""
    import one_row
    import processes
    import run

    protocol = dataclasses.replace(
        work.protocols.PROTOCOLS["miniature"], batch_size=32, epochs=4
    )
    monkeypatch.setitem(work.protocols.PROTOCOLS, "miniature", protocol)
    data = {part: images(size) for part, size in SIZES.items()}
    monkeypatch.setattr(work.data_sets, "load", lambda *_: data)
    monkeypatch.setattr(work.networks, "build", small_network)
    maps = ("VectorScaling",)
    monkeypatch.setattr("measures.ANY_CLASSES", maps)
    monkeypatch.setattr("measures.CALIBRATED", {})
    monkeypatch.setattr("measures.BALANCED_MAPS", ())
    monkeypatch.setattr("measures.SHOWN", few(work))

    def start(arguments, method, seed, begin):
        status = one_row.run_row(arguments, method, seed)
        done = argparse.Namespace(returncode=status)
        done.poll = done.wait = lambda: status
        return done, f"{method}, seed {seed}"

    monkeypatch.setattr(processes, "start", start)
    monkeypatch.setattr(processes.time, "sleep", lambda _: None)
    return run


def few(work):
    import measures

    kept = ("ece", "nll", "brier", "confidence")
    return {k: short for k, short in measures.SHOWN.items() if short in kept}


@pytest.fixture
def call(driver, tmp_path):
    """Calls the driver's command line; its rows and logits go to a folder."""
    import row_files

    def call(*options):
        places = ["--results", str(tmp_path), "--work", str(tmp_path / "work")]
        return driver.main([*map(str, options), *places])

    call.rows = lambda: row_files.read_rows(tmp_path / "miniature.jsonl")
    call.folder = tmp_path
    return call


pytestmark = pytest.mark.usefixtures("eager_functions")


def test_only_some_methods_are_run_and_none_twice(call, capsys):
    assert call("miniature", "--only", "CE", "LS", "--seeds", 1) == 0
    assert set(call.rows()) == {("CE", 0), ("LS", 0)}
    assert "miniature: 2 rows to run" in capsys.readouterr().out
    assert call("miniature", "--only", "CE", "LS", "--seeds", 1) == 0
    assert "miniature: 0 rows to run" in capsys.readouterr().out


def test_check_trains_a_row_again_and_compares(call, capsys):
    call("miniature", "--only", "CE")
    assert call("--check", "miniature/CE/0") == 0
    assert capsys.readouterr().out.count(": agrees") == 2
    row = call.rows()["CE", 0]
    row["test"]["accuracy"] += 0.01
    (call.folder / "miniature.jsonl").write_text(json.dumps(row) + "\n")
    assert call("--check", "miniature/CE/0") == 1
    printed = capsys.readouterr().out
    assert "DIFFERS" in printed.split("\n")[-3]
    assert list(call.rows()) == [("CE", 0)]  # it is left as it was
    # What an earlier check found is not what this one finds.
    assert call("--check", "miniature/CE/0", "--seconds", 0) == 1
    printed = capsys.readouterr().out
    assert "stopped in time" in printed and "stored" not in printed


def test_measure_reads_stored_logits_again(call, capsys):
    call("miniature", "--only", "CE", "LS", "--seeds", 1)
    before = call.rows()
    spoiled = {key: {**row, "test": {}} for key, row in before.items()}
    text = "".join(json.dumps(row) + "\n" for row in spoiled.values())
    (call.folder / "miniature.jsonl").write_text(text)
    # Logits of one row lie beside the rows, those of the other are lost.
    logits = call.folder / "work" / "miniature" / "CE-0.npz"
    (call.folder / "logits").mkdir()
    logits.rename(call.folder / "logits" / "miniature-CE-0.npz")
    (logits.parent / "LS-0.npz").unlink()
    call("miniature", "--measure")
    after = call.rows()
    assert after["CE", 0]["test"] == before["CE", 0]["test"]
    assert after["LS", 0]["test"] == {}
    assert "LS, seed 0: no logits in " in capsys.readouterr().out


def test_logits_of_another_training_are_not_measured(call, capsys):
    call("miniature", "--only", "CE")
    path = call.folder / "miniature.jsonl"
    row = json.loads(path.read_text())
    row["test"]["accuracy"] += 0.01
    path.write_text(json.dumps(row) + "\n")
    capsys.readouterr()
    call("miniature", "--measure")
    assert "is of another training" in capsys.readouterr().out
    assert json.loads(path.read_text()) == row


def test_history_is_measured_when_asked_for(call, capsys):
    call("miniature", "--only", "CE")
    plain = call.rows()["CE", 0]
    assert plain["history"]["epoch"] == [1, 2, 3, 4]
    assert set(plain["history"]) == {"epoch", "loss", "accuracy"}
    call("miniature", "--only", "CE", "--history", 2)
    assert "1 rows to run" in capsys.readouterr().out
    measured = call.rows()["CE", 0]
    errors = measured["history"]["val_ece"]
    assert [value is None for value in errors] == [True, False, True, False]
    # The last epoch's network is the one that is measured in the end.
    expected = measured["validation"]["ece"]
    assert errors[-1] == pytest.approx(expected, abs=1e-3)
    # Measuring changes nothing of the training.
    assert measured["history"]["loss"] == plain["history"]["loss"]
    assert measured["test"] == plain["test"]
    assert measured["settings"] == plain["settings"]
    call("miniature", "--only", "CE", "--history", 2)
    assert "0 rows to run" in capsys.readouterr().out


def test_history_goes_on_where_a_run_was_stopped(work, driver, tmp_path):
    import unfinished

    spec = work.methods.METHODS["CE"]
    protocol = work.protocols.PROTOCOLS["miniature"]
    data = work.data_sets.load(protocol, tmp_path)
    arguments = (spec, protocol, data, 0)
    _, whole = work.train(*arguments, str(tmp_path / "whole"), None)
    stopped = str(tmp_path / "parts")
    # Each call ends after one epoch, because its time is over.
    for _ in range(3):
        assert work.train(*arguments, stopped, 1.0) is None
    _, parts = work.train(*arguments, stopped, None)
    assert parts["history"]["epoch"] == [1, 2, 3, 4]
    np.testing.assert_allclose(
        parts["history"]["loss"], whole["history"]["loss"], rtol=1e-3
    )
    # They stay until the row is stored.
    unfinished.remove(tmp_path / "parts")
    left = {path.name for path in tmp_path.iterdir()}
    assert not {name for name in left if name.startswith("parts")}


def test_training_images_are_measured(call):
    call("miniature", "--only", "CE")
    row = call.rows()["CE", 0]
    assert row["train"]["num"] == SIZES["train"]
    assert row["train"]["nll"] > 0
    parts = ("test", "test_scaled", "test_scaled_to_sb_ece", "validation")
    assert all(row[part]["num"] > 0 for part in parts)


def test_outputs_of_a_square_loss_are_probabilities(call, capsys):
    import table

    call("miniature", "--only", "squared logit")
    row = call.rows()["squared logit", 0]
    path = call.folder / "work" / "miniature" / "squared_logit-0.npz"
    with np.load(path) as file:
        outputs = file["test_logits"].astype("float64")
        labels = file["test_labels"]
    p = np.maximum(outputs, 1e-3)
    p /= p.sum(axis=1, keepdims=True)
    expected = -np.log(p[np.arange(len(labels)), labels]).mean()
    found = row["test_as_probabilities"]
    assert found["nll"] == pytest.approx(expected, abs=1e-5)
    # A softmax of numbers near 0 and 1 is near 1 / 10.
    assert row["test"]["confidence"] < 0.4
    capsys.readouterr()
    table.main(["miniature", "--results", str(call.folder)])
    printed = capsys.readouterr().out
    assert "| outputs read as probabilities | seeds |" in printed
    assert f"| squared logit | 1 | {100 * found['ece']:.2f} |" in printed


def test_variants_are_chosen_by_their_method(driver, tmp_path):
    import missing

    arguments = driver.parse(["S-sweep", "--only", "MbLS"])
    arguments.results = tmp_path
    names = [name for name, _ in missing.missing_rows(arguments)]
    assert len(names) == 10
    assert all(name.startswith("MbLS: margin=") for name in names)


@pytest.mark.parametrize(
    ("table", "paper", "some"),
    [
        ("G200", "acls", {"CE", "MMCE", "CPC", "CRL", "ACLS"}),
        ("G30", "diff_dml", {"DCA", "FL+MDCA", "ensemble of 3", "DML-2"}),
        ("G100", "mbls", {"CE", "LS", "FL", "FLSD-53", "MbLS"}),
        ("G200", "soft_objectives", {"AvUC-GS", "FL+S-AvUC", "Brier"}),
        ("LT", "class_scaling", {"CE"}),
        ("T", "mbls", {"MbLS, margin 10"}),
        ("D", "acls", {"ACLS, margin 10"}),
    ],
)
def test_a_papers_rows_are_one_command(driver, tmp_path, table, paper, some):
    import missing
    import published

    arguments = driver.parse([table, "--paper", paper])
    arguments.results = tmp_path
    names = {name for name, _ in missing.missing_rows(arguments)}
    assert names == set(published.methods_of(paper, table))
    assert some <= names


def test_a_paper_without_rows_of_a_table_is_refused(driver, capsys):
    with pytest.raises(SystemExit):
        driver.parse(["G30", "--paper", "class_scaling"])
    assert "not on the page of class_scaling" in capsys.readouterr().err


def test_download_is_allowed_only_when_asked_for(work, monkeypatch, tmp_path):
    import data_sets

    asked = []

    def load(name, *, validation, download):
        asked.append(download)
        x, y = images(30)
        return (x, y), None, (x, y)

    monkeypatch.setattr(data_sets.kc.datasets, "load", load)
    nothing = np.zeros(0, "int64")
    monkeypatch.setattr(
        data_sets.kc.datasets, "inexact_images", lambda name: nothing
    )
    protocol = work.protocols.PROTOCOLS["miniature"]
    found = data_sets.all_images(protocol, tmp_path / "a")
    # What the packs lack is left out of other sources, too.
    assert len(found["inexact"]) == 72
    monkeypatch.setattr(data_sets, "DOWNLOAD", True)
    data_sets.all_images(protocol, tmp_path / "b")
    assert asked == [False, True]


def test_logits_that_are_not_finite_are_refused(
    work, driver, tmp_path, monkeypatch
):
    x, y = images(8)
    data = dict.fromkeys(SIZES, (x, y))
    logits = np.zeros((8, 10))
    logits[3, 4] = np.nan
    trained = dict.fromkeys(data, logits), {}
    monkeypatch.setattr(work, "train", lambda *_: trained)
    with pytest.raises(FloatingPointError, match="are not finite"):
        work.run("miniature", "CE", 0, tmp_path / "row", tmp_path)


def test_a_row_that_diverged_is_stored_apart_and_not_run_again(
    work, driver, tmp_path, monkeypatch
):
    import missing
    import processes

    def diverge(*_):
        raise FloatingPointError("Logits are not finite.")

    monkeypatch.setattr(work, "run", diverge)
    folders = ["--results", str(tmp_path), "--work", str(tmp_path / "work")]
    command = ["miniature", "--only", "CE", "--seeds", "1", *folders]
    arguments = driver.parse(command)
    assert missing.missing_rows(arguments) == [("CE", 0)]
    assert driver.main([*command, "--row", "CE", "0"]) == processes.DIVERGED
    (row,) = missing.diverged("miniature", tmp_path).values()
    assert row["diverged"] == "Logits are not finite." and "test" not in row
    assert missing.missing_rows(arguments) == []
    # With other settings it is another training.
    monkeypatch.setattr(work, "settings", lambda *_: {"epochs": 1})
    assert missing.missing_rows(arguments) == [("CE", 0)]


@pytest.mark.parametrize(
    ("backend", "name"),
    [("tensorflow", "TF_NUM_INTRAOP_THREADS"), ("jax", "OMP_NUM_THREADS")],
)
def test_threads_are_those_that_the_backend_obeys(
    driver, monkeypatch, backend, name
):
    import one_row

    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    assert one_row.threads_variable() == name


@pytest.mark.parametrize(
    "row", ["miniature/LS/0", "miniature/CE", "nosuch/CE/0", "miniature/CE/x"]
)
def test_a_row_that_is_not_stored_is_not_checked(call, capsys, row):
    call("miniature", "--only", "CE")
    capsys.readouterr()
    assert call("--check", row) == 2
    error = capsys.readouterr().err
    known = "none" if row.startswith("nosuch") else "miniature/CE/0"
    assert error.endswith(f"there are: {known}\n") and row in error


def test_measure_takes_variants_by_their_method(call, work, capsys):
    rows = call.folder / "miniature-sweep.jsonl"
    call("miniature-sweep", "--only", "ACLS", "--seeds", 1)
    stored = [json.loads(line) for line in rows.read_text().splitlines()]
    spoiled = [{**row, "test": {}} for row in stored]
    rows.write_text("".join(json.dumps(row) + "\n" for row in spoiled))
    assert call("miniature-sweep", "--measure", "--only", "ACLS") == 0
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    assert found == stored and all(": " in row["method"] for row in found)


def test_nothing_to_measure_leaves_no_file(call, capsys):
    assert call("miniature", "--measure") == 1
    assert "no rows in" in capsys.readouterr().out
    assert not (call.folder / "miniature.jsonl").exists()


def test_an_empty_line_is_no_row_and_a_broken_one_is_named(call):
    call("miniature", "--only", "CE")
    path = call.folder / "miniature.jsonl"
    path.write_text("\n" + path.read_text() + "\n\n")
    assert set(call.rows()) == {("CE", 0)}
    call("miniature", "--only", "LS", "--seeds", 1)
    assert set(call.rows()) == {("CE", 0), ("LS", 0)}
    path.write_text("{broken\n" + path.read_text())
    with pytest.raises(ValueError, match=r"miniature\.jsonl, line 1: "):
        call.rows()


def test_a_row_of_another_network_is_run_again(call, driver, work, monkeypatch):
    import missing
    import probes

    call("miniature", "--only", "CE")
    (row,) = call.rows().values()
    assert missing.changed("miniature", "CE", row) is None
    assert row["network"] == probes.network_probe("miniature")
    build = work.networks.build

    def other(*arguments, **options):
        network = build(*arguments, **options)
        return keras.Model(network.inputs, 1.1 * network.outputs[0])

    probes.network_probe.cache_clear()
    monkeypatch.setattr(work.networks, "build", other)
    found = missing.changed("miniature", "CE", row)
    assert found == "its network gives other values now"
    probes.network_probe.cache_clear()
    # Rows of before have none.
    del row["network"]
    assert missing.changed("miniature", "CE", row) is None


def test_two_processes_do_not_train_one_row(call, driver, capsys, monkeypatch):
    import one_row
    import processes

    folder = call.folder / "work" / "miniature"
    folder.mkdir(parents=True)
    with one_row.alone(folder / "CE-0.lock"):
        with pytest.raises(SystemExit) as found:
            call("miniature", "--only", "CE")
    assert found.value.code == processes.BUSY
    assert "Another process trains this row" in capsys.readouterr().err
    assert not call.rows()
    # As the driver tells it of a process of its own.
    ended = types.SimpleNamespace(poll=lambda: True, returncode=processes.BUSY)
    with monkeypatch.context() as patch:
        patch.setattr(processes, "start", lambda *row: (ended, "CE, seed 0"))
        arguments = argparse.Namespace(jobs=1, seconds=None, work=folder)
        arguments.table = "miniature"
        assert processes.run_all(arguments, [("CE", 0)]) == 1
    assert "not trained here, another process does" in capsys.readouterr().out
    assert call("miniature", "--only", "CE") == 0
    assert set(call.rows()) == {("CE", 0)}


def test_a_repeated_run_keeps_what_was_measured_between_epochs(call, driver):
    import row_files
    import stored_rows

    call("miniature", "--only", "CE", "--history", 2)
    (measured,) = call.rows().values()
    assert row_files.has_epochs(measured)
    plain = {**measured, "history": {"loss": [1.0]}, "date": "later"}
    stored_rows.append(call.folder / "miniature.jsonl", plain)
    (row,) = call.rows().values()
    assert row["date"] == "later" and row["history"] == measured["history"]
    # Another run is another row.
    plain["test"] = {**plain["test"], "nll": 9.0}
    stored_rows.append(call.folder / "miniature.jsonl", plain)
    (row,) = call.rows().values()
    assert row["history"] == {"loss": [1.0]}


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"threads": 1}, True),
        ({"threads": "2"}, False),
        ({"machine": {"processor": "another"}}, False),
        ({"machine": {}}, False),  # a row of before
    ],
)
def test_when_a_run_can_be_repeated_in_every_digit(driver, change, same):
    import checks

    stored = {"machine": {"processor": "one"}, "threads": "1"}
    assert checks.same_machine(stored | change, stored) == same


def test_a_row_of_another_training_is_run_again(call, driver):
    import missing
    import probes

    call("miniature", "--only", "DML", "--seeds", 1)
    (row,) = call.rows().values()
    assert row["procedure"] == probes.procedure_probe("miniature", "DML")
    assert missing.changed("miniature", "DML", row) is None
    row["procedure"][-1] += 0.01
    found = missing.changed("miniature", "DML", row)
    assert found == "its training gives other values now"
    # Random draws are those of the backend.
    row["machine"]["backend"] = "another"
    assert missing.changed("miniature", "DML", row) is None
    del row["procedure"]
    assert missing.changed("miniature", "DML", row) is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--jobs=0"], "--jobs: a number, at least 1. Received: 0"),
        (["--seeds=-1"], "--seeds: a number, at least 1. Received: -1"),
        (["--threads=0"], "--threads: a number, at least 1. Received: 0"),
        (["--history=0"], "--history: a number, at least 1. Received: 0"),
        (["--images=3"], "--images is about --shift."),
        (["--only", "ALCS"], "there is no 'ALCS', near are ACLS, "),
        (["--only", "xyz"], "there is no 'xyz'; `--help` names all"),
    ],
)
def test_numbers_and_names_that_mean_nothing_are_refused(
    papers, capsys, arguments, words
):
    import run

    with pytest.raises(SystemExit):
        run.parse(["miniature", *arguments])
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("script", ["run", "table"])
def test_a_wrong_table_is_told_near_ones_and_help_has_all(
    papers, capsys, script
):
    script = importlib.import_module(script)
    with pytest.raises(SystemExit):
        script.main(["tiny-resnet-50"])
    error = capsys.readouterr().err
    assert "near are tiny-resnet50, " in error
    assert "cifar10-vit" not in error
    with pytest.raises(SystemExit):
        script.main(["--help"])
    assert "cifar10-vit" in capsys.readouterr().out


def test_no_method_is_named_twice(papers):
    # The later one would be taken without a word.
    text = (papers / "methods.py").read_text()
    named = [
        node.value
        for node in ast.parse(text).body
        if isinstance(node, (ast.Assign, ast.AugAssign))
        and ast.unparse(node).startswith("METHODS")
        and isinstance(node.value, ast.Dict)
    ]
    names = [key.value for each in named for key in each.keys]
    assert len(names) > 50
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("key", ["settings", "probe", "machine", None])
def test_a_row_goes_on_where_it_is_the_same_row(key, driver, tmp_path, capsys):
    import unfinished

    path = tmp_path / "CE-0"
    unfinished.begin(path, "miniature", "CE")
    assert not capsys.readouterr().out  # nothing was left
    names = [
        *("CE-0.weights.h5", "CE-0.history.json", "CE-0-member1.logits.npz"),
        *("CE-0.npz", "CE-0-primary.weights.h5", "CE-01.weights.h5"),
    ]
    for name in names:
        (tmp_path / name).touch()
    marker = tmp_path / "CE-0.begun.json"
    known = json.loads(marker.read_text())
    if key == "probe":
        known["probe"][0] += 0.1
    elif key:
        known[key] = {"backend": "another"}
    marker.write_text(json.dumps(known))
    unfinished.begin(path, "miniature", "CE")
    left = {each.name for each in tmp_path.iterdir()}
    assert left == {*(names[3:] if key else names), marker.name}
    assert ("is of another row" in capsys.readouterr().out) == bool(key)
    unfinished.remove(path)
    assert {each.name for each in tmp_path.iterdir()} == {*names[3:]}


def test_a_row_that_cannot_be_stored_need_not_be_trained_again(
    call, driver, monkeypatch, capsys
):
    import one_row

    arguments = ["miniature", "--row", "CE", 0]

    def full(path, row):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(one_row, "append", full)
        with pytest.raises(OSError, match="no space"):
            call(*arguments)
    assert "epoch 1 " in capsys.readouterr().out
    call(*arguments)
    assert "epoch 1 " not in capsys.readouterr().out
    row = call.rows()["CE", 0]
    assert row["history"]["epoch"] == [1, 2, 3, 4]
    left = {path.name for path in (call.folder / "work/miniature").iterdir()}
    assert left == {"CE-0.lock", "CE-0.npz"}


def test_a_row_that_is_stored_while_others_are_measured_stays(
    call, driver, work, monkeypatch
):
    import stored_rows

    call("miniature", "--only", "CE", "FL")
    path = call.folder / "miniature.jsonl"
    rows = call.rows()
    newer = {**rows["FL", 0], "date": "later"}

    def results(*arguments):
        stored_rows.append(path, {**rows["CE", 0], "method": "LS"})
        stored_rows.append(path, newer)
        return {**rows["CE", 0], "new": 1}

    monkeypatch.setattr(work, "results", results)
    assert call("miniature", "--measure", "--only", "CE") == 0
    found = call.rows()
    assert set(found) == {("CE", 0), ("FL", 0), ("LS", 0)}
    assert found["CE", 0]["new"] == 1 and found["FL", 0]["date"] == "later"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["C", "--only", "SAM"], "C has CE, "),
        (["C", "--tune", "--only", "DML"], "Grids have LS, "),
    ],
)
def test_methods_that_a_table_has_not_are_refused(call, capsys, options, words):
    assert call(*options) == 2
    assert words in capsys.readouterr().err
    assert not list(call.folder.iterdir())


def test_rows_of_other_processes_stop_nobody(driver, monkeypatch, tmp_path):
    import processes

    codes = [processes.BUSY] * 4 + [0]

    def start(arguments, method, seed, begin):
        ended = types.SimpleNamespace(poll=lambda: 0, returncode=codes.pop(0))
        return ended, method

    monkeypatch.setattr(processes, "start", start)
    arguments = argparse.Namespace(
        jobs=1, seconds=None, work=tmp_path, table="miniature"
    )
    assert processes.run_all(arguments, [("CE", i) for i in range(5)]) == 1
    assert not codes


def test_a_loss_that_is_nowhere_is_named(work):
    with pytest.raises(ValueError, match="Received: 'Nowhere'"):
        work.build_loss({"class": "Nowhere"})
