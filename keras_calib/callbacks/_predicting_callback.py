"""Base of callbacks that read predictions on validation data each epoch.

The predictions are those of `fit`'s validation, or of a pass over data that
the callback was given.
"""

import math
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib._typing import Logs
from keras_calib._warning import warn
from keras_calib.calibration._preprocessed import preprocess
from keras_calib.calibration._preprocessed import raw_arrays
from keras_calib.calibration._preprocessed import taken_apart
from keras_calib.callbacks._fit_outputs import FitOutputs
from keras_calib.callbacks._fit_outputs import put_back
from keras_calib.callbacks._fit_outputs import the_one
from keras_calib.data import batches
from keras_calib.data.collect import samples_told
from keras_calib.data.join import concatenate
from keras_calib.data.join import join_labels
from keras_calib.data.predict import outputs_and_mask
from keras_calib.data.predict import states_kept
from keras_calib.evaluation.refinement import best_temperature
from keras_calib.inputs.arguments import require_flags
from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.not_finite import NotFinite
from keras_calib.inputs.predictions import read_predictions
from keras_calib.inputs.rules import layout
from keras_calib.keras_graph.endings import output_kind


class PredictingCallback(keras.callbacks.Callback):
    """Base of callbacks that read predictions after an epoch.

    Args:
        validation_data: `(x, y)` or `(x, y, sample_weight)` arrays, or a
            dataset as `fit` takes it; `None` for the predictions of `fit`'s
            validation.
        num_bins: int, number of bins.
        from_logits: whether the model returns logits.
        ignore_class: samples with this label are ignored.
        every: int, period in epochs; also runs after the last epoch, unless a
            callback that comes later ends the training.
        batch_size: for arrays; defaults to the one of a model whose batches
            have a fixed size, else to 32.
        axis: the class axis of the predictions.

    Raises:
        ValueError: if `every` or `num_bins` is below 1, or data cannot be read
            in each epoch; when training begins, if the model has several
            outputs or its last layer, or first predictions on arrays,
            contradict `from_logits`.
    """

    # Whether epochs are counted over all calls of `fit`, so that none of one
    # call may be due.
    counts_over_fits = False
    # What a warning says of epochs in which the outputs are no numbers.
    if_not_finite = "its values are NaN"

    def __init__(
        self,
        validation_data: Any = None,
        *,
        num_bins: int = 15,
        from_logits: bool = False,
        ignore_class: int | None = None,
        every: int = 1,
        batch_size: int | None = None,
        axis: int = -1,
    ) -> None:
        super().__init__()
        require_integer(1, every=every, num_bins=num_bins)
        require_flags(from_logits=from_logits)
        if batch_size is not None:
            require_integer(1, batch_size=batch_size)
        if validation_data is not None:
            validation_data = _rereadable(validation_data)
            if not isinstance(validation_data, tuple):
                batches.check_dataset(validation_data, None, batch_size)
        self.validation_data = validation_data
        self.num_bins = num_bins
        self.from_logits = from_logits
        self.ignore_class = ignore_class
        self.every = every
        self.batch_size = batch_size
        self.axis = axis
        self._epoch: int | None = None
        self._fit_outputs: FitOutputs | None = None
        self._temperature: float | None = None
        # Whether there were data in an epoch that was not due.
        self._passed_over = False
        self._asked = self._measured = self._told = False
        # The number of classes, after a validation without numbers.
        self._not_finite: int | None = None

    def set_model(self, model: keras.Model) -> None:
        # Called at the start of each `fit` and `evaluate`: an exception may
        # have ended the last one without `on_train_end`.
        super().set_model(model)
        # Preprocessing may change labels and weights, too.
        self._plain, self._preprocessor = taken_apart(model)
        self._epoch = None
        self._fit_outputs = None
        self._temperature = None
        self._passed_over = False
        self._asked = self._measured = self._told = False
        if model is not None and hasattr(model, "test_function"):
            put_back(model)

    def on_train_begin(self, logs: Logs = None) -> None:
        outputs = getattr(self.model, "outputs", None)
        if outputs is not None and len(outputs) != 1:
            the_one(self.model.output, "output")
        if isinstance(self.validation_data, tuple) and self.model.built:
            self._check_first_batch()
        else:
            self._check_kind()
        if self.validation_data is None:
            self._fit_outputs = FitOutputs(self.model)

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._epoch = epoch
        if self._fit_outputs is not None:
            self._fit_outputs.begin_epoch()

    def on_test_begin(self, logs: Logs = None) -> None:
        # `evaluate` outside of `fit` has no epoch.
        if self._fit_outputs is None or self._epoch is None:
            return
        if self.is_due(self._epoch):
            self._fit_outputs.start()
        else:
            # A callback may stop training after it: then it is due.
            self._fit_outputs.pass_over()
            self._passed_over = True

    def on_test_batch_begin(self, batch: int, logs: Logs = None) -> None:
        if self._fit_outputs is not None:
            self._fit_outputs.arm()

    def on_train_end(self, logs: Logs = None) -> None:
        # Where training was complete before, no epoch ran.
        was_due = self._epoch is not None
        was_due = was_due and (self._asked or not self.counts_over_fits)
        self._epoch = None
        self._fit_outputs = None
        if was_due and not self._measured:
            warn(self._why_nothing())

    def is_due(self, epoch: int) -> bool:
        """Whether the callback runs after this epoch, counted from 0."""
        last = epoch + 1 == self.params.get("epochs")
        last = last or getattr(self.model, "stop_training", False)
        return last or (epoch + 1) % self.every == 0

    def arrays(self):
        """Outputs of the model on the validation data, read batch by batch.

        Sequences may have another length in each batch. Rows that are masked,
        void or of weight 0 are left out.

        Returns:
            `None` if `fit` had no validation in this epoch, or the outputs were
            not finite; else arrays as `calibration_errors` takes them: labels
            `(n,)`, or soft ones `(n, num_classes)`; logits or probabilities,
            `(n, num_classes)`; weights `(n,)`.

        Raises:
            ValueError: for bad input, or if there is no batch.
        """
        if self._fit_outputs is None:
            found = self._predict_batches(self._batches(self.validation_data))
        else:
            found = self._fit_outputs.outputs(self._predict_batches)
        self._asked, self._not_finite = True, None
        if found is None:
            return None
        arrays = self._join(found)
        self._measured = True
        if arrays is None and not self._told:
            self._told = True
            warn(
                f"{type(self).__name__}: the network's outputs were not finite "
                f"from epoch {(self._epoch or 0) + 1} on, and "
                f"{self.if_not_finite}. Received: NaN or infinity. Look for "
                "overflow in the network, or lower the learning rate."
            )
        return arrays

    def log_nan(self, logs: dict[str, Any], keys: Iterable[str]) -> None:
        """Log NaN under these keys, if the last outputs were not finite."""
        if self._not_finite is not None:
            logs.update(dict.fromkeys(keys, math.nan))

    def predictions(self):
        """`arrays` as `Predictions`, or `None`."""
        arrays = self.arrays()
        if arrays is None:
            return None
        return read_predictions(*arrays, from_logits=self.from_logits)

    def fit_temperature(self, predictions):
        """The best temperature, searched from that of the last epoch.

        Returns:
            `TemperatureFit`; a temperature at its bound is returned as it is.
        """
        found = best_temperature(predictions, start=self._temperature)
        at_bound = found.stop_reason is not None
        self._temperature = None if at_bound else found.temperature
        return found

    def _join(self, found):
        parts, start = [], 0
        for batch in found:
            with samples_told(start, len(batch[0])):
                parts.append(self._read_if_finite(*batch))
            start += len(batch[0])
        if not parts:
            raise ValueError(
                f"{type(self).__name__} has no validation data. Received: 0 "
                "batches with a sample in them."
            )
        if self._not_finite is not None:
            return None
        labels, scores, weights = map(list, zip(*parts, strict=True))
        scores = concatenate(scores)
        labels = join_labels(labels, scores.shape[-1])
        return labels, scores, np.concatenate(weights)

    def _read_if_finite(self, scores, labels, weights, mask):
        """`_read`, or `None` for outputs of a network that diverged."""
        try:
            return self._read(scores, labels, weights, mask)
        except NotFinite:
            shapes = np.shape(labels), np.shape(scores)
            self._not_finite = layout(*shapes, self.axis).num_classes

    def _read(self, scores, labels, weights, mask):
        found = read_predictions(
            labels,
            scores,
            weights,
            from_logits=self.from_logits,
            axis=self.axis,
            ignore_class=self.ignore_class,
            mask=mask,
            # Weights are relative to those of other batches, too.
            relative=False,
        )
        ones = np.ones(len(found.labels))
        return (
            found.labels if found.targets is None else found.targets,
            found.logits if self.from_logits else found.probabilities,
            ones if found.weights is None else found.weights,
        )

    def _batches(self, data):
        if not isinstance(data, tuple):
            return batches.as_batches(data, batch_size=self.batch_size)
        return batches.as_batches(*data, batch_size=self._batch_size())

    def _predict_batches(self, source):
        """Run the model over batches, and leave its states as they were."""
        prepared = preprocess(self._preprocessor)
        with states_kept(self.model, reset=True):
            for x, labels, weights in source:
                x = batches.for_model(x)
                if not len(keras.tree.flatten(x)[0]):
                    continue
                x, labels, weights = prepared(x, labels, weights)
                scores, mask = outputs_and_mask(
                    self._plain, batches.for_model(x)
                )
                if weights is not None:
                    weights = the_one(weights, "set of weights")
                yield scores, the_one(labels, "set of labels"), weights, mask

    def _why_nothing(self):
        name = type(self).__name__
        if self._passed_over or self.validation_data is not None:
            return (
                f"{name} measured nothing: no epoch that was due had a "
                f"validation. Received: every={self.every}. Let `every` meet "
                "`validation_freq` of `fit`, and put what ends the training "
                "before this callback in the list; or measure more often."
            )
        return (
            f"{name} received no validation data: pass `validation_data` to "
            "`fit`, or to the callback."
        )

    def _check_kind(self):
        """Find a wrong `from_logits` by the graph, before there are data."""
        kind = output_kind(self.model)
        wanted = "logits" if self.from_logits else "probabilities"
        if kind not in (None, wanted):
            raise ValueError(
                f"The model gives {kind}, as its last layer shows: pass "
                f"`from_logits={not self.from_logits}`. Received: "
                f"{type(self).__name__}(from_logits={self.from_logits})."
            )

    def _check_first_batch(self):
        """Find a wrong `from_logits` before the first epoch."""
        batches.check_same_length(self.validation_data, " of `validation_data`")
        first = batches.take(self.validation_data, slice(self._batch_size()))
        found = list(self._predict_batches(self._batches(first)))
        if found:
            self._join(found)

    def _batch_size(self):
        """Stateful models have batches of a fixed size."""
        if self.batch_size is not None:
            return self.batch_size
        inputs = getattr(self.model, "inputs", None) or []
        sizes = {tensor.shape[0] for tensor in inputs} - {None}
        return sizes.pop() if sizes else 32


