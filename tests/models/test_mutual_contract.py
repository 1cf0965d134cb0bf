"""Mutual learning reads rows as its loss does, with any optimizer and input."""

import keras
import numpy as np
import pytest
from keras import layers
from keras import ops

import keras_calib as kc
from keras_calib.models._divergence import reduced_divergence
from tests.calibration.networks import Subclassed
from tests.helpers import small_network
from tests.helpers import to_numpy

MODELS = [kc.models.MutualLearning, kc.models.DiffDML]
CrossEntropy = keras.losses.SparseCategoricalCrossentropy


def log_softmax(z):
    z = z - z.max(axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def sgd(rate=0.1, **kwargs):
    return keras.optimizers.SGD(rate, **kwargs)


def network(seed=0, shape=(4,), classes=3, activation=None, **kwargs):
    keras.utils.set_random_seed(seed)
    head = layers.Dense(classes, activation, **kwargs)
    return keras.Sequential([keras.Input(shape), head])


def pair(cls=kc.models.DiffDML, shape=(4,), **kwargs):
    return cls(network(0, shape), network(1, shape), **kwargs)


def images(seed=0, classes=3, axis=-1):
    """One score per pixel and class, classes on any axis."""
    keras.utils.set_random_seed(seed)
    parts = [keras.Input((2, 3, 5)), layers.Dense(classes)]
    if axis != -1:
        parts.append(layers.Permute((3, 1, 2)))
    return keras.Sequential(parts)


def tagger(seed=0):
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            layers.Embedding(6, 5, mask_zero=True),
            layers.Dense(3),
        ]
    )


def expected_logs(scores, peers, labels, weights, counts, reduction):
    """Loss parts of the primary by their definitions, classes last."""
    own = log_softmax(scores)
    chosen = np.take_along_axis(own, labels[..., None], -1)[..., 0]
    divergence = np.mean(
        [
            (np.exp(log_softmax(g)) * (log_softmax(g) - own)).sum(-1)
            for g in peers
        ],
        axis=0,
    )
    accuracy = np.mean(
        [
            ((g.argmax(-1) == labels) * weights).sum() / weights.sum()
            for g in peers
        ]
    )

    def reduced(values):
        total = (values * weights).sum()
        if reduction == "sum":
            return total
        if reduction == "mean_with_sample_weight":
            return total / weights.sum()
        return total / counts.sum()

    return {
        "supervised_loss": reduced(-chosen),
        "peer_divergence": reduced(divergence),
        "auxiliary_accuracy": accuracy,
    }


def check(model, x, y, sample_weight, expected):
    logs = model.train_on_batch(x, y, sample_weight, return_dict=True)
    for name, value in expected.items():
        assert logs[name] == pytest.approx(value, rel=2e-5, abs=1e-7), name


REDUCTIONS = ["sum_over_batch_size", "sum", "mean_with_sample_weight"]


