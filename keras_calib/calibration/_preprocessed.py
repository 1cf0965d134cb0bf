"""Models that preprocess raw inputs in `predict`: tasks of KerasHub."""

import inspect
from collections.abc import Callable
from typing import Any
from typing import NoReturn

import keras
import numpy as np

from keras_calib._typing import Tensor
from keras_calib.calibration._record import fused_records
from keras_calib.calibration._record import keep_fused_records
from keras_calib.data.batches import Batches
from keras_calib.data.batches import as_batches
from keras_calib.data.batches import for_model
from keras_calib.data.predict import strings_as_lists
from keras_calib.keras_graph import endings
from keras_calib.keras_graph.composite import CompositeModel
from keras_calib.keras_graph.preprocessors import preprocessor_of


@keras.saving.register_keras_serializable(package="keras_calib")
class PreprocessedModel(CompositeModel):
    """A calibrated model that takes what the preprocessor of a task takes.

    `kc.calibrate` and `kc.adjust_prior` return one for a task of KerasHub that
    has a preprocessor.
    `predict` and `evaluate`, also `on_batch`, preprocess their inputs; a call
    `model(x)` and `export` take preprocessed ones, as in KerasHub. Batches are
    preprocessed by the backend, as in `predict_on_batch` of KerasHub, whose
    `predict` may resize images by tf.data with pixels rounded otherwise. The
    file needs `import keras_hub` and `import keras_calib`.

    Args:
        model: a `keras.Model` of preprocessed inputs.
        preprocessor: a layer that takes raw inputs, and perhaps `y` and
            `sample_weight`; `None` if inputs come preprocessed.
        **kwargs: `name`, as in Keras.
    """

    parts = ("model", "preprocessor")

    def __init__(
        self,
        model: keras.Model,
        preprocessor: keras.layers.Layer | None,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, **kwargs)
        self.model = model
        self.preprocessor = preprocessor

    @property
    def output_kind(self):
        """What the model returns; `None` if unknown."""
        return endings.output_kind(self.model)

    def preprocess_samples(
        self, x: Any, y: Any = None, sample_weight: Any = None
    ) -> Any:
        """What the model takes for raw inputs, as in KerasHub."""
        found = preprocess(self.preprocessor)(x, y, sample_weight)
        return keras.utils.pack_x_y_sample_weight(*found)

    def call(self, inputs: Any, training: bool = False) -> Tensor:
        return self.model(inputs, training=training)

    def compute_output_spec(self, inputs: Any, training: bool = False) -> Any:
        # Some layers of tasks cannot run on shapes that Keras would draw.
        return self.model.compute_output_spec(inputs, training=training)

    def build_from_config(self, config: dict[str, Any]) -> None:
        self.built = True  # as its parts are

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: str | int = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """As `keras.Model.predict`, of raw inputs."""
        data = preprocessed_batches(
            self.preprocessor,
            raw_arrays(x),
            batch_size=batch_size,
            steps=steps,
            labeled=False,
        )
        return super().predict(
            _for_keras(data),
            verbose=verbose,
            steps=data.total,
            callbacks=callbacks,
        )

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        batch_size: int | None = None,
        verbose: str | int = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """As `keras.Model.evaluate`, of raw inputs."""
        data = preprocessed_batches(
            self.preprocessor,
            raw_arrays(x),
            y,
            sample_weight,
            batch_size=batch_size,
            steps=steps,
        )
        return super().evaluate(
            _for_keras(data), verbose=verbose, steps=data.total, **kwargs
        )

    def predict_on_batch(self, x: Any) -> Any:
        """As `keras.Model.predict_on_batch`, of raw inputs."""
        return super().predict_on_batch(preprocess(self.preprocessor)(x)[0])

    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, **kwargs: Any
    ) -> Any:
        """As `keras.Model.test_on_batch`, of raw inputs."""
        known = preprocess(self.preprocessor)(x, y, sample_weight)
        return super().test_on_batch(*known, **kwargs)

    def train_on_batch(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not here; see `fit`."""
        self.fit()

    def fit(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not here.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "A calibrated model is not trained. Received: a call of `fit`. "
            "Train the task that it came from, and calibrate it again."
        )


def _for_keras(batches):
    """Batches as Keras takes them, which knows a generator by its type."""
    for batch in batches:
        yield tuple(for_model(part) for part in batch if part is not None)


def preprocess(preprocessor: Callable | None) -> Callable:
    """A function of a batch, `(x, y, sample_weight)`, that returns one."""
    takes_labels = preprocessor is not None and "y" in (
        inspect.signature(
            getattr(preprocessor, "call", preprocessor)
        ).parameters
    )

    def apply(x, y=None, sample_weight=None):
        if preprocessor is None:
            return x, y, sample_weight
        x = strings_as_lists(x)
        if not takes_labels:
            return preprocessor(x), y, sample_weight
        found = preprocessor(x, y=y, sample_weight=sample_weight)
        if y is None and not isinstance(found, tuple):
            return found, None, None
        return keras.utils.unpack_x_y_sample_weight(found)

    return apply


def preprocess_labeled(preprocessor: Callable) -> Callable:
    """`preprocess` of batches that have labels then; it may make them."""
    prepared = preprocess(preprocessor)

    def apply(x, y=None, sample_weight=None):
        found = prepared(x, y, sample_weight)
        if found[1] is None:
            raise ValueError(
                "The data has no labels, and the preprocessor makes none: pass "
                "`x` and `y`, or a dataset of `(x, y)`."
            )
        return found

    return apply


def raw_arrays(x: Any) -> Any:
    """Lists and tables of strings as arrays, which can be cut and joined."""
    if isinstance(x, dict):
        return {key: raw_arrays(value) for key, value in x.items()}
    if hasattr(x, "iloc") and x.ndim == 1:  # a column of pandas
        return x.to_numpy()
    if not isinstance(x, list | tuple) or not x:
        return x
    if isinstance(x[0], str | bytes):
        return np.array(x, "object")
    if isinstance(x[0], list | tuple | dict):
        return type(x)(map(raw_arrays, x))
    return x


def preprocessed_batches(
    preprocessor: Callable | None, x: Any, *data: Any, **options: Any
) -> Batches:
    """`as_batches` of data, preprocessed if there is a preprocessor.

    Data without labels will do where it makes them.
    """
    if preprocessor is None:
        return as_batches(x, *data, **options)
    prepared: Callable[..., Callable] = preprocess
    if options.setdefault("labeled", None) is None:
        prepared = preprocess_labeled
    batches = as_batches(raw_arrays(x), *data, **options)
    return batches.mapped(prepared(preprocessor))


def with_preprocessor(
    model: keras.Model, preprocessor: Callable
) -> PreprocessedModel:
    """A model with a graph, as one that takes raw inputs in `predict`."""
    whole = PreprocessedModel(model, preprocessor, name=model.name)
    whole(endings.inputs_of(model))  # which builds it
    keep_fused_records(whole, fused_records(model))
    return whole


def taken_apart(model: Any) -> tuple[Any, Any]:
    """A model of preprocessed inputs, and the preprocessor.

    Args:
        model: anything; a task of KerasHub has both.

    Returns:
        model: without the preprocessing; or the argument.
        preprocessor: or `None`.
    """
    preprocessor = preprocessor_of(model)
    if isinstance(model, PreprocessedModel):
        return model.model, preprocessor
    if preprocessor is None or not endings.has_graph(model):
        return model, None
    plain = keras.Model(endings.inputs_of(model), model.output, name=model.name)
    if getattr(model, "history", None) is not None:
        plain.history = model.history
    return plain, preprocessor
