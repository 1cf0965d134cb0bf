"""The clinical panel: worked numbers, peers, edge cases, simulated sizes."""

import math
import pathlib
import warnings

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.evaluation import calibration_index
from keras_calib.evaluation.calibration_index import weighted_quantiles
from keras_calib.evaluation.events import sort_events
from keras_calib.evaluation.logistic_recalibration import logistic_recalibration
from keras_calib.evaluation.logistic_recalibration import two_sided
from keras_calib.solvers.loess import loess_matrix
from tests.metrics.oracles import generated_set
from tests.metrics.oracles import softmax

panel = kc.metrics.clinical_panel
P = np.repeat([0.2, 0.8], [4, 6])
Y = np.array([1, 0, 0, 0, 1, 1, 1, 1, 0, 0])
EIGHT = np.array([0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9])
HAPPENED = np.array([0, 0, 1, 0, 1, 0, 1, 1])
INDEX = ("integrated_calibration_index", "e50", "e90", "emax")
EXACT = {"rel": 1e-8, "abs": 1e-12}
# The sheet of formulas has ten digits.
TEN = {"rel": 1e-8, "abs": 6e-11}


def log_odds(p):
    return np.log(p) - np.log1p(-p)


def generated():
    """Top label: outcome and confidence; labels and all probabilities."""
    labels, logits = generated_set()
    p = softmax(logits)
    correct = (p.argmax(axis=1) == labels).astype(int)
    return correct, p.max(axis=1), labels, p


def flat(found):
    """Without dicts inside, which `approx` does not take."""
    plain = {k: v for k, v in found.items() if not isinstance(v, dict)}
    for name in ("net_benefit", "net_benefit_of_all"):
        plain |= {f"{name}_{t}": v for t, v in found[name].items()}
    return plain


def fits(found):
    return {name: value for name, value in found.items() if name in FITS}


FITS = {
    "calibration_slope": math.log(6) / (4 * math.log(2)),
    "joint_intercept": -math.log(1.5) / 2,
    "calibration_intercept": math.log((math.sqrt(73) - 3) / 8),
    "calibration_in_the_large": -0.06,
    "observed_expected_ratio": 0.8928571429,
    "likelihood_ratio": 0.6437860165,
    "likelihood_ratio_p": 0.7247757312,
    "slope_likelihood_ratio": 0.4221212375,
    "spiegelhalter_z": 0.6 / math.sqrt(0.576),
    "spiegelhalter_p": 0.4291953004,
    "calibration_slope_se": 0.5205877314,
    "joint_intercept_se": 0.7216878365,
    "calibration_intercept_se": 0.7732657373,
}


@pytest.mark.parametrize("smoother", ["isotonic", "loess"])
def test_two_levels_by_hand(smoother):
    found = panel(Y, P, smoother=smoother)
    assert fits(found) == pytest.approx(FITS, **TEN)
    assert found["num_rows"] == 10 and found["num_clipped"] == 0
    assert found["event_rate"] == pytest.approx(0.5)
    assert found["mean_probability"] == pytest.approx(0.56)
    # Rates of 1/4 and 2/3. The window of loess holds the ties alone.
    wanted = [0.1, *[2 / 3 - 0.8] * 3]
    assert [found[k] for k in INDEX] == pytest.approx(np.abs(wanted), **EXACT)
    assert found["net_benefit"] == pytest.approx(
        {0.25: 1 / 3, 0.5: 0.2, 0.75: -0.2}, **EXACT
    )
    assert found["net_benefit_of_all"] == pytest.approx(
        {0.25: 1 / 3, 0.5: 0.0, 0.75: -1.0}, **EXACT
    )


