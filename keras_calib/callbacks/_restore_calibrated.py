"""Restore the weights of the epoch that will be best once calibrated."""

import contextlib
import dataclasses
import math
import tempfile
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib._typing import Logs
from keras_calib._warning import warn
from keras_calib.inputs.arguments import require_at_least
from keras_calib.inputs.arguments import require_kind
from keras_calib.inputs.arguments import require_one_of
from keras_calib.inputs.large import full_disk_is_told

# Accuracies in the logs are float32: 0.95 is within 0.01 of 0.96.
ROUNDING = 1e-6


@dataclasses.dataclass(eq=False)
class Candidate:
    """An epoch, and what it is judged by.

    Attributes:
        epoch: int, counted from 0.
        value: the monitored value, with the sign by which less is better.
        accuracy: float.
        weights: `StoredWeights`, or `None` before they are written.
    """

    epoch: int
    value: float
    accuracy: float
    weights: Any = None


class StoredWeights:
    """Values of variables in a temporary file without a name.

    The system frees the file when it is closed, also when the process ends in
    an exception or is killed.

    Args:
        variables: `keras.Variable`s.

    Raises:
        OSError: if the disk is full.
    """

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = list(variables)
        self._file = tempfile.TemporaryFile(prefix="keras_calib_")
        size = 0
        try:
            for variable in self.variables:
                value = ops.convert_to_numpy(variable).tobytes()
                size += len(value)
                with full_disk_is_told("Weights", f"{size:,} bytes so far"):
                    self._file.write(value)
                    self._file.flush()
        except BaseException:
            with contextlib.suppress(OSError):
                self._file.close()  # tries to write once more
            raise

    def restore(self) -> None:
        """Assign the values, one variable in memory at a time."""
        self._file.seek(0)
        for variable in self.variables:
            now = ops.convert_to_numpy(variable)
            value = np.frombuffer(self._file.read(now.nbytes), now.dtype)
            variable.assign(value.reshape(now.shape))

    def close(self) -> None:
        """Delete the file."""
        self._file.close()


def still_needed(candidates, max_accuracy_loss):
    """The candidates that can be the best at the end, the best one first.

    One whose accuracy is below the limit will stay below it. One that is beaten
    in value by another, at no lower accuracy, is beaten whatever comes.
    """
    best = max(each.accuracy for each in candidates)
    limit = best - max_accuracy_loss - ROUNDING
    needed = []
    for each in sorted(candidates, key=lambda c: (c.value, -c.accuracy)):
        beaten = needed and each.accuracy <= needed[-1].accuracy
        if each.accuracy >= limit and not beaten:
            needed.append(each)
    return needed


