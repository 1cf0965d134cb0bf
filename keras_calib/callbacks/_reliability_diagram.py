"""A reliability diagram after each epoch, as a file and in TensorBoard."""

import importlib.util
import os
import pathlib
import re
from typing import Any

from keras_calib._typing import Logs
from keras_calib._whole_file import whole_file
from keras_calib.callbacks._event_files import ImageWriter
from keras_calib.callbacks._event_files import find_writer
from keras_calib.callbacks._predicting_callback import PredictingCallback
from keras_calib.inputs.arguments import require_flags

EPOCH = re.compile(r"\{epoch(:[^{}]*)?\}")


class ReliabilityDiagram(PredictingCallback):
    """Draw the reliability diagram of validation data while a model trains.

    Args:
        path_or_log_dir: where diagrams go. A name that ends in `.png` is a
            file; `{epoch}` in it is replaced by the number of the epoch,
            counted from 1, e.g. `"diagrams/{epoch:03d}.png"`. Anything else
            is a folder: files in it are `reliability_{epoch:03d}.png`, and
            events for TensorBoard.
        validation_data: `(x, y)` or `(x, y, sample_weight)` arrays, or a
            dataset as `fit` takes it, for a separate pass; `None` to reuse the
            predictions of the validation that `fit` runs.
        every: int, period in epochs; a diagram is also drawn after the last,
            unless a callback that comes later ends the training.
        num_bins: int, number of bins.
        from_logits: whether the model returns logits.
        ignore_class: samples with this label are ignored.
        batch_size: int, for arrays; 32 by default.
        tensorboard: whether a folder also gets TensorBoard images (tag
            `reliability`). They are written by TensorFlow, if the program has
            imported it, or by tensorboardX; by default, if one of them is
            there.
        axis: the class axis of the predictions.

    Raises:
        ValueError: if `every` or `num_bins` is below 1, or data cannot be read
            after each epoch; in `fit`, for bad input.
        ImportError: when the callback is created, if matplotlib is missing,
            or, with `tensorboard=True`, whatever writes event files.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> x, y = np.array([[0.0], [1.0]]), np.array([0, 1])
        >>> diagram = kc.callbacks.ReliabilityDiagram(
        ...     "logs", validation_data=(x, y), every=5
        ... )
        >>> model.fit(x, y, callbacks=[diagram])  # doctest: +SKIP
    """

    if_not_finite = "no diagram is drawn"

    def __init__(
        self,
        path_or_log_dir: str | os.PathLike,
        *,
        validation_data: Any = None,
        every: int = 1,
        num_bins: int = 15,
        from_logits: bool = False,
        ignore_class: int | None = None,
        batch_size: int | None = None,
        tensorboard: bool | None = None,
        axis: int = -1,
    ) -> None:
        super().__init__(
            validation_data,
            num_bins=num_bins,
            from_logits=from_logits,
            ignore_class=ignore_class,
            every=every,
            batch_size=batch_size,
            axis=axis,
        )
        require_flags(none=True, tensorboard=tensorboard)
        _require("matplotlib", "keras-calib[plots]")
        path = pathlib.Path(path_or_log_dir)
        is_file = path.suffix == ".png"
        if tensorboard is None and is_file:
            tensorboard = False
        self._event_package = find_writer(tensorboard)
        self.path = path if is_file else None
        self.log_dir = path.parent if is_file else path
        self.tensorboard = self._event_package is not None
        self._writer: ImageWriter | None = None

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if not self.is_due(epoch):
            return
        read = self.predictions()
        if read is None:
            return
        path = self._path(epoch + 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._draw(read, path, epoch)
        if self.tensorboard:
            self._write_event(path, epoch)

    def on_train_end(self, logs: Logs = None) -> None:
        super().on_train_end(logs)
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _path(self, number):
        if self.path is None:
            return self.log_dir / f"reliability_{number:03d}.png"
        # Other braces are part of the name.
        name = EPOCH.sub(
            lambda field: field.group().format(epoch=number), str(self.path)
        )
        return pathlib.Path(name)

    def _draw(self, read, path, epoch):
        from matplotlib import pyplot

        from keras_calib.plots import reliability_diagram

        figure = reliability_diagram(
            read.labels,
            read.probabilities,
            read.weights,
            num_bins=self.num_bins,
            title=f"Reliability after epoch {epoch + 1}",
        )
        try:
            with whole_file(path) as place:
                figure.savefig(place)
        finally:
            pyplot.close(figure)

    def _write_event(self, path, epoch):
        if self._writer is None:
            self._writer = ImageWriter(self._event_package, self.log_dir)
        self._writer.write("reliability", path, epoch)


def _require(module, package):
    if importlib.util.find_spec(module) is None:
        raise ImportError(
            f"`ReliabilityDiagram` needs {module}: `pip install {package}`."
        )
