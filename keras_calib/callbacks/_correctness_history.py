"""How often each training sample was classified correctly, by epoch."""

from typing import Any

import keras
import numpy as np

from keras_calib._typing import Logs
from keras_calib.inputs.arguments import require_flags
from keras_calib.models._sample_history_model import SampleHistoryModel


class CorrectnessHistory(keras.callbacks.Callback):
    """Read the history of a `SampleHistoryModel`, which `CRL` trains on.

    The model keeps the history inside the compiled step. This callback copies
    it to arrays after each epoch, and adds `mean_correctness` to the logs: the
    mean over samples of the fraction of correct visits.

    Args:
        save_every_epoch: whether to keep the correctness of every epoch in
            `epochs`, one float32 per sample and epoch.

    Attributes:
        correctness: fraction of correct visits so far, `(num_samples,)`.
        seen: number of visits, `(num_samples,)`.
        epochs: a list with `correctness` after each epoch, if
            `save_every_epoch`.

    Raises:
        ValueError: when training begins, if the model is no
            `SampleHistoryModel`, so that samples cannot be told apart.

    Example:
        >>> import keras, numpy as np, keras_calib as kc
        >>> x, y = np.random.default_rng(0).normal(size=(64, 4)), np.arange(64)
        >>> network = keras.Sequential([keras.layers.Dense(3)])
        >>> model = kc.models.SampleHistoryModel(network, num_samples=len(x))
        >>> model.compile("adam", kc.losses.CRL(from_logits=True))
        >>> watch = kc.callbacks.CorrectnessHistory()
        >>> history = model.fit(
        ...     kc.add_sample_index(x), y % 3, epochs=2, verbose=0,
        ...     callbacks=[watch],
        ... )
        >>> watch.correctness.shape, len(history.history["mean_correctness"])
        ((64,), 2)

    Reference:
        Moon et al., "Confidence-Aware Learning for Deep Neural Networks", ICML
        2020, Section 3.2.
    """

    def __init__(self, *, save_every_epoch: bool = False) -> None:
        super().__init__()
        require_flags(save_every_epoch=save_every_epoch)
        self.save_every_epoch = save_every_epoch
        self.correctness: Any = None
        self.seen: Any = None
        self.epochs: list[np.ndarray] = []

    def on_train_begin(self, logs: Logs = None) -> None:
        check_history(self)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        found = self.model.sample_history()
        self.correctness, self.seen = found["correctness"], found["seen"]
        if self.save_every_epoch:
            self.epochs.append(self.correctness)
        if logs is not None:
            visited = self.seen > 0
            mean = self.correctness[visited].mean() if visited.any() else 0.0
            logs["mean_correctness"] = float(np.float64(mean))


def check_history(callback):
    """Refuse a model without a history of samples."""
    if not isinstance(callback.model, SampleHistoryModel):
        raise ValueError(
            f"{type(callback).__name__} needs a history of each sample. Train "
            "`kc.models.SampleHistoryModel(model, num_samples=len(x))` on "
            "`kc.add_sample_index(x)`. Received: "
            f"{type(callback.model).__name__}."
        )
