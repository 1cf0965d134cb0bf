"""Collect the outputs of `fit`'s validation, without a second pass."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable

import keras

from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.tensors import at_least_float32
from keras_calib.keras_private import keras_mask
from keras_calib.keras_private import validation_iterator
from keras_calib.ops.replicas import num_replicas

KEY = "_keras_calib_outputs"


class FitOutputs:
    """Labels and predictions from the test steps of a model.

    Keras' compiled test step returns metrics only. For each batch of a
    validation, a second test function replaces it that also returns the
    outputs, which are removed again before Keras reads the metrics. Call
    `start` in `on_test_begin` and `arm` in `on_test_batch_begin` of a callback.
    Several callbacks may collect from one validation.

    Args:
        model: a compiled `keras.Model` with one output.
    """

    def __init__(self, model):
        self.model = model
        self._function = None
        self._own = None
        self._batches = []
        self._started = False
        self._passed_over = False

    def possible(self):
        """Whether one test step is one batch on one replica."""
        one_batch = self.model.steps_per_execution == 1
        return one_batch and num_replicas(self.model) == 1

    def start(self):
        """Forget earlier batches: a validation starts."""
        put_back(self.model)
        self._batches = []
        self._started = True

    def begin_epoch(self):
        """Forget the validations of the epoch before, read or not."""
        self._batches = []
        self._started = self._passed_over = False

    def pass_over(self):
        """A validation starts whose outputs are not wanted so far."""
        self._passed_over = True

    def arm(self):
        """Let the collecting function replace the test function once.

        For one batch only, because no callback runs when an exception ends a
        validation, and the model must then be as it was.
        """
        if not self._started or not self.possible():
            return
        current = self.model.test_function
        if not isinstance(current, _StandIn):
            if self._own is not current:
                self._function = _collecting_function(self.model)
                self._own = current
            current = _StandIn(self.model, current, self._function)
            self.model.test_function = current
        current.readers.append(self._batches)

    def outputs(self, predict):
        """Predictions, labels, weights and mask of each batch.

        Args:
            predict: a function from an iterator of `(x, labels, weights)` to
                one of `(predictions, labels, weights, mask)`. It is called if
                outputs could not be collected from the test steps.

        Returns:
            An iterator of tuples, or `None` without a validation, or after
            one that was passed over and whose data cannot be read again.
        """
        if not self._started:
            again = self._passed_over and self._can_be_read_again()
            return predict(self._data()) if again else None
        self._started = False
        batches, self._batches = self._batches, []
        return iter(batches) if batches else predict(self._data())

    def collected(self):
        """What has been collected so far, a list of such tuples."""
        return list(self._batches)

    def _data(self):
        """`fit`'s validation data, which Keras keeps for the next epoch."""
        if not self._can_be_read_again():
            raise ValueError(
                "The outputs of `fit`'s validation are not available here: "
                "pass `validation_data` to the callback, too."
            )
        iterator = validation_iterator(self.model)
        batches = iterator.data_adapter.get_numpy_iterator()
        source = (
            keras.utils.unpack_x_y_sample_weight(tuple(batch))
            for batch in batches
        )
        if iterator.steps_per_epoch is None:
            return source
        # Keras ends with a whole execution of several steps.
        together = self.model.steps_per_execution
        executions = -(-iterator.steps_per_epoch // together)
        return itertools.islice(source, executions * together)

    def _can_be_read_again(self):
        """Whether Keras keeps the data; of a generator it cannot."""
        iterator = validation_iterator(self.model)
        if iterator is None:
            return False
        return not hasattr(iterator.data_adapter, "generator")


def put_back(model):
    """Restore a model's own test function after an exception."""
    if isinstance(model.test_function, _StandIn):
        model.test_function = model.test_function.own


@dataclasses.dataclass(eq=False)
class _StandIn:
    """A test function for one batch, which restores the model's own one.

    Attributes:
        model: the model whose test function is replaced.
        own: that test function.
        function: one that returns the outputs beside the metrics.
        readers: lists to which the outputs of the batch are appended.
    """

    model: keras.Model
    own: Callable
    function: Callable
    readers: list[list] = dataclasses.field(default_factory=list)

    def __call__(self, *arguments):
        self.model.test_function = self.own
        returned = self.function(*arguments)
        outputs = logs_of(returned).pop(KEY, None)
        if outputs is not None:
            batch = tuple(
                as_array(outputs[name]) if name in outputs else None
                for name in ("predictions", "labels", "weight", "mask")
            )
            for batches in self.readers:
                batches.append(batch)
        return returned


def logs_of(returned):
    """The logs that a test step returns; on JAX its state is with them."""
    return returned[0] if isinstance(returned, tuple) else returned


def _collecting_function(model):
    """A test function that also returns the outputs of its batch."""
    step, own = model.test_step, model.test_function
    compute_loss, compute_metrics = model.compute_loss, model.compute_metrics
    passed, intact, calls = None, None, 0

    def keeping(x=None, y=None, y_pred=None, sample_weight=None, **options):
        # On PyTorch, Keras' losses multiply weights by the mask in place.
        nonlocal passed, intact
        passed = sample_weight
        intact = keras.tree.map_structure(
            lambda w: None if w is None else keras.ops.copy(w), sample_weight
        )
        return compute_loss(x, y, y_pred, sample_weight, **options)

    def collecting(x, y, y_pred, sample_weight=None):
        nonlocal passed, intact, calls
        calls += 1
        found = compute_metrics(x, y, y_pred, sample_weight)
        if sample_weight is passed:
            sample_weight = intact
        # What was traced must not outlive its step.
        passed = intact = None
        outputs = {
            "predictions": at_least_float32(the_one(y_pred, "output")),
            "labels": the_one(y, "set of labels"),
        }
        if sample_weight is not None:
            outputs["weight"] = the_one(sample_weight, "set of weights")
        mask = keras_mask(the_one(y_pred, "output"))
        if mask is not None:
            outputs["mask"] = mask
        return {**found, KEY: outputs}

    def test_step(*arguments):
        # JAX keeps what it traced by the step: this is a step of its own.
        return of_one_call(step, *arguments)

    def of_one_call(function, *arguments):
        nonlocal calls
        calls = 0
        returned = function(*arguments)
        if calls > 1:
            # A step that measures several outputs does not say which of them
            # the predictions are.
            logs_of(returned).pop(KEY, None)
        return returned

    with _attribute(model, "test_step", test_step):
        try:
            model.make_test_function(force=True)
            function = model.test_function
        finally:
            model.test_function = own

    def collect(*arguments):
        # The step looks these up while it runs or is traced. Not within the
        # step: `torch.compile` loses what is replaced there.
        with (
            _attribute(model, "compute_loss", keeping),
            _attribute(model, "compute_metrics", collecting),
        ):
            return of_one_call(function, *arguments)

    return collect


def the_one(values, what):
    """The tensor in a structure of one.

    Args:
        values: a tensor, or lists and dicts of tensors.
        what: the singular noun for it.

    Raises:
        ValueError: if there is none, or several.
    """
    leaves = [leaf for leaf in keras.tree.flatten(values) if leaf is not None]
    if len(leaves) != 1:
        names = f" ({', '.join(values)})" if isinstance(values, dict) else ""
        raise ValueError(
            f"Calibration is measured on one {what}. Received: {len(leaves)}"
            f"{names}. `kc.metrics.calibration_errors` takes the predictions "
            "of each output by themselves."
        )
    return leaves[0]


@contextlib.contextmanager
def _attribute(model, name, value):
    """Replace a method of a model while a block runs."""
    before = vars(model).get(name)
    setattr(model, name, value)
    try:
        yield
    finally:
        if before is None:
            delattr(model, name)
        else:
            setattr(model, name, before)