def test_eight_rows():
    found = panel(HAPPENED, EIGHT)
    assert found["calibration_slope"] == pytest.approx(1.0739414552, **TEN)
    assert found["calibration_slope_se"] == pytest.approx(0.7645079218, **TEN)
    for name in ("joint_intercept", "calibration_intercept", "spiegelhalter_z"):
        assert found[name] == pytest.approx(0.0, abs=1e-9)
    assert [found[name] for name in INDEX] == pytest.approx(
        [0.0654841767, 0.0625070848, 0.1329073002, 0.1329073002], **TEN
    )
    found = panel(HAPPENED, EIGHT, smoother="isotonic")
    wanted = [0.15, 0.15, 0.2, 0.2]
    assert [found[name] for name in INDEX] == pytest.approx(wanted, **EXACT)


def test_loess_of_degree_1():
    curve = loess_matrix(EIGHT, EIGHT, span=2 / 3, degree=1) @ HAPPENED
    assert np.abs(curve - EIGHT).mean() == pytest.approx(0.0543444188, **TEN)


TOP_LABEL = {
    "calibration_slope": 0.4878733005,
    "calibration_slope_se": 0.0629744487,
    "joint_intercept": -0.2785421161,
    "calibration_intercept": -1.1200566551,
    "calibration_in_the_large": -0.1235751851,
    "observed_expected_ratio": 0.8552263617,
    "likelihood_ratio": 118.3083140,
    "slope_likelihood_ratio": 46.1664847,
    "spiegelhalter_z": 12.7278249459,
    "integrated_calibration_index": 0.1259439945,
    "e50": 0.1186796522,
    "e90": 0.2550592297,
    "emax": 0.2890463811,
}
CLASS_0 = {
    "calibration_slope": 0.5052326823,
    "calibration_slope_se": 0.0563782800,
    "joint_intercept": -0.8838663292,
    "calibration_intercept": -1.1114222949,
    "calibration_in_the_large": -0.0475410628,
    "observed_expected_ratio": 0.7854074445,
    "likelihood_ratio": 69.1332804,
    "slope_likelihood_ratio": 43.3614681,
    "spiegelhalter_z": 7.2518104845,
    "integrated_calibration_index": 0.0615360949,
    "e50": 0.0099211736,
    "e90": 0.2077713153,
    "emax": 0.2610164914,
}
ISOTONIC = {
    "top label": [0.1235910330, 0.1081267963, 0.2347461133, 0.3574084856],
    "class 0": [0.0579794522, 0.0032755940, 0.2064409195, 0.4679694271],
}
NET_BENEFIT = {
    "top label": ([0.64, 0.468, 0.184], [0.64, 0.46, -0.08]),
    "class 0": (
        [0.1166666667, 0.064, -0.026],
        [-0.1013333333, -0.652, -2.304],
    ),
}


@pytest.mark.parametrize(
    "name, wanted", [("top label", TOP_LABEL), ("class 0", CLASS_0)]
)
def test_generated_set(name, wanted):
    correct, confidence, labels, p = generated()
    y, p = (
        (correct, confidence) if name == "top label" else (labels == 0, p[:, 0])
    )
    # As logits nothing is clipped, as in the sheet.
    found = panel(y * 1, log_odds(p), from_logits=True, num_draws=0)
    found = {key: found[key] for key in wanted}
    # Ten decimals of small numbers are fewer digits.
    assert found == pytest.approx(wanted, rel=1e-8, abs=6e-11)
    found = panel(y * 1, p, smoother="isotonic", num_draws=0)
    values = [found[key] for key in INDEX]
    assert values == pytest.approx(ISOTONIC[name], **TEN)
    for key, row in zip(
        ("net_benefit", "net_benefit_of_all"), NET_BENEFIT[name], strict=True
    ):
        assert list(found[key].values()) == pytest.approx(row, **TEN)
    # One to three probabilities are beyond 1e-12, and are clipped.
    assert found["num_clipped"] == np.sum((p < 1e-12) | (p > 1 - 1e-12))
    assert 0 < found["num_clipped"] < 4
    assert found["calibration_slope"] == pytest.approx(
        wanted["calibration_slope"], rel=1e-6
    )


