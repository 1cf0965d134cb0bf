"""The papers' networks with their stems; all give logits."""

import functools

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
    "resnet110": ((18, 18, 18), 16, False),
    "resnet18": ((2, 2, 2, 2), 64, False),
    "resnet34": ((3, 4, 6, 3), 64, False),
    "resnet50": ((3, 4, 6, 3), 64, True),
    "resnet101": ((3, 4, 23, 3), 64, True),
    "resnet152": ((3, 8, 36, 3), 64, True),
}


def build(
    name,
    num_classes=10,
    *,
    side=32,
    width=None,
    inputs=None,
    dropout=0.0,
    dtype="uint8",
):
    """A network for small images by name.

    Args:
        name: a key of `RESNETS` or `OTHERS`.
        num_classes: int.
        side: int, height and width of the images.
        width: channels of the first stage; the published number by default.
        inputs: a preprocessing layer that the images pass first, or `None`.
        dropout: float, probability that a feature is dropped before the last
            layer.
        dtype: of the images that `inputs` takes.

    Returns:
        A Functional model from `(batch, side, side, 3)` to logits.
    """
    dtype = dtype if inputs is not None else None
    images = keras.Input((side, side, 3), dtype=dtype)
    x = images if inputs is None else inputs(images)
    x = OTHERS[name](x, width) if name in OTHERS else resnet(x, name, width)
    # Pooling and logits stay in float32 under a mixed policy.
    if len(x.shape) == 4:
        x = layers.GlobalAveragePooling2D(dtype="float32")(x)
    if dropout:
        x = layers.Dropout(dropout, dtype="float32")(x)
    return keras.Model(images, layers.Dense(num_classes, dtype="float32")(x))


def resnet(x, name, width=None, stem=None, dropped=0.0):
    """The features of a residual network.

    Args:
        x: images.
        name: key of `RESNETS`.
        width: channels of the first stage; the published number by default.
        stem: features of the images, instead of those of a 3 x 3 convolution.
        dropped: probability that training leaves out the last block; that of
            the others grows to it linearly (Huang et al. 2016).
    """
    blocks, channels, bottleneck = RESNETS[name]
    channels = width or channels
    x = layers.ReLU()(convolution(x, channels, 3)) if stem is None else stem
    number = 0
    for stage, count in enumerate(blocks):
        for block in range(count):
            number += 1
            stride = 2 if stage and block == 0 else 1
            rate = dropped * number / sum(blocks)
            x = residual(x, channels * 2**stage, stride, bottleneck, rate)
    return x


def residual(x, channels, stride, bottleneck, dropped=0.0):
    """A basic or bottleneck block with its shortcut (1 x 1 where needed)."""
    out = channels * 4 if bottleneck else channels
    y = layers.ReLU()(convolution(x, channels, 1)) if bottleneck else x
    y = layers.ReLU()(convolution(y, channels, 3, stride))
    y = convolution(y, out, 1 if bottleneck else 3)
    if dropped:
        # Of each image, the whole block or nothing.
        y = layers.Dropout(dropped, noise_shape=(None, 1, 1, 1))(y)
    if stride > 1 or x.shape[-1] != out:
        x = convolution(x, out, 1, stride)
    return layers.ReLU()(layers.add([x, y]))


def convolution(x, channels, kernel, stride=1):
    """Convolution and batch normalization."""
    return normalized(kernel_of(x, channels, kernel, stride))


def kernel_of(x, channels, kernel, stride=1):
    """Convolution without a bias."""
    return layers.Conv2D(
        channels,
        kernel,
        stride,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
    )(x)


def normalized(x):
    """Batch normalization with PyTorch's momentum and epsilon."""
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)


def wide_resnet(x, width=None):
    """Zagoruyko and Komodakis' WRN-28-10: three stages of four blocks."""
    x = kernel_of(x, 16, 3)
    for stage in range(3):
        channels = (width or 160) * 2**stage
        for block in range(4):
            stride = 2 if stage and block == 0 else 1
            y = layers.ReLU()(normalized(x))
            if block == 0:  # the shortcut, from what is normalized
                x = kernel_of(y, channels, 1, stride)
            y = kernel_of(y, channels, 3, stride)
            y = kernel_of(layers.ReLU()(normalized(y)), channels, 3)
            x = layers.add([x, y])
    return layers.ReLU()(normalized(x))


def densenet(x, width=None):
    """Huang et al.'s DenseNet-40: three blocks of twelve, growth 12."""
    growth = width or 12
    x = kernel_of(x, 16, 3)
    for block in range(3):
        for _ in range(12):
            y = kernel_of(layers.ReLU()(normalized(x)), growth, 3)
            x = layers.concatenate([x, y])
        if block < 2:
            x = kernel_of(layers.ReLU()(normalized(x)), x.shape[-1], 1)
            x = layers.AveragePooling2D(2)(x)
    return layers.ReLU()(normalized(x))


