"""Calibration errors of validation data in the logs of each epoch."""

from collections.abc import Collection
from typing import Any

from keras_calib._typing import Logs
from keras_calib.callbacks._predicting_callback import PredictingCallback
from keras_calib.evaluation.calibration_errors import calibration_errors
from keras_calib.evaluation.calibration_errors import check_names
from keras_calib.evaluation.named_errors import defined_for
from keras_calib.inputs.arguments import require_flags
from keras_calib.inputs.predictions import read_predictions

DEFAULT = (
    "expected_calibration_error",
    "smooth_calibration_error",
    "brier_score",
    "negative_log_likelihood",
)

REFINEMENT = ("val_refinement_loss", "val_calibration_loss", "val_temperature")


class CalibrationMonitor(PredictingCallback):
    """Add exact calibration errors of validation data to the epoch logs.

        logs["val_" + name] = calibration_errors(y_val, model(x_val))[name]

    By default these are `val_expected_calibration_error`,
    `val_smooth_calibration_error`, `val_brier_score` and
    `val_negative_log_likelihood`. The calibration errors are in [0, 1], the
    Brier score in [0, 2]; NLL and entropy are in nats. History, CSVLogger,
    TensorBoard, EarlyStopping and ModelCheckpoint read these keys if they come
    **after** this callback in the list. EarlyStopping and ModelCheckpoint need
    `mode="min"` for a key that is not the name of a compiled metric. A key that
    a compiled metric has logged is replaced; of weighted samples the value is
    another one, unless the metric is one of the `weighted_metrics`.

    All keys are NaN in epochs in which the outputs are not finite, as those of
    a network that diverged; then there is a warning.

    Errors with bins of equal mass, sweep, KS and smooth errors are computed
    from all confidences of the epoch; a streaming metric approximates them.

    A calibration error alone is the wrong number to stop or to choose an epoch
    by: that of a network that guesses is small. NLL and Brier score are
    better, and `val_refinement_loss` is best before `kc.calibrate`.

    With `refinement=True` there are three keys more, in nats and without a
    second pass: `val_refinement_loss`, the NLL after the temperature that fits
    this validation data best, as temperature scaling after training would
    leave it; `val_calibration_loss`, the NLL minus that (probabilities that
    rounding made 0 count as tiny ones); `val_temperature`, between 0.01 and
    100. The NLL of a network that becomes overconfident can rise while it
    still learns to tell classes apart. So refine, then calibrate:
    `EarlyStopping("val_refinement_loss", mode="min")` or `RestoreCalibrated`
    after this callback, and `kc.calibrate` after training. The temperature is
    fitted to the data it is measured on, which makes `val_refinement_loss` too
    small by about `1 / (2 n)`, the same in each epoch.

    Without `validation_data` the predictions of `fit`'s validation are used,
    which costs no second pass. If they cannot be collected
    (`steps_per_execution` above 1, several replicas under `tf.distribute`, a
    test step without `compute_metrics`), the model predicts once more. Such a
    pass is of the weights at the end of the epoch: put `SwapEMAWeights`, with
    `swap_on_epoch=True`, before this callback, or the validation of `fit` is of
    other weights. On JAX, Keras 3.15 cannot run a model after this swap, so
    that there can be no second pass.

    Args:
        validation_data: `None`, or `(x, y)` or `(x, y, sample_weight)` arrays,
            or a dataset as `fit` takes it, for a separate pass.
        metrics: names of `calibration_errors`; `None` for the four above, or
            `"all"`. Those that treat each class cost a sort per class.
        refinement: whether to add `val_refinement_loss`,
            `val_calibration_loss` and `val_temperature`.
        **kwargs: `num_bins` (defaults to 15), `from_logits` (`False`),
            `ignore_class`, `every` (1; period in epochs, also runs after the
            last epoch, unless a callback that comes later ends the training),
            `batch_size` (32, for arrays) and `axis` (-1, the class axis).

    Raises:
        ValueError: if an argument is out of range or a name is unknown; in
            `fit`, for bad input.

    Example:
        >>> import numpy as np, keras, keras_calib as kc
        >>> x = np.random.default_rng(0).normal(size=(64, 4))
        >>> y = np.arange(64) % 3
        >>> model = keras.Sequential([keras.layers.Dense(3, "softmax")])
        >>> model.compile(loss="sparse_categorical_crossentropy")
        >>> monitor = kc.callbacks.CalibrationMonitor()
        >>> history = model.fit(x, y, validation_data=(x, y), verbose=0,
        ...                     callbacks=[monitor])
        >>> len(history.history["val_smooth_calibration_error"])
        1

    Reference:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, eq.
        3. For `refinement`: Berta et al., "Rethinking Early Stopping: Refine,
        Then Calibrate", 2025, arXiv:2501.19195.
    """

    def __init__(
        self,
        validation_data: Any = None,
        *,
        metrics: Collection[str] | str | None = None,
        refinement: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(validation_data, **kwargs)
        if metrics is not None and metrics != "all":
            named = isinstance(metrics, Collection)
            if isinstance(metrics, str) or not named:
                remedy = f" Pass `[{metrics!r}]`." if named else ""
                raise ValueError(
                    '`metrics` is a list of names, or "all". '
                    f"Received: metrics={metrics!r}.{remedy}"
                )
        if metrics != "all":
            metrics = DEFAULT if metrics is None else tuple(metrics)
            check_names(metrics)
        self.metrics = metrics
        require_flags(refinement=refinement)
        self.refinement = refinement

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if logs is None or not self.is_due(epoch):
            return
        arrays = self.arrays()
        if arrays is None:
            self.log_nan(logs, self._keys())
            return
        labels, scores, weights = arrays
        found = calibration_errors(
            labels,
            scores,
            weights,
            num_bins=self.num_bins,
            from_logits=self.from_logits,
            metrics=None if self.metrics == "all" else self.metrics,
        )
        logs.update({f"val_{name}": value for name, value in found.items()})
        if self.refinement:
            read = read_predictions(labels, scores, weights, self.from_logits)
            fit = self.fit_temperature(read)
            taken_off = fit.nll_before - fit.nll_after
            values = map(float, (fit.nll_after, taken_off, fit.temperature))
            logs.update(zip(REFINEMENT, values, strict=True))

    def _keys(self):
        """What it logs of outputs that are not finite."""
        names = check_names(None if self.metrics == "all" else self.metrics)
        names = defined_for(self._not_finite or 2, names)
        keys = [f"val_{name}" for name in names]
        return [*keys, *(REFINEMENT if self.refinement else ())]
