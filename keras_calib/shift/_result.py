"""What `evaluate` returns: rows, tables and a figure."""

import dataclasses
from typing import Any

from keras_calib._documents import escape
from keras_calib._documents import markdown_table
from keras_calib._documents import to_json
from keras_calib.plots import shift_curves
from keras_calib.version import __version__

CLEAN = "clean"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShiftResult:
    """Accuracy, ECE and NLL of models under corruption.

    Attributes:
        rows: list of dicts, one for each model and cell, clean images
            (severity 0) first: `model`, `corruption`, `severity`, `accuracy`,
            `ece`, `ece_floor`, `nll` (nats), and the standard errors
            `accuracy_se`, `ece_se`, `nll_se` over images.
        means: list of dicts, means over the cells of a severity (`corruption`
            is `None`), of a corruption (`severity` is `None`), or of both;
            clean images are in none of them. With the keys of `rows`,
            `num_cells`, and the standard deviations between cells
            `accuracy_sd`, `ece_sd`, `nll_sd`.
        num_images: int, images in each cell.
        num_bins: int, bins of the ECE.
        seed: int, that of the corruptions.
    """

    rows: list[dict[str, Any]]
    means: list[dict[str, Any]]
    num_images: int
    num_bins: int
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values.

        NaN becomes `None`, an infinite NLL the string `"Infinity"`, which
        `float` reads.
        """
        found = to_json(dataclasses.asdict(self))
        return {"keras_calib_version": __version__, **found}

    def to_markdown(self) -> str:
        """A table of the models, then one of all cells for each model."""
        lines = [
            "# Accuracy and calibration under corruption",
            "",
            f"{self.num_images:,} images, ECE of {self.num_bins} bins. "
            "± is a standard error over images; the floor is the mean ECE of a "
            "perfectly calibrated model.",
            "",
        ]
        models = list(dict.fromkeys(row["model"] for row in self.rows))
        heads = ["model", "images", "accuracy", "ECE", "floor of ECE", "NLL"]
        lines += markdown_table(
            heads,
            [
                [model, words, *_with_errors(row)]
                for model in models
                for words, row in (
                    ("clean", self._row(model, CLEAN, 0)),
                    ("corrupted", self._mean(model, None, None)),
                )
            ],
        )
        for model in models:
            lines += ["", f"## {escape(model)}", ""]
            lines += ["Accuracy / ECE / NLL by severity:", ""]
            lines += self._cells(model)
        return "\n".join(lines) + "\n"

    def plot(self, *, metric: str = "ece", axes: Any = None) -> Any:
        """Draw `kc.plots.shift_curves` of this result."""
        return shift_curves(self, metric=metric, axes=axes)

    def _row(self, model, corruption, severity):
        wanted = model, corruption, severity
        return next(row for row in self.rows if _place(row) == wanted)

    def _mean(self, model, corruption, severity):
        wanted = model, corruption, severity
        return next(row for row in self.means if _place(row) == wanted)

    def _cells(self, model):
        corrupted = [
            (row["corruption"], row["severity"])
            for row in self.rows
            if row["model"] == model and row["corruption"] != CLEAN
        ]
        kinds = list(dict.fromkeys(kind for kind, _ in corrupted))
        steps = list(dict.fromkeys(step for _, step in corrupted))
        rows = [
            [
                kind,
                *(_short(self._row(model, kind, step)) for step in steps),
                _short(self._mean(model, kind, None)),
            ]
            for kind in kinds
        ]
        last = [
            _short(self._mean(model, None, step)) for step in (*steps, None)
        ]
        heads = ["corruption", *map(str, steps), "mean"]
        return markdown_table(heads, [*rows, ["mean", *last]])


def _place(row):
    return row["model"], row["corruption"], row["severity"]


def _with_errors(row):
    return [
        f"{row['accuracy']:.4f} ± {row['accuracy_se']:.4f}",
        f"{row['ece']:.4f} ± {row['ece_se']:.4f}",
        f"{row['ece_floor']:.4f}",
        f"{row['nll']:.4f} ± {row['nll_se']:.4f}",
    ]


def _short(row):
    return f"{row['accuracy']:.3f} / {row['ece']:.3f} / {row['nll']:.2f}"
