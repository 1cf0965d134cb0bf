"""`keras-calib`: its commands, and what it says of bad input."""

import io
import json
import pathlib
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib._documents import to_json
from keras_calib.command_line import main
from keras_calib.command_line._files import read
from keras_calib.solvers import memory
from tests.command_line.helpers import run
from tests.command_line.helpers import sample
from tests.helpers import small_network

NAMES = ["cat", "great_dog", "owl"]


def table(path, *, head, rows):
    lines = [",".join(head), *(",".join(map(str, row)) for row in rows)]
    pathlib.Path(path).write_text("\n".join(lines) + "\n")


def test_evaluate_prints_the_errors_of_every_file(folder, capsys):
    status, out, _ = run(capsys, "evaluate", "a.npz", "b.npz")
    assert status == 0
    labels, p = sample()
    q = p**0.5 / (p**0.5).sum(1, keepdims=True)
    for metric, title in (
        ("expected_calibration_error", "Expected calibration error"),
        ("negative_log_likelihood", "Negative log likelihood"),
    ):
        values = [
            kc.metrics.calibration_errors(labels, each, metrics=[metric])
            for each in (p, q)
        ]
        [line] = [x for x in out.splitlines() if x.startswith(f"| {title} |")]
        cells = line.split(" | ")
        assert [cells[1], cells[3]] == [f"{v[metric]:.4f}" for v in values]


def test_what_is_wrong_with_values_is_said_of_their_file(folder, capsys):
    labels, p = sample()
    names = np.array(["a", "b", "c"])
    np.savez("text.npz", labels=names[labels], probabilities=p)
    np.savez("void.npz", labels=labels + 9, probabilities=p)
    np.savez("unsure.npz", labels=labels, predictions=p)
    for arguments, message in (
        (["a.npz", "text.npz"], "error: text.npz: Labels must be numbers"),
        (["a.npz", "void.npz"], "Pass `--ignore-class` for a void label"),
        (["--from-logits", "unsure.npz"], "pass `--no-from-logits`"),
    ):
        status, _, error = run(capsys, "evaluate", *arguments)
        assert status == 2
        assert message in error
        assert f"error: {arguments[1]}: " in error


def test_json_is_all_that_stands_on_standard_output(folder, capsys):
    _, out, _ = run(capsys, "evaluate", "a.npz", "--json")
    found = json.loads(out)["a"]
    labels, p = sample()
    errors = kc.metrics.calibration_errors(labels, p, floor=True)
    assert found == {"num_rows": 400, **errors}


def test_a_table_is_read_as_an_archive_is(folder, capsys):
    labels, p = sample()
    head = ["label", *(f"probabilities_{name}" for name in NAMES)]
    rows = [(NAMES[y], *row) for y, row in zip(labels, p, strict=True)]
    table("c.csv", head=head, rows=rows)
    head = [*(f"probability_{k}" for k in (2, 0, 1)), "ground_truth"]
    rows = [(*row[[2, 0, 1]], y) for y, row in zip(labels, p, strict=True)]
    table("d.csv", head=head, rows=rows)
    _, out, _ = run(capsys, "evaluate", "a.npz", "c.csv", "d.csv", "--json")
    found = json.loads(out)
    assert found["a"] == found["c"] == found["d"]


def test_parquet(folder, capsys):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    labels, p = sample()
    columns = {f"probabilities_{k}": p[:, k] for k in range(3)}
    parquet.write_table(
        pyarrow.table({"labels": labels, **columns}), "e.parquet"
    )
    _, out, _ = run(capsys, "evaluate", "a.npz", "e.parquet", "--json")
    found = json.loads(out)
    assert found["a"] == found["e"]


def test_a_missing_category_is_not_another_one(folder, capsys):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    classes = pyarrow.array(["0", "1", None]).dictionary_encode()
    columns = {"label": classes, "logit_0": [1.0] * 3, "logit_1": [2.0] * 3}
    parquet.write_table(pyarrow.table(columns), "e.parquet")
    status, _, err = run(capsys, "evaluate", "e.parquet")
    assert status == 2 and "a label of nan in row 2" in err


