"""`kc.report`: measure models side by side, and write it down."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from keras_calib._documents import to_json
from keras_calib._typing import ArrayLike
from keras_calib._whole_file import whole_file
from keras_calib.evaluation.clinical_panel import check_thresholds
from keras_calib.inputs.arguments import class_names_of
from keras_calib.inputs.arguments import require_flags
from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.predictions import Predictions
from keras_calib.reporting._comparison import comparison
from keras_calib.reporting._measure import Measured
from keras_calib.reporting._measure import measure
from keras_calib.reporting._read import read_all
from keras_calib.reporting._render import to_html
from keras_calib.reporting._render import to_markdown
from keras_calib.reporting._verdict import verdict
from keras_calib.version import __version__


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Calibration of one to six models on the same samples.

    Attributes:
        models: list of `Measured`.
        verdicts: dict from the name of a model to sentences.
        comparison: sentences about the models together.
        diagrams: dict from the name of a model to the `Predictions` that its
            reliability diagram is drawn from.
    """

    models: list[Measured]
    verdicts: dict[str, list[str]]
    comparison: list[str]
    diagrams: dict[str, Predictions] = dataclasses.field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """All numbers and sentences as JSON values.

        What is undefined or was not computed is `None`. An infinite number,
        such as the NLL where a label has the probability 0, is the string
        `"Infinity"`, which `float` reads: JSON has no infinite numbers.
        """
        return to_json(
            {
                "keras_calib_version": __version__,
                "comparison": self.comparison,
                "models": [
                    {
                        "verdict": self.verdicts[each.name],
                        **dataclasses.asdict(each),
                    }
                    for each in self.models
                ],
            }
        )

    def to_markdown(self) -> str:
        """Verdicts and tables, without figures."""
        return to_markdown(self)

    def save(self, path: str | os.PathLike) -> None:
        """Write `.html`, `.md` or `.json`; nothing is left half written.

        The HTML file contains everything, and loads nothing from elsewhere.
        The JSON file is `to_dict()`.

        Raises:
            ValueError: for another suffix.
            ImportError: for `.html`, if jinja2 or matplotlib is missing.
        """
        path = pathlib.Path(path)
        makers = {
            ".html": lambda: to_html(self),
            ".md": self.to_markdown,
            ".json": lambda: json.dumps(self.to_dict(), indent=2) + "\n",
        }
        if path.suffix not in makers:
            raise ValueError(
                "A report is saved as `.html`, `.md` or `.json`. "
                f"Received: {path.name!r}."
            )
        text = makers[path.suffix]()
        with whole_file(path) as place:
            place.write_text(text, encoding="utf-8")

    def _repr_html_(self):
        return to_html(self, page=False)

    def __str__(self):
        return self.to_markdown()


def report(
    predictions_or_models: Any,
    x: Any = None,
    y: ArrayLike | None = None,
    *,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    class_names: Any = None,
    from_logits: bool | None = None,
    ignore_class: int | None = None,
    num_resamples: int = 1000,
    thresholds: Sequence[float] | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    verbose: int | str = "auto",
) -> Report:
    """Measure the calibration of models side by side.

    Every metric of `calibration_errors` with its definition, a 95 % interval
    and its noise floor (what a calibrated model would show); a verdict in
    words; the classes and groups that are farthest off; reliability diagrams;
    for two classes the clinical panel of class 1.

    Intervals are those of the bootstrap up to 10,000 rows. Above, those of
    means are normal, and for errors of the predicted class cells of neighboring
    confidences are resampled instead of rows (of weighted rows only means have
    intervals then). Of pixels and tokens, whole images and texts are resampled.
    Means over classes have no interval. Of several models, the intervals of
    differences to the best one hold for all pairs together.

    Args:
        predictions_or_models: a model, or probabilities, `(..., num_classes)`,
            `(..., 1)` or `(n,)` for one sigmoid unit; or a dict of up to six
            models or probabilities by name.
        x: inputs of the models, or a dataset of `(x, y)`; `None` for
            predictions.
        y: labels: class ids, `(...)`, or one-hot rows; for distributions see
            `kc.metrics.calibration_errors`.
        sample_weight: `None`, or weights that broadcast from the left.
        groups: `None`, or ids of groups to compare (site, age band), one per
            sample, in the order of the data, which must not be shuffled while
            it is read.
        class_names: `None`, or a name for each class, in the order of the
            class ids.
        from_logits: whether models and arrays give logits. By default the end
            of a model's graph decides, and arrays are probabilities. A model
            that ends in a softmax or sigmoid gives probabilities in any case.
        ignore_class: samples with this label are ignored.
        num_resamples: int, number of resamples of the bootstrap.
        thresholds: of the net benefit of two classes, each in (0, 1); see
            `kc.metrics.clinical_panel`. Defaults to 0.25, 0.5 and 0.75.
        batch_size: for models and arrays; defaults to 32.
        seed: int; the same seed draws the same resamples.
        verbose: `"auto"` for a progress bar after a few seconds, 1 for a bar
            from the start, 0 for silence.

    Returns:
        `Report`, with `save("report.html")` (also `.md`, `.json`),
        `to_markdown()` and `to_dict()`. Printed, it is Markdown; in a notebook
        it is drawn.

    Raises:
        ValueError: for bad input; if the models do not see the same labels.

    Warns:
        If a model was calibrated on exactly these samples.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> rng = np.random.default_rng(0)
        >>> p = rng.dirichlet([1, 1, 1], size=1000)
        >>> labels = (p.cumsum(1) > rng.random((1000, 1))).argmax(1)
        >>> report = kc.report({"calibrated": p, "sharpened": p**3 / (p**3).sum(
        ...     1, keepdims=True)}, y=labels, num_resamples=100)
        >>> print(report.verdicts["calibrated"][0][:33])
        No miscalibration can be shown: t
        >>> print(report.verdicts["sharpened"][0][:13])
        Overconfident

    Reference:
        For the noise floor: Broecker and Smith, "Increasing the Reliability of
        Reliability Diagrams", Weather and Forecasting, 2007, Section 3.
    """
    require_integer(2, num_resamples=num_resamples)
    require_flags(none=True, from_logits=from_logits)
    class_names = class_names_of(class_names)
    if thresholds is not None:
        check_thresholds(thresholds)
    predictions = read_all(
        predictions_or_models,
        x,
        y,
        {
            "sample_weight": sample_weight,
            "groups": groups,
            "from_logits": from_logits,
            "ignore_class": ignore_class,
            "batch_size": batch_size,
            "verbose": verbose,
        },
    )
    num_classes = next(iter(predictions.values())).num_classes
    class_names = class_names_of(class_names, num_classes)
    models = [
        measure(
            name,
            data,
            num_resamples=num_resamples,
            class_names=class_names,
            thresholds=thresholds,
            seed=seed,
            verbose=verbose,
        )
        for name, data in predictions.items()
    ]
    return Report(
        models=models,
        verdicts={each.name: verdict(each) for each in models},
        comparison=comparison(models, list(predictions.values())),
        diagrams=predictions,
    )
