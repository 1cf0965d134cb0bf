"""`kc.calibrate(method="local_temperature")`: images and logits, in place."""

import contextlib
import dataclasses

import keras
import numpy as np

from keras_calib.calibration import _checks as checks
from keras_calib.calibration import _network
from keras_calib.calibration._block_errors import before_and_after_in_blocks
from keras_calib.calibration._fit import passes_shown
from keras_calib.calibration._methods import as_map
from keras_calib.calibration._record import LOG_OF_PROBABILITIES
from keras_calib.calibration._record import CalibrationRecord
from keras_calib.calibration._warnings import warn_if_ece_rose
from keras_calib.calibration._warnings import warn_if_trained_on
from keras_calib.data.collect import SPILL
from keras_calib.data.collect import BatchOutputs
from keras_calib.data.collect import Store
from keras_calib.data.collect import fingerprint_of
from keras_calib.data.collect import hashes_of
from keras_calib.data.collect import run_by_batch
from keras_calib.data.collect import samples_told
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.calibration_rows import group_of_rows
from keras_calib.inputs.predictions import as_maps
from keras_calib.keras_graph import endings
from keras_calib.keras_graph.head import free_name
from keras_calib.layers._local_fit import Maps
from keras_calib.layers._log_probabilities import LogProbabilities


def calibrate_locally(model, source, method, options, settings, *, groups=None):
    """`kc.calibrate` with a map of images and logits; see there.

    Args:
        model: the user's model, Functional or Sequential.
        source: `Source`, which is read once.
        method: see `kc.calibrate`.
        options: `Options`.
        settings: `Settings`.
        groups: see `kc.calibrate`.

    Returns:
        The calibrated model.

    Raises:
        ValueError: as `kc.calibrate`; or if model or data are not of images.
            Nothing is changed then.
    """
    checks.refuse_other_losses("Local temperature scaling", options)
    data = source.open()

    def fit(network):
        _check_model(model)
        layer = as_map(method, free_name(network.model, str(method)))
        with _collect(network, data, settings, groups) as (maps, samples):
            checks.refuse_the_same_data(model, samples.fingerprint, settings)
            with passes_shown(settings.verbose, "batch of images"):
                deadline = options.started().deadline
                record, accuracy = _adapt(
                    layer, method, maps, samples, deadline
                )
        warn_if_trained_on(model, accuracy, record["num_samples"])
        return layer, record, samples

    return _network.calibrated_by(fit, model, data, method, settings)


def _check_model(model):
    shapes = []
    if endings.has_graph(model):
        shapes = [tuple(t.shape) for t in (*model.inputs, *model.outputs)]
    if [len(shape) for shape in shapes] != [4, 4]:
        raise ValueError(
            "Local temperature scaling needs a Functional or Sequential model "
            "from images `(batch, height, width, channels)` to scores per "
            "pixel `(batch, height, width, num_classes)`. Received: "
            f"{type(model).__name__} with inputs and outputs of shapes "
            f"{shapes}. Wrap a subclassed model: `inputs = keras.Input(...)`, "
            "`keras.Model(inputs, model(inputs))`."
        )
    images, scores = shapes
    if any(
        a and b and a != b for a, b in zip(images, scores[:3], strict=False)
    ):
        raise ValueError(
            "Local temperature scaling needs scores at every pixel of the "
            f"image. Received: images of shape {images}, scores of shape "
            f"{scores}. Resize the scores in the model."
        )


@dataclasses.dataclass(frozen=True)
class _Facts(_network.Facts):
    """What is known of the data, beside the maps.

    Attributes:
        fingerprint: see `Samples`.
        logits_source: see `CalibrationRecord`.
    """

    fingerprint: str
    logits_source: str


