"""Each corruption against its definition, in float64 and with loops."""

import functools
import io

import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from keras_calib.shift._corrupt import TABLE
from keras_calib.shift._frost_fields import KINDS
from keras_calib.shift._frost_fields import frost_fields
from keras_calib.shift._hash import Draws
from tests.helpers import to_numpy
from tests.shift import oracle

NUMBER = 3


@functools.cache
def pictures(number=NUMBER):
    """Blobs of color, with fine noise on them, and some black and white."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(-40, 296, (number, 8, 8, 3)).astype(float)
    x = np.kron(coarse, np.ones((1, 4, 4, 1)))
    x = (x + np.roll(x, 1, axis=1) + np.roll(x, 2, axis=2)) / 3
    x = x + rng.normal(0, 6, x.shape)
    return np.clip(np.round(x), 0, 255).astype("uint8")


class Numbers:
    """What the corruption draws, for one image, in float64."""

    def __init__(self, kind, severity, image):
        index = ops.convert_to_tensor(np.array([image], "int32"))
        self.draws = Draws(0, f"{kind} {severity}", index)

    def __getattr__(self, name):
        def draw(*arguments):
            found = getattr(self.draws, name)(*arguments)
            return to_numpy(found)[0].astype("float64")

        return draw


def expected_of(kind, severity, x, draw):
    constants = TABLE[kind][1][severity - 1]
    if kind == "gaussian_noise":
        noise = draw.normal(32, 32, 3)
        return np.clip(x / 255 + constants * noise, 0, 1) * 255
    if kind == "shot_noise":
        return oracle.shot_noise(
            x, constants, draw.uniform(0.0, 1.0, 32, 32, 3)
        )
    if kind == "impulse_noise":
        hit, white = (draw.uniform(0.0, 1.0, 32, 32, 3) for _ in range(2))
        return np.where(hit <= constants, np.where(white > 0.5, 0, 255), x)
    if kind == "defocus_blur":
        return oracle.defocus_blur(x, *constants)
    if kind == "glass_blur":
        deviation, passes = constants
        moves = [
            [-draw.below(2, 30, 30).astype(int) for _ in range(2)]
            for _ in range(passes)
        ]
        return oracle.glass_blur(x, deviation, moves)
    if kind == "motion_blur":
        return oracle.streak(x, *constants, draw.uniform(-45.0, 45.0))
    if kind == "zoom_blur":
        ends = (1.06, 1.11, 1.16, 1.21, 1.26)
        factors = np.arange(1, ends[severity - 1], 0.01)
        return oracle.zoom_blur(x, factors)
    if kind == "snow":
        normal = draw.normal(32, 32)
        return oracle.snow(x, constants, normal, draw.uniform(-135.0, -45.0))
    if kind == "fog":
        amount, decay = constants
        sides = iter([1, 1, 1, 2, 2, 2, 4, 4, 4, 8, 8, 8, 16, 16, 16])

        def uniform():
            side = next(sides)
            return draw.uniform(-1.0, 1.0, side, side)

        return oracle.fog(x, amount, oracle.plasma(decay, uniform))
    if kind == "brightness":
        return oracle.brightness(x, constants)
    if kind == "contrast":
        return oracle.contrast(x, constants)
    reach = 32 * constants[2]
    moves = draw.uniform(-reach, reach, 3, 2)
    field = draw.uniform(-1.0, 1.0, 32, 32, 2)
    return oracle.elastic_transform(x, constants, moves, field)


# Share of values that may differ by a level. Glass and defocus: weights below
# 1e-5 times the difference of two pixels decide whether a level is reached.
SHARES = {"glass_blur": 0.05, "defocus_blur": 0.04}
# Largest difference. A uniform number next to the distribution function takes
# or leaves a photon; affine places next to 1/64 of a pixel are rounded apart.
LARGEST = {"shot_noise": 6, "elastic_transform": 3}
BY_FORMULA = [
    kind
    for kind in kc.shift.CORRUPTIONS
    if kind not in ("frost", "pixelate", "jpeg_compression")
]


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("kind", BY_FORMULA)
def test_pixels_are_those_of_the_definition(kind, severity):
    x = pictures()
    found = kc.shift.corrupt(x, kind, severity)
    for i in range(NUMBER):
        draw = Numbers(kind, severity, i)
        expected = expected_of(kind, severity, x[i].astype(float), draw)
        expected = np.floor(expected + 1e-4)
        away = np.abs(found[i] - expected)
        assert away.max() <= LARGEST.get(kind, 1)
        assert (away > 0).mean() <= SHARES.get(kind, 2e-3)


def test_the_constants_are_those_of_cifar():
    """Of the authors' script for CIFAR-10; those for ImageNet are others."""
    constants = {kind: row for kind, (_, row) in TABLE.items()}
    assert constants["gaussian_noise"] == (0.04, 0.06, 0.08, 0.09, 0.10)
    assert constants["shot_noise"] == (500, 250, 100, 75, 50)
    assert constants["impulse_noise"] == (0.01, 0.02, 0.03, 0.05, 0.07)
    assert constants["frost"][-1] == (0.75, 0.45)
    assert constants["fog"] == (
        (0.2, 3),
        (0.5, 3),
        (0.75, 2.5),
        (1, 2),
        (1.5, 1.75),
    )
    assert constants["brightness"] == (0.05, 0.1, 0.15, 0.2, 0.3)
    assert constants["contrast"] == (0.75, 0.5, 0.4, 0.3, 0.15)
    assert constants["jpeg_compression"] == (80, 65, 58, 50, 40)
    assert [int(32 * c) for c in constants["pixelate"]] == [30, 28, 27, 24, 20]
    assert tuple(TABLE) == (
        "gaussian_noise",
        "shot_noise",
        "impulse_noise",
        "defocus_blur",
        "glass_blur",
        "motion_blur",
        "zoom_blur",
        "snow",
        "frost",
        "fog",
        "brightness",
        "contrast",
        "elastic_transform",
        "pixelate",
        "jpeg_compression",
    )