def test_each_class_against_the_rest():
    labels, logits = generated_set()
    found = [
        panel(labels, logits, positive_class=k, from_logits=True, num_draws=0)
        for k in range(5)
    ]
    slopes = [each["calibration_slope"] for each in found]
    wanted = [0.5052, 0.5255, 0.5004, 0.5366, 0.4959]
    assert slopes == pytest.approx(wanted, abs=5e-5)
    assert np.mean(slopes) == pytest.approx(0.5127141547, **TEN)
    index = [each["integrated_calibration_index"] for each in found]
    wanted = [0.0615, 0.0416, 0.0431, 0.0541, 0.0842]
    assert index == pytest.approx(wanted, abs=5e-5)
    assert np.mean(index) == pytest.approx(0.0568953047, **TEN)


def test_weights():
    correct, confidence, _, _ = generated()
    weights = 1 + np.arange(500) % 3
    z = log_odds(confidence)
    for factor in (1.0, 1e-3, 100.0):
        found = panel(
            correct, z, factor * weights, from_logits=True, num_draws=0
        )
        assert found["calibration_slope"] == pytest.approx(0.4296826424, **TEN)
        assert found["calibration_intercept"] == pytest.approx(
            -1.1615529690, **TEN
        )
        assert found["spiegelhalter_z"] == pytest.approx(12.7363988, **TEN)
        assert found["net_benefit"][0.5] == pytest.approx(0.4654654655, **TEN)
    # Those of 0 are left out.
    weights = np.append(weights, [0, 0])
    more = panel(
        np.append(correct, [0, 1]),
        np.append(z, [3.0, -2.0]),
        weights,
        from_logits=True,
        num_draws=0,
    )
    assert flat(more) == pytest.approx(flat(found), rel=1e-9)


def test_isotonic_index_takes_weights_as_repetitions():
    rng = np.random.default_rng(0)
    p, y = rng.random(60).round(2), rng.integers(0, 2, 60)
    weights = rng.integers(1, 4, 60)
    options = {"smoother": "isotonic", "num_draws": 0}
    found = panel(y, p, weights, **options)
    repeated = panel(y.repeat(weights), p.repeat(weights), **options)
    for name in ("integrated_calibration_index", "emax", "calibration_slope"):
        assert found[name] == pytest.approx(repeated[name], **EXACT)


def test_weighted_quantiles():
    rng = np.random.default_rng(1)
    values = rng.random(21)
    q = [0.0, 0.5, 0.9, 1.0]
    found = weighted_quantiles(values, q, np.full(21, 0.3))
    assert found == pytest.approx(np.quantile(values, q))
    # Their places are 0, 1/2 and 1.
    values, weights = np.array([1.0, 3.0, 2.0]), np.array([1, 1, 3])
    found = weighted_quantiles(values, [0.25], weights)
    assert found == pytest.approx([1.5])


def test_statsmodels_agrees_on_the_fits():
    models = pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(2)
    p = rng.beta(1, 2, 300)
    y = (rng.random(300) < p**1.3).astype(float)
    weights = rng.integers(1, 4, 300).astype(float)
    weights *= 300 / weights.sum()
    z = log_odds(p)
    family = models.families.Binomial()
    features = models.add_constant(z)
    for weighted in (False, True):
        w = weights if weighted else np.ones(300)
        found, _ = logistic_recalibration(z, y, w)
        joint = models.GLM(y, features, family, var_weights=w)
        offset = models.GLM(y, features[:, :1], family, offset=z, var_weights=w)
        fits = [each.fit(tol=1e-14) for each in (joint, offset)]
        robust = [
            each.fit(tol=1e-14, cov_type="HC0") for each in (joint, offset)
        ]
        for name, which, place in (
            ("joint_intercept", 0, 0),
            ("calibration_slope", 0, 1),
            ("calibration_intercept", 1, 0),
        ):
            theirs = fits[which]
            assert found[name] == pytest.approx(theirs.params[place], rel=1e-8)
            error = theirs.bse[place]
            if weighted:  # the larger of two sandwiches
                q, x = theirs.fittedvalues, theirs.model.exog
                spread = (x * (w**2 * q * (1 - q))[:, None]).T @ x
                bread = theirs.normalized_cov_params
                error = np.sqrt((bread @ spread @ bread)[place, place])
                error = max(error, robust[which].bse[place])
            assert found[f"{name}_se"] == pytest.approx(error, rel=1e-7)
        ratio = 2 * (fits[0].llf - fits[1].llf)
        if weighted:
            ratio *= (fits[0].bse[1] / found["calibration_slope_se"]) ** 2
        assert found["slope_likelihood_ratio"] == pytest.approx(ratio, rel=1e-8)