@pytest.mark.parametrize("other", ["order", "kind"])
def test_a_map_of_scores_takes_no_others(folder, capsys, other):
    y, p = sample()
    y, p = y[:200] % 3, p[:200]
    z = np.log(p)
    files = {
        "fitted.csv": ("logit", z, [0, 1, 2]),
        "order.csv": ("logit", z, [2, 0, 1]),
        "kind.csv": ("probability", p, [0, 1, 2]),
    }
    for name, (kind, scores, order) in files.items():
        table(
            name,
            head=[*(f"{kind}_{NAMES[k]}" for k in order), "label"],
            rows=[
                (*row[order], NAMES[k])
                for k, row in zip(y, scores, strict=True)
            ],
        )
    made = "calibrate", "fitted.csv", "-o", "map.keras", "--method", "vector"
    assert run(capsys, *made)[0] == 0
    status, shown, _ = run(capsys, "evaluate", "map.keras", "fitted.csv")
    assert status == 0 and "map" in shown
    status, _, err = run(capsys, "evaluate", "map.keras", f"{other}.csv")
    assert status == 2 and "was fitted to scores" in err
    report = "report", "map.keras", f"{other}.csv", "-o", "report.md"
    assert run(capsys, *report)[0] == 2


def test_every_map_of_a_report_takes_the_scores(folder, capsys):
    y, p = sample()
    y, z = y % 3, np.log(p)
    x = np.zeros_like(z)
    np.savez("p.npz", probabilities=p, labels=y)
    np.savez("z.npz", logits=z, labels=y, x=x)
    for name in ("p", "z"):
        made = "calibrate", f"{name}.npz", "-o", f"of_{name}.keras"
        assert run(capsys, *made)[0] == 0
    report = "report", "of_z.keras", "of_p.keras", "z.npz", "-o", "r.json"
    status, _, err = run(capsys, *report)
    assert status == 2 and "was fitted to scores" in err
    # A map of scores is not given the inputs beside them; a network is.
    inputs = keras.Input((3,))
    network = keras.Model(inputs, keras.layers.Softmax()(inputs))
    network.save("network.keras")
    found = {}
    for name in ("of_z", "network"):
        command = "evaluate", f"{name}.keras", "z.npz", "--json"
        status, out, _ = run(capsys, *command)
        found |= json.loads(out)
    assert found["network"]["mean_entropy"] == pytest.approx(np.log(3))
    record = kc.calibration_record(keras.saving.load_model("of_z.keras"))
    nll = found["of_z"]["negative_log_likelihood"]
    assert nll == pytest.approx(record["nll_after"], rel=1e-5)
    report = "report", "of_z.keras", "network.keras", "z.npz", "-o", "r.json"
    status, _, err = run(capsys, *report)
    assert status == 2 and "`evaluate` measures both" in err


def test_labels_may_be_true_and_false(folder, capsys):
    p = np.random.default_rng(0).dirichlet([1, 1], 60)
    y = np.random.default_rng(1).random(60) < p[:, 1]
    found = []
    for labels in (y, y.astype(int)):
        np.savez("p.npz", probabilities=p, labels=labels)
        found.append(run(capsys, "evaluate", "p.npz", "--json"))
    assert found[0][0] == 0 and found[0][1] == found[1][1]


@pytest.mark.parametrize(
    "write", [str, lambda each: str(each).upper(), lambda each: f" {each} "]
)
def test_labels_of_a_table_may_be_true_and_false(write, tmp_path):
    path = tmp_path / "p.csv"
    labels = [True, False, True]
    rows = [(write(each), 0.4, 0.6) for each in labels] + [("", 0.5, 0.5)]
    table(path, head=["label", "probability_0", "probability_1"], rows=rows)
    assert read(path).labels.tolist() == [1, 0, 1, -1]
    # Classes of these names come first.
    head = ["label", "probability_true", "probability_false"]
    table(path, head=head, rows=[("true", 0.4, 0.6), ("false", 0.5, 0.5)])
    assert read(path).labels.tolist() == [0, 1]


