"""What the driver does around the training of a row, and says of it."""
# ruff: noqa: F401, F811 (fixtures of another file)

import argparse
import dataclasses
import json
import types

import numpy as np
import pytest

from tests.examples.test_paper_driver import call
from tests.examples.test_paper_driver import driver

pytestmark = pytest.mark.usefixtures("eager_functions")
CE = ["miniature", "--only", "CE"]


@pytest.fixture
def places(tmp_path):
    return ["--results", str(tmp_path), "--work", str(tmp_path / "work")]


@pytest.fixture(autouse=True)
def unchanged_files(driver, monkeypatch):
    """Nothing is said of files that differ while somebody works on them."""
    import processes

    monkeypatch.setattr(processes, "files_differ", lambda: False)


@pytest.fixture
def no_training(work, driver, monkeypatch):
    def run(*arguments):
        raise AssertionError("a row was trained")

    monkeypatch.setattr(work, "run", run)


def ended(*codes):
    """A stand-in of `processes.start`, whose processes end with these codes."""
    import processes

    codes = list(codes)

    def start(arguments, method, seed, begin):
        code = codes.pop(0)
        found = types.SimpleNamespace(
            poll=lambda: code, wait=lambda: code, returncode=code
        )
        return found, f"{method}, seed {seed}"

    return start


def test_a_commit_is_none_where_there_is_no_git(driver, monkeypatch, tmp_path):
    import stored_rows

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SOURCE_COMMIT", raising=False)
    assert stored_rows.commit() is None
    assert stored_rows.provenance()["commit"] is None


def test_results_that_cannot_be_written_are_refused_before_training(
    no_training, driver, capsys, tmp_path
):
    import stored_rows

    file = tmp_path / "file"
    file.touch()
    impossible = ["--results", str(file / "a"), "--work", str(tmp_path / "w")]
    assert driver.main([*CE, *impossible]) == 2
    assert "Nothing can be stored: " in capsys.readouterr().err
    with pytest.raises(OSError):
        driver.main([*CE, "--row", "CE", "0", *impossible])
    # To ask leaves nothing behind, and an existing file as it is.
    rows = tmp_path / "new" / "rows.jsonl"
    stored_rows.require_writable(rows)
    assert not list(rows.parent.iterdir())
    rows.write_text("{}\n")
    stored_rows.require_writable(rows)
    assert rows.read_text() == "{}\n"


def test_a_row_that_another_driver_stored_is_not_trained_again(
    call, driver, capsys, monkeypatch
):
    import one_row
    import stored_rows

    append, alone = stored_rows.append, []

    def in_the_lock(path, row):
        with pytest.raises(SystemExit), one_row.alone(lock):
            pass
        alone.append(path.name)
        append(path, row)

    lock = call.folder / "work" / "miniature" / "CE-0.lock"
    monkeypatch.setattr(one_row, "append", in_the_lock)
    assert call("miniature", "--row", "CE", 0) == 0
    text = (call.folder / "miniature.jsonl").read_text()
    capsys.readouterr()
    assert call("miniature", "--row", "CE", 0) == 0
    assert "already stored" in capsys.readouterr().out
    assert (call.folder / "miniature.jsonl").read_text() == text
    # Unless another run of it is wanted.
    assert call("miniature", "--row", "CE", 0, "--history", 2) == 0
    assert len(alone) == 2


def test_what_is_not_stored_is_not_called_done(
    call, driver, capsys, monkeypatch
):
    import processes

    codes = (0, processes.STOPPED, processes.DIVERGED)
    monkeypatch.setattr(processes, "start", ended(*codes))
    assert call("miniature", "--only", "CE", "LS", "FL") == 0
    printed = capsys.readouterr().out
    assert printed.count(": done, ") == 1
    assert "stopped, goes on at the next call" in printed
    assert "diverged, see miniature-diverged.jsonl" in printed
    assert printed.endswith("time is over, 1 rows left\n")


def test_rows_that_diverged_earlier_are_counted(
    work, driver, capsys, monkeypatch, places
):
    def diverge(*_):
        raise FloatingPointError("Logits are not finite.")

    monkeypatch.setattr(work, "run", diverge)
    assert driver.main([*CE, *places]) == 0
    assert "earlier" not in capsys.readouterr().out
    assert driver.main([*CE, *places]) == 0
    printed = capsys.readouterr().out
    assert "1 rows diverged earlier and are not run again" in printed


