"""The papers' networks for small images, with their stems; all give logits."""

import keras
from keras import layers

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
