"""Every map and every head in files that are served without this package."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.calibration._methods import METHODS
from tests.calibration.networks import KERNEL
from tests.calibration.networks import LOGITS
from tests.calibration.networks import X
from tests.calibration.networks import Y
from tests.calibration.networks import built
from tests.calibration.networks import dense
from tests.calibration.networks import functional
from tests.calibration.serving import NEEDED
from tests.calibration.serving import check_served
from tests.calibration.serving import require_packages
from tests.calibration.test_methods import network_and_labels

BACKEND = keras.backend.backend()
# New inputs: the sample that a threshold was fitted to is exactly at it, and
# the last digit of its logits decides. Multiples of 1 / 64, of which the logits
# are exact, since the `u` of a randomized set is a hash of their digits.
NEW = np.random.default_rng(1).normal(size=(200, 8)).astype("float32")
NEW = np.round(64 * NEW) / 64
WHOLE_KERNEL = np.round(64 * KERNEL) / 64
# Classes that tie.
NEW[:3] = 0
SORTED = [
    f"{method}{randomized}"
    for method in ("aps", "raps")
    for randomized in ("", "_randomized")
]
HEADS = ("three_heads", "meta_cal", "risk_of_logit_norm", *SORTED)
WHOLE_MODELS = ("mixture", "adjusted_prior", "multi_label", "sure_of_labels")


@pytest.fixture
def names(request):
    """All models; with `--share` some, since converters take seconds each."""
    every = (*METHODS, "order_invariant", *WHOLE_MODELS, *HEADS)
    return every[::5] if request.config.getoption("share") else every


def model_named(name):
    """A calibrated model, or one with a head of its own."""
    if name in METHODS or name == "order_invariant":
        method = name
        if name == "order_invariant":
            method = kc.layers.IntraOrderPreserving(
                family="order_invariant", iterations=20
            )
        model, labels = network_and_labels(name)
        return kc.calibrate(
            model, X, labels, method=method, guard=False, verbose=0
        )
    if name in WHOLE_MODELS:
        return whole_model(name)
    logits = built(functional(dense()))
    logits.set_weights([WHOLE_KERNEL])
    tensor = logits.output
    sets, risk = kc.layers.ConformalSets, kc.layers.RiskThreshold
    if name == "three_heads":
        outputs = {
            "probabilities": keras.layers.Softmax()(tensor),
            "sets": sets(coverage=0.9).adapt(LOGITS, Y)(tensor),
            "accepted": risk(target_risk=0.15).adapt(LOGITS, Y)(tensor),
        }
    elif name == "meta_cal":
        layer = kc.layers.MetaCal(max_miscoverage=0.1)
        scores, accepted = layer.adapt(LOGITS, Y)(tensor)
        outputs = {"scores": scores, "accepted": accepted}
    elif name == "risk_of_logit_norm":
        layer = risk(target_risk=0.15, score="logit_norm")
        outputs = layer.adapt(LOGITS, Y)(tensor)
    else:
        method, _, randomized = name.partition("_")
        layer = sets(
            method=method, randomized=bool(randomized), allow_empty=False
        )
        outputs = layer.adapt(LOGITS, Y)(tensor)
    return keras.Model(logits.input, outputs)


def whole_model(name):
    """What `kc.calibrate` and `kc.adjust_prior` return, beside one map."""
    model, labels = network_and_labels("temperature")
    if name == "mixture":
        return kc.calibrate(
            model, X, labels, method="auto", mixture=True, verbose=0
        )
    if name == "adjusted_prior":
        calibrated = kc.calibrate(model, X, labels, verbose=0)
        return kc.adjust_prior(calibrated, NEW, verbose=0)
    scores = keras.layers.Dense(3, activation="sigmoid")(
        model.layers[-2].output
    )
    several = keras.Model(model.input, scores)
    labels = np.random.default_rng(2).integers(2, size=(len(X), 3))
    options, x = {"multi_label": True, "verbose": 0}, X
    if name == "sure_of_labels":
        # It is served what is far beyond, where a sigmoid is 0 or 1.
        options |= {"method": "platt", "guard": False}
        x = X / 100
        p = several.predict(x, verbose=0)
        labels = (p > np.median(p, axis=0)) ^ (labels & (np.arange(3) > 0))
    return kc.calibrate(several, x, labels, **options)


def cannot(format, name):
    """Whether a converter cannot; the README has the reasons."""
    if BACKEND == "torch" and format == "openvino":
        # A traced model of torch may not return a dictionary.
        return name in ("three_heads", "meta_cal")
    if (BACKEND, format) == ("jax", "tf_saved_model"):
        # Its `top_k` is newer than what TensorFlow 2.21 reads.
        return name in ("parameterized_temperature", "mixture")
    if (BACKEND, format) != ("torch", "litert"):
        return False
    # Sorts, and indices of 64 bits that it takes for such of 32.
    return name in SORTED or name in (
        "parameterized_temperature",
        "order_preserving",
        "order_invariant",
        "spline",
        "isotonic",
        "histogram",
        "mixture",
        "meta_cal",
    )


def signature_of(format, name):
    """The shape of the inputs, where the converter needs the sample count."""
    of_jax = (BACKEND, format) == ("jax", "onnx")
    if (BACKEND, format) == ("torch", "litert") or (
        of_jax and name.endswith("_randomized")
    ):
        return NEW.shape
    return None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("format", NEEDED)
def test_files_are_served_without_keras(format, names, tmp_path):
    require_packages(format)

    def models():
        for name in names:
            if not cannot(format, name):
                keras.utils.set_random_seed(0)
                yield name, model_named(name), NEW, signature_of(format, name)

    assert check_served(models(), format, tmp_path) >= len(names) // 2


def ruling_out():
    """Layers, with rows of which classes are ruled out."""
    rng = np.random.default_rng(3)
    z = 2 * rng.normal(size=(300, 4)).astype("float32")
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    new = z[:40].copy()
    new[:20, 0] = new[:10, 2] = new[:5, 1] = -np.inf
    labels = kc.layers.MultiLabelScaling(method="platt")
    labels.adapt(z, rng.uniform(size=z.shape) < 1 / (1 + np.exp(-z / 2)))
    for name, layer in {
        "matrix": kc.layers.MatrixScaling().adapt(z, y),
        "parameterized": kc.layers.ParameterizedTemperatureScaling(
            num_scores=3, iterations=20
        ).adapt(z, y),
        "multi_label": labels,
        "meta_cal": kc.layers.MetaCal(max_miscoverage=0.1).adapt(z, y),
    }.items():
        inputs = keras.Input((4,))
        yield name, keras.Model(inputs, layer(inputs)), new, None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_classes_that_are_ruled_out_stay_so_in_onnx(tmp_path):
    # TensorFlow's converter writes `where` as a sum of products.
    require_packages("onnx")
    models = (
        (name, model, x, x.shape if BACKEND == "jax" else shape)
        for name, model, x, shape in ruling_out()
    )
    assert check_served(models, "onnx", tmp_path) == 4


@pytest.mark.backends("torch", reason="a trace of torch")
def test_a_traced_graph_keeps_no_product_of_its_sample():
    # `tensor * array` was traced as a constant: each sample had the `u` of the
    # one that the graph was traced with.
    import torch

    sets = kc.layers.ConformalSets(method="aps", randomized=True)
    expected = sets._uniform(LOGITS.astype("float32"), np)
    assert len(np.unique(expected)) > 290

    class Uniform(torch.nn.Module):
        def forward(self, logits):
            return sets._uniform(logits, keras.ops)

    logits = keras.ops.convert_to_tensor(LOGITS)
    traced = torch.jit.trace(Uniform(), (logits[:1],), check_trace=False)
    np.testing.assert_allclose(
        traced(logits).cpu().numpy(), expected, atol=1e-6
    )
