"""Arguments that are true or false, or one of a few words, by their names.

Otherwise a word such as "no" would count as true, and an array would end in an
error of NumPy's.
"""

import inspect
import pathlib

import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import small_network
from tests.test_house import CALLABLES

pytestmark = pytest.mark.one_backend

X = np.random.default_rng(0).normal(size=(20, 64)).astype("float32")
Z, Y = X[:, :10], np.arange(20) % 10
P = np.exp(Z) / np.exp(Z).sum(axis=1, keepdims=True)
BAD = [np.array([1.0, 2.0]), "no", 2]
# The bases' arguments, which their classes pass on.
PASSED_ON = {"losses": "ClassificationLoss", "metrics": "CalibrationMetric"}
# What is called with more than labels and predictions.
CALLS = {
    "adjust_prior": lambda f, **bad: f(small_network(), X, **bad),
    "calibrate": lambda f, **bad: f(small_network(), X, Y, **bad),
    "report": lambda f, **bad: f(P, Y, **bad),
    "add_sample_index": lambda f, **bad: f(X, **bad),
    "SKLearnClassifier": lambda f, **bad: f(small_network(), **bad).fit(X, Y),
    "datasets.load": lambda f, **bad: f("cifar10", **bad),
    "shift.evaluate": lambda f, **bad: f(
        small_network(), np.zeros((2, 8, 8)), Y[:2], **bad
    ),
    "models.DeepEnsemble": lambda f, **bad: f([small_network()], **bad),
    "models.MonteCarloDropout": lambda f, **bad: f(small_network(), **bad),
    "models.MutualLearning": lambda f, **bad: f(
        small_network(), small_network(), **bad
    ),
    "models.DiffDML": lambda f, **bad: f(
        small_network(), small_network(), **bad
    ),
    "models.InterleavedTraining": lambda f, **bad: f(small_network(), **bad),
    "callbacks.CorrectnessHistory": lambda f, **bad: f(**bad),
    "callbacks.EmpiricalTargets": lambda f, **bad: f(
        X, Y, num_classes=10, **bad
    ),
    "callbacks.ReliabilityDiagram": lambda f, **bad: f("logs", **bad),
    "callbacks.RestoreCalibrated": lambda f, **bad: f(**bad),
    "plots.shift_curves": lambda f, **bad: f(None, **bad),
    "losses.crl": lambda f, **bad: f(Y, Z, np.ones(20), **bad),
    "plots.confidence_map": lambda f, **bad: f(Y[:, None], P[:, None], **bad),
}


def call(name, found, **bad):
    room = name.partition(".")[0]
    if name in CALLS:
        return CALLS[name](found, **bad)
    if room == "callbacks":
        return found(validation_data=(X, Y), **bad)
    if inspect.isclass(found):
        return found(**bad)
    return found(Y, Z if room == "losses" else P, **bad)


def arguments():
    for name, found in CALLABLES.items():
        if name.startswith(("calibration.", "interop.", "reporting.")):
            continue  # the same under another name
        given = found.__init__ if inspect.isclass(found) else found
        own = dict(inspect.signature(given).parameters)
        room = name.partition(".")[0]
        if room in PASSED_ON and inspect.isclass(found):
            base = getattr(getattr(kc, room), PASSED_ON[room])
            if issubclass(found, base):
                own |= inspect.signature(base.__init__).parameters
        for argument in own.values():
            yield name, argument


def is_switch(argument):
    kind = str(argument.annotation)
    return "bool" in kind and "str" not in kind


SWITCHES = sorted({(n, a.name) for n, a in arguments() if is_switch(a)})
# Names that anything may have, and what Keras reads.
FREE = ("accuracy_key", "monitor", "name", "primary", "reduction", "verbose")
WORDS = sorted(
    {
        (n, a.name)
        for n, a in arguments()
        if isinstance(a.default, str) and a.name not in FREE
    }
)


@pytest.mark.parametrize("bad", BAD, ids=["array", "word", "two"])
@pytest.mark.parametrize(("name", "argument"), SWITCHES)
def test_refused_by_its_name(name, argument, bad, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"`{argument}` must be"):
        call(name, CALLABLES[name], **{argument: bad})
    assert not list(pathlib.Path().iterdir())


@pytest.mark.parametrize("bad", BAD[:2], ids=["array", "word"])
@pytest.mark.parametrize(("name", "argument"), WORDS)
def test_unknown_words_are_refused_by_name(name, argument, bad):
    with pytest.raises(ValueError, match=argument):
        call(name, CALLABLES[name], **{argument: bad})
