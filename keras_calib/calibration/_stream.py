"""`kc.calibrate(stream=True)`: the network runs for every pass of the fit."""

import numpy as np

from keras_calib.calibration import _checks as checks
from keras_calib.calibration import _network
from keras_calib.calibration._block_errors import before_and_after_in_blocks
from keras_calib.calibration._methods import as_map
from keras_calib.calibration._methods import is_auto
from keras_calib.calibration._record import CalibrationRecord
from keras_calib.calibration._warnings import warn_if_ece_rose
from keras_calib.calibration._warnings import warn_if_few
from keras_calib.calibration._warnings import warn_if_trained_on
from keras_calib.data.collect import fingerprint_of
from keras_calib.data.collect import outputs_by_batch
from keras_calib.data.predict import states_kept
from keras_calib.keras_graph.head import free_name
from keras_calib.layers._temperature_scaling import TemperatureScaling


def calibrate_in_stream(model, source, method, options, settings):
    """`kc.calibrate` that keeps no logits; see there.

    Args:
        model: the user's model.
        source: `Source`.
        method: see `kc.calibrate`.
        options: `Options`.
        settings: `Settings`.

    Returns:
        The calibrated model.

    Raises:
        ValueError: as `kc.calibrate`; for another map or objective; if the
            data changes from pass to pass. Nothing is changed then.
    """
    source.refuse_iterators()
    layer = None if is_auto(method) else as_map(method)
    _check_arguments(layer, method, options)

    def fit(network):
        named = layer
        if layer is not method:
            named = as_map(method, free_name(network.model, method))
        rows = _Rows(model, network, source, settings)
        record, accuracy = _adapt(named, method, rows)
        warn_if_trained_on(model, accuracy, rows.num_samples)
        return named, record, _network.Facts(rows.num_units, rows.one_hot)

    data = source.open(call=True)
    return _network.calibrated_by(fit, model, data, method, settings)


def _check_arguments(layer, method, options):
    if type(layer) is not TemperatureScaling:
        raise ValueError(
            "`stream=True` fits a temperature, and nothing else. Received: "
            f'method={method!r}. Use `method="temperature"`, or leave out '
            "`stream`: logits above 256 MiB then go to a temporary file."
        )
    checks.refuse_other_losses(
        "`stream=True`", options, ", or leave out `stream`"
    )


def _adapt(layer, method, rows):
    """Fit the layer; one pass more finds the errors before and after.

    Returns:
        record: dict of JSON values.
        accuracy: weighted accuracy of the model.
    """
    layer.adapt_to_checked_blocks(rows)
    warn_if_few(
        layer,
        rows.num_samples,
        max(2, rows.num_units),
        rows.effective_num_samples,
    )
    found = _found(layer, rows)
    noise, accuracy = found.pop("ece_noise"), found.pop("accuracy")
    warn_if_ece_rose(layer, found, noise, layer.objectives)
    record = CalibrationRecord(
        method=method if isinstance(method, str) else type(layer).__name__,
        num_samples=rows.num_samples,
        num_classes=max(2, rows.num_units),
        guard={"skipped": "stream=True"},
        logits_source=rows.logits_source,
        fingerprint=rows.fingerprint,
        fitted=layer.record,
        **found,
    )
    return record.to_dict(), accuracy


class _Rows:
    """Blocks `(logits, labels, weights)`, from a new run of the network.

    Attributes:
        num_units: size of the class axis of the outputs.
        one_hot: whether labels are one-hot rows.
        num_samples: number of samples that count.
        effective_num_samples: how many samples of equal weight tell as much.
        fingerprint: see `Samples`.
        logits_source: see `CalibrationRecord`.
    """

    num_units = 1
    fingerprint = None

    def __init__(self, model, network, source, settings):
        self.model = model
        self.network = network
        self.source = source
        self.settings = settings

    def __call__(self):
        checksum, num_samples = np.zeros(1, "uint64"), 0
        total = squares = 0.0

        def batches():
            for batch in outputs_by_batch(
                self.network.model,
                self.source.open(call=True),
                self.settings.ignore_class,
                self.settings.verbose,
            ):
                checksum[:] += batch.hashes.sum()
                self.one_hot = batch.one_hot
                _refuse_soft(batch.labels)
                yield batch

        with states_kept(self.network.model):
            for rows, logits_source in _network.blocks_of_rows(
                self.network,
                batches(),
                self.settings.from_logits,
                self.settings.fuse,
            ):
                self.logits_source = logits_source
                num_samples += rows.num_samples
                total += rows.full_weights.sum()
                squares += rows.full_weights @ rows.full_weights
                self.num_units = rows.logits.shape[1]
                yield rows.logits, rows.labels, rows.weights
        self.effective_num_samples = (
            float(total**2 / squares) if squares else 0.0
        )
        self._check_the_same(num_samples, fingerprint_of([checksum]))

    def _check_the_same(self, num_samples, fingerprint):
        """Refuse data that another pass did not have."""
        if self.fingerprint is None:
            checks.refuse_the_same_data(self.model, fingerprint, self.settings)
        elif self.fingerprint != fingerprint:
            raise ValueError(
                "`stream=True` reads the data several times, and it must be "
                f"the same. Received: {self.num_samples} samples in one pass "
                f"and {num_samples} in the next, or other inputs. Take random "
                "augmentation out, and let a function return a new generator "
                "at every call."
            )
        self.num_samples, self.fingerprint = num_samples, fingerprint


def _found(layer, rows):
    beta = 1 / layer.temperature
    return before_and_after_in_blocks((*block, beta) for block in rows())


def _refuse_soft(labels):
    if labels.ndim > 1:
        raise ValueError(
            "`stream=True` needs one class per sample. Received: soft labels. "
            "Pass class ids, or leave out `stream`."
        )
