"""The best temperature on validation data in the logs of each epoch."""

from keras_calib._typing import Logs
from keras_calib.callbacks._predicting_callback import PredictingCallback
from keras_calib.evaluation.confidence_error import expected_calibration_error
from keras_calib.evaluation.refinement import at_temperature

KEYS = (
    "val_temperature",
    "val_calibrated_negative_log_likelihood",
    "val_calibrated_expected_calibration_error",
)


class TemperatureTracker(PredictingCallback):
    """Add the best temperature on validation data to the epoch logs.

    The model is overconfident if this temperature is above 1, underconfident
    if it is below 1. The errors at this temperature are those that temperature
    scaling cannot remove. The model is not changed.

    Keys: `val_temperature`, which minimizes the negative log-likelihood,
    `val_calibrated_negative_log_likelihood` (the number that
    `CalibrationMonitor(refinement=True)` calls `val_refinement_loss`) and
    `val_calibrated_expected_calibration_error`, both at that temperature. Other
    callbacks read them if they come **after** this one in the list. All are NaN
    where the outputs are not finite.

    Args:
        validation_data: `(x, y)` or `(x, y, sample_weight)` arrays, or a
            dataset as `fit` takes it, for a separate pass; `None` for the
            predictions of `fit`'s validation.
        **kwargs: `num_bins` (defaults to 15), `from_logits` (`False`),
            `ignore_class`, `every` (1; period in epochs, also runs after the
            last epoch, unless a callback that comes later ends the training),
            `batch_size` (32, for arrays) and `axis` (-1, the class axis).

    Raises:
        ValueError: if `every` or `num_bins` is below 1, or data cannot be read
            in each epoch; in `fit`, for bad input.

    Example:
        >>> import numpy as np, keras, keras_calib as kc
        >>> x = np.random.default_rng(0).normal(size=(64, 4))
        >>> y = np.arange(64) % 3
        >>> model = keras.Sequential([keras.layers.Dense(3, "softmax")])
        >>> model.compile(loss="sparse_categorical_crossentropy")
        >>> tracker = kc.callbacks.TemperatureTracker((x, y))
        >>> history = model.fit(x, y, callbacks=[tracker], verbose=0)
        >>> len(history.history["val_temperature"])
        1

    Reference:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017,
        Section 4.2.
    """

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if logs is None or not self.is_due(epoch):
            return
        read = self.predictions()
        if read is None:
            self.log_nan(logs, KEYS)
            return
        found = self.fit_temperature(read)
        after = at_temperature(read, found.temperature)
        confidence, correct = after.top_label
        error = expected_calibration_error(
            confidence, correct, self.num_bins, weights=read.weights
        )
        values = float(found.temperature), float(found.nll_after), error
        logs.update(zip(KEYS, values, strict=True))
