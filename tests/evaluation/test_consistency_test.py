import numpy as np
import pytest

import keras_calib as kc
from keras_calib.evaluation.named_errors import CLASSWISE
from keras_calib.evaluation.named_errors import TOP_LABEL
from tests.helpers import read_predictions
from tests.metrics.oracles import random_predictions

test = kc.metrics.consistency_test
test.__test__ = False


def calibrated(seed, n=200, num_classes=3):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(num_classes), n)
    return (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1), p


@pytest.mark.parametrize("name", [*TOP_LABEL, *CLASSWISE])
def test_every_error_can_be_tested(name):
    labels, p = random_predictions(300)
    found = test(labels, p, metric=name, num_draws=19, verbose=0)
    errors = kc.metrics.calibration_errors(labels, p, metrics=[name])
    assert found.value == pytest.approx(errors[name], abs=1e-9)
    assert 1 / 20 <= found.p_value <= 1
    ranks = ("underconfidence_error", "auroc")
    ranks += ("maximum_calibration_error",)  # one bin decides
    if name not in ranks and "area" not in name and name[:4] != "swee":
        # The predictions are far from calibrated.
        why = "an error that does not see overconfidence belongs into `ranks`"
        assert found.p_value == 1 / 20, why
        assert found.expected < found.upper < found.value, why


def test_null_values_are_errors_of_drawn_labels():
    # One sample with confidence c: a draw's error is c or 1 - c.
    found = test([1], [[0.3, 0.7]], num_draws=4000, verbose=0)
    assert found.value == pytest.approx(0.3)
    assert found.expected == pytest.approx(0.7 * 0.3 + 0.3 * 0.7, abs=0.01)
    assert found.p_value == 1.0
    found = test(
        [0],
        [[0.5, 0.2, 0.3]],
        metric="classwise_calibration_error",
        num_draws=4000,
        verbose=0,
    )
    # 2/3 (1 - p_k) if class k is drawn.
    expected = sum(2 / 3 * p * (1 - p) for p in (0.5, 0.2, 0.3))
    assert found.expected == pytest.approx(expected, abs=0.01)


def test_a_calibrated_model_is_rejected_as_often_as_it_should_be():
    p_values = [
        test(*calibrated(seed), num_draws=99, seed=seed, verbose=0).p_value
        for seed in range(200)
    ]
    rejected = np.mean(np.array(p_values) <= 0.05)
    # 200 draws with probability 0.05: within four standard deviations.
    assert rejected <= 0.05 + 4 * (0.05 * 0.95 / 200) ** 0.5
    assert np.mean(p_values) == pytest.approx(0.5, abs=4 / (12 * 200) ** 0.5)


@pytest.mark.parametrize(
    ("name", "expected", "upper"),
    [
        ("lenet-5-cifar-100", 0.007100, 0.010456),
        ("wideresnet-16-4-cifar-100", 0.008943, None),
    ],
)
def test_real_predictions(name, expected, upper, data_folder):
    # By 2000 independent draws; the closed form for equal width agrees:
    # sqrt(2 / pi) / n sum_m sqrt(sum c - sum c^2) = 0.007110, 0.008900. Other
    # seeds of those draws give quantiles up to 0.01078.
    probabilities, labels = read_predictions(data_folder, name)
    found = test(labels, probabilities, verbose=0)
    assert found.expected == pytest.approx(expected, abs=2e-4)
    assert upper is None or found.upper == pytest.approx(upper, abs=5e-4)
    assert found.p_value < 0.01


def test_weights_pixels_and_binary():
    labels, p = calibrated(0, 64)
    weights = np.random.default_rng(0).random(64)
    found = test(labels, p, weights, num_draws=50, verbose=0)
    images = labels.reshape(4, 16), p.reshape(4, 16, 3)
    again = test(*images, weights.reshape(4, 16), num_draws=50, verbose=0)
    assert again == found
    labels, p = calibrated(0, 64, 2)
    name = "binary_calibration_error"
    found = test(labels, p[:, 1:], metric=name, num_draws=50, verbose=0)
    errors = kc.metrics.calibration_errors(labels, p, metrics=[name])
    assert found.value == pytest.approx(errors[name], abs=1e-12)


def test_the_same_seed_gives_the_same_p_value():
    labels, p = calibrated(3)
    one, two, three = (
        test(labels, p, seed=seed, num_draws=50, verbose=0)
        for seed in (1, 1, 2)
    )
    assert one == two != three


def test_no_sample():
    with pytest.raises(ValueError, match="No row counts"):
        test(np.zeros(0, int), np.zeros((0, 3)), num_draws=5, verbose=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metric": "accuracy"}, "metric"),
        ({"metric": "binary_calibration_error"}, "two classes"),
        ({"num_draws": 0}, "num_draws"),
        ({"confidence_level": 1.5}, "confidence_level"),
    ],
    ids=["metric", "classes", "num_draws", "level"],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        test([0], [[0.5, 0.3, 0.2]], **arguments)
