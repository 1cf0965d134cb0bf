"""Calibration on validation data, once per epoch, for every other callback."""

import warnings

from keras_calib.callbacks._predicting_callback import ValidationCallback
from keras_calib.evaluation.calibration_errors import calibration_errors
from keras_calib.evaluation.named_errors import METRICS


class CalibrationMonitor(ValidationCallback):
    """Add exact calibration errors of validation data to the epoch's logs.

    History, CSVLogger, TensorBoard, EarlyStopping and ModelCheckpoint see the
    keys if they come **after** this callback in the list. Bins of equal mass,
    sweep, KS and smooth errors need every confidence of the epoch; this
    callback has them, a streaming metric approximates them.

    Keys are `val_` and a name of `kc.metrics.calibration_errors`:
    `val_expected_calibration_error`, `val_adaptive_calibration_error`,
    `val_smooth_calibration_error`, `val_negative_log_likelihood` and so on.
    EarlyStopping and ModelCheckpoint need `mode="min"` for a key that is not
    the name of a compiled metric.

    Without `validation_data` the predictions of `fit`'s own validation are
    used, at no cost but the errors themselves. Where that cannot be
    (`steps_per_execution` above 1, several replicas under `tf.distribute`, a
    test step without `compute_metrics`), the model predicts once more.

    Args:
        validation_data: `None`, or `(x, y)` or `(x, y, sample_weight)` arrays,
            or a dataset as `fit` takes it, for a pass of its own.
        num_bins: int, how many bins.
        from_logits: whether the model gives logits.
        ignore_class: samples with this label do not count.
        every: int, run after each so many epochs, and after the last one.
        batch_size: for arrays; 32 by default.
        metrics: names to compute; `None` for all. Those that look at each
            class cost a sort per class.
        axis: the class axis of the predictions.

    Raises:
        ValueError: if an argument is out of its range.

    Example:
        >>> import numpy as np, keras, keras_calib as kc
        >>> x = np.random.default_rng(0).normal(size=(64, 4))
        >>> y = np.arange(64) % 3
        >>> model = keras.Sequential([keras.layers.Dense(3, "softmax")])
        >>> model.compile(loss="sparse_categorical_crossentropy")
        >>> monitor = kc.callbacks.CalibrationMonitor()
        >>> history = model.fit(x, y, validation_data=(x, y), verbose=0,
        ...                     callbacks=[monitor])
        >>> len(history.history["val_adaptive_calibration_error"])
        1
    """

    def __init__(
        self,
        validation_data=None,
        num_bins=15,
        from_logits=False,
        ignore_class=None,
        every=1,
        batch_size=None,
        metrics=None,
        axis=-1,
    ):
        super().__init__(
            validation_data, from_logits, ignore_class, every, batch_size, axis
        )
        if num_bins < 1:
            raise ValueError(
                f"`num_bins` must be at least 1. Received: num_bins={num_bins}."
            )
        unknown = set(metrics or ()) - set(METRICS)
        if unknown:
            raise ValueError(
                "`metrics` must be names out of "
                f"{METRICS}. Received: {sorted(unknown)}."
            )
        self.num_bins = num_bins
        self.metrics = metrics
        self._measured = False

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._measured = False

    def on_epoch_end(self, epoch, logs=None):
        if logs is None or not self.is_due(epoch):
            return
        outputs = self.outputs()
        if outputs is None:
            return
        labels, scores, weight = outputs
        found = calibration_errors(
            labels,
            scores,
            weight,
            num_bins=self.num_bins,
            from_logits=self.from_logits,
            metrics=self.metrics,
        )
        self._measured = True
        logs.update({f"val_{name}": value for name, value in found.items()})

    def on_train_end(self, logs=None):
        super().on_train_end(logs)
        if not self._measured:
            warnings.warn(
                "CalibrationMonitor has seen no validation data: pass "
                "`validation_data` to `fit`, or to the callback.",
                stacklevel=2,
            )
