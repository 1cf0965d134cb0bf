"""MonteCarloDropout beside other threads, and under each compiler."""

import contextlib
import contextvars
import sys
import threading

import keras
import numpy as np
import pytest
from keras import layers

import keras_calib as kc
from keras_calib.models._monte_carlo_dropout import _switched_on
from tests.helpers import to_numpy

BACKEND = keras.backend.backend()
X = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")


def network(*hidden):
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(8),
            *(hidden or [layers.Dropout(0.5)]),
            layers.Dense(3),
        ]
    )


def softmax(z):
    z = np.exp(z - z.max(axis=-1, keepdims=True))
    return z / z.sum(axis=-1, keepdims=True)


@pytest.fixture
def short_turns():
    """Threads take turns after microseconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(functions, times):
    """What each function returns, run side by side `times` times."""
    together = threading.Barrier(len(functions), timeout=60)
    found = [[] for _ in functions]

    def run(function, results):
        for _ in range(times):
            together.wait()
            results.append(function())

    threads = [
        threading.Thread(target=run, args=pair)
        for pair in zip(functions, found, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(results) == times for results in found)
    return found


def test_threads_that_sample_and_predict_do_not_mix(short_turns):
    model = network()
    sampled = kc.models.MonteCarloDropout(model, num_masks=2)
    expected = to_numpy(model(X))

    def sample():
        return to_numpy(sampled(X))

    def predict():
        return to_numpy(model(X))

    sample()
    times = 100 if BACKEND == "torch" else 20
    *draws, plain = in_threads([sample, sample, predict], times)
    np.testing.assert_array_equal(plain, [expected] * times)
    # No network but one with dropout gives another result every time.
    for results in draws:
        assert np.ptp(results, axis=0).min() > 0
    np.testing.assert_array_equal(predict(), expected)
    assert all("call" not in vars(layer) for layer in model.layers)


def test_blocks_may_end_in_the_order_in_which_they_began():
    # Each thread leaves its network only when told to.
    inside, leave = threading.Barrier(3), [threading.Event() for _ in range(2)]
    places = threading.local()

    class Gate(layers.Layer):
        def call(self, x):
            if hasattr(places, "number"):
                inside.wait(60)
                leave[places.number].wait(60)
            return x

    dropout = layers.Dropout(0.5)
    model = network(Gate(), dropout)
    sampled = kc.models.MonteCarloDropout(model, num_masks=2)
    expected = to_numpy(model(X))

    def sample(number):
        places.number = number
        sampled(X)

    threads = [threading.Thread(target=sample, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    inside.wait(60)
    for event, thread in zip(leave, threads, strict=True):
        np.testing.assert_array_equal(to_numpy(model(X)), expected)
        event.set()
        thread.join()
    np.testing.assert_array_equal(to_numpy(model(X)), expected)
    assert "call" not in vars(dropout)


@pytest.mark.parametrize("fails", [False, True])
def test_a_call_of_the_users_own_is_put_back(fails):
    dropout = layers.Dropout(0.5)

    def call(inputs, training=False):
        if fails and training:
            raise RuntimeError("of the user")
        return 2.0 * inputs if training else inputs

    model = network(dropout)
    dropout.call = call
    sampled = kc.models.MonteCarloDropout(model, num_masks=2)
    if fails:
        with pytest.raises(RuntimeError, match="of the user"):
            sampled(X)
    else:
        first, last = model.layers[0], model.layers[-1]
        expected = softmax(to_numpy(last(2.0 * first(X))))
        np.testing.assert_allclose(to_numpy(sampled(X)), expected, atol=1e-6)
    assert vars(dropout)["call"] is call


def compiled_by_the_user(model):
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.function(model)
    if BACKEND == "jax":
        import jax

        step = jax.jit(model.stateless_call)

        def run(x):
            trained = [v.value for v in model.trainable_variables]
            other = [v.value for v in model.non_trainable_variables]
            outputs, other = step(trained, other, x)
            for variable, value in zip(
                model.non_trainable_variables, other, strict=True
            ):
                variable.assign(value)
            return outputs

        return run
    import torch

    return torch.compile(model, backend="eager")


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_are_of_the_masks_that_were_drawn(compiled):
    # TensorFlow's were of other masks, and PyTorch failed.
    found = []
    for scope in (contextlib.nullcontext(), keras.RematScope(mode="full")):
        keras.utils.set_random_seed(0)
        with scope:
            drops = [layers.Dropout(0.5, seed=seed) for seed in (1, 2)]
            inner = network(drops[0], layers.Dense(9, "relu"), drops[1])
        model = kc.models.MonteCarloDropout(inner, num_masks=3)
        model(X)
        for drop in drops:
            drop.seed_generator.state.assign(np.array([7, 0], "uint32"))
        found.append(of_first_kernel(model, compiled))
        for layer in inner.layers:
            assert not {"call", "rematerialized_call"} & set(vars(layer))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-6)
    assert np.abs(found[0][1]).max() > 1e-3
    np.testing.assert_allclose(found[1][1], found[0][1], atol=1e-6)


def of_first_kernel(model, compiled):
    """A loss of sampled predictions, and its gradient."""

    def loss():
        return keras.ops.mean(model(X)[:, 0] ** 2)

    (kernel, *others) = (each.value for each in model.trainable_variables)
    if BACKEND == "jax":
        import jax

        states = [each.value for each in model.non_trainable_variables]

        def of_kernel(kernel):
            p, _ = model.stateless_call([kernel, *others], states, X)
            return keras.ops.mean(p[:, 0] ** 2)

        function = jax.value_and_grad(of_kernel)
        found = (jax.jit(function) if compiled else function)(kernel)
    elif BACKEND == "tensorflow":
        import tensorflow as tf

        def function():
            with tf.GradientTape() as tape:
                value = loss()
            return value, tape.gradient(value, kernel)

        found = (tf.function(function) if compiled else function)()
    else:
        value = loss()
        value.backward()
        found = value.detach(), kernel.grad
    return [to_numpy(each) for each in found]


def test_compiled_model_samples_and_leaves_its_network_alone():
    model = network()
    sampled = kc.models.MonteCarloDropout(model, num_masks=300)
    expected = to_numpy(model(X))
    x = keras.ops.convert_to_tensor(X)
    run = compiled_by_the_user(sampled)
    draws = [to_numpy(run(x)) for _ in range(3)]
    assert np.ptp(draws, axis=0).min() > 0
    # Probabilities of 300 masks: standard errors below 0.5 / sqrt(300).
    np.testing.assert_allclose(draws[1], to_numpy(sampled(X)), atol=0.15)
    np.testing.assert_array_equal(to_numpy(model(X)), expected)
    plain = compiled_by_the_user(model)
    np.testing.assert_allclose(to_numpy(plain(x)), expected, atol=1e-5)
    assert np.ptp([to_numpy(run(x)), draws[0]], axis=0).min() > 0


@pytest.mark.backends("tensorflow", "torch", reason="JAX keeps the masks")
def test_another_thread_computes_once_more_as_before():
    layer = layers.Dense(2)
    before = contextvars.copy_context()
    with _switched_on([], [layer]):
        assert layer.rematerialized_call(layer.call) == layer.call
        # Without the switch of this thread it is asked as ever.
        asked = before.run(layer.rematerialized_call, layer.call)
        assert asked == layer.call
    assert "rematerialized_call" not in vars(layer)
