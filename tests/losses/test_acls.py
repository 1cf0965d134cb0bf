import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from tests.helpers import to_numpy
from tests.helpers import value_and_gradient
from tests.losses.fixtures import LABELS_A
from tests.losses.fixtures import LABELS_B
from tests.losses.fixtures import LABELS_TWO_CLASSES
from tests.losses.fixtures import TWO_CLASSES
from tests.losses.fixtures import A
from tests.losses.fixtures import B


@pytest.mark.parametrize(
    ("labels", "logits", "margin", "expected"),
    [
        (LABELS_A, A, 1, (0.62718333, 0.66203333, 0.21651667, 0.25136667)),
        (LABELS_B, B, 10, (1.91395833, 2.07937500, 0.18270833, 0.34812500)),
        (LABELS_B, B, 6, (6.22270833, 6.80562500, 1.41645833, 1.99937500)),
    ],
)
def test_regularizer_of_eq_13(labels, logits, margin, expected):
    found = [
        float(
            ops.mean(
                kc.losses.acls(
                    labels,
                    logits,
                    margin=margin,
                    reference=reference,
                    negatives=negatives,
                )
            )
        )
        for reference in ("min", "zero")
        for negatives in ("mean", "sum")
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_regularizer_with_two_classes():
    value = kc.losses.acls(
        LABELS_TWO_CLASSES, TWO_CLASSES, margin=0.5, reference="min"
    )
    assert float(ops.mean(value)) == pytest.approx(0.0572, rel=1e-6)


GRADIENTS = {
    "eq. 13 with the constants of eq. 12, mean of the negatives": (
        {"reference": "min", "stop_gradient": True},
        [
            [0.13333333, -0.00166667, -0.00666667],
            [0.0, 0.06, -0.003],
            [-0.012, -0.00566667, 0.24],
        ],
    ),
    "eq. 12 times two, sum of the negatives": (
        {"reference": "min", "negatives": "sum", "stop_gradient": True},
        [
            [0.13333333, -0.00333333, -0.01333333],
            [0.0, 0.06, -0.006],
            [-0.024, -0.01133333, 0.24],
        ],
    ),
    "released code": (
        {"reference": "zero"},
        [
            [0.06666667, -0.00166667, -0.00666667],
            [0.0, 0.01333333, -0.003],
            [-0.012, -0.00566667, 0.14],
        ],
    ),
    "eq. 13 without constants, sum of the negatives": (
        {"reference": "min", "negatives": "sum", "stop_gradient": False},
        [
            [0.15, -0.00333333, -0.14666667],
            [0.0, 0.066, -0.066],
            [-0.264, -0.01133333, 0.27533333],
        ],
    ),
    "conditional only": (
        {"reference": "min", "adaptive": False, "stop_gradient": True},
        [
            [0.03333333, -0.00166667, -0.00166667],
            [0.0, 0.03333333, -0.00166667],
            [-0.00166667, -0.00166667, 0.03333333],
        ],
    ),
}


# The reference decides the gradient where nothing else is said.
GRADIENTS["eq. 13, by default its own gradient"] = (
    {"reference": "min", "negatives": "sum"},
    GRADIENTS["eq. 13 without constants, sum of the negatives"][1],
)
# Eq. 12 to the letter: no factor 2.
GRADIENTS["eq. 12"] = (
    {
        **GRADIENTS["eq. 12 times two, sum of the negatives"][0],
        "positive_weight": 0.05,
        "negative_weight": 0.005,
    },
    np.array(GRADIENTS["eq. 12 times two, sum of the negatives"][1]) / 2,
)


@pytest.mark.parametrize("case", GRADIENTS)
def test_gradient(case):
    arguments, expected = GRADIENTS[case]
    _, gradient = value_and_gradient(
        lambda z: ops.mean(
            kc.losses.acls(LABELS_A, z, margin=1.0, **arguments)
        ),
        A,
    )
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"conditional": False}, 0.62720000),
        ({"conditional": False, "margin": 0.0}, 1.19920000),
        ({"adaptive": False}, 0.23116667),
    ],
)
def test_ablations(arguments, expected):
    arguments = {"margin": 1.0, "reference": "min", **arguments}
    value = ops.mean(kc.losses.acls(LABELS_A, A, **arguments))
    assert float(value) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("labels", "logits", "margin", "reference", "expected"),
    [
        (LABELS_A, A, 1.0, "min", 1.17982897),
        (LABELS_B, B, 10.0, "min", 2.80367979),
        (LABELS_A, A, 1.0, "zero", 0.76916230),
        (LABELS_B, B, 10.0, "zero", 1.07242979),
    ],
)
def test_total(labels, logits, margin, reference, expected):
    loss = kc.losses.ACLS(margin=margin, reference=reference, from_logits=True)
    assert float(loss(labels, logits)) == pytest.approx(expected, rel=1e-6)


def test_only_the_paper_s_reference_ignores_a_shift_of_all_logits():
    def value(logits, reference):
        return float(
            ops.mean(
                kc.losses.acls(
                    LABELS_A, logits, margin=1.0, reference=reference
                )
            )
        )

    assert value(A + 5, "min") == pytest.approx(value(A, "min"), rel=1e-5)
    assert value(A + 5, "zero") == pytest.approx(3.81651667, rel=1e-5)


def test_segmentation_with_a_void_pixel():
    labels = np.array([[[0, 2], [0, 255]]])
    logits = B.reshape(1, 2, 2, 4)
    for reference, expected in (("min", 3.36585611), ("zero", 1.05752278)):
        loss = kc.losses.ACLS(
            reference=reference, from_logits=True, ignore_class=255
        )
        assert float(loss(labels, logits)) == pytest.approx(expected, rel=1e-6)


def test_equal_logits_cost_nothing_and_pull_nowhere():
    logits = np.full((2, 3), 0.0)
    value, gradient = value_and_gradient(
        lambda z: ops.sum(kc.losses.acls([0, 1], z)), logits
    )
    assert value == 0.0
    np.testing.assert_array_equal(gradient, 0.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"margin": -1.0}, "cannot be negative"),
        ({"reference": "max"}, '"min"'),
        ({"negatives": "all"}, '"mean" or "sum"'),
        ({"adaptive": False, "conditional": False}, "neither"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        kc.losses.ACLS(**arguments)
    with pytest.raises(ValueError, match=message):
        kc.losses.acls(LABELS_A, A, **arguments)


def test_every_argument_moves_the_loss():
    def value(**arguments):
        arguments = {"margin": 6.0, "from_logits": True, **arguments}
        return float(to_numpy(kc.losses.ACLS(**arguments)(LABELS_B, B)))

    plain = value()
    for changed in (
        {"margin": 5.0},
        {"positive_weight": 1.0},
        {"negative_weight": 1.0},
        {"reference": "min"},
        {"negatives": "sum"},
        {"adaptive": False},
        {"conditional": False},
        {"primary": None},
        {"weight": 2.0},
    ):
        assert value(**changed) != pytest.approx(plain, rel=1e-3), changed


def test_reference_zero_needs_the_logits():
    probabilities = np.exp(A) / np.exp(A).sum(-1, keepdims=True)
    with pytest.raises(ValueError, match="from_logits=True"):
        kc.losses.ACLS()(LABELS_A, probabilities)
