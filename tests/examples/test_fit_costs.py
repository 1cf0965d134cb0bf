"""The stored table of costs has every loss, metric and callback."""

import pathlib
import re

import keras
import pytest

import keras_calib as kc
from tests.helpers import example

PAGE = pathlib.Path(__file__).parents[2] / "examples/results/fit_costs.md"
BASES = {"ClassificationLoss", "PenalizedLoss", "LossPart", "AdaFocalTable"}
BASES |= {"CalibrationMetric"}
ROOMS = {
    "losses": (kc.losses, keras.losses.Loss),
    "metrics": (kc.metrics, keras.metrics.Metric),
    "callbacks": (kc.callbacks, keras.callbacks.Callback),
}


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
@pytest.mark.parametrize("room", ROOMS)
def test_nothing_is_left_out(room, backend):
    module, base = ROOMS[room]
    names = {
        name
        for name in module.__all__
        if isinstance(getattr(module, name), type)
        and issubclass(getattr(module, name), base)
    }
    text = PAGE.read_text().split(f"## {backend}\n")[1].split("\n## ")[0]
    part = text.split(f"| {room} |")[1].split("\n\n")[0]
    found = set(re.findall(r"\b[A-Z]\w+", part))
    assert names - BASES <= found, (
        f"a row for each, from KERAS_BACKEND={backend} python "
        f"examples/benchmarks/fit_costs.py --parts {room} --only NAME"
    )
    # And each row that is compared has a number.
    assert len(re.findall(r"[+-]\d+\.\d+ %", part)) >= len(names - BASES)


def test_no_share_is_larger_than_the_page_says():
    limits = dict.fromkeys(ROOMS, 0.0)
    room = None
    for line in PAGE.read_text().splitlines():
        heading = re.match(r"\| (losses|metrics|callbacks) \|", line)
        room = heading[1] if heading else room
        share = re.search(r"([+-]\d+\.\d+) %", line)
        if share and line.startswith("|"):
            name = line.split("|")[1].strip()
            largest = float(share[1])
            if name.startswith(("Smooth", "Sweep")):
                assert largest <= 1.1
            else:
                limits[room] = max(limits[room], largest)
    assert 0.6 < limits["losses"] <= 0.7
    assert 0.2 < limits["metrics"] <= 0.305
    assert 0.1 < limits["callbacks"] <= 0.3


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_a_row_is_measured(capsys, monkeypatch):
    costs = example("benchmarks/fit_costs.py")
    monkeypatch.setattr(costs, "STEPS", 2)
    monkeypatch.setattr(costs, "TRAINING", 2 * costs.BATCH)
    costs.main("--parts losses --only MDCA --repeats 1".split())
    printed = capsys.readouterr().out
    assert re.search(r"A step of a ResNet-20 takes \d+ ms", printed)
    assert re.search(
        r"\| MDCA \| [\d.]+ \| [+-][\d.]+ \| [+-][\d.]+ % \|", printed
    )
