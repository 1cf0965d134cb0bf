"""Base class of the streaming metrics: reads batches, adds up sums."""

import re
from collections.abc import Iterable
from typing import Any

import keras
from keras import ops

from keras_calib._typing import ArrayLike
from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import require_flags
from keras_calib.inputs.arguments import require_kind
from keras_calib.inputs.masks import mask_of
from keras_calib.inputs.rows import Rows
from keras_calib.inputs.rows import as_rows
from keras_calib.keras_private import lower_is_better
from keras_calib.ops.confidence import top_label

# Settings by which batches are read, which may differ.
READING = {
    "name",
    "dtype",
    "from_logits",
    "axis",
    "ignore_class",
    "num_classes",  # see `create_for`
}
WORDS = re.compile("(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@lower_is_better
class CalibrationMetric(keras.metrics.Metric):
    """Base class of the metrics, whose state is a fixed number of sums.

    A running float32 sum cannot hold terms below its last digit, and a count
    stops at 2^24. So each sum is stored as two numbers, of which the second
    holds the part that was rounded off.

    `settings` lists the arguments of a subclass; `get_config` reads them from
    the attributes of the same names.

    Args:
        from_logits: whether predictions are logits.
        axis: the class axis.
        ignore_class: rows with this label are ignored.
        name: name in the logs; defaults to the class name in snake case.
        dtype: as in Keras; the sums are float32.

    Call arguments:
        y_true: class ids, `(...)` or `(..., 1)`, or one-hot rows, `(...,
            num_classes)`.
        y_pred: probabilities, or logits if `from_logits`, `(...,
            num_classes)`; `(..., 1)` for one sigmoid unit.
        sample_weight: `None`, or weights that broadcast from the left.

    Raises:
        ValueError: if `from_logits` is not true or false.
    """

    settings: tuple[str, ...] = ()
    # Number of classes of the sums, once it is known, where they depend on it.
    classes: Any = None

    def __init__(
        self,
        *,
        from_logits: bool = False,
        axis: int = -1,
        ignore_class: int | None = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        name = name or WORDS.sub("_", type(self).__name__).lower()
        super().__init__(name=name, dtype=dtype)
        require_flags(from_logits=from_logits)
        self.from_logits = from_logits
        self.axis = axis
        self.ignore_class = ignore_class
        self._values_seen = False
        self._sums: dict[str, tuple[Any, Any]] = {}

    def add_sums(self, name: str, shape: tuple[int, ...]) -> None:
        """Create a sum, with the initial value 0; see `add_to` and `sums`."""
        self._sums[name] = tuple(
            self.add_variable(shape, "zeros", dtype="float32", name=part)
            for part in (name, f"{name}_rest")
        )

    def add_to(self, name: str, values: Tensor) -> None:
        """Add to a sum, and store the part rounded off (Knuth's two-sum)."""
        total, rest = self._sums[name]
        values = ops.cast(values, "float32")
        old = ops.convert_to_tensor(total)
        new = old + values
        given = new - old
        lost = (old - (new - given)) + (values - given)
        rest.assign(rest + lost)
        total.assign(new)

    def sums(self, name: str) -> Tensor:
        """The value of a sum, float32."""
        total, rest = self._sums[name]
        return ops.convert_to_tensor(total) + ops.convert_to_tensor(rest)

    def reset_state(self) -> None:
        """Begin a new pass; the values of its first batch are checked."""
        super().reset_state()
        self._values_seen = False

    def update_state(
        self,
        y_true: ArrayLike,
        y_pred: ArrayLike,
        sample_weight: ArrayLike | None = None,
    ) -> None:
        self.update_rows(self.rows(y_true, y_pred, sample_weight))

    def update_rows(self, rows: Rows) -> None:
        """Add the `Rows` of a batch to the sums."""
        raise NotImplementedError

    def create_sums(self) -> None:
        """Create the sums whose shape depends on `classes`."""
        raise NotImplementedError

    def create_for(self, num_classes: int) -> None:
        """Create the sums per class, once the number of classes is known."""
        if self.classes is None:
            self.classes = num_classes
            self.create_sums()
        elif num_classes != self.classes:
            raise ValueError(
                f"The metric counts {self.classes} classes. Received: "
                f"predictions with {num_classes}. Make one metric for each."
            )

    def merge_state(self, metrics: Iterable["CalibrationMetric"]) -> None:
        """Add the sums of other metrics with the same settings.

        Args:
            metrics: an iterable of metrics, from other processes for example:
                pickled they keep their sums.

        Raises:
            ValueError: if one is of another class, or has other settings; the
                sums are then as they were.
        """
        metrics = list(metrics)
        for other in metrics:
            require_kind(
                CalibrationMetric, "calibration metrics", metrics=other
            )
            own, others = map(_settings, (self, other))
            if own != others:
                raise ValueError(
                    "Metrics can be merged that have the same settings. "
                    f"Received: {others} to be added to {own}."
                )
        for other in metrics:
            if other.classes is not None:
                self.create_for(other.classes)
            for name, parts in other._sums.items():
                for part in parts:
                    self.add_to(name, ops.convert_to_tensor(part))

    def __reduce__(self) -> tuple:
        """A copy, or a metric sent to another process, keeps its sums.

        Keras' own start anew, and merging those would add nothing.
        """
        sums = {
            name: [ops.convert_to_numpy(part) for part in parts]
            for name, parts in self._sums.items()
        }
        return _restored, (type(self), self.get_config(), self.classes, sums)

    def rows(
        self,
        y_true: ArrayLike,
        y_pred: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        axis: int | None = None,
        mask: Tensor | None = None,
    ) -> Rows:
        """Read a batch as `Rows`; the first eager one of a pass is checked."""
        rows = as_rows(
            y_true,
            y_pred,
            sample_weight,
            from_logits=self.from_logits,
            axis=self.axis if axis is None else axis,
            ignore_class=self.ignore_class,
            check=not self._values_seen,
            mask=mask_of(y_true, y_pred) if mask is None else mask,
            use_carried=False,
        )
        self._values_seen = self._values_seen or rows.checked
        return rows

    def events(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Confidence, correctness and weight of the prediction of each row.

        Invalid rows get a NaN confidence, because compiled code cannot raise.
        """
        confidence, correct = top_label(rows)
        confidence = ops.where(rows.faulty, float("nan"), confidence)
        return confidence, correct, rows.weights

    def get_config(self) -> dict[str, Any]:
        names = ("from_logits", "axis", "ignore_class", *self.settings)
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in names},
        }


def _settings(metric):
    """What the sums depend on, but for the way to read a batch."""
    config = metric.get_config().items()
    known = {key: value for key, value in config if key not in READING}
    return {"class": type(metric).__name__, **known}


def _restored(make, config, classes, sums):
    """The metric that `__reduce__` took apart."""
    metric = make.from_config(config)
    if classes is not None:
        metric.create_for(classes)
    for name, parts in sums.items():
        for variable, value in zip(metric._sums[name], parts, strict=True):
            variable.assign(value)
    return metric