class TestRows:
    @pytest.mark.parametrize("cls", MODELS)
    @pytest.mark.parametrize("reduction", REDUCTIONS)
    @pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 4), (4, 4, 1)])
    def test_weights_of_sequences_are_read_from_the_left(
        self, cls, reduction, shape
    ):
        # As long as the batch: from the right would fit as well.
        rng = np.random.default_rng(0)
        x = rng.normal(size=(4, 4, 5)).astype("float32")
        y = rng.integers(0, 3, (4, 4))
        weights = rng.uniform(0, 2, shape)
        weights[0] = 0.0
        model = pair(cls, (4, 5))
        model.compile(
            sgd(), CrossEntropy(from_logits=True, reduction=reduction)
        )
        scores, peer = (
            part.predict(x, verbose=0).astype("float64")
            for part in model.networks
        )
        full = weights.reshape(*shape[:2], *[1] * (2 - len(shape)))
        full = np.broadcast_to(full.reshape(4, -1), (4, 4))
        expected = expected_logs(
            scores, [peer], y, full, np.ones((4, 4)), reduction
        )
        check(model, x, y, weights, expected)

    @pytest.mark.parametrize("axis", [-1, 1])
    @pytest.mark.parametrize("ours", [True, False])
    def test_images_with_classes_on_any_axis(self, axis, ours):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(4, 2, 3, 5)).astype("float32")
        y = rng.integers(0, 3, (4, 2, 3))
        weights = np.array([2.0, 0.0, 1.0, 0.5])
        if ours:
            loss = kc.losses.FocalLoss(gamma=0.0, from_logits=True, axis=axis)
        else:
            # Keras' sparse loss takes the last axis only.
            loss = keras.losses.CategoricalCrossentropy(
                from_logits=True, axis=axis
            )
        model = kc.models.MutualLearning(
            images(0, axis=axis), [images(1, axis=axis), images(2, axis=axis)]
        )
        model.compile(sgd(), loss)
        outputs = [part.predict(x, verbose=0) for part in model.networks]
        outputs = [np.moveaxis(z, axis, -1).astype("float64") for z in outputs]
        full = np.broadcast_to(weights[:, None, None], y.shape)
        expected = expected_logs(
            outputs[0], outputs[1:], y, full, np.ones(y.shape), None
        )
        labels = y if ours else np.moveaxis(np.eye(3)[y], -1, axis)
        check(model, x, labels, weights, expected)

    @pytest.mark.parametrize("cls", MODELS)
    @pytest.mark.parametrize("weighted", [False, True])
    def test_masked_tokens_teach_nothing(self, cls, weighted):
        tokens = np.array([[1, 2, 3, 0], [4, 0, 0, 0], [5, 2, 0, 0]])
        labels = np.array([[0, 1, 2, 1], [1, 2, 2, 2], [2, 0, 1, 1]])
        weights = np.array([0.5, 2.0, 1.0]) if weighted else None
        counts = (tokens != 0).astype("float64")
        model = cls(tagger(), tagger(1))
        model.compile(sgd(), CrossEntropy(from_logits=True))
        outputs = [
            part.predict(tokens, verbose=0).astype("float64")
            for part in model.networks
        ]
        full = counts if weights is None else counts * weights[:, None]
        expected = expected_logs(
            outputs[0], outputs[1:], labels, full, counts, None
        )
        check(model, tokens, labels, weights, expected)

    def test_padding_changes_no_weight(self):
        tokens = np.array([[1, 2, 3, 0], [4, 5, 0, 0]])
        found = []
        for padding in (0, 3):
            labels = np.array([[0, 1, 2, 0], [1, 2, 0, 0]])
            labels = np.where(tokens == 0, padding % 3, labels)
            model = kc.models.MutualLearning(tagger(), tagger(1))
            model.compile(sgd(), CrossEntropy(from_logits=True))
            # Scores of padding must not matter either.
            table = [to_numpy(v) + 0 for v in model.get_weights()]
            table[0][0] = padding
            table[3][0] = -padding
            model.set_weights(table)
            model.train_on_batch(tokens, labels)
            found.append([w[1:] for w in model.get_weights()])
        for a, b in zip(*found, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)

    def test_ignored_labels_have_no_accuracy(self):
        x = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")
        y = np.array([0, 1, -1, 2, -1, 0])
        model = pair()
        model.compile(sgd(), CrossEntropy(from_logits=True, ignore_class=-1))
        right = model.auxiliaries[0].predict(x, verbose=0).argmax(-1) == y
        logs = model.train_on_batch(x, y, return_dict=True)
        expected = right.sum() / 4
        assert logs["auxiliary_accuracy"] == pytest.approx(expected)

    def test_accuracy_is_the_mean_over_batches_and_auxiliaries(self):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(50, 4)).astype("float32")
        y = rng.integers(0, 3, 50)
        model = kc.models.DiffDML(network(), [network(1), network(2)])
        model.compile(
            sgd(0.0),
            CrossEntropy(from_logits=True),
            auxiliary_optimizer=sgd(0.0),
        )
        expected = np.mean(
            [p.predict(x, verbose=0).argmax(-1) == y for p in model.auxiliaries]
        )
        history = model.fit(x, y, batch_size=16, verbose=0).history
        assert history["auxiliary_accuracy"] == pytest.approx([expected])

    @pytest.mark.parametrize("activation", [None, "sigmoid"])
    @pytest.mark.parametrize("shape", [(8,), (8, 1)])
    def test_one_sigmoid_unit(self, activation, shape):
        x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
        y = np.arange(8) % 2
        parts = [network(seed, (4,), 1, activation) for seed in range(2)]
        model = kc.models.DiffDML(*parts)
        model.compile(
            sgd(),
            keras.losses.BinaryCrossentropy(from_logits=activation is None),
        )
        z = [p.predict(x, verbose=0).astype("float64") for p in parts]
        if activation:
            z = [np.log(p / (1 - p)) for p in z]
        z = [np.concatenate([0 * p, p], -1) for p in z]
        weights = np.linspace(0, 1, 8)
        expected = expected_logs(z[0], z[1:], y, weights, np.ones(8), None)
        check(model, x, y.reshape(shape), weights.reshape(shape), expected)

    def test_rows_without_weight_may_be_nan(self):
        model = pair()
        model.compile(sgd(), kc.losses.FocalLoss(from_logits=True))
        values = np.array([[0.0, 1.0, 2.0], [np.nan] * 3], "float32")
        found = reduced_divergence(
            ops.log_softmax(values),
            ops.log_softmax(values[:, ::-1].copy()),
            np.array([1.0, 0.0]),
            (None, None),
            model._reduction,
        )
        p = np.exp(log_softmax(values[0]))
        assert float(found) == pytest.approx(2 * (p[2] - p[0]) / 2, rel=1e-5)

    def test_several_sigmoids_are_refused(self):
        with pytest.raises(ValueError, match="a label each"):
            kc.models.DiffDML(
                network(activation="sigmoid"), network(1, activation="sigmoid")
            )
        model = pair()
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        model.compile(sgd(), loss, run_eagerly=True)
        with pytest.raises(ValueError, match="3 outputs with BinaryCross"):
            model.train_on_batch(np.ones((2, 4)), np.eye(3)[:2])

    def test_unknown_ends_follow_the_loss(self):
        def hidden(seed):
            head = network(seed, activation="softmax").layers
            after = layers.Rescaling(1.0)
            return keras.Sequential([keras.Input((4,)), *head, after])

        x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
        y = np.arange(8) % 3
        found = []
        for make in (hidden, lambda seed: network(seed, activation="softmax")):
            model = kc.models.DiffDML(make(0), make(1))
            model.compile(sgd(), CrossEntropy())
            found.append(model.train_on_batch(x, y, return_dict=True))
        assert found[0] == pytest.approx(found[1], rel=1e-4)
        model = kc.models.DiffDML(hidden(0), hidden(1))
        with pytest.raises(ValueError, match="Neither the loss nor"):
            model.compile(sgd(), lambda y_true, y_pred: ops.mean(y_pred, -1))
        # The default argument of a loss function counts as said.
        model.compile(sgd(), "sparse_categorical_crossentropy")
        assert model._gives_logits is False


