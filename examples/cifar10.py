"""CIFAR-10 as arrays, and residual networks for it: what examples share."""

import keras
import numpy as np
from keras import layers

import keras_calib as kc

MEAN = (0.4914, 0.4822, 0.4465)
DEVIATION = (0.2470, 0.2435, 0.2616)


def load(train=None, test=None, *, download=False):
    """Standardised images and labels, in the order of the files.

    Args:
        train: how many training images, all by default. The order of the
            files is random, so the first ones are a fair sample.
        test: how many test images, all by default.
        download: whether to download what `kc.datasets.load` does not find.

    Returns:
        `(x, y), (x_test, y_test)`: float32 `(n, 32, 32, 3)`, int32 `(n,)`.
    """
    first, _, second = kc.datasets.load(
        "cifar10", validation=0, download=download
    )
    return [
        (standardise(x[:count]), y[:count].astype("int32"))
        for (x, y), count in ((first, train), (second, test))
    ]


def standardise(images):
    """Bytes to float32 with zero mean and unit deviation per channel."""
    return ((images / 255 - MEAN) / DEVIATION).astype("float32")


class Augmented(keras.utils.PyDataset):
    """Batches in a new order each epoch, randomly shifted and mirrored.

    Args:
        x: images, `(n, height, width, channels)`.
        y: labels, `(n,)`.
        batch_size: int; the last, smaller batch is left out.
        shift: int, by how many pixels at most.
        seed: int.
        **kwargs: `workers`, as in Keras.
    """

    def __init__(self, x, y, batch_size, shift=4, seed=0, **kwargs):
        super().__init__(**kwargs)
        self.y = y
        self.batch_size = batch_size
        self.shift = shift
        self.shape = x.shape[1:3]
        pad = ((0, 0), (shift, shift), (shift, shift), (0, 0))
        self.padded = np.pad(x, pad)
        self.generator = np.random.default_rng(seed)
        self.on_epoch_begin()

    def __len__(self):
        return len(self.y) // self.batch_size

    def on_epoch_begin(self):
        count = len(self.y)
        self.order = self.generator.permutation(count)
        self.corners = self.generator.integers(
            0, 2 * self.shift + 1, size=(count, 2)
        )
        self.mirror = self.generator.random(count) < 0.5

    def __getitem__(self, index):
        part = slice(index * self.batch_size, (index + 1) * self.batch_size)
        rows = self.order[part]
        windows = np.lib.stride_tricks.sliding_window_view(
            self.padded, self.shape, axis=(1, 2)
        )
        top, left = self.corners[part].T
        # Windows have the channels before height and width.
        x = windows[rows, top, left].transpose(0, 2, 3, 1)
        mirror = self.mirror[part][:, None, None, None]
        return np.where(mirror, x[:, :, ::-1], x), self.y[rows]


def resnet(blocks, width, stride=1, num_classes=10, name=None):
    """A residual network of basic blocks that gives logits.

    `resnet((1, 1, 1), 16)` is ResNet-8, `(3, 3, 3)` ResNet-20;
    `resnet((2, 2, 2, 2), 64)` is ResNet-18 and `(3, 4, 6, 3)` ResNet-34, both
    with the 3 x 3 first convolution that is usual for small images.

    Args:
        blocks: how many blocks per stage; each stage halves the image.
        width: channels of the first stage; each stage doubles them.
        stride: of the first convolution; 2 is four times cheaper.
        num_classes: int.
        name: name of the model.

    Returns:
        A Functional model.
    """
    inputs = keras.Input((32, 32, 3))
    x = layers.ReLU()(_convolution(inputs, width, 3, stride))
    for stage, count in enumerate(blocks):
        for block in range(count):
            halve = 2 if stage and block == 0 else 1
            x = _basic_block(x, width * 2**stage, halve)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(num_classes)(x), name=name)


def _basic_block(x, channels, stride):
    y = layers.ReLU()(_convolution(x, channels, 3, stride))
    y = _convolution(y, channels, 3, 1)
    if stride > 1 or x.shape[-1] != channels:
        x = _convolution(x, channels, 1, stride)
    return layers.ReLU()(layers.add([x, y]))


def _convolution(x, channels, kernel, stride):
    x = layers.Conv2D(
        channels,
        kernel,
        stride,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
    )(x)
    return layers.BatchNormalization(momentum=0.9)(x)
