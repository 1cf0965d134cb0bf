"""The segmentation of street scenes, on a few small made images."""

import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import example

SIDE = 16


@pytest.fixture
def scenes(monkeypatch):
    """Images whose class is their color, with noise and a void row."""

    def part(n, seed):
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, 2, (n, 2, 2)).repeat(8, 1).repeat(8, 2)
        colors = 60 + 120 * labels[..., None] + rng.normal(0, 40, (1, 1, 1, 3))
        noise = rng.normal(0, 60, (n, SIDE, SIDE, 3))
        labels = labels.astype("uint8")
        labels[:, 0] = 255
        return np.clip(colors + noise, 0, 255).astype("uint8"), labels

    parts = part(16, 0), part(12, 1), part(161, 2)
    monkeypatch.setattr(kc.datasets, "load", lambda name: parts)
    return parts


@pytest.mark.one_backend
def test_table_has_a_row_for_each_map_and_the_figure_is_written(
    scenes, capsys, tmp_path
):
    pytest.importorskip("matplotlib").use("Agg")
    segmentation = example("segmentation.py")
    path = tmp_path / "scenes.png"
    models = segmentation.main(["--epochs", "2", "--figure", str(path)])
    lines = capsys.readouterr().out.splitlines()[-5:]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert [row[0] for row in rows] == list(models)
    x, y = scenes[2]
    for row, model in zip(rows, models.values(), strict=True):
        p = model.predict(x, verbose=0)
        valid = y != 255
        accuracy = (p.argmax(-1) == y)[valid].mean()
        assert float(row[1]) == pytest.approx(accuracy, abs=1e-4)
        label = np.where(valid, y, 0)[..., None]
        likelihood = np.take_along_axis(p, label, -1)[..., 0][valid]
        nll = -np.log(likelihood).mean()
        assert float(row[3]) == pytest.approx(nll, abs=1e-3)
    assert path.stat().st_size > 5_000
