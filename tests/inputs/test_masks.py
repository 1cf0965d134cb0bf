"""Masks of Keras in `fit` and `evaluate`, against NumPy on the real rows."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.inputs import masks
from tests.helpers import JIT_BUT_ON_TORCH
from tests.losses.fixtures import ALL_LOSSES

X = np.array(
    [[1, 2, 3, 0, 0], [4, 0, 0, 0, 0], [2, 2, 1, 3, 4], [3, 1, 0, 0, 0]]
)
Y = np.array(
    [[0, 1, 2, 0, 0], [1, 0, 0, 0, 0], [2, 0, 1, 1, 0], [0, 2, 1, 1, 1]]
)
REAL = X > 0


def tagger(classes=3, activation=None, masking="embedding"):
    """A network of fixed weights whose outputs carry a mask."""
    inputs = keras.Input((5,))
    if masking == "embedding":
        x = keras.layers.Embedding(5, 4, mask_zero=True)(inputs)
    else:
        x = keras.layers.Reshape((5, 1))(inputs)
        x = keras.layers.Masking(0.0)(x)
    x = keras.layers.Dense(classes, activation=activation)(x)
    model = keras.Model(inputs, x)
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
    return model


def cross_entropy(model, weight=None):
    z = model.predict(X, verbose=0).astype("float64")[REAL]
    log_p = z - np.log(np.exp(z).sum(-1, keepdims=True))
    return np.average(
        -log_p[np.arange(len(z)), Y[REAL]],
        weights=None if weight is None else weight[REAL],
    )


@pytest.mark.parametrize("jit_compile", [JIT_BUT_ON_TORCH, False])
@pytest.mark.parametrize("masking", ["embedding", "masking"])
def test_losses_and_metrics_see_the_mask(masking, jit_compile):
    model = tagger(masking=masking)
    loss = kc.losses.EntropyRegularization(from_logits=True, weight=0.1)
    nll = kc.metrics.NegativeLogLikelihood(from_logits=True)
    ece = kc.metrics.ExpectedCalibrationError(from_logits=True)
    model.compile(
        keras.optimizers.SGD(0.0),
        loss,
        metrics=[nll, ece, *loss.component_metrics()],
        jit_compile=jit_compile,
    )
    expected = cross_entropy(model)
    z = model.predict(X, verbose=0)
    error = kc.metrics.calibration_errors(Y[REAL], z[REAL], from_logits=True)[
        "expected_calibration_error"
    ]
    found = [model.evaluate(X, Y, verbose=0, return_dict=True)]
    if jit_compile or keras.backend.backend() != "jax":
        # One batch: the metrics of `fit` are those of these weights.
        history = model.fit(X, Y, verbose=0).history
        found.append({key: value[0] for key, value in history.items()})
    for logs in found:
        assert logs["negative_log_likelihood"] == pytest.approx(
            expected, rel=1e-5
        )
        assert logs["primary_loss"] == pytest.approx(expected, rel=1e-5)
        total = expected + 0.1 * logs["penalty"]
        assert logs["loss"] == pytest.approx(total, rel=1e-5)
        assert logs["expected_calibration_error"] == pytest.approx(
            error, rel=1e-5
        )


def test_a_softmax_and_a_mask():
    model = tagger(activation="softmax")
    model.compile("sgd", kc.losses.FocalLoss(gamma=0.0))
    logits = tagger()
    assert model.evaluate(X, Y, verbose=0) == pytest.approx(
        cross_entropy(logits), rel=1e-5
    )


def test_training_does_not_see_padding():
    trained = []
    for padding in (0, 2):
        model = tagger()
        loss = kc.losses.MMCE(from_logits=True)
        model.compile(keras.optimizers.SGD(0.5), loss)
        labels = np.where(REAL, Y, padding)
        model.fit(X, labels, epochs=2, shuffle=False, verbose=0)
        trained.append(model.get_weights())
    for first, second in zip(*trained, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("loss", ALL_LOSSES, ids=lambda x: x.name)
def test_each_loss_is_that_of_the_real_rows(loss):
    if isinstance(loss, kc.losses.CRL):
        pytest.skip("has no tokens")
    model = tagger()
    model.compile("sgd", loss)
    z = model.predict(X, verbose=0)
    expected = float(loss(Y[REAL], z[REAL]))
    found = model.evaluate(X, Y, verbose=0)
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_multi_label_masks_and_weights_are_aligned_from_the_left():
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, (4, 5, 5))
    weight = np.array([1.0, 2.0, 0.5, 3.0])
    model = tagger(classes=5, activation="sigmoid")
    metric = kc.metrics.MultilabelCalibrationError(average="micro")
    metric.update_state(y, model(X), weight)
    found = float(metric.result())
    p = model.predict(X, verbose=0)[REAL]
    rows = np.broadcast_to(weight[:, None], X.shape)[REAL]
    expected = kc.metrics.calibration_errors(
        y[REAL].ravel(),
        p.ravel(),
        np.repeat(rows, 5),
        metrics=["binary_calibration_error"],
    )["binary_calibration_error"]
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("eager", [True, False])
def test_a_mask_ends_with_its_predictions(eager):
    """JAX: labels outlive the step, and the mask is of its predictions."""
    model = tagger(activation="softmax")
    y = keras.ops.convert_to_tensor(Y)
    other = keras.ops.softmax(np.random.default_rng(1).normal(size=(4, 5, 3)))

    def gap():
        metric = kc.metrics.ConfidenceGap()
        metric.update_state(y, other)
        return float(metric.result())

    before = gap()
    model.compile(keras.optimizers.SGD(0.0), kc.losses.DCA(), run_eagerly=eager)
    model.train_on_batch(X, y)
    assert gap() == before


def test_interleaved_training_hands_its_mask_to_metrics():
    network = tagger(activation="softmax")
    model = kc.models.InterleavedTraining(network, penalty_split=0.5)
    model.compile(
        keras.optimizers.SGD(0.0),
        kc.losses.DCA(),
        metrics=[kc.metrics.ConfidenceGap()],
    )
    logs = model.fit(X, Y, verbose=0, batch_size=2).history
    p = network.predict(X, verbose=0)
    gap = p.max(axis=-1) - (p.argmax(axis=-1) == Y)
    assert logs["confidence_gap"] == pytest.approx([gap[REAL].mean()], abs=1e-6)


SCORES = np.random.default_rng(1).normal(size=(4, 5, 3)).astype("float32")


def test_a_mask_lives_as_long_as_its_labels(monkeypatch):
    class Labels:
        pass

    labels, scores = Labels(), keras.ops.convert_to_tensor(SCORES)
    found = []
    monkeypatch.setattr(
        masks, "keras_mask", lambda each: found[-1] if each is scores else None
    )
    found.append("outside of JAX's steps")
    monkeypatch.setattr(masks, "_is_traced_by_jax", lambda _: False)
    assert masks.mask_for_metrics(labels, scores) == found[-1]
    copy = keras.ops.convert_to_tensor(SCORES)
    assert masks.mask_of(labels, copy) is None
    monkeypatch.setattr(masks, "_is_traced_by_jax", lambda _: True)
    # The later mask of the same labels counts.
    for mask in ("first", "second"):
        found.append(mask)
        masks.mask_for_metrics(labels, scores)
        assert masks.mask_of(labels, copy) == mask
        assert masks.mask_of(labels, SCORES[:1]) is None
    key = id(labels)
    del labels
    assert key not in masks._remembered


def test_a_mask_of_other_predictions_is_not_handed_on(monkeypatch):
    labels, scores = np.zeros(4), keras.ops.convert_to_tensor(SCORES)
    inside = True
    monkeypatch.setattr(
        masks, "keras_mask", lambda each: "mask" if each is scores else None
    )
    monkeypatch.setattr(
        masks,
        "_is_traced_by_jax",
        lambda each: each is not labels and (inside or each is late),
    )
    late = SCORES.copy()
    masks.mask_for_metrics(labels, scores)
    # Inside of the code that is compiled, they are no numbers.
    assert masks.mask_of(labels, SCORES + 1) == "mask"
    # A step that is not compiled: numbers, of which the metric sees a copy.
    inside = False
    assert masks.mask_of(labels, SCORES.copy()) == "mask"
    assert masks.mask_of(labels, SCORES + 1) is None
    assert masks.mask_of(labels, late) is None


def test_networks_that_learn_together_have_masks_of_their_own(monkeypatch):
    labels = np.zeros(4)
    scores = [keras.ops.convert_to_tensor(SCORES + i) for i in range(3)]
    found = {id(each): f"mask {i}" for i, each in enumerate(scores)}
    monkeypatch.setattr(masks, "keras_mask", lambda each: found.get(id(each)))
    monkeypatch.setattr(
        masks, "_is_traced_by_jax", lambda each: id(each) in found
    )
    for each in scores:
        masks.mask_for_metrics(labels, each)
    monkeypatch.setattr(masks, "_is_traced_by_jax", lambda each: False)
    for i in range(3):
        assert masks.mask_of(labels, SCORES + np.float32(i)) == f"mask {i}"
