"""Fine-tuned networks on corrupted images: the driver's lines and its page."""

import dataclasses
import functools
import json

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.examples.test_paper_protocols import images
from tests.examples.test_paper_protocols import small_state

KINDS, STEPS = ["fog", "contrast"], [1, 5]
TEMPERATURES = {"CE": 2.0, "LS": 0.8}
OTHER = "as published, ResNet-56"


@pytest.fixture
def shifted(work, tmp_path, monkeypatch):
    """The module, with two trained rows and few images and corruptions."""
    import shifted

    for seed, name in enumerate(("resnet20", "resnet56")):
        path = tmp_path / f"{name}_cifar10_weights.npz"
        np.savez(path, **small_state(seed))
    monkeypatch.setenv("KERAS_CALIB_DATA", str(tmp_path))
    parts = {"calibration": images(40, 1), "test": images(30, 2)}
    monkeypatch.setattr(shifted.data_sets, "load", lambda *_: parts)
    few = functools.partial(
        kc.shift.evaluate, corruptions=KINDS, severities=STEPS, batch_size=20
    )
    monkeypatch.setattr(shifted.kc.shift, "evaluate", few)
    protocol = work.protocols.PROTOCOLS["F"]
    (tmp_path / "work" / "F").mkdir(parents=True)
    for seed, (method, temperature) in enumerate(TEMPERATURES.items()):
        network = work.Task({}, protocol, {}, 0).network("published")
        kernel, bias = network.layers[-1].get_weights()
        network.layers[-1].set_weights([kernel, bias + seed])
        store(network, method, temperature, parts, tmp_path)
    return shifted


def store(network, method, temperature, parts, folder):
    """What the driver leaves of a finished row."""
    path = folder / "work" / "F" / f"{method}-0"
    network.save_weights(f"{path}-primary.weights.h5")
    logits = network.predict(parts["calibration"][0], verbose=0)
    np.savez(f"{path}.npz", calibration_logits=logits.astype("float16"))
    row = {"method": method, "seed": 0, "date": "today"}
    row["test_scaled"] = {"temperature": temperature}
    with open(folder / "F.jsonl", "a") as file:
        file.write(json.dumps(row) + "\n")


def call(shifted, folder, *options):
    import row_files
    import run

    command = ["F", "--shift", "--results", str(folder), *map(str, options)]
    assert run.main([*command, "--work", str(folder / "work")]) == 0
    return row_files.read_rows(folder / "F_shift.jsonl")


@pytest.mark.usefixtures("eager_functions")
def test_line_has_the_errors_of_the_whole_network(shifted, tmp_path):
    found = call(shifted, tmp_path, "--only", "CE", "--images", 25)["CE", 0]
    network = shifted.work.Task(
        {}, shifted.protocols.PROTOCOLS["F"], {}, 0
    ).network("published")
    output = network.output / TEMPERATURES["CE"]
    x, y = images(40, 1)
    logits = network.predict(x, verbose=0)
    soft = shifted.measures.fit_temperature(logits, y, "soft_binned_ece")
    assert found[shifted.TO_SB_ECE]["temperature"] == pytest.approx(soft)
    assert abs(soft - TEMPERATURES["CE"]) > 0.1
    models = {
        shifted.TRAINED: network,
        shifted.SCALED: keras.Model(network.input, output),
        shifted.TO_SB_ECE: keras.Model(network.input, network.output / soft),
    }
    x, y = images(30, 2)
    expected = kc.shift.evaluate(
        models, x[:25], y[:25], from_logits=True, verbose=0
    )
    assert found["temperature"] == TEMPERATURES["CE"]
    assert found["num_images"] == expected.num_images == 25
    for row in expected.rows:
        part = found[row["model"]]
        if row["corruption"] == "clean":
            values = part["clean"]
        else:
            step = STEPS.index(row["severity"])
            cells = part["cells"][row["corruption"]]
            values = {key: cells[key][step] for key in shifted.VALUES}
        for key in shifted.VALUES:
            assert values[key] == pytest.approx(row[key], abs=2e-4)
    for row in expected.means:
        part = found[row["model"]]
        values = part["mean"]
        if row["severity"] is not None:
            values = part["severities"][str(row["severity"])]
        elif row["corruption"] is not None:
            values = part["corruptions"][row["corruption"]]
        for key in (*shifted.VALUES, *shifted.ERRORS):
            assert values[key] == pytest.approx(row[key], abs=2e-4)


@pytest.mark.usefixtures("eager_functions")
def test_network_runs_once_for_all_temperatures(shifted, monkeypatch):
    network = shifted.work.Task(
        {}, shifted.protocols.PROTOCOLS["F"], {}, 0
    ).network("published")
    calls = []

    def predict(batch, predict=network.predict_on_batch):
        calls.append(len(batch))
        return predict(batch)

    monkeypatch.setattr(network, "predict_on_batch", predict)
    temperatures = {"as trained": 1.0, "after TS": 2.0, "other": 3.0}
    result = shifted.evaluate(network, temperatures, *images(30, 2))
    # Two batches of clean images and of each of the four cells.
    assert calls == [20] * 10
    assert len(result.rows) == 3 * 5


