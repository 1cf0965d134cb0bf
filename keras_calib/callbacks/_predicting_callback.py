"""Predictions on validation data: those of `fit`, or of a pass of one's own."""

import contextlib
import dataclasses

import keras
import numpy as np
from keras import ops

from keras_calib.callbacks._fit_outputs import ValidationPass
from keras_calib.callbacks._fit_outputs import put_back
from keras_calib.callbacks._fit_outputs import the_one
from keras_calib.data import batches as data
from keras_calib.inputs.predictions import read_predictions
from keras_calib.keras_private import flatten_layers


class ValidationCallback(keras.callbacks.Callback):
    """Base of callbacks that look at predictions after an epoch.

    Args:
        validation_data: `(x, y)` or `(x, y, sample_weight)` arrays, or a
            dataset as `fit` takes it; `None` for the predictions of `fit`'s
            own validation.
        from_logits: whether the model gives logits.
        ignore_class: samples with this label do not count.
        every: int, run after each so many epochs, and after the last one.
        batch_size: for arrays; by default the one of a model whose batches
            have a fixed size, else 32.
        axis: the class axis of the predictions.

    Raises:
        ValueError: if `every` is below 1, or data cannot be read epoch after
            epoch; when training begins, if the model has several outputs or
            its first predictions contradict `from_logits`.
    """

    def __init__(
        self,
        validation_data=None,
        from_logits=False,
        ignore_class=None,
        every=1,
        batch_size=None,
        axis=-1,
    ):
        super().__init__()
        if every < 1:
            raise ValueError(
                f"`every` must be at least 1. Received: every={every}."
            )
        if validation_data is not None:
            validation_data = _readable(validation_data)
        self.validation_data = validation_data
        self.from_logits = from_logits
        self.ignore_class = ignore_class
        self.every = every
        self.batch_size = batch_size
        self.axis = axis
        self._epoch = None
        self._pass = None

    def set_model(self, model):
        # Called once for each `fit` and `evaluate`: what another one has left
        # behind, which an exception may have ended, is over.
        super().set_model(model)
        self._epoch = None
        self._pass = None
        if model is not None and hasattr(model, "test_function"):
            put_back(model)

    def on_train_begin(self, logs=None):
        outputs = getattr(self.model, "outputs", None)
        if outputs is not None and len(outputs) != 1:
            the_one(self.model.output, "output")
        if self.validation_data is None:
            self._pass = ValidationPass(self.model)
        elif isinstance(self.validation_data, tuple) and self.model.built:
            self._check_first_batch()

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_test_begin(self, logs=None):
        # By itself, `evaluate` has no epoch.
        watched = self._pass is not None and self._epoch is not None
        if watched and self.is_due(self._epoch):
            self._pass.start()

    def on_test_batch_begin(self, batch, logs=None):
        if self._pass is not None:
            self._pass.arm()

    def on_train_end(self, logs=None):
        self._epoch = None
        self._pass = None

    def is_due(self, epoch):
        """Whether this epoch, counted from 0, is one to look at."""
        last = epoch + 1 == self.params.get("epochs")
        last = last or getattr(self.model, "stop_training", False)
        return last or (epoch + 1) % self.every == 0

    def outputs(self):
        """What the model gives for the validation data, read batch by batch.

        Sequences may have another length in each batch. What is masked, void
        or of weight 0 is left out.

        Returns:
            `None` where `fit` had no validation in this epoch; else arrays as
            `calibration_errors` takes them: labels `(n,)`, or soft ones `(n,
            num_classes)`; logits or probabilities, `(n, num_classes)`; weights
            `(n,)`, or `None`.

        Raises:
            ValueError: for bad input, or if there is no batch.
        """
        if self._pass is None:
            batches = self._predictions(self._batches())
        else:
            batches = self._pass.outputs(self._predictions)
        return None if batches is None else self._joined(batches)

    def predict(self):
        """The same as `Predictions`."""
        outputs = self.outputs()
        if outputs is None:
            return None
        labels, scores, weight = outputs
        return read_predictions(labels, scores, weight, self.from_logits)

    def _joined(self, batches):
        parts = [self._read(*batch) for batch in batches]
        if not parts:
            raise ValueError(
                f"{type(self).__name__} has no validation data. Received: 0 "
                "batches with a sample in them."
            )
        scores = data.concatenate([part.scores for part in parts])
        labels = np.concatenate([part.labels for part in parts])
        if any(part.targets is not None for part in parts):
            one_hot = np.eye(scores.shape[-1])
            labels = np.concatenate(
                [
                    one_hot[part.labels]
                    if part.targets is None
                    else part.targets
                    for part in parts
                ]
            )
        weight = None
        if any(part.weight is not None for part in parts):
            weight = np.concatenate(
                [
                    np.ones(len(part.labels))
                    if part.weight is None
                    else part.weight
                    for part in parts
                ]
            )
        return labels, scores, weight

    def _read(self, scores, labels, weight, mask):
        found = read_predictions(
            labels,
            scores,
            weight,
            from_logits=self.from_logits,
            axis=self.axis,
            ignore_class=self.ignore_class,
            mask=mask,
            # Relative to those of other batches, too.
            relative=False,
        )
        scores = found.logits if self.from_logits else found.probabilities
        return _Batch(scores, found.labels, found.targets, found.weight)

    def _batches(self):
        """The validation data as `(x, labels, weights)`, batch by batch."""
        if not isinstance(self.validation_data, tuple):
            source, _ = data.batches(
                self.validation_data, None, None, self.batch_size
            )
            return source
        arrays = (*self.validation_data, None)[:3]
        return data.batches(*arrays, self._batch_size())[0]

    def _predictions(self, source):
        """Run the model over batches, and leave it as it was."""
        with _states_kept(self.model):
            for x, labels, weight in source:
                x = data.for_model(x)
                if not len(keras.tree.flatten(x)[0]):
                    continue
                scores, mask = data.outputs_and_mask(self.model, x)
                yield scores, the_one(labels, "set of labels"), weight, mask

    def _check_first_batch(self):
        """A wrong `from_logits` costs a batch, and not an epoch."""
        size = self._batch_size()
        first = keras.tree.map_structure(
            lambda leaf: leaf if leaf is None else leaf[:size],
            self.validation_data,
        )
        source, _ = data.batches(*(*first, None)[:3], size)
        batches = list(self._predictions(source))
        if batches:
            self._joined(batches)

    def _batch_size(self):
        """Models with a state have batches of one size."""
        if self.batch_size is not None:
            return self.batch_size
        inputs = getattr(self.model, "inputs", None) or []
        sizes = {tensor.shape[0] for tensor in inputs} - {None}
        return sizes.pop() if sizes else 32


