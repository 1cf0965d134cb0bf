"""`evaluate`: accuracy and calibration on corrupted images."""

import dataclasses
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib._progress import ProgressBar
from keras_calib._typing import ArrayLike
from keras_calib._warning import warn
from keras_calib.data.batches import for_model
from keras_calib.data.predict import outputs_and_mask
from keras_calib.inputs import label_rules
from keras_calib.inputs.arguments import require
from keras_calib.inputs.arguments import require_flags
from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.predictions import read_predictions
from keras_calib.keras_graph.endings import gives_logits
from keras_calib.shift._corrupt import CORRUPTIONS
from keras_calib.shift._corrupt import SEVERITIES
from keras_calib.shift._corrupt import check_arguments
from keras_calib.shift._corrupt import check_images
from keras_calib.shift._corrupt import check_values
from keras_calib.shift._corrupt import corrupt_from
from keras_calib.shift._measure import measure
from keras_calib.shift._result import CLEAN
from keras_calib.shift._result import ShiftResult

# From here on an accuracy like that of a guess is no accident.
MANY = 100


def evaluate(
    model: Any,
    x: ArrayLike,
    y: ArrayLike,
    *,
    corruptions: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    seed: int = 0,
    value_range: tuple[float, float] = (0, 255),
    preprocess: Callable | Mapping[str, Callable] | None = None,
    from_logits: bool | None = None,
    num_bins: int = 15,
    num_resamples: int = 200,
    batch_size: int = 250,
    verbose: int | str = "auto",
) -> ShiftResult:
    """Accuracy, ECE and NLL of models on clean and on corrupted images.

    Corruptions come first, on the raw images, and `preprocess` (what a model
    needs, such as normalization) comes after them. Images are corrupted batch
    by batch, once for all models; nothing but three numbers for each image and
    cell is kept. A cell is a corruption at a severity.

    Standard errors are those of another draw of images, and those of a mean
    over cells take into account that the same images are in all of them (for
    the ECE by the bootstrap). How far cells differ from each other is another
    question: that is the standard deviation beside a mean. The ECE of few
    images is too high, by about its noise floor, which stands beside it;
    compare only results of equally many images.

    Args:
        model: a classifier, or a dict of them by name.
        x: raw images, `(n, height, width, channels)`; see `corrupt`. Only
            slices are read, so a memory map stays on disk.
        y: labels: class ids, `(n,)`, or one-hot rows.
        corruptions: names from `kc.shift.CORRUPTIONS`.
        severities: from 1 to 5.
        seed: int; see `corrupt`.
        value_range: of floating-point images; see `corrupt`.
        preprocess: function from a batch of corrupted images, an array of the
            dtype of `x`, to the inputs of the model; or a dict of functions by
            the name of the model. `None` for models that take raw images.
        from_logits: whether the models give logits. By default the end of a
            model's graph decides, and where it is a softmax or sigmoid, in any
            case.
        num_bins: int, number of bins of the ECE.
        num_resamples: int, resamples for the standard error of the ECE.
        batch_size: int. It does not change the corruptions.
        verbose: `"auto"` for a progress bar after a few seconds, 1 for a bar
            from the start, 0 for silence.

    Returns:
        `ShiftResult`: `rows`, `means`, `to_markdown()`, `to_dict()`, `plot()`.

    Raises:
        ValueError: for bad input; see `corrupt`.

    Example:
        >>> import keras, numpy as np, keras_calib as kc
        >>> x = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3))
        >>> model = keras.Sequential([keras.layers.Flatten(),
        ...                           keras.layers.Dense(3, "softmax")])
        >>> model.build((None, 16, 16, 3))
        >>> result = kc.shift.evaluate(
        ...     model, x.astype("uint8"), np.arange(8) % 3, severities=[1, 5],
        ...     corruptions=["fog", "contrast"], preprocess=lambda x: x / 255,
        ...     verbose=0)
        >>> len(result.rows)  # with the clean images
        5

    Reference:
        Ovadia et al., "Can You Trust Your Model's Uncertainty? Evaluating
        Predictive Uncertainty Under Dataset Shift", NeurIPS 2019,
        arXiv:1906.02530, Section 4.
    """
    corruptions, severities = _cells(corruptions, severities, value_range)
    require_integer(1, num_bins=num_bins, batch_size=batch_size)
    require_integer(2, num_resamples=num_resamples)
    require_integer(0, seed=seed)
    require_flags(none=True, from_logits=from_logits)
    images: Any = x
    if not (hasattr(x, "shape") and hasattr(x, "dtype")):
        images = as_array(x)
    labels = as_array(y)
    for kind in corruptions:
        check_images(images, kind, value_range)
    require(
        len(images) == len(labels) > 0,
        "`x` and `y` must have the same length, above 0.",
        x=len(images),
        y=len(labels),
    )
    subjects = _subjects(model, preprocess, from_logits)
    cells = [(CLEAN, 0), *((c, s) for c in corruptions for s in severities)]
    batches = _Batches(images, labels, cells, seed, value_range, batch_size)
    found = _run(subjects, batches, verbose)
    _warn_of_guesses(found)
    measured = [
        measure(name, each, cells, num_bins, num_resamples, seed)
        for name, each in found.items()
    ]
    return ShiftResult(
        rows=[row for rows, _ in measured for row in rows],
        means=[row for _, means in measured for row in means],
        num_images=len(labels),
        num_bins=num_bins,
        seed=seed,
    )


