"""After an epoch: validation data -> gap of each bin -> gammas of AdaFocal."""

import weakref
from typing import Any

import keras
import numpy as np

from keras_calib._typing import Logs
from keras_calib._warning import warn
from keras_calib.callbacks._predicting_callback import PredictingCallback
from keras_calib.data.epoch_numbers import EpochNumbers
from keras_calib.inputs.arguments import are_numbers
from keras_calib.keras_private import metrics_of_compile
from keras_calib.losses._ada_focal import AdaFocalLoss
from keras_calib.losses._ada_focal import AdaFocalTable
from keras_calib.ops.binning import interval_index

# The model that a table of gammas was set for last.
_TRAINED: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def interpolated_edges(confidence, num_bins, weights=None):
    """Edges of bins of equal weight as in the authors' code, `(num_bins + 1,)`.

    Without weights, each bin has the same number of samples.
    """
    weights = np.ones(len(confidence)) if weights is None else weights
    order = np.argsort(confidence, kind="stable")
    end = np.cumsum(weights[order], dtype="float64")
    return np.interp(
        np.linspace(0, end[-1], num_bins + 1),
        end - weights[order],
        confidence[order],
    )


def bin_gaps(confidence, correct, edges, weights=None):
    """Mean confidence minus accuracy in each bin `(lower, upper]`.

    The gap of an empty bin is 0. The smallest confidence is in the first bin;
    the authors' code ignores it.
    """
    index = interval_index(confidence, edges[1:-1])
    weights = np.ones(len(confidence)) if weights is None else weights
    number = len(edges) - 1
    total = np.bincount(index, weights, number)
    gap = weights * (confidence.astype("float64") - correct)
    return np.bincount(index, gap, number) / np.where(total > 0, total, 1.0)


def updated_gammas(
    gammas, gaps, *, rate=1.0, gamma_min=-2.0, gamma_max=20.0, switch=0.2
):
    """`gamma exp(+-rate gap)`, changing signs below `switch`, then clipped."""
    gammas = np.asarray(gammas, "float64")
    positive = gammas > 0
    gammas = gammas * np.exp(np.where(positive, rate, -rate) * gaps)
    small = np.abs(gammas) < switch
    gammas = np.where(small, np.where(positive, -switch, switch), gammas)
    return np.clip(gammas, gamma_min, gamma_max)


