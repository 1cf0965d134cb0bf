import json
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from keras_calib.models._mutual_optimizer import at_fixed_rate
from tests.helpers import compiled
from tests.helpers import to_numpy
from tests.helpers import value_and_gradient

ROOT = pathlib.Path(__file__).parents[2]

# Logits of a primary and two auxiliaries for three samples. The numbers that
# the tests expect of them were computed outside of this package.
LABELS = np.array([0, 0, 2])
F = np.array([[2.0, 0.5, -1.0], [0.3, 1.2, -0.7], [-1.5, 0.4, 3.1]])
G1 = np.array([[1.0, 0.8, -0.2], [0.9, 0.1, -0.4], [-0.3, 0.2, 1.4]])
G2 = np.array([[0.6, -0.1, 0.3], [0.2, 0.4, 0.1], [0.0, -0.5, 2.0]])


def log_softmax(z):
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def cross_entropy(from_logits=True):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits)


def table(logits):
    """A network that answers row `i` of the identity with `logits[i]`."""
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(3, use_bias=False)]
    )
    model.set_weights([logits])
    return model


def network(seed=0, classes=10, activation=None, penalty=None, dtype=None):
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(16, kernel_regularizer=penalty, dtype=dtype),
            keras.layers.BatchNormalization(dtype=dtype),
            keras.layers.ReLU(dtype=dtype),
            keras.layers.Dense(classes, activation=activation, dtype=dtype),
        ],
        name="network",
    )


def digit_pair(cls=kc.models.DiffDML, count=1, **kwargs):
    model = cls(network(), [network(i + 1) for i in range(count)], **kwargs)
    return model


def sgd(rate=0.1, **kwargs):
    return keras.optimizers.SGD(rate, **kwargs)


def momentum_pair(seed=0, decay=None):
    """A compiled Diff-DML pair whose two optimizers both have a state."""
    primary, auxiliary = network(seed), network(seed + 1)
    model = kc.models.DiffDML(primary, auxiliary)
    rate = keras.optimizers.schedules.CosineDecay(0.1, decay) if decay else 0.1
    model.compile(
        sgd(rate, momentum=0.9),
        cross_entropy(),
        auxiliary_optimizer=keras.optimizers.Adam(0.01),
        metrics=["accuracy"],
    )
    return model


def weights(model):
    return [np.array(value) for value in model.get_weights()]


