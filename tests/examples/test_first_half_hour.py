"""The notebook: its cells run in order, and what its text says is true."""

import ast
import json
import pathlib

import numpy as np
import pytest

import keras_calib as kc

NOTEBOOK = pathlib.Path(__file__).parents[2] / "examples/first_half_hour.ipynb"


def cells(kind):
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    found = notebook["cells"]
    return ["".join(x["source"]) for x in found if x["cell_type"] == kind]


def run(code, names):
    """Run a cell; the value of its last line, as a notebook shows it."""
    tree = ast.parse(code)
    value = None
    if isinstance(tree.body[-1], ast.Expr):
        value = ast.Expression(tree.body.pop().value)
    exec(compile(tree, str(NOTEBOOK), "exec"), names)
    if value is not None:
        return eval(compile(value, str(NOTEBOOK), "eval"), names)
    return None


def test_it_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    pytest.importorskip("jinja2")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    names = {}
    shown = [run(code, names) for code in cells("code")]
    pyplot.close("all")
    assert (tmp_path / "report.html").stat().st_size > 10_000
    # The text says: too sure, and the temperature rises; the new model predicts
    # the same classes and is calibrated; the file is the model.
    temperatures = names["logs"]["val_temperature"]
    assert temperatures[-1] > temperatures[0] and temperatures[-1] > 1
    assert names["record"]["temperature"] > 1
    before, after = names["before"], names["after"]
    np.testing.assert_array_equal(before.argmax(-1), after.argmax(-1))
    chosen = np.arange(len(after)), names["y_test"]
    assert -np.log(after[chosen]).mean() < -np.log(before[chosen]).mean()
    new, old = (
        kc.metrics.calibration_errors(names["y_test"], p)
        for p in (after, before)
    )
    assert new["brier_score"] < old["brier_score"]
    ece = "expected_calibration_error"
    assert new[ece] < 0.06 < 0.12 < old[ece]
    assert shown[-1] is True
    assert "floor of the ECE" in capsys.readouterr().out


def test_it_is_stored_without_outputs():
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    for cell in notebook["cells"]:
        assert cell.get("outputs", []) == []
    root = NOTEBOOK.parents[1]
    for place in ("examples/docs/which_method.md", "examples/stories"):
        assert place in cells("markdown")[-1] and (root / place).exists()
