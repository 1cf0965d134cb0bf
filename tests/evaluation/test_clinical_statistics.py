"""Numbers of the clinical panel, by name in `calibration_errors`."""

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.evaluation import clinical_panel
from keras_calib.evaluation import clinical_statistics
from keras_calib.evaluation.grid_bootstrap import SCALES
from keras_calib.evaluation.interval_ends import interval_ends
from keras_calib.evaluation.logistic_recalibration import logistic_recalibration
from keras_calib.evaluation.named_errors import CLINICAL
from keras_calib.evaluation.named_errors import INDICES
from keras_calib.inputs.predictions import read_predictions

SLOPE = "calibration_slope"
INDEX = "integrated_calibration_index"


def sample(n, power=1.0, seed=0):
    """Outcomes, and probabilities of which the log-odds have this slope."""
    rng = np.random.default_rng(seed)
    p = rng.beta(2, 3, n)
    risk = 1 / (1 + ((1 - p) / p) ** power)
    return (rng.random(n) < risk).astype(int), p


def test_they_are_those_of_the_panel():
    y, p = sample(300, 0.6)
    panel = kc.metrics.clinical_panel(y, p, num_draws=1000)
    found = kc.metrics.calibration_errors(y, p, metrics=CLINICAL, floor=True)
    floors = {f"{INDEX}_floor{end}" for end in ("", "_low", "_high")}
    assert set(found) == {*CLINICAL, *floors}
    assert found == {name: panel[name] for name in found}


@pytest.mark.parametrize(
    "names", [["spiegelhalter_z"], ["calibration_in_the_large"], [INDEX]]
)
def test_what_is_not_asked_for_is_not_fitted(names, monkeypatch):
    y, p = sample(200)
    expected = kc.metrics.clinical_panel(y, p, num_draws=0)

    def fit(*_):
        pytest.fail("the recalibration was fitted")

    monkeypatch.setattr(clinical_panel, "logistic_recalibration", fit)
    found = kc.metrics.calibration_errors(y, p, metrics=names)
    assert found == {name: expected[name] for name in names}


def test_a_resample_has_no_floor_of_its_own(monkeypatch):
    y, p = sample(60)
    panel, draws = clinical_statistics.panel_of_predictions, []

    def seen(data, *, num_draws, **options):
        draws.append(num_draws)
        return panel(data, num_draws=num_draws, **options)

    monkeypatch.setattr(clinical_statistics, "panel_of_predictions", seen)
    kc.metrics.calibration_errors(
        y, p, metrics=[INDEX, SLOPE], floor=True, num_resamples=3
    )
    assert draws[0] > 0 and draws[1:] == [0, 0, 0]


@pytest.mark.slow
@pytest.mark.one_backend
@pytest.mark.parametrize("power", [1.0, 0.6])
def test_intervals_of_the_indices_hold_the_true_value(power):
    """Percentiles of resamples would be above 0 of a calibrated model."""
    p = np.random.default_rng(9).beta(2, 3, 100_000)
    gap = np.abs(1 / (1 + ((1 - p) / p) ** power) - p)
    true = [gap.mean(), *np.quantile(gap, [0.5, 0.9]), gap.max()]
    held = np.zeros(len(INDICES))
    for seed in range(20):
        found = kc.metrics.calibration_errors(
            *sample(200, power, seed=seed),
            metrics=INDICES,
            num_resamples=40,
            verbose=0,
        )
        held += [
            found[name].low <= value <= found[name].high
            for name, value in zip(INDICES, true, strict=True)
        ]
    # A binomial of 20 with 0.95 is below 16 once in four hundred.
    assert held.min() >= 16, held


def test_a_scaled_index_is_that_of_the_sample_where_it_is_itself():
    y, p = sample(150, 0.6)
    found, _ = clinical_statistics.clinical_statistics(
        read_predictions(y, p),
        INDICES,
        3,
        num_draws=0,
        scales=True,
        seed=0,
        verbose=0,
    )
    for name in INDICES:
        value, at_scales = found[name][0, 0], found[name][0, 1:]
        # The sample has its gaps and no noise.
        np.testing.assert_allclose(at_scales, SCALES * value, rtol=1e-9)


def test_intervals_are_those_of_the_standard_error():
    y, p = sample(1000)
    error = kc.metrics.clinical_panel(y, p, num_draws=0)[f"{SLOPE}_se"]
    found = kc.metrics.calibration_errors(
        y, p, metrics=[SLOPE], num_resamples=400, verbose=0
    )[SLOPE]
    # The ends of 400 resamples have a relative error of about 7 %.
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.2)
    assert found.low < 1 < found.high


