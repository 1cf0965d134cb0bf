"""A temperature, or a Platt map, for each of several sigmoid units."""

from collections.abc import Callable
from typing import Any
from typing import Self

import keras
import numpy as np
from keras import ops

from keras_calib._typing import ArrayLike
from keras_calib._typing import Tensor
from keras_calib._warning import FewSamplesWarning
from keras_calib.inputs.arguments import require_one_of
from keras_calib.inputs.arrays import LOWEST
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.arrays import numbered
from keras_calib.inputs.calibration_rows import group_of_rows
from keras_calib.inputs.label_arrays import LabelArrays
from keras_calib.inputs.label_arrays import read_labels
from keras_calib.inputs.tensors import maximum
from keras_calib.layers._base import CalibrationLayer
from keras_calib.layers._label_record import counts_of
from keras_calib.layers._label_record import summary_of
from keras_calib.layers._label_record import untouched
from keras_calib.layers._label_warnings import LabelWarnings
from keras_calib.layers._logit_ops import log1pexp
from keras_calib.layers._logit_ops import logaddexp
from keras_calib.layers._platt_scaling import PlattScaling
from keras_calib.layers._recorded import RecordedLayer
from keras_calib.layers._shrunk import check_shrinkage
from keras_calib.layers._temperature_scaling import TemperatureScaling
from keras_calib.solvers.blocks import TINY64
from keras_calib.solvers.logistic import binary_nll
from keras_calib.solvers.related_temperatures import fit_related

METHODS = ("temperature", "platt")
IDENTITY = {"temperature": 1.0, "slope": 1.0, "intercept": 0.0, "mixture": 0.0}


