"""Calibration on validation data, once per epoch, for every other callback."""

import keras
import numpy as np

from keras_calib import data
from keras_calib.metrics import exact
from keras_calib.ops.rows import as_rows


class CalibrationMonitor(keras.callbacks.Callback):
    """Add exact calibration errors of validation data to the epoch's logs.

    History, CSVLogger, TensorBoard, EarlyStopping and ModelCheckpoint see the
    keys if they come **after** this callback in the list. Bins of equal mass
    need every confidence of the epoch; this callback has them, a streaming
    metric approximates them.

    Keys: `val_expected_calibration_error`, `val_adaptive_calibration_error`
    (equal mass), `val_maximum_calibration_error`, `val_confidence_gap` (mean
    confidence minus accuracy), `val_mean_confidence`, `val_accuracy` and
    `val_negative_log_likelihood`.

    Args:
        validation_data: `(x, y)` or `(x, y, sample_weight)` arrays, or a
            dataset as `fit` takes it.
        num_bins: int, how many bins.
        from_logits: whether the model gives logits.
        ignore_class: samples with this label do not count.
        every: int, run after each so many epochs, and after the last one.
        batch_size: for arrays; 32 by default.

    Raises:
        ValueError: if an argument is out of its range.

    Example:
        >>> import numpy as np, keras, keras_calib as kc
        >>> x = np.random.default_rng(0).normal(size=(64, 4))
        >>> y = np.arange(64) % 3
        >>> model = keras.Sequential([keras.layers.Dense(3, "softmax")])
        >>> model.compile(loss="sparse_categorical_crossentropy")
        >>> monitor = kc.callbacks.CalibrationMonitor((x, y))
        >>> history = model.fit(x, y, callbacks=[monitor], verbose=0)
        >>> len(history.history["val_adaptive_calibration_error"])
        1
    """

    def __init__(
        self,
        validation_data,
        num_bins=15,
        from_logits=False,
        ignore_class=None,
        every=1,
        batch_size=None,
    ):
        super().__init__()
        if num_bins < 1 or every < 1:
            raise ValueError(
                "`num_bins` and `every` must be at least 1. "
                f"Received: num_bins={num_bins}, every={every}."
            )
        self.validation_data = validation_data
        self.num_bins = num_bins
        self.from_logits = from_logits
        self.ignore_class = ignore_class
        self.every = every
        self.batch_size = batch_size

    def on_epoch_end(self, epoch, logs=None):
        last = epoch + 1 == self.params.get("epochs")
        if logs is None or not (last or (epoch + 1) % self.every == 0):
            return
        found = self._measure()
        logs.update({f"val_{name}": value for name, value in found.items()})

    def _measure(self):
        arrays = self.validation_data
        if not isinstance(arrays, tuple | list):
            arrays = (arrays,)
        x, y, weight = (*arrays, None, None)[:3]
        source, total = data.batches(x, y, weight, self.batch_size)
        scores, labels, weight = data.predict_once(self.model, source, total)
        rows = as_rows(
            labels,
            scores,
            weight,
            from_logits=self.from_logits,
            ignore_class=self.ignore_class,
            binary=True,
        )
        used = data.as_array(rows.weights)
        keep = used > 0
        labels = data.as_array(rows.labels)[keep]
        weight = None if (used[keep] == 1).all() else used[keep].astype(float)
        probabilities = data.as_array(rows.probabilities)[keep]
        log_probabilities = data.as_array(rows.log_probabilities)[keep]
        confidence, correct = exact.top_label(labels, probabilities)

        def error(binning, norm):
            return exact.expected_calibration_error(
                confidence, correct, self.num_bins, binning, norm, weight
            )

        mean_confidence = np.average(confidence.astype(float), weights=weight)
        accuracy = np.average(correct, weights=weight)
        return {
            "expected_calibration_error": error("width", 1),
            "adaptive_calibration_error": error("mass", 1),
            "maximum_calibration_error": error("width", float("inf")),
            "confidence_gap": float(mean_confidence - accuracy),
            "mean_confidence": float(mean_confidence),
            "accuracy": float(accuracy),
            "negative_log_likelihood": exact.negative_log_likelihood(
                labels, log_probabilities, weight
            ),
        }
