"""What holds for every linear map, and the numbers of each."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from keras_calib.evaluation.confidence_error import expected_calibration_error
from keras_calib.inputs.arrays import log_softmax
from keras_calib.layers import FocalObjective
from keras_calib.layers import LabelSmoothingObjective
from keras_calib.layers import _affine
from keras_calib.layers._objectives import confidences
from keras_calib.solvers import multinomial_regression
from keras_calib.solvers.class_weights import class_weights
from tests.helpers import compiled
from tests.helpers import read_predictions
from tests.helpers import to_numpy
from tests.layers.test_temperature_scaling import generated

# The papers' maps.
MAPS = {
    "bias corrected": functools.partial(
        kc.layers.BiasCorrectedTemperatureScaling, regularization=None
    ),
    "class": functools.partial(
        kc.layers.ClassTemperatureScaling, regularization=None
    ),
    "vector": functools.partial(kc.layers.VectorScaling, regularization=None),
    "matrix": functools.partial(
        kc.layers.MatrixScaling, regularization="structured"
    ),
    "dirichlet": functools.partial(
        kc.layers.DirichletScaling, regularization="odir"
    ),
}
# Arguments, NLL of the generated set, NLL of rows 0 to 4999 of
# wideresnet-16-4-cifar-10.
LIKELIHOODS = {
    "bias corrected": ({}, 0.663157387899, 0.24732453378),
    "class": ({}, 0.679850555972, 0.263338315088),
    "vector": ({}, 0.659753069148, 0.243764051056),
    "matrix": ({"regularization": None}, 0.64454182719, 0.230423293916),
    "dirichlet": ({"strength": 0.01}, 0.647935542186, 0.231624748127),
}
BIAS_CORRECTED = [
    -0.492182177951,
    -0.235974512315,
    0.0647781208627,
    0.0849962980055,
    0.578382271398,
]
CLASS_TEMPERATURES = [
    2.23832183904,
    2.11641477027,
    1.8223749892,
    1.80728234799,
    1.76277944688,
]
VECTOR_SCALE = [
    0.531266924103,
    0.507835823393,
    0.57726762141,
    0.580524113422,
    0.49901581034,
]
VECTOR_BIAS = [
    -0.465488630872,
    -0.125429721277,
    -0.0471218947111,
    -0.0443649371444,
    0.682405184005,
]


def adapt(name, logits, labels, arguments=None, **options):
    return MAPS[name](**(arguments or {})).adapt(logits, labels, **options)


def likelihood(scores, labels):
    return -log_softmax(scores)[np.arange(len(labels)), labels].mean()


def largest_gradient(layer, logits, labels, weight=None):
    """Of the mean NLL in slopes and biases, from the layer's float32 output."""
    scores = to_numpy(layer(logits)).astype("float64")
    residual = np.exp(log_softmax(scores)) - np.eye(scores.shape[1])[labels]
    weight = np.ones(len(labels)) if weight is None else weight
    residual *= (weight / weight.sum())[:, None]
    x = logits
    kind = type(layer).__name__
    if kind == "DirichletScaling":
        x = log_softmax(logits)
    bias = residual.sum(axis=0)
    if kind == "BiasCorrectedTemperatureScaling":
        return max(abs((residual * x).sum()), np.abs(bias).max())
    if kind == "ClassTemperatureScaling":
        return np.abs((residual * x).sum(axis=0)).max()
    if kind == "VectorScaling":
        slope = (residual * x).sum(axis=0)
        return max(np.abs(slope).max(), np.abs(bias).max())
    return max(np.abs(x.T @ residual).max(), np.abs(bias).max())


@pytest.mark.parametrize("name", MAPS)
def test_starts_as_the_identity(name):
    logits, _ = generated(20)
    layer = MAPS[name]()
    scores = to_numpy(layer(logits.astype("float32")))
    expected = logits
    if name == "dirichlet":
        expected = log_softmax(logits)
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    assert layer.record is None


@pytest.mark.parametrize("name", MAPS)
def test_likelihood_of_the_generated_set(name):
    logits, labels = generated()
    arguments, expected, _ = LIKELIHOODS[name]
    layer = adapt(name, logits, labels, arguments)
    assert layer.record["nll_after"] == pytest.approx(expected, abs=2e-10)
    assert layer.record["nll_before"] == pytest.approx(0.845336749895)
    # What the layer gives in float32 is what the fit promised.
    scores = to_numpy(layer(logits)).astype("float64")
    assert likelihood(scores, labels) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", MAPS)
