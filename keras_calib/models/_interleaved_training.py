"""Interleaved training: learn from the majority, calibrate on the rest."""

import dataclasses

import keras
import numpy as np
from keras import ops

from keras_calib.data.sample_index import INPUTS
from keras_calib.data.sample_index import is_loader
from keras_calib.data.sample_index import is_py_dataset
from keras_calib.data.sample_index import is_tf_data
from keras_calib.inputs.arrays import as_array
from keras_calib.losses._base import MEANS
from keras_calib.losses._base import PenalizedLoss
from keras_calib.losses._base import reduce
from keras_calib.models._wrapped import WrappedModel

HELD_OUT = "held_out"


@keras.saving.register_keras_serializable(package="keras_calib")
class InterleavedTraining(WrappedModel):
    """Train with the primary loss on most data, the penalty on the rest.

    A network that memorises its training data is calibrated there, so a
    calibration penalty on the same data teaches nothing. Here the training
    data is split once. Each epoch first takes the majority, with the primary
    loss alone, then the held-out part, with the penalty alone. Regularisers of
    the layers act in both parts.

    Compile with any `kc.losses` loss that has a primary and a penalty; that
    loss says what each part is. `fit` takes arrays and splits them, or a
    dataset and `penalty_data=`, a second one. Validation and prediction run the
    model alone, and the validation loss has both parts. The trained network is
    `model.model`.

    The logs show `primary_loss`, the mean over the majority, and `penalty`,
    the mean over the held-out part before it is multiplied by its weight.
    `loss` is the mean over all batches of whatever each of them minimised;
    batches count by their length.

    Args:
        model: a `keras.Model`, a classifier.
        penalty_split: float between 0 and 1, the share of arrays that is held
            out. The paper does not give its share.
        seed: int, which samples are held out: a run that resumes must hold out
            the same ones.
        name: as in Keras.
        **kwargs: as in Keras.

    Raises:
        ValueError: if `penalty_split` is out of range; in `compile`, if the
            loss has not both parts; in `fit`, if data cannot be split.

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

    def __init__(
        self,
        model,
        *,
        penalty_split=0.1,
        seed=0,
        name="interleaved_training",
        **kwargs,
    ):
        super().__init__(model, name=name, **kwargs)
        if not 0 < penalty_split < 1:
            raise ValueError(
                "`penalty_split` is the share of the training data that the "
                "penalty learns from, between 0 and 1. Received: "
                f"penalty_split={penalty_split}."
            )
        self.penalty_split = penalty_split
        self.seed = seed

    def compile(self, optimizer="rmsprop", loss=None, **kwargs):
        """As in Keras, with a loss that has a primary and a penalty.

        Args:
            optimizer: as in Keras; one for both parts.
            loss: a `kc.losses.PenalizedLoss`.
            **kwargs: as in Keras.

        Raises:
            ValueError: if the loss has not both parts.
        """
        if not isinstance(loss, PenalizedLoss) or loss.primary is None:
            raise ValueError(
                "Interleaved training needs a loss with a primary, for the "
                "majority, and a penalty, for the held-out part: one of the "
                "penalties of `kc.losses`, with `primary=`. Received: "
                f"loss={loss}."
            )
        super().compile(optimizer=optimizer, loss=loss, **kwargs)

    def compile_from_config(self, config):
        # Keras rebuilds the optimizer's state only for models whose `compile`
        # it has not seen overridden.
        config = keras.saving.deserialize_keras_object(config)
        self.compile(**config)
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)

    def get_compile_config(self):
        return super().get_compile_config()

    def unpack(self, inputs):
        if isinstance(inputs, dict) and set(inputs) == {INPUTS, HELD_OUT}:
            return inputs[INPUTS], inputs[HELD_OUT]
        return inputs, None

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        rows = self.loss.rows(y, y_pred, sample_weight)
        if not training:
            self._parts_of(rows, rows)
            return super().compute_loss(x, y, y_pred, sample_weight, False)
        _, held_out = self.unpack(x)
        if held_out is None:
            raise ValueError(
                "Interleaved training takes its two parts in turn, which "
                "`fit(x, y)` or `fit(dataset, penalty_data=dataset)` arranges. "
                "Received: a training batch that belongs to neither part."
            )
        held_out = _per_row(held_out, rows)
        primary, penalty = self._parts_of(
            _only(rows, 1.0 - held_out), _only(rows, held_out)
        )
        loss = _scaled(primary + self.loss.weight * penalty)
        return loss + self.additional_losses()

    def _parts_of(self, majority, held_out):
        """The primary loss over some rows and the penalty over others."""
        loss = self.loss
        known = (*MEANS, "sum")
        reduction = loss.reduction if loss.reduction in known else "mean"
        primary = reduce(majority, *loss.primary_terms(majority), reduction)
        penalty = reduce(held_out, *loss.penalty_terms(held_out), reduction)
        self.show("primary_loss", primary, ops.sum(majority.counts))
        self.show("penalty", penalty, ops.sum(held_out.counts))
        return primary, penalty

    def fit(
        self,
        x=None,
        y=None,
        batch_size=None,
        epochs=1,
        verbose="auto",
        callbacks=None,
        validation_split=0.0,
        validation_data=None,
        shuffle=True,
        class_weight=None,
        sample_weight=None,
        initial_epoch=0,
        steps_per_epoch=None,
        validation_steps=None,
        validation_batch_size=None,
        validation_freq=1,
        *,
        penalty_data=None,
    ):
        """As in Keras; see the class for how the data is taken.

        Args:
            x: arrays, which are split; or, with `penalty_data`, the majority:
                arrays, a `tf.data.Dataset`, a `PyDataset` or a torch
                `DataLoader`.
            y: labels of arrays.
            batch_size: for arrays; 32 by default.
            epochs: as in Keras.
            verbose: as in Keras.
            callbacks: as in Keras.
            validation_split: for arrays: the share at their end that is for
                validation. It is taken first.
            validation_data: as in Keras.
            shuffle: for arrays: whether each part is shuffled in each epoch.
            class_weight: as in Keras.
            sample_weight: for arrays.
            initial_epoch: as in Keras.
            steps_per_epoch: `None`: an epoch has both parts, whole.
            validation_steps: as in Keras.
            validation_batch_size: as in Keras.
            validation_freq: as in Keras.
            penalty_data: what the penalty learns from instead of a share of the
                arrays: `(x, y)` or `(x, y, sample_weight)` arrays, or a dataset
                of the kind of `x`.

        Returns:
            The `History` of Keras.

        Raises:
            ValueError: if the data cannot be split, the two parts are of
                different kinds, arrays differ in length, or
                `steps_per_epoch` is given.
        """
        if steps_per_epoch is not None:
            raise ValueError(
                "Each epoch takes both parts, one after the other and whole. "
                f"Received: steps_per_epoch={steps_per_epoch}. Leave it out; "
                "for shorter epochs pass less data and more `epochs`."
            )
        if y is not None:
            whole = _arrays("the training data", x, y, sample_weight)
            if validation_split and validation_data is None:
                whole, validation_data = _last_share(whole, validation_split)
            majority, held_out = self._split(whole, penalty_data)
            data = _Arrays(majority, held_out, batch_size, shuffle, self.seed)
        elif validation_split or sample_weight is not None:
            raise ValueError(
                "`validation_split` and `sample_weight` are for arrays. "
                f"Received: x of type {type(x).__name__}, without y."
            )
        else:
            data = _chained(x, penalty_data)
        return super().fit(
            data,
            epochs=epochs,
            verbose=verbose,
            callbacks=callbacks,
            validation_data=validation_data,
            shuffle=False,  # the two parts stay in their order
            class_weight=class_weight,
            initial_epoch=initial_epoch,
            validation_steps=validation_steps,
            validation_batch_size=validation_batch_size or batch_size,
            validation_freq=validation_freq,
        )

    def _split(self, whole, penalty_data):
        if penalty_data is not None:
            if not isinstance(penalty_data, list | tuple):
                raise ValueError(
                    "With arrays `penalty_data` is `(x, y)` or `(x, y, "
                    "sample_weight)`, arrays too. Received: penalty_data of "
                    f"type {type(penalty_data).__name__}."
                )
            return whole, _arrays("`penalty_data`", *penalty_data)
        size = len(whole[1])
        number = max(round(size * self.penalty_split), 1)
        if number >= size:
            raise ValueError(
                "Both parts need samples. Received: "
                f"{size} samples, penalty_split={self.penalty_split}."
            )
        order = np.random.default_rng(self.seed).permutation(size)
        return _chosen(whole, order[number:]), _chosen(whole, order[:number])

    def get_config(self):
        return {
            **super().get_config(),
            "penalty_split": self.penalty_split,
            "seed": self.seed,
        }


class _Value(keras.losses.Loss):
    """Hands a value to Keras' reduction."""

    def call(self, y_true, y_pred):
        return y_pred