def _rereadable(validation_data):
    """Data that can be read again in each epoch.

    Raises:
        ValueError: for an iterator, endless data, or a tuple of another form.
    """
    kind = type(validation_data).__name__
    if isinstance(validation_data, list | tuple):
        if len(validation_data) not in (2, 3):
            raise ValueError(
                "`validation_data` is `(x, y)`, `(x, y, sample_weight)` or a "
                "dataset that gives them in batches. Received: a "
                f"{kind} of {len(validation_data)}."
            )
        x, *labels = validation_data
        x = raw_arrays(x)
        if not any(hasattr(leaf, "shape") for leaf in keras.tree.flatten(x)):
            x = np.asarray(x)
        return x, *batches.lists_as_arrays(*labels)
    if isinstance(validation_data, np.ndarray) or ops.is_tensor(
        validation_data
    ):
        raise ValueError(
            "`validation_data` needs labels: pass `(x, y)`. Received: an "
            f"array of shape {tuple(validation_data.shape)}."
        )
    if hasattr(validation_data, "__next__"):
        raise ValueError(
            "A generator is used up after one epoch, and may have no end: "
            "pass `(x, y)` arrays, or a dataset that starts anew each time it "
            "is iterated over (`tf.data`, a `PyDataset`, a `DataLoader`). "
            f"Received: validation_data of type {kind}."
        )
    if batches.num_batches(validation_data) == batches.ENDLESS:
        raise ValueError(
            "`validation_data` has no end. Pass a finite part of it, such as "
            "`dataset.take(steps)`, or `(x, y)` arrays. Received: "
            f"{kind}."
        )
    return validation_data