def test_a_paper_s_tables_without_data_are_named_before_training(
    driver, work, capsys, monkeypatch, places
):
    import of_a_paper

    def load(protocol, cache):
        if protocol.data == "tiny_imagenet":
            raise FileNotFoundError("tiny_imagenet was not found in any folder")
        return dict.fromkeys(("train", "held_out", "test"), (lambda: 0, None))

    monkeypatch.setattr(work.data_sets, "load", load)
    ran = []
    monkeypatch.setattr(
        driver, "run_table", lambda each: ran.append(each.table) or 0
    )
    size = ["--paper", "mbls", "--size", "gpu"]
    assert driver.main([*size, *places]) == 1
    assert ran == [
        *("cifar10-resnet50", "cifar10-resnet101", "cub-resnet101"),
        "cifar10-vit",
    ]
    printed = capsys.readouterr().out
    assert "tiny-resnet50: skipped, tiny_imagenet was not found in" in printed
    rows = len(of_a_paper.tables_of("mbls", "gpu")["cifar10-vit"]) * 3
    assert f"cifar10-vit: {rows} rows to run, {200 * rows} epochs" in printed
    # The page with what is there ends it.
    assert "| MbLS | " in printed.rpartition("epochs")[2]


def test_data_that_are_not_there_start_no_process(
    driver, work, capsys, monkeypatch, places
):
    import processes

    def load(protocol, cache):
        raise FileNotFoundError(
            "cifar10 was not found; allow a download with `download=True`."
        )

    monkeypatch.setattr(work.data_sets, "load", load)
    monkeypatch.setattr(processes, "start", None)
    assert driver.main([*CE, *places]) == 2
    error = capsys.readouterr().err
    assert error.startswith("miniature: cifar10 was not found; ")
    assert "allow a download with `--download`." in error


