"""The fit of local temperature scaling: Adam on batches of images."""

import dataclasses
import time

import keras
import numpy as np

from keras_calib.inputs.arguments import generator
from keras_calib.inputs.arrays import LOWEST
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.arrays import at_least_two
from keras_calib.inputs.arrays import log_softmax
from keras_calib.layers._decision import classes
from keras_calib.layers._temperature_scaling import solve_temperature_in_blocks
from keras_calib.solvers.blocks import passed
from keras_calib.solvers.folds import unit_of_rows

# Part of the images that decides the epoch, and whether the map is kept.
HELD_OUT = 0.2
LEAST_HELD_OUT, LEAST_IMAGES = 2, 5
# Standard errors by which the held-out NLL must be lower; as `"auto"` has it.
NUM_ERRORS = 2


@dataclasses.dataclass(frozen=True)
class Maps:
    """Calibration data of images of one size; arrays or memory maps.

    Attributes:
        images: `(n, height, width, channels)`.
        logits: `(n, height, width, num_classes)`.
        labels: int class ids, `(n, height, width)`.
        weights: float >= 0, `(n, height, width)`; 0 where no pixel counts.
        group: `None`, or ids of groups of images that are held out together,
            int, `(n,)`.
    """

    images: np.ndarray
    logits: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    group: np.ndarray | None = None

    def __len__(self):
        return len(self.images)

    def batch(self, index):
        """Some of the images, in memory, with logits that are finite."""
        # Such a class gets a probability and a gradient of 0, and no NaN.
        logits = np.maximum(np.asarray(self.logits[index]), LOWEST)
        images = np.asarray(self.images[index]).astype("float32")
        return (
            [images, logits.astype("float32")],
            np.asarray(self.labels[index]),
            np.asarray(self.weights[index]).astype("float32"),
        )

    def rows(self):
        """The pixels that count, `(logits, labels, weights)` by image."""
        for i in range(len(self)):
            keep = np.asarray(self.weights[i]) > 0
            if keep.any():
                weights = np.asarray(self.weights[i])[keep].astype("float64")
                yield self.logits[i][keep], self.labels[i][keep], weights


def fit_local(layer, maps, deadline=np.inf):
    """Fit a layer that nobody uses otherwise, and is not built.

    Args:
        layer: `LocalTemperatureScaling`.
        maps: `Maps`.
        deadline: `time.perf_counter()` at which the training ends.

    Returns:
        weights: dict from weight name to NumPy array.
        record: dict of JSON values. `kept` is `"local"` or `"temperature"`,
            `reason` says why; `temperature` is that of temperature scaling.

    Raises:
        ValueError: if no pixel counts.
    """
    temperature, record = solve_temperature_in_blocks(maps.rows)
    layer.build([maps.images.shape, maps.logits.shape])
    scale, mean, deviation = _scales(maps)
    layer.log_temperature.assign(np.log(temperature))
    layer.logit_scale.assign(scale)
    layer.image_mean.assign(mean)
    layer.image_scale.assign(deviation)
    start = _weights(layer)
    units = _units(maps, layer.seed)
    record = {
        **record,
        "num_images": sum(map(len, units)),
        "num_held_out_images": 0,
        "epochs": 0,
    }
    kind = "images"
    if maps.group is not None:
        kind, record["num_groups"] = "groups", len(units)
    del record["num_passes"]
    if len(units) < LEAST_IMAGES:
        reason = f"fewer than {LEAST_IMAGES} {kind}"
        return start, {**record, "kept": "temperature", "reason": reason}
    weights, found, reason = _train(
        layer, maps, units, record["nll_after"], deadline
    )
    record.update(found)
    if reason is not None:
        return start, {**record, "kept": "temperature", "reason": reason}
    return weights, {**record, "kept": "local", "reason": "lower held-out NLL"}


def _units(maps, seed):
    """Indices of the images that count, by group, in random order.

    Without groups, each image is one.
    """
    counts = [np.asarray(weights).any() for weights in maps.weights]
    used = np.flatnonzero(counts)
    group = None if maps.group is None else maps.group[used]
    group = unit_of_rows(group, len(used))
    order = generator(seed).permutation(np.unique(group))
    return [used[group == each] for each in order]