def equal(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


class TestEquations:
    def test_divergence(self):
        f, g1, g2 = map(log_softmax, (F, G1, G2))
        expected = [
            (g1, f, 0.29889541),
            (f, g1, 0.24462401),
            (g2, f, 0.29237333),
            (f, g2, 0.18823273),
            (g2, g1, 0.11719891),
            (g1, g2, 0.12252876),
        ]
        for peer, own, value in expected:
            found = to_numpy(kc.models.kl_divergence(peer, own)).mean()
            assert found == pytest.approx(value, abs=1e-7)

    def test_no_gradient_reaches_the_peer(self):
        own = ops.convert_to_tensor(log_softmax(F).astype("float32"))

        def divergence(logits):
            peer = ops.log_softmax(logits, axis=-1)
            return ops.mean(kc.models.kl_divergence(peer, own))

        _, leak = value_and_gradient(divergence, G1)
        assert not leak.any()

    @pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
    def test_proposition_1(self, beta):
        # grad KL(h || f) = beta grad KL(g || f) with h = (1 - beta) f + beta g
        # held constant: learning from the ensemble is learning from the peer.
        g = np.exp(log_softmax(G1))
        h = (1 - beta) * np.exp(log_softmax(F)) + beta * g

        def gradient_from(peer):
            def divergence(logits):
                own = ops.log_softmax(logits, axis=-1)
                log_peer = np.log(peer).astype("float32")
                return ops.mean(kc.models.kl_divergence(log_peer, own))

            return value_and_gradient(compiled(divergence), F)[1]

        expected = beta * gradient_from(g)
        np.testing.assert_allclose(gradient_from(h), expected, atol=2e-8)
        if beta == 1.0:
            first_row = [0.10462741, -0.07030568, -0.03432173]
            np.testing.assert_allclose(expected[0], first_row, atol=1e-7)

    @pytest.mark.parametrize(
        ("cls", "options", "auxiliaries", "primary_value", "auxiliary_value"),
        [
            pytest.param(
                kc.models.MutualLearning,
                {},
                [G1],
                0.85154104,
                0.80777234,
                id="DML",
            ),
            pytest.param(
                kc.models.MutualLearning,
                {},
                [G1, G2],
                0.84828000,
                0.74405979 + 0.86934115,
                id="DML-2",
            ),
            pytest.param(
                kc.models.DiffDML,
                {},
                [G1],
                0.85154104,
                0.24462401,
                id="Diff-DML",
            ),
            pytest.param(
                kc.models.DiffDML,
                {},
                [G1, G2],
                0.84828000,
                0.24462401 + 0.18823273,
                id="Diff-DML-2",
            ),
            pytest.param(
                kc.models.DiffDML,
                {"peers": "all"},
                [G1, G2],
                0.84828000,
                0.18091146 + (0.18823273 + 0.12252876) / 2,
                id="Diff-DML-2, peers all",
            ),
        ],
    )
    def test_objectives(
        self, cls, options, auxiliaries, primary_value, auxiliary_value
    ):
        model = cls(table(F), [table(g) for g in auxiliaries], **options)
        model.compile(sgd(), cross_entropy(), run_eagerly=True)
        logs = model.train_on_batch(np.eye(3), LABELS, return_dict=True)
        assert logs["loss"] == pytest.approx(primary_value, abs=1e-6)
        assert logs["auxiliary_loss"] == pytest.approx(
            auxiliary_value, abs=1e-6
        )
        supervised = logs["loss"] - logs["peer_divergence"]
        assert logs["supervised_loss"] == pytest.approx(supervised, abs=1e-6)

    @pytest.mark.parametrize("weight", [1.0, 0.25])
    def test_one_step_of_each_network_is_its_own_gradient(self, weight):
        # d CE / d z = (p - y) / N,  d KL(p_j || p) / d z = (p - p_j) / N.
        f, g1, g2 = (np.exp(log_softmax(z)) for z in (F, G1, G2))
        model = kc.models.DiffDML(
            table(F), [table(G1), table(G2)], weight=weight
        )
        model.compile(sgd(0.5), cross_entropy(), auxiliary_optimizer=sgd(0.2))
        model.train_on_batch(np.eye(3), LABELS)
        gradient = f - np.eye(3)[LABELS] + weight * (f - (g1 + g2) / 2)
        expected = [
            F - 0.5 * gradient / 3,
            G1 - 0.2 * (g1 - f) / 3,
            G2 - 0.2 * (g2 - f) / 3,
        ]
        for part, value in zip(model.networks, expected, strict=True):
            np.testing.assert_allclose(weights(part)[0], value, atol=1e-6)

    def test_mutual_learning_gives_every_network_labels(self):
        f, g = (np.exp(log_softmax(z)) for z in (F, G1))
        model = kc.models.MutualLearning(table(F), table(G1))
        model.compile(sgd(0.5), cross_entropy(), run_eagerly=True)
        model.train_on_batch(np.eye(3), LABELS)
        y = np.eye(3)[LABELS]
        expected = [F - (2 * f - g - y) / 6, G1 - (2 * g - f - y) / 6]
        for part, value in zip(model.networks, expected, strict=True):
            np.testing.assert_allclose(weights(part)[0], value, atol=1e-6)

    def test_rows_without_weight_teach_nothing(self):
        found = []
        for other in (F[2], [5.0, -3.0, 1.0]):
            first, peer = F.copy(), G1.copy()
            first[2], peer[2] = other, -np.asarray(other)
            model = kc.models.MutualLearning(table(first), table(peer))
            model.compile(sgd(), cross_entropy(), run_eagerly=True)
            model.train_on_batch(np.eye(3), LABELS, np.array([2.0, 1.0, 0.0]))
            found.append([w[:2] for w in weights(model)])
            unmoved = weights(model.primary)[0][2]
            assert np.array_equal(unmoved, first[2].astype("float32"))
        np.testing.assert_allclose(found[0], found[1], atol=1e-7)

    def test_softmax_and_sigmoid_outputs_are_the_same_as_logits(self, digits):
        (x, y), *_ = digits
        x, found = x[:32], []
        for activation in (None, "softmax"):
            model = kc.models.DiffDML(
                network(activation=activation),
                network(1, activation=activation),
            )
            model.compile(
                sgd(), cross_entropy(activation is None), run_eagerly=True
            )
            model.train_on_batch(x, y[:32])
            found.append(weights(model))
        for a, b in zip(*found, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)
        found = []
        for activation in (None, "sigmoid"):
            model = kc.models.DiffDML(
                network(classes=1, activation=activation),
                network(1, classes=1, activation=activation),
            )
            model.compile(
                sgd(),
                keras.losses.BinaryCrossentropy(from_logits=activation is None),
                run_eagerly=True,
            )
            model.train_on_batch(x, y[:32] % 2)
            found.append(weights(model))
        for a, b in zip(*found, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


class TestDifferentiation:
    @pytest.mark.parametrize("diversity_preserving", [True, False])
    def test_auxiliaries_see_labels_only_without_diversity(
        self, digits, diversity_preserving
    ):
        (x, y), *_ = digits
        found = []
        for labels in (y[:64], (y[:64] + 1) % 10):
            model = digit_pair(
                count=2, diversity_preserving=diversity_preserving
            )
            model.compile(sgd(), cross_entropy(), run_eagerly=True)
            model.train_on_batch(x[:64], labels)
            found.append([weights(part) for part in model.auxiliaries])
        unchanged = all(map(equal, *found))
        assert unchanged is diversity_preserving

    def test_schedule_drives_the_primary_only(self, digits):
        (x, y), *_ = digits
        model = momentum_pair(decay=20)
        model.fit(x, y, batch_size=60, epochs=1, verbose=0)
        optimizer = model.optimizer
        expected = 0.1 * (1 + np.cos(np.pi * 10 / 20)) / 2
        assert float(optimizer.primary.learning_rate) == pytest.approx(expected)
        assert float(optimizer.learning_rate) == pytest.approx(expected)
        assert float(optimizer.auxiliary.learning_rate) == pytest.approx(0.01)

    @pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
    @pytest.mark.slow
    def test_callbacks_drive_the_primary_only(self, digits, dtype):
        (x, y), *_ = digits
        policy = keras.config.dtype_policy()
        keras.config.set_dtype_policy(dtype)
        try:
            model = momentum_pair()
            callbacks = [
                keras.callbacks.LearningRateScheduler(
                    lambda epoch, rate: 0.05 if epoch == 0 else rate
                ),
                keras.callbacks.ReduceLROnPlateau(
                    "loss", factor=0.5, patience=0, min_delta=1e3, verbose=0
                ),
            ]
            history = model.fit(
                x, y, epochs=3, verbose=0, callbacks=callbacks
            ).history
        finally:
            keras.config.set_dtype_policy(policy)
        inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        assert float(inner.primary.learning_rate) == pytest.approx(0.0125)
        assert float(inner.auxiliary.learning_rate) == pytest.approx(0.01)
        assert history["learning_rate"][0] == pytest.approx(0.05)
        assert history["loss"][-1] < history["loss"][0]

    def test_default_auxiliary_rate(self):
        schedule = keras.optimizers.schedules.CosineDecay(0.2, 10)
        optimizer = at_fixed_rate(sgd(schedule, momentum=0.9), 0.1)
        assert float(optimizer.learning_rate) == pytest.approx(0.02)
        assert optimizer.momentum == 0.9
        model = digit_pair()
        model.compile(sgd(schedule), cross_entropy())
        rate = model.optimizer.auxiliary.learning_rate
        assert float(rate) == pytest.approx(0.02)
        warm_up = keras.optimizers.schedules.CosineDecay(
            0.0, 10, warmup_target=0.1, warmup_steps=5
        )
        with pytest.raises(ValueError, match="auxiliary_optimizer="):
            digit_pair().compile(sgd(warm_up), cross_entropy())

    @pytest.mark.slow
    def test_both_ideas_switched_off_is_mutual_learning(self, digits):
        (x, y), *_ = digits
        off = {"differentiated_training": False, "diversity_preserving": False}
        found = []
        for cls, options in (
            (kc.models.DiffDML, off),
            (kc.models.MutualLearning, {}),
        ):
            model = digit_pair(cls, count=2, **options)
            model.compile(sgd(momentum=0.9), cross_entropy())
            model.fit(x[:96], y[:96], epochs=1, shuffle=False, verbose=0)
            found.append(weights(model))
        assert equal(*found)

    def test_differentiated_training_alone(self, digits):
        # Labels for all, but the auxiliary's own optimizer: a rate of zero
        # leaves it where it was.
        (x, y), *_ = digits
        model = digit_pair(diversity_preserving=False)
        before = weights(model.auxiliaries[0].layers[0])
        model.compile(sgd(), cross_entropy(), auxiliary_optimizer=sgd(0.0))
        model.fit(x, y, epochs=1, verbose=0)
        assert equal(before, weights(model.auxiliaries[0].layers[0]))
        with pytest.raises(ValueError, match="one optimizer"):
            digit_pair(differentiated_training=False).compile(
                sgd(), cross_entropy(), auxiliary_optimizer=sgd()
            )

    def test_primary_does_not_depend_on_the_auxiliarys_optimizer(self, digits):
        (x, y), *_ = digits
        found = []
        for rate in (0.0, 1.0):
            model = digit_pair()
            model.compile(
                sgd(),
                cross_entropy(),
                auxiliary_optimizer=sgd(rate),
                run_eagerly=True,
            )
            model.train_on_batch(x[:64], y[:64])
            found.append(weights(model.primary))
        assert equal(*found)


class TestPrimaryOnly:
    def test_evaluate_is_the_primarys(self, digits):
        (x, y), validation, _ = digits
        model = kc.models.MutualLearning(
            network(penalty="l2"), network(1, penalty="l2")
        )
        model.compile(sgd(), cross_entropy(), metrics=["accuracy"])
        history = model.fit(
            x, y, validation_data=validation, epochs=2, verbose=0
        ).history
        assert set(history) == {
            "accuracy",
            "loss",
            "supervised_loss",
            "peer_divergence",
            "auxiliary_loss",
            "auxiliary_accuracy",
            "val_accuracy",
            "val_loss",
        }
        model.primary.compile(sgd(), cross_entropy(), metrics=["accuracy"])
        expected = model.primary.evaluate(*validation, verbose=0)
        found = model.evaluate(*validation, verbose=0)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        assert history["val_loss"][-1] == pytest.approx(expected[0], rel=1e-6)
        found = model.test_on_batch(*validation, return_dict=True)
        assert set(found) == {"loss", "accuracy"}

    @pytest.mark.slow
    def test_auxiliaries_run_in_fit_alone(self, digits):
        (x, y), validation, _ = digits
        model = momentum_pair()
        auxiliary, calls = model.auxiliaries[0], []
        original = auxiliary.call

        def counted(*args, **kwargs):
            calls.append(1)
            return original(*args, **kwargs)

        auxiliary.call = counted
        model.evaluate(*validation, verbose=0)
        model.predict(x, verbose=0)
        assert not calls
        model.fit(x[:64], y[:64], verbose=0)
        assert calls

    def test_every_network_runs_once_per_step(self, digits):
        (x, y), *_ = digits
        model, calls = digit_pair(count=2), []

        def counted(name, call):
            def run(*args, **kwargs):
                calls.append(name)
                return call(*args, **kwargs)

            return run

        for name, part in enumerate(model.networks):
            part.call = counted(name, part.call)
        model.compile(sgd(), cross_entropy(), run_eagerly=True)
        model.train_on_batch(x[:64], y[:64])
        calls.clear()
        model.train_on_batch(x[:64], y[:64])
        assert calls == [0, 1, 2]

    def test_batch_normalization_of_auxiliaries_moves_once_per_step(
        self, digits
    ):
        (x, y), *_ = digits
        model = momentum_pair()
        layer = model.auxiliaries[0].layers[1]
        dense = model.auxiliaries[0].layers[0]
        mean = to_numpy(dense(x[:64])).mean(axis=0)
        model.train_on_batch(x[:64], y[:64])
        moved = to_numpy(layer.moving_mean)
        np.testing.assert_allclose(moved, 0.01 * mean, atol=1e-6)
        model.evaluate(x, y, verbose=0)
        assert np.array_equal(moved, to_numpy(layer.moving_mean))


class TestTraining:
    @pytest.mark.parametrize("count", [1, 2])
    def test_gradients_start_afresh_each_step(self, digits, count):
        # Networks of equal names: their gradients must not pile up.
        (x, y), *_ = digits
        steps = []
        model = digit_pair(count=count)
        model.compile(
            sgd(0.0),
            cross_entropy(),
            auxiliary_optimizer=sgd(1e-3),
            run_eagerly=True,
        )
        kernels = [part.layers[-1].kernel for part in model.auxiliaries]
        for _ in range(3):
            before = [to_numpy(kernel) + 0.0 for kernel in kernels]
            model.train_on_batch(x[:64], y[:64])
            steps.append(
                [
                    np.linalg.norm(to_numpy(kernel) - old)
                    for kernel, old in zip(kernels, before, strict=True)
                ]
            )
        np.testing.assert_allclose(steps[2], steps[0], rtol=0.05)

    @pytest.mark.parametrize("cls", ["MutualLearning", "DiffDML"])
    @pytest.mark.slow
    @pytest.mark.backends("tensorflow", "jax", reason="minutes on torch")
    def test_jit(self, digits, cls):
        (x, y), *_ = digits
        found = []
        for jit in (False, True):
            model = digit_pair(getattr(kc.models, cls))
            model.compile(sgd(), cross_entropy(), jit_compile=jit)
            history = model.fit(
                x[:96], y[:96], epochs=2, shuffle=False, verbose=0
            )
            found.append(history.history["loss"])
        np.testing.assert_allclose(*found, rtol=1e-4)

    @pytest.mark.parametrize(
        "loss",
        [
            kc.losses.ACLS(from_logits=True),
            kc.losses.FocalLoss(gamma=2.0, from_logits=True),
        ],
        ids=["ACLS", "FocalLoss"],
    )
    def test_supervised_loss_may_be_ours(self, digits, loss):
        (x, y), *_ = digits
        model = digit_pair()
        model.compile(sgd(), loss, run_eagerly=True)
        logs = model.train_on_batch(x[:64], y[:64], return_dict=True)
        alone = network()
        scores = alone(x[:64], training=True)
        expected = float(to_numpy(loss(y[:64], scores)))
        assert logs["supervised_loss"] == pytest.approx(expected, rel=1e-5)

    @pytest.mark.slow
    def test_loss_by_name(self, digits):
        (x, y), *_ = digits
        model = kc.models.MutualLearning(
            network(activation="softmax"), network(1, activation="softmax")
        )
        model.compile("adam", "sparse_categorical_crossentropy")
        losses = model.fit(x, y, epochs=3, verbose=0).history["loss"]
        assert losses[-1] < losses[0]

    def test_subclassed_networks(self, digits):
        class Subclassed(keras.Model):
            def __init__(self):
                super().__init__()
                self.dense = keras.layers.Dense(10)

            def call(self, x):
                return self.dense(x)

        (x, y), *_ = digits
        model = kc.models.DiffDML(Subclassed(), [Subclassed(), Subclassed()])
        model.compile(sgd(), cross_entropy())
        history = model.fit(x, y, epochs=2, verbose=0).history
        assert history["loss"][1] < history["loss"][0]
        inner = model.optimizer
        owned = [len(o._trainable_variables) for o in inner._inner_optimizers]
        assert sorted(owned) == [2, 4]

    @pytest.mark.slow
    def test_early_stopping_and_checkpoint(self, digits, tmp_path):
        (x, y), validation, _ = digits
        model = momentum_pair()
        path = tmp_path / "best.keras"
        model.fit(
            x,
            y,
            validation_data=validation,
            epochs=4,
            verbose=0,
            callbacks=[
                keras.callbacks.ModelCheckpoint(
                    str(path), "val_accuracy", mode="max", save_best_only=True
                ),
                keras.callbacks.EarlyStopping(
                    "val_accuracy",
                    mode="max",
                    patience=3,
                    restore_best_weights=True,
                    start_from_epoch=0,
                ),
            ],
        )
        best = keras.saving.load_model(path)
        # `restore_best_weights` acts only when it stops early: compare scores.
        expected = max(model.history.history["val_accuracy"])
        found = best.evaluate(*validation, verbose=0, return_dict=True)
        assert found["accuracy"] == pytest.approx(expected)

    @pytest.mark.slow
    def test_killed_run_resumes_to_the_same_weights(self, digits, tmp_path):
        (x, y), *_ = digits

        class Kill(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                if epoch == 2:
                    raise KeyboardInterrupt

        def fit(seed, *callbacks):
            model = momentum_pair(seed, decay=16)
            model.fit(
                x[:240],
                y[:240],
                batch_size=60,
                epochs=4,
                shuffle=False,
                verbose=0,
                callbacks=list(callbacks),
            )
            return weights(model)

        def backup():
            return keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))

        expected = fit(0)
        with pytest.raises(KeyboardInterrupt):
            fit(0, backup(), Kill())
        # Other initial weights: all there is comes from the backup.
        found = fit(5, backup())
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


class TestFiles:
    def test_round_trip_and_training_goes_on(self, digits, tmp_path):
        (x, y), *_ = digits
        model = momentum_pair(decay=40)
        model.fit(x, y, epochs=1, verbose=0)
        model.save(tmp_path / "pair.keras")
        again = keras.saving.load_model(tmp_path / "pair.keras")
        assert equal(weights(again), weights(model))
        for one, other in zip(
            again.optimizer.variables, model.optimizer.variables, strict=True
        ):
            assert np.array_equal(to_numpy(one), to_numpy(other))
        for each in (model, again):
            each.fit(x, y, epochs=1, shuffle=False, verbose=0)
        for a, b in zip(weights(again), weights(model), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)

    @pytest.mark.slow
    def test_mixed_precision_round_trip(self, digits, tmp_path):
        (x, y), *_ = digits
        policy = keras.config.dtype_policy()
        keras.config.set_dtype_policy("mixed_float16")
        try:
            model = momentum_pair()
            losses = model.fit(x, y, epochs=2, verbose=0).history["loss"]
            model.save(tmp_path / "pair.keras")
        finally:
            keras.config.set_dtype_policy(policy)
        assert losses[1] < losses[0]
        again = keras.saving.load_model(tmp_path / "pair.keras")
        assert again.dtype_policy.name == "mixed_float16"
        assert equal(weights(again), weights(model))
        again.fit(x, y, verbose=0)

    @pytest.mark.parametrize("options", [{}, {"peers": "all", "weight": 0.5}])
    def test_config(self, options):
        model = digit_pair(count=2, name="two", **options)
        again = kc.models.DiffDML.from_config(model.get_config())
        assert again.get_config() == model.get_config()

    @pytest.mark.slow
    def test_files_open_in_a_fresh_process(self, digits, tmp_path):
        (x, y), *_ = digits
        model = momentum_pair()
        model.fit(x, y, epochs=1, verbose=0)
        model.save(tmp_path / "pair.keras")
        model.primary.save(tmp_path / "primary.keras")
        np.save(tmp_path / "x.npy", x)
        # The primary needs nothing of this package.
        code = """
import json, sys
import keras, numpy as np
folder = sys.argv[1]
x = np.load(f"{folder}/x.npy")
primary = keras.saving.load_model(f"{folder}/primary.keras")
assert "keras_calib" not in sys.modules
import keras_calib
pair = keras.saving.load_model(f"{folder}/pair.keras")
print(json.dumps([m.predict(x, verbose=0).tolist() for m in (primary, pair)]))
"""
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        assert done.returncode == 0, done.stderr
        expected = model.predict(x, verbose=0)
        for found in json.loads(done.stdout.splitlines()[-1]):
            np.testing.assert_allclose(found, expected, atol=1e-5)

    @pytest.mark.slow
    @pytest.mark.backends("tensorflow", "jax", reason="no SavedModel on torch")
    def test_export_is_the_primarys(self, digits, tmp_path):
        import tensorflow as tf

        (x, y), *_ = digits
        model = momentum_pair()
        model.fit(x, y, epochs=1, verbose=0)
        model.export(tmp_path / "exported", verbose=False)
        served = tf.saved_model.load(tmp_path / "exported")
        np.testing.assert_allclose(
            served.serve(x), model.predict(x, verbose=0), atol=1e-5
        )


class TestErrors:
    @pytest.mark.parametrize("cls", ["MutualLearning", "DiffDML"])
    def test_networks_that_do_not_fit(self, cls):
        cls = getattr(kc.models, cls)
        with pytest.raises(ValueError, match=r"same classes.*\(None, 7\)"):
            cls(network(), network(1, classes=7))
        with pytest.raises(ValueError, match="auxiliary 0 softmax"):
            cls(network(), network(1, activation="softmax"))
        primary = network()
        with pytest.raises(ValueError, match="are the same network"):
            cls(primary, primary)
        shared = keras.Sequential(
            [*primary.layers[:-1], keras.layers.Dense(10)]
        )
        shared.build((None, 64))
        with pytest.raises(ValueError, match="share the weight"):
            cls(primary, shared)
        with pytest.raises(ValueError, match="at least one"):
            cls(primary, [])
        with pytest.raises(ValueError, match="weight"):
            cls(primary, network(1), weight=-1.0)

    def test_one_input_may_be_shared(self):
        inputs = keras.Input((64,))
        networks = [
            keras.Model(inputs, keras.layers.Dense(10)(inputs))
            for _ in range(2)
        ]
        assert kc.models.DiffDML(*networks).built

    def test_compile(self):
        with pytest.raises(ValueError, match="one supervised loss"):
            digit_pair().compile("sgd")
        with pytest.raises(ValueError, match="`from_logits=True` to the loss"):
            digit_pair().compile("sgd", cross_entropy(from_logits=False))
        with pytest.raises(ValueError, match="the same object twice"):
            optimizer = sgd()
            digit_pair().compile(
                optimizer, cross_entropy(), auxiliary_optimizer=optimizer
            )
        with pytest.raises(ValueError, match="peers='both'"):
            digit_pair(peers="both")

    def test_subclassed_networks_of_different_classes(self, digits):
        class Subclassed(keras.Model):
            def __init__(self, classes):
                super().__init__()
                self.dense = keras.layers.Dense(classes)

            def call(self, x):
                return self.dense(x)

        (x, y), *_ = digits
        model = kc.models.DiffDML(Subclassed(10), Subclassed(7))
        model.compile(sgd(), cross_entropy())
        with pytest.raises(ValueError, match="same classes"):
            model.fit(x, y, verbose=0)
