"""Keras networks for scikit-learn's tools."""

import copy
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_calib._typing import ArrayLike
from keras_calib.inputs.arguments import require_flags
from keras_calib.inputs.arrays import TINY
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.arrays import as_floats
from keras_calib.inputs.arrays import class_probabilities
from keras_calib.inputs.rules import check_weights
from keras_calib.keras_graph.endings import check_one_output
from keras_calib.keras_graph.endings import gives_logits
from keras_calib.keras_graph.endings import refuse_decision
from keras_calib.keras_graph.endings import refuse_several_sigmoids


class SKLearnClassifier(keras.wrappers.SKLearnClassifier):
    """Keras' wrapper for scikit-learn, with probabilities.

    `keras.wrappers.SKLearnClassifier` has no `predict_proba`, which
    `CalibrationDisplay`, `CalibratedClassifierCV` and most tools ask for. This
    one has, and `decision_function` gives logits whatever the network gives.
    It also takes sparse losses, one sigmoid unit and images, keeps `fit_kwargs`
    in a clone, and wraps networks that are trained already (`of_trained`).

    Labels may be anything that scikit-learn takes; `classes_` has them in the
    order of the columns. The network is given one-hot rows, or class ids if its
    loss is sparse or it has one unit.

    Args:
        model: a compiled `keras.Model`, of which every fit trains a copy with
            new weights, also where they are not trained (a frozen base, an
            adapted `Normalization`); or a function `model(X=, y=,
            **model_kwargs)` that returns one, and may set such weights; its `y`
            are one-hot rows.
        warm_start: whether a second fit goes on with the weights of the first.
        model_kwargs: `None`, or a dict for the function.
        fit_kwargs: `None`, or a dict for `model.fit`, such as `epochs`.
        from_logits: whether the network gives logits; `None` if the end of its
            graph shows it. After a softmax or sigmoid it does not, in any case.

    Attributes:
        model_: the trained `keras.Model`.
        history_: dict of the logs of `fit`; empty after `of_trained`.
        classes_: labels, `(num_classes,)`.

    Raises:
        ImportError: if scikit-learn is not installed.

    Example:
        >>> import keras, keras_calib as kc
        >>> from sklearn.calibration import CalibratedClassifierCV
        >>> from sklearn.datasets import make_classification
        >>> x, y = make_classification(200, random_state=0)
        >>> model = keras.Sequential([keras.Input((20,)),
        ...                           keras.layers.Dense(2)])
        >>> model.compile("adam", keras.losses.SparseCategoricalCrossentropy(
        ...     from_logits=True))
        >>> classifier = kc.SKLearnClassifier(
        ...     model, fit_kwargs={"epochs": 2, "verbose": 0})
        >>> calibrated = CalibratedClassifierCV(classifier, cv=2).fit(x, y)
        >>> calibrated.predict_proba(x).shape
        (200, 2)
    """

    # The units in the order of `classes_`; `None` where they are in it.
    _order: np.ndarray | None = None

    def __init__(
        self,
        model: keras.Model | Callable,
        *,
        warm_start: bool = False,
        model_kwargs: dict[str, Any] | None = None,
        fit_kwargs: dict[str, Any] | None = None,
        from_logits: bool | None = None,
    ) -> None:
        super().__init__(model, warm_start, model_kwargs, fit_kwargs)
        self.from_logits = from_logits

    @classmethod
    def of_trained(
        cls,
        model: keras.Model,
        *,
        classes: ArrayLike | None = None,
        from_logits: bool | None = None,
    ) -> "SKLearnClassifier":
        """Wrap a network that is trained, such as one of `kc.calibrate`.

        For tools that fit what they are given, wrap the result in
        scikit-learn's `FrozenEstimator`.

        Args:
            model: a built `keras.Model` with one output, `(batch, num_classes)`
                or `(batch, 1)`. It is used, not copied.
            classes: labels in the order of the units; class ids by default. A
                subclassed model needs them, because it does not show how many
                units it has. `classes_`, and the columns of what is predicted,
                are in the order of the labels, as scikit-learn has them.
            from_logits: whether it gives logits; `None` if its graph shows it.

        Returns:
            A fitted `SKLearnClassifier`.

        Raises:
            ValueError: if there are not as many different classes as units, if
                `classes` is needed, or if the model has several outputs or
                sigmoid units.
        """
        require_flags(none=True, from_logits=from_logits)
        self = cls(model, from_logits=from_logits)
        units = num_classes(model, classes)
        labels = np.arange(units) if classes is None else np.asarray(classes)
        if labels.shape != (units,):
            raise ValueError(
                f"`classes` must have {units} labels, one for each class. "
                f"Received: classes of shape {labels.shape}."
            )
        # scikit-learn looks labels up in their order.
        self.classes_, self._order = np.unique(labels, return_index=True)
        if len(self.classes_) < units:
            raise ValueError(
                "Each class must have a label of its own. Received: classes="
                f"{labels.tolist()}."
            )
        self.model_, self.history_ = model, {}
        return self

    def __sklearn_clone__(self) -> "SKLearnClassifier":
        other = super().__sklearn_clone__()
        other.fit_kwargs = self.fit_kwargs
        other.from_logits = self.from_logits
        if hasattr(self, "_metadata_request"):
            other._metadata_request = copy.deepcopy(self._metadata_request)
        return other

    def set_fit_request(self, **requests: Any) -> "SKLearnClassifier":
        """Say which metadata scikit-learn routes to `fit`.

        Args:
            **requests: by name of the argument, such as `sample_weight=True`;
                `True`, `False`, `None` or an alias.

        Returns:
            The estimator.

        Raises:
            RuntimeError: if metadata routing is not enabled.
        """
        routing = self.get_metadata_routing()
        super().set_fit_request()  # raises; its requests are for `score`
        for name, alias in requests.items():
            routing.fit.add_request(param=name, alias=alias)
        self._metadata_request = routing
        return self

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        **kwargs: Any,
    ) -> "SKLearnClassifier":
        """Train the network.

        Args:
            X: inputs, `(n, ...)`.
            y: labels, `(n,)`.
            sample_weight: `None`, or weights, `(n,)`.
            **kwargs: arguments of `model.fit`; they come before `fit_kwargs`.
                In `validation_data=(X, y)` labels are like `y`, and so are the
                keys of `class_weight`. Datasets are passed on as they are.

        Returns:
            The fitted estimator.

        Raises:
            ValueError: if the network has other units than `y` has classes, or
                several sigmoid units; if there are other labels in
                `validation_data` or `class_weight`, or a weight for each sample
                is missing. After an error the estimator is as it was.
        """
        require_flags(warm_start=self.warm_start)
        require_flags(none=True, from_logits=self.from_logits)
        before = dict(vars(self))
        values = state_of(before.get("model_") if self.warm_start else None)
        try:
            return self._fit(X, y, sample_weight, kwargs)
        except BaseException:
            for variable, value in values:
                variable.assign(value)
            self.__dict__ = before
            raise

    def _fit(self, X, y, sample_weight, kwargs):
        X, y = self._checked(X, y)
        if sample_weight is not None:
            weights = weights_of(sample_weight, len(y))
            kwargs = {"sample_weight": weights, **kwargs}
        again = self.warm_start and hasattr(self, "model_")
        if again and not np.isin(y, self.classes_).all():
            raise ValueError(
                "With `warm_start=True` a second fit goes on with the units of "
                "the first, each of which has a label. Received: labels that "
                f"are not among {self.classes_.tolist()}."
            )
        if again:
            one_hot = np.eye(len(self.classes_))[self._units(y)]
        else:
            one_hot = self._process_target(y, reset=True)
            self._order = None
            if isinstance(self.model, keras.Model):
                check_compiled(self.model)
            model = self._get_model(X, one_hot)
            check_compiled(model)
            self._check_units(model)
            self.model_ = model
        arguments = self._by_unit({**(self.fit_kwargs or {}), **kwargs})
        targets = self._targets(one_hot)
        self.history_ = self.model_.fit(X, targets, **arguments).history
        return self

    def _targets(self, one_hot):
        """What the network is trained with."""
        return one_hot.argmax(axis=1) if takes_ids(self.model_) else one_hot

    def _by_unit(self, arguments):
        """Arguments of `model.fit` whose labels are those of the user."""
        data = arguments.get("validation_data")
        if isinstance(data, list | tuple) and len(data) > 1:
            x, y, *weights = data
            if np.ndim(y) > 1 and np.shape(y)[1] > 1:
                raise ValueError(
                    "Labels in `validation_data` are like `y`, one for each "
                    f"sample. Received: labels of shape {np.shape(y)}."
                )
            units = self._known_units(as_array(y), "validation_data")
            one_hot = np.eye(len(self.classes_))[units]
            data = x, self._targets(one_hot), *weights
            arguments = {**arguments, "validation_data": data}
        weight = arguments.get("class_weight")
        if weight is not None:
            units = self._known_units(np.array([*weight]), "class_weight")
            weight = dict(zip(units.tolist(), weight.values(), strict=True))
            arguments = {**arguments, "class_weight": weight}
        return arguments

    def _known_units(self, labels, name):
        """The unit of each label, of those of the training data."""
        labels = labels.reshape(-1)
        if not np.isin(labels, self.classes_).all():
            raise ValueError(
                f"Labels in `{name}` must be among those of `y`: "
                f"{self.classes_.tolist()}. Received: "
                f"{np.unique(labels).tolist()}."
            )
        return self._units(labels)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable label of each input, `(n,)`."""
        p = self.predict_proba(X)  # which says so if nothing is fitted
        return self.classes_[p.argmax(axis=1)]

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Probabilities, `(n, num_classes)`, in the order of `classes_`."""
        p = class_probabilities(*self._scores(X))
        # Those of float32 miss a sum of 1 by more than tools allow.
        return self._columns(p / p.sum(axis=1, keepdims=True))

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """Logits, `(n, num_classes)`; of two classes the log-odds, `(n,)`."""
        scores, from_logits = self._scores(X)
        if not from_logits:
            # A probability of 0 has no logarithm.
            scores = np.clip(scores, TINY, 1)
            other = np.clip(1 - scores, TINY, 1)
            one_unit = scores.shape[1] == 1
            scores = np.log(scores) - (np.log(other) if one_unit else 0)
        if scores.shape[1] == 1:
            scores = np.concatenate([np.zeros_like(scores), scores], axis=1)
        scores = self._columns(scores)
        if scores.shape[1] == 2:
            return scores[:, 1] - scores[:, 0]
        return scores

    def _columns(self, values):
        """Columns of the units in the order of `classes_`."""
        return values if self._order is None else values[:, self._order]

    def _units(self, labels):
        """The unit of each label."""
        index = np.searchsorted(self.classes_, labels)
        return index if self._order is None else self._order[index]

    def _scores(self, X):
        """Outputs of the network, float64, and whether they are logits."""
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self, "model_")
        scores = self.model_.predict(self._checked(X), verbose=0)
        from_logits = gives_logits(self.model_, self.from_logits)
        return np.asarray(scores, "float64"), from_logits

    def _check_units(self, model):
        """Refuse a network of other classes than those of the labels."""
        units, number = units_of(model), len(self.classes_)
        if units is None:
            return
        refuse_several_sigmoids(model)
        if max(2, units) != max(2, number):
            raise ValueError(
                "A network has one unit for each class, or one unit for two. "
                f"Received: {model.name!r} with {units} units, and {number} "
                "classes among the labels."
            )

    def _checked(self, X, *y):
        """Arrays, of any rank; in a prediction of the width of the fit."""
        from sklearn.utils.validation import validate_data

        # NumPy does not read the memory of a GPU.
        X, *y = (as_array(v) if keras.ops.is_tensor(v) else v for v in (X, *y))
        if not y and not hasattr(self, "n_features_in_"):
            return np.asarray(X)  # `of_trained`: the network knows its inputs
        return validate_data(self, X, *y, reset=bool(y), allow_nd=True)


