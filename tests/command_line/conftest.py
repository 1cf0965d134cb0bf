import numpy as np
import pytest

from tests.command_line.helpers import sample


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder: it has predictions in two files."""
    monkeypatch.chdir(tmp_path)
    labels, p = sample()
    np.savez("a.npz", probabilities=p, labels=labels)
    np.savez("b.npz", logits=0.5 * np.log(p), ground_truth=labels)
    return tmp_path