def test_stopped_run_goes_on_with_the_next_method(
    shifted, tmp_path, monkeypatch
):
    import row_files
    import stored_rows

    measured = []

    def measure(arguments, method, seed, row):
        """Stands for the measurement: the second one is interrupted."""
        measured.append(method)
        if len(measured) == 2:
            raise KeyboardInterrupt
        return {
            "method": method,
            "seed": seed,
            "num_images": arguments.images or 30,
            "date_of_training": row and row["date"],
            shifted.TO_SB_ECE: {},
        }

    monkeypatch.setattr(shifted, "measure_one", measure)
    with pytest.raises(KeyboardInterrupt):
        call(shifted, tmp_path, "--images", 20)
    assert len(call(shifted, tmp_path, "--images", 20)) == 3
    assert measured == ["CE", "LS", "LS", OTHER]
    call(shifted, tmp_path)
    assert len(measured) == 4  # nothing is left
    call(shifted, tmp_path, "--only", "LS", "--images", 25)
    assert measured[4:] == ["LS"]  # more images than before
    row = row_files.read_rows(tmp_path / "F.jsonl")["CE", 0]
    stored_rows.append(tmp_path / "F.jsonl", {**row, "date": "tomorrow"})
    call(shifted, tmp_path)
    assert measured[5:] == ["CE"]  # it was trained again
    line = row_files.read_rows(tmp_path / "F_shift.jsonl")["LS", 0]
    del line[shifted.TO_SB_ECE]
    stored_rows.append(tmp_path / "F_shift.jsonl", line)
    call(shifted, tmp_path)
    assert measured[6:] == ["LS"]  # a part was missing


def test_row_without_weights_is_named(shifted, tmp_path, capsys):
    (tmp_path / "work" / "F" / "LS-0-primary.weights.h5").unlink()
    assert call(shifted, tmp_path, "--only", "LS") == {}
    assert "LS, seed 0: no weights in " in capsys.readouterr().out


def test_weights_of_another_training_are_refused(shifted, tmp_path):
    folder = tmp_path / "work" / "F"
    (folder / "LS-0.npz").replace(folder / "CE-0.npz")
    with pytest.raises(ValueError, match="of CE, seed 0, give other logits"):
        call(shifted, tmp_path, "--only", "CE")


def test_only_tables_with_weights_can_be_measured(papers, capsys):
    import run

    with pytest.raises(SystemExit):
        run.main(["S", "--shift"])
    assert "only where a network is fine-tuned" in capsys.readouterr().err


@pytest.mark.usefixtures("eager_functions")
def test_published_network_has_a_fitted_temperature(
    shifted, tmp_path, monkeypatch
):
    protocol = dataclasses.replace(
        shifted.protocols.PROTOCOLS["F"],
        weights="resnet56_cifar10_weights.npz",
    )
    network = shifted.work.Task({}, protocol, {}, 0).network("published")
    x, _ = images(40, 1)
    logits = network.predict(x, verbose=0)
    # Labels that are drawn from the probabilities at a temperature of 2.
    noise = np.random.default_rng(0).gumbel(size=logits.shape)
    y = (logits / 2 + noise).argmax(-1)
    parts = {"calibration": (x, y), "test": images(30, 2)}
    monkeypatch.setattr(shifted.data_sets, "load", lambda *_: parts)
    found = call(shifted, tmp_path, "--only", OTHER)[OTHER, 0]
    expected = shifted.measures.fit_temperature(logits, y)
    assert 1.1 < expected < 4
    assert found["temperature"] == pytest.approx(expected, rel=1e-3)
    assert found["date_of_training"] is None


def line(method, number, ece):
    """A stored line with the same errors at all severities and kinds."""

    def part(ece):
        value = {"accuracy": 0.75, "ece": ece, "ece_floor": 0.01, "nll": 0.5}
        value |= {"accuracy_se": 0.01, "ece_se": 0.002, "nll_se": 0.02}
        cells = {key: [value[key], 2 * value[key]] for key in ("ece", "nll")}
        return {
            "clean": {**value, "ece": ece / 2},
            "mean": value,
            "severities": {"1": value, "2": {**value, "ece": 2 * ece}},
            "corruptions": {"fog": value},
            "cells": {"fog": cells},
        }

    return {
        "method": method,
        "seed": number,
        "temperature": 2.0,
        "num_images": 500,
        "num_bins": 15,
        "corruption_seed": 0,
        "as trained": part(ece),
        "after TS": part(ece / 4),
        "machine": {"device": "a", "backend": "b", "keras": "c"},
        "date": "today",
    }


