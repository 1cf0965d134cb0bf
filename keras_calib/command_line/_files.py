"""Predictions and labels in `.npz`, `.csv` and `.parquet` files."""

import contextlib
import dataclasses
import math
import pathlib
import zipfile

import numpy as np

from keras_calib.command_line._classes import MANY
from keras_calib.command_line._classes import check_columns
from keras_calib.command_line._classes import ids_of
from keras_calib.command_line._classes import in_order
from keras_calib.command_line._classes import reads_as_number
from keras_calib.command_line._errors import LONGEST
from keras_calib.command_line._errors import one_line
from keras_calib.command_line._tables import check_size
from keras_calib.command_line._tables import read_columns
from keras_calib.inputs import rules

SUFFIXES = (".npz", ".csv", ".parquet")
# The names that a part of a file may have; the first is ours.
NAMES = {
    "logits": ("logits", "logit"),
    "probabilities": ("probabilities", "probability"),
    "predictions": ("predictions", "prediction"),
    "labels": ("labels", "label", "ground_truth", "y"),
    "x": ("x",),
    "sample_weight": ("sample_weight",),
    "groups": ("groups", "group"),
}
SCORES = ("logits", "probabilities", "predictions")
# Numbers and text, as letters of NumPy.
KINDS = "fiubUS"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """What a file holds.

    Attributes:
        path: of the file.
        labels: class ids, or one-hot rows.
        scores: logits or probabilities, `(n, ..., num_classes)` or
            `(n, ..., 1)`, or `None`.
        from_logits: whether the scores are logits; `None` without scores.
        x: inputs of a model, or `None`.
        sample_weight: `None`, or a weight for each sample.
        groups: `None`, or the id of a group for each sample.
        class_names: `None`, or the names of the columns of a table.
    """

    path: pathlib.Path
    labels: np.ndarray
    scores: np.ndarray | None = None
    from_logits: bool | None = None
    x: np.ndarray | None = None
    sample_weight: np.ndarray | None = None
    groups: np.ndarray | None = None
    class_names: list[str] | None = None


def read(path: pathlib.Path, from_logits: bool | None = None) -> Data:
    """Read a file of predictions, or of inputs, with labels.

    Arrays of a `.npz` file, and columns of a table, have the names of `NAMES`.
    In a table the scores of a class are in a column of their own,
    `probabilities_cat` or `logits_0`; labels are numbers, or names of classes.
    An empty cell is a missing value, as NaN.

    Args:
        path: of the file.
        from_logits: whether its scores are logits; by default their name says
            so, or their values.

    Raises:
        ValueError: if the file cannot be read, or something is missing in it.
    """
    others: list[str] = []  # columns that are not read

    def is_wanted(column):
        wanted = _is_wanted(column)
        if not wanted:
            _check_case(column)
            others.append(column)
        return wanted

    with _one_line_errors(path):
        if path.suffix.lower() == ".npz":
            found, class_names = _of_archive(path), None
        else:
            found, class_names = _of_table(read_columns(path, is_wanted))
        kinds = [name for name in SCORES if name in found]
        if "labels" not in found or not (kinds or "x" in found):
            has = ", ".join(found) or "nothing of these"
            if others:
                has += f"; not read: {others[:MANY]}"
            raise ValueError(
                "a file needs `labels` (or `ground_truth`), and `logits`, "
                "`probabilities` or `predictions`, or inputs `x` for a model. "
                f"It has {has}. In a table each class has a column, such as "
                "`probabilities_0` or `probabilities_cat`"
            )
        if len(kinds) > 1:
            raise ValueError(f"one kind of scores is wanted, not {kinds}")
        _check_lengths({name: len(each) for name, each in found.items()})
        scores = found.pop(kinds[0]) if kinds else None
        if scores is not None and scores.ndim == 1:
            scores = scores[:, None]  # of one sigmoid unit
        return Data(
            path=path,
            scores=scores,
            from_logits=_are_logits(kinds[0], scores, from_logits)
            if kinds
            else None,
            class_names=class_names,
            **found,
        )


@contextlib.contextmanager
def _one_line_errors(path):
    """Whatever goes wrong with a file is said with its name."""
    try:
        yield
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file.") from None
    except UnicodeDecodeError:
        raise ValueError(
            f"{path}: its text is not in UTF-8. Save it as UTF-8."
        ) from None
    # Of a broken file, readers raise whatever they like.
    except Exception as error:
        text = one_line(error)[:LONGEST].rstrip(".") or "it cannot be read"
        raise ValueError(f"{path}: {text}.") from error


def _are_logits(kind, scores, from_logits):
    """Whether scores are logits: by their name, or else by their values."""
    if kind != "predictions":
        if from_logits not in (None, kind == "logits"):
            option = "--from-logits" if from_logits else "--no-from-logits"
            other = "logits" if from_logits else "probabilities"
            raise ValueError(
                f"`{option}` contradicts the name `{kind}`: leave it out, or "
                f"rename `{kind}` if they are {other}"
            )
        return kind == "logits"
    if from_logits is not None:
        return from_logits
    # What is missing tells nothing.
    scores = scores[~np.isnan(scores).any(axis=-1)]
    if rules.are_probabilities(scores.reshape(-1, scores.shape[-1])):
        return False
    if scores.shape[-1] == 1:
        raise ValueError(
            "`predictions` of one unit outside [0, 1] are logits: name them so"
        )
    if scores.min() >= 0:
        sums = scores.sum(axis=-1)
        raise ValueError(
            "whether `predictions` are logits or probabilities cannot be told: "
            "none is negative, and rows sum to "
            f"{sums.min():.6g} up to {sums.max():.6g}. Name them `logits` or "
            "`probabilities`, whose rows sum to 1: divide rounded ones by "
            "their sums"
        )
    return True