def test_likelihood_of_real_predictions(name, data_folder):
    probabilities, labels = read_predictions(
        data_folder, "wideresnet-16-4-cifar-10"
    )
    logits = np.log(np.maximum(probabilities, 1.18e-38))
    arguments, _, expected = LIKELIHOODS[name]
    layer = adapt(name, logits[:5000], labels[:5000], arguments)
    # float32 log-probabilities move the sixth digit of no map.
    assert layer.record["nll_after"] == pytest.approx(expected, abs=1e-7)
    # And the test NLL is better than that of one temperature.
    scores = to_numpy(layer(logits[5000:])).astype("float64")
    assert likelihood(scores, labels[5000:]) < 0.270422


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_the_data_moves_no_digit(seed, data_folder):
    # Nor does the order in which a processor sums: where a penalty counts, the
    # likelihood alone is not flat at the optimum.
    probabilities, labels = read_predictions(
        data_folder, "wideresnet-16-4-cifar-10"
    )
    logits = np.log(np.maximum(probabilities[:5000], 1.18e-38))
    rng = np.random.default_rng(seed)
    rows, classes = rng.permutation(5000), rng.permutation(10)
    arguments, _, expected = LIKELIHOODS["dirichlet"]
    layer = adapt(
        "dirichlet",
        logits[rows][:, classes],
        np.argsort(classes)[labels[rows]],
        arguments,
    )
    assert layer.record["nll_after"] == pytest.approx(expected, abs=1e-7)


def test_parameters_of_the_generated_set():
    logits, labels = generated()
    layer = adapt("bias corrected", logits, labels)
    assert layer.record["temperature"] == pytest.approx(1.88197036804, rel=1e-8)
    np.testing.assert_allclose(to_numpy(layer.bias), BIAS_CORRECTED, rtol=1e-5)
    layer = adapt("class", logits, labels)
    np.testing.assert_allclose(
        layer.temperatures, CLASS_TEMPERATURES, rtol=1e-6
    )
    layer = adapt("vector", logits, labels)
    np.testing.assert_allclose(to_numpy(layer.scale), VECTOR_SCALE, rtol=1e-6)
    np.testing.assert_allclose(to_numpy(layer.bias), VECTOR_BIAS, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "objective", "nll"),
    [
        ({"regularization": "l2"}, 0.661571798043, 0.649369127461),
        ({}, 0.648432469636, 0.647935542186),
        # The authors' code does not divide by the number of entries.
        (
            {"strength": 0.2, "bias_strength": 0.05},
            0.649546270426,
            0.648795516005,
        ),
    ],
    ids=["l2", "odir", "odir as in the code"],
)
def test_dirichlet_penalties(arguments, objective, nll):
    logits, labels = generated()
    layer = adapt("dirichlet", logits, labels, {"strength": 0.01, **arguments})
    assert layer.record["nll_after"] == pytest.approx(nll, abs=1e-10)
    w, b = to_numpy(layer.kernel), to_numpy(layer.bias)
    squares = w**2
    strength, bias_strength = 0.01, 0.01
    if arguments.get("regularization") != "l2":
        squares = squares - np.diag(np.diag(squares))
        strength = arguments.get("strength", 0.01) / 20
        bias_strength = arguments.get("bias_strength", 0.01) / 5
    penalty = strength * squares.sum() + bias_strength * (b**2).sum()
    assert nll + penalty == pytest.approx(objective, abs=1e-7)


