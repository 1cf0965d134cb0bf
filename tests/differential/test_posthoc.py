"""Maps and `kc.calibrate` against the reference, whatever form data has."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.differential import reference as ref
from tests.differential.cases import BY_NAME
from tests.differential.cases import CASES
from tests.differential.cases import cover
from tests.differential.cases import covering
from tests.differential.cases import some
from tests.helpers import to_numpy

# Maps that take any number of classes, and maps for two.
MAPS = {
    "TemperatureScaling": {},
    "BayesianTemperatureScaling": {},
    "BiasCorrectedTemperatureScaling": {},
    "ClassTemperatureScaling": {},
    "EnsembleTemperatureScaling": {},
    "ParameterizedTemperatureScaling": {"iterations": 20},
    "VectorScaling": {},
    "MatrixScaling": {},
    "DirichletScaling": {},
    "IntraOrderPreserving": {"iterations": 20},
    "SplineCalibration": {},
    "IsotonicCalibration": {},
    "HistogramBinning": {"num_bins": 5},
}
BINARY = {"PlattScaling": {}, "BetaCalibration": {}, "QuadraticScaling": {}}
ELSEWHERE = {
    "CalibrationLayer": "the base class",
    "DecisionLayer": "a base class",
    "ConformalSets": "no map: tests/layers/test_decisions.py",
    "RiskThreshold": "no map: tests/layers/test_decisions.py",
    "CalibrationMixture": "several maps: tests/layers",
    "LocalTemperatureScaling": "takes images: tests/layers",
    "MultiLabelScaling": "one map per label: tests/calibration",
    "MetaCal": "two outputs: tests/layers",
    "PriorCorrection": "not fitted: tests/calibration/test_adjust_prior.py",
    "LogProbabilities": "not fitted: what calibrate puts before a map",
    "ClassLossScaling": "an argument of `adapt`",
    "Objective": "the base class of the objectives",
    "NegativeLogLikelihoodObjective": "an argument of `adapt`",
    "LabelSmoothingObjective": "an argument of `adapt`",
    "FocalObjective": "an argument of `adapt`",
    "SoftBinnedECEObjective": "an argument of `adapt`",
    "ExpectedCalibrationErrorObjective": "an argument of `adapt`",
    "LossObjective": "an argument of `adapt`",
}


def test_every_public_map_has_a_case():
    compared = {*MAPS, *BINARY}
    assert set(kc.layers.__all__) - compared == set(ELSEWHERE), (
        "a line in MAPS or BINARY, or a reason in ELSEWHERE, for each layer"
    )


def make(name, **settings):
    layer = getattr(kc.layers, name)
    arguments = {**MAPS, **BINARY}[name]
    known = layer.__init__.__code__.co_varnames
    chosen = {k: v for k, v in arguments.items() if k in known}
    return layer(**chosen, **settings)


def is_last(case):
    return case.axis in (-1, len(case.lead))


# A map takes logits as arrays, the classes last: no masks, and no `axis`.
ARRAYS = [
    case
    for case in CASES
    if case.from_logits
    and case.mask is None
    and is_last(case)
    and case.name not in ("no_row", "no_row_garbage")
    and not case.name.startswith("one_row")
]


def logits_of(case):
    dtype = case.dtype if case.dtype in ("float32", "float64") else "float32"
    return case.predictions.astype(dtype)


def ignored(case):
    return {"ignore_class": case.options.get("ignore_class")}


@pytest.mark.parametrize("case", ARRAYS, ids=lambda case: case.name)
def test_temperature(case):
    layer = kc.layers.TemperatureScaling()
    layer.adapt(logits_of(case), case.labels, case.weight, **ignored(case))
    rows = case.rows()
    wanted = ref.temperature(rows)
    assert layer.temperature == pytest.approx(wanted, rel=2e-4)
    record = layer.record
    assert record["num_samples"] == len(rows)
    assert record["nll_before"] == pytest.approx(ref.nll(rows), rel=1e-4)
    after = ref.nll(rows, rows.z / wanted)
    assert record["nll_after"] == pytest.approx(after, rel=1e-4)


def groups_of(case):
    """The sample that each row that counts came from."""
    return case.rows().place // (np.prod(case.lead) // case.lead[0])


def fits(name, case):
    classes = max(2, case.num_units)
    return classes == 2 or name not in BINARY


def fitted(name, *arguments, settings=None, **options):
    keras.utils.set_random_seed(0)
    layer = make(name, **(settings or {}))
    layer.adapt(*arguments, **options)
    return layer


def assert_same_map(found, wanted, num_units):
    probe = np.random.default_rng(0).normal(size=(8, num_units))
    probe = probe.astype("float32")
    found, wanted = to_numpy(found(probe)), to_numpy(wanted(probe))
    if num_units > 1:
        # A constant on all logits of a row means nothing.
        found, wanted = ref.log_softmax(found), ref.log_softmax(wanted)
        found, wanted = np.exp(found), np.exp(wanted)
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-4)


HARD = [case for case in ARRAYS if not case.soft]


# Each map compiles its objective for each shape: some shapes always.
ALWAYS = cover([case.name for case in HARD])


def maps_and_cases():
    names = [*MAPS, *BINARY]
    chosen = covering(names, fits, HARD)
    for case in HARD:
        for name in names:
            if fits(name, case) and (name, case.name) in chosen:
                marks = [] if case.name in ALWAYS else [pytest.mark.slow]
                yield pytest.param(
                    name, case, id=f"{name}-{case.name}", marks=marks
                )


@pytest.mark.parametrize("name, case", maps_and_cases())
def test_only_the_rows_that_count_are_fitted(name, case):
    # The rows themselves, one by one, with weights of another size.
    rows = case.rows()
    z = rows.z[:, 1:] if case.one_unit else rows.z
    weight = 3.0 * rows.w if case.weight is not None else None
    wanted = fitted(
        name, z.astype("float32"), rows.y, weight, groups=groups_of(case)
    )
    found = fitted(
        name, logits_of(case), case.labels, case.weight, **ignored(case)
    )
    assert_same_map(found, wanted, z.shape[1])


# In the others the number of rows enters: bins, folds, a prior's strength.
AFFINE = [
    "BiasCorrectedTemperatureScaling",
    "ClassTemperatureScaling",
    "VectorScaling",
]
LIKELIHOOD = [
    "TemperatureScaling",
    *AFFINE,
    "EnsembleTemperatureScaling",
    "ParameterizedTemperatureScaling",
]


@pytest.mark.parametrize("case", ["soft", "tokens_soft_weights"])
@pytest.mark.parametrize("name", LIKELIHOOD)
def test_a_soft_label_is_a_row_for_each_class(name, case):
    # The expected likelihood is that of every class, weighted by its share.
    case = BY_NAME[case]
    rows = case.rows()
    classes = rows.num_classes
    plain = {"regularization": None} if name in AFFINE else {}
    found = fitted(
        name, logits_of(case), case.labels, case.weight, settings=plain
    )
    wanted = fitted(
        name,
        np.repeat(rows.z, classes, axis=0).astype("float32"),
        np.tile(np.arange(classes), len(rows)),
        (rows.w[:, None] * rows.t).reshape(-1),
        settings=plain,
    )
    assert_same_map(found, wanted, classes)


# The others fit no likelihood, and record none.
RECORDED = [*LIKELIHOOD, "MatrixScaling", "DirichletScaling"]
RECORDED += ["IntraOrderPreserving", "BayesianTemperatureScaling"]


@pytest.mark.parametrize(
    "case", ["soft", "tokens_soft_weights", "weights_0_garbage", "sigmoid_void"]
)
@pytest.mark.parametrize("name", RECORDED)
def test_the_record_holds_the_likelihood_of_what_the_layer_gives(name, case):
    case = BY_NAME[case]
    rows = case.rows()
    layer = fitted(
        name, logits_of(case), case.labels, case.weight, **ignored(case)
    )
    z = rows.z[:, 1:] if case.one_unit else rows.z
    after = to_numpy(layer(z.astype("float32"))).astype("float64")
    if case.one_unit:
        after = np.concatenate([np.zeros_like(after), after], axis=1)
    record = layer.record
    assert record["nll_before"] == pytest.approx(ref.nll(rows), rel=1e-4)
    assert record["nll_after"] == pytest.approx(
        ref.nll(rows, after), rel=1e-4, abs=1e-5
    )


@pytest.mark.parametrize(
    "case", ["sigmoid", "sigmoid_column", "two_classes", "sigmoid_void"]
)
def test_platt(case):
    from scipy import optimize

    case = BY_NAME[case]
    rows = case.rows()
    s = rows.z[:, 1] - rows.z[:, 0]
    w = rows.w / rows.w.mean()
    ones, zeros = w[rows.y == 1].sum(), w[rows.y == 0].sum()
    aims = np.where(rows.y == 1, (ones + 1) / (ones + 2), 1 / (zeros + 2))

    def loss(theta):
        line = theta[0] * s + theta[1]
        return (w * (np.logaddexp(0, line) - aims * line)).mean()

    wanted = optimize.minimize(loss, [1.0, 0.0], tol=1e-12).x
    layer = kc.layers.PlattScaling(shrinkage=None)
    layer.adapt(logits_of(case), case.labels, case.weight, **ignored(case))
    found = [float(to_numpy(v)) for v in (layer.slope, layer.intercept)]
    assert found == pytest.approx(wanted, rel=1e-3, abs=1e-4)


def calibrated_probabilities(rows, temperature):
    return np.exp(ref.log_softmax(rows.z / temperature))


def with_head(case, head):
    """The network of a case, with its softmax inside or not."""
    network = case.network()
    if head == "none":
        return network
    activation = "sigmoid" if case.one_unit else "softmax"
    outputs = keras.layers.Activation(activation)(network.output)
    return keras.Model(network.input, outputs)


NETWORKS = [
    "ids",
    "one_hot",
    "soft",
    "float_ids",
    "float16",
    "column_ids",
    "weights",
    "weights_column",
    "weights_0_garbage",
    "masked",
    "uint8_void_255",
    "tokens_masked",
    "tokens_masked_weights",
    "tokens_masked_void_garbage",
    "tokens_weights_column",
    "images_weights",
    "images_masked",
    "images_void",
    "sigmoid",
    "sigmoid_column",
    "sigmoid_tokens",
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("head", ["none", "activation"])
@pytest.mark.parametrize("case", some(NETWORKS))
def test_calibrate(case, head):
    case = BY_NAME[case]
    model = with_head(case, head)
    calibrated = kc.calibrate(
        model,
        case.inputs(),
        case.labels,
        case.weight,
        batch_size=max(1, case.lead[0] // 2),
        guard=False,
        verbose=0,
        **ignored(case),
    )
    rows = case.rows()
    wanted = ref.temperature(rows)
    record = kc.calibration_record(calibrated)
    assert record["temperature"] == pytest.approx(wanted, rel=1e-3)
    assert record["num_samples"] == len(rows)
    assert record["nll_before"] == pytest.approx(ref.nll(rows), rel=1e-3)
    assert record["nll_after"] == pytest.approx(
        ref.nll(rows, rows.z / wanted), rel=1e-3
    )
    p = calibrated.predict(case.inputs(), verbose=0)
    p = p.reshape(24, -1)[rows.place]
    wanted = calibrated_probabilities(rows, wanted)
    wanted = wanted[:, 1:] if case.one_unit else wanted
    np.testing.assert_allclose(p, wanted, rtol=1e-2, atol=2e-3)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", ["tokens_masked", "sigmoid_tokens"])
def test_evaluate_of_a_calibrated_model_sees_the_mask(case):
    case = BY_NAME[case]
    calibrated = kc.calibrate(
        case.network(),
        case.inputs(),
        case.labels,
        case.weight,
        guard=False,
        verbose=0,
    )
    rows = case.rows()
    calibrated.compile(
        loss=kc.losses.BrierLoss(),
        weighted_metrics=[
            kc.metrics.NegativeLogLikelihood(name="nll"),
            kc.metrics.ExpectedCalibrationError(name="ece"),
        ],
    )
    logs = calibrated.evaluate(
        case.inputs(),
        case.labels,
        sample_weight=case.weight,
        verbose=0,
        return_dict=True,
    )
    p = calibrated_probabilities(rows, ref.temperature(rows))
    c, a = p.max(axis=1), rows.a
    assert logs["nll"] == pytest.approx(ref.nll(rows, np.log(p)), rel=1e-3)
    assert logs["ece"] == pytest.approx(
        ref.binned(c, a, rows.w, ref.width_bins(c)), abs=2e-3
    )


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("method", ["vector", "platt", "isotonic"])
def test_calibrate_by_other_maps_sees_what_adapt_sees(method):
    name = "sigmoid_tokens" if method == "platt" else "tokens_masked_weights"
    case = BY_NAME[name]
    rows = case.rows()
    calibrated = kc.calibrate(
        case.network(),
        case.inputs(),
        case.labels,
        case.weight,
        method=method,
        guard=False,
        verbose=0,
    )
    layer = {
        "vector": kc.layers.VectorScaling,
        "platt": kc.layers.PlattScaling,
        "isotonic": kc.layers.IsotonicCalibration,
    }[method]()
    z = rows.z[:, 1:] if case.one_unit else rows.z
    z = z.astype("float32")
    layer.adapt(z, rows.y, rows.w, groups=groups_of(case))
    record = kc.calibration_record(calibrated)
    wanted = to_numpy(layer(z))
    if record["rejected"]:
        wanted = z
    if case.one_unit:
        wanted = 1 / (1 + np.exp(-wanted))
    else:
        wanted = np.exp(ref.log_softmax(wanted))
    found = calibrated.predict(case.inputs(), verbose=0)
    found = found.reshape(24, -1)[rows.place]
    np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=1e-3)
