import importlib
import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    """Import an example as the module it is when it runs as a script."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


def test_augmented_batches_are_windows_of_the_images(example):
    # Image i holds i + 1 everywhere but for its first column, which is
    # negative: what is outside of the image is 0.
    x = (
        np.ones((10, 8, 8, 1), "float32")
        * np.arange(1, 11)[:, None, None, None]
    )
    x[:, :, 0] *= -1
    y = np.arange(10)
    data = example("cifar10").Augmented(x, y, batch_size=4, shift=2)
    orders = []
    for _ in range(2):
        data.on_epoch_begin()
        assert len(data) == 2
        seen = []
        for i in range(len(data)):
            images, labels = data[i]
            assert images.shape == (4, 8, 8, 1)
            for image, label in zip(images, labels, strict=True):
                assert set(np.unique(np.abs(image))) <= {0, label + 1}
                # At least 6 of 8 columns and rows are left of the image.
                assert (image != 0).sum() >= 36
            seen += labels.tolist()
        assert len(set(seen)) == 8
        orders.append(seen)
    assert orders[0] != orders[1]


@pytest.mark.parametrize("name", ["small", "full"])
def test_weight_decay_of_the_papers_scale_is_theirs(example, name):
    script = example("mutual_learning")
    optimizer = script.sgd(0.1, script.SIZES[name])
    weight = keras.Variable([1.0])
    optimizer.build([weight])
    for _ in range(300):
        optimizer.apply([keras.ops.zeros(1)], [weight])
    # In the gradient it has the momentum's ten times as much effect.
    expected = {"small": 0.985, "full": 0.864}[name]
    assert float(weight[0]) == pytest.approx(expected, abs=1e-3)


def test_residual_networks_are_those_of_the_name(example):
    resnet = example("cifar10").resnet

    def layers(model):
        kinds = (keras.layers.Conv2D, keras.layers.Dense)
        return sum(
            isinstance(layer, kinds)
            and getattr(layer, "kernel_size", 0) != (1, 1)
            for layer in model.layers
        )

    assert layers(resnet((1, 1, 1), 16)) == 8
    assert layers(resnet((3, 4, 6, 3), 4)) == 34
    # The usual ResNet-18 for 32 x 32 images has 11.17 million weights.
    model = resnet((2, 2, 2, 2), 64)
    count = sum(np.prod(v.shape) for v in model.trainable_variables)
    assert count == 11_173_962


def test_table_is_mean_and_standard_error(example):
    rows = [
        {"method": "CE", "accuracy": a, "ece": 0.1, "classwise_ece": 0.02}
        for a in (0.50, 0.52, 0.54)
    ]
    text = example("mutual_learning").table(rows, ["CE", "DML"])
    # A deviation of 2 over the root of 3.
    assert text.splitlines()[2:] == [
        "| CE | 3 | 52.00 ± 1.15 | 10.00 ± 0.00 | 2.00 ± 0.00 |"
    ]


@pytest.mark.slow
@pytest.mark.weekly
def test_example_resumes(data_folder, tmp_path):
    def start(seeds, **kwargs):
        return subprocess.run(
            [
                sys.executable,
                EXAMPLES / "mutual_learning.py",
                "--images=100",
                "--test-images=200",
                f"--epochs={kwargs.get('epochs', 1)}",
                f"--seeds={seeds}",
                "--output=out",
                "--methods",
                "CE",
                "Diff-DML",
                "ensemble of 3",
            ],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(EXAMPLES.parent),
                "OMP_NUM_THREADS": "1",
            },
            capture_output=True,
            text=True,
        )

    found = start(seeds=1)
    assert found.returncode == 0, found.stderr
    path = tmp_path / "out" / "results.jsonl"
    before = path.read_text()
    rows = [json.loads(line) for line in before.splitlines()]
    assert len(rows) == 3
    assert all(0.0 < row["accuracy"] < 0.5 for row in rows)
    # The interrupted run of a second start: only what is missing is trained.
    path.write_text("\n".join(before.splitlines()[:2]) + "\n")
    found = start(seeds=1)
    assert found.returncode == 0, found.stderr
    after = path.read_text().splitlines()
    assert after[:2] == before.splitlines()[:2]
    assert len(after) == 3
    assert "| ensemble of 3 | 1 |" in (tmp_path / "out/results.md").read_text()
    found = start(seeds=1, epochs=2)
    assert found.returncode != 0
    assert "other settings" in found.stderr
