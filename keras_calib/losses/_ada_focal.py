"""AdaFocal: a focal loss whose gamma follows the calibration of each bin.

The bins and gammas live in the variables of a metric, because compiled code
sees those change; `kc.callbacks.AdaFocalSchedule` sets them after each epoch.
"""

import itertools
import weakref
from types import NoneType
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib._typing import ArrayLike
from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import MOST
from keras_calib.inputs.arguments import is_integer
from keras_calib.inputs.arguments import require
from keras_calib.inputs.arguments import require_kind
from keras_calib.inputs.arguments import require_number
from keras_calib.inputs.rows import Rows
from keras_calib.inputs.rows import as_rows
from keras_calib.inputs.tensors import as_tensor
from keras_calib.losses._base import ClassificationLoss
from keras_calib.losses._focal import log_one_minus_p
from keras_calib.losses._focal import log_one_minus_p_of_all
from keras_calib.ops.binning import interior_edges
from keras_calib.ops.binning import interval_index

# A file names the loss and, as a metric, its table. Keras reads the loss
# first. Its table waits here, under the number of the pair, and the metric,
# which is read next, becomes this table instead of a new one.
_PAIRS = itertools.count(1)
_WAITING: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


def _pair_of(config):
    """The number of the pair, which is taken out of a config; or `None`."""
    pair = config.pop("pair", None)
    require_kind((int, NoneType), "an integer, or None", pair=pair)
    return pair


def ada_focal_loss(
    labels: ArrayLike, logits: ArrayLike, *, edges: Tensor, gammas: Tensor
) -> Tensor:
    """`-(1 - s p_y)^|gamma| log p_y` per sample, `s = sign(gamma)`.

    `gamma >= 0` is the focal loss, `gamma < 0` the inverse focal loss. Each
    sample has the gamma of the bin that its `p_y` falls in; it is a constant.

    Args:
        labels: class ids, shape `(...)`, or one-hot or soft labels `t`, shape
            `(..., num_classes)`, which give the sum over `k` of `t_k` times
            the term of class `k`, with the gamma of the bin of `p_k`.
        logits: scores before softmax, shape `(..., num_classes)`.
        edges: the edges between the bins, increasing, `(num_bins - 1,)`. A
            `p_y` on an edge belongs to the lower bin, as where the gap of a
            bin is measured; in the authors' code to the upper one.
        gammas: one per bin, `(num_bins,)`.

    Returns:
        One loss per sample, in nats, shape `(...)`.

    Raises:
        ValueError: if shapes do not fit, or what is passed are no numbers.

    Example:
        >>> import keras_calib as kc
        >>> value = kc.losses.ada_focal_loss(
        ...     [0], [[2.0, 0.5, -1.0]], edges=[0.5], gammas=[-0.5, 2.0]
        ... )
        >>> round(float(value[0]), 4)
        0.0111

    Reference:
        Ghosh et al., "AdaFocal: Calibration-aware Adaptive Focal Loss",
        NeurIPS 2022, arXiv:2211.11838.
    """
    rows = as_rows(labels, logits)
    dtype = rows.logits.dtype
    edges = ops.cast(as_tensor(edges, "`edges`"), dtype)
    gammas = ops.cast(as_tensor(gammas, "`gammas`"), dtype)
    shapes = tuple(edges.shape), tuple(gammas.shape)
    require(
        list(map(len, shapes)) == [1, 1] and shapes[0][0] + 1 == shapes[1][0],
        "There is one gamma per bin, and one edge between two bins.",
        "Pass one gamma more than edges.",
        gammas=shapes[1],
        edges=shapes[0],
    )
    return rows.restore(_ada_focal(rows, edges, gammas))


def _ada_focal(rows, edges, gammas):
    if rows.targets is None:
        gamma = _gamma_of(rows.probability(rows.labels), edges, gammas)
        log_p = rows.log_probability(rows.labels)
        return _signed_focal(log_p, log_one_minus_p(rows, rows.labels), gamma)
    gamma = _gamma_of(rows.probabilities, edges, gammas)
    log_complement = log_one_minus_p_of_all(rows)
    terms = _signed_focal(rows.log_probabilities, log_complement, gamma)
    return ops.sum(rows.targets * terms, axis=-1)


