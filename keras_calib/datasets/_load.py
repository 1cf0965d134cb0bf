"""`load`: one call for every data set, wherever its files lie."""

import os
from typing import TypeAlias

import numpy as np

from keras_calib.datasets._camvid import camvid
from keras_calib.datasets._folders import folders
from keras_calib.datasets._folders import not_found
from keras_calib.datasets._long_tailed import long_tailed
from keras_calib.datasets._newsgroups import newsgroups
from keras_calib.datasets._packs import has_packs
from keras_calib.datasets._packs import read_part
from keras_calib.datasets._prepared import prepared
from keras_calib.datasets._tiny_imagenet import tiny_imagenet
from keras_calib.inputs.arguments import generator
from keras_calib.inputs.arguments import require_flags
from keras_calib.inputs.arguments import require_fraction
from keras_calib.inputs.arguments import require_one_of

Part: TypeAlias = tuple[np.ndarray, np.ndarray]
IMAGES = ("cifar10", "cifar100")
TAILS = {f"{name}_lt": name for name in IMAGES}
NAMES = (*IMAGES, *TAILS, "digits", "20newsgroups", "camvid", "tiny_imagenet")
TAIL = 50.0


def load(
    name: str,
    *,
    data_dir: str | os.PathLike | None = None,
    validation: float = 0.1,
    seed: int = 0,
    download: bool = False,
) -> tuple[Part, Part | None, Part]:
    """Load a data set as arrays, split as the papers split it.

    - `"cifar10"`, `"cifar100"`: uint8 images `(n, 32, 32, 3)`, from image
      packs, a folder prepared by TensorFlow Datasets, or a download.
    - `"cifar10_lt"`, `"cifar100_lt"`: the same, with the training part thinned
      by `long_tailed` with a ratio of 50; the test part is balanced.
    - `"digits"`: float32 images `(n, 8, 8, 1)` in [0, 16], from scikit-learn;
      every fourth image is test data.
    - `"20newsgroups"`: texts, an array of strings `(n,)`, split by date, from
      `20newsgroups.jsonl.xz` or a download.
    - `"camvid"`: uint8 images `(n, height, width, 3)` with uint8 labels
      `(n, height, width)`, of which 255 is void, from `camvid_small.npz` or the
      folder `CamVid` of the SegNet tutorial. Its own validation part is
      returned.
    - `"tiny_imagenet"`: uint8 images `(n, 64, 64, 3)`, from the official folder
      or archive, whose validation images are the test part.

    Args:
        name: see above.
        data_dir: folder with the data. Defaults to the environment variables
            `KERAS_CALIB_DATA`, then `TFDS_DATA_DIR`.
        validation: float, the fraction of the training data that is held
            out, chosen by `seed`; 0 keeps the training data in file order and
            returns `None` for the validation data.
        seed: int.
        download: whether Keras or scikit-learn may download what is not
            there, and read their caches, which are pickles.

    Returns:
        `train, validation, test`, each `(x, y)`; `y` has int64 class ids
        `(n,)`, but for `"camvid"`.

    Raises:
        ValueError: if `name` or `validation` is not valid, or the data is a
            pickle and `download` is not set.
        FileNotFoundError: if the data is not there; the message says where it
            was looked for, and what to put there.

    Example:
        >>> import keras_calib as kc
        >>> train, validation, test = kc.datasets.load("digits")
        >>> train[0].shape, validation[0].shape, test[0].shape
        ((1212, 8, 8, 1), (135, 8, 8, 1), (450, 8, 8, 1))
    """
    require_one_of(NAMES, name=name)
    require_fraction(zero=True, validation=validation)
    require_flags(download=download)
    if name == "camvid":
        train, held, test = camvid(data_dir)
        return train, held, test
    (x, y), test = _train_and_test(name, data_dir, download)
    if name in TAILS:
        x, y = long_tailed(x, y, ratio=TAIL, seed=seed)
    if not validation:
        return (x, y), None, test
    order = generator(seed).permutation(len(y))
    held, kept = np.split(order, [round(validation * len(y))])
    return (x[kept], y[kept]), (x[held], y[held]), test


def _train_and_test(name, data_dir, download):
    if name == "digits":
        return _digits()
    if name == "20newsgroups":
        return newsgroups(data_dir, download)
    if name == "tiny_imagenet":
        return tiny_imagenet(data_dir)
    return _images(TAILS.get(name, name), data_dir, download)


def _digits():
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x, y = x.reshape(-1, 8, 8, 1).astype("float32"), y.astype("int64")
    test = np.arange(len(y)) % 4 == 0
    return (x[~test], y[~test]), (x[test], y[test])


def _images(name, data_dir, download):
    for folder in folders(data_dir):
        if has_packs(folder, name):
            parts = [
                read_part(folder, name, part) for part in ("train", "test")
            ]
            return [(part["x"], part["label"]) for part in parts]
    builder = prepared(name, data_dir)
    if builder is not None:
        return [_of_tfds(builder, part) for part in ("train", "test")]
    if download:
        import keras

        parts = getattr(keras.datasets, name).load_data()
        return [(x, y.reshape(-1).astype("int64")) for x, y in parts]
    raise not_found(
        name,
        data_dir,
        "Put its image packs there, or prepare it with TensorFlow Datasets, or "
        "allow a download with `download=True`.",
    )


def _of_tfds(builder, part):
    rows = list(builder.as_dataset(split=part).as_numpy_iterator())
    x = np.stack([row["image"] for row in rows])
    return x, np.array([row["label"] for row in rows], "int64")


def inexact_images(
    name: str, *, data_dir: str | os.PathLike | None = None
) -> np.ndarray:
    """Indices of training images that are not pixel-exact copies.

    Image packs list them; other sources have none.

    Args:
        name: `"cifar10"` or `"cifar100"`.
        data_dir: see `load`.

    Returns:
        int64 indices into the training data in file order.

    Raises:
        ValueError: for another name.

    Example:
        >>> import keras_calib as kc
        >>> inexact = kc.datasets.inexact_images(
        ...     "cifar10")  # doctest: +SKIP
    """
    require_one_of(IMAGES, name=name)
    for folder in folders(data_dir):
        if has_packs(folder, name):
            return read_part(folder, name, "train")["inexact"]
    return np.zeros(0, "int64")