def _scaled(value):
    """A loss as Keras wants it: scaled where a strategy has replicas."""
    return _Value(name="interleaved")(value, ops.reshape(value, (1,)))


def _per_row(flags, rows):
    """One flag per sample as one 0.0 or 1.0 per row."""
    flags = ops.cast(ops.reshape(flags, (-1, 1)), rows.weights.dtype)
    per_sample = ops.reshape(rows.weights, (ops.shape(flags)[0], -1))
    return ops.reshape(flags * ops.ones_like(per_sample), (-1,))


def _only(rows, share):
    """The rows of one part: the others do not count."""
    return dataclasses.replace(
        rows, weights=rows.weights * share, counts=rows.counts * share
    )


def _flagged(batch, held_out):
    """A batch that says which part it belongs to.

    As integers: Keras sums over replicas whatever is in a batch, and bool
    cannot be summed.
    """
    size = int(keras.tree.flatten(batch)[0].shape[0])
    flags = np.full((size,), held_out, "uint8")
    return ({INPUTS: batch[0], HELD_OUT: flags}, *batch[1:])


def _arrays(name, x, y, sample_weight=None):
    """`(x, y)` or `(x, y, sample_weight)` of NumPy arrays of one length."""
    whole = (x, y) if sample_weight is None else (x, y, sample_weight)
    whole = keras.tree.map_structure(as_array, whole)
    lengths = [len(leaf) for leaf in keras.tree.flatten(whole)]
    if len(set(lengths)) > 1:
        raise ValueError(
            "Arrays must have one entry per sample. Received: arrays of "
            f"lengths {lengths} in {name}."
        )
    return whole