@pytest.mark.parametrize("regularization", ["structured", 0.3])
@pytest.mark.parametrize("name", ["vector", "matrix"])
def test_penalties_around_the_temperature(name, regularization):
    logits, labels = generated()
    x = log_softmax(logits)
    layer = adapt(
        name,
        logits,
        labels,
        {"regularization": regularization, "normalize_logits": "log_softmax"},
    )
    temperature = kc.layers.TemperatureScaling().adapt(logits, labels)
    temperature = temperature.record["temperature"]
    residual = np.exp(log_softmax(to_numpy(layer(logits)).astype("float64")))
    residual = (residual - np.eye(5)[labels]) / 500
    off, near = 20 / 500, 5 / 500
    if regularization != "structured":
        off = near = regularization
    strength = np.full((5, 5), off)
    np.fill_diagonal(strength, near)
    w = to_numpy(layer.kernel if name == "matrix" else layer.scale)
    gradient = x.T @ residual
    if name == "vector":
        w, gradient = np.diag(w), np.diag(np.diag(gradient))
    gradient += 2 * strength * temperature * (temperature * w - np.eye(5))
    assert np.abs(gradient).max() < 3e-6
    bias = residual.sum(axis=0) + 2 * near * to_numpy(layer.bias)
    assert np.abs(bias).max() < 3e-6
    # As strong as probmetrics' SVS and SMS, which see the logits of a mixture
    # with the uniform distribution.
    if regularization == "structured":
        expected = {"vector": 0.664020947745, "matrix": 0.650197387232}[name]
        assert layer.record["nll_after"] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MAPS)
def test_the_gradient_is_zero(name, dtype):
    logits, labels = generated()
    arguments = {"matrix": {"regularization": None}}.get(name)
    if name == "dirichlet":
        arguments = {"strength": 0.0}
    layer = adapt(name, logits.astype(dtype), labels, arguments)
    assert largest_gradient(layer, logits, labels) < 3e-6
    assert layer.record["largest_gradient"] < 1e-7


@pytest.mark.parametrize("scale", [0.03, 1.0, 30.0])
@pytest.mark.parametrize("name", ["bias corrected", "class", "vector"])
def test_the_scale_of_the_logits_does_not_matter(name, scale):
    logits, labels = generated(300)
    expected = adapt(name, logits, labels).record["nll_after"]
    found = adapt(name, logits * scale, labels).record["nll_after"]
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", MAPS)
def test_deterministic(name):
    logits, labels = generated(100)
    first, second = (adapt(name, logits, labels) for _ in range(2))
    for a, b in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", MAPS)
def test_a_weight_of_two_is_a_repeated_sample(name):
    logits, labels = generated(150)
    times = np.random.default_rng(0).integers(0, 3, 150)
    repeated = np.repeat(np.arange(150), times)
    arguments = {"dirichlet": {"strength": 0.1}, "matrix": {}}.get(name)
    if name == "matrix":
        arguments = {"regularization": 0.1}
    weighted = adapt(name, logits, labels, arguments, sample_weight=times)
    expected = adapt(name, logits[repeated], labels[repeated], arguments)
    for a, b in zip(
        weighted.get_weights(), expected.get_weights(), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=2e-5)


@pytest.mark.parametrize("name", MAPS)
def test_log_p_serves_where_shift_invariant(name):
    logits, labels = generated(200)
    choices = [{}]
    if name in ("class", "vector", "matrix"):
        choices = [
            {"normalize_logits": "log_softmax"},
            {"normalize_logits": "mean"},
        ]
    for arguments in choices:
        layer = adapt(name, logits, labels, arguments)
        assert layer.shift_invariant
        shifted = logits + np.linspace(-5, 5, 200)[:, None]
        np.testing.assert_allclose(
            log_softmax(to_numpy(layer(logits))),
            log_softmax(to_numpy(layer(shifted))),
            atol=1e-4,
        )


def test_vector_scaling_of_log_p_is_another_map():
    logits, labels = generated()
    for arguments in (
        {"logits": log_softmax(logits), "arguments": None},
        {"logits": logits, "arguments": {"normalize_logits": "log_softmax"}},
    ):
        record = adapt("vector", labels=labels, **arguments).record
        assert record["nll_after"] == pytest.approx(0.662138343, abs=1e-9)


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize(
    "name",
    [
        "BiasCorrectedTemperatureScaling",
        "ClassTemperatureScaling",
        "VectorScaling",
        "MatrixScaling",
        "DirichletScaling",
    ],
)
def test_the_record_of_ridge_fits_names_absent_classes(name):
    logits, labels = generated()
    keep = labels != 3
    layer = getattr(kc.layers, name)().adapt(logits[keep], labels[keep])
    assert layer.record["absent_classes"] == [3]
    assert "absent_classes" not in layer.adapt(logits, labels).record
    soft = np.eye(logits.shape[1])[labels[keep]]
    assert layer.adapt(logits[keep], soft).record["absent_classes"] == [3]


