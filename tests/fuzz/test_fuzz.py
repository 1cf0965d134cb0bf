"""Hostile and silly input to every public callable: an answer or an error.

`FUZZ_INPUTS` is how many inputs there are in all (1,000); `FUZZ_SEED` chooses
others; `FUZZ_SECONDS` is the longest that a call may take (60). More inputs
than a test should have are for `tests/fuzz/run.py`.
"""

import math
import os
import signal
import warnings

import hypothesis
import keras
import numpy as np
import pytest
from hypothesis import strategies as st

from tests.fuzz.inputs import FIXED
from tests.fuzz.inputs import Batch
from tests.fuzz.refusals import is_raised
from tests.fuzz.seconds import QUICK
from tests.fuzz.seconds import USUAL
from tests.fuzz.seconds import counts
from tests.fuzz.seconds import seconds_of
from tests.fuzz.table import ALIASES
from tests.fuzz.table import CALLABLES
from tests.fuzz.table import NOT_CALLED
from tests.fuzz.table import TABLE

NAMES = sorted(set(TABLE) - ALIASES)
INPUTS = int(os.environ.get("FUZZ_INPUTS", 1000))
SEED = int(os.environ.get("FUZZ_SEED", 0))
COUNTS = counts(NAMES, INPUTS, keras.backend.backend())
DOCUMENTED = (ValueError, TypeError, ImportError)
# What calls the network of a user, which may fail in its own words.
OF_NETWORKS = ("callbacks.", "models.", "calibrate", "shift.evaluate")
OF_NETWORKS += ("adjust_prior", "check", "report", "SKLearnClassifier")
OF_TENSORFLOW = ()
if keras.backend.backend() == "tensorflow":
    from tensorflow.errors import OpError

    OF_TENSORFLOW = (OpError,)
ALSO_DOCUMENTED = {
    # The folder of the data, as it says.
    "datasets.inexact_images": FileNotFoundError,
    "datasets.load": FileNotFoundError,
    "datasets.stream": FileNotFoundError,
    # As Keras' own wrapper does.
    "SKLearnClassifier": RuntimeError,
}
# Packages whose own checks of input are part of what is called.
ALSO_CHECK = {"SKLearnClassifier": ("sklearn",)}
SECONDS = int(os.environ.get("FUZZ_SECONDS", 60))


# Of the inputs of each name so many shall get an answer: an error at the door
# says nothing of what is behind it.
LEAST_ANSWERS = 0.05
# After so many inputs without one, there is none.
MOST_INPUTS = 40
NO_ANSWER = {"datasets.stream": "needs the images of a data set as files"}


def is_refusal(name, error):
    """Whether an error is one that a user is promised, with words in it."""
    kinds = (*DOCUMENTED, ALSO_DOCUMENTED.get(name, ValueError))
    if name.startswith(OF_NETWORKS):
        kinds = (*kinds, *OF_TENSORFLOW)
    words = bool(str(error).strip())
    return (
        isinstance(error, kinds)
        and words
        and is_raised(error, ALSO_CHECK.get(name, ()))
    )


def numbers(found):
    """All numbers in what a call returned."""
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, list | tuple):
        return np.concatenate([numbers(each) for each in found] or [[]])
    if found is None or isinstance(found, str):
        return np.empty(0)
    try:
        found = keras.ops.convert_to_numpy(found)
        return np.asarray(found, "float64").reshape(-1)
    except (TypeError, ValueError):
        return np.empty(0)


class Plain:
    """Draws, and knows whether all batches and settings were ordinary.

    Others, such as a logit or a weight of 1e30, may overflow float32.
    """

    def __init__(self, draw):
        self.draw, self.plain = draw, True

    def __call__(self, strategy):
        found = self.draw(strategy)
        if isinstance(found, Batch):
            self.plain &= found.good
        elif isinstance(found, dict):
            usual = {name: FIXED.get(name, [None])[0] for name in found}
            self.plain &= all(found[name] is usual[name] for name in found)
        return found


def stop(*_):
    raise TimeoutError(f"no answer after {SECONDS} seconds")


def test_every_public_callable_is_in_the_table():
    assert set(CALLABLES) == set(TABLE) | set(NOT_CALLED) | ALIASES
    assert not set(TABLE) & set(NOT_CALLED)
    assert all(NOT_CALLED.values())


def test_the_number_of_inputs():
    for backend in ("tensorflow", "jax", "torch"):
        found = counts(NAMES, 100_000, backend)
        assert sum(found.values()) == pytest.approx(100_000, rel=0.01)
        assert min(found.values()) >= 100
        known = seconds_of(backend)
        assert set(known) <= set(NAMES)
        # Those that get more than the least of them take equal time.
        taken = {each: seconds * found[each] for each, seconds in known.items()}
        even = [taken[n] for n, s in known.items() if QUICK < s < USUAL]
        assert max(even) < 2 * min(even)


def run_inputs(name, seed, count):
    """Call a public callable with drawn inputs; how many calls, and answers."""
    call, function = TABLE[name]
    calls = answers = 0

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(st.data())
    def one_call(data):
        nonlocal calls, answers
        draw = Plain(data.draw)
        signal.alarm(SECONDS)
        try:
            found = call(draw, function)
        except Exception as error:
            if not is_refusal(name, error):
                raise
        else:
            # Layers give log-probabilities, minus infinity for one of 0.
            infinite = np.isposinf if name.startswith("layers.") else np.isinf
            assert not (draw.plain and infinite(numbers(found)).any())
            answers += 1
        finally:
            signal.alarm(0)
        calls += 1  # not one that drew too much, and was given up

    before = signal.signal(signal.SIGALRM, stop)
    filtered = keras.config.is_traceback_filtering_enabled()
    keras.config.disable_traceback_filtering()  # `is_raised` reads them
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            one_call()
    finally:
        signal.signal(signal.SIGALRM, before)
        if filtered:
            keras.config.enable_traceback_filtering()
    return calls, answers


@pytest.mark.one_backend
@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs alarms")
@pytest.mark.parametrize("name", NAMES)
def test_an_answer_or_a_documented_error(name):
    calls, answers = run_inputs(name, SEED, COUNTS[name])
    assert calls >= 1
    if name in NO_ANSWER:
        return
    seed = SEED
    while answers < max(1, LEAST_ANSWERS * calls) and calls < MOST_INPUTS:
        seed += 1
        more = run_inputs(name, seed, 4)
        calls, answers = calls + more[0], answers + more[1]
    # Two standard deviations of so small a number are chance.
    chance = 2 * math.sqrt(answers + 1)
    assert answers >= max(1, LEAST_ANSWERS * calls - chance)
