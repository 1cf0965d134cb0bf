"""Image packs: lossless WebP mosaics in `.npz` files, read without pickle."""

import io
import itertools
import pathlib

import numpy as np

SIDE = 32
FILES = {
    "train": ("{name}_train_a.npz", "{name}_train_b.npz"),
    "test": ("{name}_test.npz",),
}


def has_packs(folder, name):
    """Whether `folder` holds every pack of data set `name`."""
    files = [file for part in FILES.values() for file in part]
    folder = pathlib.Path(folder)
    return all((folder / file.format(name=name)).is_file() for file in files)


def read_part(folder, name, part):
    """Read one part of a data set.

    Args:
        folder: path of the packs.
        name: `"cifar10"` or `"cifar100"`.
        part: `"train"` or `"test"`.

    Returns:
        A dict: `x`, uint8 `(n, 32, 32, 3)`; `label`, and `coarse` where the
        data set has super-classes, int64 `(n,)`; `inexact`, the indices of
        images that are not pixel-exact copies of the original ones.
    """
    images, inexact, columns, start = [], [], {}, 0
    for file in FILES[part]:
        path = pathlib.Path(folder) / file.format(name=name)
        with np.load(path, allow_pickle=False) as pack:
            images.append(_images(pack))
            for key in ("label", "coarse"):
                if key in pack:
                    columns.setdefault(key, []).append(pack[key])
            if "inexact" in pack:
                inexact.append(pack["inexact"] + start)
        start += len(images[-1])
    found = {k: np.concatenate(v).astype("int64") for k, v in columns.items()}
    found["x"] = np.concatenate(images)
    found["inexact"] = np.concatenate([*inexact, np.zeros(0, "int64")])
    return {**found, "inexact": found["inexact"].astype("int64")}


def image_module():
    """Pillow's, which is imported only where images are read."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "Reading images needs Pillow: pip install pillow."
        ) from error
    return Image


def _images(pack):
    image = image_module()
    data, offsets, count = pack["webp"], pack["offsets"], int(pack["count"])
    tiles = []
    for begin, end in itertools.pairwise(offsets):
        mosaic = image.open(io.BytesIO(data[begin:end].tobytes()))
        pixels = np.asarray(mosaic.convert("RGB"))
        rows, columns = pixels.shape[0] // SIDE, pixels.shape[1] // SIDE
        pixels = pixels.reshape(rows, SIDE, columns, SIDE, 3)
        tiles.append(pixels.swapaxes(1, 2).reshape(-1, SIDE, SIDE, 3)[:1000])
    return np.concatenate(tiles)[:count]