def _gamma_of(p, edges, gammas):
    flat = ops.reshape(ops.stop_gradient(p), (-1,))
    gamma = ops.take(gammas, interval_index(flat, edges), axis=0)
    return ops.reshape(ops.stop_gradient(gamma), ops.shape(p))


def _signed_focal(log_p, log_complement, gamma):
    # log (1 - p) and log (1 + p).
    base = ops.where(gamma >= 0, log_complement, ops.log1p(ops.exp(log_p)))
    return -ops.exp(ops.abs(gamma) * base) * log_p


@keras.saving.register_keras_serializable(package="keras_calib")
class AdaFocalTable(keras.metrics.Metric):
    """The bins and gammas of an `AdaFocalLoss`; shows the mean gamma.

    It is a metric for the sake of its variables only: every backend carries
    those through its compiled step. Get it from
    `AdaFocalLoss.component_metrics()`.

    Args:
        num_bins: int >= 2, how many bins; at first of equal width.
        gamma: float, the first gamma of every bin.
        name: name in the logs.
        dtype: as in Keras.

    Attributes:
        edges: the edges between the bins, `(num_bins - 1,)`.
        gammas: one per bin, `(num_bins,)`.

    Raises:
        ValueError: if `num_bins` is below 2.

    Example:
        >>> import keras_calib as kc
        >>> (table,) = kc.losses.AdaFocalLoss(num_bins=3).component_metrics()
        >>> tuple(table.gammas.shape), float(table.result())
        ((3,), 1.0)
    """

    def __init__(
        self,
        *,
        num_bins: int = 15,
        gamma: float = 1.0,
        name: str | None = "mean_gamma",
        dtype: Any = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        require(
            is_integer(num_bins) and 2 <= num_bins < MOST,
            "`num_bins` must be at least 2.",
            "With one bin use `FocalLoss`.",
            num_bins=num_bins,
        )
        require_number(gamma=gamma)
        self.num_bins = num_bins
        self.gamma = gamma
        # Epochs up to the last update, and whether a file has just been read:
        # for the schedule, which may have been saved too early.
        self.num_epochs = 0
        self.restored = False
        # Which loss it belongs to; see `_WAITING`.
        self.pair = next(_PAIRS)
        # A mean over the replicas of a strategy: each has the same table.
        self.edges = self.add_variable(
            (num_bins - 1,), "zeros", aggregation="mean", name="edges"
        )
        self.gammas = self.add_variable(
            (num_bins,), "zeros", aggregation="mean", name="gammas"
        )
        self.restart()

    def restart(self) -> None:
        """Give every bin the place and the gamma that it had at first."""
        self.set(
            interior_edges(self.num_bins), np.full(self.num_bins, self.gamma)
        )
        self.num_epochs = 0

    def set(self, edges: Tensor, gammas: Tensor) -> None:
        """Give every bin its place and its gamma.

        Args:
            edges: the edges between the bins, `(num_bins - 1,)`.
            gammas: one per bin, `(num_bins,)`.
        """
        self.edges.assign(edges)
        self.gammas.assign(gammas)

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: the schedule sets the gammas."""
        return None

    def reset_state(self) -> None:
        """Nothing: the gammas outlive the epoch."""
        return None

    def result(self) -> Tensor:
        return ops.mean(ops.convert_to_tensor(self.gammas))

    def save_own_variables(self, store: Any) -> None:
        # Keras saves no metric of its own accord.
        store["edges"] = ops.convert_to_numpy(self.edges)
        store["gammas"] = ops.convert_to_numpy(self.gammas)
        store["num_epochs"] = np.array(self.num_epochs)

    def load_own_variables(self, store: Any) -> None:
        # A file from before AdaFocal leaves the table as it is.
        if "gammas" not in store.keys():
            return
        if store["gammas"].shape != (self.num_bins,):
            raise ValueError(
                "The file holds the gammas of other bins. Received: "
                f"{store['gammas'].shape[0]} gammas for num_bins="
                f"{self.num_bins}."
            )
        self.set(store["edges"], store["gammas"])
        if "num_epochs" in store.keys():
            self.num_epochs = int(np.array(store["num_epochs"]))
            self.restored = True

    def get_config(self) -> dict[str, Any]:
        return {
            "num_bins": self.num_bins,
            "gamma": self.gamma,
            "name": self.name,
            "dtype": self.dtype,
            "pair": self.pair,
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        pair = _pair_of(config)
        table = _WAITING.pop(pair, None)
        if table is None or table.num_bins != config["num_bins"]:
            table = cls(**config)
        if pair is not None:
            table.pair = pair
        return table


@keras.saving.register_keras_serializable(package="keras_calib")
class AdaFocalLoss(ClassificationLoss):
    """`ada_focal_loss` for `compile`, with gammas that follow the calibration.

    Give `loss.component_metrics()` to `compile` as metrics, and an
    `kc.callbacks.AdaFocalSchedule` to `fit`; without the schedule every gamma
    stays as it is. The gammas are part of the model's weights file and of its
    `.keras` file.

    Args:
        num_bins: int >= 2, how many bins.
        gamma: float, the gamma to start with; 1 as published.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `reduction`, `name`,
            `dtype`, as in Keras.

    Attributes:
        table: the `AdaFocalTable` with edges and gammas.

    Call arguments:
        y_true: class ids, `(...)` or `(..., 1)`, or one-hot rows, `(...,
            num_classes)`.
        y_pred: probabilities, or logits if `from_logits`, `(...,
            num_classes)`; `(..., 1)` for one sigmoid unit.

    Raises:
        ValueError: if `num_bins` is below 2.

    Example:
        >>> import keras, numpy as np, keras_calib as kc
        >>> x, y = np.random.default_rng(0).normal(size=(64, 4)), np.arange(64)
        >>> model = keras.Sequential([keras.layers.Dense(3)])
        >>> loss = kc.losses.AdaFocalLoss(from_logits=True)
        >>> metrics = ["accuracy", *loss.component_metrics()]
        >>> model.compile("adam", loss, metrics=metrics)
        >>> schedule = kc.callbacks.AdaFocalSchedule((x, y % 3))
        >>> history = model.fit(x, y % 3, callbacks=[schedule], verbose=0)
        >>> len(schedule.gammas[-1])
        15

    Reference:
        Ghosh et al., "AdaFocal: Calibration-aware Adaptive Focal Loss",
        NeurIPS 2022, arXiv:2211.11838. The authors' code sums over the batch;
        this loss takes the mean, as Keras does.
    """

    def __init__(
        self, *, num_bins: int = 15, gamma: float = 1.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.keep(num_bins=num_bins, gamma=gamma)
        self.table = AdaFocalTable(**self.arguments)

    def terms(self, rows: Rows) -> tuple[Tensor, Tensor]:
        try:
            edges, gammas = self.table.edges.value, self.table.gammas.value
        except TypeError as error:
            # Within `fit` on JAX variables have no value but that of the state.
            raise ValueError(
                "`AdaFocalLoss` needs the state of its table, which a "
                "`train_step` of your own on JAX has to pass. Use "
                "`self.stateless_compute_loss(trainable_variables, "
                "non_trainable_variables, metrics_variables, x=x, y=y, "
                "y_pred=y_pred)` instead of `self.compute_loss`."
            ) from error
        dtype = rows.logits.dtype
        terms = _ada_focal(
            rows, ops.cast(edges, dtype), ops.cast(gammas, dtype)
        )
        return terms, 0.0

    def component_metrics(self) -> list[keras.metrics.Metric]:
        """The metric that carries the gammas through the compiled step.

        Returns:
            A list of one metric, named `mean_gamma`: the mean over the bins.

        Example:
            >>> import keras, keras_calib as kc
            >>> loss = kc.losses.AdaFocalLoss(from_logits=True)
            >>> model = keras.Sequential([keras.layers.Dense(3)])
            >>> metrics = ["accuracy", *loss.component_metrics()]
            >>> model.compile(loss=loss, metrics=metrics)
        """
        return [self.table]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "pair": self.table.pair}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "AdaFocalLoss":
        config = dict(config)
        pair = _pair_of(config)
        loss = cls(**config)
        if pair is not None:
            loss.table.pair = pair
            _WAITING[pair] = loss.table
        return loss