@pytest.mark.parametrize("name", MAPS)
def test_an_absent_class_stays_at_the_temperature(name):
    logits, labels = generated()
    keep = labels != 3
    layer = MAPS[name]()
    with pytest.warns(UserWarning, match="no calibration sample"):
        layer.adapt(logits[keep], labels[keep])
    assert layer.record["absent_classes"] == [3]
    scores = to_numpy(layer(logits))
    assert np.isfinite(scores).all()
    # It is still predicted where its logit is far ahead.
    far = np.array([[0.0, 0, 0, 30.0, 0]], "float32")
    assert to_numpy(layer(far)).argmax() == 3


@pytest.mark.parametrize("name", MAPS)
def test_two_classes(name):
    logits, labels = generated(400, 2)
    layer = adapt(name, logits, labels)
    assert layer.record["nll_after"] < layer.record["nll_before"]


@pytest.mark.parametrize("name", MAPS)
def test_one_sigmoid_unit_is_two_classes(name):
    logits, labels = generated(300, 2)
    single = (logits[:, 1:] - logits[:, :1]).astype("float32")
    both = np.concatenate([np.zeros_like(single), single], axis=1)
    one = adapt(name, single, labels)
    two = adapt(name, both, labels)
    assert one(single).shape == (300, 1)
    scores = to_numpy(two(both))
    np.testing.assert_allclose(
        to_numpy(one(single))[:, 0], scores[:, 1] - scores[:, 0], atol=1e-4
    )


@pytest.mark.parametrize("name", MAPS)
def test_all_correct_is_a_bounded_temperature(name):
    logits, _ = generated(50)
    layer = MAPS[name]()
    with pytest.warns(UserWarning, match="predicted correctly"):
        layer.adapt(logits, logits.argmax(axis=1))
    assert layer.record["stop_reason"] == "all correct"
    assert np.isfinite(to_numpy(layer(logits))).all()


@pytest.mark.parametrize("name", MAPS)
def test_all_wrong_and_constant_logits(name):
    logits, _ = generated(60)
    for z, labels in (
        (logits, logits.argmin(axis=1)),
        (np.ones((60, 5)), np.arange(60) % 5),
        (np.ones((60, 5)), np.minimum(np.arange(60) % 8, 4)),
    ):
        layer = adapt(name, z, labels)
        assert layer.record["nll_after"] <= layer.record["nll_before"] + 1e-9
        assert np.isfinite(to_numpy(layer(z))).all()


@pytest.mark.parametrize("name", ["vector", "matrix"])
def test_classes_that_a_line_separates(name):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(30, 3))
    labels = (logits + np.array([0.5, 0.0, -0.5])).argmax(axis=1)
    # There is no optimum: it stops where all are right, and says so.
    with pytest.warns(UserWarning, match="has no minimum"):
        layer = adapt(name, logits, labels, {"regularization": None})
    assert layer.record["stop_reason"] == "all correct"
    assert layer.record["nll_after"] < layer.record["nll_before"]
    scores = to_numpy(layer(logits))
    assert (scores.argmax(axis=1) == labels).all()
    assert np.abs(scores).max() < 100


def test_a_class_without_samples_leaves_an_optimum_to_find():
    # Its score stays, so the others cannot grow against it without end.
    rng = np.random.default_rng(28)
    logits = 1.5 * rng.normal(size=(60, 3)) - np.array([0.0, 0.0, 2.0])
    logits = log_softmax(logits)
    labels = (logits[:, :2] + np.array([0.5, -0.5])).argmax(axis=1)
    layer = kc.layers.VectorScaling(regularization=None)
    with pytest.warns(UserWarning, match="no calibration sample"):
        layer.adapt(logits, labels)
    assert "stop_reason" not in layer.record
    assert layer.record["largest_gradient"] < 1e-7
    assert layer.record["nll_after"] == pytest.approx(0.0335, abs=1e-4)


