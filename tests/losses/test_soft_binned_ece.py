import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import value_and_gradient
from tests.losses.fixtures import LABELS_A
from tests.losses.fixtures import LABELS_B
from tests.losses.fixtures import A
from tests.losses.fixtures import B
from tests.losses.fixtures import assert_gradient
from tests.losses.fixtures import on_image

BATCHES = {"A": (LABELS_A, A), "B": (LABELS_B, B)}


@pytest.mark.parametrize(
    ("batch", "num_bins", "temperature", "expected"),
    [
        ("A", 5, 0.01, (0.21710705, 0.21710705, 0.25126034, 0.25988045)),
        ("A", 15, 0.001, (0.30946138, 0.30946138, 0.39305387, 0.39306240)),
        ("B", 5, 0.01, (0.42983150, 0.42983835, 0.45834550, 0.46139214)),
        ("B", 15, 0.001, (0.45527798, 0.45531744, 0.56965871, 0.56966148)),
    ],
)
def test_value(batch, num_bins, temperature, expected):
    found = [
        float(
            kc.losses.soft_binned_ece(
                *BATCHES[batch],
                num_bins=num_bins,
                temperature=temperature,
                norm=norm,
                form=form,
            )
        )
        for norm in (1, 2)
        for form in ("bin", "label")
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("batch", "num_bins", "temperature", "expected"),
    [
        ("A", 5, 0.01, 0.10687383),
        ("A", 15, 0.001, 0.15416617),
        ("B", 5, 0.01, 0.17757113),
        ("B", 15, 0.001, 0.32338853),
    ],
)
def test_the_authors_code(batch, num_bins, temperature, expected):
    labels, logits = BATCHES[batch]
    value = kc.losses.soft_binned_ece(
        labels,
        logits,
        num_bins=num_bins,
        temperature=temperature,
        squared=True,
        bin_range=(1 / logits.shape[-1], 1.0),
    )
    # The code mixes 1e-5 of a uniform share into each membership.
    assert float(value) == pytest.approx(expected, rel=5e-5)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (
            "label",
            [
                [0.26205644, -0.21425066, -0.04780578],
                [0.01863437, -0.02548957, 0.00685520],
                [0.00065840, 0.00440199, -0.00506039],
            ],
        ),
        (
            "bin",
            [
                [0.26338272, -0.21533499, -0.04804773],
                [0.01013942, -0.01386951, 0.00373009],
                [0.00106749, 0.00713715, -0.00820465],
            ],
        ),
    ],
)
def test_gradient(form, expected):
    _, gradient = value_and_gradient(
        lambda z: kc.losses.soft_binned_ece(
            LABELS_A, z, num_bins=5, temperature=0.01, form=form
        ),
        A,
    )
    assert_gradient(gradient, expected)


@pytest.mark.parametrize("form", ["label", "bin"])
@pytest.mark.parametrize("norm", [1, 2, 3.5])
@pytest.mark.parametrize("temperature", [1e-6, 1e-3, 10.0])
def test_one_sample(form, norm, temperature):
    # | a - c |, whatever the bins. At 1e-6 a plain exponential underflows.
    value = kc.losses.soft_binned_ece(
        LABELS_B[1:2],
        B[1:2],
        num_bins=15,
        temperature=temperature,
        norm=norm,
        form=form,
    )
    assert float(value) == pytest.approx(0.87963119, rel=1e-6)


def test_a_perfect_batch_has_no_slope():
    for norm in (1, 2, 3):
        value, gradient = value_and_gradient(
            lambda z, norm=norm: kc.losses.soft_binned_ece(
                [0, 1], z, norm=norm
            ),
            [[100.0, 0.0], [0.0, 100.0]],
        )
        assert value == 0.0
        np.testing.assert_array_equal(gradient, 0.0)


@pytest.mark.parametrize(
    ("norm", "error"), [(4, 5e-4), (6, 0.005), (8, 0.05), (10, 0.02)]
)
def test_high_powers_of_a_small_error_have_a_slope(norm, error):
    p = np.array([[1 - error, error]])
    value, gradient = value_and_gradient(
        lambda z: kc.losses.soft_binned_ece([0], z, norm=norm), np.log(p)
    )
    assert float(value) == pytest.approx(error, rel=3e-3)
    # d (1 - c) / d z = -c (1 - c)
    slope = (1 - error) * error
    np.testing.assert_allclose(gradient, [[-slope, slope]], rtol=1e-2)


def test_composite_objective():
    # FL(3) + 0.5 SB-ECE + 1e-4 sum w^2, w = (0.5, -1, 2)
    loss = kc.losses.SoftBinnedECE(
        weight=0.5,
        primary=kc.losses.FocalLoss(from_logits=True),
        from_logits=True,
    )
    value = float(loss(LABELS_A, A)) + 1e-4 * (0.25 + 1 + 4)
    assert value == pytest.approx(0.37822570, rel=1e-6)


def test_sample_weight():
    order = [0, 0, 1, 2]
    for form in ("label", "bin"):
        value = kc.losses.soft_binned_ece(
            LABELS_A, A, form=form, sample_weight=[2.0, 1.0, 1.0]
        )
        again = kc.losses.soft_binned_ece(LABELS_A[order], A[order], form=form)
        assert float(value) == pytest.approx(float(again), rel=1e-6)


def test_segmentation_with_a_void_pixel():
    loss = kc.losses.SoftBinnedECE(primary=None, weight=1.0, from_logits=True)
    assert on_image(loss) == pytest.approx(0.53085197, rel=1e-6)


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_bins": 0},
        {"num_bins": 2.5},
        {"temperature": 0.0},
        {"temperature": -0.1},
        {"norm": 0.5},
        {"form": "both"},
        {"bin_range": (1.0, 0.5)},
    ],
    ids=str,
)
def test_bad_arguments(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=f"Received: {name}="):
        kc.losses.SoftBinnedECE(**arguments)
    with pytest.raises(ValueError, match=f"Received: {name}="):
        kc.losses.soft_binned_ece(LABELS_A, A, **arguments)


def test_an_infinite_norm_is_refused():
    with pytest.raises(ValueError, match="a finite number of at least 1"):
        kc.losses.soft_binned_ece([0], [[2.0, 0.5]], norm=np.inf)
