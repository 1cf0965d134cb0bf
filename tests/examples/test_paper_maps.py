"""What a row says of its logits after each map, and the tables of that."""

import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import to_numpy


@pytest.fixture
def measures(papers):
    import measures

    return measures


@pytest.fixture
def parts():
    """Logits that are twice as large as those that labels are drawn from."""
    rng = np.random.default_rng(0)
    truth = {part: 2 * rng.normal(size=(300, 3)) for part in PARTS}
    labels = {
        part: (z + rng.gumbel(size=z.shape)).argmax(axis=1)
        for part, z in truth.items()
    }
    return {part: 2 * z for part, z in truth.items()}, labels


PARTS = "calibration", "test"


def test_calibrated_maps_are_those_of_the_layers(measures, parts, monkeypatch):
    monkeypatch.setattr(measures, "ANY_CLASSES", ("VectorScaling",))
    found = measures.measure_maps(*parts)
    assert list(found) == ["VectorScaling", *measures.CALIBRATED]
    logits, labels = parts
    layers = {
        "bayesian_temperature": kc.layers.BayesianTemperatureScaling(),
        "structured_matrix": kc.layers.MatrixScaling(
            regularization="structured"
        ),
    }
    for name, layer in layers.items():
        layer.adapt(logits["calibration"], labels["calibration"])
        q = measures.softmax(to_numpy(layer(logits["test"])).astype("float64"))
        nll = -np.log(q[np.arange(300), labels["test"]]).mean()
        assert found[name]["nll"] == pytest.approx(nll, abs=2e-5)
    plain = measures.measure(logits["test"], labels["test"])["nll"]
    for name in measures.CALIBRATED:
        assert found[name]["nll"] < plain - 0.05


def test_a_map_that_cannot_be_fitted_says_why(measures, parts):
    logits, labels = parts
    two = {part: 0 * each for part, each in labels.items()}

    def fit(logits, labels):
        raise ValueError("no classes")

    assert measures.errors_after(fit, logits, two) == {"error": "no classes"}


def test_rows_without_the_choice_are_no_part_of_its_table(measures):
    import table

    def row(seed, nll, *names):
        return {
            "method": "CE",
            "seed": seed,
            "test_scaled": {"nll": nll},
            "maps": {name: {"nll": nll - 0.1} for name in names},
        }

    new = *measures.TRIED, *measures.CALIBRATED
    rows = {
        ("CE", seed): row(seed, 1.0 + seed, *names)
        for seed, names in enumerate(((measures.TRIED), new, new))
    }
    older = table.after_maps("S", rows).splitlines()
    assert older[0].split(" | ")[2:] == [*measures.TRIED[:-1], LAST]
    assert older[2].split(" | ")[1:3] == ["2.000 ± 0.577", "1.900 ± 0.577"]
    newer = table.after_calibrate("S", rows).splitlines()
    cells = newer[2].split(" | ")
    assert cells[:3] == ["| CE", "2", "2.500 ± 0.500"]
    assert len(cells) == 3 + len(new)
    assert table.after_calibrate("S", {("CE", 0): rows["CE", 0]}) == ""


LAST = "ParameterizedTemperatureScaling |"


def test_a_map_that_only_some_rows_have_is_a_dash_in_others(papers):
    import table

    def row(method, maps, balance):
        return {
            "method": method,
            "seed": 0,
            "test_scaled": {"nll": 1.0},
            "maps": {name: {"nll": nll} for name, nll in maps.items()},
            "class_balance": {
                name: {"none": {"ece": ece}} for name, ece in balance.items()
            },
        }

    found = [
        row("CE", {"New": 0.5, "Old": 0.6}, {}),
        row("LS", {"Old": 0.7, "Other": 0.8}, {"Old": 0.1}),
        {**row("FL", {}, {}), "maps": {}},
    ]
    rows = {(each["method"], 0): each for each in found}
    header, _, *lines = table.after_maps("S", rows).splitlines()
    assert header.endswith("| TemperatureScaling | New | Old | Other |")
    assert lines == [
        "| CE | 1.000 | 0.500 | 0.600 | - |",
        "| LS | 1.000 | - | 0.700 | 0.800 |",
        "| FL | 1.000 | - | - | - |",
    ]
    del found[0]["class_balance"]
    _, _, first, *published = table.balanced("S", rows).splitlines()
    assert first.startswith("| LS | Old | ")
    assert all(line.startswith("| published, ") for line in published)
