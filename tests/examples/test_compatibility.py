"""Networks of other libraries, two of those of the stored table."""

import importlib.util
import pathlib

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
PAGE = EXAMPLES / "results" / "compatibility.md"


@pytest.fixture(scope="module")
def compatibility():
    path = EXAMPLES / "benchmarks" / "compatibility.py"
    spec = importlib.util.spec_from_file_location("compatibility", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MobileNet", "KerasHub BERT"])
def test_every_part_works(compatibility, name):
    if name.startswith("KerasHub"):
        pytest.importorskip("keras_hub")
    assert compatibility.row(name) == ["works"] * 4


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_the_stored_table_has_every_body(compatibility, backend):
    text = PAGE.read_text().split(f"## {backend}\n")[1].split("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert [row.split(" | ")[0][2:] for row in rows] == [*compatibility.BODIES]