def _cells(corruptions, severities, value_range):
    for name, given in (
        ("corruptions", corruptions),
        ("severities", severities),
    ):
        require(
            isinstance(given, Collection)
            and not isinstance(given, str | bytes)
            and len(given) > 0,
            f"`{name}` must be a sequence with at least one element.",
            **{name: given},
        )
    for kind in corruptions:
        for severity in severities:
            check_arguments(kind, severity, value_range)
    return list(dict.fromkeys(corruptions)), sorted(set(severities))


@dataclasses.dataclass(frozen=True)
class _Subject:
    """A model with what comes before it and what it gives."""

    model: keras.Model
    preprocess: Callable | None
    from_logits: bool


def _subjects(model, preprocess, from_logits):
    models = model
    if not isinstance(model, Mapping):
        models = {getattr(model, "name", "model"): model}
    require(bool(models), "There is no model.", model=model)
    found = {}
    for name, each in models.items():
        require(
            isinstance(each, keras.Model),
            "`model` must be a Keras model, or a dict of them by name.",
            **{str(name): type(each).__name__},
        )
        own = preprocess
        if isinstance(preprocess, Mapping):
            require(
                name in preprocess,
                f"`preprocess` has no function for the model {name!r}.",
                "Pass `None` for a model that takes raw images.",
                preprocess=sorted(preprocess),
            )
            own = preprocess[name]
        require(
            own is None or callable(own),
            "`preprocess` must be a function, or a dict of them by model.",
            preprocess=own,
        )
        logits = gives_logits(each, from_logits)
        found[str(name)] = _Subject(each, own, logits)
    return found


@dataclasses.dataclass(frozen=True)
class _Batches:
    """Batches of images in all cells, each of the same number of images.

    The last batch is filled up with its last image: functions that are
    compiled for a shape are compiled once.
    """

    x: Any
    y: np.ndarray
    cells: list[tuple[str, int]]
    seed: int
    value_range: tuple[float, float]
    batch_size: int

    @property
    def total(self):
        return -(-len(self.y) // self.batch_size) * len(self.cells)

    def __iter__(self):
        """Yields: number of the cell, slice of the set, images, labels."""
        size = min(self.batch_size, len(self.y))
        for start in range(0, len(self.y), size):
            rows = slice(start, min(start + size, len(self.y)))
            images = as_array(self.x[rows])
            check_values(images, self.value_range)
            missing = size - len(images)
            images = np.pad(images, ((0, missing), *3 * ((0, 0),)), mode="edge")
            tensor = ops.convert_to_tensor(images)
            for number, (kind, severity) in enumerate(self.cells):
                found = images
                if kind != CLEAN:
                    found = ops.convert_to_numpy(
                        corrupt_from(
                            tensor,
                            kind,
                            severity,
                            self.seed,
                            start,
                            self.value_range,
                        )
                    ).astype(images.dtype)
                yield number, rows, found, self.y[rows]


@dataclasses.dataclass(frozen=True)
class Predicted:
    """What is kept of the predictions of a model, `(cells, n)` each."""

    confidence: np.ndarray
    correct: np.ndarray
    nll: np.ndarray
    num_classes: list[int]


def _run(subjects, batches, verbose):
    """`Predicted` for each model."""
    shape = len(batches.cells), len(batches.y)
    found = {
        name: Predicted(
            np.zeros(shape, "float32"),
            np.zeros(shape, "bool"),
            np.zeros(shape, "float32"),
            [],
        )
        for name in subjects
    }
    bar = ProgressBar(batches.total, verbose, unit_name="batch predicted")
    for number, rows, images, labels in batches:
        for name, subject in subjects.items():
            data = _predictions(name, subject, images, labels)
            kept = found[name]
            confidence, correct = data.top_label
            kept.confidence[number, rows] = confidence
            kept.correct[number, rows] = correct
            kept.nll[number, rows] = data.negative_log_likelihood()
            kept.num_classes[:] = [data.num_classes]
        bar.step()
    bar.finish()
    return found


def _predictions(name, subject, images, labels):
    inputs = images
    if subject.preprocess is not None:
        # A copy: those of `keras.applications` change floats in place.
        inputs = subject.preprocess(images.copy())
    scores, _ = outputs_and_mask(subject.model, for_model(inputs))
    require(
        scores.ndim == 2 and len(scores) == len(images),
        f"The model {name!r} must give one row of scores for each image.",
        images=images.shape,
        scores=scores.shape,
    )
    label_rules.check_numbers(labels)
    if labels.size == len(labels):
        label_rules.check_ids(
            labels.reshape(-1),
            max(scores.shape[1], 2),
            "Leave out images with a void label",
        )
    return read_predictions(
        labels, scores[: len(labels)], from_logits=subject.from_logits
    )


def _warn_of_guesses(found):
    for name, each in found.items():
        accuracy, chance = each.correct[0].mean(), 1 / each.num_classes[0]
        if each.correct.shape[1] >= MANY and accuracy <= 1.2 * chance:
            warn(
                f"On clean images the accuracy of {name!r} is {accuracy:.3f}, "
                "like that of a guess. Does the model need `preprocess=`, or "
                "does its own preprocessing expect another `value_range`?"
            )
