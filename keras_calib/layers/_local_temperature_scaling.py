"""Local temperature scaling: a temperature per pixel, from image and logits."""

import math
from typing import Any
from typing import Self

import keras
import numpy as np
from keras import ops

from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import generator
from keras_calib.inputs.arguments import require
from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.arguments import require_one_of
from keras_calib.inputs.arguments import require_positive
from keras_calib.inputs.arrays import LOWEST
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.calibration_rows import checked_rows
from keras_calib.inputs.calibration_rows import group_of_rows
from keras_calib.inputs.predictions import as_maps
from keras_calib.inputs.tensors import maximum
from keras_calib.layers._base import CalibrationLayer
from keras_calib.layers._decision import classes
from keras_calib.layers._local_fit import Maps
from keras_calib.layers._local_fit import fit_local

KERNEL, DILATION = 5, 2
PADDING = DILATION * (KERNEL - 1) // 2
FLOOR = 1e-3
# softplus(OFFSET) + FLOOR is 1.
OFFSET = math.log(math.expm1(1 - FLOOR))
# An image unlike those of the fit must not make probabilities 0 in float32.
LEAST = 0.1


@keras.saving.register_keras_serializable(package="keras_calib")
class LocalTemperatureScaling(CalibrationLayer):
    """Divide the logits of each pixel by a temperature of its own (LTS).

        z'_x  = z_x / (T0 T_x)
        T_x   = max(softplus(mix_x + softplus^-1(0.999)) + 0.001, 0.1)
        mix   = g4 inner + (1 - g4) c(image)
        inner = g3 (g1 c1 + (1 - g1) c2) + (1 - g3) (g2 c3 + (1 - g2) c4)

    `c` and `c1` to `c4` are 5 x 5 convolutions (dilation 2, reflect padding) of
    the image and of the logits, the gates `g1` to `g4` sigmoids of such. `T0`
    is the temperature of temperature scaling. Predicted classes do not change.
    Before `adapt`, `c` is 0 everywhere, and the layer is the identity.

    `adapt` fits `T0` first, then minimizes the mean NLL over pixels by Adam on
    batches of images. A fifth of the images is held out and decides the epoch;
    temperature scaling is kept (`T_x = 1`) unless the held-out NLL is lower by
    two standard errors, with images as units, and the NLL of all calibration
    images is lower, too. Few images rarely pass: 5 are needed, tens are useful.
    With `groups` (drives, patients) whole groups take the place of images.

    It differs from the authors' code, which starts at `T = 2`, uses a relu that
    can reach 1e-8 with a gradient of 0, gates that start equal and stay so, and
    no mask for void labels. Image channels and logits are standardized.

    Args:
        epochs: int, largest number of passes over the images.
        patience: int, epochs without a lower held-out NLL before the fit ends.
        batch_size: int, images per step, 4 in the paper.
        learning_rate: float, of Adam.
        seed: int, for the split, the order of images and the gates.
        normalize_logits: `"mean"`, the convolutions see logits minus their
            mean over classes, so that log-probabilities give the same result;
            or `None`, as in the authors' code.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Call arguments:
        inputs: `[images, logits]`, `(batch, height, width, channels)` and
            `(batch, height, width, num_classes)`; at least 5 pixels wide and
            high.

    Returns:
        Calibrated logits, `(batch, height, width, num_classes)`.

    Raises:
        ValueError: if an argument is invalid, or images and logits do not fit.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> rng = np.random.default_rng(0)
        >>> images = rng.uniform(size=(6, 8, 8, 3))
        >>> logits = 3 * rng.normal(size=(6, 8, 8, 4))
        >>> labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(-1)
        >>> layer = kc.layers.LocalTemperatureScaling(epochs=1)
        >>> layer = layer.adapt([images, logits], labels)
        >>> layer([images, logits]).shape == logits.shape
        True

    Reference:
        Ding et al., "Local Temperature Scaling for Probability Calibration",
        ICCV 2021, arXiv:2008.05105.
    """

    preserves_accuracy = True
    settings = (
        "epochs",
        "patience",
        "batch_size",
        "learning_rate",
        "seed",
        "normalize_logits",
    )

    def __init__(
        self,
        *,
        epochs: int = 50,
        patience: int = 5,
        batch_size: int = 4,
        learning_rate: float = 3e-3,
        seed: int = 0,
        normalize_logits: str | None = "mean",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        require_integer(
            1, epochs=epochs, patience=patience, batch_size=batch_size
        )
        require_integer(0, seed=seed)
        require_positive(learning_rate=learning_rate)
        require_one_of((None, "mean"), normalize_logits=normalize_logits)
        self.epochs = epochs
        self.patience = patience
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.seed = seed
        self.normalize_logits = normalize_logits
        self.shift_invariant = normalize_logits is not None

    def build(self, input_shape: list) -> None:
        images, logits = (tuple(shape) for shape in input_shape)
        _check_shapes(images, logits)
        channels, num_classes = images[-1], max(2, logits[-1])
        gates = generator(self.seed).normal(
            scale=0.1, size=(KERNEL, KERNEL, num_classes, 8)
        )
        # Equal gates would have equal gradients, and stay equal.
        gates[..., :4] = 0.0
        self._add("kernel", gates)
        self._add("bias", np.zeros(8))
        self._add("image_kernel", np.zeros((KERNEL, KERNEL, channels, 1)))
        self._add("image_bias", np.zeros(1))
        self._add("log_temperature", 0.0, trainable=False)
        self._add("logit_scale", 1.0, trainable=False)
        self._add("image_mean", np.zeros(channels), trainable=False)
        self._add("image_scale", np.ones(channels), trainable=False)
        self.built = True

    def check_inputs(self, inputs: Any) -> None:
        if not isinstance(inputs, list | tuple) or len(inputs) != 2:
            raise ValueError(
                "LocalTemperatureScaling takes two tensors, `[images, "
                f"logits]`. Received: inputs of type {type(inputs).__name__}."
            )
        for tensor in inputs:
            super().check_inputs(tensor)

    def refuse_probabilities(self, inputs: Any) -> None:
        super().refuse_probabilities(inputs[1])  # and the images are anything

    def call(self, inputs: Any) -> Tensor:
        images, logits = inputs
        _check_shapes(_known(images.shape), _known(logits.shape))
        if logits.shape[0] == 0:
            # TensorFlow and PyTorch can neither pad nor convolve no images.
            return ops.cast(logits, self.compute_dtype)
        if keras.backend.backend() != "tensorflow" or logits.shape[0]:
            return logits / self.temperatures(images, logits)[..., None]
        # A graph of TensorFlow learns the number of images when it runs.
        some = [_at_least_one(tensor) for tensor in (images, logits)]
        count = ops.shape(logits)[0]
        return logits / self.temperatures(*some)[:count, ..., None]

    def temperatures(self, images: Tensor, logits: Tensor) -> Tensor:
        """The temperature of each pixel, `(batch, height, width)`."""
        images = ops.cast(images, self.compute_dtype)
        images = (images - self.image_mean) / self.image_scale
        z = self._standardized(classes(ops.cast(logits, self.compute_dtype)))
        c1, c2, c3, c4, *gates = ops.unstack(
            _convolve(z, self.kernel) + self.bias, 8, axis=-1
        )
        g1, g2, g3, g4 = (ops.sigmoid(gate) for gate in gates)
        left = g1 * c1 + (1 - g1) * c2
        right = g2 * c3 + (1 - g2) * c4
        inner = g3 * left + (1 - g3) * right
        of_image = _convolve(images, self.image_kernel) + self.image_bias
        mix = g4 * inner + (1 - g4) * of_image[..., 0]
        local = maximum(ops.softplus(mix + OFFSET) + FLOOR, LEAST)
        return ops.exp(self.log_temperature) * local

    def _standardized(self, z):
        # A class that is ruled out must not make the mean infinite.
        possible = z > LOWEST
        z = ops.where(possible, z, 0.0)
        if self.normalize_logits is not None:
            count = ops.sum(ops.cast(possible, z.dtype), axis=-1, keepdims=True)
            mean = ops.sum(z, axis=-1, keepdims=True) / maximum(count, 1.0)
            z = ops.where(possible, z - mean, 0.0)
        return z / self.logit_scale

    def degrees_of_freedom(self, num_classes: int) -> int:
        # Pixels are not independent samples: held-out images decide.
        return 1

    def adapt(
        self,
        logits: Any,
        labels: Any,
        sample_weight: Any = None,
        *,
        objective: Any = "nll",
        class_loss_scaling: Any = None,
        ignore_class: int | None = None,
        groups: Any = None,
    ) -> Self:
        """Fit the layer to calibration images, held out from training.

        Args:
            logits: the pair `[images, logits]`, see the class.
            labels: class ids, `(n, height, width)` or `(..., 1)`, or one-hot
                rows.
            sample_weight: `None`, or weights >= 0, which broadcast to
                `(n, height, width)` from the left.
            objective: `"nll"`.
            class_loss_scaling: `None`.
            ignore_class: pixels with this label are ignored.
            groups: ids of groups of images that are alike (drive, patient),
                one per image; whole groups are held out, and are the units of
                the standard error. By default each image is a group.

        Returns:
            The layer itself.

        Raises:
            ValueError: for invalid input; the layer is then unchanged.
        """
        if objective != "nll" or class_loss_scaling is not None:
            raise ValueError(
                "LocalTemperatureScaling minimizes the NLL. Received: "
                f"objective={objective!r}, class_loss_scaling="
                f"{class_loss_scaling!r}. Leave them out."
            )
        require(
            isinstance(logits, list | tuple) and len(logits) == 2,
            "Logits come with their images, as the pair `[images, logits]`.",
            type=type(logits).__name__,
        )
        images, scores = map(as_array, logits)
        _check_shapes(images.shape, scores.shape)
        group = group_of_rows(None, len(images), groups)
        z, ids, weights = as_maps(scores, labels, sample_weight, ignore_class)
        maps = Maps(images, z, ids, weights, group)
        for rows, ids, weights in maps.rows():
            checked_rows(rows, ids, weights)
        return self.adapt_to_maps(maps)

    def adapt_to_maps(self, maps: Maps, deadline: float = np.inf) -> Self:
        """`adapt` to data that was read and checked.

        Args:
            maps: `Maps`.
            deadline: `time.perf_counter()` at which the training ends, with
                the best epoch so far.

        Returns:
            The layer itself.

        Raises:
            ValueError: if no pixel counts; the layer is then unchanged.
        """
        # Adam trains it, also where the layer of a calibrated model stays.
        changes = {"name": "twin", "trainable": True}
        twin = type(self).from_config({**self.get_config(), **changes})
        weights, record = fit_local(twin, maps, deadline)
        self._check_finite(weights)
        if not self.built:
            self.build([maps.images.shape, maps.logits.shape])
        shapes = [tuple(getattr(self, name).shape) for name in weights]
        if shapes != [np.shape(value) for value in weights.values()]:
            raise ValueError(
                "LocalTemperatureScaling was built for other images or "
                f"logits. Received: images of shape {maps.images.shape}, "
                f"logits of shape {maps.logits.shape}. Adapt a new layer."
            )
        for name, value in weights.items():
            getattr(self, name).assign(value)
        self.record = record
        return self

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        return mask if mask is None else mask[1]

    def compute_output_shape(self, input_shape: Any) -> tuple:
        return tuple(input_shape[1])


def _at_least_one(x):
    """The images, or one of zeros where there are none."""
    count, *shape = ops.shape(x)
    missing = 1 - ops.minimum(count, 1)
    return ops.concatenate([x, ops.zeros((missing, *shape), x.dtype)])


def _reflected(x):
    """Images with `PADDING` more pixels on each side, as in a mirror.

    JAX cannot pad images of unknown size, and converters of graphs of the other
    two know `pad` better than `take`.
    """
    if keras.backend.backend() != "jax":
        pixels = (PADDING, PADDING)
        return ops.pad(x, ((0, 0), pixels, pixels, (0, 0)), mode="reflect")
    for axis in (1, 2):
        before = ops.take(x, np.arange(PADDING, 0, -1), axis=axis)
        after = ops.take(x, np.arange(-2, -2 - PADDING, -1), axis=axis)
        x = ops.concatenate([before, x, after], axis=axis)
    return x


def _convolve(x, kernel):
    return ops.conv(
        _reflected(x),
        kernel,
        padding="valid",
        data_format="channels_last",
        dilation_rate=DILATION,
    )


def _known(shape):
    """A shape, with `None` for what is a symbol or is not known."""
    return tuple(size if isinstance(size, int) else None for size in shape)


def _check_shapes(images, logits):
    pairs = list(zip(images[:3], logits[:3], strict=False))
    unequal = any(a != b for a, b in pairs if None not in (a, b))
    if len(images) != 4 or len(logits) != 4 or unequal:
        raise ValueError(
            "LocalTemperatureScaling needs images `(batch, height, width, "
            "channels)` and logits `(batch, height, width, num_classes)`, as "
            f"many and of one size. Received: images of shape {tuple(images)}, "
            f"logits of shape {tuple(logits)}. Resize one of them."
        )
    if any(a is not None and a <= PADDING for a in images[1:3]):
        raise ValueError(
            "LocalTemperatureScaling needs images of at least "
            f"{PADDING + 1} x {PADDING + 1} pixels. Received: images of shape "
            f"{tuple(images)}."
        )
