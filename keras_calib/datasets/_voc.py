"""PASCAL VOC 2012: images with one of 21 classes, or 255 (void), per pixel."""

import keras
import numpy as np

from keras_calib.datasets._folders import find
from keras_calib.datasets._folders import not_found
from keras_calib.datasets._packs import image_module
from keras_calib.inputs.arguments import generator

FOLDERS = ("VOCdevkit/VOC2012", "VOC2012")
VOID = 255
# List of names and folder of labels, the larger one first.
TRAINING = (
    ("trainaug", "SegmentationClassAug"),
    ("train", "SegmentationClass"),
)
TEST = ("val", "SegmentationClass")


def voc(data_dir, part, validation, seed, *, image_size, batch_size):
    """`Windows` of a part; see `stream`."""
    wanted = "Put the official folder VOCdevkit/VOC2012 there."
    path = find(data_dir, *FOLDERS)
    if path is None:
        raise not_found("voc2012", data_dir, wanted)
    lists = path / "ImageSets" / "Segmentation"
    possible = [TEST] if part == "test" else TRAINING
    known = [
        (names, labels)
        for names, labels in possible
        if (lists / f"{names}.txt").exists() and (path / labels).is_dir()
    ]
    if not known:
        names, labels = possible[-1]
        parts = f"ImageSets/Segmentation/{names}.txt and {labels}"
        wanted = f"{path} must hold {parts}. {wanted}"
        raise not_found("voc2012", data_dir, wanted)
    names, labels = known[0]
    found = (lists / f"{names}.txt").read_text().split()
    if part != "test":
        cut = round(validation * len(found))
        found = found[cut:] if part == "train" else found[:cut]
    return Windows(
        images=[path / "JPEGImages" / f"{name}.jpg" for name in found],
        labels=[path / labels / f"{name}.png" for name in found],
        image_size=image_size,
        batch_size=batch_size,
        seed=seed if part == "train" else None,
    )


class Windows(keras.utils.PyDataset):
    """Square windows of images and of their labels, in batches.

    With a seed the order, the places and the mirrors are drawn anew in each
    epoch; without one, windows are from the center and in the files' order.
    """

    def __init__(self, *, images, labels, image_size, batch_size, seed):
        super().__init__()
        self.images, self.labels = images, labels
        self.image_size, self.batch_size = image_size, batch_size
        self.seed, self.epoch = seed, 0
        self._shuffle()

    def __len__(self):
        return -(-len(self.images) // self.batch_size)

    def __getitem__(self, index):
        first = index * self.batch_size
        pairs = [self._pair(i) for i in self.order[first:][: self.batch_size]]
        images, labels = zip(*pairs, strict=True)
        return np.stack(images), np.stack(labels)

    def on_epoch_end(self):
        self.epoch += 1
        self._shuffle()

    def _shuffle(self):
        self.order = np.arange(len(self.images))
        if self.seed is not None:
            rng = generator(self.seed, self.epoch)
            rng.shuffle(self.order)

    def _pair(self, number):
        module, size = image_module(), self.image_size
        image = np.asarray(module.open(self.images[number]).convert("RGB"))
        # The values of a palette are the class ids.
        label = np.asarray(module.open(self.labels[number]))
        corner = np.array([0.5, 0.5])
        mirror = False
        if self.seed is not None:
            rng = generator(self.seed, self.epoch, number)
            corner, mirror = rng.random(2), rng.random() < 0.5
        image = window(image, corner, size, 0).astype("float32")
        label = window(label, corner, size, VOID).astype("int32")
        return (image[:, ::-1], label[:, ::-1]) if mirror else (image, label)


def window(array, place, size, outside):
    """A square of an array; `place` is in [0, 1] along each of two axes."""
    missing = [max(size - length, 0) for length in array.shape[:2]]
    widths = [(each // 2, each - each // 2) for each in missing]
    widths += (array.ndim - 2) * [(0, 0)]
    array = np.pad(array, widths, constant_values=outside)
    room = np.array(array.shape[:2]) - size
    top, left = np.floor(place * (room + 1)).astype(int).clip(max=room)
    return array[top : top + size, left : left + size]
