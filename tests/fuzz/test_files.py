"""The command line reads hostile files: one line, and no harm."""

import os
import pathlib
import pickle
import tempfile
import tracemalloc
import zipfile

import hypothesis
import pytest

from keras_calib.command_line import _commands
from keras_calib.command_line import main
from tests.fuzz import files

pytestmark = pytest.mark.one_backend
# In all, over the kinds of files.
INPUTS = int(os.environ.get("FUZZ_FILES", 60))
SEED = int(os.environ.get("FUZZ_SEED", 0))
# Bytes beside which nothing of these files is large.
MOST = 40 << 20
# Models with a member that shall be written elsewhere.
OUTSIDE = ("paths outside", "paths far outside", "absolute paths")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder in a folder, both watched; and no pickle is ever loaded.

    What Keras extracts lies in the same watched folder.
    """

    def refuse(*_, **__):
        pytest.fail("a pickle was loaded")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    # To draw the noise floors takes seconds, and is not what is tested.
    errors = _commands.errors_of_predictions
    monkeypatch.setattr(
        _commands,
        "errors_of_predictions",
        lambda *given, **options: errors(*given, **{**options, "floor": False}),
    )
    inner = tmp_path / "inner" / "folder"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    temporary = tmp_path / "temporary" / "folder"
    temporary.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return inner


def evaluate(place, capsys, name, content, *more):
    """The answer of `keras-calib evaluate`: a table, or one line.

    It takes little memory.
    """
    path = place / name
    path.write_bytes(content)
    before = tree(place)
    tracemalloc.start()
    try:
        status = main(arguments=["evaluate", name, *more, "--quiet"])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST
    out, err = capsys.readouterr()
    assert tree(place) == before
    assert status in (0, 2)
    if status == 2:
        assert out == ""
        [line] = [each for each in err.splitlines() if "Warning" not in each]
        assert line.startswith("keras-calib evaluate: error: ")
        assert len(line) < 1000
    return status, out, err


def tree(place):
    return sorted(map(str, place.parents[1].rglob("*")))


@pytest.mark.parametrize("case", files.archives())
def test_hostile_archives(place, capsys, case):
    status, _, err = evaluate(place, capsys, "a.npz", files.archives()[case])
    harmless = {"a pickle that nobody asked for", "paths outside"}
    harmless |= {"absolute paths", "one name twice", "bzip2", "lzma"}
    assert status == (0 if case in harmless else 2), err
    if case == "a pickle":
        assert "it holds Python objects (a pickle)" in err


@pytest.mark.parametrize("case", files.tables())
def test_hostile_tables(place, capsys, case):
    status, *_ = evaluate(place, capsys, "a.csv", files.tables()[case])
    assert status == 2 or case == "numbers of other scripts"


@pytest.mark.parametrize("rows", [0, 9, 10**8, 10**12, 2**61])
def test_tables_whose_header_announces_other_rows(place, capsys, rows):
    pyarrow = pytest.importorskip("pyarrow")
    content = files.parquet_of(rows)
    status, _, err = evaluate(place, capsys, "a.parquet", content)
    assert status == 2, err
    # Its memory is not Python's; 1.3 GB were asked for 10^8 rows.
    assert pyarrow.default_memory_pool().max_memory() < MOST


@pytest.mark.slow
def test_hostile_models(place, capsys, tmp_path):
    content = files.model(tmp_path)
    (place / "data.npz").write_bytes(files.npz())
    status, out, _ = evaluate(place, capsys, "m.keras", content, "data.npz")
    assert status == 0 and "m: 8 rows" in out
    for case, hostile in files.models(content, tmp_path).items():
        status, _, err = evaluate(place, capsys, "m.keras", hostile, "data.npz")
        if case in OUTSIDE:
            # The members outside are left out, and the model is read.
            assert status == 0, (case, err)
        else:
            assert status == 2, case
            assert "this model cannot be loaded" in err


@pytest.mark.slow
@pytest.mark.parametrize("case", OUTSIDE)
def test_an_escape_would_be_seen(place, capsys, tmp_path, monkeypatch, case):
    written = []

    def careless(archive, path, members=None):
        for name in archive.namelist():
            target = pathlib.Path(path, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(name))
            written.append(target.resolve())

    hostile = files.models(files.model(tmp_path), tmp_path)[case]
    (place / "data.npz").write_bytes(files.npz())
    monkeypatch.setattr(zipfile.ZipFile, "extractall", careless)
    with pytest.raises(AssertionError, match="outside"):
        evaluate(place, capsys, "m.keras", hostile, "data.npz")
    assert any(path.name == "outside" for path in written)


KINDS = {
    "a.npz": lambda _: files.npz(),
    "b.npz": lambda _: files.npz(compressed=True),
    "a.csv": lambda _: files.csv(),
    "a.parquet": lambda _: files.parquet(),
    "m.keras": files.model,
}


@pytest.mark.parametrize("name", KINDS)
def test_broken_files(place, capsys, tmp_path, name):
    if name == "a.parquet":
        pytest.importorskip("pyarrow")
    content = KINDS[name](tmp_path)
    more = []
    if name == "m.keras":
        (place / "data.npz").write_bytes(files.npz())
        more = ["data.npz"]
    assert evaluate(place, capsys, name, content, *more)[0] == 0

    @hypothesis.seed(SEED)
    @hypothesis.settings(
        max_examples=INPUTS // len(KINDS),
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(files.broken(content))
    def calls(changed):
        evaluate(place, capsys, name, changed, *more)

    calls()
