"""A network with a memory of each training sample: correctness, confidence."""

import warnings
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib._typing import Logs
from keras_calib._typing import Tensor
from keras_calib.data.indexed_arrays import IndexedArrays
from keras_calib.data.sample_index import SAMPLE_INDEX
from keras_calib.data.sample_index import split_index
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.arrays import concrete_value
from keras_calib.inputs.rows import as_rows
from keras_calib.losses._arguments import setting_of
from keras_calib.losses._base import ClassificationLoss
from keras_calib.losses._batch_history import BatchHistory
from keras_calib.losses._batch_history import batch_history
from keras_calib.losses._crl import CRL
from keras_calib.losses._crl import check_one_row_per_sample
from keras_calib.models._wrapped import WrappedModel
from keras_calib.models._wrapped import arguments_of_fit
from keras_calib.models._wrapped import with_callback
from keras_calib.ops.confidence import top_label
from keras_calib.ops.replicas import num_replicas

LARGEST = 2**31 - 1
# By `from_logits`.
KINDS = {False: "probabilities", True: "logits"}


@keras.saving.register_keras_serializable(package="keras_calib")
class SampleHistoryModel(WrappedModel):
    """A network and the history of its predictions on each training sample.

    Compile and fit this model instead of the network, with a number for each
    training sample: `fit(kc.add_sample_index(x), y)`. In every training step,
    the loss (`kc.losses.CRL`) first reads the history, which is then updated
    with the predictions of the same forward pass. Validation and prediction
    take plain inputs, run the network alone and do not change the history.

    The history is stored in variables of this model: `ModelCheckpoint`,
    `BackupAndRestore` and `.keras` files keep it, and training resumes with
    it. The trained network is `model.model`, to save, export or calibrate
    alone.

    Attributes:
        seen: number of visits of each sample, `(num_samples,)`.
        correct: number of correct predictions, `(num_samples,)`.
        confidence: confidence of the last prediction, `(num_samples,)`.
        average_confidence: moving average of that confidence over epochs,
            updated by `kc.callbacks.DataPruning`, `(num_samples,)`.
        kept: 0 if `DataPruning` dropped the sample, else 1, `(num_samples,)`.

    Args:
        model: a `keras.Model` that returns logits or probabilities, `(batch,
            num_classes)`.
        num_samples: int, number of training samples, which have the numbers 0
            to `num_samples - 1`.
        name: as in Keras.
        **kwargs: as in Keras.

    Raises:
        ValueError: if `num_samples` is out of range; in `fit`, if the data has
            no numbers, or numbers above `num_samples - 1`; on loading, if a
            file holds a history of another length.

    Example:
        >>> import keras, numpy as np, keras_calib as kc
        >>> x, y = np.random.default_rng(0).normal(size=(64, 4)), np.arange(64)
        >>> network = keras.Sequential([keras.layers.Dense(3)])
        >>> model = kc.models.SampleHistoryModel(network, num_samples=len(x))
        >>> loss = kc.losses.CRL(weight=1.0, from_logits=True)
        >>> model.compile("adam", loss, metrics=["accuracy"])
        >>> x = kc.add_sample_index(x)
        >>> history = model.fit(x, y % 3, epochs=2, verbose=0)
        >>> model.sample_history()["seen"].min()
        np.float32(2.0)

    Reference:
        Moon et al., "Confidence-Aware Learning for Deep Neural Networks", ICML
        2020, Section 3.2: the history is updated by the training's own forward
        pass.
    """

    settings = ("num_samples",)

    def __init__(
        self,
        model: keras.Model,
        *,
        num_samples: int,
        name: str = "sample_history_model",
        **kwargs: Any,
    ) -> None:
        super().__init__(model, name=name, **kwargs)
        if not isinstance(num_samples, int | np.integer) or not (
            0 < num_samples <= LARGEST
        ):
            raise ValueError(
                "`num_samples` is the number of training samples, an integer "
                f"from 1 to 2^31 - 1. Received: num_samples={num_samples}."
            )
        self.num_samples = int(num_samples)
        self.seen = self._memory("seen", "zeros")
        self.correct = self._memory("correct", "zeros")
        self.confidence = self._memory("confidence", "zeros")
        self.average_confidence = self._memory("average_confidence", "zeros")
        self.kept = self._memory("kept", "ones")
        # Rows whose number was out of range, since training began.
        self.num_out_of_range = self._memory(
            "num_out_of_range", "zeros", shape=()
        )

    def _memory(self, name, initializer, shape=None):
        return self.add_weight(
            shape=(self.num_samples,) if shape is None else shape,
            initializer=initializer,
            dtype="float32",
            trainable=False,
            autocast=False,
            aggregation="mean",
            name=name,
        )

    def unpack(self, inputs: Any) -> tuple[Any, Tensor | None]:
        return split_index(inputs)

    def shows_parts(self) -> bool:
        return isinstance(getattr(self, "loss", None), CRL)

    def compile(
        self, optimizer: Any = "rmsprop", loss: Any = None, **kwargs: Any
    ) -> None:
        """Compile as in Keras, with one loss.

        Args:
            optimizer: as in Keras.
            loss: one loss, of Keras or of ours.
            **kwargs: as in Keras.

        Raises:
            ValueError: if there is not exactly one loss, if neither the loss
                nor the model shows whether outputs are logits, or if they
                contradict each other.
        """
        losses = keras.tree.flatten(loss)
        if loss is None or len(losses) != 1:
            raise ValueError(
                "A model with a history of its samples needs one loss. "
                f"Received: loss={loss}."
            )
        [loss] = losses
        from_logits = setting_of(loss, "from_logits")
        if from_logits is None:
            if self.output_kind is None:
                raise ValueError(
                    "Neither the loss nor the model shows whether it gives "
                    f"logits or probabilities. Received: loss={loss}. Use a "
                    "loss with `from_logits`."
                )
            from_logits = self.output_kind == "logits"
        from_logits = bool(from_logits)
        if self.output_kind not in (None, KINDS[from_logits]):
            raise ValueError(
                "The loss must take what the model gives. Received: "
                f"from_logits={from_logits} in {loss}, and a model that gives "
                f"{self.output_kind}."
            )
        super().compile(optimizer=optimizer, loss=loss, **kwargs)
        self._gives_logits = from_logits
        self._values_seen = False

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Tensor:
        if not training:
            with batch_history(BatchHistory()) as history:
                loss = super().compute_loss(x, y, y_pred, sample_weight, False)
            self._show(history, y_pred)
            return loss
        index, valid = self._numbers(x)
        history = BatchHistory(
            correct=ops.take(self.correct, index, axis=0),
            seen=ops.take(self.seen, index, axis=0),
            lowest=self._lowest(),
        )
        with batch_history(history):
            loss = super().compute_loss(x, y, y_pred, sample_weight, True)
        self._show(history, y_pred)
        # After the loss, which must not depend on its own predictions.
        self._remember(index, valid, y, y_pred, sample_weight)
        return ops.where(ops.all(valid), loss, float("nan"))

    def _numbers(self, x):
        _, index = self.unpack(x)
        if index is None:
            raise ValueError(
                "Training data needs a number for each sample: wrap the first "
                "argument of `fit`, `fit(kc.add_sample_index(x), y)` or "
                "`fit(kc.add_sample_index(dataset))`. Received: inputs without "
                "`sample_index`."
            )
        if "int" not in keras.backend.standardize_dtype(index.dtype):
            raise ValueError(
                "`sample_index` must hold integers: a float is not exact above "
                f"2^24. Received: dtype {index.dtype}."
            )
        if any(size != 1 for size in index.shape[1:]):
            raise ValueError(
                "`sample_index` must hold one number for each sample. "
                f"Received: numbers with {len(index.shape)} axes. If a "
                "`tf.data` was numbered before it was batched, pass "
                "`batched=False`: `kc.add_sample_index(dataset, "
                "batched=False)`."
            )
        index = ops.cast(ops.reshape(index, (-1,)), "int32")
        valid = ops.logical_and(index >= 0, index < self.num_samples)
        values = concrete_value(valid)
        if values is not None and not values.all():
            raise ValueError(self._wrong_length(concrete_value(index)))
        return ops.clip(index, 0, self.num_samples - 1), valid

    def _wrong_length(self, index):
        return (
            f"The history holds {self.num_samples} samples, 0 to "
            f"{self.num_samples - 1}. Received: sample numbers from "
            f"{index.min()} to {index.max()}. Pass `num_samples=`, the "
            "length of the training data, to `SampleHistoryModel`."
        )

    def _lowest(self):
        """Smallest number of correct predictions among visited samples."""
        correct = ops.convert_to_tensor(self.correct)
        never = ops.equal(ops.convert_to_tensor(self.seen), 0.0)
        lowest = ops.min(ops.where(never, float("inf"), correct))
        return ops.where(ops.isinf(lowest), 0.0, lowest)

    def _remember(self, index, valid, y, y_pred, sample_weight):
        rows = self._rows(y, y_pred, sample_weight)
        check_one_row_per_sample(rows)
        confidence, correct = top_label(rows)
        confidence = ops.cast(ops.stop_gradient(confidence), "float32")
        used = ops.logical_and(rows.weights > 0, valid)
        used = ops.cast(used, "float32")

        # A strategy of TensorFlow averages over its replicas; these are sums.
        replicas = num_replicas()

        def by_sample(values):
            nothing = ops.zeros((self.num_samples,), "float32")
            return ops.scatter_update(nothing, index[:, None], values, "add")

        visits = by_sample(used)
        self.seen.assign_add(replicas * visits)
        correct = by_sample(used * ops.cast(correct, "float32"))
        self.correct.assign_add(replicas * correct)
        # For a sample that occurs twice in a batch, the mean of both.
        before = ops.take(self.confidence, index, axis=0)
        # That of a network that diverged says nothing, and would stay.
        known = ops.logical_and(used > 0, ops.isfinite(confidence))
        change = ops.where(known, confidence - before, 0.0)
        change = by_sample(change)
        self.confidence.assign_add(replicas * change / ops.maximum(visits, 1.0))
        invalid = ops.cast(ops.logical_not(valid), "float32")
        self.num_out_of_range.assign_add(replicas * ops.sum(invalid))

    def _rows(self, y, y_pred, sample_weight):
        if isinstance(self.loss, ClassificationLoss):
            return self.loss.rows(y, y_pred, sample_weight)
        # As in `ClassificationLoss`: a network may diverge later.
        rows = as_rows(
            y,
            y_pred,
            sample_weight,
            from_logits=self._gives_logits,
            axis=setting_of(self.loss, "axis", -1),
            ignore_class=setting_of(self.loss, "ignore_class"),
            check=not self._values_seen,
        )
        self._values_seen = self._values_seen or rows.checked
        return rows

    def _show(self, history, y_pred):
        for part, value in history.parts.items():
            self.show(part, value, ops.shape(y_pred)[0])

    def fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        """Fit as in Keras, to data with sample numbers.

        Args:
            *args: as in Keras; the first, `x`, is training data with numbers,
                see `kc.add_sample_index`.
            **kwargs: as in Keras.

        Returns:
            The `History` of Keras.

        Raises:
            ValueError: if samples have no numbers, or numbers above
                `num_samples - 1`.
        """
        arguments = arguments_of_fit(self, args, kwargs)
        x = arguments.get("x")
        if isinstance(x, dict) and SAMPLE_INDEX in x:
            index = as_array(x[SAMPLE_INDEX])
            if index.size and not (
                index.min() >= 0 and index.max() < self.num_samples
            ):
                raise ValueError(self._wrong_length(index))
        arguments["callbacks"] = with_callback(
            _RaiseForNumbers(), arguments.get("callbacks")
        )
        arguments["callbacks"] = history_first(arguments["callbacks"])
        if not isinstance(x, IndexedArrays):
            return super().fit(**arguments)
        # `IndexedArrays` shuffles the samples. Its epochs may become shorter
        # than the first one, of which Keras warns.
        arguments["shuffle"] = False
        if x.num_samples == self.num_samples:
            # Those of this model: Keras counts the batches before it calls
            # the callback, which another model may have trained with.
            x.kept = ops.convert_to_numpy(self.kept) > 0
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Your input ran out of data")
            return super().fit(**arguments)

    def sample_history(self) -> dict[str, np.ndarray]:
        """The history as arrays.

        Returns:
            A dict of float32 arrays of shape `(num_samples,)`: `seen`,
            `correct`, `confidence`, `average_confidence`, `kept`; and
            `correctness`, the fraction of correct visits, 0 without a visit.
        """
        names = ("seen", "correct", "confidence", "average_confidence", "kept")
        found = {
            name: ops.convert_to_numpy(getattr(self, name)) for name in names
        }
        visits = np.maximum(found["seen"], 1)
        return {**found, "correctness": found["correct"] / visits}

    def load_own_variables(self, store: Any) -> None:
        lengths = {
            store[key].shape[0] for key in store.keys() if store[key].shape
        }
        if lengths and lengths != {self.num_samples}:
            raise ValueError(
                "The file holds the history of another data set. Received: a "
                f"history of {sorted(lengths)} samples for a model with "
                f"num_samples={self.num_samples}."
            )
        super().load_own_variables(store)


def history_first(callbacks):
    """Callbacks that change the history, then those that may save the model.

    Otherwise `BackupAndRestore` could save the model before the history of the
    epoch is complete, depending on its place in the list.

    Args:
        callbacks: a list, or a `keras.callbacks.CallbackList`.
    """

    def later(callback):
        return not getattr(callback, "changes_history", False)

    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.callbacks.sort(key=later)
        return callbacks
    return sorted(callbacks, key=later)


class _RaiseForNumbers(keras.callbacks.Callback):
    """Raise after the epoch for wrong numbers: compiled code cannot raise."""

    changes_history = True

    def on_train_begin(self, logs: Logs = None) -> None:
        # An earlier `fit` may have ended with it.
        self.model.num_out_of_range.assign(0.0)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        invalid = float(ops.convert_to_numpy(self.model.num_out_of_range))
        if invalid:
            raise ValueError(
                f"{invalid:.0f} samples had a number outside this history. "
                f"Received: num_samples={self.model.num_samples}. Pass the "
                "length of the training data to `SampleHistoryModel`."
            )