class RestoreCalibrated(keras.callbacks.Callback):
    """Restore the epoch with the best monitored value at a good accuracy.

        restored = argmin_e value_e  where  accuracy_e >= max accuracy - 0.01

    At the end of training the model gets the weights of this epoch. Epochs in
    which the network still guesses cannot win, so a calibration error can be
    monitored, too. (Alone it is no good guide: it says nothing about how well
    the network tells classes apart.) The default is the loss that is left after
    temperature scaling, which `CalibrationMonitor(refinement=True)` logs; that
    callback must come **before** this one in the list. Then `kc.calibrate`
    fits the temperature. `EarlyStopping` may stop training; its
    `restore_best_weights` must be off.

    The weights of epochs that can still win are kept on the disk, in unnamed
    files in the system's temporary folder (`TMPDIR`), and never in memory. The
    files vanish at the end, also after an exception. At most as many epochs are
    kept as there are accuracies within `max_accuracy_loss`. The state of the
    optimizer is not restored. A run that resumes after an interruption knows
    the epochs since then only. With `SwapEMAWeights` pass
    `swap_on_epoch=True`, and put it before this callback: by default the
    weights that were validated are gone when an epoch ends.

    The value that would be restored is logged as `restored_<monitor>`. In the
    `History` that `fit` returns, every epoch with a validation has the final
    value of this key, so that KerasTuner, which takes the best epoch, can have
    it as objective: `keras_tuner.Objective("restored_val_refinement_loss",
    "min")`.

    Args:
        monitor: key of the logs; `"val_refinement_loss"` by default.
        mode: `"min"` or `"max"`, which values of `monitor` are better.
        accuracy_key: key of the accuracy, as `compile(metrics=["accuracy"])`
            gives it, or `CalibrationMonitor`.
        max_accuracy_loss: float >= 0, how far below the best accuracy the
            accuracy of the restored epoch may be, in the unit of the accuracy.

    Attributes:
        best: the monitored value of the restored epoch, or `None`.
        best_accuracy: the accuracy of this epoch, or `None`.
        best_epoch: its number, counted from 0, or `None`.

    Raises:
        ValueError: if an argument is out of range; in `fit`, if an epoch with
            validation lacks one of the keys.

    Example:
        >>> import numpy as np, keras, keras_calib as kc
        >>> x = np.random.default_rng(0).normal(size=(64, 4))
        >>> y = np.arange(64) % 3
        >>> model = keras.Sequential([keras.layers.Dense(3, "softmax")])
        >>> model.compile(
        ...     "adam", "sparse_categorical_crossentropy", metrics=["accuracy"]
        ... )
        >>> restore = kc.callbacks.RestoreCalibrated(max_accuracy_loss=0.02)
        >>> history = model.fit(
        ...     x, y, validation_data=(x, y), epochs=2, verbose=0, callbacks=[
        ...         kc.callbacks.CalibrationMonitor(refinement=True), restore])
        >>> restore.best in history.history["val_refinement_loss"]
        True

    Reference:
        Berta et al., "Rethinking Early Stopping: Refine, Then Calibrate", 2025,
        arXiv:2501.19195. The limit on the accuracy: Karandikar et al., "Soft
        Calibration Objectives for Neural Networks", NeurIPS 2021.
    """

    def __init__(
        self,
        monitor: str = "val_refinement_loss",
        *,
        mode: str = "min",
        accuracy_key: str = "val_accuracy",
        max_accuracy_loss: float = 0.01,
    ) -> None:
        super().__init__()
        require_one_of(("min", "max"), mode=mode)
        require_kind(
            str,
            "the name of a key of the logs",
            monitor=monitor,
            accuracy_key=accuracy_key,
        )
        require_at_least(0, max_accuracy_loss=max_accuracy_loss)
        self.monitor = monitor
        self.mode = mode
        self.accuracy_key = accuracy_key
        self.max_accuracy_loss = max_accuracy_loss
        self.best: float | None = None
        self.best_accuracy: float | None = None
        self.best_epoch: int | None = None
        self._sign = 1.0 if mode == "min" else -1.0
        self._candidates: list[Candidate] = []
        # Whether an epoch ran: training may have been complete before.
        self._ran = False

    def on_train_begin(self, logs: Logs = None) -> None:
        # An exception may have ended the last run without `on_train_end`.
        self._keep([])
        self.best = self.best_accuracy = self.best_epoch = None
        self._ran = False

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._ran = True

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if logs is None or not self._validated(logs, epoch):
            return
        value, accuracy = logs[self.monitor], logs[self.accuracy_key]
        key = f"restored_{self.monitor}"
        if math.isnan(value) or math.isnan(accuracy):
            # Each epoch has the key, or `CSVLogger` would not know it.
            logs[key] = math.nan if self.best is None else self.best
            return
        new = Candidate(epoch, self._sign * float(value), float(accuracy))
        needed = still_needed([*self._candidates, new], self.max_accuracy_loss)
        if new in needed:
            new.weights = StoredWeights(self.model.weights)
        self._keep(needed)
        self.best = self._sign * needed[0].value
        self.best_accuracy = needed[0].accuracy
        self.best_epoch = needed[0].epoch
        logs[key] = self.best

    def on_train_end(self, logs: Logs = None) -> None:
        if not self._candidates:
            if self._ran:
                warn(
                    "RestoreCalibrated restored no weights: there was no "
                    f"validation with a number for {self.monitor!r}. Pass "
                    "`validation_data` to `fit`, or look for NaN in the logs."
                )
            return
        try:
            self._candidates[0].weights.restore()
        finally:
            self._keep([])
        history = getattr(self.model, "history", None)
        found = getattr(history, "history", {})
        key = f"restored_{self.monitor}"
        if key in found:
            found[key] = [self.best] * len(found[key])

    def _keep(self, candidates):
        """Keep these candidates, and delete the weights of all others."""
        for each in self._candidates:
            if each not in candidates:
                each.weights.close()
        self._candidates = candidates

    def _validated(self, logs, epoch):
        """Whether the epoch can be judged.

        Raises:
            ValueError: if it had a validation, but not both keys.
        """
        keys = self.monitor, self.accuracy_key
        missing = [key for key in keys if key not in logs]
        if len(missing) == 2 and not any(k.startswith("val_") for k in logs):
            return False
        if missing:
            raise ValueError(
                f"RestoreCalibrated needs {self.monitor!r} and "
                f"{self.accuracy_key!r} in the logs of each epoch with "
                f"validation. Received: no {missing} after epoch {epoch + 1}; "
                f"keys {sorted(logs)}. Put the callback that logs a key before "
                "this one in the list (for 'val_refinement_loss' that is "
                "`CalibrationMonitor(refinement=True)`, with `every=1`), and "
                'compile with `metrics=["accuracy"]`, or name the key of your '
                "accuracy with `accuracy_key`."
            )
        return True