@dataclasses.dataclass(frozen=True)
class _Batch:
    scores: np.ndarray
    labels: np.ndarray
    targets: np.ndarray | None
    weight: np.ndarray | None


def _readable(validation_data):
    """Data that can be read once more after each epoch.

    Raises:
        ValueError: for an iterator, endless data, or a tuple of another form.
    """
    if isinstance(validation_data, list | tuple):
        if len(validation_data) not in (2, 3):
            raise ValueError(
                "`validation_data` is `(x, y)`, `(x, y, sample_weight)` or a "
                "dataset that gives them in batches. Received: a "
                f"{type(validation_data).__name__} of {len(validation_data)}."
            )
        x, *labels = validation_data
        if not any(hasattr(leaf, "shape") for leaf in keras.tree.flatten(x)):
            x = np.asarray(x)
        return x, *(
            np.asarray(part) if isinstance(part, list | tuple) else part
            for part in labels
        )
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
            f"Received: validation_data of type "
            f"{type(validation_data).__name__}."
        )
    if is_endless(validation_data):
        raise ValueError(
            "`validation_data` has no end. Pass a finite part of it, such as "
            "`dataset.take(steps)`, or `(x, y)` arrays. Received: "
            f"{type(validation_data).__name__}."
        )
    return validation_data


def is_endless(dataset):
    """Whether a dataset says that it has no end."""
    if isinstance(dataset, keras.utils.PyDataset):
        return dataset.num_batches is None
    cardinality = getattr(dataset, "cardinality", None)
    return cardinality is not None and int(cardinality()) == -1


@contextlib.contextmanager
def _states_kept(model):
    """Let stateful layers start from zero, and training go on with theirs."""
    layers = [
        layer
        for layer in flatten_layers(model)
        if getattr(layer, "stateful", False)
        and getattr(layer, "states", None) is not None
    ]
    before = [
        [np.array(ops.convert_to_numpy(state)) for state in layer.states]
        for layer in layers
    ]
    for layer in layers:
        layer.reset_state()
    try:
        yield
    finally:
        for layer, states in zip(layers, before, strict=True):
            for state, values in zip(layer.states, states, strict=True):
                state.assign(values)