def test_a_weights_file_that_is_not_there_is_named(work, monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_CALIB_DATA", str(tmp_path))
    protocol = work.protocols.PROTOCOLS["F"]
    found = work.data_sets.absent(protocol, tmp_path)
    assert found == f"there is no {tmp_path / protocol.weights}"


def test_a_failed_row_s_log_and_its_last_line_are_printed(
    driver, capsys, monkeypatch, tmp_path
):
    import places
    import processes

    monkeypatch.setattr(processes, "start", ended(1))
    arguments = argparse.Namespace(
        jobs=1, seconds=None, work=tmp_path, table="miniature"
    )
    log = places.log_of(arguments, "MbLS", 0)
    log.write_text("Traceback\nValueError: Use `download=True`  to read.\n\n")
    assert processes.run_all(arguments, [("MbLS", 0)]) == 1
    printed = capsys.readouterr().out
    assert printed.endswith(f"{log}: ValueError: Use `--download` to read.\n")


def test_methods_that_a_table_has_not_are_named(call, capsys):
    assert call("miniature", "--only", "CE", "as published") == 0
    error = capsys.readouterr().err
    assert error.endswith("Not among them: as published.\n")
    assert set(call.rows()) == {("CE", 0)}
    assert call("miniature", "--measure", "--only", "CE", "LS") == 0
    error = capsys.readouterr().err
    assert error == "miniature.jsonl has CE. Not among them: LS.\n"
    assert call("miniature", "--measure", "--only", "LS") == 2
    assert call("F", "--shift", "--only", "LS") == 2
    error = capsys.readouterr().err
    assert "F has rows of as published, ResNet-56. Not among them: LS." in error


@pytest.mark.parametrize(
    ("after", "seeds", "word"),
    [
        (0.602, {"CE": [0.6]}, "agrees"),
        (0.61, {"CE": [0.6]}, "too few seeds to tell on another machine"),
        # Deviations of the other methods' seeds: 0.0007 and 0.014.
        (0.61, {"CE": [0.6], "LS": [0.6, 0.601]}, "DIFFERS"),
        (0.61, {"CE": [0.6], "LS": [0.6, 0.62]}, "agrees"),
        (0.66, {"CE": [0.6], "LS": [0.6, 0.62]}, "DIFFERS"),
        (0.61, {"CE": [0.6, 0.6, 0.62], "LS": [0.6, 0.601]}, "agrees"),
    ],
)
def test_a_check_elsewhere_borrows_the_spread_of_a_table(
    driver, monkeypatch, capsys, places, tmp_path, after, seeds, word
):
    import processes
    import stored_rows

    def row(method, seed, accuracy, processor):
        return {
            "method": method,
            "seed": seed,
            "test": {"accuracy": accuracy, "ece": accuracy},
            "machine": {"processor": processor},
            "threads": "1",
        }

    for method, values in seeds.items():
        for seed, value in enumerate(values):
            stored = row(method, seed, value, "one")
            stored_rows.append(tmp_path / "miniature.jsonl", stored)

    def start(arguments, method, seed, begin):
        found = row(method, seed, after, "another")
        stored_rows.append(arguments.results / "miniature.jsonl", found)
        return ended(0)(arguments, method, seed, begin)

    monkeypatch.setattr(processes, "start", start)
    status = driver.main(["--check", "miniature/CE/0", *places])
    assert status == (word != "agrees")
    assert capsys.readouterr().out.count(f": {word}\n") == 2


def test_a_finer_history_is_run_and_what_has_none_is_not(
    driver, work, capsys, places, tmp_path
):
    import missing
    import stored_rows

    def row(method, *errors):
        return {
            **driver_row(work, method),
            "history": {"epoch": [1, 2, 3, 4], "val_ece": [*errors]},
        }

    path = tmp_path / "miniature.jsonl"
    stored_rows.append(path, row("CE", None, 0.1, None, 0.1))
    stored_rows.append(path, driver_row(work, "ensemble of 3"))

    def rows(every):
        only = ["CE", "ensemble of 3"]
        options = ["miniature", "--only", *only, "--history", str(every)]
        return missing.missing_rows(driver.parse([*options, *places]))

    # The last epoch is measured for any number.
    assert [rows(each) for each in (2, 4, 9)] == [[]] * 3
    assert rows(1) == rows(3) == [("CE", 0)]
    # The finer one stands in its place, and is not replaced by a coarser.
    stored_rows.append(path, row("CE", 0.3, 0.1, 0.2, 0.1))
    assert rows(1) == rows(3) == []
    stored_rows.append(path, row("CE", None, None, None, 0.1))
    assert rows(1) == []
    options = ["--only", "ensemble of 3", "--history", "1", *places]
    assert driver.main(["miniature", *options]) == 2
    assert "between the epochs of ensemble of 3." in capsys.readouterr().err
    assert driver.main(["cub-resnet101", "--history", "1", *places]) == 2
    assert "between the epochs of CE, " in capsys.readouterr().err


def driver_row(work, method):
    """A stored row as far as the driver asks for it."""
    import probes

    return {
        "method": method,
        "seed": 0,
        "settings": json.loads(json.dumps(work.settings("miniature", method))),
        "probe": probes.loss_probe(work.methods.METHODS[method]),
        "maps": {},
        "test": {"accuracy": 0.5, "nll": 1.0, "ece": 0.1},
        "machine": {"backend": "another"},
    }


def test_seconds_of_a_run_that_was_stopped_add_up(
    work, driver, tmp_path, monkeypatch
):
    # Each look at the clock is a second.
    ticks = iter(range(10**6))
    clock = types.SimpleNamespace(time=lambda: float(next(ticks)))
    monkeypatch.setattr(work.training, "time", clock)
    monkeypatch.setattr(work, "time", clock)
    protocol = work.protocols.PROTOCOLS["miniature"]
    whole = work.run("miniature", "CE", 0, tmp_path / "whole", tmp_path)
    assert whole["epoch_seconds"] == 1
    protocol = dataclasses.replace(protocol, epochs=6)
    monkeypatch.setitem(work.protocols.PROTOCOLS, "miniature", protocol)
    arguments = ("miniature", "CE", 0, tmp_path / "parts", tmp_path)
    spent = 0
    for _ in range(3):
        assert work.run(*arguments, 1.0) is None
        file = tmp_path / "parts.seconds.json"
        now = json.loads(file.read_text())["all"]
        assert now > spent
        spent = now
    # An ensemble's members are part of its row.
    (tmp_path / "parts-member1.seconds.json").write_text('{"all": 1000.0}')
    (tmp_path / "parts-10.seconds.json").write_text('{"all": 5000.0}')
    row = work.run(*arguments)
    assert 1000 + spent < row["seconds"] < 1100 + spent
    # Two of three epochs of the last piece; the first ones compile.
    seconds = json.loads(file.read_text())
    assert seconds["of_epochs"] == [1.0, 1.0]


def test_rows_without_probes_are_counted(driver, work, places, tmp_path):
    import missing
    import stored_rows

    path = tmp_path / "miniature.jsonl"
    arguments = driver.parse([*CE, "LS", *places])
    assert missing.without_probes(arguments) == ""
    stored_rows.append(path, driver_row(work, "LS"))
    stored_rows.append(path, {**driver_row(work, "CE"), "network": [1.0]})
    assert missing.without_probes(arguments) == (
        "Of 2 stored rows, 1 have no probe of their network and 2 have no "
        "probe of their training: a change there is not noticed."
    )


@pytest.mark.parametrize("method", ["AvUC", "CRL"])
def test_a_gradient_that_changed_alone_is_noticed(
    driver, work, monkeypatch, method
):
    import keras
    import missing
    import probes

    import keras_calib as kc

    row = driver_row(work, method)
    row["gradient"] = probes.gradient_probe(work.methods.METHODS[method])
    assert np.isfinite(row["gradient"]).all()
    assert missing.changed("miniature", method, row) is None
    kind = getattr(kc.losses, method)
    penalty = kind.penalty

    def constant(self, *arguments, **options):
        return keras.ops.stop_gradient(penalty(self, *arguments, **options))

    monkeypatch.setattr(kind, "penalty", constant)
    probes._sums_of_gradient.cache_clear()
    found = missing.changed("miniature", method, row)
    assert found == "its loss has another gradient now"
    probes._sums_of_gradient.cache_clear()
    # Rows of before have none.
    del row["gradient"]
    assert missing.changed("miniature", method, row) is None


def test_new_rows_have_numbers_of_the_gradient(call, work):
    import probes

    call(*CE)
    (row,) = call.rows().values()
    expected = probes.gradient_probe(work.methods.METHODS["CE"])
    assert row["gradient"] == expected and len(expected) == 6