def test_statsmodels_agrees_on_loess_of_degree_1():
    models = pytest.importorskip("statsmodels.api")
    _, confidence, labels, p = generated()
    for x, y in ((p[:, 0], labels == 0), (p[:, 1], labels == 1)):
        x, order = np.sort(x), np.argsort(x)
        y = y[order].astype(float)
        theirs = models.nonparametric.lowess(y, x, 0.75, it=0, delta=0.0)
        ours = loess_matrix(x, x, span=0.75, degree=1) @ y
        np.testing.assert_allclose(ours, theirs[:, 1], rtol=1e-6, atol=1e-9)
    assert len(confidence) == 500


def test_loess_of_degree_1_is_that_of_the_sheet():
    # Of probcal and of statsmodels' lowess.
    correct, confidence, labels, p = generated()
    for x, y, wanted in (
        (confidence, correct, 0.1168531578),
        (p[:, 0], labels == 0, 0.0589612653),
    ):
        order = np.argsort(x)
        x, y = x[order], y[order].astype(float)
        curve = loess_matrix(x, x, degree=1) @ y
        assert np.abs(curve - x).mean() == pytest.approx(wanted, **TEN)


def test_scikit_learn_agrees_on_the_slope():
    linear_model = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(3)
    z = rng.normal(size=200)
    y = (rng.random(200) < 1 / (1 + np.exp(-2 * z))).astype(int)
    theirs = linear_model.LogisticRegression(C=np.inf, tol=1e-10).fit(
        z[:, None], y
    )
    found, _ = logistic_recalibration(z, y)
    assert found["calibration_slope"] == pytest.approx(
        theirs.coef_[0, 0], rel=1e-4
    )


def test_probcal_agrees():
    metrics = pytest.importorskip("probcal.metrics")
    rng = np.random.default_rng(9)
    p = rng.beta(1, 2, 400)
    y = (rng.random(400) < p**1.2).astype(int)
    weights = rng.integers(1, 4, 400)
    found = panel(y, p, weights, smoother="isotonic", num_draws=0)
    theirs = metrics.spiegelhalter_z(y, p, sample_weight=weights)
    assert found["spiegelhalter_z"] == pytest.approx(theirs.z, rel=1e-8)
    assert found["spiegelhalter_p"] == pytest.approx(theirs.p_value, rel=1e-8)
    slope = metrics.calibration_slope(y, p, sample_weight=weights)
    assert found["calibration_slope"] == pytest.approx(slope, rel=5e-8)
    # Theirs is of degree 1.
    order = np.argsort(p)
    x, ours = p[order], loess_matrix(p[order], p[order], degree=1) @ y[order]
    theirs = metrics.ici(y, p, grid_size=None)
    assert np.abs(ours - x).mean() == pytest.approx(theirs, rel=1e-8)


def test_published_decision_curve():
    # The data of the tutorial of decision curve analysis, 750 patients.
    dcurves = pytest.importorskip("dcurves")
    pandas = pytest.importorskip("pandas")
    data = pandas.read_csv(pathlib.Path(dcurves.data, "df_binary.csv"))
    y, p = (data[name].to_numpy() for name in ("cancer", "cancerpredmarker"))
    found = panel(y, p, thresholds=(0.1, 0.25), num_draws=0)
    assert found["num_rows"] == 750
    theirs = dcurves.dca(data, "cancer", ["cancerpredmarker"], [0.1, 0.25])
    theirs = theirs[theirs["model"] == "cancerpredmarker"]["net_benefit"]
    ours = list(found["net_benefit"].values())
    assert ours == pytest.approx(theirs.to_list(), rel=1e-8)
    assert list(found["net_benefit"].values()) == pytest.approx(
        [0.0874074074, 0.064], **TEN
    )
    assert list(found["net_benefit_of_all"].values()) == pytest.approx(
        [0.0444444444, -0.1466666667], **TEN
    )
    # The model was fitted to these patients.
    assert found["calibration_slope"] == pytest.approx(1, abs=1e-6)
    assert found["calibration_intercept"] == pytest.approx(0, abs=1e-6)


