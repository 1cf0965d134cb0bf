"""What every loss here shares: rows in, `primary + weight * penalty` out."""

from typing import Any

import keras
from keras import ops

from keras_calib._typing import ArrayLike
from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import is_one_of
from keras_calib.inputs.arguments import require_flags
from keras_calib.inputs.arguments import require_kind
from keras_calib.inputs.arguments import require_number
from keras_calib.inputs.arguments import require_one_of
from keras_calib.inputs.masks import mask_for_metrics
from keras_calib.inputs.masks import mask_of
from keras_calib.inputs.rows import Rows
from keras_calib.inputs.rows import as_rows
from keras_calib.inputs.tensors import unwrapped
from keras_calib.inputs.tensors import wide_floatx
from keras_calib.keras_private import lower_is_better
from keras_calib.losses._arguments import CATEGORICAL
from keras_calib.losses._arguments import OF_IDS
from keras_calib.losses._arguments import OF_PROBABILITIES
from keras_calib.losses._arguments import OF_ROWS
from keras_calib.losses._arguments import check_inner_loss
from keras_calib.losses._arguments import primary_loss
from keras_calib.losses._arguments import softmax_for
from keras_calib.losses._reduction import MEAN_REDUCTIONS
from keras_calib.losses._reduction import AlreadyReduced
from keras_calib.losses._reduction import length
from keras_calib.losses._reduction import mean_reduction
from keras_calib.losses._reduction import reduce
from keras_calib.ops.replicas import of_all_replicas


def cross_entropy(rows: Rows) -> Tensor:
    """`-log p_y` per row, in nats; soft labels give `-sum_k t_k log p_k`."""
    if rows.targets is None:
        return -rows.log_probability(rows.labels)
    return -ops.sum(rows.targets * rows.log_probabilities, axis=-1)


