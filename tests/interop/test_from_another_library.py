"""The page *From another library*: both sides of each job give one result."""

import numpy as np
import pytest

from tests.helpers import to_numpy
from tests.test_documentation import ROOT
from tests.test_documentation import blocks
from tests.test_documentation import missing_packages

DATA, *JOBS = blocks(ROOT / "examples/docs/from_another_library.md")
# What the page says of those that are further apart than the others.
APART = {
    "svs": 0.015,
    "IsotonicRegression": 0.002,
    "BetaCalibration": 5e-5,
    "ici": 0.0084,
}


def pairs(there, here):
    """Arrays to compare, from two results or two lists of them."""
    if not isinstance(there, list):
        there, here = [there], [here]
    for theirs, ours in zip(there, here, strict=True):
        yield np.asarray(theirs, "float64"), to_numpy(ours)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("code", JOBS)
def test_there_and_here(code):
    missing = missing_packages(code)
    if missing:
        pytest.skip(f"without {', '.join(missing)}")
    names = {}
    exec(DATA, names)
    exec(code, names)
    if "ReliabilityDiagram" in code or "CalibrationDisplay" in code:
        return  # two pictures
    apart = max((APART[word] for word in APART if word in code), default=5e-6)
    for theirs, ours in pairs(names["there"], names["here"]):
        assert theirs.shape == ours.shape
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=apart)


def test_every_job_has_two_sides():
    pictures = [code for code in JOBS if "there" not in code]
    assert len(JOBS) == 13 and len(pictures) == 2
    assert all("here = " in code for code in JOBS if code not in pictures)
