"""How far from calibrated a model is, as a temperature, epoch by epoch."""

import numpy as np

from keras_calib.callbacks._predicting_callback import ValidationCallback
from keras_calib.evaluation.bin_sums import expected_calibration_error
from keras_calib.inputs import arrays
from keras_calib.inputs.predictions import calibration_data
from keras_calib.inputs.predictions import top_label
from keras_calib.solvers.temperature import fit_temperature


class TemperatureTracker(ValidationCallback):
    """Add the best temperature on validation data to the epoch's logs.

    A temperature above 1 tells that the model is overconfident, one below 1
    that it is underconfident; what remains after it shows what temperature
    scaling could not repair. The model itself is not changed.

    Keys: `val_temperature`, which minimises the negative log-likelihood,
    `val_calibrated_negative_log_likelihood` and
    `val_calibrated_expected_calibration_error`, both at that temperature. Other
    callbacks see them if they come **after** this one in the list.

    Args:
        validation_data: `(x, y)` or `(x, y, sample_weight)` arrays, or a
            dataset as `fit` takes it, for a pass of its own; `None` for the
            predictions of `fit`'s own validation.
        num_bins: int, how many bins the calibration error has.
        from_logits: whether the model gives logits.
        ignore_class: samples with this label do not count.
        every: int, run after each so many epochs, and after the last one.
        batch_size: for arrays; 32 by default.
        axis: the class axis of the predictions.

    Raises:
        ValueError: if `every` or `num_bins` is below 1, or data cannot be read
            after each epoch; in `fit`, for bad input.

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

    def __init__(
        self,
        validation_data=None,
        num_bins=15,
        from_logits=False,
        ignore_class=None,
        every=1,
        batch_size=None,
        axis=-1,
    ):
        super().__init__(
            validation_data, from_logits, ignore_class, every, batch_size, axis
        )
        if num_bins < 1:
            raise ValueError(
                f"`num_bins` must be at least 1. Received: num_bins={num_bins}."
            )
        self.num_bins = num_bins

    def on_epoch_end(self, epoch, logs=None):
        if logs is None or not self.is_due(epoch):
            return
        read = self.predict()
        if read is None:
            return
        labels, weight = read.labels, read.weight
        logits = read.logits
        if logits is None:
            logits = np.log(np.maximum(read.probabilities, arrays.TINY))
        rows = labels if read.targets is None else read.targets
        found = fit_temperature(*calibration_data(logits, rows, weight)[:3])
        p = np.exp(arrays.log_softmax(logits / found.temperature))
        confidence, correct = top_label(labels, p)
        error = expected_calibration_error(
            confidence, correct, self.num_bins, weights=weight
        )
        logs["val_temperature"] = float(found.temperature)
        logs["val_calibrated_negative_log_likelihood"] = float(found.nll_after)
        logs["val_calibrated_expected_calibration_error"] = error
