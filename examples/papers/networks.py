"""The papers' networks with their stems; all give logits."""

import keras
import numpy as np
from keras import layers
from keras import ops

# Blocks per stage, channels of the first stage, and whether blocks are
# bottlenecks. The small ones are He et al.'s CIFAR networks (three stages),
# the large ones their ImageNet networks with the 3 x 3 stem that the papers
# use for 32 x 32 images.
RESNETS = {
    "resnet8": ((1, 1, 1), 16, False),
    "resnet20": ((3, 3, 3), 16, False),
    "resnet18": ((2, 2, 2, 2), 64, False),
    "resnet34": ((3, 4, 6, 3), 64, False),
    "resnet50": ((3, 4, 6, 3), 64, True),
    "resnet101": ((3, 4, 23, 3), 64, True),
}


def build(
    name, num_classes=10, *, side=32, width=None, inputs=None, dropout=0.0
):
    """A residual network by name.

    Args:
        name: a key of `RESNETS`.
        num_classes: int.
        side: int, height and width of the images.
        width: channels of the first stage; the published number by default.
        inputs: a preprocessing layer that the images pass first, or `None`.
        dropout: float, probability that a feature is dropped before the last
            layer.

    Returns:
        A Functional model from `(batch, side, side, 3)` to logits.
    """
    blocks, channels, bottleneck = RESNETS[name]
    channels = width or channels
    dtype = "uint8" if inputs is not None else None
    images = keras.Input((side, side, 3), dtype=dtype)
    x = images if inputs is None else inputs(images)
    x = layers.ReLU()(convolution(x, channels, 3))
    for stage, count in enumerate(blocks):
        for block in range(count):
            stride = 2 if stage and block == 0 else 1
            x = residual(x, channels * 2**stage, stride, bottleneck)
    # Pooling and logits stay in float32 under a mixed policy.
    x = layers.GlobalAveragePooling2D(dtype="float32")(x)
    if dropout:
        x = layers.Dropout(dropout, dtype="float32")(x)
    return keras.Model(images, layers.Dense(num_classes, dtype="float32")(x))


def residual(x, channels, stride, bottleneck):
    """A basic or bottleneck block with its shortcut (1 x 1 where needed)."""
    out = channels * 4 if bottleneck else channels
    y = layers.ReLU()(convolution(x, channels, 1)) if bottleneck else x
    y = layers.ReLU()(convolution(y, channels, 3, stride))
    y = convolution(y, out, 1 if bottleneck else 3)
    if stride > 1 or x.shape[-1] != out:
        x = convolution(x, out, 1, stride)
    return layers.ReLU()(layers.add([x, y]))


def convolution(x, channels, kernel, stride=1):
    """Convolution and batch normalization, PyTorch's momentum and epsilon."""
    x = layers.Conv2D(
        channels,
        kernel,
        stride,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
    )(x)
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)


# Input of the published networks: ImageNet's statistics, in bytes.
PUBLISHED_MEAN = (123.675, 116.28, 103.53)
PUBLISHED_DEVIATION = (58.395, 57.12, 57.375)


def published(path, *, inputs):
    """The published residual network for CIFAR-10 whose weights are in a file.

    He et al.'s network with shortcuts without weights ("option A"), as trained
    by akamaster/pytorch_resnet_cifar10. The file names its arrays as the
    state dict does, so that it also tells the depth.

    Args:
        path: of the `.npz` file.
        inputs: the preprocessing layer.

    Returns:
        A Functional model from uint8 `(batch, 32, 32, 3)` to 10 logits.
    """
    with np.load(path, allow_pickle=False) as file:
        state = {key: file[key] for key in file.files}
    blocks = len({key.split(".")[1] for key in state if key[:7] == "layer1."})
    images = keras.Input((32, 32, 3), dtype="uint8")
    found = {}

    def unit(x, prefix, number, stride=1):
        """Convolution and batch normalization, padded as in PyTorch."""
        kernel = state[f"{prefix}conv{number}.weight"].transpose(2, 3, 1, 0)
        convolve = layers.Conv2D(
            kernel.shape[3], 3, stride, padding="valid", use_bias=False
        )
        normalize = layers.BatchNormalization(momentum=0.9, epsilon=1e-5)
        found[convolve] = [kernel]
        keys = ("weight", "bias", "running_mean", "running_var")
        found[normalize] = [state[f"{prefix}bn{number}.{key}"] for key in keys]
        return normalize(convolve(layers.ZeroPadding2D(1)(x)))

    x = layers.ReLU()(unit(inputs(images), "", 1))
    for stage in (1, 2, 3):
        for block in range(blocks):
            prefix = f"layer{stage}.{block}."
            stride = 2 if stage > 1 and block == 0 else 1
            y = layers.ReLU()(unit(x, prefix, 1, stride))
            y = unit(y, prefix, 2)
            if stride > 1:
                # A quarter of the new channels before, a quarter after.
                pad = y.shape[-1] // 4
                x = ops.pad(
                    x[:, ::2, ::2], ((0, 0), (0, 0), (0, 0), (pad, pad))
                )
            x = layers.ReLU()(layers.add([x, y]))
    x = layers.GlobalAveragePooling2D()(x)
    dense = layers.Dense(10)
    found[dense] = [state["linear.weight"].T, state["linear.bias"]]
    model = keras.Model(images, dense(x))
    for layer, weights in found.items():
        layer.set_weights(weights)
    return model


def gpcn(num_classes, *, length, words, embedding=100, channels=128):
    """Global pooling convolutional network for text, from word ids to logits.

    The network of the text experiments: three convolutions over five words
    with pooling between them, the maximum over all places, two dense layers.
    The word vectors are learned.

    Args:
        num_classes: int.
        length: int, words of a document.
        words: int, size of the vocabulary.
        embedding: int, length of a word vector.
        channels: int, of convolutions and hidden layer.
    """
    ids = keras.Input((length,), dtype="int32")
    x = layers.Embedding(words, embedding)(ids)
    for step in range(3):
        # Short documents are padded, so that three convolutions fit.
        x = layers.Conv1D(channels, 5, padding="same", activation="relu")(x)
        if step < 2:
            x = layers.MaxPooling1D(5, padding="same")(x)
    x = layers.GlobalMaxPooling1D()(x)
    x = layers.Dense(channels, activation="relu")(x)
    return keras.Model(ids, layers.Dense(num_classes)(x))


def unet(num_classes, *, shape, inputs, width=16, depth=3):
    """A small U-Net from images to logits of every pixel.

    Args:
        num_classes: int.
        shape: height and width; they are padded to what `depth` halvings need.
        inputs: the preprocessing layer.
        width: int, channels of the first level; they double at each level.
        depth: int, how often the image is halved.
    """
    images = keras.Input((*shape, 3), dtype="uint8")
    step = 2**depth
    missing = [-size % step for size in shape]
    before = [(each // 2, each - each // 2) for each in missing]
    x = layers.ZeroPadding2D(before)(inputs(images))
    kept = []
    for level in range(depth):
        x = twice(x, width * 2**level)
        kept.append(x)
        x = layers.MaxPooling2D()(x)
    x = twice(x, width * 2**depth)
    for level in reversed(range(depth)):
        x = layers.UpSampling2D()(x)
        x = twice(layers.concatenate([kept[level], x]), width * 2**level)
    x = layers.Cropping2D(before)(layers.Conv2D(num_classes, 1)(x))
    return keras.Model(images, x)


def twice(x, channels):
    """Two convolutions of a U-Net."""
    for _ in range(2):
        x = layers.ReLU()(convolution(x, channels, 3))
    return x
