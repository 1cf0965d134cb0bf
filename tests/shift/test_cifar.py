"""A published network on corrupted CIFAR-10, beside the published figures."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.datasets._packs import read_part
from tests.helpers import example

# Mean accuracy over five severities, in percent, of a ResNet-56 on the files of
# CIFAR-10-C, as read off the figure of tanimutomo/cifar10-c-eval.
PUBLISHED = {
    "gaussian_noise": 48.7,
    "shot_noise": 59.5,
    "impulse_noise": 56.0,
    "defocus_blur": 82.0,
    "glass_blur": 51.8,
    "motion_blur": 77.7,
    "zoom_blur": 77.3,
    "snow": 78.2,
    "frost": 74.5,
    "fog": 85.4,
    "brightness": 91.3,
    "contrast": 73.1,
    "elastic_transform": 83.3,
    "pixelate": 73.8,
    "jpeg_compression": 80.1,
}
NUMBER = 400


def published_network(path):
    """The published network, with its normalization, by `examples/papers`."""
    networks = example("papers/networks.py")
    variance = [each**2 for each in networks.PUBLISHED_DEVIATION]
    inputs = keras.layers.Normalization(
        mean=networks.PUBLISHED_MEAN, variance=variance
    )
    return networks.published(path, inputs=inputs)


def ranks(values):
    return np.argsort(np.argsort(values))


@pytest.mark.slow
@pytest.mark.weekly
@pytest.mark.backends("torch", reason="minutes; pixels are those of torch")
def test_accuracies_have_the_published_order(data_folder):
    part = read_part(data_folder, "cifar10", "test")
    model = published_network(data_folder / "resnet56_cifar10_weights.npz")
    result = kc.shift.evaluate(
        model, part["x"][:NUMBER], part["label"][:NUMBER], verbose=0
    )
    print(result.to_markdown())
    means = {
        row["corruption"]: 100 * row["accuracy"]
        for row in result.means
        if row["severity"] is None and row["corruption"]
    }
    assert list(means) == list(PUBLISHED)
    ours, theirs = np.array(list(means.values())), [*PUBLISHED.values()]
    spearman = np.corrcoef(ranks(ours), ranks(theirs))[0, 1]
    print(f"Spearman's correlation with the published means: {spearman:.3f}")
    assert spearman > 0.9
    # The published network is another one, by 0.6 points on clean images.
    assert abs(np.mean(ours - theirs)) < 4
    assert np.abs(ours - theirs).max() < 9
    check_fingerprints(result)


def check_fingerprints(result):
    """How accuracy goes with severity tells the constants."""
    cells = {
        (row["corruption"], row["severity"]): 100 * row["accuracy"]
        for row in result.rows
    }
    by = {kind: [cells[kind, s] for s in range(1, 6)] for kind in PUBLISHED}
    snow, motion, glass = by["snow"], by["motion_blur"], by["glass_blur"]
    contrast, elastic = by["contrast"], by["elastic_transform"]
    assert snow[1] < snow[2] + 1
    assert abs(motion[2] - motion[3]) < 4
    assert abs(elastic[0] - elastic[1]) < 4
    assert max(glass[:3]) - min(glass[:3]) < 8
    assert glass[2] - glass[3] > 5
    assert contrast[3] - contrast[4] > 25
