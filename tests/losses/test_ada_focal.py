"""Ghosh et al., NeurIPS 2022. Oracle values: float64, checked with the code."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from tests.helpers import compiled
from tests.helpers import value_and_gradient
from tests.losses.fixtures import LABELS_A
from tests.losses.fixtures import LABELS_B
from tests.losses.fixtures import LABELS_SATURATED
from tests.losses.fixtures import SATURATED
from tests.losses.fixtures import A
from tests.losses.fixtures import B

EDGES = [0.3, 0.6]
GAMMAS = [2.0, -0.5, 1.5]


def with_table(edges, gammas, **arguments):
    loss = kc.losses.AdaFocalLoss(
        num_bins=len(gammas), from_logits=True, **arguments
    )
    loss.table.set(np.array(edges), np.array(gammas))
    return loss


def test_each_sample_has_the_gamma_of_the_bin_of_its_label():
    # p_y of A is 0.786, 0.261, 0.928: gammas 1.5, 2, 1.5.
    value = with_table(EDGES, GAMMAS)(LABELS_A, A)
    assert float(value) == pytest.approx(0.25262038, rel=1e-6)
    values = ops.convert_to_numpy(
        kc.losses.ada_focal_loss(LABELS_A, A, edges=EDGES, gammas=GAMMAS)
    )
    assert values.mean() == pytest.approx(0.25262038, rel=1e-6)


def test_a_negative_gamma_is_the_inverse_focal_loss():
    # The second sample has p_y = 0.261, and now gamma -0.5.
    value = with_table([0.2, 0.3], [7.0, -0.5, 1.5])(LABELS_A, A)
    assert float(value) == pytest.approx(0.51092261, rel=1e-6)


def test_one_gamma_for_all_is_the_focal_loss():
    focal = kc.losses.FocalLoss(gamma=2.0, from_logits=True)
    loss = kc.losses.AdaFocalLoss(gamma=2.0, from_logits=True)
    soft = np.array([[0.7, 0.3, 0.0], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]])
    for labels, logits in ((LABELS_A, A), (LABELS_B, B), (soft, A)):
        value, gradient = value_and_gradient(
            lambda z, y=labels: loss(y, z), logits
        )
        expected, expected_gradient = value_and_gradient(
            lambda z, y=labels: focal(y, z), logits
        )
        assert value == pytest.approx(expected, rel=1e-6)
        np.testing.assert_allclose(gradient, expected_gradient, atol=1e-7)


def test_gradient_of_the_inverse_side():
    # d/dp of -(1 + p)^g log p times p (q - p): losses.md 4.6, gamma 2.
    loss = with_table([0.5], [-2.0, -2.0])
    value, gradient = value_and_gradient(lambda z: loss(LABELS_A, z), A)
    assert value == pytest.approx(1.06042494, rel=1e-6)
    expected = [
        [-0.17948053, 0.14673870, 0.03274183],
        [-0.17389844, 0.15127278, 0.02262566],
        [0.01073638, 0.07178229, -0.08251867],
    ]
    np.testing.assert_allclose(gradient, expected, atol=1e-7)


def test_an_edge_belongs_to_the_lower_bin():
    logits = np.zeros((1, 2), "float32")  # p_y is 1/2 exactly
    values = kc.losses.ada_focal_loss(
        [0], logits, edges=[0.5], gammas=[2.0, 0.0]
    )
    assert float(values[0]) == pytest.approx(0.25 * np.log(2), rel=1e-6)


def test_soft_labels_take_the_gamma_of_each_class():
    one_hot = np.eye(3)[LABELS_A]
    loss = with_table(EDGES, GAMMAS)
    value = float(loss(one_hot, A))
    assert value == pytest.approx(float(loss(LABELS_A, A)), rel=1e-6)


@pytest.mark.parametrize("gamma", [-2.0, 0.0, 0.5, 20.0])
def test_saturated_logits_stay_finite(gamma):
    loss = with_table([0.5], [gamma, gamma])
    value, gradient = value_and_gradient(
        lambda z: loss(LABELS_SATURATED, z), SATURATED
    )
    assert np.isfinite(value) and np.isfinite(gradient).all()
    value, gradient = value_and_gradient(lambda z: loss([0, 1], z), SATURATED)
    assert np.isfinite(value) and np.isfinite(gradient).all()


def test_ignored_rows_and_weights():
    loss = with_table(EDGES, GAMMAS, ignore_class=255)
    alone = float(loss(LABELS_A[:2], A[:2]))
    labels = np.array([0, 0, 255])
    assert float(loss(labels, A)) == pytest.approx(alone, rel=1e-6)
    weighted = with_table(EDGES, GAMMAS, reduction="mean_with_sample_weight")
    value = weighted(LABELS_A, A, np.array([1.0, 1.0, 0.0]))
    assert float(value) == pytest.approx(alone, rel=1e-6)


@pytest.mark.slow
def test_compiled_is_eager():
    loss = with_table(EDGES, GAMMAS)
    step = compiled(lambda z: loss(LABELS_A, z))
    value = step(ops.convert_to_tensor(A.astype("float32")))
    assert float(value) == pytest.approx(0.25262038, rel=1e-6)


def test_half_precision_logits():
    half = ops.cast(ops.convert_to_tensor(A), "float16")
    value = with_table(EDGES, GAMMAS)(LABELS_A, half)
    assert float(value) == pytest.approx(0.25262038, abs=5e-4)


def test_config():
    loss = kc.losses.AdaFocalLoss(num_bins=7, gamma=2.0, from_logits=True)
    for thing in (loss, loss.table):
        again = keras.saving.deserialize_keras_object(
            keras.saving.serialize_keras_object(thing)
        )
        assert again.get_config() == thing.get_config()


def test_files_of_other_tables():
    table = kc.losses.AdaFocalLoss(num_bins=3, gamma=2.0).table
    store = {}
    kc.losses.AdaFocalLoss(num_bins=3, gamma=1.5).table.save_own_variables(
        store
    )
    # From before AdaFocal, and of other bins.
    table.load_own_variables({"total": np.zeros(())})
    assert not table.restored and float(table.result()) == 2.0
    with pytest.raises(ValueError, match="4 gammas for num_bins=3"):
        table.load_own_variables({**store, "gammas": np.ones(4)})
    # From before the epochs of updates were kept.
    del store["num_epochs"]
    table.load_own_variables(store)
    assert not table.restored and float(table.result()) == 1.5
    table.load_own_variables({**store, "num_epochs": np.array(7)})
    assert table.restored and table.num_epochs == 7


def test_bad_arguments():
    with pytest.raises(ValueError, match="at least 2"):
        kc.losses.AdaFocalLoss(num_bins=1)
    with pytest.raises(ValueError, match=r"gammas=\(3,\), edges=\(3,\)"):
        kc.losses.ada_focal_loss(
            LABELS_A, A, edges=[0.1, 0.2, 0.3], gammas=GAMMAS
        )
    for name in ("edges", "gammas"):
        text = {"edges": [0.1, 0.9], "gammas": GAMMAS, name: ["a", "b", "c"]}
        with pytest.raises(ValueError, match=f"`{name}` must be real numbers"):
            kc.losses.ada_focal_loss(LABELS_A, A, **text)