def test_page_shows_what_the_lines_say(papers, tmp_path, capsys):
    import table

    names = ("CE", "LS", "FL", "MbLS", "ACLS")
    rows = [line("CE", 1, 0.3), line(OTHER, 0, 0.4)]
    rows += [line(name, 0, 0.2) for name in names]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "F_shift.jsonl").write_text(text)
    command = ["F", "--shift", "--results", str(tmp_path)]
    table.main([*command, "--figures", str(tmp_path / "figures")])
    printed = capsys.readouterr().out
    # Means of two seeds; clean images, severities 1 and 2, mean and floor.
    expected = "| 12.50 | 25.00 | 50.00 | 25.00 ± 0.20 | 1.00 |"
    assert f"| CE | 2 | 1.00 {expected}" in printed
    expected = "| 5.00 | 10.00 | 20.00 | 10.00 ± 0.20 | 1.00 |"
    assert f"| {OTHER} + TS | 1 | 2.00 {expected}" in printed
    assert "| FL + TS | 1 | 2.00 | 0.500 | 0.500 | 0.500 | 0.500 ±" in printed
    assert "| fog | 25.0 | 20.0 | 20.0 | 20.0 | 20.0 | 40.0 |" in printed
    assert "first 500 test images from row 5,000 on" in printed
    # Of the figures, the one whose methods are all there.
    drawn = [path.name for path in (tmp_path / "figures").iterdir()]
    assert drawn == ["F_shift_as_trained.png"]
    assert printed.count("../figures/") == 1


def test_page_has_the_second_temperature_of_lines_that_have_it(
    papers, tmp_path, capsys
):
    import table

    rows = [line("CE", seed, 0.3) for seed in (0, 1)] + [line("FL", 0, 0.2)]
    soft = line("CE", 0, 0.04)["as trained"]
    rows[0]["after TS-SB-ECE"] = {**soft, "temperature": 3.0}
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "F_shift.jsonl").write_text(text)
    folder = tmp_path / "figures"
    command = ["F", "--shift", "--results", str(tmp_path)]
    table.main([*command, "--figures", str(folder)])
    printed = capsys.readouterr().out
    first = "| CE | 2 | 30.00 (1.00) | 7.50 (1.00) | 4.00 (1.00), 1 seed |"
    assert first in printed
    assert "| FL | 1 | 20.00 (1.00) | 5.00 (1.00) | - |" in printed
    expected = "| 2.00 | 4.00 | 8.00 | 4.00 ± 0.20 | 1.00 |"
    assert f"| CE + TS-SB-ECE | 1 | 3.00 {expected}" in printed
    assert "FL + TS-SB-ECE" not in printed
    assert "## ECE by corruption, after TS-SB-ECE, %" in printed
    assert [path.name for path in folder.iterdir()] == [
        "F_shift_temperatures.png"
    ]
    assert (
        "Here it is not so: as trained they have, in percent, FL 20.00; "
        in (printed)
    )


def test_figures_show_the_mean_over_seeds(papers):
    import shift_page

    parts = [line("CE", 0, ece)["as trained"] for ece in (0.2, 0.4)]
    clean, first, second = shift_page.cells("CE", parts)
    assert clean["ece"] == pytest.approx(0.15)
    assert first["ece"] == pytest.approx(0.3) and first["severity"] == 1
    assert second["ece"] == pytest.approx(0.6)


@pytest.mark.usefixtures("eager_functions")
def test_as_published_needs_no_weights_of_a_training(shifted, tmp_path):
    import stored_rows

    x, y = images(40, 1)
    protocol = shifted.protocols.PROTOCOLS["F"]
    network = shifted.work.Task({}, protocol, {}, 0).network("published")
    fitted = shifted.measures.fit_temperature(network.predict(x, verbose=0), y)
    row = {"method": "as published", "seed": 0, "date": "today"}
    row["test_scaled"] = {"temperature": fitted}
    stored_rows.append(tmp_path / "F.jsonl", row)
    options = ("--only", "as published", "--images", 20)
    found = call(shifted, tmp_path, *options)["as published", 0]
    assert found["temperature"] == fitted
    assert {*shifted.evaluate(network, {"a": 1.0}, x, y).rows[0]} >= {"ece"}
    assert found[shifted.TO_SB_ECE]["temperature"] > 0
    # A row of other weights is refused.
    row["test_scaled"] = {"temperature": 1.1 * fitted}
    row["date"] = "tomorrow"
    stored_rows.append(tmp_path / "F.jsonl", row)
    with pytest.raises(ValueError, match="The published weights have the"):
        call(shifted, tmp_path, *options)


def test_page_without_lines_tells_the_command(papers, tmp_path):
    import table

    with pytest.raises(SystemExit, match=r"run\.py F --shift"):
        table.main(["F", "--shift", "--results", str(tmp_path)])


def test_a_table_without_weights_has_no_page_of_corruptions(papers):
    import table

    with pytest.raises(SystemExit, match="only where a network is fine-tuned"):
        table.main(["S", "--shift"])