def test_a_column_of_parquet_may_be_true_and_false(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {
        "probability_0": [0.4, 0.2, 0.5],
        "probability_1": [0.6, 0.8, 0.5],
    }
    path = tmp_path / "p.parquet"
    for labels, ids in (
        ([True, False, True], [1, 0, 1]),
        ([True, None, False], [1, -1, 0]),
    ):
        parquet.write_table(pyarrow.table({"labels": labels, **columns}), path)
        assert read(path).labels.tolist() == ids


@pytest.mark.parametrize("labels", ["names", "numbers"])
def test_tables_may_have_their_classes_in_another_order(folder, capsys, labels):
    y, p = sample()
    y[0] = 255
    for name, order in (("c.csv", [0, 1, 2]), ("d.csv", [2, 0, 1])):
        head = [*(f"probability_{NAMES[k]}" for k in order), "label"]
        own = [NAMES[k] for k in order]
        table(
            name,
            head=head,
            rows=[
                (
                    *row[order],
                    (own.index(NAMES[k]) if labels == "numbers" else NAMES[k])
                    if k < 3
                    else k,
                )
                for k, row in list(zip(y, p, strict=True))[labels == "names" :]
            ],
        )
    status, _, err = run(
        capsys, "report", "c.csv", "d.csv", "-o", "r.json", "--ignore-class=255"
    )
    assert (status, err) == (0, "")
    found = json.loads(pathlib.Path("r.json").read_text())["models"]
    one, other = found.values() if isinstance(found, dict) else found
    for each in one, other:
        each.pop("name", None)
    assert one == other


def test_a_column_of_class_1_alone_is_that_of_one_unit(folder):
    table("one.csv", head=["y", "logits_1"], rows=[(1, 0.7), (0, -2.0)])
    found = read(pathlib.Path("one.csv"))
    assert found.scores.tolist() == [[0.7], [-2.0]]
    assert found.labels.tolist() == [1, 0]
    assert found.from_logits


def test_one_column_is_the_probability_of_the_positive_class(folder, capsys):
    rng = np.random.default_rng(1)
    p = rng.random(300)
    y = (rng.random(300) < p).astype(int)
    table("one.csv", head=["y", "prediction"], rows=zip(y, p, strict=True))
    _, out, _ = run(capsys, "evaluate", "one.csv", "--json")
    errors = kc.metrics.calibration_errors(y, p)
    assert json.loads(out)["one"]["brier_score"] == errors["brier_score"]


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_predictions_are_told_by_their_values(folder, capsys, kind):
    labels, p = sample()
    given = np.log(p) if kind == "logits" else p
    np.savez("p.npz", predictions=given, labels=labels)
    _, out, _ = run(capsys, "evaluate", "p.npz", "--json")
    errors = kc.metrics.calibration_errors(labels, p)
    found = json.loads(out)["p"]["negative_log_likelihood"]
    assert found == pytest.approx(errors["negative_log_likelihood"], rel=1e-6)


@pytest.mark.parametrize("label", ["", "nan", "b"])
def test_cells_of_a_row_of_weight_0_may_be_empty(folder, capsys, label):
    rows = ["0,0.9,0.1,1", "1,0.3,0.7,2", "0,0.4,0.6,1"]
    found = []
    for kind in ("probability", "prediction"):
        for more in ([], [f"{label},,0.2,0"], [f"{label},,,0"]):
            head = f"label,{kind}_0,{kind}_1,sample_weight"
            if label == "b":
                head = head.replace("_0", "_a").replace("_1", "_b")
            content = "\n".join([head, *rows, *more])
            if label == "b":
                for old, new in (("\n0,", "\na,"), ("\n1,", "\nb,")):
                    content = content.replace(old, new)
            arguments = text("n.csv", content)
            found.append(run(capsys, *arguments, "--json"))
    assert [status for status, *_ in found] == [0] * 6
    values = [json.loads(out)["n"] for _, out, _ in found]
    nll = [each["negative_log_likelihood"] for each in values]
    assert nll == pytest.approx([nll[0]] * 6)


def test_an_option_says_what_predictions_are(folder, capsys):
    scores = np.array([0.1, 0.7, 0.6])  # of one unit, by either name
    arguments = archive("n.npz", predictions=scores, labels=[0, 1, 0])
    as_p, as_logits = (
        json.loads(run(capsys, *arguments, "--json", option)[1])["n"]
        for option in ("--no-from-logits", "--from-logits")
    )
    nll = "negative_log_likelihood"
    assert as_p[nll] == pytest.approx(-np.log([0.9, 0.7, 0.4]).mean())
    expected = np.log1p(np.exp([0.1, -0.7, 0.6])).mean()
    assert as_logits[nll] == pytest.approx(expected)


def test_a_class_that_is_ruled_out_says_logits(folder, capsys):
    head = "predictions_0,predictions_1,predictions_2,labels\n"
    rows = "1.0,-inf,2,0\n3.0,0.5,-inf,1\n"
    status, out, _ = run(capsys, *text("n.csv", head + rows), "--json")
    nll = json.loads(out)["n"]["negative_log_likelihood"]
    expected = np.mean([np.log1p(np.exp(1.0)), np.log1p(np.exp(2.5))])
    assert status == 0 and nll == pytest.approx(expected)


def test_weights_and_void_labels_count(folder, capsys):
    labels, p = sample()
    weights = np.linspace(0.1, 2.0, len(labels))
    labels = np.where(np.arange(len(labels)) % 5, labels, 255)
    np.savez("w.npz", probabilities=p, labels=labels, sample_weight=weights)
    _, out, _ = run(
        capsys, "evaluate", "w.npz", "--json", "--ignore-class", "255"
    )
    errors = kc.metrics.calibration_errors(
        labels, p, weights, ignore_class=255, metrics=["accuracy"]
    )
    found = json.loads(out)["w"]
    assert found["num_rows"] == 320
    assert found["accuracy"] == pytest.approx(errors["accuracy"], rel=1e-12)


def test_report_compares_logits_with_probabilities(folder, capsys):
    status, out, _ = run(capsys, "report", "a.npz", "b.npz", "-o", "r.json")
    found = json.loads(pathlib.Path("r.json").read_text())
    assert status == 0
    assert [each["name"] for each in found["models"]] == ["a", "b"]
    assert "Overconfident" in found["models"][0]["verdict"][0]
    assert "No miscalibration" in found["models"][1]["verdict"][0]
    assert out.splitlines()[-1] == "Written: r.json"


def test_report_of_logits_keeps_them(folder, capsys):
    labels, p = sample()
    # As probabilities they would be 0 of some labels, in float32.
    z = 60 * np.log(p).astype("float32")
    np.savez("z.npz", logits=z, labels=labels)
    run(capsys, "report", "z.npz", "-o", "z.json")
    [found] = json.loads(pathlib.Path("z.json").read_text())["models"]
    errors = kc.metrics.calibration_errors(labels, z, from_logits=True)
    key = "negative_log_likelihood"
    assert found["metrics"][key]["value"] == pytest.approx(errors[key])
    assert found["temperature"]["value"] > 60


@pytest.mark.parametrize("what", ["sample_weight", "groups"])
def test_report_of_other_rows_is_refused(folder, capsys, what):
    labels, p = sample()
    arrays = {"probabilities": p, "labels": labels}
    np.savez("one.npz", **arrays)
    np.savez("two.npz", **arrays, **{what: np.arange(len(p)) % 3 + 1})
    for files in (["one.npz", "two.npz"], ["two.npz", "one.npz"]):
        status, _, error = run(capsys, "report", *files, "-o", "r.json")
        assert status == 2
        assert f"its {what} are not those of {files[0]}" in error


@pytest.mark.parametrize("kind", ["column", "one-hot"])
def test_labels_of_two_files_may_be_written_in_two_ways(folder, capsys, kind):
    labels, p = sample()
    np.savez("one.npz", probabilities=p, labels=labels)
    rows = np.eye(p.shape[1])[labels] if kind == "one-hot" else labels[:, None]
    np.savez("two.npz", probabilities=p, labels=rows)
    report = "report", "one.npz", "two.npz", "-o", "r.json"
    assert run(capsys, *report)[0] == 0
    np.savez("two.npz", probabilities=p, labels=rows[::-1])
    status, _, err = run(capsys, *report)
    assert status == 2 and "its labels are not those of one.npz" in err


@pytest.mark.parametrize("label", ["", "nan"])
def test_report_of_rows_with_the_same_missing_label(folder, capsys, label):
    rows = ["1,1,0.2,0.8", f"{label},0,0.5,0.5", "0,1,0.7,0.3"]
    heads = ["labels,sample_weight,probabilities_0,probabilities_1"]
    for name in ("one.csv", "two.csv"):
        text(name, "\n".join(heads + rows))
    text("other.csv", "\n".join([*heads, f"{label},0,0.5,0.5", *rows[::2]]))
    report = "report", "one.csv", "two.csv", "-o", "r.json"
    assert run(capsys, *report)[0] == 0
    models = json.loads(pathlib.Path("r.json").read_text())["models"]
    values = [each["metrics"]["accuracy"]["value"] for each in models]
    assert values == [1.0, 1.0]
    report = "report", "one.csv", "other.csv", "-o", "r.json"
    status, _, err = run(capsys, *report)
    assert status == 2 and "its labels are not those of one.csv" in err


@pytest.mark.parametrize("name", ["a.npz", "b.npz"])
def test_a_map_of_predictions_is_a_model_of_scores(folder, capsys, name):
    status, _, err = run(capsys, "calibrate", name, "-o", "map.keras")
    assert status == 0
    assert "softmax" not in err
    scores = next(v for k, v in np.load(name).items() if v.ndim == 2)
    calibrated = keras.saving.load_model("map.keras")
    _, p = sample()
    record = kc.calibration_record(calibrated)
    found = calibrated.predict(scores, verbose=0)
    temperature = record["temperature"]
    q = p ** ((1.0 if name == "a.npz" else 0.5) / temperature)
    np.testing.assert_allclose(
        found, q / q.sum(1, keepdims=True), rtol=1e-4, atol=1e-6
    )
    run(capsys, "evaluate", "map.keras", name, "--json")


def test_a_model_and_its_data(folder, capsys):
    model, x, y = network_and_data()
    model.save("model.keras")
    np.savez("data.npz", x=x, labels=y)
    status, out, _ = run(
        capsys, "calibrate", "model.keras", "data.npz", "-o", "out.keras"
    )
    assert (status, out.splitlines()[-1]) == (0, "Written: out.keras")
    calibrated = keras.saving.load_model("out.keras")
    expected = kc.calibrate(model, x, y, verbose=0)
    np.testing.assert_allclose(
        calibrated.predict(x, verbose=0),
        expected.predict(x, verbose=0),
        rtol=1e-5,
    )
    status, out, _ = run(
        capsys, "evaluate", "model.keras", "out.keras", "data.npz", "--json"
    )
    found = json.loads(out)
    name = "negative_log_likelihood"
    assert found["out"][name] <= found["model"][name]
    status, _, _ = run(
        capsys, "report", "model.keras", "out.keras", "data.npz", "-o", "r.md"
    )
    assert status == 0
    assert "## out" in pathlib.Path("r.md").read_text()


def test_json_of_a_report_and_of_a_map(folder, capsys):
    _, out, _ = run(capsys, "report", "a.npz", "-o", "r.json", "--json")
    saved = json.loads(pathlib.Path("r.json").read_text())
    assert json.loads(out) == {
        "output": "r.json",
        "verdicts": {"a": saved["models"][0]["verdict"]},
    }
    _, out, _ = run(capsys, "calibrate", "a.npz", "-o", "map.keras", "--json")
    calibrated = keras.saving.load_model("map.keras")
    assert json.loads(out) == {
        "output": "map.keras",
        "record": to_json(kc.calibration_record(calibrated)),
    }


def test_weights_of_a_table_are_numbers(folder):
    rows = [(0, 0.25, 0.9), (1, 2.5, 0.4)]
    table("t.csv", head=["label", "sample_weight", "prediction"], rows=rows)
    found = read(pathlib.Path("t.csv"))
    np.testing.assert_array_equal(found.sample_weight, [0.25, 2.5])
    assert found.sample_weight.dtype == "float64"


def test_arrays_with_a_long_header(folder):
    # NumPy writes such a header where the first kind has too little room.
    labels, p = sample()
    with zipfile.ZipFile("long.npz", "w") as archive:
        for name, array in {"probabilities": p, "labels": labels}.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array, version=(2, 0))
    found = read(pathlib.Path("long.npz"))
    np.testing.assert_array_equal(found.scores, p)
    np.testing.assert_array_equal(found.labels, labels)


