"""`load`: one call for every data set, wherever its files lie."""

import os
import pathlib
from typing import TypeAlias

import numpy as np

from keras_calib.datasets._packs import has_packs
from keras_calib.datasets._packs import read_part

NAMES = ("cifar10", "cifar100", "digits")
Part: TypeAlias = tuple[np.ndarray, np.ndarray]


def load(
    name: str,
    *,
    data_dir: str | os.PathLike | None = None,
    validation: float = 0.1,
    seed: int = 0,
    download: bool = False,
) -> tuple[Part, Part | None, Part]:
    """Load a data set as arrays, split as the papers split it.

    Args:
        name: `"cifar10"`, `"cifar100"` or `"digits"`.
        data_dir: folder with the data: image packs (`cifar10_train_a.npz`,
            ...) or what TensorFlow Datasets prepared. Defaults to the
            environment variables `KERAS_CALIB_DATA`, then `TFDS_DATA_DIR`.
        validation: float, the fraction of the training data that is held
            out, chosen by `seed`; 0 keeps the training data in file order and
            returns `None` for the validation data.
        seed: int.
        download: whether `keras.datasets` may download what is not there.

    Returns:
        `train, validation, test`, each `(x, y)`: uint8 images
        `(n, 32, 32, 3)`, int64 class ids `(n,)`. `"digits"` has float32 images
        `(n, 8, 8, 1)` in [0, 16]; its test part is every fourth image.

    Raises:
        ValueError: if `name` or `validation` is not valid.
        FileNotFoundError: if the data is not there; the message says where it
            was looked for.

    Example:
        >>> import keras_calib as kc
        >>> train, validation, test = kc.datasets.load("digits")
        >>> train[0].shape, validation[0].shape, test[0].shape
        ((1212, 8, 8, 1), (135, 8, 8, 1), (450, 8, 8, 1))
    """
    if name not in NAMES:
        raise ValueError(
            f"`name` must be one of {', '.join(NAMES)}. "
            f"Received: name={name!r}."
        )
    if not 0 <= validation < 1:
        raise ValueError(
            "`validation` is a fraction of the training data, in [0, 1). "
            f"Received: validation={validation}."
        )
    if name == "digits":
        (x, y), test = _digits()
    else:
        (x, y), test = _images(name, data_dir, download)
    if not validation:
        return (x, y), None, test
    order = np.random.default_rng(seed).permutation(len(y))
    held, kept = np.split(order, [round(validation * len(y))])
    return (x[kept], y[kept]), (x[held], y[held]), test


def _digits():
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x, y = x.reshape(-1, 8, 8, 1).astype("float32"), y.astype("int64")
    test = np.arange(len(y)) % 4 == 0
    return (x[~test], y[~test]), (x[test], y[test])


def _images(name, data_dir, download):
    folders = [data_dir]
    if data_dir is None:
        variables = ("KERAS_CALIB_DATA", "TFDS_DATA_DIR")
        folders = [os.environ[key] for key in variables if key in os.environ]
    for folder in folders:
        if has_packs(folder, name):
            parts = [
                read_part(folder, name, part) for part in ("train", "test")
            ]
            return [(part["x"], part["label"]) for part in parts]
        if (pathlib.Path(folder) / name).is_dir():
            return _from_tfds(name, folder)
    if download:
        import keras

        parts = getattr(keras.datasets, name).load_data()
        return [(x, y.reshape(-1).astype("int64")) for x, y in parts]
    raise FileNotFoundError(
        f"{name} was not found in {folders or 'any folder'}. Set "
        "KERAS_CALIB_DATA to a folder with its image packs, or TFDS_DATA_DIR "
        "to a folder prepared by TensorFlow Datasets, pass `data_dir=`, or "
        "allow a download with `download=True`."
    )


def _from_tfds(name, folder):
    import tensorflow_datasets as tfds

    parts = []
    for part in ("train", "test"):
        data = tfds.load(name, split=part, data_dir=folder, download=False)
        rows = list(tfds.as_numpy(data))
        x = np.stack([row["image"] for row in rows])
        parts.append((x, np.array([row["label"] for row in rows], "int64")))
    return parts


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

    Example:
        >>> import keras_calib as kc
        >>> inexact = kc.datasets.inexact_images(
        ...     "cifar10")  # doctest: +SKIP
    """
    folder = data_dir or os.environ.get("KERAS_CALIB_DATA", "")
    if has_packs(folder, name):
        return read_part(folder, name, "train")["inexact"]
    return np.zeros(0, "int64")