def test_p_values():
    stats = pytest.importorskip("scipy.stats")
    for z in (0.0, -1.3, 2.5, 8.0):
        wanted = 2 * stats.norm.sf(abs(z))
        assert two_sided(z) == pytest.approx(wanted, rel=1e-12)
    found = panel(Y, P, num_draws=0)
    for name, degrees in (
        ("likelihood_ratio", 2),
        ("slope_likelihood_ratio", 1),
    ):
        wanted = stats.chi2.sf(found[name], degrees)
        assert found[f"{name}_p"] == pytest.approx(wanted, rel=1e-10)
    slope, error = found["calibration_slope"], found["calibration_slope_se"]
    wanted = 2 * stats.norm.sf(abs(slope - 1) / error)
    assert found["slope_p"] == pytest.approx(wanted, rel=1e-10)


def test_every_form_of_the_input():
    options = {"num_draws": 50}
    wanted = panel(Y, P, **options)
    forms = [
        panel(Y, P[:, None], **options),
        panel(Y, np.stack([1 - P, P], axis=1), **options),
        panel(np.eye(2)[Y], np.stack([1 - P, P], axis=1), **options),
        panel(1 - Y, np.stack([P, 1 - P], axis=1), positive_class=0, **options),
        panel(Y, log_odds(P), from_logits=True, **options),
        panel(Y.tolist(), keras.ops.convert_to_tensor(P, "float64"), **options),
    ]
    void = np.append(Y, 7), np.append(P, 0.3)
    forms.append(panel(*void, ignore_class=7, **options))
    for found in forms:
        assert found.keys() == wanted.keys()
        assert flat(found) == pytest.approx(flat(wanted), rel=1e-6, abs=1e-9)


def test_logits_of_a_class_that_is_ruled_out_are_clipped():
    z = np.column_stack([np.zeros(10), log_odds(P), np.full(10, -np.inf)])
    found = panel(Y, z, from_logits=True, num_draws=0)
    wanted = panel(Y, P, num_draws=0)
    assert flat(found) == pytest.approx(flat(wanted), rel=1e-9)
    z[0, 1], z[9, 0] = -np.inf, -np.inf
    found = panel(Y, z, from_logits=True, num_draws=0)
    assert found["num_clipped"] == 2
    p = P.copy()
    p[[0, 9]] = 0.0, 1.0
    wanted = panel(Y, p, num_draws=0)
    assert flat(found) == pytest.approx(flat(wanted), rel=1e-9)
    # Large logits keep their digits: no clip.
    z = np.array([40.0, -35.0, 1.0, -1.0, 0.5, 50.0])
    y = np.array([1, 0, 0, 1, 1, 0])
    found = panel(y, z, from_logits=True, num_draws=0)
    assert found["num_clipped"] == 0
    same, _ = logistic_recalibration(z, y)
    assert found["calibration_slope"] == pytest.approx(
        same["calibration_slope"], rel=1e-9
    )


SLOPE = ("calibration_slope", "calibration_slope_se", "slope_p")
SLOPE += ("joint_intercept", "joint_intercept_se", "likelihood_ratio")
SLOPE += ("likelihood_ratio_p", "slope_likelihood_ratio")
SLOPE += ("slope_likelihood_ratio_p",)
OFFSET = ("calibration_intercept", "calibration_intercept_se")


def missing(found):
    return {
        name
        for name, value in found.items()
        if isinstance(value, float) and math.isnan(value)
    }