def test_a_table_without_pyarrow_is_one_line(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    pathlib.Path("e.parquet").write_bytes(b"")
    status, _, err = run(capsys, "evaluate", "e.parquet")
    assert status == 2
    assert "e.parquet: `.parquet` needs pyarrow, `pip install pyarrow`" in err


def test_more_than_memory_is_refused(folder, monkeypatch):
    labels, p = sample()
    size, path = p.nbytes + labels.nbytes, pathlib.Path("a.npz")
    # What other processes leave, not all that the machine has.
    monkeypatch.setattr(memory, "available_bytes", lambda: size)
    assert len(read(path).labels) == len(labels)
    monkeypatch.setattr(memory, "available_bytes", lambda: size - 1)
    with pytest.raises(ValueError, match="What it holds needs about"):
        read(path)


def test_warnings_are_a_line_of_standard_error(folder, capsys):
    # Every prediction is right.
    _, p = sample()
    np.savez("c.npz", probabilities=p, labels=p.argmax(axis=1))
    command = ("calibrate", "c.npz", "-o", "map.keras", "--quiet")
    status, out, err = run(capsys, *command, "--method", "temperature")
    assert (status, out) == (0, "Written: map.keras\n")
    [line] = err.splitlines()
    assert line.startswith("UserWarning: ")


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError("disk is full")])
def test_output_that_cannot_be_written(folder, capsys, monkeypatch, error):
    """A reader that has seen enough is no error; a full disk is one."""

    class Closed(io.StringIO):
        def write(self, text):
            raise error

    monkeypatch.setattr(sys, "stdout", Closed())
    status = main(arguments=["evaluate", "a.npz", "--quiet"])
    # Python would write what is left as it ends, and fail once more.
    assert sys.stdout is None
    broken = isinstance(error, BrokenPipeError)
    line = "" if broken else "keras-calib evaluate: error: disk is full\n"
    assert (status, capsys.readouterr().err) == (0 if broken else 2, line)


