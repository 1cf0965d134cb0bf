"""Tables: what is read of them, and in how much memory."""

import json
import subprocess
import sys

import numpy as np
import pytest

from keras_calib.command_line._files import read
from keras_calib.command_line._tables import read_columns
from keras_calib.solvers import memory

pytestmark = pytest.mark.one_backend

ROWS = 400
LONG = "a" * (1 << 20)
# The memory that it takes to read each file, in MiB, and the error.
READ = """
import json, pathlib, re, sys
from keras_calib.command_line._files import read
import pyarrow.parquet
def peak():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) >> 10
for path in sys.argv[1:]:
    # The peak from here on; before, that of the imports is far higher.
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before, error = peak(), ""
    try:
        read(pathlib.Path(path))
    except ValueError as caught:
        error = str(caught)
    print(json.dumps([peak() - before, error]))
"""


def write(path, columns, **options):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path, **options)


def with_scores(**columns):
    scores = {"logit_0": np.zeros(ROWS), "logit_1": np.ones(ROWS)}
    return {"label": np.arange(ROWS) % 2, **scores, **columns}


@pytest.mark.skipif(
    sys.platform != "linux", reason="reads Linux' peak of memory"
)
def test_long_text_in_every_row_takes_little_memory(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    rows = pyarrow.array(np.zeros(ROWS, "int32"))
    text = pyarrow.DictionaryArray.from_arrays(rows, pyarrow.array([LONG]))
    paths = {}
    for encoding in ("dictionary", "repeats"):
        options = {}
        if encoding == "repeats":
            text = text.cast(pyarrow.string())
            options["use_dictionary"] = False
        for name in ("comment", "group", "label", "logit_0"):
            if encoding == "repeats":
                options["column_encoding"] = {name: "DELTA_BYTE_ARRAY"}
            path = paths[encoding, name] = (
                tmp_path / f"{encoding}_{name}.parquet"
            )
            columns = with_scores(**{name: text})
            write(path, columns, compression="zstd", **options)
            assert path.stat().st_size < 1 << 13
    done = subprocess.run(
        [sys.executable, "-c", READ, *paths.values()],
        capture_output=True,
        text=True,
        check=True,
    )
    for (encoding, name), line in zip(
        paths, done.stdout.splitlines(), strict=True
    ):
        mebibytes, error = json.loads(line)
        # A few rows at once of the other encoding, each of 1 MiB.
        assert mebibytes < (50 if encoding == "dictionary" else 160), line
        assert bool(error) == (name in ("label", "logit_0"))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_text_that_numpy_has_no_room_for_is_refused(
    tmp_path, monkeypatch, suffix
):
    path = tmp_path / f"t.{suffix}"
    groups = ["b", *["a"] * (ROWS - 2), "c" * 1000]
    columns = with_scores(group=groups)
    if suffix == "csv":
        lines = zip(*columns.values(), strict=True)
        text = [",".join(map(str, each)) for each in (columns, *lines)]
        path.write_text("\n".join(text))
    else:
        write(path, columns)
    monkeypatch.setattr(memory, "available_bytes", lambda: 4000 * ROWS - 1)
    with pytest.raises(ValueError, match=r"What it holds needs about 0\.00"):
        read(path)
    monkeypatch.setattr(memory, "available_bytes", lambda: 5000 * ROWS)
    assert read(path).groups.tolist() == groups


def test_sizes_are_checked_before_anything_is_decoded(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    write(path, with_scores(comment=np.arange(ROWS)))
    # Three copies of three columns; what is not read does not count.
    monkeypatch.setattr(memory, "available_bytes", lambda: 9 * 8 * ROWS)
    assert len(read(path).labels) == ROWS
    monkeypatch.setattr(memory, "available_bytes", lambda: 9 * 8 * ROWS - 1)
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", None)
    with pytest.raises(ValueError, match="What it holds needs about"):
        read(path)


@pytest.mark.parametrize("announced", [3, ROWS + 1])
def test_other_rows_than_announced_are_refused(
    tmp_path, monkeypatch, announced
):
    path = tmp_path / "t.parquet"
    write(path, with_scores())
    parquet = pytest.importorskip("pyarrow.parquet")

    class Metadata:
        def __getattr__(self, name):
            return getattr(self.real, name)

        num_rows = announced

    real = parquet.ParquetFile

    class File:
        def __init__(self, path, metadata=None, **options):
            self.file = real(path, **options)
            self.metadata, self.schema_arrow = (
                Metadata(),
                self.file.schema_arrow,
            )
            self.metadata.real = self.file.metadata
            self.iter_batches = self.file.iter_batches

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

    monkeypatch.setattr(parquet, "ParquetFile", File)
    found = "more" if announced == 3 else ROWS
    words = f"announces {announced} rows, and there are {found}"
    with pytest.raises(ValueError, match=words):
        read(path)


def test_kinds_of_columns_of_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    path = tmp_path / "t.parquet"
    names = pyarrow.array(["b", "a", None, "b"])
    write(
        path,
        {
            "label": names.dictionary_encode(),
            "logit_a": pyarrow.array([1, 2, 3, 4], "int8"),
            "logit_b": pyarrow.array([0.5, None, 0.25, 1]).dictionary_encode(),
            "group": pyarrow.array(["x", "y", "x", "z"], "large_string"),
            "group.old": [LONG] * 4,
            "sample_weight": pyarrow.array([1, 0, 0, 1], "float16"),
            "comment": [[1], [2, 3], [], None],
        },
        row_group_size=3,
    )
    found = read(path)
    assert found.labels.tolist() == [1, 0, -1, 1]
    expected = [[1, 0.5], [2, np.nan], [3, 0.25], [4, 1]]
    np.testing.assert_array_equal(found.scores, expected)
    assert found.groups.tolist() == ["x", "y", "x", "z"]
    assert found.sample_weight.tolist() == [1, 0, 0, 1]


def test_table_without_rows_is_read(tmp_path):
    path = tmp_path / "t.parquet"
    write(path, {name: v[:0] for name, v in with_scores().items()})
    assert read(path).scores.shape == (0, 2)


def test_lists_in_a_column_are_named(tmp_path):
    path = tmp_path / "t.parquet"
    write(path, with_scores(label=[[0, 1]] * ROWS))
    with pytest.raises(ValueError, match=r"column `label` holds list<"):
        read(path)


def test_columns_of_csv_that_nobody_reads_may_hold_anything(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        f"label,comment,logit_0,logit_1\n0,{LONG[:9999]},1,2\n1,,3,4\n"
    )
    found = read(path)
    assert found.labels.tolist() == [0, 1]
    assert found.scores.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("blank", ["", "  "])
def test_blank_lines_of_csv_are_skipped(tmp_path, end, blank):
    path = tmp_path / "t.csv"
    lines = ["label,logit_0,logit_1", "0,1,2", "1,3,4"]
    for place in range(4):
        text = end.join([*lines[:place], blank, *lines[place:], blank, blank])
        path.write_bytes(text.encode())
        found = read(path)
        assert found.labels.tolist() == [0, 1]
        assert found.scores.tolist() == [[1, 2], [3, 4]]
    path.write_text(end.join([*lines, blank, "1,2"]))
    with pytest.raises(ValueError, match="line 5 has 2 values"):
        read(path)


def test_line_of_separators_is_not_blank(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("label,logit_0,logit_1\n0,1,2\n,,\n")
    assert np.isnan(read(path).scores).tolist() == [[False] * 2, [True] * 2]


def test_blank_line_of_one_column_is_a_missing_value(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("label\n0\n\n1\n")
    assert read_columns(path, bool)["label"].tolist() == ["0", "", "1"]


@pytest.mark.parametrize(
    ("separator", "name"), [(";", "`;`"), ("\t", "a tab"), ("|", "`|`")]
)
@pytest.mark.parametrize("names", ["label logits_0 logits_1", "logits_0 y"])
def test_another_separator_of_csv_is_named(tmp_path, separator, name, names):
    path = tmp_path / "t.csv"
    lines = [names.replace(" ", separator), separator.join(["0", "1,5", "2"])]
    path.write_text("\n".join(lines))
    with pytest.raises(ValueError) as caught:
        read(path)
    assert str(caught.value).startswith(
        f"{path}: the separator seems to be {name}, and a comma is wanted"
    )


def test_a_file_without_a_column_that_is_wanted(tmp_path):
    write(tmp_path / "a.parquet", {"other": np.arange(ROWS)})
    with pytest.raises(ValueError, match="label"):
        read(tmp_path / "a.parquet")


def test_categories_of_numbers(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    ids = np.arange(ROWS) % 2
    labels = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array(1 - ids), pyarrow.array([1, 0])
    )
    write(tmp_path / "a.parquet", with_scores(label=labels))
    found = read(tmp_path / "a.parquet")
    np.testing.assert_array_equal(found.labels, ids)


def test_text_of_another_encoding_is_told_to_be_that(tmp_path):
    path = tmp_path / "latin.csv"
    path.write_bytes("label,probabilities_V\u00f6gel\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"not in UTF-8\. Save it"):
        read(path)


def test_a_capital_letter_does_not_leave_a_class_out(tmp_path):
    path = tmp_path / "capital.csv"
    path.write_text(
        "label,Probabilities_0,probabilities_1,Probabilities_2\n1,0.2,0.5,0.3\n"
    )
    with pytest.raises(ValueError, match="`Probabilities_0` begins with `prob"):
        read(path)
    # Other columns may have any name.
    path.write_text("label,Sample_1,probabilities_0,probabilities_1\n1,7,0,1\n")
    assert read(path).scores.shape == (1, 2)