@pytest.mark.parametrize("happened", [0, 1])
def test_one_class_only(happened):
    with pytest.warns(UserWarning, match="(always|never) happened"):
        found = panel(np.full(10, happened), P)
    assert missing(found) == {*SLOPE, *OFFSET}
    assert found["calibration_in_the_large"] == pytest.approx(happened - 0.56)


@pytest.mark.parametrize("direction", [1, -1])
def test_separated_outcomes(direction):
    y = (direction * (EIGHT - 0.5) > 0).astype(int)
    with pytest.warns(UserWarning, match="separates"):
        found = panel(y, EIGHT)
    assert missing(found) == set(SLOPE)
    # A tie on the threshold does not make the slope finite.
    with pytest.warns(UserWarning, match="separates"):
        found = panel(
            np.append(y, [0, 1]), np.append(EIGHT, [0.5, 0.5]), num_draws=0
        )
    assert missing(found) == set(SLOPE)


def test_equal_probabilities():
    with pytest.warns(UserWarning, match="all probabilities are equal"):
        found = panel(Y, np.full(10, 0.4))
    assert missing(found) == set(SLOPE)
    # logit .5 - logit .4
    assert found["calibration_intercept"] == pytest.approx(math.log(1.5))
    assert found["integrated_calibration_index"] == pytest.approx(0.1)
    assert found["emax"] == pytest.approx(0.1)


def test_probabilities_that_hardly_differ():
    p = 0.4 + 1e-15 * np.arange(10)
    with pytest.warns(UserWarning, match="hardly differ"):
        found = panel(Y, p)
    assert missing(found) == set(SLOPE)


def test_probabilities_without_a_z():
    with pytest.warns(UserWarning, match="Spiegelhalter"):
        found = panel(Y, np.repeat([0.0, 1.0, 0.5], [3, 4, 3]))
    assert {"spiegelhalter_z", "spiegelhalter_p"} <= missing(found)
    assert found["num_clipped"] == 7
    assert math.isfinite(found["calibration_slope"])
    with pytest.warns(UserWarning) as caught:
        found = panel(Y, np.zeros(10))
    assert any("O/E" in str(each.message) for each in caught)
    assert math.isnan(found["observed_expected_ratio"])


def test_one_row():
    with pytest.warns(UserWarning) as caught:
        found = panel([1], [0.3])
    assert sum("one row" in str(each.message) for each in caught) == 2
    assert found["calibration_in_the_large"] == pytest.approx(0.7)
    assert found["observed_expected_ratio"] == pytest.approx(1 / 0.3)
    assert {*INDEX, "spiegelhalter_z", *SLOPE, *OFFSET} <= missing(found)


def test_what_is_complete_has_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = panel(Y, P)
    assert not missing(found)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"thresholds": (0.5, 1.0)}, "thresholds"),
        ({"thresholds": (0.0,)}, "thresholds"),
        ({"smoother": "spline"}, "smoother"),
        ({"positive_class": 2}, "positive_class"),
        ({"positive_class": -1}, "positive_class"),
        ({"num_draws": -1}, "num_draws"),
        ({"sample_weight": np.zeros(10)}, "No row counts"),
    ],
)
def test_arguments_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        panel(Y, P, **options)


def test_no_rows_and_soft_labels():
    with pytest.raises(ValueError, match="No row counts"):
        panel(np.zeros(0, int), np.zeros(0))
    with pytest.raises(ValueError, match="soft"):
        panel(np.full((3, 2), 0.5), np.full((3, 2), 0.5))