class ClassificationLoss(keras.losses.Loss):
    """Base of the losses: a subclass turns `Rows` into loss terms.

    Two things differ from `keras.losses.Loss`. Labels stay integers: Keras
    casts them to the loss dtype, which corrupts large ids. And weights, masks
    and `ignore_class` reach the formula, because the statistic of a batch
    cannot be weighted after it was computed.

    Args:
        from_logits: whether predictions are logits. With `False`, the logits
            that Keras keeps on a softmax output are used, else `log p`.
        axis: the class axis.
        ignore_class: rows with this label do not count.
        reduction: as in Keras. Per-row terms are reduced as Keras does; the
            statistic of a batch, where there is one, is added once per row.
        name: name of the loss, also the scope of its operations.
        dtype: dtype of the result; the arithmetic is float32 at least.

    Raises:
        ValueError: if `from_logits` is not true or false.
    """

    def __init__(
        self,
        *,
        from_logits: bool = False,
        axis: int = -1,
        ignore_class: int | None = None,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        require_flags(from_logits=from_logits)
        self.from_logits = from_logits
        self.axis = axis
        self.ignore_class = ignore_class
        self._arguments: tuple[str, ...] = ()
        self._values_seen = False
        self._keras_reduction = AlreadyReduced(name="reduction", dtype=dtype)
        self.across_replicas = False

    def keep(self, **arguments: Any) -> None:
        """Keep the arguments of the formula, as attributes and in the config.

        Args:
            **arguments: what the formula takes besides the rows.
        """
        self._arguments = tuple(arguments)
        for name, value in arguments.items():
            setattr(self, name, value)

    @property
    def arguments(self):
        """What the formula takes besides the rows, by name."""
        return {name: getattr(self, name) for name in self._arguments}

    def terms(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """The loss as two parts.

        Returns:
            per_row: one value per row, before weights, shape `(n,)`.
            batch: the statistic of the whole batch, a scalar that has the
                weights inside already; 0 for a loss without one.
        """
        raise NotImplementedError

    def rows(
        self,
        y_true: ArrayLike,
        y_pred: ArrayLike,
        sample_weight: ArrayLike | None = None,
        mask: Tensor | None = None,
    ) -> Rows:
        """Read a batch as `Rows`; the first one that can be seen is checked."""
        rows = as_rows(
            y_true,
            y_pred,
            sample_weight,
            from_logits=self.from_logits,
            axis=self.axis,
            ignore_class=self.ignore_class,
            check=not self._values_seen,
            mask=mask,
        )
        self._values_seen = self._values_seen or rows.checked
        return rows

    def __call__(
        self,
        y_true: ArrayLike,
        y_pred: ArrayLike,
        sample_weight: ArrayLike | None = None,
    ) -> Tensor:
        mask = mask_for_metrics(y_true, y_pred)
        with keras.name_scope(self.name):
            batch = self.batch(y_true, y_pred, sample_weight, mask)
            rows = self.rows(*batch)
            value = reduce(rows, *self.terms(rows), self.reduction)
            if self.reduction in MEAN_REDUCTIONS or self.across_replicas:
                # Keras' own reduction adds the scaling of a strategy.
                return self._keras_reduction(value, ops.reshape(value, (1,)))
            return ops.cast(value, self.dtype)

    def batch(self, *arrays: Any) -> tuple[Any, ...]:
        """Labels, predictions, weights and mask that the loss is of."""
        return arrays

    def call(self, y_true: ArrayLike, y_pred: ArrayLike) -> Tensor:
        """One value per row, not reduced, in the shape of the labels."""
        rows = self.rows(y_true, y_pred)
        per_row, batch = self.terms(rows)
        return rows.restore(per_row + batch)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "from_logits": self.from_logits,
            "axis": self.axis,
            "ignore_class": self.ignore_class,
            "dtype": self.dtype,
            **self.arguments,
        }


def _on_rows(loss):
    """A loss of Keras that reads `(n, num_classes)`, whatever its axis was."""
    config = loss.get_config()
    if isinstance(config.get("axis"), int) and config["axis"] not in (-1, 1):
        return type(loss).from_config({**config, "axis": -1})
    return loss


class PenalizedLoss(ClassificationLoss):
    """Base of the penalties: `primary + weight * penalty`.

    Args:
        primary: `"cross_entropy"`; any `keras.losses.Loss`, also another loss
            of this package, or its name as in `compile`, which then has this
            `from_logits`; or `None` for the bare penalty. Keras' losses of
            probabilities alone (Dice, Tversky, Kullback-Leibler divergence,
            generalized cross-entropy, Poisson, squared logarithms) get these,
            also with `from_logits=True`; others without this argument get what
            the model gives. One that gives a single number for the batch, as
            Dice does, leaves out rows that do not count; other weights scale
            its result, as in Keras.
        weight: float, what the penalty is multiplied by.
        across_replicas: whether the loss is that of the batches of all
            replicas together, see "On several devices" in
            `keras_calib/losses/README.md`.
        **kwargs: see `ClassificationLoss`.

    Raises:
        ValueError: for `across_replicas` with a loss that is not reduced.
    """

    # Whether `penalty` is one number for the batch instead of one per row.
    batch_statistic = False

    def __init__(
        self,
        *,
        primary: keras.losses.Loss | str | None = "cross_entropy",
        weight: float = 1.0,
        across_replicas: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        require_number(weight=weight)
        require_flags(across_replicas=across_replicas)
        self.weight = weight
        self.across_replicas = across_replicas
        self.primary: Any = primary
        if not is_one_of(primary, (None, "cross_entropy")):
            self.primary = primary_loss(primary, from_logits=self.from_logits)
            check_inner_loss(self.primary, self)
        if across_replicas and self.reduction in (None, "none"):
            raise ValueError(
                "A loss across replicas is one number. Received: "
                f"across_replicas=True, reduction={self.reduction!r}. Leave "
                "out one of them."
            )

    def batch(self, *arrays: Any) -> tuple[Any, ...]:
        if not self.across_replicas:
            return arrays
        return tuple(
            None if array is None else of_all_replicas(array)
            for array in map(unwrapped, arrays)
        )

    def penalty(self, rows: Rows) -> Tensor:
        """The penalty: shape `(n,)`, or a scalar for a batch statistic."""
        raise NotImplementedError

    def terms(self, rows: Rows) -> tuple[Tensor, Tensor]:
        per_row, batch = self.primary_terms(rows)
        penalty = self.weight * self.penalty(rows)
        if self.batch_statistic:
            return per_row, batch + penalty
        return per_row + penalty, batch

    def primary_terms(self, rows: Rows) -> tuple[Tensor, Tensor]:
        if self.primary is None:
            return ops.zeros_like(rows.weights), 0.0
        if self.primary == "cross_entropy":
            return cross_entropy(rows), 0.0
        if isinstance(self.primary, ClassificationLoss):
            return self.primary.terms(rows)
        return self._foreign_terms(rows), 0.0

    def penalty_terms(self, rows: Rows) -> tuple[Tensor, Tensor]:
        penalty = self.penalty(rows)
        if self.batch_statistic:
            return ops.zeros_like(rows.weights), penalty
        return penalty, 0.0

    def component_metrics(self) -> list[keras.metrics.Metric]:
        """Metrics that show the two parts during `fit`.

        They are computed from the predictions that `fit` has anyway: no second
        forward pass. With sample weights pass them as `weighted_metrics`:
        like the loss, and unlike other metrics, `primary_loss` is then scaled
        by the weights, so that `loss = primary_loss + weight * penalty`.

        Returns:
            A list of two metrics, named `primary_loss` and `penalty` (before
            it is multiplied by `weight`).

        Example:
            >>> import keras, keras_calib as kc
            >>> loss = kc.losses.ACLS(from_logits=True)
            >>> model = keras.Sequential([keras.layers.Dense(3)])
            >>> metrics = ["accuracy", *loss.component_metrics()]
            >>> model.compile(loss=loss, metrics=metrics)
        """
        return [LossPart(self, part) for part in ("primary_loss", "penalty")]

    def _foreign_terms(self, rows):
        """Values of a loss that knows nothing of rows, one per row."""
        labels = rows.labels if rows.targets is None else rows.targets
        if isinstance(self.primary, OF_ROWS):
            labels = rows.soft_labels
        elif isinstance(self.primary, OF_IDS):
            labels = rows.labels
        scores, activation = rows.logits, softmax_for(self.primary)
        if rows.single and not isinstance(self.primary, CATEGORICAL):
            # A loss for one sigmoid unit sees it as it is.
            labels, scores = rows.soft_labels[:, 1:], scores[:, 1:]
            activation = keras.activations.sigmoid
        if not self.from_logits or isinstance(self.primary, OF_PROBABILITIES):
            # It carries its logits, so that a Keras loss stays exact.
            scores = activation(scores)
        primary = _on_rows(self.primary)
        values = primary.call(labels, scores)
        if len(values.shape) == 0 and len(labels.shape) == 2:
            # One number for the batch, as Dice is. Rows that do not count are
            # zeroed, so that its sums leave them out.
            counts = ops.cast(rows.weights > 0, scores.dtype)[:, None]
            labels = ops.cast(labels, scores.dtype) * counts
            values = primary.call(labels, scores * counts)
            values = values * ops.ones_like(counts)
        return ops.cast(ops.reshape(values, (-1,)), rows.logits.dtype)

    def get_config(self) -> dict[str, Any]:
        primary = self.primary
        if isinstance(primary, keras.losses.Loss):
            primary = keras.saving.serialize_keras_object(primary)
        return {
            **super().get_config(),
            "primary": primary,
            "weight": self.weight,
            "across_replicas": self.across_replicas,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        primary = config.get("primary")
        if isinstance(primary, dict):
            primary = keras.saving.deserialize_keras_object(primary)
            config = {**config, "primary": primary}
        return cls(**config)


@keras.saving.register_keras_serializable(package="keras_calib")
@lower_is_better
class LossPart(keras.metrics.Mean):
    """One part of a `PenalizedLoss` as a metric, for `component_metrics`.

    Args:
        loss: the loss.
        part: `"primary_loss"` or `"penalty"`.
        name: name in the logs; the part's by default.
        dtype: as in Keras, but by default float32 at least.

    Raises:
        ValueError: if the loss has no penalty, or `part` is unknown.
    """

    def __init__(
        self,
        loss: keras.losses.Loss,
        part: str,
        *,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        require_kind(PenalizedLoss, "a loss with a penalty", loss=loss)
        require_one_of(("primary_loss", "penalty"), part=part)
        super().__init__(name=name or part, dtype=dtype or wide_floatx())
        self.loss = loss
        self.part = part

    def update_state(
        self,
        y_true: ArrayLike,
        y_pred: ArrayLike,
        sample_weight: ArrayLike | None = None,
    ) -> None:
        mask = mask_of(y_true, y_pred)
        batch = self.loss.batch(y_true, y_pred, sample_weight, mask)
        rows = self.loss.rows(*batch)
        if self.part == "primary_loss":
            per_row, batch = self.loss.primary_terms(rows)
        else:
            per_row, batch = self.loss.penalty_terms(rows)
        value = reduce(rows, per_row, batch, mean_reduction(self.loss))
        # Batches count as in the loss that `fit` prints: by their length.
        super().update_state(value, sample_weight=length(y_pred))

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "loss": keras.saving.serialize_keras_object(self.loss),
            "part": self.part,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        loss = keras.saving.deserialize_keras_object(config["loss"])
        return cls(**{**config, "loss": loss})
