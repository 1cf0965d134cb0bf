"""Interleaved training: primary loss on most data, penalty on the rest."""

import dataclasses
from typing import Any

import keras
from keras import ops

from keras_calib._typing import Logs
from keras_calib._typing import Tensor
from keras_calib.data.epoch_numbers import EpochNumbers
from keras_calib.data.sample_index import INPUTS
from keras_calib.inputs.arguments import is_number
from keras_calib.inputs.arguments import require_fraction
from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.masks import mask_for_metrics
from keras_calib.losses._base import PenalizedLoss
from keras_calib.losses._reduction import mean_reduction
from keras_calib.losses._reduction import reduce
from keras_calib.models import _two_parts as two_parts
from keras_calib.models._two_parts import FOR_PENALTY
from keras_calib.models._wrapped import WrappedModel
from keras_calib.models._wrapped import arguments_of_fit
from keras_calib.models._wrapped import with_argument
from keras_calib.models._wrapped import with_callback
from keras_calib.ops.replicas import num_replicas


@keras.saving.register_keras_serializable(package="keras_calib")
class InterleavedTraining(WrappedModel):
    """Train with the primary loss on most data, the penalty on the rest.

        loss of a batch = primary            for the majority
        loss of a batch = weight * penalty   for the penalty part

    A network that memorizes its training data is calibrated on them, so a
    calibration penalty on the same data has no effect. Here the training data
    is split once. Each epoch first takes the batches of the majority, then
    those of the penalty part (of a `PyDataset` with several workers Keras goes
    on where it stopped). Regularizers of the layers act in both parts.

    Compile with any `kc.losses` loss that has a primary and a penalty. `fit`
    takes arrays and splits them, or a dataset and a second one as
    `penalty_data`. Validation and prediction run the model alone, and the
    validation loss has both terms. The trained network is `model.model`.

    The logs contain `primary_loss`, the mean over the majority, and `penalty`,
    the mean over the penalty part before it is multiplied by its weight.
    `loss` is the mean over all batches, which count by their length. A callback
    that monitors a part needs `mode="min"`.

    Args:
        model: a `keras.Model`, a classifier.
        penalty_split: float between 0 and 1, the fraction of arrays that
            is the penalty part. The paper does not report its fraction.
        seed: int, for the choice of these samples, which must be the same in
            a resumed run, and for the orders of both parts. Each epoch has an
            order of its own, also over several calls of `fit`; a run resumed
            with `initial_epoch` has the orders of one that was not
            interrupted.
        name: as in Keras.
        **kwargs: as in Keras.

    Raises:
        ValueError: if `penalty_split` is out of range; in `compile`, if the
            loss lacks a primary or a penalty; in `fit`, if data cannot be
            split.

    Example:
        >>> import keras, numpy as np, keras_calib as kc
        >>> x, y = np.random.default_rng(0).normal(size=(64, 4)), np.arange(64)
        >>> network = keras.Sequential([keras.layers.Dense(3)])
        >>> model = kc.models.InterleavedTraining(network, penalty_split=0.25)
        >>> loss = kc.losses.MarginLabelSmoothing(margin=1.0, from_logits=True)
        >>> model.compile("adam", loss, metrics=["accuracy"])
        >>> history = model.fit(x, y % 3, epochs=2, verbose=0)
        >>> sorted(history.history)
        ['accuracy', 'loss', 'penalty', 'primary_loss']

    Reference:
        Karandikar et al., "Soft Calibration Objectives for Neural Networks",
        NeurIPS 2021, appendix B.
    """

    settings = ("penalty_split", "seed")

    def __init__(
        self,
        model: keras.Model,
        *,
        penalty_split: float = 0.1,
        seed: int = 0,
        name: str = "interleaved_training",
        **kwargs: Any,
    ) -> None:
        super().__init__(model, name=name, **kwargs)
        require_fraction(penalty_split=penalty_split)
        require_integer(0, seed=seed)
        self.penalty_split = penalty_split
        self.seed = seed
        self._epochs = EpochNumbers()

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: PenalizedLoss | None = None,
        **kwargs: Any,
    ) -> None:
        """Compile as in Keras, with a loss that has a primary and a penalty.

        Args:
            optimizer: as in Keras; one for both parts.
            loss: a `kc.losses.PenalizedLoss`.
            **kwargs: as in Keras.

        Raises:
            ValueError: if the loss lacks a primary or a penalty, or
                `loss_weights` is not one number.
        """
        if not isinstance(loss, PenalizedLoss) or loss.primary is None:
            raise ValueError(
                "Interleaved training needs a loss with a primary, for the "
                "majority, and a penalty, for the penalty part: one of the "
                "penalties of `kc.losses`, with `primary=`. Received: "
                f"loss={loss}."
            )
        if loss.across_replicas:
            raise ValueError(
                "Interleaved training marks the rows of the penalty part in "
                "the batch of one replica. Received: a loss with "
                "across_replicas=True. Leave it out."
            )
        weight = _the_weight(kwargs.get("loss_weights"))
        super().compile(optimizer=optimizer, loss=loss, **kwargs)
        self._loss_weight = weight

    def unpack(self, inputs: Any) -> tuple[Any, Tensor | None]:
        if isinstance(inputs, dict) and set(inputs) == {INPUTS, FOR_PENALTY}:
            return inputs[INPUTS], inputs[FOR_PENALTY]
        return inputs, None

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Tensor:
        mask = mask_for_metrics(y, y_pred)
        rows = self.loss.rows(y, y_pred, sample_weight, mask)
        if not training:
            self._parts_of(rows, rows)
            return super().compute_loss(x, y, y_pred, sample_weight, False)
        _, for_penalty = self.unpack(x)
        if for_penalty is None:
            raise ValueError(
                "Interleaved training takes its two parts in turn, which "
                "`fit(x, y)` or `fit(dataset, penalty_data=dataset)` arranges. "
                "Received: a training batch that belongs to neither part."
            )
        for_penalty = _flags_per_row(for_penalty, rows)
        primary, penalty = self._parts_of(
            _only(rows, 1.0 - for_penalty), _only(rows, for_penalty)
        )
        loss = self._loss_weight * (primary + self.loss.weight * penalty)
        if self.loss.reduction != "sum":
            # As Keras does: the losses of the replicas are added.
            loss = loss / num_replicas()
        return ops.add(loss, self.additional_losses())

    def _parts_of(self, majority, for_penalty):
        """The primary loss over some rows and the penalty over others."""
        return (
            self._part(
                "primary_loss", majority, self.loss.primary_terms(majority)
            ),
            self._part(
                "penalty", for_penalty, self.loss.penalty_terms(for_penalty)
            ),
        )

    def _part(self, name, rows, terms):
        """A part of the loss; what is shown of it is a mean."""
        mean = value = reduce(rows, *terms, mean_reduction(self.loss))
        if self.loss.reduction == "sum":
            value = reduce(rows, *terms, "sum")
        self.show(name, mean, ops.sum(rows.counts))
        return value

    def fit(
        self, *args: Any, penalty_data: Any = None, **kwargs: Any
    ) -> keras.callbacks.History:
        """Fit as in Keras; the class describes how the data is used.

        Args:
            *args: the arguments of `keras.Model.fit`, of which these differ:

                - `x`: arrays, which are split; or, with `penalty_data`, the
                  majority: arrays, a `tf.data.Dataset`, a `PyDataset` or a
                  torch `DataLoader`;
                - `validation_split`, for arrays: the fraction at their end that
                  is used for validation, before the rest is split;
                - `shuffle`, for arrays: whether to shuffle each part;
                - `steps_per_epoch`: must be `None`.
            penalty_data: data for the penalty instead of a fraction of the
                arrays: `(x, y)` or `(x, y, sample_weight)` arrays, or a dataset
                of the same kind as `x`.
            **kwargs: the arguments of `keras.Model.fit`, by name.

        Returns:
            The `History` of Keras.

        Raises:
            ValueError: if the data cannot be split, the two parts are of
                different kinds, arrays differ in length, or
                `steps_per_epoch` is passed.
        """
        given = arguments_of_fit(self, args, kwargs)
        if given.get("steps_per_epoch") is not None:
            raise ValueError(
                "Each epoch takes both parts, one after the other and whole. "
                f"Received: steps_per_epoch={given['steps_per_epoch']}. Leave "
                "it out; for shorter epochs pass less data and more `epochs`."
            )
        x, y, sample_weight = (
            given.pop(name, None) for name in ("x", "y", "sample_weight")
        )
        split = given.pop("validation_split", 0.0)
        batch_size = given.pop("batch_size", None)
        shuffle = given.pop("shuffle", True)
        if y is not None:
            whole = two_parts.read_arrays(
                "the training data", x, y, sample_weight
            )
            if split and given.get("validation_data") is None:
                whole, given["validation_data"] = two_parts.last_fraction(
                    whole, split
                )
            data = two_parts.of_arrays(
                *self._split(whole, penalty_data),
                batch_size=batch_size or 32,
                shuffle=shuffle,
                seed=self.seed,
            )
            given["callbacks"] = with_callback(
                _OrderOfEpoch(data, self._epochs), given.get("callbacks")
            )
        elif split or sample_weight is not None:
            raise ValueError(
                "`validation_split` and `sample_weight` are for arrays. "
                f"Received: x of type {type(x).__name__}, without y."
            )
        else:
            data = two_parts.of_datasets(x, penalty_data)
        given.setdefault("validation_batch_size", batch_size)
        # Without shuffling, the two parts stay in their order.
        return super().fit(data, shuffle=False, **given)

    fit.__signature__ = with_argument(  # type: ignore[attr-defined]
        keras.Model.fit, "penalty_data"
    )

    def _split(self, whole, penalty_data):
        if penalty_data is None:
            return two_parts.random_fraction(
                whole, self.penalty_split, self.seed
            )
        if not isinstance(penalty_data, list | tuple):
            raise ValueError(
                "With arrays `penalty_data` is `(x, y)` or `(x, y, "
                "sample_weight)`, arrays too. Received: penalty_data of "
                f"type {type(penalty_data).__name__}."
            )
        return whole, two_parts.read_arrays("`penalty_data`", *penalty_data)


