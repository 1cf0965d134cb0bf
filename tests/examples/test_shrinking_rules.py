"""The script that takes parts of the average of ridge fits away."""

import argparse

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.solvers.deviations import WIDTHS
from tests.examples.test_no_harm import FOLDER
from tests.helpers import example
from tests.layers.generated import generated

pytestmark = pytest.mark.one_backend


@pytest.fixture(scope="module")
def script():
    return example("benchmarks/shrinking_rules.py")


def test_as_it_is_is_the_layer(script):
    logits, labels = generated(400, 3)
    rest = logits[200:], labels[200:]
    for name in (script.VECTOR, script.MATRIX):
        found = script.nll_of_rules(name, logits[:200], labels[:200], rest)
        layer = getattr(kc.layers, name)().adapt(logits[:200], labels[:200])
        z = keras.ops.convert_to_numpy(layer(rest[0]))
        expected = script.no_harm.losses(z, rest[1]).mean()
        assert found[script.AS_IT_IS] == pytest.approx(expected, abs=2e-5)
        assert len(set(found.values())) > len(found) / 2


def test_rules_weigh_the_same_fits(script):
    fits = [
        argparse.Namespace(
            widths=width * np.array(path), log_evidence=value, typical=typical
        )
        for path, value, typical in (
            ((1.0, 0.0), -1.0, False),
            ((2.0, 1.0), 2.0, True),
        )
        for width in WIDTHS
    ]
    for rule, weights in script.RULES.items():
        found = weights(fits)
        assert found.shape == (15,) and found.sum() == pytest.approx(1), rule
    found = {rule: weights(fits) for rule, weights in script.RULES.items()}
    assert found["the most likely fit alone"].max() == 1
    assert found["no prior on temperature scaling"][-1] < 1e-200
    assert found["slopes and biases together only"][:7].sum() == 0
    assert found["slopes around 0"][7:14].sum() == 0
    as_it_is = found[script.AS_IT_IS]
    assert found["slopes around typical"] == pytest.approx(as_it_is)
    one = found["width 0.4 only"]
    assert np.flatnonzero(one).tolist() == [4, 11, 14]
    # Half of the prior is on temperature scaling.
    prior = np.exp(
        script.evidence.log_prior_of(
            np.array([fits[4].widths, fits[11].widths])
        )
    )
    joint = 0.5 * np.exp([-1.0, 2.0]) * prior / prior.sum()
    assert one[[4, 11]] == pytest.approx(joint / (joint.sum() + 0.5))
    flat = found["all widths as likely"]
    assert flat[:7] == pytest.approx(flat[:7].mean())


def test_rows_are_kept_and_shown(script, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("KERAS_CALIB_DATA", str(tmp_path))
    logits, labels = generated(300, 3)
    made = (lambda folder: [("made", logits, labels)],)
    monkeypatch.setitem(script.no_harm.SETS, "tables", made)
    arguments = argparse.Namespace(
        results=tmp_path / "rows.jsonl", data="tables", sizes=[60], draws=1
    )
    script.run(arguments)
    rows = script.stored_rows.read(arguments.results)
    assert [row["map"] for row in rows] == [script.VECTOR, script.MATRIX]
    script.run(arguments)
    assert script.stored_rows.read(arguments.results) == rows
    script.show(arguments)
    shown = capsys.readouterr().out
    minus = rows[0]["nll"]["no dispersion"]
    minus -= rows[0]["nll"]["TemperatureScaling"]
    assert f"| no dispersion | {minus:+.4f} | {minus:+.4f} |" in shown
    assert "MatrixScaling: 1 files, 1 cells" in shown


def test_page_is_what_the_stored_rows_print(script, capsys):
    results = FOLDER.parent / "results" / "shrinking_rules.jsonl"
    script.show(argparse.Namespace(results=results))
    shown = capsys.readouterr().out.strip()
    assert shown in results.with_suffix(".md").read_text()
    # The page of the layers has some of it.
    layers = FOLDER.parents[1] / "keras_calib" / "layers" / "SHRINKING.md"
    table = layers.read_text().partition("### What each part does")[2]
    rows = [line.split(" | ") for line in shown.splitlines() if "| +" in line]
    assert (
        sum(f"| {row[1]} | {row[3]} | {row[5]} |" in table for row in rows)
        >= 12
    )