def network_and_data():
    rng = np.random.default_rng(0)
    model = small_network()
    width = model.output_shape[-1]
    x = rng.normal(size=(200, *model.input_shape[1:])).astype("float32")
    return model, x, rng.integers(0, width, 200)


def pickled():
    np.savez("pickled.npz", labels=np.array([{}, []], dtype=object), x=[1, 2])
    return ["evaluate", "pickled.npz"]


def header_of_more():
    file = io.BytesIO()
    np.lib.format.write_array(file, np.zeros((10, 2)))
    with zipfile.ZipFile("n.npz", "w") as archive:
        archive.writestr("logits.npy", file.getvalue()[:-16])
        archive.writestr("labels.npy", file.getvalue())
    return ["evaluate", "n.npz"]


def archive(name, **arrays):
    np.savez(name, **arrays)
    return ["evaluate", name]


def text(name, content):
    pathlib.Path(name).write_text(content)
    return ["evaluate", name]


def other_labels():
    labels, p = sample()
    np.savez("c.npz", probabilities=p, labels=1 - labels.clip(0, 1))
    return ["report", "a.npz", "c.npz", "-o", "r.md"]


def other_classes():
    labels, p = sample()
    for name, classes in (("c.csv", "abc"), ("d.csv", "abd")):
        head = ["label", *(f"probability_{k}" for k in classes)]
        rows = zip(labels, *p.T, strict=True)
        table(name, head=head, rows=rows)
    return ["report", "c.csv", "d.csv", "-o", "r.md"]


