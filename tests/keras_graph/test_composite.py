"""Files of the models that hold other models."""

import os

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import to_numpy

X = np.eye(3, dtype="float32")


def ensemble():
    members = [
        keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, "softmax")])
        for _ in range(2)
    ]
    return kc.models.DeepEnsemble(members)


def as_before(model, path):
    again = keras.saving.load_model(path)
    np.testing.assert_array_equal(to_numpy(again(X)), to_numpy(model(X)))


def test_saved_in_every_format_of_keras(tmp_path):
    model = ensemble()
    for name, options in {"a.keras": {}, "folder": {"zipped": False}}.items():
        model.save(tmp_path / name, **options)
        as_before(model, tmp_path / name)
    model.save(str(tmp_path / "a.keras"))
    as_before(model, tmp_path / "a.keras")
    assert sorted(os.listdir(tmp_path)) == ["a.keras", "folder"]


def test_what_keras_refuses_stays_refused(tmp_path):
    with pytest.raises(ValueError, match="Invalid filepath extension"):
        ensemble().save(tmp_path / "a.txt")
    assert os.listdir(tmp_path) == []


def test_old_file_stays_where_keras_asks_and_is_told_no(tmp_path, monkeypatch):
    path = tmp_path / "a.keras"
    path.write_bytes(b"old")
    monkeypatch.setattr("builtins.input", lambda *_: "n")
    ensemble().save(path, overwrite=False)
    assert path.read_bytes() == b"old"


def test_old_file_stays_where_saving_fails(tmp_path, monkeypatch):
    path = tmp_path / "a.keras"
    path.write_bytes(b"old")
    model = ensemble()

    def fail(self):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(kc.models.DeepEnsemble, "get_config", fail)
    with pytest.raises(OSError):
        model.save(path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.keras"]
