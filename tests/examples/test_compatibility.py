"""Networks of other libraries, two of those of the stored table."""

import pathlib

import pytest

from tests.helpers import example

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
PAGE = EXAMPLES / "results" / "compatibility.md"


@pytest.fixture(scope="module")
def compatibility():
    return example("benchmarks/compatibility.py")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MobileNet", "KerasHub BERT"])
def test_every_part_works(compatibility, name):
    if name.startswith("KerasHub"):
        pytest.importorskip("keras_hub")
    assert compatibility.row(name) == ["works"] * 4


@pytest.mark.one_backend
def test_the_stored_tables_have_bodies_of_the_script(compatibility):
    found = {}
    for part in PAGE.read_text().split("\n## ")[1:]:
        backend, *lines = part.splitlines()
        rows = [line for line in lines if line.startswith("| ")][1:]
        found[backend] = [row.split(" | ")[0][2:] for row in rows]
    assert set(found) == {"tensorflow", "jax", "torch"}
    assert found["torch"] == [*compatibility.BODIES]
    for names in found.values():
        assert names and set(names) <= set(compatibility.BODIES)
