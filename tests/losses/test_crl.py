"""Moon et al., ICML 2020. Oracle values: float64, checked with the code."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from keras_calib.inputs.rows import as_rows
from keras_calib.losses._batch_history import BatchHistory
from keras_calib.losses._batch_history import batch_history
from tests.helpers import compiled
from tests.helpers import value_and_gradient
from tests.losses.fixtures import LABELS_A
from tests.losses.fixtures import LABELS_B
from tests.losses.fixtures import A
from tests.losses.fixtures import B

FIRST = [4, 1, 5, 2, 3, 1]
SECOND = [1, 4, 2, 0, 5, 3]


def history(correct, epochs, size=3):
    """The history of the first samples, after whole epochs."""
    return BatchHistory(
        correct=ops.convert_to_tensor(correct[:size], "float32"),
        seen=ops.full((size,), float(epochs)),
        lowest=ops.convert_to_tensor(float(min(correct))),
    )


def bare(logits, correct, epochs, labels=LABELS_A, weight=None, **arguments):
    loss = kc.losses.CRL(primary=None, from_logits=True, **arguments)
    with batch_history(history(correct, epochs, len(labels))):
        return loss(labels, logits, weight)


@pytest.mark.parametrize(
    "confidence, expected",
    [
        ("softmax", 0.47622208),
        ("margin", 0.34549732),
        ("entropy", 0.33678937),
    ],
)
def test_equation_2(confidence, expected):
    value = bare(A, FIRST, 5, confidence=confidence)
    assert float(value) == pytest.approx(expected, rel=1e-6)
    # The same from the normalized correctness (h_i - 1) / (5 - 1).
    value = kc.losses.crl(LABELS_A, A, [0.75, 0.0, 1.0], confidence=confidence)
    assert float(value) == pytest.approx(expected, rel=1e-6)


def test_names_are_compared_by_their_letters():
    # As they come from a file, where equal texts are not one object.
    for name in ("softmax", "margin", "entropy"):
        given = "".join(list(name))
        values = [
            float(kc.losses.crl(LABELS_A, A, [0.75, 0.0, 1.0], confidence=each))
            for each in (name, given)
        ]
        assert given is not name and values[0] == values[1]


def test_equation_2_on_other_histories():
    assert float(bare(A, SECOND, 5)) == pytest.approx(0.49532041, rel=1e-6)
    value = bare(B, [2, 2, 0, 3], 3, LABELS_B)
    assert float(value) == pytest.approx(0.73196090, rel=1e-6)


def test_gradient_is_that_of_the_equation():
    _, gradient = value_and_gradient(lambda z: bare(z, FIRST, 5), A)
    expected = [
        [0.0, 0.0, 0.0],
        [-0.11193021, 0.15310704, -0.04117682],
        [0.00577451, 0.03860777, -0.04438228],
    ]
    np.testing.assert_allclose(gradient, expected, atol=1e-7)
    _, gradient = value_and_gradient(lambda z: bare(z, SECOND, 5), A)
    expected = [
        [0.11228956, -0.09180507, -0.02048448],
        [0.11193021, -0.15310704, 0.04117682],
        [0.0, 0.0, 0.0],
    ]
    np.testing.assert_allclose(gradient, expected, atol=1e-7)


def test_gradient_in_closed_form():
    # dkappa/dz_j = kappa (e_yhat - p_j); sample i is in two pairs, with
    # coefficient v_i - v_{i-1}, v_i = -t_i [pair active] / N.
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(6, 4)).astype("float32")
    correct = np.array([3, 0, 2, 2, 5, 1])
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    kappa = p.max(-1)
    gap = (correct - np.roll(correct, -1)) / 5
    t = np.sign(gap)
    active = (-t * (kappa - np.roll(kappa, -1)) + abs(gap) > 0) * (t != 0)
    v = -t * active / 6
    direction = kappa[:, None] * (np.eye(4)[p.argmax(-1)] - p)
    expected = (v - np.roll(v, 1))[:, None] * direction
    labels = np.zeros(6, int)
    _, gradient = value_and_gradient(
        lambda z: bare(z, correct, 5, labels), logits
    )
    np.testing.assert_allclose(gradient, expected, atol=1e-7)


def test_fraction_is_the_correctness_of_the_paper():
    # Seen 5 times: 4/5, 1/5, 5/5.
    value = bare(A, FIRST, 5, normalization="fraction")
    expected = kc.losses.crl(LABELS_A, A, [0.8, 0.2, 1.0])
    assert float(value) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize(
    "correct, epochs",
    [([0, 0, 0], 0), ([4, 4, 4], 4), ([2, 2, 2], 5)],
    ids=["first_epoch", "always_right", "equal"],
)
def test_equal_histories_cost_nothing(correct, epochs):
    value, gradient = value_and_gradient(lambda z: bare(z, correct, epochs), A)
    assert value == 0.0
    np.testing.assert_array_equal(gradient, 0.0)


def test_the_penalty_is_one_number_for_the_batch():
    loss = kc.losses.CRL(from_logits=True)
    with batch_history(history(FIRST, 5)):
        penalty = loss.penalty(as_rows(LABELS_A, A))
    assert loss.batch_statistic and penalty.shape == ()


def test_one_sample_is_its_own_neighbor():
    value, gradient = value_and_gradient(
        lambda z: bare(z, [1, 0], 1, LABELS_A[:1]), A[:1]
    )
    assert value == 0.0 and np.isfinite(gradient).all()


def test_rows_of_weight_zero_are_left_out_of_the_ring():
    keep = np.array([0, 2, 3])
    correct = np.array([2, 9, 0, 3])
    weights = np.array([1.0, 0.0, 1.0, 1.0])
    value, gradient = value_and_gradient(
        lambda z: bare(z, correct, 3, LABELS_B, weights), B
    )
    alone, expected = value_and_gradient(
        lambda z: bare(z, correct[keep], 3, LABELS_B[keep]), B[keep]
    )
    assert value == pytest.approx(alone, rel=1e-6)
    np.testing.assert_allclose(gradient[keep], expected, atol=1e-7)
    np.testing.assert_array_equal(gradient[1], 0.0)
    ignored = np.where(weights > 0, LABELS_B, 255)
    ignoring = bare(B, correct, 3, ignored, ignore_class=255)
    assert float(ignoring) == pytest.approx(alone, rel=1e-6)


def test_a_pair_weighs_as_much_as_both_its_rows():
    # Pairs (0, 1), (1, 2), (2, 0), each of weight w_i w_j.
    weights = np.array([2.0, 1.0, 3.0])
    kappa = np.array([0.78559703, 0.64261641, 0.92828329])
    t, margin = np.array([1, -1, 1]), np.array([0.75, 1.0, 0.25])
    pairs = np.maximum(-t * (kappa - np.roll(kappa, -1)) + margin, 0)
    pair_weights = weights * np.roll(weights, -1)
    expected = (pairs * pair_weights).sum() / pair_weights.sum()
    value = bare(A, FIRST, 5, weight=weights)
    assert float(value) == pytest.approx(expected, rel=1e-6)


def test_a_batch_without_weight_is_zero():
    value, gradient = value_and_gradient(
        lambda z: bare(z, FIRST, 5, weight=np.zeros(3)), A
    )
    assert value == 0.0
    np.testing.assert_array_equal(gradient, 0.0)


@pytest.mark.parametrize("normalization", ["min_max", "fraction"])
def test_an_empty_batch_is_zero(normalization):
    # As a replica gets it. The largest count of no sample is an error.
    value = bare(A[:0], FIRST, 5, LABELS_A[:0], normalization=normalization)
    assert float(value) == 0


def test_primary_and_weight():
    primary = kc.losses.FocalLoss(gamma=2.0, from_logits=True)
    loss = kc.losses.CRL(primary=primary, weight=0.5, from_logits=True)
    with batch_history(history(FIRST, 5)) as found:
        value = float(loss(LABELS_A, A))
    assert value == pytest.approx(0.24798362 + 0.5 * 0.47622208, rel=1e-6)
    assert float(found.parts["penalty"]) == pytest.approx(0.47622208, rel=1e-6)
    primary_loss = float(found.parts["primary_loss"])
    assert primary_loss == pytest.approx(0.24798362, rel=1e-6)


def test_compiled_is_eager():
    step = compiled(lambda z: bare(z, FIRST, 5))
    value = step(ops.convert_to_tensor(A.astype("float32")))
    assert float(value) == pytest.approx(0.47622208, rel=1e-6)


def test_half_precision_logits():
    value = bare(ops.cast(ops.convert_to_tensor(A), "float16"), FIRST, 5)
    assert float(value) == pytest.approx(0.47622208, abs=5e-4)


def test_probabilities_give_the_same():
    p = keras.activations.softmax(ops.convert_to_tensor(A.astype("float32")))
    loss = kc.losses.CRL(primary=None)
    with batch_history(history(FIRST, 5)):
        value = loss(LABELS_A, ops.convert_to_numpy(p))
    assert float(value) == pytest.approx(0.47622208, rel=1e-5)


def test_config():
    loss = kc.losses.CRL(
        confidence="entropy",
        normalization="fraction",
        primary=kc.losses.FocalLoss(from_logits=True),
        weight=0.5,
        from_logits=True,
    )
    again = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(loss)
    )
    assert again.get_config() == loss.get_config()


def test_without_history_it_says_what_to_do():
    with pytest.raises(ValueError, match=r"kc\.add_sample_index"):
        kc.losses.CRL(from_logits=True)(LABELS_A, A)
    model = keras.Sequential([keras.layers.Dense(3)])
    model.compile("sgd", kc.losses.CRL(from_logits=True))
    with pytest.raises(ValueError, match="SampleHistoryModel"):
        model.fit(A, LABELS_A, verbose=0)


def test_bad_arguments():
    with pytest.raises(ValueError, match="`confidence` must be one of"):
        kc.losses.CRL(confidence="top")
    with pytest.raises(ValueError, match="`confidence` must be one of"):
        kc.losses.crl(LABELS_A, A, [0.0, 0.0, 0.0], confidence="top")
    with pytest.raises(ValueError, match="`normalization` must be one of"):
        kc.losses.CRL(normalization="count")


def test_pixels_have_no_history():
    with (
        batch_history(history(FIRST, 5, 2)),
        pytest.raises(ValueError, match="one history per sample"),
    ):
        kc.losses.CRL(from_logits=True)(
            LABELS_B.reshape(2, 2), B.reshape(2, 2, 4)
        )


def test_the_penalty_has_no_metric_of_its_own():
    # Metrics see no history; the model shows the parts of the loss.
    assert kc.losses.CRL().component_metrics() == []