class AdaFocalSchedule(PredictingCallback):
    """Set the gammas of an `AdaFocalLoss` from the calibration of each bin.

        gamma <- gamma * exp(rate * gap)      if gamma > 0
        gamma <- gamma * exp(-rate * gap)     if gamma < 0

    After an epoch, the confidences on validation data are divided into bins of
    equal mass. `gap` is the mean confidence minus the accuracy of a bin, so
    the gamma of an overconfident bin increases. A gamma whose absolute value
    falls below `switch` changes sign: the focal loss of that bin becomes the
    inverse focal loss, or vice versa. The next epoch trains with the new bins
    and gammas. The edges of the bins are interpolated as in the authors' code:
    the first bin may have one sample more than the others, and the last one
    fewer.

    A new model that is compiled with the same loss begins with the first
    gammas: one whose optimizer has made no step, whose weights come from no
    file, and whose first epoch is not a later one by `initial_epoch`.

    Args:
        validation_data: data to measure the gap on: `(x, y)` or `(x, y,
            sample_weight)` arrays, or a dataset as `fit` takes it; `None` for
            the predictions of `fit`'s validation. The paper uses validation
            data; training data works, too.
        rate: float, `lambda` of the paper.
        gamma_min: float, the smallest gamma.
        gamma_max: float, the largest gamma.
        switch: float, `S_th` of the paper.
        every: int, period of the updates in epochs, which are counted over
            all calls of `fit` with one model.
        batch_size: for arrays; defaults to 32.

    Attributes:
        gammas: the gammas after each update, a list of `(num_bins,)` arrays.
        gaps: the gaps at each update, a list of `(num_bins,)` arrays.
        edges: the edges of the bins at the last update, `(num_bins + 1,)`.

    Raises:
        ValueError: if an argument is out of range; when training begins,
            if the model was not compiled with an `AdaFocalLoss` and its
            `component_metrics()`.

    Example:
        >>> import keras, numpy as np, keras_calib as kc
        >>> x, y = np.random.default_rng(0).normal(size=(64, 4)), np.arange(64)
        >>> model = keras.Sequential([keras.layers.Dense(3)])
        >>> loss = kc.losses.AdaFocalLoss(num_bins=4, from_logits=True)
        >>> metrics = ["accuracy", *loss.component_metrics()]
        >>> model.compile("adam", loss, metrics=metrics)
        >>> schedule = kc.callbacks.AdaFocalSchedule((x, y % 3))
        >>> history = model.fit(
        ...     x, y % 3, epochs=2, callbacks=[schedule], verbose=0
        ... )
        >>> [len(gammas) for gammas in schedule.gammas]
        [4, 4]

    Reference:
        Ghosh et al., "AdaFocal: Calibration-aware Adaptive Focal Loss",
        NeurIPS 2022, arXiv:2211.11838.
    """

    counts_over_fits = True
    if_not_finite = "the gammas stay as they are"

    def __init__(
        self,
        validation_data: Any = None,
        *,
        rate: float = 1.0,
        gamma_min: float = -2.0,
        gamma_max: float = 20.0,
        switch: float = 0.2,
        every: int = 1,
        batch_size: int | None = None,
    ) -> None:
        super().__init__(validation_data, every=every, batch_size=batch_size)
        bounds = [gamma_min, switch, gamma_max, rate]
        if (
            not are_numbers(bounds)
            or not gamma_min <= -switch < switch <= gamma_max
        ):
            raise ValueError(
                "Gammas move between `gamma_min` <= -`switch` and `switch` <= "
                f"`gamma_max`, all numbers, as is `rate`. Received: "
                f"gamma_min={gamma_min!r}, gamma_max={gamma_max!r}, "
                f"switch={switch!r}, rate={rate!r}."
            )
        self.rate = rate
        self.gamma_min = gamma_min
        self.gamma_max = gamma_max
        self.switch = switch
        self._epochs = EpochNumbers()
        self.gammas: list[np.ndarray] = []
        self.gaps: list[np.ndarray] = []
        self.edges = None
        self._loss: Any = None

    def on_train_begin(self, logs: Logs = None) -> None:
        self._loss = _ada_focal_of(getattr(self.model, "loss", None))
        tables = _tables_of(self.model)
        if self._loss is None or not tables:
            raise ValueError(
                "AdaFocalSchedule sets the gammas of an `AdaFocalLoss` that "
                "the compiled step can see: `loss = "
                "kc.losses.AdaFocalLoss(...)`, then `model.compile(..., "
                'loss=loss, metrics=["accuracy", *loss.component_metrics()])`. '
                "Received: "
                f"loss={self.model.loss}, {len(tables)} tables of gammas in "
                "`metrics`."
            )
        # Read predictions as the loss does.
        self.from_logits = self._loss.from_logits
        self.ignore_class = self._loss.ignore_class
        self.axis = self._loss.axis
        super().on_train_begin(logs)
        if not any(table is self._loss.table for table in tables):
            self._adopt(tables[0])

    def _adopt(self, table):
        """Use one table where a saved file had two, of loss and of metric."""
        old, self._loss.table = self._loss.table, table
        table.set(old.edges, old.gammas)
        table.num_epochs, table.restored = old.num_epochs, old.restored
        self.model.make_train_function(force=True)
        self.model.make_test_function(force=True)

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self._epochs.begin(epoch, self.model)
        table = self._loss.table
        restored, table.restored = table.restored, False
        if epoch == 0 and not restored and self._is_new(table):
            table.restart()
        _TRAINED[table] = weakref.ref(self.model)
        if epoch == 0:
            table.num_epochs = 0
        elif restored and table.num_epochs < epoch // self.every * self.every:
            self._catch_up(epoch)

    def _is_new(self, table):
        """Whether the gammas are of another model, and this one begins."""
        if table not in _TRAINED or _TRAINED[table]() is self.model:
            return False
        steps = self.model.optimizer.iterations
        return not int(keras.ops.convert_to_numpy(steps))

    def _catch_up(self, epoch):
        """Make the update that is missing in a file saved before it."""
        if self._fit_outputs is None and epoch % self.every == 0:
            self._update(epoch)
            return
        warn(
            "The weights were saved before AdaFocalSchedule had set the "
            f"gammas, and training goes on at epoch {epoch + 1} with older "
            "ones. Put AdaFocalSchedule before the callbacks that save "
            "(`BackupAndRestore`, `ModelCheckpoint`), or give it "
            "`validation_data` of its own."
        )

    def is_due(self, epoch: int) -> bool:
        """Whether gammas are updated after the epoch that runs."""
        return (self._epochs.now + 1) % self.every == 0

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        completed = self._epochs.end()
        if completed % self.every == 0:
            self._update(completed)

    def _update(self, num_epochs):
        table = self._loss.table
        read = self.predictions()
        if read is None:
            return
        if not len(read.labels):
            raise ValueError(
                "AdaFocalSchedule has no sample to measure a gap on: none of "
                "the validation data has a weight and a label that counts. "
                "Pass other validation data."
            )
        confidence, correct = read.top_label
        self.edges = interpolated_edges(
            confidence, table.num_bins, read.weights
        )
        gaps = bin_gaps(confidence, correct, self.edges, read.weights)
        gammas = updated_gammas(
            keras.ops.convert_to_numpy(table.gammas),
            gaps,
            rate=self.rate,
            gamma_min=self.gamma_min,
            gamma_max=self.gamma_max,
            switch=self.switch,
        )
        # Without the outermost edges, because training samples may lie beyond
        # them.
        table.set(self.edges[1:-1], gammas)
        table.num_epochs = num_epochs
        self.gaps.append(gaps)
        self.gammas.append(gammas)


def _tables_of(model):
    """The tables of gammas among the metrics of `compile`."""
    return [
        metric
        for metric in metrics_of_compile(model)
        if isinstance(metric, AdaFocalTable)
    ]


def _ada_focal_of(loss):
    """The `AdaFocalLoss` in a loss: itself, or a primary at any depth."""
    while loss is not None and not isinstance(loss, AdaFocalLoss):
        loss = getattr(loss, "primary", None)
    return loss
