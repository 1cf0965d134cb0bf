"""`kc.datasets.load`: splits, sources, and what is said where data lacks."""

import io
import os
import sys

import keras
import numpy as np
import pytest

import keras_calib as kc

needs_data = pytest.mark.skipif(
    "KERAS_CALIB_DATA" not in os.environ,
    reason="KERAS_CALIB_DATA names no folder with image packs",
)


def write_packs(folder, num_images=30):
    """A tiny data set in the format of the packs; image i holds i."""
    from PIL import Image

    images = {}
    for part in ("train_a", "train_b", "test"):
        values = np.arange(num_images, dtype="uint8")
        x = np.tile(values[:, None, None, None], (1, 32, 32, 3))
        pad = np.zeros((-num_images % 25, 32, 32, 3), "uint8")
        tiles = np.concatenate([x, pad]).reshape(-1, 25, 32, 32, 3)
        mosaic = tiles.swapaxes(1, 2).reshape(-1, 32 * 25, 3)
        file = io.BytesIO()
        Image.fromarray(mosaic).save(file, "WEBP", lossless=True)
        data = np.frombuffer(file.getvalue(), "uint8")
        np.savez(
            folder / f"cifar10_{part}.npz",
            webp=data,
            offsets=np.array([0, len(data)]),
            count=num_images,
            label=np.arange(num_images) % 10,
            inexact=np.array([3]),
        )
        images[part] = x
    return images


def test_packs_are_read_in_file_order(tmp_path):
    images = write_packs(tmp_path)
    (x, y), validation, (x_test, y_test) = kc.datasets.load(
        "cifar10", data_dir=tmp_path, validation=0
    )
    assert validation is None
    np.testing.assert_array_equal(
        x, np.concatenate([images["train_a"], images["train_b"]])
    )
    np.testing.assert_array_equal(y, np.tile(np.arange(30) % 10, 2))
    np.testing.assert_array_equal(x_test, images["test"])
    assert (x.dtype, y.dtype, len(y_test)) == ("uint8", "int64", 30)
    inexact = kc.datasets.inexact_images("cifar10", data_dir=tmp_path)
    np.testing.assert_array_equal(inexact, [3, 33])


def test_a_variable_names_the_folder_of_a_long_tail(tmp_path, monkeypatch):
    write_packs(tmp_path)
    monkeypatch.setenv("KERAS_CALIB_DATA", str(tmp_path))
    train, _, test = kc.datasets.load("cifar10_lt", validation=0)
    # Six images of each class, of which the rarest keeps a fiftieth.
    expected = [max(1, round(6 * 50 ** (-i / 9))) for i in range(10)]
    assert np.bincount(train[1], minlength=10).tolist() == expected
    assert (np.bincount(test[1]) == 3).all()


def test_packs_need_not_name_inexact_images(tmp_path):
    write_packs(tmp_path)
    path = tmp_path / "cifar10_train_a.npz"
    with np.load(path) as pack:
        kept = {key: pack[key] for key in pack if key != "inexact"}
    np.savez(path, **kept)
    found = kc.datasets.inexact_images("cifar10", data_dir=tmp_path)
    np.testing.assert_array_equal(found, [33])


def test_validation_is_held_out_by_the_seed(tmp_path):
    write_packs(tmp_path)
    train, held, _ = kc.datasets.load("cifar10", data_dir=tmp_path)
    again = kc.datasets.load("cifar10", data_dir=tmp_path)
    other = kc.datasets.load("cifar10", data_dir=tmp_path, seed=1)
    assert (len(train[1]), len(held[1])) == (54, 6)
    np.testing.assert_array_equal(train[0], again[0][0])
    assert (other[1][0] != held[0]).any()
    values = np.concatenate([train[0], held[0]])[:, 0, 0, 0]
    np.testing.assert_array_equal(np.sort(values), np.repeat(np.arange(30), 2))


def test_missing_data_is_said_and_nothing_is_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "keras.datasets.cifar10.load_data", lambda: pytest.fail("downloaded")
    )
    with pytest.raises(FileNotFoundError, match="KERAS_CALIB_DATA"):
        kc.datasets.load("cifar10", data_dir=tmp_path)


def test_what_is_downloaded_is_what_keras_has(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    parts = [
        (rng.integers(0, 256, (n, 32, 32, 3)).astype("uint8"), np.arange(n))
        for n in (20, 8)
    ]
    # Labels of Keras are columns.
    of_keras = tuple((x, (y % 10)[:, None].astype("uint8")) for x, y in parts)
    monkeypatch.setattr(keras.datasets.cifar10, "load_data", lambda: of_keras)
    train, validation, test = kc.datasets.load(
        "cifar10", data_dir=tmp_path, validation=0, download=True
    )
    assert validation is None
    for (x, y), (wanted, numbers) in zip((train, test), parts, strict=True):
        np.testing.assert_array_equal(x, wanted)
        np.testing.assert_array_equal(y, numbers % 10)
        assert y.dtype == "int64"


def test_images_of_other_sources_are_exact(tmp_path):
    assert len(kc.datasets.inexact_images("cifar10", data_dir=tmp_path)) == 0
    write_packs(tmp_path)
    found = kc.datasets.inexact_images("cifar10", data_dir=tmp_path)
    # The fourth image of each half.
    np.testing.assert_array_equal(found, [3, 33])


def test_packs_without_pillow_say_what_to_install(tmp_path, monkeypatch):
    write_packs(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="pip install pillow"):
        kc.datasets.load("cifar10", data_dir=tmp_path)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="Received: name='mnist'"):
        kc.datasets.load("mnist")
    with pytest.raises(ValueError, match="validation=1"):
        kc.datasets.load("digits", validation=1.0)


def test_digits_have_three_parts_that_share_no_image():
    parts = kc.datasets.load("digits", validation=0.2, seed=3)
    assert sum(len(y) for _, y in parts) == 1797
    assert all(x.shape[1:] == (8, 8, 1) for x, _ in parts)


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("name, classes", [("cifar10", 10), ("cifar100", 100)])
def test_prepared_cifar_has_the_original_counts(name, classes):
    train, _, test = kc.datasets.load(name, validation=0)
    assert (np.bincount(train[1]) == 50000 // classes).all()
    assert (np.bincount(test[1]) == 10000 // classes).all()
    assert (train[0].shape, test[0].shape) == (
        (50000, 32, 32, 3),
        (10000, 32, 32, 3),
    )