def test_the_interval_of_a_slope_is_symmetric():
    y, p = sample(150)
    percentile, found = (
        kc.metrics.calibration_errors(
            y, p, metrics=[SLOPE], interval=kind, num_resamples=60, verbose=0
        )[SLOPE]
        for kind in ("percentile", "auto")
    )
    assert found.high - found == pytest.approx(found - found.low)
    width = percentile.high - percentile.low
    assert found.high - found.low == pytest.approx(width)
    # Slopes of resamples are steeper.
    assert percentile.high - found > 1.1 * (found - percentile.low)


def test_a_slope_of_resamples_that_a_threshold_separates():
    drawn = np.array([1.0, 0.5, 0.8, 1.2, np.inf])
    for basic in (False, True):
        ends = interval_ends(SLOPE, drawn, 0.9, basic=basic)
        assert ends == (0.5, np.inf)


@pytest.mark.slow
@pytest.mark.one_backend
def test_intervals_of_the_slope_hold_the_true_value():
    """Percentiles do so in 168 of these samples."""
    held = 0
    for seed in range(200):
        found = kc.metrics.calibration_errors(
            *sample(60, seed=seed),
            np.random.default_rng(seed).exponential(size=60),
            metrics=[SLOPE],
            num_resamples=60,
            seed=seed,
            verbose=0,
        )[SLOPE]
        held += found.low <= 1.0 <= found.high
    # A binomial of 200 with 0.95 is below 180 once in a thousand.
    assert held >= 180


def test_rows_of_a_patient_are_drawn_together():
    y, p = sample(250)
    patient = np.arange(250).repeat(4)
    error = kc.metrics.clinical_panel(y, p, num_draws=0)[f"{SLOPE}_se"]
    found = kc.metrics.calibration_errors(
        y.repeat(4),
        p.repeat(4),
        metrics=[SLOPE],
        clusters=patient,
        num_resamples=400,
        verbose=0,
    )[SLOPE]
    # Four times the same row say nothing new.
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.2)


def test_weights_count_in_resamples():
    y, p = sample(800)
    y[400:] = 1 - y[400:]
    weights = np.repeat([1.0, 1e-9], 400)
    keywords = {"metrics": [SLOPE], "num_resamples": 40, "verbose": 0}
    found = kc.metrics.calibration_errors(y, p, weights, **keywords)[SLOPE]
    kept = kc.metrics.calibration_errors(y[:400], p[:400], **keywords)[SLOPE]
    assert found == pytest.approx(kept, rel=1e-5)
    plain = kc.metrics.calibration_errors(y, p, **keywords)[SLOPE]
    assert found.low > plain.high


def test_what_does_not_exist_is_nan_and_told():
    p = np.linspace(0.1, 0.9, 20)
    with pytest.warns(UserWarning, match="event always"):
        found = kc.metrics.calibration_errors(
            np.ones(20, int), p, metrics=[SLOPE, "calibration_in_the_large"]
        )
    assert np.isnan(found[SLOPE])
    assert found["calibration_in_the_large"] == pytest.approx(0.5)


def test_they_are_of_two_classes():
    p = np.full((10, 3), 1 / 3)
    y = np.arange(10) % 3
    assert kc.metrics.calibration_errors(y, p, metrics=CLINICAL) == {}
    soft = np.full((10, 2), 0.5)
    with pytest.raises(ValueError, match="happened or not"):
        kc.metrics.calibration_errors(soft, soft, metrics=[SLOPE])


def test_the_worst_group_is_the_farthest_from_the_ideal():
    parts = [sample(400, power) for power in (1.0, 3.0, 0.5)]
    y, p = (np.concatenate(v) for v in zip(*parts, strict=True))
    group = np.repeat(["right", "timid", "extreme"], 400)
    found = kc.metrics.calibration_errors(y, p, metrics=[SLOPE], groups=group)
    slopes = {key: row[SLOPE] for key, row in found["groups"].items()}
    assert slopes["extreme"] < slopes["right"] < slopes["timid"]
    assert found["worst_group"][SLOPE] == "timid"


def test_an_intercept_without_information_has_no_standard_error():
    # Both risks are 1 and 0 as float64: p (1 - p) of each row is 0.
    found, reasons = logistic_recalibration(
        np.array([800.0, -800.0]), np.array([1, 0])
    )
    assert found["calibration_intercept"] == 0.0
    assert np.isnan(found["calibration_intercept_se"])
    assert np.isnan(found[SLOPE]) and len(reasons) == 1
