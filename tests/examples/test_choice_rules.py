"""The script that compares rules for `method="auto"`."""

import argparse

import numpy as np
import pytest

from tests.examples.test_no_harm import FOLDER
from tests.helpers import example
from tests.layers.generated import generated


@pytest.fixture(scope="module")
def script():
    return example("benchmarks/choice_rules.py")


@pytest.mark.one_backend
def test_every_rule_is_measured_on_the_same_fits(
    script, monkeypatch, tmp_path, capsys
):
    monkeypatch.setenv("KERAS_CALIB_DATA", str(tmp_path))
    logits, labels = generated(400, 3)
    made = (lambda folder: [("made", logits, labels)],)
    monkeypatch.setattr(script, "DEVELOPMENT", made)
    arguments = argparse.Namespace(
        results=tmp_path / "rows.jsonl",
        data="development",
        sizes=[60],
        draws=1,
        peers=False,
        also=[],
    )
    script.run(arguments)
    (row,) = script.stored_rows.read(arguments.results)
    nll = row["maps"]
    assert set(row["rules"]) == set(script.RULES)
    for rule, (kind, _) in script.RULES.items():
        value = row["rules"][rule]
        if kind in ("one", "one averaged", "nearest"):
            assert value in nll.values()
        # A mixture is at most as bad as the worst of its maps.
        assert min(nll.values()) - 0.1 < value <= max(nll.values())
    script.run(arguments)
    assert script.stored_rows.read(arguments.results) == [row]
    # The uniform distribution has the weight 1 / 61.
    assert nll["smoothed temperature"] < nll["temperature"] + 1 / 60
    script.show(arguments)
    shown = capsys.readouterr().out
    assert "at most 200 samples: 1 cells" in shown
    for rule in script.RULES:
        assert f"| {rule} |" in shown


def test_mixture_weights_are_the_most_probable_ones(script):
    rng = np.random.default_rng(0)
    losses = {"a": rng.exponential(size=60), "b": rng.exponential(size=60)}
    losses["c"] = np.full(60, np.inf)
    found = script.mixture_weights(losses, {"b": -1.0}, 6.0)
    w = np.linspace(0.0005, 0.9995, 1000)
    p = np.outer(w, np.exp(-losses["a"]))
    p += np.outer(1 - w, np.exp(-losses["b"]))
    share = 1 / (1 + np.exp(-1.0))
    density = np.log(p).sum(axis=1)
    density += 6 * (share * np.log(w) + (1 - share) * np.log(1 - w))
    assert found["a"] == pytest.approx(w[density.argmax()], abs=0.001)
    assert found["a"] + found["b"] == pytest.approx(1.0)


RESULTS = FOLDER.parent / "results"


@pytest.mark.one_backend
@pytest.mark.parametrize("also", [False, True])
def test_the_page_has_what_is_printed_of_many_samples(script, capsys, also):
    networks, many = (
        RESULTS / f"choice_rules_{name}.jsonl" for name in ("networks", "many")
    )
    arguments = argparse.Namespace(results=networks, also=[many] * also)
    script.show(arguments)
    shown = capsys.readouterr().out
    table = shown[shown.rindex("| samples |") :].strip()
    assert table in (RESULTS / "choice_rules.md").read_text()