BAD_INPUT = {
    "NaN": (np.array([[np.nan, 1.0], [0.0, 1.0]]), [0, 1], "NaN"),
    "infinity": (np.array([[np.inf, 1.0], [0.0, 1.0]]), [0, 1], "infinity"),
    "label": (np.eye(2), [0, 2], "from 0 to 2"),
    "one sample": (np.eye(2)[:1], [1], "at least 2 samples"),
    "classes": (np.eye(3), [0, 1, 0], "Adapt a new layer"),
    "ruled out": (np.array([[-np.inf, 1.0], [0, 1.0]]), [0, 1], "rules out"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
@pytest.mark.parametrize("name", MAPS)
def test_bad_input_leaves_the_layer_as_it_was(name, case):
    logits, labels, message = BAD_INPUT[case]
    layer = adapt(name, *generated(50, 2))
    before, record = layer.get_weights(), layer.record
    with pytest.raises(ValueError, match=message):
        layer.adapt(logits, labels)
    for a, b in zip(before, layer.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert layer.record is record


@pytest.mark.parametrize("name", MAPS)
def test_a_class_that_is_ruled_out(name):
    logits, labels = generated(200)
    logits = np.concatenate([logits, np.full((200, 1), -np.inf)], axis=1)
    layer = MAPS[name]()
    if name == "matrix":
        with pytest.raises(ValueError, match="DirichletScaling"):
            layer.adapt(logits, labels)
        return
    with pytest.warns(UserWarning, match="no calibration sample"):
        layer.adapt(logits, labels)
    p = to_numpy(ops.softmax(layer(logits)))
    assert np.isfinite(p).all()
    assert p[:, 5].max() < 1e-6


@pytest.mark.parametrize("name", MAPS)
def test_as_affine_is_the_map(name):
    logits, labels = generated(200, 4)
    for z in (logits, (logits[:, :1] - logits[:, 1:2])):
        y = np.minimum(labels, 1) if z.shape[1] == 1 else labels
        layer = adapt(name, z, y)
        affine = layer.as_affine(z.shape[1])
        if name == "dirichlet":
            assert affine is None
            continue
        matrix, bias = affine
        product = z @ matrix if np.ndim(matrix) == 2 else z * matrix
        np.testing.assert_allclose(
            product + bias, to_numpy(layer(z)), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("name", ["class", "vector", "matrix"])
def test_normalized_maps_as_affine(name):
    logits, labels = generated(100)
    layer = adapt(name, logits, labels, {"normalize_logits": "mean"})
    matrix, bias = layer.as_affine(5)
    np.testing.assert_allclose(
        logits @ matrix + bias, to_numpy(layer(logits)), atol=1e-4
    )
    layer = adapt(name, logits, labels, {"normalize_logits": "log_softmax"})
    assert layer.as_affine(5) is None


@pytest.mark.parametrize("name", MAPS)
def test_saving(name, tmp_path):
    logits, labels = generated(100)
    inputs = keras.Input((5,))
    layer = MAPS[name]()
    model = keras.Model(inputs, layer(inputs))
    layer.adapt(logits, labels)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(
        to_numpy(again(logits)), to_numpy(model(logits))
    )
    assert again.layers[-1].record == layer.record
    assert again.layers[-1].get_config() == layer.get_config()


@pytest.mark.parametrize("name", MAPS)
def test_compiled_and_half_precision(name):
    logits, labels = generated(50)
    layer = adapt(name, logits, labels)
    z = ops.convert_to_tensor(logits.astype("float32"))
    np.testing.assert_allclose(
        to_numpy(compiled(lambda z: layer(z))(z)),
        to_numpy(layer(z)),
        rtol=1e-5,
        atol=1e-6,
    )
    half = layer(ops.cast(z, "float16"))
    assert keras.backend.standardize_dtype(half.dtype) == "float32"


@pytest.mark.parametrize("name", MAPS)
def test_pixels(name):
    logits, labels = generated(60)
    expected = adapt(name, logits, labels)
    void = np.append(labels, [255] * 4).reshape(4, 4, 4)
    pixels = np.concatenate([logits, logits[:4]]).reshape(4, 4, 4, 5)
    layer = adapt(name, pixels, void, ignore_class=255)
    for a, b in zip(layer.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert layer(pixels).shape == (4, 4, 4, 5)


@pytest.mark.parametrize("name", MAPS)
def test_degrees_of_freedom(name):
    expected = {"bias corrected": 6, "class": 5, "vector": 10}
    assert MAPS[name]().degrees_of_freedom(5) == expected.get(name, 30)


def test_bad_arguments():
    with pytest.raises(ValueError, match="normalize_logits"):
        kc.layers.VectorScaling(normalize_logits="log p")
    with pytest.raises(ValueError, match="regularization=-1"):
        kc.layers.VectorScaling(regularization=-1)
    with pytest.raises(ValueError, match="regularization='odir'"):
        kc.layers.MatrixScaling(regularization="odir")
    with pytest.raises(ValueError, match="regularization=None"):
        kc.layers.DirichletScaling(regularization=None)
    with pytest.raises(ValueError, match="`strength` must be"):
        kc.layers.DirichletScaling(regularization="odir", strength=-1)
    with pytest.raises(ValueError, match="no strength to choose"):
        kc.layers.DirichletScaling(strength=0.01)
    with pytest.raises(ValueError, match="no strength to choose"):
        kc.layers.DirichletScaling(strength=np.array([1.0, 2.0]))
    with pytest.raises(ValueError, match="`bias_strength` must be"):
        kc.layers.DirichletScaling(
            regularization="l2", bias_strength=np.array([1.0, 2.0])
        )
    logits, labels = generated(20)
    with pytest.raises(ValueError, match="VectorScaling cannot minimize"):
        kc.layers.VectorScaling().adapt(logits, labels, objective="ece")


def focal_slope(layer, name, logits, labels):
    """The largest derivative of the focal loss in biases or slopes."""
    scores = to_numpy(layer(logits)).astype("float64")
    _, gradient = FocalObjective().value_and_gradient(scores, labels)
    if name == "class":
        return np.abs((gradient * logits).sum(axis=0)).max()
    return np.abs(gradient.sum(axis=0)).max()


@pytest.mark.parametrize("name", ["bias corrected", "class", "vector"])
def test_focal_loss(name):
    logits, labels = generated()
    plain = adapt(name, logits, labels)
    layer = adapt(name, logits, labels, objective="focal")
    values = [
        FocalObjective().value(
            to_numpy(found(logits)).astype("float64"), labels
        )
        for found in (plain, layer)
    ]
    assert values[1] < values[0]
    assert layer.record["objective_value"] == pytest.approx(values[1], abs=1e-6)
    assert focal_slope(layer, name, logits, labels) < 5e-6
    # A loss object of the same meaning finds the same map.
    loss = kc.losses.FocalLoss(gamma=3.0, from_logits=True)
    other = adapt(name, logits, labels, objective=loss)
    np.testing.assert_allclose(
        to_numpy(ops.softmax(other(logits))),
        to_numpy(ops.softmax(layer(logits))),
        atol=2e-3,
    )


@pytest.mark.parametrize("name", ["matrix", "dirichlet"])
def test_focal_loss_with_a_penalty(name):
    logits, labels = generated()
    layer = adapt(name, logits, labels, objective="focal")
    plain = adapt(name, logits, labels)
    values = [
        FocalObjective().value(
            to_numpy(found(logits)).astype("float64"), labels
        )
        for found in (plain, layer)
    ]
    assert values[1] < values[0]
    assert "nll_after" not in layer.record


@pytest.mark.parametrize("name", MAPS)
def test_label_smoothing(name):
    logits, labels = generated()
    plain = adapt(name, logits, labels)
    layer = adapt(name, logits, labels, objective="label_smoothing")
    objective = LabelSmoothingObjective()
    values = [
        objective.value(to_numpy(found(logits)).astype("float64"), labels)
        for found in (plain, layer)
    ]
    assert values[1] < values[0]
    # Cross-entropy to the smoothed labels, as Keras computes it.
    loss = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=0.05
    )
    expected = float(to_numpy(loss(np.eye(5)[labels], layer(logits))))
    assert values[1] == pytest.approx(expected, rel=1e-5)


def test_slopes_stay_within_their_bounds_for_other_objectives(monkeypatch):
    logits, labels = generated()
    slopes = 1 / adapt("class", logits, labels).temperatures
    # Bounds that the likelihood keeps to, and the focal loss does not.
    bounds = slopes.min() * 0.999, slopes.max() * 1.001
    free = adapt("class", logits, labels, objective="focal")
    assert (1 / free.temperatures).min() < bounds[0]
    monkeypatch.setattr(multinomial_regression, "SLOPES", bounds)
    layer = adapt("class", logits, labels, objective="focal")
    found = 1 / layer.temperatures.astype("float64")
    assert found.min() == pytest.approx(bounds[0], rel=1e-6)
    value = FocalObjective().value(logits * found, labels)
    assert layer.record["objective_value"] == pytest.approx(value, rel=1e-6)
    assert value > free.record["objective_value"]


@pytest.mark.parametrize("name", MAPS)
def test_large_logits_keep_their_precision(name, monkeypatch):
    logits, labels = generated()
    expected = adapt(name, logits, labels)
    monkeypatch.setattr(_affine, "SMALL", logits.size - 1)
    found = adapt(name, logits.astype("float32"), labels)
    np.testing.assert_allclose(
        to_numpy(found(logits)), to_numpy(expected(logits)), atol=2e-3
    )


def test_class_temperatures_by_calibration_error():
    logits, labels = generated()
    layer = adapt("class", logits, labels, objective="ece")
    common = kc.layers.TemperatureScaling().adapt(
        logits, labels, objective="ece"
    )
    value = layer.record["objective_value"]
    assert value < common.record["objective_value"]
    found = expected_calibration_error(
        *confidences(logits / layer.temperatures.astype("float64"), labels)
    )
    assert value == pytest.approx(found, abs=1e-3)


def class_losses(scores, labels):
    losses = -log_softmax(scores)[np.arange(len(labels)), labels]
    return np.bincount(labels, losses) / np.bincount(labels)


@pytest.mark.parametrize("scaling", ["normal", "min_max", "centered"])
@pytest.mark.parametrize("name", MAPS)
def test_class_loss_scaling(name, scaling):
    logits, labels = generated()
    layer = adapt(name, logits, labels, class_loss_scaling=scaling)
    record = layer.record
    weights = np.array(record["class_weights"])
    sample_weight = (weights / np.bincount(labels))[labels]
    scores = to_numpy(layer(logits)).astype("float64")
    losses = class_losses(scores, labels)
    if name in ("bias corrected", "class", "vector"):
        # The optimum under these weights.
        assert largest_gradient(layer, logits, labels, sample_weight) < 5e-6
    if record["class_weights_change"] < 1e-6:
        # And they are the weights of its own class losses.
        found = 1 + class_weights(
            losses, record["scaling_slope"], record["scaling_span"], scaling
        )
        np.testing.assert_allclose(found, weights, atol=2e-6)
    else:
        # A map with biases draws class losses together, where weights jump.
        assert name != "class"
        plain = adapt(name, logits, labels)
        before = class_losses(to_numpy(plain(logits)).astype("float64"), labels)
        assert np.ptp(losses) < np.ptp(before)


@pytest.mark.parametrize("regularization", [None, "auto"])
@pytest.mark.parametrize("name", ["bias corrected", "class"])
def test_a_temperature_at_its_bound_warns(name, regularization):
    logits, labels = generated(200)
    arguments = {"regularization": regularization}
    with pytest.warns(UserWarning, match="stopped at a temperature of 100"):
        layer = adapt(name, -logits, labels, arguments)
    assert layer.record["stop_reason"] == "limit"
    with pytest.warns(UserWarning, match="stopped at a temperature of 0.01:"):
        layer = adapt(name, logits / 1000, labels, arguments)
    assert layer.record["stop_reason"] == "limit"
    assert "stop_reason" not in adapt(name, logits, labels, arguments).record


@pytest.mark.parametrize(
    "name",
    [
        "VectorScaling",
        "MatrixScaling",
        "DirichletScaling",
        "BiasCorrectedTemperatureScaling",
    ],
)
@pytest.mark.parametrize("counts", [[40, 10], [40, 12, 8]], ids=len)
def test_constant_logits_tell_biases_alone(name, counts):
    labels = np.repeat(np.arange(len(counts)), counts)
    logits = np.zeros((len(labels), len(counts)))
    layer = getattr(kc.layers, name)().adapt(logits, labels)
    share = np.array(counts) / sum(counts)
    entropy = -(share * np.log(share)).sum()
    nll = layer.record["nll_after"]
    # Shrunk, and never below the frequencies themselves.
    assert entropy <= nll < 0.5 * (entropy + np.log(len(counts)))
    p = to_numpy(keras.ops.softmax(layer(logits)))
    found = -np.log(p[np.arange(len(labels)), labels]).mean()
    assert found == pytest.approx(nll, rel=1e-5)
    # A small difference of logits stays a small one.
    apart = 1e-3 * np.eye(len(counts), dtype="float32")
    moved = to_numpy(keras.ops.softmax(layer(apart))) - p[:1]
    assert np.abs(moved).max() < 1e-2
