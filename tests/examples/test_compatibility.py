"""Networks of other libraries: two for every change, all once a week."""

import os
import pathlib

import keras
import pytest

from tests.helpers import example

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
PAGE = EXAMPLES / "results" / "compatibility.md"


OFTEN = ("MobileNet", "KerasHub BERT")


def stored():
    """Rows of the page by network, by backend."""
    found = {}
    for part in PAGE.read_text().split("\n## ")[1:]:
        backend, *lines = part.splitlines()
        rows = [line.strip("| ").split(" | ") for line in lines if line]
        found[backend] = {name: row for name, *row in rows[2:] if row}
    return found


@pytest.fixture(scope="module")
def compatibility():
    return example("benchmarks/compatibility.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in OFTEN else [pytest.mark.weekly])
        for name in stored()["torch"]
    ],
)
def test_every_part_works_as_the_stored_table_says(compatibility, name):
    library = name.split()[0].replace("Keras", "keras_").lower()
    if library in ("keras_hub", "keras_cv"):
        pytest.importorskip(library)
    if name.endswith("published") and "KERAS_CALIB_DATA" not in os.environ:
        pytest.skip("KERAS_CALIB_DATA names no folder with its weights")
    expected = stored()[keras.backend.backend()].get(name)
    if expected is None:
        pytest.skip("not for this backend")
    assert compatibility.row(name) == expected
    # Of Keras' own loss, on PyTorch.
    assert expected[:5] == ["works"] * 5


@pytest.mark.one_backend
def test_the_stored_tables_have_bodies_of_the_script(compatibility):
    found = stored()
    assert set(found) == {"tensorflow", "jax", "torch"}
    assert [*found["torch"]] == [*compatibility.BODIES]
    for names in found.values():
        assert names and set(names) <= set(compatibility.BODIES)