def _chosen(arrays, index):
    """Some of the samples, in the order that they have."""
    index = np.sort(index)
    return keras.tree.map_structure(lambda leaf: leaf[index], arrays)


def _last_share(whole, share):
    """The samples before the last ones, and the last ones, as Keras does."""
    if not 0 < share < 1:
        raise ValueError(
            "`validation_split` must be between 0 and 1. "
            f"Received: validation_split={share}."
        )
    size = len(whole[1])
    first = int(size * (1 - share))
    if not 0 < first < size:
        raise ValueError(
            "Training and validation both need samples. Received: "
            f"{size} samples, validation_split={share}."
        )
    index = np.arange(size)
    return _chosen(whole, index[:first]), _chosen(whole, index[first:])


class _Arrays(keras.utils.PyDataset):
    """Batches of the majority, then batches of the held-out part."""

    def __init__(self, majority, held_out, batch_size, shuffle, seed):
        super().__init__()
        if len(majority) != len(held_out):
            raise ValueError(
                "Both parts are `(x, y)`, or both `(x, y, sample_weight)`. "
                f"Received: {len(majority)} and {len(held_out)} arrays."
            )
        self.parts = (majority, held_out)
        self.batch_size = batch_size or 32
        self.random = np.random.default_rng(seed) if shuffle else None
        self.orders = [np.arange(len(part[1])) for part in self.parts]
        self.lengths = [
            -(-len(order) // self.batch_size) for order in self.orders
        ]

    @property
    def num_batches(self):
        return sum(self.lengths)

    def __getitem__(self, i):
        part = int(i >= self.lengths[0])
        start = (i - part * self.lengths[0]) * self.batch_size
        chosen = self.orders[part][start : start + self.batch_size]
        batch = keras.tree.map_structure(
            lambda leaf: leaf[chosen], self.parts[part]
        )
        return _flagged(batch, bool(part))

    def on_epoch_begin(self):
        if self.random is not None:
            self.orders = [self.random.permutation(o) for o in self.orders]


class _PyDatasets(keras.utils.PyDataset):
    """One `PyDataset` after the other."""

    def __init__(self, majority, held_out):
        super().__init__(
            workers=majority.workers,
            use_multiprocessing=majority.use_multiprocessing,
            max_queue_size=majority.max_queue_size,
        )
        self.parts = (majority, held_out)

    @property
    def num_batches(self):
        return sum(part.num_batches for part in self.parts)

    def __getitem__(self, i):
        first = self.parts[0].num_batches
        part = int(i >= first)
        return _flagged(self.parts[part][i - part * first], bool(part))

    def on_epoch_begin(self):
        for part in self.parts:
            part.on_epoch_begin()

    def on_epoch_end(self):
        for part in self.parts:
            part.on_epoch_end()


def _chained(majority, held_out):
    """One data set that gives the majority first, then the held-out part."""
    for belongs, chain in (
        (is_tf_data, _chain_tf_data),
        (is_py_dataset, _PyDatasets),
        (is_loader, _chain_loaders),
    ):
        if belongs(majority) and belongs(held_out):
            _refuse_endless(majority, held_out)
            return chain(majority, held_out)
    raise ValueError(
        "Interleaved training takes arrays `fit(x, y)`, which it splits, or "
        "two data sets of one kind (`tf.data.Dataset`, `PyDataset` or torch "
        "`DataLoader`): `fit(majority, penalty_data=...)`. Received: "
        f"{type(majority).__name__} and penalty_data="
        f"{type(held_out).__name__}."
    )


def _refuse_endless(*parts):
    for part in parts:
        endless = getattr(part, "num_batches", 1) is None
        if hasattr(part, "cardinality"):
            endless = int(part.cardinality()) == -1
        if endless:
            raise ValueError(
                "Each part must end, so that the other has its turn. "
                "Received: endless data. Leave out `repeat()`."
            )


def _chain_tf_data(majority, held_out):
    import tensorflow as tf

    def flagged(flag):
        def add(x, *rest):
            size = tf.shape(tf.nest.flatten(x)[0])[0]
            return (
                {INPUTS: x, HELD_OUT: tf.fill([size], tf.cast(flag, "uint8"))},
                *rest,
            )

        return add

    return majority.map(flagged(False)).concatenate(held_out.map(flagged(True)))


def _chain_loaders(majority, held_out):
    import torch

    class Chained(torch.utils.data.IterableDataset):
        def __len__(self):
            return len(majority) + len(held_out)

        def __iter__(self):
            for part, flag in ((majority, False), (held_out, True)):
                for x, *rest in part:
                    size = len(keras.tree.flatten(x)[0])
                    flags = torch.full((size,), flag, dtype=torch.uint8)
                    yield ({INPUTS: x, HELD_OUT: flags}, *rest)

    # The loaders inside make the batches, with workers of their own.
    return torch.utils.data.DataLoader(Chained(), batch_size=None)
