"""`kc.model_card`: what was calibrated, written down beside the model."""

import contextlib
import dataclasses
import io
import os
import pathlib
from typing import Any

import keras

from keras_calib._whole_file import whole_file
from keras_calib.calibration import calibration_record
from keras_calib.inputs.arguments import require
from keras_calib.inputs.arguments import require_kind
from keras_calib.inputs.predictions import Predictions
from keras_calib.reporting._card_text import body
from keras_calib.reporting._card_text import metadata
from keras_calib.reporting._render import require_packages
from keras_calib.reporting._render import write_diagrams
from keras_calib.reporting._report import Report
from keras_calib.reporting._yaml import front_matter

PAGE, DIAGRAM = "README.md", "reliability.png"
# Names under which a calibrated model usually stands in a report.
USUAL_NAMES = ("after", "calibrated")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelCard:
    """A model card: Markdown with metadata, and a reliability diagram.

    Attributes:
        metadata: dict, what stands above the text as YAML, where the Hugging
            Face Hub reads it.
        text: Markdown.
        diagrams: dict from the name of a model to the `Predictions` that its
            reliability diagram is drawn from; empty without a report.
    """

    metadata: dict[str, Any]
    text: str
    diagrams: dict[str, Predictions] = dataclasses.field(repr=False)

    def save(
        self, folder: str | os.PathLike, *, overwrite: bool = False
    ) -> None:
        """Write `README.md` and, with a report, `reliability.png`.

        Both files are complete before either gets its name.

        Args:
            folder: is made if it does not exist.
            overwrite: whether files of these names are replaced.

        Raises:
            ValueError: if one of the files is there, and not `overwrite`.
            ImportError: if matplotlib is missing, for the diagram.
        """
        folder = pathlib.Path(folder)
        files = {PAGE: str(self).encode()}
        if self.diagrams:
            require_packages("The diagram of a model card", "matplotlib")
            picture = io.BytesIO()
            write_diagrams(picture, self.diagrams, "png")
            files[DIAGRAM] = picture.getvalue()
        there = [name for name in files if (folder / name).exists()]
        require(
            overwrite or not there,
            "A model card does not replace files unasked.",
            "Pass `overwrite=True`, or another folder.",
            folder=str(folder),
            files=there,
        )
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as open_files:
            for name, content in files.items():
                place = open_files.enter_context(whole_file(folder / name))
                place.write_bytes(content)

    def __str__(self) -> str:
        return front_matter(self.metadata) + "\n" + self.text

    def _repr_markdown_(self):
        return self.text


def model_card(
    calibrated: keras.Model,
    report: Report | None = None,
    *,
    name: str | None = None,
    task: str | None = None,
    dataset: str | None = None,
    output_name: str | None = None,
) -> ModelCard:
    """Write the model card of a calibrated model.

    It says what was calibrated, on how many samples, with NLL and ECE before
    and after; what layers for prediction sets or a bounded risk promise; what
    a report found on test data, in words, numbers and a picture; what all this
    does not say; and it holds the whole record as JSON. Above the text stands
    metadata in YAML as the Hugging Face Hub reads it, with the metrics of the
    report as `model-index`.

    Args:
        calibrated: what `kc.calibrate` returned, also from a file, or a model
            that contains it. With `fuse=True` only before it is saved.
        report: `None`, or what `kc.report` returned for data that nothing was
            fitted to.
        name: the name of `calibrated` in the report. By default its only
            model, or the one named as `calibrated.name`, "after" or
            "calibrated".
        task: `None`, or the task as the Hub names it, such as
            `"image-classification"`.
        dataset: `None`, or what the samples of the report are, such as
            `"CIFAR-10, 10,000 test images"`.
        output_name: the output that the card is about, where several were
            calibrated; see `kc.calibration_record`.

    Returns:
        `ModelCard`, with `save(folder)`; printed, it is the page.

    Raises:
        ValueError: if the model has no calibration record; if the report does
            not tell which of its models this is, or has other classes.

    Example:
        >>> import numpy as np, keras, keras_calib as kc
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(400, 2)).astype("float32")
        >>> y = (x[:, 0] + rng.normal(size=400) > 0).astype("int32")
        >>> model = keras.Sequential([keras.Input((2,)),
        ...                           keras.layers.Dense(2)])
        >>> calibrated = kc.calibrate(model, x[:200], y[:200], verbose=0)
        >>> report = kc.report({"before": model, "after": calibrated},
        ...                    x[200:], y[200:], num_resamples=50, verbose=0)
        >>> card = kc.model_card(calibrated, report)
        >>> card.metadata["library_name"]
        'keras'
        >>> card.save("card")  # doctest: +SKIP

    Reference:
        Mitchell et al., "Model Cards for Model Reporting", FAT* 2019,
        arXiv:1810.03993. The keys of the metadata are those of
        https://huggingface.co/docs/hub/model-cards.
    """
    record = calibration_record(calibrated, output_name=output_name)
    text = (str, type(None))
    require_kind(
        text, "a string or None", name=name, task=task, dataset=dataset
    )
    measured, others = None, []
    if report is not None:
        require_kind(Report, "what `kc.report` returned", report=report)
        measured, others = _found_in(report, calibrated, name)
        require(
            measured.num_classes == record["num_classes"],
            "Model and report must have the same number of classes.",
            model=record["num_classes"],
            report=measured.num_classes,
        )
    shown = [each.name for each in [*others[:1], measured] if each]
    return ModelCard(
        metadata=metadata(calibrated.name, measured, task, dataset),
        text=body(calibrated, record, report, measured, others, dataset),
        diagrams={each: report.diagrams[each] for each in shown}
        if report is not None
        else {},
    )


def _found_in(report, calibrated, name):
    """The calibrated model of a report, and the others."""
    models = {each.name: each for each in report.models}
    usual = [each for each in (calibrated.name, *USUAL_NAMES) if each in models]
    if name is None and len(models) == 1:
        usual = list(models)
    chosen = name if name is not None else (usual or [None])[0]
    require(
        chosen in models,
        "The card must know which model of the report is `calibrated`.",
        "Pass its name as `name`.",
        name=name,
        models=list(models),
    )
    return models[chosen], [
        each for each in report.models if each.name != chosen
    ]
