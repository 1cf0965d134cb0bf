"""What every streaming metric shares: rows in, sums that do not drift."""

import keras
import numpy as np
from keras import ops

from keras_calib.inputs.predictions import read_predictions
from keras_calib.inputs.rows import as_rows
from keras_calib.inputs.rows import mask_of
from keras_calib.keras_private import carried_logits
from keras_calib.keras_private import keras_mask
from keras_calib.keras_private import lower_is_better
from keras_calib.ops.confidence import top_label


@lower_is_better
class CalibrationMetric(keras.metrics.Metric):
    """Base of the metrics: fixed-size sums over rows.

    A running float32 sum loses what is smaller than its last digit: a count
    stops at 2^24. So each sum is kept as two numbers, the second holding what
    did not fit into the first.

    Args:
        from_logits: whether predictions are logits.
        axis: the class axis.
        ignore_class: rows with this label do not count.
        name: name in the logs.
        dtype: as in Keras; sums are float32 at least.
    """

    def __init__(
        self,
        from_logits=False,
        axis=-1,
        ignore_class=None,
        name=None,
        dtype=None,
    ):
        super().__init__(name=name, dtype=dtype)
        self.from_logits = from_logits
        self.axis = axis
        self.ignore_class = ignore_class
        self._checked = False
        self._sums = {}

    def add_sums(self, name, shape):
        """Add a sum that starts at zero; see `add_to` and `sums`."""
        self._sums[name] = tuple(
            self.add_variable(shape, "zeros", dtype="float32", name=part)
            for part in (name, f"{name}_rest")
        )

    def add_to(self, name, values):
        """Add to a sum, and keep what rounding takes away (Knuth's two-sum)."""
        total, rest = self._sums[name]
        values = ops.cast(values, "float32")
        old = ops.convert_to_tensor(total)
        new = old + values
        given = new - old
        lost = (old - (new - given)) + (values - given)
        rest.assign(rest + lost)
        total.assign(new)

    def sums(self, name):
        """The value of a sum, float32."""
        total, rest = self._sums[name]
        return ops.convert_to_tensor(total) + ops.convert_to_tensor(rest)

    def merge_state(self, metrics):
        """Add what other metrics of the same settings have seen.

        Args:
            metrics: an iterable of metrics, of other processes for example.
        """
        for other in metrics:
            self.build_like(other)
            for name, parts in other._sums.items():
                for part in parts:
                    self.add_to(name, ops.convert_to_tensor(part))

    def build_like(self, other):
        """Create the sums that wait for the first batch, if `other` has them.

        For metrics whose state depends on the number of classes.
        """

    def rows(self, y_true, y_pred, sample_weight=None):
        """Read a batch as `Rows`; the first one that can be seen is checked."""
        rows = as_rows(
            y_true,
            y_pred,
            sample_weight,
            from_logits=self.from_logits,
            axis=self.axis,
            ignore_class=self.ignore_class,
            check=not self._checked,
            mask=mask_of(y_true, y_pred),
            use_carried=False,
        )
        self._checked = self._checked or rows.checked
        return rows

    def events(self, y_true, y_pred, sample_weight=None):
        """Confidence, correctness and weight of each row's prediction.

        A row that cannot be has confidence NaN: compiled code cannot raise.
        """
        rows = self.rows(y_true, y_pred, sample_weight)
        confidence, correct = top_label(rows)
        confidence = ops.where(rows.faulty, float("nan"), confidence)
        return confidence, correct, rows.weights

    def host_events(self, y_true, y_pred, sample_weight=None):
        """The same as NumPy arrays, where that is cheap; `None` elsewhere.

        Also where the input is bad: `events` tells.
        """
        softmax_as_logits = (
            self.from_logits and carried_logits(y_pred) is not None
        )
        if softmax_as_logits or not on_host(y_pred):
            return None
        try:
            found = read_predictions(
                y_true,
                y_pred,
                sample_weight,
                self.from_logits,
                self.axis,
                self.ignore_class,
                keras_mask(y_pred),
                # Of one batch among many.
                relative=False,
            )
        except ValueError:
            return None
        self._checked = True
        weight = found.weight
        if weight is None:
            weight = np.ones(len(found.labels))
        return (*found.top_label, weight)

    def get_config(self):
        return {
            **super().get_config(),
            "from_logits": self.from_logits,
            "axis": self.axis,
            "ignore_class": self.ignore_class,
        }


def on_host(y_pred):
    """Whether predictions are values that NumPy can read where they are.

    torch runs one operation after the other: on a CPU, half a hundred small
    ones cost many times what NumPy needs for the same sums. The other backends
    compile them.
    """
    if keras.backend.backend() != "torch":
        return False
    import torch

    return (
        isinstance(y_pred, torch.Tensor)
        and y_pred.device.type == "cpu"
        and not torch.compiler.is_compiling()
    )
