"""The outputs of `fit`'s own validation, without a second pass."""

import contextlib
import itertools

import keras
import numpy as np
from keras import ops

from keras_calib import data
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.rows import at_least_float32
from keras_calib.ops.replicas import num_replicas

KEY = "_keras_calib_outputs"


class ValidationPass:
    """Collect labels and predictions from the test steps of a model.

    Keras compiles the test step, and it returns metrics only. While validation
    runs, a second test function stands in for it, which returns the outputs
    too; they are taken out again before Keras sees the metrics. Use it from
    `on_test_begin` and `on_test_end` of a callback.

    Args:
        model: a compiled `keras.Model` with one output.
    """

    def __init__(self, model):
        self.model = model
        self._function = None
        self._plain = None
        self._batches = []
        self._started = False

    def possible(self):
        """Whether one test step is one batch on one replica."""
        if self.model.steps_per_execution != 1:
            return False
        return num_replicas(self.model) == 1

    def start(self):
        """Let the collecting function stand in."""
        self._batches = []
        self._started = True
        if not self.possible():
            return
        model = self.model
        self._plain = model.test_function
        if self._function is None:
            self._function = self._build()
        model.test_function = self._function

    def stop(self):
        """Put the model's own function back."""
        if self._plain is not None:
            self.model.test_function = self._plain
            self._plain = None

    def outputs(self):
        """Predictions, labels and weights; `None` without a validation."""
        if not self._started:
            return None
        self._started = False
        batches, self._batches = self._batches, []
        if not batches:
            return self._predict()
        return tuple(
            None if parts[0] is None else np.concatenate(parts)
            for parts in zip(*batches, strict=True)
        )

    def _predict(self):
        """The same from a pass of its own over `fit`'s validation data."""
        # Keras keeps it for the next validation, under a private name.
        iterator = getattr(self.model, "_eval_epoch_iterator", None)
        if iterator is None:
            raise ValueError(
                "The outputs of `fit`'s validation cannot be had here: pass "
                "`validation_data` to the callback, too."
            )
        batches = iterator.data_adapter.get_numpy_iterator()
        source = (
            keras.utils.unpack_x_y_sample_weight(tuple(batch))
            for batch in batches
        )
        if iterator.steps_per_epoch is not None:
            source = itertools.islice(source, iterator.steps_per_epoch)
        return data.predict_once(self.model, source, None)

    def _build(self):
        model = self.model
        step, plain = model.test_step, model.test_function
        compute_metrics = model.compute_metrics

        def collecting(x, y, y_pred, sample_weight=None):
            found = compute_metrics(x, y, y_pred, sample_weight)
            if not ops.is_tensor(y_pred):
                raise ValueError(
                    "Calibration is measured on one output. Received: "
                    f"predictions of type {type(y_pred).__name__}. Pass "
                    "`validation_data` and a model of one output."
                )
            # A tuple: TensorFlow cannot return a list from its step.
            outputs = (at_least_float32(y_pred), y)
            if sample_weight is not None:
                outputs = (*outputs, sample_weight)
            return {**found, KEY: outputs}

        def test_step(*arguments):
            # Looked up by the step while it runs, or is traced.
            model.compute_metrics = collecting
            try:
                return step(*arguments)
            finally:
                del model.compute_metrics

        @contextlib.contextmanager
        def standing_in():
            """Some backends look the step up once, torch at every call."""
            model.test_step = test_step
            try:
                yield
            finally:
                del model.test_step

        with standing_in():
            model.make_test_function(force=True)
        function, model.test_function = model.test_function, plain

        def take_outputs_out(*arguments):
            with standing_in():
                returned = function(*arguments)
            # JAX returns its state with the logs.
            logs = returned[0] if isinstance(returned, tuple) else returned
            outputs = logs.pop(KEY, None)
            if outputs is not None:
                outputs = [as_array(values) for values in outputs]
                self._batches.append((*outputs, None)[:3])
            return returned

        return take_outputs_out