def _of_archive(path):
    with zipfile.ZipFile(path) as archive:
        present = _names_in(archive)
        # What headers say is checked before any memory is asked for.
        size, lengths = 0, {}
        for name, member in present.items():
            shape, dtype = _header(archive, member)
            if dtype.kind not in ("fiub" if name in SCORES else KINDS):
                raise ValueError(f"`{name}` are no numbers for each sample")
            if not shape:
                raise ValueError(f"`{name}` is not one for each sample")
            size += math.prod(shape) * dtype.itemsize
            lengths[name] = shape[0]
        check_size(size)
        _check_lengths(lengths)
        found = {}
        for name, member in present.items():
            with archive.open(member) as file:
                found[name] = np.lib.format.read_array(file, allow_pickle=False)
    return found


def _names_in(archive):
    """The members that hold what is wanted, by our names."""
    found = {}
    names = set(archive.namelist())
    for name, others in NAMES.items():
        present = [other for other in others if f"{other}.npy" in names]
        if _one_of(present):
            found[name] = f"{present[0]}.npy"
    return found


def _one_of(present):
    """Whether a part is there; under two names nobody knows which to take."""
    if len(present) > 1:
        raise ValueError(
            f"`{present[0]}` and `{present[1]}` mean the same: keep one"
        )
    return bool(present)


def _header(archive, member):
    """Shape and dtype of an array, which must be as long as they say."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            header = np.lib.format.read_array_header_1_0(file)
        else:
            header = np.lib.format.read_array_header_2_0(file)
        held = archive.getinfo(member).file_size - file.tell()
    shape, _, dtype = header
    if dtype.hasobject:
        raise ValueError(
            "it holds Python objects (a pickle), which are not read"
        )
    announced = math.prod(shape) * dtype.itemsize
    if announced != held or min(shape, default=0) < 0:
        raise ValueError(
            f"the header of {member} announces {announced:,} bytes, and there "
            f"are {held:,}"
        )
    return shape, dtype


def _check_lengths(lengths):
    """Refuse arrays of other lengths than the labels."""
    for name, length in lengths.items():
        if length != lengths.get("labels", length):
            raise ValueError(
                f"{lengths['labels']} labels and {length} rows of `{name}`"
            )


def _is_wanted(column):
    """Whether a column of this name is read."""
    return any(
        column == name or (kind in SCORES and column.startswith(f"{name}_"))
        for kind in ("labels", "sample_weight", "groups", *SCORES)
        for name in NAMES[kind]
    )


def _check_case(column):
    """Refuse scores of a class that would be left out for a capital letter."""
    kind, _, name = column.partition("_")
    if name and kind != kind.lower() and _is_wanted(f"{kind.lower()}_{name}"):
        raise ValueError(
            f"column `{column}` begins with `{kind.lower()}_`, in small letters"
        )


def _of_table(columns):
    """Arrays by name, and the names of the classes."""
    found, class_names = {}, None
    for name in ("labels", "sample_weight", "groups"):
        present = [column for column in NAMES[name] if column in columns]
        if _one_of(present):
            found[name] = columns[present[0]]
    if "groups" in found:
        found["groups"] = _filled(found["groups"], None)
    if "sample_weight" in found:
        found["sample_weight"] = _numbers("sample_weight", columns)
    for kind in SCORES:
        classes = {
            name: name.removeprefix(prefix).removeprefix("_")
            for prefix in NAMES[kind]
            for name in columns
            if name == prefix or name.startswith(prefix + "_")
        }
        check_columns(classes)
        values = [_numbers(name, columns) for name in classes]
        if len(values) == 1:
            found[kind] = values[0]
        elif values:
            values, class_names = in_order(values, list(classes.values()))
            found[kind] = np.stack(values, axis=1)
    if "labels" in found:
        found["labels"] = ids_of(found["labels"], class_names)
    return found, class_names


def _filled(values, missing):
    """A column of any values, with `missing` where a cell of text is empty."""
    if values.dtype.kind != "U":
        return values
    blank = np.char.strip(values) == ""
    return np.where(blank, missing, values) if blank.any() else values


def _numbers(name, columns):
    """A column as float64, with NaN where a value is missing."""
    values = _filled(columns[name], "nan")
    try:
        if values.dtype.kind == "U" and (np.char.find(values, "_") >= 0).any():
            raise ValueError  # NumPy reads `1_0` as 10
        return values.astype("float64")
    except ValueError:
        row = next(
            k for k, each in enumerate(values) if not reads_as_number(each)
        )
        raise ValueError(
            f"column `{name}`: {str(values[row])!r}, in row {row}, is no number"
        ) from None
