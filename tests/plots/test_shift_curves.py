"""`kc.plots.shift_curves`: what is drawn where."""

import numpy as np
import pytest

import keras_calib as kc

pyplot = pytest.importorskip("matplotlib.pyplot")


def rows(model="a", factor=1.0):
    found = [
        {"model": model, "corruption": "clean", "severity": 0, "ece": 0.02}
    ]
    for k, kind in enumerate(("fog", "snow", "frost", "contrast")):
        for severity in (1, 3, 5):
            error = factor * 0.02 * severity * (k + 1)
            found.append(
                {
                    "model": model,
                    "corruption": kind,
                    "severity": severity,
                    "ece": error,
                    "accuracy": 1 - error,
                }
            )
    return found


@pytest.fixture(autouse=True)
def closed():
    yield
    pyplot.close("all")


def test_lines_are_means_and_bars_are_quartiles():
    figure = kc.plots.shift_curves({"rows": rows()})
    (axes,) = figure.axes
    (line,) = axes.get_lines()
    np.testing.assert_allclose(line.get_xdata(), [0, 1, 3, 5])
    np.testing.assert_allclose(line.get_ydata(), [0.02, 0.05, 0.15, 0.25])
    thin, thick = axes.collections
    ends = [segment[:, 1] for segment in thin.get_segments()]
    np.testing.assert_allclose(ends[-1], [0.1, 0.4])
    ends = [segment[:, 1] for segment in thick.get_segments()]
    np.testing.assert_allclose(ends[-1], [0.175, 0.325])
    assert "ECE" in axes.get_ylabel()


def test_models_stand_side_by_side():
    both = {"rows": rows("a") + rows("b", 0.5)}
    apart = {"a": {"rows": rows("x")}, "b": {"rows": rows("y", 0.5)}}
    for given in (both, apart):
        (axes,) = kc.plots.shift_curves(given).axes
        lines = axes.get_lines()
        assert [line.get_label() for line in lines] == ["a", "b"]
        x = [line.get_xdata()[1] for line in lines]
        assert x[0] < 1 < x[1]
        np.testing.assert_allclose(
            lines[1].get_ydata()[1:], [0.025, 0.075, 0.125]
        )


def test_an_ece_has_its_floor():
    found = [{**row, "ece_floor": row["ece"] / 4} for row in rows()]
    (axes,) = kc.plots.shift_curves({"rows": found}).axes
    line, floor = axes.get_lines()
    np.testing.assert_allclose(floor.get_ydata(), line.get_ydata() / 4)
    assert floor.get_label() == "a, floor"
    (axes,) = kc.plots.shift_curves({"rows": found[1:]}, metric="accuracy").axes
    assert len(axes.get_lines()) == 1


def test_several_models_of_several_results():
    one = {"rows": rows("a") + rows("b")}
    (axes,) = kc.plots.shift_curves({"first": one, "second": one}).axes
    labels = [line.get_label() for line in axes.get_lines()]
    assert labels == ["first: a", "first: b", "second: a", "second: b"]


def test_axes_of_the_caller():
    figure, axes = pyplot.subplots()
    found = [row for row in rows() if row["severity"]]
    assert kc.plots.shift_curves(
        {"rows": found}, metric="accuracy", axes=axes
    ) is (figure)
    assert axes.get_ylim() == (0, 1)


@pytest.mark.parametrize(
    ("given", "metric", "words"),
    [
        ({"rows": rows()}, "brier", "`metric` must be one of"),
        ({"rows": []}, "ece", "nothing to draw"),
        ({}, "ece", "kc.shift.evaluate"),
        (3, "ece", "result='int'"),
    ],
)
def test_bad_input_is_refused(given, metric, words):
    with pytest.raises(ValueError, match=words):
        kc.plots.shift_curves(given, metric=metric)