def broken_model():
    pathlib.Path("broken.keras").write_text("no model")
    return ["evaluate", "broken.keras", "a.npz"]


def model_of_rescaling():
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Rescaling(2.0, name="twice")],
        name="doubled",
    )
    model.save("doubled.keras")
    return ["evaluate", "doubled.keras", "b.npz"]


def model_of_two_inputs():
    inputs = [keras.Input((3,)), keras.Input((3,))]
    both = keras.layers.Add()(inputs)
    outputs = keras.layers.Dense(3, "softmax")(both)
    keras.Model(inputs, outputs).save("two.keras")
    return ["evaluate", "two.keras", "a.npz"]


def model_of_other_inputs():
    model, _, _ = network_and_data()
    model.save("model.keras")
    np.savez("wide.npz", probabilities=np.full((4, 7), 1 / 7), labels=[0] * 4)
    return ["evaluate", "model.keras", "wide.npz"]


P = np.full((4, 2), 0.5)
BAD = {
    "no file": (lambda: ["evaluate", "no.npz"], "no.npz: there is no such"),
    "no labels": (lambda: archive("n.npz", logits=P), "a file needs `labels`"),
    "no scores": (lambda: archive("n.npz", labels=[0]), "a file needs"),
    "two kinds": (
        lambda: archive("n.npz", logits=P, predictions=P, labels=[0] * 4),
        "one kind of scores",
    ),
    "lengths": (
        lambda: archive("n.npz", logits=P, labels=[0]),
        "1 labels and 4 rows",
    ),
    "wrong shape": (
        lambda: archive("n.npz", logits=P, labels=np.zeros((4, 3))),
        "labels",
    ),
    "not probabilities": (
        lambda: archive("n.npz", probabilities=P + 1, labels=[0] * 4),
        "probability vector",
    ),
    "text scores": (
        lambda: archive("n.npz", logits=["a"], labels=[0]),
        "no numbers",
    ),
    "pickle": (pickled, "pickle"),
    "one number": (
        lambda: archive("n.npz", logits=P, labels=3),
        "`labels` is not one for each sample",
    ),
    "two names of labels": (
        lambda: archive("n.npz", logits=P, labels=[0] * 4, y=[0] * 4),
        "`labels` and `y` mean the same: keep one",
    ),
    "a header of more": (header_of_more, "announces 160 bytes, and there are"),
    "neither scores nor a model": (
        lambda: archive("n.npz", x=P, labels=[0] * 4),
        "it holds no predictions, and no model",
    ),
    "no archive": (lambda: text("n.npz", "labels"), "n.npz"),
    "ragged table": (
        lambda: text("n.csv", "label,logit_0,logit_1\n0,1\n"),
        "line 2 has 2 values",
    ),
    "empty table": (lambda: text("n.csv", ""), "a file needs"),
    "an underscore in a number": (
        lambda: text("n.csv", "label,logit_0,logit_1\n0,1,2\n0,1_0,2\n"),
        "column `logit_0`: '1_0', in row 1, is no number",
    ),
    "one file twice": (
        lambda: [*archive("n.npz", logits=P, labels=[0] * 4), "./n.npz"],
        "n.npz: it is named twice",
    ),
    "another column of labels": (
        lambda: text("n.csv", "Label,logit_0,logit_1\n0,1,2\n"),
        "It has logits; not read: ['Label']",
    ),
    "words in a table": (
        lambda: text("n.csv", "label,logit_0,logit_1\n0,1,x\n"),
        "column `logit_1`",
    ),
    "unknown class": (
        lambda: text("n.csv", "label,logit_a,logit_b\nc,1,2\n"),
        "the label 'c'",
    ),
    "an unknown class among numbers": (
        lambda: text("n.csv", "label,logit_0,logit_1\n0,1,2\nx,1,2\n"),
        "the label 'x' is no number",
    ),
    "a word in a row": (
        lambda: text("n.csv", "label,logit_0,logit_1\n0,1,\n0,1,x\n"),
        "column `logit_1`: 'x', in row 1, is no number",
    ),
    "predictions of two digits": (
        lambda: archive(
            "n.npz",
            predictions=[[0.33, 0.33, 0.32], [0.2, 0.3, 0.5]],
            labels=[0, 1],
        ),
        "cannot be told: none is negative, and rows sum to 0.98 up to 1. Name",
    ),
    "probabilities of two digits": (
        lambda: archive(
            "n.npz", probabilities=[[0.33, 0.33, 0.32]], labels=[0]
        ),
        "(off by -0.02) in row 0. If they were rounded, divide each row by",
    ),
    "a group without an id": (
        lambda: [
            "report",
            text(
                "n.csv",
                "label,logit_0,logit_1,group\n0,1,2,a\n0,1,3, \n1,0,0,b\n",
            )[1],
            *("-o", "n.md"),
        ],
        "must have an id for each sample that counts",
    ),
    "an empty cell that counts": (
        lambda: text("n.csv", "label,logit_0,logit_1\n0,1,2\n0,1,\n"),
        "NaN or infinity in 1 of 2 rows, first in row 1",
    ),
    "probabilities that are called logits": (
        lambda: (
            [*archive("n.npz", logits=P, labels=[0] * 4), "--no-from-logits"]
        ),
        "`--no-from-logits` contradicts the name `logits`: leave it out, or "
        "rename `logits` if they are probabilities",
    ),
    "a class is missing": (
        lambda: text("n.csv", "label,logit_0,logit_2\n0,1,2\n"),
        "without gaps",
    ),
    "a column twice": (
        lambda: text("n.csv", "label,logit_a,logit_b, logit_a\n0,1,2,3\n"),
        "two columns have the name `logit_a`",
    ),
    "two columns of labels": (
        lambda: text("n.csv", "y,label,logit_0,logit_1\n0,1,2,3\n"),
        "`label` and `y` mean the same: keep one",
    ),
    "a class twice": (
        lambda: text("n.csv", "y,logit_a,logits_a,logits_b\n0,1,2,3\n"),
        "`logits_a` and `logit_a` mean the same: keep one",
    ),
    "a column of no class": (
        lambda: text("n.csv", "y,logits_a,logits_b,logit\n0,1,2,3\n"),
        "`logit`, beside others, is of no class",
    ),
    "class 0 alone": (
        lambda: text("n.csv", "y,probability_0\n0,0.9\n1,0.2\n"),
        "`probability_0` alone is of class 0",
    ),
    "suffix": (lambda: text("n.pkl", "x"), "the suffix must be"),
    "broken model": (broken_model, "this model cannot be loaded"),
    "other labels": (other_labels, "its labels are not those"),
    "other classes": (other_classes, "its classes, ['a', 'b', 'd'], are not"),
    "output": (lambda: ["report", "a.npz", "-o", "r.pdf"], "the suffix"),
    "no folder": (
        lambda: ["report", "a.npz", "-o", "no/r.md"],
        "there is no such folder",
    ),
    "overwritten": (
        lambda: ["calibrate", "a.keras", "a.npz", "-o", "a.keras"],
        "would be overwritten",
    ),
    "a model without data": (
        lambda: ["evaluate", "a.keras"],
        "Models need one file with data",
    ),
    "no model": (
        lambda: ["evaluate", "no.keras", "a.npz"],
        "no.keras: there is no such file",
    ),
    "data of two maps": (
        lambda: ["calibrate", "a.npz", "b.npz", "-o", "map.keras"],
        "One model, or one file of predictions",
    ),
    "neither inputs nor scores": (
        model_of_other_inputs,
        "needs inputs `x`, or scores of the shape of its input, (None, ",
    ),
    "two inputs": (
        model_of_two_inputs,
        "needs inputs `x`, or scores of the shape of its input, [(None, 3), ",
    ),
    "logits or probabilities": (
        model_of_rescaling,
        "'doubled' does not show whether it gives logits or probabilities",
    ),
    "one unit outside": (
        lambda: archive("n.npz", predictions=[0.2, 1.7], labels=[0, 1]),
        "`predictions` of one unit outside [0, 1] are logits",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_status_two(folder, capsys, case):
    make, message = BAD[case]
    arguments = make()
    before = {path: path.read_bytes() for path in folder.iterdir()}
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    [line] = err.splitlines()
    assert line.startswith(f"keras-calib {arguments[0]}: error: ")
    assert message in line
    # Nothing is written, and nothing is half written.
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["evaluate"],
        ["draw"],
        ["calibrate", "a", "-o", "b", "--method", "c"],
    ],
)
def test_bad_arguments_are_one_line_and_status_two(capsys, arguments):
    with pytest.raises(SystemExit) as stopped:
        main(arguments=arguments)
    out, err = capsys.readouterr()
    assert (stopped.value.code, out, err.count("\n")) == (2, "", 1)