@keras.saving.register_keras_serializable(package="keras_calib")
class MultiLabelScaling(RecordedLayer):
    """Calibrate each of several sigmoid units by itself.

    Labels do not exclude each other, so that each is a binary problem. For the
    logit `z` of a label the new logit is `z / T` with `method="temperature"`;
    with `method="platt"` the new probability is

        (1 - c) sigmoid(z / T) + c sigmoid(slope * z + intercept)

    where `c`, between 0 and 1, is small for few samples, with Platt's targets
    of this label.

    Few samples of a label leave its temperature open. By default it is then
    near that of all labels together, also of a label without a positive or
    without a negative sample, and with many samples that of the label alone:
    log T is normal around a common mean, with a width that the labels tell.
    With `shrinkage=None` every label is fitted by itself, as
    `TemperatureScaling` or `PlattScaling(shrinkage=None)` would be, and one
    without a positive or without a negative sample stays as it is.

    `kc.calibrate(..., multi_label=True)` fits this layer to a model, and keeps
    a label as it is also where calibration is worse on left-out samples.

    Args:
        method: `"temperature"` or `"platt"`.
        shrinkage: `"auto"` or `None`, see above.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Call arguments:
        logits: `(..., num_labels)`, each before a sigmoid.

    Returns:
        Calibrated logits, `(..., num_labels)`.

    Raises:
        ValueError: for another `method` or `shrinkage`.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> z = np.array([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0], [-2.0, 1.0]])
        >>> labels = np.array([[1, 1], [1, 1], [0, 1], [0, 0]])
        >>> layer = kc.layers.MultiLabelScaling(shrinkage=None)
        >>> layer = layer.adapt(z, labels)
        >>> layer.temperatures.round(4)  # 3 of 4 right: 2 / log 3, 1 / log 3
        array([1.8205, 0.9102], dtype=float32)

    Reference:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017,
        Section 4.2; Platt, "Probabilistic Outputs for Support Vector
        Machines", 1999; both for each label.
    """

    # The output is logits.
    ends_in = "linear"
    settings = ("method", "shrinkage")
    of_classes = True
    _least = 1

    def __init__(
        self,
        *,
        method: str = "temperature",
        shrinkage: str | None = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        require_one_of(METHODS, method=method)
        check_shrinkage(shrinkage)
        self.method = method
        self.shrinkage = shrinkage
        self.supports_masking = True

    def build(self, input_shape: tuple) -> None:
        for name, value in IDENTITY.items():
            if name == "temperature" or self.method == "platt":
                self._add(name, np.full(input_shape[-1], value))
        self.built = True

    @property
    def temperatures(self) -> np.ndarray:
        """The temperature of each label, float32, `(num_labels,)`."""
        return as_array(ops.convert_to_numpy(self.temperature))

    def call(self, logits: Tensor) -> Tensor:
        if self.method == "temperature":
            return logits / self.temperature
        logits = maximum(logits, LOWEST)
        tempered = logits / self.temperature
        platt = self.slope * logits + self.intercept
        c = ops.convert_to_tensor(self.mixture)
        log_q, log_one_minus_q = (
            logaddexp(
                _log(1.0 - c) - log1pexp(-sign * tempered),
                _log(c) - log1pexp(-sign * platt),
            )
            for sign in (1.0, -1.0)
        )
        return ops.where(c > 0, log_q - log_one_minus_q, tempered)

    def as_affine(self, num_classes: int) -> tuple | None:
        """The map as `logits * matrix + bias`; see `CalibrationLayer`.

        Returns:
            matrix: `(num_labels,)`.
            bias: `(num_labels,)`. Or `None` if a label has a mixture.
        """
        slope = 1 / self.temperatures
        if self.method == "temperature":
            return slope, np.zeros_like(slope)
        c, own, bias = (
            as_array(ops.convert_to_numpy(weight))
            for weight in (self.mixture, self.slope, self.intercept)
        )
        if not np.isin(c, (0, 1)).all():
            return None
        return np.where(c == 1, own, slope), np.where(c == 1, bias, 0.0)

    def adapt(
        self,
        logits: ArrayLike,
        labels: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        ignore_class: int | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Fit every label by its negative log-likelihood.

        Args:
            logits: network outputs before the sigmoids, `(..., num_labels)`.
            labels: 0 or 1, `(..., num_labels)`.
            sample_weight: `None`, or weights >= 0, which broadcast to `logits`
                from the left: one per sample, or one per label of a sample. A
                constant factor, also of one label, changes nothing.
            ignore_class: labels of this value, such as -1 for an unknown
                one, do not count.
            groups: see `CalibrationLayer.adapt`.

        Returns:
            The layer itself.

        Raises:
            ValueError: for invalid input; the layer is then unchanged.

        Warns:
            UserWarning: for labels without a positive or without a negative
                sample; and as the fit of a label warns, with its number.
        """
        data = read_labels(logits, labels, sample_weight, ignore_class)
        units = len(as_array(labels))
        unit = np.arange(units).repeat(len(data.labels) // max(1, units))
        group = group_of_rows(unit, units, groups)

        def fit(number, rows):
            single = TemperatureScaling()
            if self.method == "platt":
                single = PlattScaling(shrinkage=self.shrinkage)
            single.adapt_to_rows(rows)
            return single, single.record

        def measure(single, rows):
            if single is None:
                return untouched(rows)
            z = np.maximum(rows.logits, LOWEST)
            if self.method == "temperature":
                log_odds = z / single.temperature
            else:
                log_odds = as_array(single(z))
            log_odds = log_odds[:, 0].astype("float64")
            nll = binary_nll(log_odds, rows.labels, rows.weights)
            return {"nll_after": nll}

        related = self.shrinkage is not None
        return self.adapt_to_labels(data, group, fit, measure, related)

    def adapt_to_labels(
        self,
        data: LabelArrays,
        group: np.ndarray | None,
        fit: Callable,
        measure: Callable,
        related: bool,
    ) -> Self:
        """Fit every label by a function.

        Args:
            data: `LabelArrays` of logits.
            group: see `CalibrationRows`.
            fit: function of a label's number and `CalibrationRows` that returns
                a `TemperatureScaling`, a `PlattScaling`, or anything else to
                leave the label as it is; and a dict with `nll_before`,
                `nll_after` and, for the record, perhaps the same of `ece`.
            measure: function of a map and `CalibrationRows` that returns what
                is different in this dict when all labels are fitted; of `None`
                for a label that stays as it is.
            related: whether temperatures are to be near each other.

        Returns:
            The layer itself.
        """
        weights = {
            name: np.full(data.num_labels, value)
            for name, value in IDENTITY.items()
        }
        records, counts, left = [], [], []
        singles: dict[int, CalibrationLayer] = {}
        said = LabelWarnings()
        for k in range(data.num_labels):
            rows = data.of_label(k, group)
            counts.append(counts_of(rows))
            if not all(counts[k]):
                left.append(k)
                records.append({} if rows is None else measure(None, rows))
                continue
            with said.of_label(k):
                singles[k], record = fit(k, rows)
            records.append(dict(record))
        if not any(negative + positive for negative, positive in counts):
            raise ValueError(
                "There is no calibration sample to fit to. Received: "
                f"{len(data.labels)} samples of {data.num_labels} labels "
                "without a weight above 0 and a label that counts."
            )
        found = _relate(data, group, singles, left) if related else None
        if found is not None:
            # What a label alone leaves open, the others tell.
            said.drop(FewSamplesWarning)
        for k, single in singles.items():
            for name, value in _weights_of(single).items():
                weights[name][k] = value
            # An error of samples of one class says nothing of others.
            told = said if all(counts[k]) else LabelWarnings()
            if _weights_of(single) and any(counts[k]):
                with told.of_label(k):
                    records[k] |= measure(single, data.of_label(k, group))
        self._take(weights)
        self.record = summary_of(self, data, records, counts)
        if found is not None:
            self.record |= found.to_dict()
        said.warn(left, data.num_labels, fitted=found is not None)
        return self

    def _take(self, weights):
        if not self.built:
            self.build((None, len(weights["temperature"])))
        for variable in self.weights:
            value = weights[variable.name]
            if tuple(variable.shape) != value.shape:
                raise ValueError(
                    "The layer was built for other logits. Received: "
                    f"{len(value)} labels; the layer has {variable.shape[0]}. "
                    "Adapt a new layer."
                )
        for variable in self.weights:
            variable.assign(weights[variable.name])

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape


def _relate(data, group, singles, left):
    """Set the temperatures of all labels but those that stay as they are.

    These and those of one class count, too: what is left without them is more
    often positive, or further from calibrated, than labels are.

    Args:
        data: `LabelArrays`.
        group: see `CalibrationRows`.
        singles: maps of labels, by number, to which those of `left` are added.
        left: numbers of labels of one class.

    Returns:
        `RelatedTemperatures`, or `None` where every label has its own.
    """
    maps = {k: _weights_of(single) for k, single in singles.items()}
    fitted = {k for k in maps if "temperature" in maps[k]}
    same = {k for k in maps if not maps[k]}
    labels = sorted({*fitted, *same, *left})
    if not fitted or len(labels) < 2:
        return None
    weights = np.asarray(data.weights[:, labels], "float64")
    total = np.maximum(weights.sum(axis=0), TINY64)
    weights *= np.count_nonzero(weights, axis=0) / total
    if group is not None:
        group, _ = numbered(group)
    columns = data.scores[:, labels], data.labels[:, labels]
    found = fit_related(*columns, weights, group)
    if found is not None:
        for k, temperature in zip(labels, found.temperatures, strict=True):
            if k not in singles:
                singles[k] = TemperatureScaling()
                singles[k].build((None, 1))
            if k not in same:
                _set_temperature(singles[k], temperature)
    return found


def _set_temperature(single, temperature):
    if isinstance(single, TemperatureScaling):
        single.log_temperature.assign(np.log(temperature))
    else:
        single.temperature.assign(temperature)


def _log(share):
    """The logarithm of a number in [0, 1], finite at 0."""
    positive = share > 0
    return ops.where(positive, ops.log(ops.where(positive, share, 1.0)), LOWEST)


def _weights_of(single: CalibrationLayer) -> dict:
    """A fitted map of one label as weights of `MultiLabelScaling`."""
    if isinstance(single, TemperatureScaling):
        return {"temperature": single.temperature}
    if not isinstance(single, PlattScaling):
        return {}
    names = ["slope", "intercept"]
    if single.shrinkage is not None:
        names += ["temperature", "mixture"]
    found = {name: float(as_array(getattr(single, name))) for name in names}
    return {"mixture": 1.0, **found}
