"""What tells that a stored row is of other code."""

import dataclasses
import os

import keras
import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("eager_functions")
# A method of each procedure that is more than a loss.
TRAINED = {
    "mutual": "Diff-DML",
    "interleaved": "MDCA, interleaved",
    "ranked": "CRL",
    "pruned": "FL, pruned (DTDP)",
    "observed_frequencies": "CaPE",
    "adaptive_focal": "AdaFocal",
    "cut_mixed": "CutMix",
    "aug_mixed": "AugMix",
    "sharpness_aware": "SAM",
}


@pytest.fixture(scope="module")
def probes(work):
    import probes

    return probes


@pytest.mark.one_backend
def test_a_published_network_is_probed_where_its_file_is(
    work, probes, monkeypatch
):
    if "KERAS_CALIB_DATA" not in os.environ:
        pytest.skip("KERAS_CALIB_DATA names no folder with its weights")
    found = probes.network_probe.__wrapped__("F")
    size, *logits = found
    assert size > 2e5 and np.isfinite(logits).all() and np.ptp(logits) > 0
    deviation = [1.01 * each for each in work.networks.PUBLISHED_DEVIATION]
    monkeypatch.setattr(work.networks, "PUBLISHED_DEVIATION", deviation)
    import unfinished

    assert unfinished.differ(probes.network_probe.__wrapped__("F"), found)
    monkeypatch.delenv("KERAS_CALIB_DATA")
    assert probes.network_probe.__wrapped__("F") is None


def test_what_is_no_more_than_a_loss_has_no_probe_of_its_training(work, probes):
    for name in ("CE", "ACLS", "as published", "ensemble of 3"):
        assert probes.procedure_probe("S", name) is None
    known = {*probes.PLAIN, *TRAINED}
    assert known == {*work.procedures.PROCEDURES, "ensemble"}


@pytest.mark.parametrize(
    "procedure",
    [
        pytest.param(
            name,
            marks=[pytest.mark.slow, pytest.mark.weekly]
            if name == "aug_mixed"
            else [],
        )
        for name in TRAINED
    ],
)
def test_a_changed_procedure_shows(work, probes, procedure, monkeypatch):
    if (
        procedure == "sharpness_aware"
        and keras.backend.backend() != "tensorflow"
    ):
        pytest.skip("written for TensorFlow")
    import unfinished

    name = TRAINED[procedure]
    assert work.methods.method(name)["train"] == procedure

    def probe():
        probes.trained_values.cache_clear()
        return probes.procedure_probe("S", name)

    found = probe()
    assert np.isfinite(found).all()
    assert not unfinished.differ(probe(), found)
    original = work.procedures.PROCEDURES[procedure]

    def other(task):
        """Every sample has the label of another one."""
        x, y = task.data["train"]
        data = {**task.data, "train": (x[::-1], y)}
        return original(dataclasses.replace(task, data=data))

    monkeypatch.setitem(work.procedures.PROCEDURES, procedure, other)
    assert unfinished.differ(probe(), found)
    probes.trained_values.cache_clear()


@pytest.mark.one_backend
def test_a_variant_has_its_own_rate_of_the_auxiliary(probes):
    same, other = (
        probes.procedure_probe("S", f"Diff-DML: auxiliary_rate={rate}")
        for rate in (0.01, 0.1)
    )
    expected = probes.procedure_probe("S", "Diff-DML")  # 0.01, too
    np.testing.assert_allclose(same, expected, rtol=1e-6)
    assert not np.allclose(other, expected, rtol=1e-3)