def state_of(model):
    """Variables of a model and its optimizer, with what they hold."""
    if model is None:
        return []
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.variables, *(optimizer.variables if optimizer else ())]
    return [(v, keras.ops.copy(v)) for v in variables]


def weights_of(sample_weight, number):
    """Weights of samples, `(n,)`, of which one is positive."""
    weights = as_floats(sample_weight, "Sample weights")
    if weights.shape != (number,):
        raise ValueError(
            f"`sample_weight` must have {number} weights, one for each sample. "
            f"Received: weights of shape {weights.shape}."
        )
    check_weights(weights)
    if not weights.any():
        raise ValueError("Sample weights are all zero. Pass one above it.")
    return weights


def units_of(model):
    """Units of the one output; `None` where a model does not show them."""
    shape = getattr(model, "output_shape", None)
    if shape is None:
        return None
    check_one_output(model)
    refuse_decision(model)
    return shape[-1]


def num_classes(model, classes):
    """Number of classes of a model; of one without a graph, of `classes`."""
    units = units_of(model)
    if units is not None:
        refuse_several_sigmoids(model)
        return max(2, units)
    if classes is not None:
        return len(np.atleast_1d(classes))
    raise ValueError(
        "`classes` is needed, because the model does not show how many units "
        "it has: it is subclassed, or not built. Received: model "
        f"{model.name!r}, classes=None. Pass `classes=range(num_classes)`."
    )


def takes_ids(model):
    """Whether a compiled model is trained with class ids."""
    if units_of(model) == 1:
        return True
    [loss, *_] = keras.tree.flatten(model.loss)
    if isinstance(loss, keras.losses.SparseCategoricalCrossentropy):
        return True
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", "")
    return name.lower().startswith("sparse")


def check_compiled(model):
    """Raise for a model that is not compiled, as Keras' wrapper does."""
    if not model.compiled or not model.loss or not model.optimizer:
        raise RuntimeError(
            "The model must be compiled with a loss and an optimizer. "
            f"Received: {model.name!r}. Call `model.compile` first."
        )
