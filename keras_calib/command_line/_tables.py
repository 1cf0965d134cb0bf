"""Columns of `.csv` and `.parquet` files: only those that are needed."""

import collections
import csv
import os
import pathlib
from collections.abc import Callable

import numpy as np

from keras_calib.solvers import memory

# What other programs write between values, and how it is called.
SEPARATORS = {";": "`;`", "\t": "a tab", "|": "`|`"}
# Rows that are decoded at once.
BATCH = 1 << 16
# Text of this encoding repeats what stood in the row before, so that a few
# bytes become any number: of such a column a few rows at once.
REPEATS = "DELTA_BYTE_ARRAY"
FEW = 16
# Copies of a number: as it is read, as float64, and beside other columns.
COPIES = 3


def check_size(size: int) -> None:
    """Refuse what memory cannot hold; a small file can become very large.

    Raises:
        ValueError: if fewer bytes are available.
    """
    memory.refuse_too_large(size, "What it holds", "Take a part of its rows.")


def read_columns(
    path: pathlib.Path, is_wanted: Callable[[str], bool]
) -> dict[str, np.ndarray]:
    """The columns of a table whose names are wanted, as text or numbers.

    Raises:
        ValueError: if it is no table, or too large.
    """
    if path.suffix.lower() == ".parquet":
        return _of_parquet(path, is_wanted)
    check_size(os.path.getsize(path))
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file)
        names = next((row for row in rows if not _is_blank(row)), [])
        header = [name.strip() for name in names]
        _check_separator(header)
        _check_names(header)
        places = [k for k, name in enumerate(header) if is_wanted(name)]
        cells: list[list[str]] = [[] for _ in places]
        for row in rows:
            if _is_blank(row):
                if len(header) > 1:
                    continue
                row = [""]  # a value that is missing
            if len(row) != len(header):
                raise ValueError(
                    f"line {rows.line_num} has {len(row)} values, and the "
                    f"first line has {len(header)} names"
                )
            for column, k in zip(cells, places, strict=True):
                column.append(row[k])
    check_size(sum(map(_text_bytes, cells)))
    return {
        header[k]: np.array(column)
        for column, k in zip(cells, places, strict=True)
    }


def _is_blank(row):
    """Whether a line of a `.csv` file holds nothing, also no separator."""
    return len(row) <= 1 and not "".join(row).strip()


def _check_separator(header):
    """Refuse a line of names that another separator than a comma divides."""
    if len(header) != 1:
        return
    for separator, name in SEPARATORS.items():
        if separator in header[0]:
            raise ValueError(
                f"the separator seems to be {name}, and a comma is wanted. "
                f"Received: a first line without a comma, {header[0]!r}. Write "
                "the file with commas, and a point in its numbers"
            )


def _text_bytes(column):
    """NumPy has room for the longest text in every row."""
    return 4 * len(column) * max(map(len, column), default=0)


def _check_names(header):
    """Refuse two columns of one name, of which one would be lost."""
    counts = collections.Counter(name for name in header if name)
    for name, count in counts.items():
        if count > 1:
            raise ValueError(f"two columns have the name `{name}`")


def _of_parquet(path, is_wanted):
    try:
        from pyarrow import parquet
    except ImportError:
        raise ValueError(
            "`.parquet` needs pyarrow, `pip install pyarrow`"
        ) from None
    with parquet.ParquetFile(path) as file:
        metadata, schema = file.metadata, file.schema_arrow
    _check_names(schema.names)
    names = tuple(name for name in schema.names if is_wanted(name))
    # pyarrow reads `logit.old`, too, if asked for `logit`.
    wanted = [
        field
        for field in schema
        if field.name in names
        or field.name.startswith(tuple(f"{name}." for name in names))
    ]
    if not wanted:
        return {}
    # What the metadata says is checked before anything is decoded.
    rows = metadata.num_rows
    check_size(rows * sum(_bytes_of(field) for field in wanted))
    encodings = _encodings(metadata)
    repeats = {each.name for each in wanted if REPEATS in encodings[each.name]}
    # A long text of many rows is kept once.
    texts = [
        field.name
        for field in wanted
        if _is_text(field.type) and field.name not in repeats
    ]
    parts = {name: [] for name in names}
    count = 0
    with parquet.ParquetFile(
        path, metadata=metadata, read_dictionary=texts
    ) as file:
        for batch in file.iter_batches(
            FEW if repeats else BATCH, columns=list(names)
        ):
            count += len(batch)
            for name, part in parts.items():
                part.append(_values(batch[name], rows))
            if count > rows:
                break
    if count != rows:
        raise ValueError(
            f"the header announces {rows:,} rows, and there are "
            f"{'more' if count > rows else f'{count:,}'}"
        )
    return {
        name: np.concatenate(part or [np.empty(0)])
        for name, part in parts.items()
    }


def _encodings(metadata):
    """Those of each column, by its name."""
    found = collections.defaultdict(set)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for place in range(group.num_columns):
            column = group.column(place)
            found[column.path_in_schema].update(column.encodings)
    return found


def _is_text(kind):
    """Whether values have any length, also as a table of the different ones."""
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return any(
        test(kind)
        for test in (
            types.is_string,
            types.is_large_string,
            types.is_string_view,
            types.is_binary,
            types.is_large_binary,
            types.is_binary_view,
        )
    )


def _bytes_of(field):
    """Memory for a row, where a text is a reference.

    Raises:
        ValueError: for a column of lists or tables.
    """
    from pyarrow import types

    if types.is_nested(field.type):
        raise ValueError(
            f"column `{field.name}` holds {field.type}, and one value in each "
            "row is wanted"
        )
    try:
        width = field.type.bit_width // 8
    except ValueError:  # text has none
        width = 8
    return COPIES * max(width, 8)


def _values(column, rows):
    """A part of a column as an array; texts are objects, each of them once.

    Args:
        column: a pyarrow `Array`.
        rows: int, those of the whole table.
    """
    from pyarrow import types

    if not _is_text(column.type):
        # Categories of numbers come as numbers.
        return column.to_numpy(zero_copy_only=False)
    if not types.is_dictionary(column.type):
        column = column.dictionary_encode()
    present = column.is_valid().to_numpy(zero_copy_only=False)
    used, places = np.unique(
        column.indices.drop_null().to_numpy(), return_inverse=True
    )
    texts = np.array(column.dictionary.take(used).to_pylist(), object)
    check_size(4 * rows * max((len(each or "") for each in texts), default=0))
    values = np.full(len(column), None)
    values[present] = texts[places]
    return values
