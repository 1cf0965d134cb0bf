"""`stream`: batches of data sets that are too large for arrays."""

import os
from typing import Any

from keras_calib.datasets._folders import not_found
from keras_calib.datasets._prepared import prepared
from keras_calib.datasets._voc import voc
from keras_calib.inputs.arguments import require
from keras_calib.inputs.arguments import require_fraction
from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.arguments import require_one_of

# Name in TensorFlow Datasets, and its part that the papers test on.
SOURCES = {
    "imagenet2012": ("imagenet2012", "validation"),
    "cub": ("caltech_birds2011", "test"),
}
NAMES = (*SOURCES, "voc2012")
PARTS = ("train", "validation", "test")
# The shorter side before a crop, over the side of the crop.
ENLARGED = 256 / 224
# Images that are shuffled at a time.
SHUFFLED = 10_000


def stream(
    name: str,
    part: str,
    *,
    image_size: int = 224,
    batch_size: int = 64,
    validation: float = 0.1,
    seed: int = 0,
    data_dir: str | os.PathLike | None = None,
) -> Any:
    """Batches for `fit`, `evaluate` or `kc.calibrate`, read as they are needed.

    - `"imagenet2012"` and `"cub"` (Caltech-UCSD Birds 200-2011), prepared by
      TensorFlow Datasets. The test part of ImageNet is its official validation
      part.
    - `"voc2012"`: segmentation, from the official folder
      `VOCdevkit/VOC2012`: 21 classes, of which 0 is the background, and 255
      for void. The training part is `trainaug.txt` with
      `SegmentationClassAug`, where they are there, else `train.txt`; the test
      part is `val.txt`.

    Training images of the first two are random crops of 8 to 100 % of the area
    and mirrored at random; the others are cut from the center, after the
    shorter side was made 256 / 224 of `image_size`. Images of `"voc2012"` keep
    their scale: a window of `image_size`, at a random place and mirrored at
    random in training, and from the center otherwise; what lies outside of the
    image is black and void.

    Args:
        name: see above.
        part: `"train"`, `"validation"` or `"test"`.
        image_size: int, side of the square images.
        batch_size: int. The last batch may be smaller.
        validation: float, the fraction of the official training part that is
            the validation part: its first images, in the order of the files.
        seed: int, of the order, the crops and the mirrors in training.
        data_dir: folder with the data. Defaults to the environment variables
            `KERAS_CALIB_DATA`, then `TFDS_DATA_DIR`.

    Returns:
        A `tf.data.Dataset`, or for `"voc2012"` a `keras.utils.PyDataset`, of
        `(images, labels)`: float32 images `(batch, image_size, image_size, 3)`
        in [0, 255], and class ids `(batch,)`, for `"voc2012"`
        `(batch, image_size, image_size)`.

    Raises:
        ValueError: if an argument is not valid.
        FileNotFoundError: if the data is not there.

    Example:
        >>> import keras_calib as kc
        >>> train = kc.datasets.stream(
        ...     "imagenet2012", "train", batch_size=256)  # doctest: +SKIP

    Reference:
        Liu et al., "The Devil is in the Margin: Margin-based Label Smoothing
        for Network Calibration", CVPR 2022, Section 5.1, for the data sets.
    """
    require_one_of(NAMES, name=name)
    require_one_of(PARTS, part=part)
    require_integer(1, image_size=image_size, batch_size=batch_size)
    require_fraction(zero=True, validation=validation)
    require_integer(0, seed=seed)
    require(
        part != "validation" or validation > 0,
        "With `validation=0` there is no validation part.",
        part=part,
        validation=validation,
    )
    settings = {"image_size": image_size, "batch_size": batch_size}
    if name == "voc2012":
        return voc(data_dir, part, validation, seed, **settings)
    return _of_tfds(name, part, validation, seed, data_dir, **settings)


def _of_tfds(name, part, validation, seed, data_dir, image_size, batch_size):
    import tensorflow as tf

    source, test = SOURCES[name]
    builder = prepared(source, data_dir)
    if builder is None:
        raise not_found(
            name,
            data_dir,
            f"Prepare {source} with TensorFlow Datasets "
            f"(`tfds build {source}`, after its notes on a manual download).",
        )
    cut = round(validation * builder.info.splits["train"].num_examples)
    slices = {
        "train": f"train[{cut}:]",
        "validation": f"train[:{cut}]",
        "test": test,
    }
    data = builder.as_dataset(split=slices[part])
    if part == "train":
        # Each epoch has other crops: they are drawn by a count that goes on.
        data = data.shuffle(SHUFFLED, seed, reshuffle_each_iteration=True)
        draws = tf.data.Dataset.random(seed, rerandomize_each_iteration=True)
        data = tf.data.Dataset.zip(data, draws.batch(4))

    # It has nothing that AutoGraph would have to convert.
    @tf.autograph.experimental.do_not_convert
    def prepare(row, *draw):
        image = tf.cast(row["image"], "float32")
        cut_out = _random_crop if draw else _from_center
        return cut_out(tf, image, image_size, *draw), row["label"]

    data = data.map(prepare, num_parallel_calls=tf.data.AUTOTUNE)
    return data.batch(batch_size).prefetch(tf.data.AUTOTUNE)


def _from_center(tf, image, size):
    shape = tf.cast(tf.shape(image)[:2], "float32")
    factor = ENLARGED * size / tf.reduce_min(shape)
    enlarged = tf.cast(tf.math.ceil(shape * factor), "int32")
    image = tf.image.resize(image, enlarged, antialias=True)
    top, left = tf.unstack((enlarged - size) // 2)
    return tf.image.crop_to_bounding_box(image, top, left, size, size)


def _random_crop(tf, image, size, draw):
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.shape(image),
        tf.zeros((1, 0, 4)),
        seed=draw[:2],
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.08, 1.0),
        use_image_if_no_bounding_boxes=True,
    )
    image = tf.slice(image, begin, extent)
    image = tf.image.resize(image, (size, size), antialias=True)
    image = tf.ensure_shape(image, (size, size, 3))
    return tf.image.stateless_random_flip_left_right(image, seed=draw[2:])