@pytest.mark.parametrize("cls", [kc.models.MutualLearning, kc.models.DiffDML])
def test_a_loss_by_name_or_as_a_function_is_a_mean(cls):
    """The divergence is reduced as the supervised loss beside it."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 4)).astype("float32"), np.arange(40) % 3
    keras_losses = keras.losses
    found = []
    for loss in (
        keras_losses.SparseCategoricalCrossentropy(),
        "sparse_categorical_crossentropy",
        keras_losses.sparse_categorical_crossentropy,
        lambda y, q: keras_losses.sparse_categorical_crossentropy(y, q),
    ):
        nets = [network(seed, activation="softmax") for seed in (0, 1)]
        model = cls(*nets, from_logits=False)
        model.compile(sgd(), loss)
        found.append(model.train_on_batch(x, y, return_dict=True))
    p, q = (
        network(s, activation="softmax").predict(x, verbose=0) for s in (1, 0)
    )
    assert found[0]["peer_divergence"] == pytest.approx(
        (p * np.log(p / q)).sum(axis=1).mean(), rel=1e-3
    )
    for each in found[1:]:
        assert each == pytest.approx(found[0], rel=1e-5)


@pytest.mark.parametrize("masked", [(0, 1), (1, 0), (1, 1)])
def test_metrics_have_the_mask_of_the_primary(masked):
    rng = np.random.default_rng(0)
    x = rng.integers(3, size=(12, 5))
    y = rng.integers(3, size=(12, 5))

    def reader(masks, seed):
        keras.utils.set_random_seed(seed)
        inputs = keras.Input((5,))
        found = layers.Embedding(3, 4, mask_zero=bool(masks))(inputs)
        return keras.Model(inputs, layers.Dense(3)(found))

    model = kc.models.MutualLearning(reader(masked[0], 0), reader(masked[1], 1))
    loss = kc.losses.DCA(from_logits=True)
    metric = kc.metrics.ExpectedCalibrationError(name="e", from_logits=True)
    model.compile(sgd(1e-9), loss, metrics=[metric])
    logs = model.fit(x, y, batch_size=12, shuffle=False, verbose=0).history
    p = keras.ops.convert_to_numpy(
        keras.ops.softmax(model.predict(x, verbose=0))
    )
    counts = x != 0 if masked[0] else np.ones(x.shape, bool)
    expected = kc.metrics.calibration_errors(y[counts], p[counts])
    value = expected["expected_calibration_error"]
    assert logs["e"][0] == pytest.approx(value, abs=1e-5)


class Penalized(layers.Layer):
    """Adds a loss that depends on its inputs."""

    def call(self, x):
        self.add_loss(3.0 * ops.mean(ops.square(x)))
        return x


class TestPenalties:
    @pytest.mark.parametrize("kind", ["activity", "add_loss", "weights"])
    def test_penalties_of_auxiliaries_count(self, kind):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(8, 4)).astype("float32")
        y = np.arange(8) % 3

        def build(seed):
            keras.utils.set_random_seed(seed)
            kwargs = {}
            if kind == "activity":
                kwargs["activity_regularizer"] = keras.regularizers.L2(2.0)
            if kind == "weights":
                kwargs["kernel_regularizer"] = keras.regularizers.L2(2.0)
            parts = [keras.Input((4,)), layers.Dense(3, **kwargs)]
            if kind == "add_loss":
                parts.append(Penalized())
            return keras.Sequential(parts)

        model = kc.models.DiffDML(build(0), [build(1), build(2)])
        rate = 0.01
        model.compile(
            sgd(),
            CrossEntropy(from_logits=True),
            auxiliary_optimizer=sgd(rate),
        )
        scores = [
            part.predict(x, verbose=0).astype("float64")
            for part in model.networks
        ]
        kernels = [part.get_weights()[0] for part in model.networks]
        penalties = {
            "activity": [2.0 * (z**2).sum() / 8 for z in scores],
            "add_loss": [3.0 * (z**2).mean() for z in scores],
            "weights": [2.0 * (k**2).sum() for k in kernels],
        }[kind]
        logs = {
            name: log_softmax(z) for name, z in zip("fgh", scores, strict=True)
        }
        auxiliary = sum(
            (np.exp(logs["f"]) * (logs["f"] - logs[name])).sum(-1).mean()
            for name in "gh"
        )
        found = model.train_on_batch(x, y, return_dict=True)
        assert found["auxiliary_loss"] == pytest.approx(
            auxiliary + sum(penalties[1:]), rel=1e-4
        )
        own = found["supervised_loss"] + found["peer_divergence"]
        assert found["loss"] == pytest.approx(own + penalties[0], rel=1e-4)
        # And they train: the step of an auxiliary's kernel.
        p = [np.exp(log_softmax(z)) for z in scores[:2]]
        gradient = {
            "activity": 4.0 * x.T @ scores[1] / 8,
            "add_loss": 6.0 * x.T @ scores[1] / scores[1].size,
            "weights": 4.0 * kernels[1],
        }[kind] + x.T @ (p[1] - p[0]) / 8
        np.testing.assert_allclose(
            model.auxiliaries[0].get_weights()[0],
            kernels[1] - rate * gradient,
            atol=1e-5,
        )

    def test_evaluation_has_the_primarys_penalties_alone(self):
        # Not a difference of sums: 1e8 beside it must not round it away.
        big = keras.regularizers.L2(1e8)
        model = kc.models.DiffDML(
            network(kernel_regularizer=keras.regularizers.L2(0.1)),
            network(1, kernel_regularizer=big),
        )
        model.compile(sgd(), CrossEntropy(from_logits=True))
        x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
        y = np.arange(8) % 3
        model.primary.compile(sgd(), CrossEntropy(from_logits=True))
        expected = model.primary.evaluate(x, y, verbose=0)
        found = model.evaluate(x, y, verbose=0)
        assert found == pytest.approx(expected, rel=1e-6)


class TestOptimizers:
    @pytest.mark.parametrize("how", ["fit", "train_on_batch"])
    @pytest.mark.parametrize("cls", MODELS)
    def test_networks_may_have_other_roles_in_another_pair(self, cls, how):
        model = pair(cls)
        model.compile(
            sgd(0.1),
            CrossEntropy(from_logits=True),
            auxiliary_optimizer=sgd(0.0),
        )
        primary, auxiliary = model.networks
        cls(auxiliary, primary)  # in other roles
        before = [part.get_weights()[0] for part in model.networks]
        arguments = {"verbose": 0} if how == "fit" else {}
        x = np.random.default_rng(0).normal(size=(8, 4))
        getattr(model, how)(x, np.arange(8) % 3, **arguments)
        after = [part.get_weights()[0] for part in model.networks]
        assert not np.array_equal(before[0], after[0])
        np.testing.assert_array_equal(before[1], after[1])

    def test_exclusions_from_weight_decay_are_copied(self):
        model = pair()
        optimizer = sgd(1.0, weight_decay=0.1)
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        model.compile(optimizer, CrossEntropy(from_logits=True))
        for part in model.networks:
            part.layers[-1].bias.assign(np.ones(3))
        # No gradient: equal networks with weight 0, labels without weight.
        model.train_on_batch(np.ones((2, 4)), np.zeros(2), np.zeros(2))
        for part in model.networks:
            np.testing.assert_array_equal(to_numpy(part.layers[-1].bias), 1.0)
        auxiliary = model.auxiliaries[0].layers[-1]
        before = network(1).layers[-1].get_weights()[0]
        np.testing.assert_allclose(
            to_numpy(auxiliary.kernel), before * (1 - 0.1 * 0.1), rtol=1e-5
        )

    def test_exclusions_after_compile_reach_both(self):
        # Biases start at zero, where decay does nothing.
        model = pair()
        model.compile(
            sgd(1.0, weight_decay=0.1), CrossEntropy(from_logits=True)
        )
        model.optimizer.exclude_from_weight_decay(var_names=["kernel"])
        before = model.get_weights()
        model.train_on_batch(np.ones((2, 4)), np.zeros(2), np.zeros(2))
        for a, b in zip(before, model.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)

    @pytest.mark.parametrize("owner", ["primary", "auxiliary", "both"])
    def test_a_static_loss_scale_is_kept(self, owner):
        x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
        y = np.arange(8) % 3
        found = []
        for scale in (None, 64.0):
            scales = {
                "primary": scale if owner != "auxiliary" else None,
                "auxiliary": scale if owner != "primary" else None,
            }
            first, second = (
                sgd(0.1, loss_scale_factor=scales[name])
                for name in ("primary", "auxiliary")
            )
            model = pair()
            model.compile(
                first,
                CrossEntropy(from_logits=True),
                auxiliary_optimizer=second,
            )
            optimizer = model.optimizer
            assert optimizer.loss_scale_factor == scale
            assert optimizer.primary.loss_scale_factor == scale
            assert optimizer.auxiliary.loss_scale_factor == scale
            scaled = float(to_numpy(optimizer.scale_loss(ops.ones(()))))
            assert scaled == (scale or 1.0)
            model.train_on_batch(x, y)
            found.append(model.get_weights())
        for a, b in zip(*found, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)

    @pytest.mark.parametrize("explicit", ["primary", "auxiliary", "both"])
    def test_loss_scale_optimizer(self, explicit, tmp_path):
        x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
        y = np.arange(8) % 3
        found = []
        for scaling in (False, True):

            def optimizer(rate, name, scaling=scaling):
                if not scaling or explicit not in (name, "both"):
                    return sgd(rate)
                return keras.optimizers.LossScaleOptimizer(
                    sgd(rate), initial_scale=16.0
                )

            model = pair()
            model.compile(
                optimizer(0.1, "primary"),
                CrossEntropy(from_logits=True),
                auxiliary_optimizer=optimizer(0.02, "auxiliary"),
            )
            assert float(model.optimizer.learning_rate) == pytest.approx(0.1)
            model.fit(x, y, epochs=2, verbose=0)
            found.append(model.get_weights())
        for a, b in zip(*found, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)
        assert model.optimizer.initial_scale == 16.0
        model.save(tmp_path / "pair.keras")
        again = keras.saving.load_model(tmp_path / "pair.keras")
        for one in (model, again):
            one.fit(x, y, verbose=0)
        for a, b in zip(again.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)

    def test_default_auxiliary_of_a_loss_scale_optimizer(self):
        model = pair()
        model.compile(
            keras.optimizers.LossScaleOptimizer(sgd(0.2)),
            CrossEntropy(from_logits=True),
        )
        inner = model.optimizer.inner_optimizer
        assert float(inner.auxiliary.learning_rate) == pytest.approx(0.02)

    @pytest.mark.parametrize("swap_on_epoch", [False, True])
    @pytest.mark.parametrize("scaled", [False, True])
    def test_averages_of_weights_are_the_primarys(self, swap_on_epoch, scaled):
        # `SwapEMAWeights` and the end of `fit` must do to a pair what they do
        # to its primary alone: with weight 0 both learn the same.
        rng = np.random.default_rng(0)
        x = rng.normal(size=(64, 4)).astype("float32")
        y = rng.integers(0, 3, 64)

        def fit(model, **kwargs):
            optimizer = sgd(0.5, use_ema=True, ema_momentum=0.9)
            if scaled:
                optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
            model.compile(optimizer, CrossEntropy(from_logits=True), **kwargs)
            swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=swap_on_epoch)
            history = model.fit(
                x,
                y,
                epochs=3,
                shuffle=False,
                verbose=0,
                validation_data=(x, y),
                callbacks=[swap],
            ).history
            return history["val_loss"]

        alone = network()
        expected = fit(alone)
        model = pair(weight=0.0)
        found = fit(model, auxiliary_optimizer=sgd(0.1))
        assert found == pytest.approx(expected, rel=1e-5)
        for a, b in zip(
            model.primary.get_weights(), alone.get_weights(), strict=True
        ):
            np.testing.assert_allclose(a, b, atol=1e-6)

    def test_averages_that_nobody_keeps(self):
        model = pair()
        model.compile(sgd(), CrossEntropy(from_logits=True))
        data = (np.ones((4, 4)), np.zeros(4))
        with pytest.raises(ValueError, match="use_ema"):
            model.fit(
                *data,
                validation_data=data,
                verbose=0,
                callbacks=[keras.callbacks.SwapEMAWeights()],
            )

    def test_compiling_again_after_a_schedule_has_ended(self):
        schedule = keras.optimizers.schedules.CosineDecay(0.1, 4)
        optimizer = sgd(schedule)
        model = pair()
        model.compile(optimizer, CrossEntropy(from_logits=True))
        data = (np.ones((32, 4), "float32"), np.zeros(32))
        model.fit(*data, batch_size=4, verbose=0)
        assert float(optimizer.learning_rate) == pytest.approx(0.0, abs=1e-8)
        model.compile(optimizer, CrossEntropy(from_logits=True))
        rate = model.optimizer.auxiliary.learning_rate
        assert float(rate) == pytest.approx(0.01)
        # The pair's own optimizer may be given again as well.
        optimizer = model.optimizer
        model.compile(optimizer, CrossEntropy(from_logits=True))
        assert model.optimizer is optimizer
        model.fit(*data, verbose=0)
        with pytest.raises(ValueError, match="Leave it out"):
            model.compile(
                optimizer,
                CrossEntropy(from_logits=True),
                auxiliary_optimizer=sgd(),
            )


def sharing(shared, seed=0):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((8, 8, 3))
    x = layers.Flatten()(shared(inputs))
    return keras.Model(inputs, layers.Dense(3)(x))


class TestSharedLayers:
    def augmentation(self):
        """As in the ViT example of keras.io."""
        block = keras.Sequential(
            [
                layers.Normalization(),
                layers.Resizing(6, 6),
                layers.RandomFlip("horizontal"),
                layers.RandomRotation(factor=0.02),
            ],
            name="data_augmentation",
        )
        data = np.random.default_rng(0).normal(3.0, 2.0, (16, 8, 8, 3))
        block.layers[0].adapt(data)
        return block, data.astype("float32")

    def test_a_shared_preprocessing_block(self, tmp_path):
        block, x = self.augmentation()
        y = np.arange(16) % 3
        model = kc.models.DiffDML(sharing(block), sharing(block, 1))
        model.compile(sgd(0.01), CrossEntropy(from_logits=True))
        losses = model.fit(x, y, epochs=8, verbose=0).history["loss"]
        assert losses[-1] < losses[0]
        path = tmp_path / "pair.keras"
        model.save(path)
        again = keras.saving.load_model(path)
        for one, other in zip(again.networks, model.networks, strict=True):
            np.testing.assert_allclose(
                one.predict(x, verbose=0),
                other.predict(x, verbose=0),
                atol=1e-5,
            )
        kept = [part.layers[1] for part in again.networks]
        assert kept[0] is kept[1] and kept[0].name == "data_augmentation"
        for one in (again, model):
            one.fit(x, y, verbose=0)
        # The state of the shared block stays what it was adapted to.
        mean = to_numpy(kept[1].layers[0].mean)
        np.testing.assert_allclose(mean.ravel(), x.mean((0, 1, 2)), rtol=1e-4)

    def test_layers_deeper_inside_cannot_be_saved(self):
        block, x = self.augmentation()
        nested = [
            keras.Sequential([keras.Input((8, 8, 3)), block]) for _ in "ab"
        ]
        model = kc.models.DiffDML(
            *(sharing(part, i) for i, part in enumerate(nested))
        )
        model.compile(sgd(0.01), CrossEntropy(from_logits=True))
        model.fit(x, np.arange(16) % 3, verbose=0)
        with pytest.raises(ValueError, match="share the outermost layer"):
            model.get_config()

    def test_a_shared_frozen_base_until_it_is_unfrozen(self):
        base = keras.Sequential([layers.Conv2D(4, 3), layers.ReLU()])
        base.trainable = False
        model = kc.models.DiffDML(sharing(base), sharing(base, 1))
        model.compile(sgd(0.01), CrossEntropy(from_logits=True))
        before = base.get_weights()
        x = np.random.default_rng(0).normal(size=(16, 8, 8, 3))
        model.fit(x, np.arange(16) % 3, verbose=0)
        for a, b in zip(before, base.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
        base.trainable = True
        with pytest.raises(ValueError, match="share the weight"):
            model.compile(sgd(0.01), CrossEntropy(from_logits=True))


class TestOtherInputs:
    @pytest.mark.backends(
        "tensorflow", "jax", reason="Keras trains no stateful layer on torch"
    )
    def test_stateful_networks(self):
        def build(seed):
            keras.utils.set_random_seed(seed)
            inputs = keras.Input(batch_shape=(4, 5, 2))
            x = layers.LSTM(6, stateful=True)(inputs)
            return keras.Model(inputs, layers.Dense(3)(x))

        x = np.random.default_rng(0).normal(size=(16, 5, 2)).astype("float32")
        y = np.arange(16) % 3
        alone = build(0)
        model = kc.models.DiffDML(build(0), build(1), weight=0.0)
        for one in (alone, model):
            one.compile(sgd(), CrossEntropy(from_logits=True))
            one.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
        for a, b in zip(
            alone.get_weights(), model.primary.get_weights(), strict=True
        ):
            np.testing.assert_allclose(a, b, atol=1e-5)

    def test_empty_batches(self):
        model = pair()
        model.compile(sgd(), CrossEntropy(from_logits=True), run_eagerly=True)
        before = model.get_weights()
        logs = model.train_on_batch(
            np.zeros((0, 4)), np.zeros(0), return_dict=True
        )
        assert logs["loss"] == 0.0
        for a, b in zip(before, model.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)

    def test_options_are_keywords(self):
        for cls in MODELS:
            with pytest.raises(TypeError):
                cls(network(), network(1), 0.5)

    @pytest.mark.parametrize("cls", MODELS)
    def test_no_model_trains_half_of_a_pair(self, cls):
        inner = pair(cls)
        with pytest.raises(ValueError, match="`compute_loss` of its own"):
            kc.models.SampleHistoryModel(inner, num_samples=8)
        with pytest.raises(ValueError, match="`compute_loss` of its own"):
            kc.models.InterleavedTraining(inner)

        class Stepping(keras.Model):
            def train_step(self, data):
                return {}

        with pytest.raises(ValueError, match="`train_step` of its own"):
            kc.models.InterleavedTraining(Stepping())

    def test_evaluation_that_fails_leaves_the_logs_of_training(self):
        model = pair()
        model.compile(sgd(), CrossEntropy(from_logits=True))
        x, y = np.ones((8, 4), "float32"), np.zeros(8)

        class Stop(keras.callbacks.Callback):
            def on_test_batch_end(self, batch, logs=None):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            model.evaluate(x, y, verbose=0, callbacks=[Stop()])
        if keras.backend.backend() == "jax":
            model.jax_state_sync()  # which Keras leaves undone
        logs = model.fit(x, y, validation_data=(x, y), verbose=0).history
        assert "peer_divergence" in logs and "auxiliary_accuracy" in logs
        assert {name for name in logs if "val" in name} == {"val_loss"}


@pytest.mark.parametrize("form", [kc.models.DiffDML, kc.models.MutualLearning])
def test_lora_after_the_pair_was_built(form, tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 4)).astype("float32"), np.arange(64) % 3
    networks = [small_network(3, 4) for _ in range(2)]
    pair = form(*networks)
    networks[1].layers[0].enable_lora(2)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    pair.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        loss,
        auxiliary_optimizer=keras.optimizers.SGD(0.0, momentum=0.9),
    )
    before = networks[1].predict(x, verbose=0)
    pair.fit(x, y, epochs=2, verbose=0)
    after = networks[1].predict(x, verbose=0)
    np.testing.assert_array_equal(after, before)
    pair.save(tmp_path / "pair.keras")
    again = keras.saving.load_model(tmp_path / "pair.keras")
    again.fit(x, y, epochs=1, verbose=0)
    same = again.auxiliaries[0].predict(x, verbose=0)
    np.testing.assert_allclose(same, before, rtol=1e-5, atol=1e-6)


class OwnLoss(Subclassed):
    """A model whose loss a pair would not compute."""

    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs)


def test_networks_that_train_in_a_way_of_their_own():
    history = kc.models.SampleHistoryModel(small_network(3, 4), num_samples=8)
    pair = kc.models.DiffDML(small_network(3, 4), small_network(3, 4))
    for network in (history, pair, OwnLoss()):
        for pairs in (kc.models.DiffDML, kc.models.MutualLearning):
            for networks in (
                (network, small_network(3, 4)),
                (small_network(3, 4), network),
            ):
                with pytest.raises(ValueError, match="of its own that would"):
                    pairs(*networks)
    ensemble = kc.models.DeepEnsemble(
        [pair, small_network(3, 4)], from_logits=True
    )
    x = np.zeros((8, 4), "float32")
    assert ensemble.predict(x, verbose=0).shape == (8, 3)
    ensemble.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.raises(ValueError, match="of its own that would"):
        ensemble.fit(x, np.zeros(8, int), verbose=0)


@pytest.mark.parametrize("reduction", ["none", None])
def test_parts_of_an_unreduced_loss_are_both_sums(reduction):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 4)).astype("float32"), np.arange(32) % 3
    found = {}
    networks = [small_network(3, 4), small_network(3, 4)]
    for name in ("sum", reduction):
        pair = kc.models.MutualLearning(*networks)
        loss = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction=name
        )
        pair.compile(keras.optimizers.SGD(0.0), loss)
        history = pair.fit(x, y, batch_size=32, verbose=0).history
        found[name] = [
            history[key][0] for key in ("supervised_loss", "peer_divergence")
        ]
    np.testing.assert_allclose(found[reduction], found["sum"], rtol=1e-5)


@pytest.mark.parametrize("form", [kc.models.DiffDML, kc.models.MutualLearning])
def test_without_an_optimizer_a_pair_is_evaluated(form):
    pair = form(small_network(3, 4), small_network(3, 4))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    pair.compile(None, loss)
    x = np.zeros((8, 4), "float32")
    assert np.isfinite(pair.evaluate(x, np.zeros(8, int), verbose=0))


@pytest.mark.parametrize("form", [kc.models.DiffDML, kc.models.MutualLearning])
def test_a_compilation_that_is_refused_changes_nothing(form):
    model, loss = pair(form), keras.losses.SparseCategoricalCrossentropy
    arguments = {"auxiliary_optimizer": sgd(0.0)}
    model.compile(
        sgd(0.0), loss(from_logits=True, reduction="sum"), **arguments
    )
    x, y = np.ones((6, 4), "float32"), np.arange(6) % 3
    logs = model.fit(x, y, batch_size=6, verbose=0).history
    with pytest.raises(ValueError, match="`auxiliary_optimizer` beside it"):
        model.compile(model.optimizer, loss(from_logits=True), **arguments)
    assert model.fit(x, y, batch_size=6, verbose=0).history == logs


@pytest.mark.parametrize("floatx", ["float16", "float64"])
@pytest.mark.parametrize("warmup", [0, 2])
def test_any_floatx_trains_a_pair(warmup, floatx):
    keras.config.set_floatx(floatx)
    try:
        model = pair(label_warmup=warmup)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(sgd(), loss)
        x, y = np.ones((6, 4)), np.arange(6) % 3
        logs = model.fit(x, y, epochs=3, batch_size=6, verbose=0).history
    finally:
        keras.config.set_floatx("float32")
    assert np.isfinite(logs["loss"]).all()
    assert logs["loss"][-1] < logs["loss"][0]