def test_as_a_module(folder):
    done = subprocess.run(
        [sys.executable, "-m", "keras_calib", "evaluate", "a.npz", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["a"]["num_rows"] == 400


def test_a_failed_save_leaves_the_old_file(folder, capsys, monkeypatch):
    pathlib.Path("map.keras").write_text("old")

    def fail(*_, **__):
        raise OSError("the disk is full")

    monkeypatch.setattr(keras.Model, "save", fail)
    status, _, err = run(capsys, "calibrate", "a.npz", "-o", "map.keras")
    assert (status, "the disk is full" in err) == (2, True)
    assert pathlib.Path("map.keras").read_text() == "old"
    assert sorted(p.name for p in folder.iterdir()) == [
        "a.npz",
        "b.npz",
        "map.keras",
    ]


def test_capital_letters_of_a_suffix_are_those_of_another_system(
    folder, capsys
):
    labels, p = sample()
    with open("a.NPZ", "wb") as file:
        np.savez(file, labels=labels, probabilities=p)
    head = ["label", "probability_0", "probability_1", "probability_2"]
    rows = ([y, *each] for y, each in zip(labels, p, strict=True))
    table("B.CSV", head=head, rows=rows)
    status, out, _ = run(capsys, "evaluate", "a.NPZ", "B.CSV", "--json")
    assert status == 0
    found = json.loads(out)
    assert found["a"] == pytest.approx(found["B"])