def imagenet_densenet(x, width=None):
    """Huang et al.'s DenseNet-161, with bottlenecks and compression."""
    growth = width or 48
    x = large_stem(x, 2 * growth)
    for block, layers_of_it in enumerate((6, 12, 36, 24)):
        if block:
            x = kernel_of(layers.ReLU()(normalized(x)), x.shape[-1] // 2, 1)
            x = layers.AveragePooling2D(2)(x)
        for _ in range(layers_of_it):
            y = kernel_of(layers.ReLU()(normalized(x)), 4 * growth, 1)
            y = kernel_of(layers.ReLU()(normalized(y)), growth, 3)
            x = layers.concatenate([x, y])
    return layers.ReLU()(normalized(x))


def large_stem(x, channels):
    """The stem for large images: 7 x 7, then pooling."""
    x = layers.ReLU()(convolution(x, channels, 7, 2))
    return layers.MaxPooling2D(3, 2, padding="same")(x)


def vision_transformer(x, width=None, depth=8, heads=4):
    """A small vision transformer: 8 x 8 patches, eight blocks, mean of all.

    Args:
        x: images.
        width: length of a patch's vector, 192 by default.
        depth: number of blocks.
        heads: of the attention.
    """
    width, patch = width or 192, x.shape[1] // 8
    x = layers.Conv2D(width, patch, patch)(x)
    x = layers.Reshape((-1, width))(x)
    x = Places()(x)
    for _ in range(depth):
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        y = layers.MultiHeadAttention(heads, width // heads)(y, y)
        x = layers.add([x, y])
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        y = layers.Dense(4 * width, activation="gelu")(y)
        x = layers.add([x, layers.Dense(width)(y)])
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    return layers.GlobalAveragePooling1D(dtype="float32")(x)


@keras.saving.register_keras_serializable(package="keras_calib_examples")
class Places(layers.Layer):
    """Adds a learned vector for each place."""

    def build(self, shape):
        self.vectors = self.add_weight(
            shape=shape[1:],
            initializer=keras.initializers.TruncatedNormal(stddev=0.02),
            name="vectors",
        )

    def call(self, x):
        return x + self.vectors


def plain(x, width=None):
    """Three convolutions with pooling: Diff-DML's auxiliary "CNN".

    The paper does not describe its own.
    """
    for level in range(3):
        x = layers.ReLU()(convolution(x, (width or 32) * 2**level, 3))
        x = layers.MaxPooling2D()(x)
    return x


def imagenet_resnet(x, width=None, *, name):
    """`resnet` with the stem for large images."""
    stem = large_stem(x, width or RESNETS[name][1])
    return resnet(x, name, width, stem)


# Other networks: functions of images and width that give features.
OTHERS = {
    "resnet110sd": lambda x, width=None: resnet(
        x, "resnet110", width, dropped=0.5
    ),
    "wrn28-10": wide_resnet,
    "densenet40": densenet,
    "vit": vision_transformer,
    "cnn": plain,
    **{
        f"{name}, 7 x 7 stem": functools.partial(imagenet_resnet, name=name)
        for name in ("resnet50", "resnet101", "resnet152")
    },
    "densenet161, 7 x 7 stem": imagenet_densenet,
}


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


def deeplab(
    num_classes,
    *,
    side,
    inputs,
    filters=(64, 128, 256, 512),
    blocks=(3, 4, 6, 3),
):
    """DeepLabV3+ on a ResNet-50, from KerasHub, begun at random.

    Args:
        num_classes: int.
        side: int, height and width of the images.
        inputs: the preprocessing layer.
        filters: of the four stages.
        blocks: of the four stages.
    """
    import keras_hub

    encoder = keras_hub.models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[7],
        stackwise_num_filters=list(filters),
        stackwise_num_blocks=list(blocks),
        stackwise_num_strides=[1, 2, 2, 2],
        block_type="bottleneck_block",
        image_shape=(side, side, 3),
    )
    body = keras_hub.models.DeepLabV3Backbone(
        image_encoder=encoder,
        spatial_pyramid_pooling_key="P5",
        upsampling_size=8,
        dilation_rates=[6, 12, 18],
        low_level_feature_key="P2",
        image_shape=(side, side, 3),
    )
    images = keras.Input((side, side, 3), dtype="float32")
    x = layers.Conv2D(num_classes, 1, dtype="float32")(body(inputs(images)))
    factor = side // x.shape[1]
    if factor > 1:
        x = layers.UpSampling2D(
            factor, interpolation="bilinear", dtype="float32"
        )(x)
    return keras.Model(images, x)


def twice(x, channels):
    """Two convolutions of a U-Net."""
    for _ in range(2):
        x = layers.ReLU()(convolution(x, channels, 3))
    return x
