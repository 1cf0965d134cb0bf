"""Liu et al., ICML 2022."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.callbacks._empirical_targets import empirical_targets
from tests.helpers import small_network
from tests.helpers import to_numpy

P = np.array([0.1, 0.8, 0.35, 0.55, 0.92, 0.4, 0.05])
LABELS = np.array([0, 1, 1, 0, 1, 0, 0])


def test_targets_are_shares_of_groups():
    targets = empirical_targets(np.stack([1 - P, P], -1), LABELS, 3)
    expected = [0, 2 / 3, 0.5, 2 / 3, 2 / 3, 0.5, 0]
    np.testing.assert_allclose(targets[:, 1], expected, rtol=1e-6)
    np.testing.assert_allclose(targets.sum(-1), 1.0, rtol=1e-6)
    loss = -(expected * np.log(P) + (1 - np.array(expected)) * np.log(1 - P))
    assert loss.mean() == pytest.approx(0.55114010, rel=1e-7)


def test_three_classes_are_asked_one_by_one():
    p = np.array([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.1, 0.2, 0.7]])
    # One group: the share of each class, which sums to one.
    targets = empirical_targets(p, np.array([0, 0, 2]), num_bins=1)
    np.testing.assert_allclose(targets, [[2 / 3, 0, 1 / 3]] * 3, rtol=1e-6)
    # Groups of one: the label.
    targets = empirical_targets(p, np.array([0, 1, 2]), num_bins=3)
    np.testing.assert_array_equal(targets, np.eye(3))


def test_shares_of_weighted_groups():
    both = np.stack([1 - P, P], -1)
    # Sorted: .05, .1, .35 | .4, .55 twice, .8, .92; the cut is at 3 of 7.
    weight = np.array([1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0])
    targets = empirical_targets(both, LABELS, 2, weight)
    low, high = 1 / 3, 2 / 5
    expected = [low, high, low, high, high, high, low]
    np.testing.assert_allclose(targets[:, 1], expected, rtol=1e-6)
    for factor in (0.1, 3.0):
        scaled = empirical_targets(both, LABELS, 2, factor * weight)
        np.testing.assert_array_equal(scaled, targets)
    even = empirical_targets(both, LABELS, 3, np.full(7, 0.3))
    np.testing.assert_allclose(
        even, empirical_targets(both, LABELS, 3), rtol=1e-6
    )


def test_samples_of_weight_0_do_not_count(digits):
    (x, y), _, _ = digits
    weight = np.resize([0.0, 1.0, 2.0, 1.0], len(y))
    counts = weight > 0
    void = np.where(counts, y, -1)
    targets, logs = [], []
    for data in ((x, void, weight), (x[counts], y[counts], weight[counts])):
        keras.utils.set_random_seed(0)
        model = small_network()
        model.compile(
            keras.optimizers.SGD(0.1),
            keras.losses.CategoricalCrossentropy(
                from_logits=True, reduction="mean_with_sample_weight"
            ),
        )
        cape = kc.callbacks.EmpiricalTargets(
            *data[:2],
            num_classes=10,
            sample_weight=data[2],
            cycle=1,
            from_logits=True,
            batch_size=len(y),
            shuffle=False,
        )
        history = model.fit(cape.data, epochs=2, callbacks=[cape], verbose=0)
        logs.append(history.history["loss"])
        targets.append(cape.targets)
    np.testing.assert_allclose(targets[0][counts], targets[1], atol=1e-5)
    assert logs[0] == pytest.approx(logs[1], rel=1e-4)


def test_samples_of_weight_0_keep_their_labels(digits):
    (x, y), _, _ = digits
    x, y = x[:100], y[:100].astype("float32")
    weight = np.resize([0.0, 1.0, 1.0], len(y))
    expected = np.eye(10)[y.astype(int)][weight == 0]
    expected[0] = np.eye(10)[0]
    y[0] = np.nan
    cape = kc.callbacks.EmpiricalTargets(
        x, y, num_classes=10, sample_weight=weight, from_logits=True
    )
    model = small_network()
    model.compile(
        keras.optimizers.SGD(0.0),
        keras.losses.CategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(cape.data, epochs=1, callbacks=[cape], verbose=0)
    np.testing.assert_array_equal(cape.targets[weight == 0], expected)


def test_one_epoch_of_each_cycle(digits):
    x, y = digits[0]
    model = small_network()
    # Confident, and wrong: labels and frequencies differ.
    kernel, bias = model.layers[-1].get_weights()
    model.layers[-1].set_weights([5 * kernel, bias])
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.0), loss, metrics=["accuracy"])
    cape = kc.callbacks.EmpiricalTargets(
        x, y, num_classes=10, cycle=2, from_logits=True
    )
    logs = model.fit(cape.data, epochs=4, callbacks=[cape], verbose=0).history
    logits = model.predict(x, verbose=0)
    p = to_numpy(keras.ops.softmax(logits))
    targets = empirical_targets(p, y)
    np.testing.assert_allclose(cape.targets, targets, atol=1e-6)
    soft = -(targets * np.log(p)).sum(-1).mean()
    hard = -np.log(p[np.arange(len(y)), y]).mean()
    expected = [soft, hard, soft, hard]
    assert abs(soft - hard) > 1e-3
    assert logs["loss"] == pytest.approx(expected, rel=1e-4)


def test_bad_arguments(digits):
    x, y = digits[0]
    with pytest.raises(ValueError, match="All weights are 0"):
        kc.callbacks.EmpiricalTargets(
            x, y, num_classes=10, sample_weight=np.zeros(len(y))
        )
    for weights in (None, np.ones(len(y))):
        for text in (y.astype("str"), y.astype("str").astype(object)):
            with pytest.raises(ValueError, match="Labels must be numbers"):
                kc.callbacks.EmpiricalTargets(x, text, weights, num_classes=10)
    with pytest.raises(ValueError, match="at least 1"):
        kc.callbacks.EmpiricalTargets(x, y, num_classes=10, num_bins=0)
    with pytest.raises(ValueError, match="classes 0 to 8") as raised:
        kc.callbacks.EmpiricalTargets(x, y, num_classes=9)
    assert "give it a weight of 0" in str(raised.value)
    assert "ignore_class" not in str(raised.value)


def validated(cape, validation, metrics, model=None, **kwargs):
    keras.utils.set_random_seed(0)
    model = model or small_network()
    loss = kc.losses.MDCA(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, **metrics)
    callbacks = [cape, *kwargs.pop("callbacks", ())]
    options = {"epochs": 2, "verbose": 0, "validation_data": validation}
    return model.fit(cape.data, callbacks=callbacks, **{**options, **kwargs})


@pytest.mark.parametrize("kind", ["arrays", "column", "generator"])
@pytest.mark.parametrize("key", ["metrics", "weighted_metrics"])
def test_accuracy_of_rows_refuses_class_ids(digits, key, kind):
    (x, y), (x_val, y_val), _ = digits
    cape = kc.callbacks.EmpiricalTargets(
        x[:64], y[:64], num_classes=10, from_logits=True
    )
    metrics = {key: ["accuracy"]}
    ids = x_val[:40], y_val[:40]
    if kind == "column":
        ids = ids[0], ids[1][:, None]
    options = {}
    if kind == "generator":
        batches = [ids] * 4
        ids, options = (ids for ids in batches), {"validation_steps": 1}
    with pytest.raises(ValueError, match=r"\['accuracy'\].*`keras.utils.to_c"):
        validated(cape, ids, metrics, **options)
    # Rows are as they should be, also beside a callback that collects.
    rows = x_val[:40], keras.utils.to_categorical(y_val[:40], 10)
    model = small_network()
    monitor = kc.callbacks.CalibrationMonitor(from_logits=True)
    history = validated(cape, rows, metrics, model, callbacks=[monitor]).history
    logits = model.predict(rows[0], verbose=0)
    accuracy = (logits.argmax(-1) == y_val[:40]).mean()
    assert history["val_accuracy"][-1] == pytest.approx(accuracy, abs=1e-6)
    expected = kc.metrics.calibration_errors(
        y_val[:40], logits, from_logits=True
    )["brier_score"]
    assert history["val_brier_score"][-1] == pytest.approx(expected, abs=1e-5)


def test_class_ids_are_taken_where_no_metric_needs_rows(digits):
    (x, y), (x_val, y_val), _ = digits
    cape = kc.callbacks.EmpiricalTargets(
        x[:64], y[:64], num_classes=10, from_logits=True
    )
    model = small_network()
    held = x_val[:40], y_val[:40]
    found = validated(cape, held, {}, model).history["val_loss"]
    loss = kc.losses.MDCA(from_logits=True)
    expected = model.evaluate(*held, batch_size=40, verbose=0)
    assert len(found) == 2
    rows = keras.utils.to_categorical(held[1], 10)
    value = loss(rows, model.predict(held[0], verbose=0))
    assert expected == pytest.approx(float(to_numpy(value)), rel=1e-5)
    # `evaluate` alone has no epoch, and Keras does what it does.
    model = small_network()
    validated(cape, None, {"metrics": ["accuracy"]}, model)
    model.evaluate(x_val[:40], y_val[:40], callbacks=[cape], verbose=0)
