"""How many rows, and which, are resampled in cells for the smooth error."""

import re
import types

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib import text

import keras_calib as kc
from keras_calib.evaluation import smooth_interval
from keras_calib.evaluation.events import sort_events
from keras_calib.evaluation.grid_bootstrap import SCALES
from keras_calib.evaluation.named_errors import confidence_and_correct
from keras_calib.inputs.predictions import read_predictions

pytestmark = pytest.mark.one_backend
# Of the sample, and of resamples, at each scale: as much noise at all of them.
NOISE = np.array([0.0, *np.linspace(-0.03, 0.05, 201)])
DRAWN = 0.12 + NOISE[:, None] + 0.12 * np.array([0.0, *(SCALES - 1)])


@pytest.mark.parametrize(
    ("number", "weights", "expected"),
    [
        (20, None, "rows"),
        (21, None, "cells"),
        (41, None, "cells"),
        (40, np.ones(40), "rows"),
        (41, np.ones(41), None),
    ],
)
def test_kind_of_resamples_and_their_interval(
    monkeypatch, number, weights, expected
):
    made = []

    def kind(name):
        def make(data, num_resamples, seed, passes, verbose, scales):
            made.append((name, num_resamples, seed, passes, verbose, scales))
            errors = {smooth_interval.NAME: DRAWN}
            return types.SimpleNamespace(errors_of_class=lambda *_: errors)

        return make

    monkeypatch.setattr(smooth_interval, "LARGE", 20)
    monkeypatch.setattr(smooth_interval, "TOO_LARGE", 40)
    monkeypatch.setattr(smooth_interval, "CellResamples", kind("cells"))
    monkeypatch.setattr(smooth_interval, "Resamples", kind("rows"))
    monkeypatch.setattr(smooth_interval, "smooth_error", lambda events: 0.1)
    calibrated = {smooth_interval.NAME: np.full(101, 0.09)}
    draws = types.SimpleNamespace(errors_of_class=lambda *_: calibrated)
    for name in ("CalibratedDraws", "CellDraws"):
        monkeypatch.setattr(smooth_interval, name, lambda *_: draws)
    data = types.SimpleNamespace(weights=weights, unit=None, units=number)
    found = smooth_interval.smooth_error_with_interval(
        data, range(number), seed=3
    )
    assert float(found) == 0.1
    if expected is None:
        assert made == [] and np.isnan([found.low, found.high]).all()
        return
    assert made == [(expected, 200, 3, 1, 0, True)]
    # The noise has the quantiles -0.028 and 0.048. At the scale s of an end,
    # 0.12 s and this noise are the 0.12 of the resampled sample; at the upper
    # end a calibrated model has a value as small in all resamples. The sample
    # itself has 0.1.
    assert found.low == pytest.approx(0.1 - 0.048, abs=1e-12)
    assert found.high == pytest.approx(0.1 + 0.028, abs=1e-12)
    # What a calibrated model has in 95 % of cases is no evidence.
    calibrated[smooth_interval.NAME] = np.full(101, 0.11)
    found = smooth_interval.smooth_error_with_interval(
        data, range(number), seed=3
    )
    assert found.low == 0.0 and found.high > 0.1


@pytest.mark.parametrize("number", [300, 30_000])
def test_the_interval_of_a_calibrated_model_begins_at_zero(number):
    held = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        p = rng.random(number)
        labels = (rng.random(number) < p).astype(int)
        data = read_predictions(labels, p)
        for k in (None, 1):
            events = sort_events(*confidence_and_correct(data, k))
            found = smooth_interval.smooth_error_with_interval(
                data, events, k, seed
            )
            held.append(found.low == 0)
    assert np.mean(held) >= 0.8


def test_one_sample_or_image_has_no_interval():
    rng = np.random.default_rng(0)
    p = rng.dirichlet([0.2] * 3, (2, 10, 10))
    y = rng.integers(0, 3, (2, 10, 10))
    void = np.ones((2, 10, 10))
    void[0] = 0
    options = {"metrics": [smooth_interval.NAME], "num_resamples": 50}
    for given, known in (
        (([0], [[0.2, 0.8]]), False),
        ((y[:1], p[:1]), False),
        ((y, p, void), False),
        ((y, p), True),
    ):
        data = read_predictions(*given)
        expected = kc.metrics.calibration_errors(*given, verbose=0, **options)
        for k in (None, 1):
            events = sort_events(*confidence_and_correct(data, k), data.weights)
            found = smooth_interval.smooth_error_with_interval(data, events, k)
            assert np.isfinite([found.low, found.high]).tolist() == [known] * 2
            if k is None:
                error = expected[smooth_interval.NAME]
                assert float(found) == pytest.approx(float(error), abs=1e-12)
                assert np.isfinite(error.low) == known
        figure = kc.plots.reliability_diagram(*given)
        words = " ".join(each.get_text() for each in figure.findobj(text.Text))
        number = "[0-9.]+"
        assert re.search(f"smooth ECE {number}", words)
        assert bool(re.search(rf"{number} \[{number}, {number}\]", words)) == (
            known
        )
        pyplot.close(figure)
        page = kc.report(
            given[1],
            y=given[0],
            sample_weight=(*given, None)[2],
            num_resamples=20,
            verbose=0,
        )._repr_html_()
        page = re.search(f"smooth ECE {number}[^<]*", page)[0]
        assert ("[" in page) == known
