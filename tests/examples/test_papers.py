"""The driver of the papers' tables: stopped anywhere, it loses nothing."""

import dataclasses
import os

import keras
import numpy as np
import pytest

from tests.helpers import to_numpy

needs_data = pytest.mark.skipif(
    "KERAS_CALIB_DATA" not in os.environ,
    reason="KERAS_CALIB_DATA names no folder with CIFAR-10",
)


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [pytest.param("ACLS", marks=pytest.mark.weekly), "Diff-DML, labels 20 %"],
)
def test_stopped_and_resumed_run_equals_the_uninterrupted_one(
    work, method, tmp_path
):
    whole = work.run("miniature", method, 0, tmp_path / "whole", tmp_path)
    # A deadline in the past ends each call after one epoch.
    parts = tmp_path / "parts"
    first = work.run("miniature", method, 0, parts, tmp_path, deadline=1.0)
    assert first is None
    second = work.run("miniature", method, 0, parts, tmp_path)
    for key in ("nll", "ece", "accuracy"):
        assert second["test"][key] == pytest.approx(
            whole["test"][key], abs=2e-4
        )
    with (
        np.load(f"{tmp_path / 'whole'}.npz") as a,
        np.load(f"{parts}.npz") as b,
    ):
        np.testing.assert_allclose(
            a["test_logits"], b["test_logits"], rtol=0.02, atol=0.01
        )


PROCEDURES = {
    "single": "ACLS",
    "mutual": "Diff-DML",
    "interleaved": "SB-ECE, interleaved",
    "ranked": "CRL",
    "adaptive_focal": "AdaFocal",
    "pruned": "FL, pruned (DTDP)",
    "observed_frequencies": "CaPE",
    "dropout": "MC dropout",
    "cut_mixed": "CutMix",
    "aug_mixed": "AugMix",
    "sharpness_aware": "SAM",
}


def small_network(name, classes, *, inputs, dropout, **kwargs):
    """What `networks.build` gives, but one layer."""
    images = keras.Input((32, 32, 3), dtype="uint8")
    x = keras.layers.AveragePooling2D(8)(inputs(images))
    x = keras.layers.Flatten()(x)
    if dropout:
        x = keras.layers.Dropout(dropout)(x)
    return keras.Model(images, keras.layers.Dense(classes)(x))


@pytest.mark.usefixtures("eager_functions")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=[pytest.mark.slow] if name == "aug_mixed" else []
        )
        for name in PROCEDURES
    ],
)
def test_each_procedure_ends_with_its_schedule(
    work, name, tmp_path, monkeypatch
):
    if name == "sharpness_aware" and keras.backend.backend() != "tensorflow":
        pytest.skip("written for TensorFlow")
    rng = np.random.default_rng(0)

    def images(count):
        y = np.arange(count) % 10
        x = (
            rng.integers(0, 128, (count, 32, 32, 3))
            + 12 * y[:, None, None, None]
        )
        return x.astype("uint8"), y

    spec = work.methods.METHODS[PROCEDURES[name]]
    protocol = dataclasses.replace(
        work.protocols.PROTOCOLS["miniature"], batch_size=32, epochs=6
    )
    data = {part: images(40) for part in ("validation", "calibration", "test")}
    data["train"] = images(170)
    monkeypatch.setattr(work.networks, "build", small_network)
    built = []

    def remember(task, make=work.procedures.PROCEDURES[spec["train"]]):
        built.append(make(task))
        return built[-1]

    monkeypatch.setitem(work.procedures.PROCEDURES, spec["train"], remember)
    path = tmp_path / "row"
    logits, _ = work.train(spec, protocol, data, 0, path, None)
    found = built[0]
    # Keras' AugMix draws by Python's generator, and its dropout on PyTorch by
    # PyTorch's: they are not in a checkpoint.
    others = {"aug_mixed"}
    if keras.backend.backend() == "torch":
        others.add("dropout")
    else:
        # What Keras shuffles is in another order after a stop.
        others |= {"ranked", "adaptive_focal"}
    # Stopped after the first epoch, it goes on where it was.
    arguments = spec, protocol, data, 0, tmp_path / "parts"
    assert work.train(*arguments, 1.0) is None
    assert int(to_numpy(built[-1].model.optimizer.iterations)) < found.steps / 4
    if name == "pruned":  # after five epochs: stopped after each
        for _ in range(4):
            assert work.train(*arguments, 1.0) is None
    parts, extra = work.train(*arguments, None)
    assert int(to_numpy(built[-1].model.optimizer.iterations)) == found.steps
    assert extra["history"]["epoch"] == [1, 2, 3, 4, 5, 6]
    if name not in others:
        np.testing.assert_allclose(parts["test"], logits["test"], atol=1e-3)
    optimizer = found.model.optimizer
    assert int(to_numpy(optimizer.iterations)) == found.steps
    assert float(to_numpy(optimizer.learning_rate)) < 1e-6
    for part, value in logits.items():
        assert value.shape == (len(data[part][1]), 10)
        assert np.isfinite(value).all()
    x, y = data["train"]
    p = work.softmax(work.procedures.predict(found.model, x, None, 0))
    # Something was learned: better than the best constant.
    assert -np.log(p[np.arange(len(y)), y]).mean() < np.log(10)


def test_epochs_are_counted_by_updates(papers):
    import training

    # Of 1,000 samples in batches of 16, a tenth is dropped every two epochs:
    # 1,000, 900, 810; the lengths may be off by one batch.
    epochs = training.Epochs([63, 63, 57, 57, 51])
    found = [epochs.completed(n) for n in (0, 63, 126, 182, 239, 290)]
    assert found == [0, 1, 2, 3, 4, 5]
    assert training.Epochs([]).completed(0) == 0


def test_another_order_after_a_stop_where_keras_shuffles(papers):
    import training

    drawn = []
    for seed, first in ((0, 0), (0, 1), (0, 2), (1, 1), (None, 1)):
        keras.utils.set_random_seed(7)
        training.Epochs([3, 3, 3], seed).resumed(first)
        drawn.append(float(np.random.random()))
    assert drawn[0] == drawn[4]  # as it was
    assert len(set(drawn)) == 4


def test_images_that_are_no_cifar_are_all_exact(papers, tmp_path, monkeypatch):
    import data_sets
    import protocols

    x, y = np.zeros((4, 2, 2, 3), "uint8"), np.arange(4)
    parts = (x, y), None, (x, y)
    monkeypatch.setattr(data_sets.kc.datasets, "load", lambda *_, **__: parts)
    found = data_sets.all_images(protocols.PROTOCOLS["tiny-resnet50"], tmp_path)
    assert found["inexact"].shape == (0,)


@pytest.mark.one_backend
def test_every_script_finds_the_modules_of_examples(papers):
    others = {path.stem for path in papers.parent.glob("*.py")}
    found = 0
    for path in papers.glob("*.py"):
        lines = path.read_text().splitlines()
        words = [line.split() for line in lines if line]
        needed = {
            number
            for number, word in enumerate(words)
            if word[0] in ("import", "from") and word[1] in others
        }
        if needed:
            found += 1
            (made, *_) = [
                number
                for number, word in enumerate(words)
                if word[0].startswith("sys.path.insert(0,")
            ]
            assert made < min(needed), path.name
    assert found >= 5
