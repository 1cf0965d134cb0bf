"""The page *From another library*: both sides of each job give one result."""

import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import to_numpy
from tests.test_documentation import ROOT
from tests.test_documentation import blocks
from tests.test_documentation import missing_packages

DATA, *JOBS = blocks(ROOT / "examples/docs/from_another_library.md")
NEAR = 5e-6
# The largest differences that the page tells of, one for each result.
APART = {
    "svs": (0.014, 0.014),
    "IsotonicRegression": (0.0016, NEAR),
    'method="isotonic"': (0.0016,),
    "BetaCalibration": (4.9e-5,),
    "ici": (NEAR, 0.0083),
    "torch_uncertainty.post_processing": (5.5e-4,),
    "secondary_losses": (NEAR, 6e-6, NEAR),
}
# What blocks gave whose library is not in `peers` of `pyproject.toml`
# (Torch-Uncertainty 0.13.0, uncertainty-baselines 163351d, 2026-11-26): numbers
# as they are, of probabilities the mean confidence.
ONCE = {
    "torch_uncertainty.post_processing": [0.437350],
    "torch_uncertainty.losses": [1.490344, 1.799715],
    "secondary_losses": [0.05721220, 0.26003924, 0.44025362],
}


def pairs(there, here):
    """Arrays to compare, from two results or two lists of them."""
    if not isinstance(there, list):
        there, here = [there], [here]
    for theirs, ours in zip(there, here, strict=True):
        yield np.asarray(theirs, "float64"), to_numpy(ours)


def differences_told(code, results):
    told = [apart for word, apart in APART.items() if word in code]
    (expected,) = told or [(NEAR,) * results]
    return expected


def compare_with_what_was_noted(code, names):
    here = names.get("here")
    here = here if isinstance(here, list) else [here]
    for noted in [noted for word, noted in ONCE.items() if word in code]:
        told = differences_told(code, len(noted))
        for (value, ours), apart in zip(pairs(noted, here), told, strict=True):
            found = ours.max(axis=1).mean() if ours.ndim == 2 else ours
            assert abs(found - value) < 1.05 * apart


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("code", JOBS)
def test_there_and_here(code):
    names = {}
    exec(DATA, names)
    missing = missing_packages(code)
    if missing:
        _, _, ours = code.rpartition("\n\n")
        exec(ours, names)
        compare_with_what_was_noted(code, names)
        pytest.skip(f"without {', '.join(missing)}, only our side was run")
    exec(code, names)
    if "ReliabilityDiagram" in code or "CalibrationDisplay" in code:
        return  # two pictures
    compared = [*pairs(names["there"], names["here"])]
    expected = differences_told(code, len(compared))
    for (theirs, ours), apart in zip(compared, expected, strict=True):
        assert theirs.shape == ours.shape
        found = np.abs(ours - theirs).max()
        if apart == NEAR:
            assert found < NEAR
        elif "svs" in code:
            # Where its solver ends differs by a tenth from machine to machine.
            assert found < apart + 0.0005
        else:
            assert found == pytest.approx(apart, rel=0.05)
    if "svs" in code:
        means = [np.abs(ours - theirs).mean() for theirs, ours in compared]
        np.testing.assert_allclose(means, 0.001, atol=3e-4)


@pytest.mark.one_backend
def test_scikit_learn_fits_its_sigmoid_to_probabilities_where_it_must():
    # As the page says; with the log-odds the map is another one.
    base = pytest.importorskip("sklearn.base")
    calibration = pytest.importorskip("sklearn.calibration")
    frozen = pytest.importorskip("sklearn.frozen")
    names = {}
    exec(DATA, names)
    risk, outcome = names["risk"][:, None], names["outcome"]

    class Risk(base.ClassifierMixin, base.BaseEstimator):
        """A classifier without `decision_function`."""

        def fit(self, X, y):
            self.classes_ = np.unique(y)
            return self

        def predict_proba(self, X):
            return np.concatenate([1 - X, X], axis=1)

        def predict(self, X):
            return self.predict_proba(X).argmax(axis=1)

    found = calibration.CalibratedClassifierCV(
        frozen.FrozenEstimator(Risk().fit(risk, outcome)), method="sigmoid"
    )
    there = found.fit(risk, outcome).predict_proba(risk)[:, 1]
    apart = []
    for scores in (risk, names["logits_of_risk"]):
        layer = kc.layers.PlattScaling(shrinkage=None).adapt(scores, outcome)
        here = 1 / (1 + np.exp(-to_numpy(layer(scores))[:, 0]))
        apart.append(np.abs(here - there).max())
    assert apart[0] < NEAR and apart[1] > 0.1


def test_every_job_has_two_sides():
    pictures = [code for code in JOBS if "there" not in code]
    assert len(JOBS) == 22 and len(pictures) == 2
    assert all("here = " in code for code in JOBS if code not in pictures)