@pytest.mark.slow
@pytest.mark.one_backend
def test_the_floor_is_the_index_of_drawn_outcomes():
    rng = np.random.default_rng(4)
    p = rng.random(120)
    for smoother in ("loess", "isotonic"):
        found = panel(
            rng.integers(0, 2, 120), p, smoother=smoother, num_draws=400
        )
        drawn = [
            panel(
                (rng.random(120) < p).astype(int),
                p,
                smoother=smoother,
                num_draws=0,
            )["integrated_calibration_index"]
            for _ in range(400)
        ]
        error = np.std(drawn) * math.sqrt(2 / 400)
        floor = found["integrated_calibration_index_floor"]
        assert abs(floor - np.mean(drawn)) < 4 * error
        low, high = (
            found[f"integrated_calibration_index_floor_{end}"]
            for end in ("low", "high")
        )
        inside = np.mean((np.array(drawn) >= low) & (np.array(drawn) <= high))
        assert inside > 0.9 and low < floor < high
    again = panel(Y, P, seed=1), panel(Y, P, seed=1), panel(Y, P, seed=2)
    name = "integrated_calibration_index_floor"
    assert again[0][name] == again[1][name] != again[2][name]


@pytest.mark.parametrize("weighted", [False, True])
def test_many_rows_are_joined(weighted, monkeypatch):
    rng = np.random.default_rng(5)
    p = np.append(rng.random(3500) ** 0.25, np.full(500, 0.875))
    y = (rng.random(4000) < 1 / (1 + np.exp(-0.7 * log_odds(p)))) * 1.0
    weights = rng.uniform(0.5, 2, 4000) if weighted else None
    found = {}
    for smoother in ("loess", "isotonic"):
        for large in (20_000, 2000):
            monkeypatch.setattr(calibration_index, "LARGE", large)
            found[smoother, large] = calibration_index.calibration_index(
                sort_events(p, y, weights), smoother=smoother, num_draws=200
            )
        ours, joined = found[smoother, 20_000], found[smoother, 2000]
        name = "integrated_calibration_index"
        assert joined[name] == pytest.approx(ours[name], rel=0.02)
        assert joined[f"{name}_floor"] == pytest.approx(
            ours[f"{name}_floor"], rel=0.1
        )


def test_quantiles_of_the_probabilities_are_enough(monkeypatch):
    # Of the sheet: .125885 for .125944 of the top label.
    correct, confidence, _, _ = generated()
    events = sort_events(confidence, correct)
    monkeypatch.setattr(calibration_index, "MOST_PLACES", 100)
    found = calibration_index.calibration_index(events, num_draws=0)
    assert found["integrated_calibration_index"] == pytest.approx(
        0.125885, abs=5e-7
    )


def test_order_of_rows_changes_nothing():
    rng = np.random.default_rng(6)
    p, y = rng.random(700).round(2), rng.integers(0, 2, 700)
    order = rng.permutation(700)
    for smoother in ("loess", "isotonic"):
        found = panel(y, p, smoother=smoother, num_draws=50)
        other = panel(y[order], p[order], smoother=smoother, num_draws=50)
        assert flat(found) == pytest.approx(flat(other), rel=1e-9)


@pytest.mark.slow
@pytest.mark.one_backend
def test_size_of_spiegelhalters_test(record_property):
    # The sheet: .045 of 2,000 sets of 200, Monte Carlo error .005.
    rng = np.random.default_rng(3)
    rejected = []
    for _ in range(2000):
        p = rng.random(200) ** 0.25
        y = (rng.random(200) < p).astype(int)
        found = panel(y, p, smoother="isotonic", num_draws=0)
        rejected.append(found["spiegelhalter_p"] < 0.05)
    size = float(np.mean(rejected))
    record_property("size", size)
    assert abs(size - 0.05) < 4 * math.sqrt(0.05 * 0.95 / 2000)


@pytest.mark.slow
@pytest.mark.one_backend
def test_standard_errors_and_tests_of_the_fits(record_property):
    rng = np.random.default_rng(7)
    z = rng.normal(size=400) * 1.5
    slopes, errors, rejected = [], [], []
    for _ in range(1000):
        y = (rng.random(400) < 1 / (1 + np.exp(-z))).astype(int)
        found, _ = logistic_recalibration(z, y)
        slopes.append(found["calibration_slope"])
        errors.append(found["calibration_slope_se"])
        rejected.append(
            [
                found[name] < 0.05
                for name in (
                    "slope_p",
                    "likelihood_ratio_p",
                    "slope_likelihood_ratio_p",
                )
            ]
        )
    sizes = np.mean(rejected, axis=0)
    record_property("sizes", sizes.tolist())
    assert np.abs(sizes - 0.05).max() < 4 * math.sqrt(0.05 * 0.95 / 1000)
    # A standard deviation of 1,000 values is known to 2.2 %.
    assert np.mean(errors) == pytest.approx(np.std(slopes), rel=0.09)


