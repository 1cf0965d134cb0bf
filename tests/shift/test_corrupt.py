"""`kc.shift.corrupt`: batches, seeds, dtypes, compilers, bad input."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from keras_calib.shift._corrupt import TABLE
from tests.helpers import to_numpy
from tests.shift.test_corruptions import pictures

KINDS = kc.shift.CORRUPTIONS
RANDOM = [
    kind
    for kind in KINDS
    if kind
    not in (
        "defocus_blur",
        "zoom_blur",
        "brightness",
        "contrast",
        "pixelate",
        "jpeg_compression",
    )
]


@pytest.mark.parametrize("kind", KINDS)
def test_any_cut_into_batches_gives_the_same_pixels(kind):
    x = pictures(7)
    whole = kc.shift.corrupt(x, kind, 5)
    for start, end in ((0, 1), (1, 4), (4, 7)):
        found = kc.shift.corrupt(x[start:end], kind, 5, start=start)
        np.testing.assert_array_equal(found, whole[start:end])


@pytest.mark.parametrize("kind", RANDOM)
def test_the_seed_and_the_severity_draw_and_nothing_else(kind):
    x = np.repeat(pictures(1), 3, axis=0)
    found = kc.shift.corrupt(x, kind, 2)
    np.testing.assert_array_equal(found, kc.shift.corrupt(x, kind, 2))
    assert (found != kc.shift.corrupt(x, kind, 2, seed=1)).mean() > 0.005
    # Images of one set are corrupted in their own ways.
    assert (found[0] != found[1]).mean() > 0.005


def test_severities_have_noise_of_their_own():
    """One noise for all severities would make their mean look too exact."""
    x = np.full((4, 32, 32, 3), 128.0, "float32")
    one, two = (
        kc.shift.corrupt(x, "gaussian_noise", s).ravel() - 128 for s in (1, 2)
    )
    assert abs(np.corrcoef(one, two)[0, 1]) < 5 / np.sqrt(one.size)


@pytest.mark.parametrize("kind", KINDS)
def test_shape_dtype_and_kind_of_array_are_kept(kind):
    x = pictures(2)
    whole = kc.shift.corrupt(x, kind, 3)
    assert isinstance(whole, np.ndarray)
    assert (whole.dtype, whole.shape) == ("uint8", x.shape)
    tensor = kc.shift.corrupt(ops.convert_to_tensor(x), kind, 3)
    assert ops.is_tensor(tensor)
    np.testing.assert_array_equal(to_numpy(tensor), whole)
    for dtype, scale in (("float32", 255), ("float32", 1), ("float16", 1)):
        floats = (x.astype("float64") * (scale / 255)).astype(dtype)
        found = kc.shift.corrupt(floats, kind, 3, value_range=(0, scale))
        assert (found.dtype, found.shape) == (dtype, x.shape)
        levels = found.astype("float64") * (255 / scale)
        assert -1e-3 < levels.min() and levels.max() < 255.3
        if dtype == "float32":
            # Floats are not cut off, and ties of JPEG may fall apart.
            away = levels - whole
            inside = (away > -2e-3) & (away < 1 + 2e-3)
            assert inside.mean() > 0.98


def test_a_range_around_zero():
    x = pictures(2)
    floats = x.astype("float32") / 127.5 - 1
    found = kc.shift.corrupt(floats, "contrast", 3, value_range=(-1, 1))
    away = (found + 1) * 127.5 - kc.shift.corrupt(x, "contrast", 3)
    assert (away > -1e-3).all() and (away < 1 + 1e-3).all()


def test_float64_stays_float64():
    images = np.full((1, 16, 16, 3), 100.0)
    assert kc.shift.corrupt(images, "fog", 1).dtype == "float64"


def test_what_comes_out_can_go_in_again():
    """Rounding went beyond white."""
    images = np.random.default_rng(0).integers(0, 256, (5, 20, 33, 3))
    for white in (255, 0.3):
        taken = (images * (white / 255)).astype("float32")
        arguments = {"severity": 1, "value_range": (0, white)}
        found = kc.shift.corrupt(taken, "brightness", **arguments)
        assert found.max() == np.float32(white)
        kc.shift.corrupt(found, "contrast", **arguments)


@pytest.mark.parametrize("shape", [(16, 16), (40, 24), (33, 50)])
def test_other_sizes(shape):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (2, *shape, 3)).astype("uint8")
    flat = np.full_like(x, 90)
    for kind in KINDS:
        found = kc.shift.corrupt(x, kind, 4)
        assert found.shape == x.shape
        assert (found != x).any()
        if kind in ("zoom_blur", "pixelate", "glass_blur", "motion_blur"):
            np.testing.assert_array_equal(kc.shift.corrupt(flat, kind, 4), flat)


def test_grey_images_where_color_does_not_matter():
    x = pictures(2)[..., :1]
    for kind in set(KINDS) - {
        "snow",
        "frost",
        "brightness",
        "jpeg_compression",
    }:
        assert kc.shift.corrupt(x, kind, 3).shape == x.shape


def compile_by_backend(function):
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    import tensorflow as tf

    return tf.function(function)


@pytest.mark.compiled
@pytest.mark.backends("tensorflow", "jax", reason="minutes on torch")
def test_values_are_not_seen_in_compiled_code():
    run = compile_by_backend(
        lambda images: kc.shift.corrupt(
            images, "contrast", 1, value_range=(0, 1)
        )
    )
    wide = ops.convert_to_tensor(np.full((2, 32, 32, 3), 2.0, "float32"))
    # The mean and nothing else, which is cut at white.
    np.testing.assert_allclose(to_numpy(run(wide)), 1.0, atol=1e-6)
    with pytest.raises(ValueError, match="outside of `value_range`"):
        kc.shift.corrupt(wide, "contrast", 1, value_range=(0, 1))


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.backends("tensorflow", "jax", reason="minutes on torch")
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_code_gives_the_same_but_for_ties(kind):
    x = pictures(3)
    run = compile_by_backend(
        lambda images, seed: kc.shift.corrupt(images, kind, 3, seed=seed)
    )
    tensor = ops.convert_to_tensor(x)
    for seed in (0, 5):
        found = to_numpy(run(tensor, ops.convert_to_tensor(np.int32(seed))))
        away = np.abs(
            found - kc.shift.corrupt(x, kind, 3, seed=seed).astype(int)
        )
        # A compiler may sum in another order, which JPEG's ties feel.
        is_jpeg = kind == "jpeg_compression"
        assert (away > 0).mean() < (0.15 if is_jpeg else 1e-3)
        assert away.mean() < (0.3 if is_jpeg else 1e-3)


@pytest.mark.compiled
@pytest.mark.backends("tensorflow", reason="of tf.data")
@pytest.mark.parametrize("kind", ["gaussian_noise", "motion_blur", "fog"])
def test_in_tf_data_with_batches_of_unknown_size(kind):
    import tensorflow as tf

    x = pictures(5)
    data = tf.data.Dataset.from_tensor_slices(x).batch(2).enumerate()
    data = data.map(
        lambda i, batch: kc.shift.corrupt(batch, kind, 2, start=2 * i)
    )
    found = np.concatenate([batch.numpy() for batch in data])
    away = np.abs(found.astype(int) - kc.shift.corrupt(x, kind, 2))
    assert (away > 0).mean() < 1e-3


X = np.zeros((2, 32, 32, 3), "uint8")


@pytest.mark.parametrize(
    ("images", "arguments", "words"),
    [
        (X, {"kind": "blur"}, '`kind` must be one of "gaussian_noise"'),
        (X, {"severity": 0}, "1, 2, 3, 4 or 5. Received: severity=0"),
        (X, {"severity": 6}, "severity=6"),
        (X, {"severity": 2.5}, "severity=2.5"),
        (X, {"severity": True}, "severity=True"),
        (X, {"start": 0.5}, "`start` must be an integer of 32 bits"),
        (X, {"seed": 2**40}, "`seed` must be an integer of 32 bits"),
        (X[0], {}, r"image\[None\]"),
        ([[1]], {}, "shape=None"),
        (X[:, :15], {}, "at least 16 x 16"),
        (np.moveaxis(X, 3, 1), {}, "Channels come last"),
        (X[..., :1], {"kind": "snow"}, "three channels"),
        (X.astype("int32"), {}, "uint8 or floating point.*dtype='int32'"),
        (X, {"value_range": (0, 1)}, r"uint8 images is `\(0, 255\)`"),
        (X + 0.5, {"value_range": (1, 0)}, "a higher one"),
        (X - 1.0, {}, "outside of `value_range`.*minimum=-1.0"),
        (X + 2.0, {"value_range": (0, 1)}, "maximum=2.0"),
    ],
)
def test_bad_input_is_refused(images, arguments, words):
    given = {"kind": "fog", "severity": 1, **arguments}
    kind, severity = given.pop("kind"), given.pop("severity")
    with pytest.raises(ValueError, match=words):
        kc.shift.corrupt(images, kind, severity, **given)


def test_nan_is_refused():
    x = X.astype("float32")
    x[0, 0, 0, 0] = np.nan
    with pytest.raises(ValueError, match="outside of `value_range`"):
        kc.shift.corrupt(x, "fog", 1)


def test_images_of_another_range_are_nearly_black():
    with pytest.warns(UserWarning, match=r"value_range=\(0, 1\)"):
        kc.shift.corrupt(X + 0.8, "fog", 1)


def test_tensors_are_checked_as_arrays_are():
    images = np.full((2, 32, 32, 3), 2.0, "float32")
    for given in (images, keras.ops.convert_to_tensor(images)):
        with pytest.raises(ValueError, match="outside of `value_range`"):
            kc.shift.corrupt(given, "fog", 1, value_range=(0, 1))


@pytest.mark.parametrize("kind", TABLE)
def test_no_image_is_no_error(kind):
    for given in (X[:0], ops.convert_to_tensor(X[:0])):
        found = kc.shift.corrupt(given, kind, 1)
        assert found.shape == (0, 32, 32, 3) and type(found) is type(given)
        assert keras.backend.standardize_dtype(found.dtype) == "uint8"


@pytest.mark.parametrize("levels", [(0, np.inf), (-np.inf, 1), (0, np.nan)])
def test_levels_are_finite(levels):
    with pytest.raises(ValueError, match="value_range"):
        kc.shift.corrupt(
            np.zeros((2, 32, 32, 3)), "contrast", 1, value_range=levels
        )