class _OrderOfEpoch(keras.callbacks.Callback):
    """Tell the data the number of the epoch, which its orders depend on.

    Backends call `on_epoch_begin` of a `PyDataset` more or less often before
    the first epoch, and each call of `fit` makes new data.
    """

    def __init__(self, data, epochs):
        super().__init__()
        self.data = data
        self.epochs = epochs

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self.data.start(self.epochs.begin(epoch))

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self.epochs.end()


def _the_weight(loss_weights):
    """The factor that Keras multiplies one loss by; 1 if none is given."""
    weights = keras.tree.flatten(loss_weights)
    if loss_weights is None:
        return 1.0
    if len(weights) != 1 or not is_number(weights[0]):
        raise ValueError(
            "There is one loss, and `loss_weights` is one number. Received: "
            f"loss_weights={loss_weights}."
        )
    return float(weights[0])


def _flags_per_row(flags, rows):
    """One flag per sample as one 0.0 or 1.0 per row."""
    flags = ops.cast(ops.reshape(flags, (-1, 1)), rows.weights.dtype)
    per_sample = ops.reshape(rows.weights, (ops.shape(flags)[0], -1))
    return ops.reshape(flags * ops.ones_like(per_sample), (-1,))


def _only(rows, flags):
    """Rows of which only those with a flag of 1 count."""
    return dataclasses.replace(
        rows, weights=rows.weights * flags, counts=rows.counts * flags
    )