def _train(layer, maps, units, plain_nll, deadline):
    """Train on some images, and compare with temperature scaling on others.

    Args:
        layer: `LocalTemperatureScaling`, built, with the scales set.
        maps: `Maps`.
        units: see `_units`.
        plain_nll: NLL of temperature scaling on all of them.
        deadline: see `fit_local`; an epoch that it cuts off does not count.

    Returns:
        weights: of the epoch with the lowest held-out NLL.
        found: what the record contains of it.
        reason: `None`, or why temperature scaling is better.
    """
    num_held_out = max(LEAST_HELD_OUT, round(HELD_OUT * len(units)))
    held_out = np.sort(np.concatenate(units[:num_held_out]))
    fitted = np.concatenate(units[num_held_out:])
    model = _trainer(layer, maps)
    rng = generator(layer.seed + 1)
    # A mean over the pixels that count; Keras divides by all pixels.
    total = sum(float(np.sum(w, dtype="float64")) for w in maps.weights)
    relative = np.float32(maps.weights.size / total)
    plain = _losses(layer, model, maps, held_out)
    best = start = _nll(plain)
    weights, best_epoch, kept = _weights(layer), 0, plain
    epoch, over = 0, False
    while epoch < layer.epochs and epoch - best_epoch < layer.patience:
        for index in _batches(rng.permutation(fitted), layer.batch_size):
            over = time.perf_counter() > deadline
            if over:
                break
            inputs, labels, of_pixels = maps.batch(index)
            model.train_on_batch(inputs, labels, relative * of_pixels)
            passed()
        if over:
            break
        epoch += 1
        losses = _losses(layer, model, maps, held_out)
        nll = _nll(losses)
        if not np.isfinite(nll):
            break
        if nll < best:
            best, best_epoch, kept = nll, epoch, losses
            weights = _weights(layer)
    unit = unit_of_rows(maps.group, len(maps))[held_out]
    error = _standard_error(kept[0] - plain[0], plain[1], unit)
    found = {
        "num_held_out_images": len(held_out),
        "epochs": epoch,
        "best_epoch": best_epoch,
        "held_out_nll_temperature": start,
        "held_out_nll": best,
        "standard_error": error,
    }
    if over:
        found["stop_reason"] = "max_seconds"
    if over and best_epoch == 0:
        return weights, found, "max_seconds"
    if not start - best > NUM_ERRORS * error:
        reason = "held-out images do not show a lower NLL beyond their noise"
        return weights, found, reason
    for name, value in weights.items():
        getattr(layer, name).assign(value)
    used = np.sort(np.concatenate(units))
    found["nll_after"] = _nll(_losses(layer, model, maps, used))
    if not found["nll_after"] < plain_nll:
        found["nll_after"] = plain_nll
        return weights, found, "the NLL of all images is not lower"
    return weights, found, None


def _nll(losses):
    """The mean over pixels, from what `_losses` returned."""
    return float(losses[0].sum() / losses[1].sum())


def _trainer(layer, maps):
    """A model of `[images, logits]` that trains the layer."""
    inputs = [
        keras.Input(maps.images.shape[1:], name="images"),
        keras.Input(maps.logits.shape[1:], name="logits"),
    ]
    model = keras.Model(inputs, classes(layer(inputs)))
    model.compile(
        keras.optimizers.Adam(layer.learning_rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def _losses(layer, model, maps, index):
    """Sums of loss and of weight over the pixels of each image, `(2, n)`."""
    sums = []
    for part in _batches(index, layer.batch_size):
        inputs, labels, weights = maps.batch(part)
        z = as_array(model.predict_on_batch(inputs))
        log_p = log_softmax(z)
        loss = -np.take_along_axis(log_p, labels[..., None], axis=-1)[..., 0]
        weights = weights.astype("float64")
        # A pixel that does not count may have an infinite loss.
        loss = np.where(weights > 0, loss, 0.0)
        pixels = (1, 2)
        sums.append([(weights * loss).sum(pixels), weights.sum(pixels)])
        passed()
    return np.concatenate(sums, axis=1)[:, : len(index)]


def _batches(index, size):
    """Batches of one size, so that nothing compiles twice.

    The last one is filled up with the first images.
    """
    size = min(size, len(index))
    count = -(-len(index) // size)
    return np.resize(index, count * size).reshape(count, size)


def _standard_error(difference, weights, unit):
    """Of a weighted mean over pixels, from sums over images.

    Args:
        difference: sum of the weighted losses of each image, `(n,)`.
        weights: sum of the weights of each image, `(n,)`.
        unit: the group of each image, int, `(n,)`; groups are drawn as a whole.
    """
    mean = difference.sum() / weights.sum()
    unit = unit_of_rows(unit, len(unit))
    deviation = np.bincount(unit, difference - mean * weights)
    n = len(deviation)
    variance = n / (n - 1) * (deviation**2).sum()
    return float(np.sqrt(variance) / weights.sum())


def _scales(maps):
    """Size of the logits; mean and deviation of each channel of the images."""
    total, square = 0.0, 0.0
    channels = np.zeros((3, maps.images.shape[-1]))
    for z, _, _ in maps.rows():
        z = at_least_two(z)
        z = np.where(z > LOWEST, z, np.nan).astype("float64")
        z = z - np.nanmean(z, axis=1, keepdims=True)
        total += np.isfinite(z).sum()
        square += np.nansum(z**2)
    for image in maps.images:
        x = np.asarray(image).astype("float64").reshape(-1, channels.shape[1])
        channels += [np.full(x.shape[1], len(x)), x.sum(0), (x**2).sum(0)]
    mean = channels[1] / channels[0]
    deviation = np.sqrt(np.maximum(channels[2] / channels[0] - mean**2, 0))
    scale = np.sqrt(square / total)
    return scale or 1.0, mean, np.where(deviation > 0, deviation, 1.0)


def _weights(layer):
    return {
        variable.name: np.array(as_array(variable.value))
        for variable in layer.variables
    }