def test_noise_at_mid_grey_has_its_deviation():
    grey = np.full((40, 32, 32, 3), 128, "uint8")
    for severity, deviation in enumerate((10.2, 15.3, 20.4, 22.95, 25.5), 1):
        noisy = kc.shift.corrupt(grey, "gaussian_noise", severity)
        # Cutting adds 1/12 to the variance, and takes half a level.
        values = noisy.astype("float64")
        assert values.std() == pytest.approx(deviation, rel=0.01)
        assert values.mean() == pytest.approx(127.5, abs=0.3)


@pytest.mark.parametrize("level", [0, 40, 128, 230])
def test_shot_noise_has_the_variance_of_counts(level):
    x = np.full((40, 32, 32, 3), level, "float32")
    for severity, counts in enumerate((500, 250, 100, 75, 50), 1):
        found = kc.shift.corrupt(x, "shot_noise", severity)
        if level == 0:
            assert (found == 0).all()
            continue
        if level < 200:  # white cuts nothing off
            assert found.mean() == pytest.approx(level, rel=0.01)
            assert found.var() == pytest.approx(255 * level / counts, rel=0.03)
        assert (found <= 255).all()


def test_impulse_noise_is_of_values_not_pixels():
    grey = np.full((40, 32, 32, 3), 128, "uint8")
    found = kc.shift.corrupt(grey, "impulse_noise", 5)
    hit = found != 128
    assert hit.mean() == pytest.approx(0.07, abs=0.004)
    assert (found[hit] == 255).mean() == pytest.approx(0.5, abs=0.03)
    alone = hit.any(axis=-1) & ~hit.all(axis=-1)
    assert alone.sum() > 0.9 * hit.any(axis=-1).sum()


@pytest.mark.parametrize(
    "kind",
    [
        "defocus_blur",
        "glass_blur",
        "motion_blur",
        "zoom_blur",
        "contrast",
        "elastic_transform",
        "pixelate",
    ],
)
def test_flat_images_stay_as_they_are(kind):
    x = np.zeros((4, 32, 32, 3), "uint8") + np.array([0, 77, 255], "uint8")
    for severity in (1, 3, 5):
        np.testing.assert_array_equal(kc.shift.corrupt(x, kind, severity), x)


