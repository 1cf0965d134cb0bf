"""The forms of ACLS that the example trains are those that it names."""

import pathlib

import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from tests.helpers import example
from tests.helpers import to_numpy

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return example("acls_stability.py")


def test_literal_form_has_the_gradient_of_equation_12(script):
    # By the letter: f(z_j) = l1 (z_^ - min z - M) for the prediction and
    # -l2 (z_^ - z_j - M) for the others, where the distance exceeds M.
    rng = np.random.default_rng(0)
    z = 6 * rng.normal(size=(4, 5))
    arguments = script.FORMS['reference="min", eq. 12 to the letter']
    margin, first, second = 6.0, 0.1, 0.01
    expected = np.zeros_like(z)
    for row, logits in zip(expected, z, strict=True):
        top = logits.argmax()
        far = logits[top] - logits.min() - margin
        row[:] = -second * np.maximum(logits[top] - logits - margin, 0)
        row[top] = first * max(far, 0)
    # What is held constant keeps its value, so that the gradient of a sample
    # is the difference of values with only one of the terms moving.
    constants = {**arguments, "stop_gradient": False}
    assert arguments["stop_gradient"] is True

    def value(moved):
        rows = ops.convert_to_tensor(moved.astype("float32"))
        labels = np.zeros(len(moved), "int32")
        found = kc.losses.acls(labels, rows, margin=margin, **constants)
        return to_numpy(found).astype("float64")

    # Both largest and smallest logit move in these differences; in equation
    # 12 they do not, so that their slopes are taken off.
    top, low = z.argmax(1), z.argmin(1)
    lines = np.arange(len(z))
    for k in range(z.shape[1]):
        step = 1e-2 * np.eye(5)[k]
        slope = (value(z + step) - value(z - step)) / 2e-2
        far = np.maximum(z[lines, top] - z[lines, low] - margin, 0)
        slope += np.where(low == k, first * far, 0)
        others = np.maximum(z[lines, top][:, None] - z - margin, 0)
        slope -= np.where(top == k, second * others.sum(1), 0)
        np.testing.assert_allclose(slope, expected[:, k], atol=2e-3)


@pytest.mark.slow
@pytest.mark.weekly
def test_every_form_is_trained_with_every_optimizer(
    script, monkeypatch, capsys
):
    monkeypatch.setattr(script, "EPOCHS", 2)
    script.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(script.FORMS) * len(script.OPTIMIZERS)
    assert lines[0].startswith("| form | optimizer | training loss, epochs 1,")