@contextlib.contextmanager
def _collect(network, data, settings, groups):
    """Run the network once, and keep `Maps`, above a limit in files.

    Yields:
        maps: `Maps`, valid inside the `with` block.
        facts: `_Facts`.
    """
    hashes, source, one_hot, kept = [], None, False, []
    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(Store(SPILL)) for _ in range(4)]
        shapes = set()
        for x, scores, mask, y, weights in run_by_batch(
            network.model, data, settings.verbose
        ):
            hashes.append(hashes_of(x, len(y)))
            one_hot = scores.ndim == y.ndim and y.shape[-1] > 1
            [x] = keras.tree.flatten(x)  # also a dict or list of one
            with samples_told(sum(map(len, hashes[:-1])), len(y)):
                read = as_maps(scores, y, weights, settings.ignore_class, mask)
            maps = Maps(as_array(x), *read)
            maps, source = _as_logits(
                network, source, maps, settings.from_logits
            )
            parts = [getattr(maps, key.name) for key in FIELDS]
            used = maps.weights.any(axis=(1, 2))
            kept.append(used)
            shapes.add(tuple(part.shape[1:] for part in parts))
            if len(shapes) > 1:
                raise ValueError(
                    "Local temperature scaling is fitted to images of one "
                    "size. Received: images, logits, labels and weights of "
                    f"shapes {sorted(shapes)}. Resize or crop the images."
                )
            for store, part in zip(stores, parts, strict=True):
                if used.any():
                    store.append(part[used].reshape(used.sum(), -1))
        if not stores[0].length:
            raise ValueError(
                "There is no calibration sample to fit to. Received: "
                f"{len(hashes)} batches without a pixel that has a weight "
                "above 0 and a label that counts."
            )
        arrays = [
            store.rows().reshape(-1, *shape)
            for store, shape in zip(stores, *shapes, strict=True)
        ]
        used = np.concatenate(kept)
        group = group_of_rows(np.flatnonzero(used), len(used), groups)
        maps = Maps(*arrays, group)
        width = maps.logits.shape[-1]
        yield maps, _Facts(width, one_hot, fingerprint_of(hashes), source)


FIELDS = [field for field in dataclasses.fields(Maps) if field.name != "group"]


def _as_logits(network, source, maps, from_logits):
    """Maps with logits of what the network returned, and their source.

    `source` is that of the batches before, or `None`.
    """
    keep = maps.weights > 0
    if not keep.any():
        return maps, source
    labels, weights = maps.labels[keep], maps.weights[keep].astype("float64")
    rows = BatchOutputs(maps.logits[keep], labels, weights, None, False, None)
    if source is not None:
        network = dataclasses.replace(network, logits_source=source)
    _, found = _network.calibration_rows(
        network, rows, from_logits, fuse=False, warn=source is None
    )
    if found == LOG_OF_PROBABILITIES:
        logits = as_array(LogProbabilities()(maps.logits))
        maps = dataclasses.replace(maps, logits=logits)
    return maps, found


def _adapt(layer, method, maps, facts, deadline):
    """Fit the layer; see `_stream._adapt`."""
    layer.adapt_to_maps(maps, deadline)
    found = before_and_after_in_blocks(_with_beta(layer, maps))
    noise, accuracy = found.pop("ece_noise"), found.pop("accuracy")
    warn_if_ece_rose(layer, found, noise, layer.objectives)
    fitted = layer.record
    record = CalibrationRecord(
        method=method if isinstance(method, str) else type(layer).__name__,
        num_samples=fitted["num_samples"],
        num_classes=max(2, facts.num_units),
        guard={"skipped": "held-out images judge the map"},
        logits_source=facts.logits_source,
        fingerprint=facts.fingerprint,
        fitted=fitted,
        **found,
    )
    return record.to_dict(), accuracy


def _with_beta(layer, maps):
    """The pixels that count, with the factor of their logits, by image."""
    for i in range(len(maps)):
        keep = np.asarray(maps.weights[i]) > 0
        (images, logits), _, _ = maps.batch([i])
        temperatures = as_array(layer.temperatures(images, logits))[0]
        weights = np.asarray(maps.weights[i])[keep].astype("float64")
        rows = maps.logits[i][keep], maps.labels[i][keep], weights
        yield *rows, 1 / temperatures[keep]