def test_grey_survives_jpeg():
    x = np.full((1, 32, 32, 3), 128, "uint8")
    found = kc.shift.corrupt(x, "jpeg_compression", 5)
    np.testing.assert_array_equal(found, x)


def test_brightness_of_black_is_grey():
    x = np.zeros((1, 32, 32, 3), "uint8")
    for severity, amount in enumerate((0.05, 0.1, 0.15, 0.2, 0.3), 1):
        found = kc.shift.corrupt(x, "brightness", severity)
        assert (found == int(255 * amount)).all()


def test_fog_leaves_the_largest_value_and_contrast_the_mean():
    x = pictures()
    found = kc.shift.corrupt(x, "fog", 4)
    assert (found.max(axis=(1, 2, 3)) <= x.max(axis=(1, 2, 3))).all()
    found = kc.shift.corrupt(x, "contrast", 5).astype("float64")
    away = found.mean(axis=(1, 2)) - x.mean(axis=(1, 2))
    assert (np.abs(away) <= 1).all()


def test_pixels_are_those_of_pillow():
    image = pytest.importorskip("PIL.Image")
    x = pictures()
    for severity, size in enumerate((30, 28, 27, 24, 20), 1):
        found = kc.shift.corrupt(x, "pixelate", severity)
        for before, after in zip(x, found, strict=True):
            small = image.fromarray(before).resize((size, size), image.BOX)
            large = small.resize((32, 32), image.BOX)
            np.testing.assert_array_equal(after, np.asarray(large))


def test_jpeg_is_that_of_pillow_but_for_ties():
    image = pytest.importorskip("PIL.Image")
    x = pictures(20)
    for severity, quality in enumerate((80, 65, 58, 50, 40), 1):
        found = kc.shift.corrupt(x, "jpeg_compression", severity)
        expected = []
        for picture in x:
            file = io.BytesIO()
            image.fromarray(picture).save(file, "JPEG", quality=quality)
            expected.append(np.asarray(image.open(file)))
        away = np.abs(found - np.array(expected, "float64"))
        loss = np.abs(x - np.array(expected, "float64"))
        # 24 % differ without the grids of the integer transform.
        assert (away > 0).mean() < 0.15
        assert away.mean() < loss.mean() / 10


def test_fields_of_ice_have_the_statistics_of_the_photographs():
    """Means, deviations and correlations that were measured on their crops."""
    number = 1500
    index = ops.arange(number, dtype="int32")
    kind = np.array([0, 1, 1, 2, 3])[
        to_numpy(Draws(0, "frost 1", index).below(5))
    ]
    fields = to_numpy(frost_fields(Draws(0, "frost 1", index), 32, 32))
    measured = (
        ((78, 149, 165), 11, (22, 13, 13), 0.53, 0.37, 0.53),
        ((198, 202, 212), 9, (18, 18, 19), 0.38, 0.19, 0.99),
        ((143, 158, 171), 10, (26, 26, 27), 0.22, 0.15, 0.99),
        ((103, 114, 126), 16, (35, 34, 33), 0.34, 0.12, 1.0),
    )
    assert len(KINDS["mean"]) == len(measured)
    for k, (mean, between, within, near, far, color) in enumerate(measured):
        crops = fields[kind == k].astype("float64")
        average = crops.mean(axis=(1, 2), keepdims=True)
        away = crops - average
        np.testing.assert_allclose(crops.mean(axis=(0, 1, 2)), mean, atol=2.5)
        np.testing.assert_allclose(
            average.std(axis=0).ravel(), between, atol=2.0
        )
        np.testing.assert_allclose(away.std(axis=(0, 1, 2)), within, atol=2.0)
        green = away[..., 1]
        variance = (green**2).mean()
        found = [
            (green[:, d:] * green[:, :-d]).mean() / variance for d in (1, 4)
        ]
        # The first kind is smoother here than its photograph.
        slack = 0.18 if k == 0 else 0.07
        np.testing.assert_allclose(found, (near, far), atol=slack)
        red, blue = away[..., 0], away[..., 2]
        share = (red * blue).mean() / red.std() / blue.std()
        assert share == pytest.approx(color, abs=0.07)