@pytest.mark.slow
@pytest.mark.one_backend
@pytest.mark.parametrize("kind", ["any", "of events"])
def test_weights_leave_the_tests_of_the_fits_their_level(kind):
    """As repetitions they would reject 15 to 49 % of calibrated models."""
    rng = np.random.default_rng(11)
    names = ("slope_p", "likelihood_ratio_p", "slope_likelihood_ratio_p")
    rejected, missed, draws = [], 0, 500
    for _ in range(draws):
        z = rng.normal(size=1500) * 1.5 - 2
        y = (rng.random(1500) < 1 / (1 + np.exp(-z))).astype(int)
        if kind == "any":
            weights = rng.exponential(size=1500)
        else:  # one of five events was kept
            kept = (y == 0) | (rng.random(1500) < 0.2)
            z, y = z[kept], y[kept]
            weights = np.where(y == 1, 5.0, 1.0)
        found, _ = logistic_recalibration(z, y, weights / weights.mean())
        rejected.append([found[name] < 0.05 for name in names])
        intercept = found["calibration_intercept"]
        missed += abs(intercept) > 1.96 * found["calibration_intercept_se"]
    most = 0.05 + 4 * math.sqrt(0.05 * 0.95 / draws)
    assert np.mean(rejected, axis=0).max() < most
    assert missed / draws < most


def test_equal_weights_change_nothing_in_the_fits():
    rng = np.random.default_rng(12)
    z = rng.normal(size=100)
    y = (rng.random(100) < 1 / (1 + np.exp(-z))).astype(int)
    plain, _ = logistic_recalibration(z, y)
    assert logistic_recalibration(z, y, np.ones(100))[0] == plain
    # Nearly equal weights hardly do; unequal ones say less.
    near = 1 + 1e-6 * rng.normal(size=100)
    found, _ = logistic_recalibration(z, y, near / near.mean())
    for name in ("calibration_slope", "calibration_slope_se"):
        assert found[name] == pytest.approx(plain[name], rel=0.3)
    weights = rng.exponential(size=100)
    found, _ = logistic_recalibration(z, y, weights / weights.mean())
    for name in ("calibration_slope_se", "calibration_intercept_se"):
        assert found[name] > 1.1 * plain[name]


@pytest.mark.slow
@pytest.mark.one_backend
def test_floors_of_the_sheet():
    # Of 60 sets each; U^(1/4): loess .042 and .014, isotonic .052 and .023.
    rng = np.random.default_rng(8)
    for number, wanted in (
        (200, {"loess": 0.042, "isotonic": 0.052}),
        (2000, {"loess": 0.014, "isotonic": 0.023}),
    ):
        p = rng.random(number) ** 0.25
        y = (rng.random(number) < p).astype(float)
        for smoother, floor in wanted.items():
            found = calibration_index.calibration_index(
                sort_events(p, y), smoother=smoother, num_draws=400
            )
            value = found["integrated_calibration_index_floor"]
            assert value == pytest.approx(floor, rel=0.12)


def test_classes_are_on_the_last_axis():
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1, 1], (30, 2))
    labels = rng.integers(0, 2, (30, 2))
    # On axis 1 there would be two "classes" as well.
    found = kc.metrics.clinical_panel(labels, p, num_draws=0)
    flat = kc.metrics.clinical_panel(
        labels.ravel(), p.reshape(-1, 2), num_draws=0
    )
    for name in ("calibration_slope", "observed_expected_ratio"):
        assert found[name] == pytest.approx(flat[name], rel=1e-9)
