"""What earlier versions saved is loaded, and gives the same numbers.

`tests/saved.py` writes the files; those of a release are never written again.
`tests/signatures.txt` has the public names with their arguments.
"""

import json

import keras
import numpy as np
import pytest

from tests import saved
from tests import signatures

VERSIONS = sorted(path.name for path in saved.FOLDER.iterdir())
# Sets and decisions are true or false, and equal everywhere; the rest is exact
# to what the backends' float32 operations are.
TOLERANCE = {"rtol": 2e-5, "atol": 2e-5}


def numbers_of(version):
    path = saved.FOLDER / version / "numbers.json"
    return json.loads(path.read_text())


@pytest.mark.parametrize("version", VERSIONS)
def test_files_of_all_versions_give_the_same_numbers(version):
    numbers = numbers_of(version)
    folder = saved.FOLDER / version
    files = {path.stem for path in folder.glob("*.keras")}
    assert files == set(numbers) - {"objects"}
    for name in sorted(files):
        model = keras.saving.load_model(folder / f"{name}.keras")
        inputs = saved.X[:5]
        if name == "layers":
            inputs = [saved.Z[:5], saved.Z[:5, :2]]
        found = saved.outputs_of(model, inputs)
        assert found.keys() == numbers[name].keys()
        for output, values in numbers[name].items():
            np.testing.assert_allclose(
                found[output],
                values,
                err_msg=f"{version}, {name}, {output}",
                **TOLERANCE,
            )


@pytest.mark.parametrize("version", VERSIONS)
def test_losses_and_metrics_of_all_versions_give_the_same_numbers(version):
    objects = numbers_of(version)["objects"]
    assert len(objects) > 30
    for name, stored in objects.items():
        each = keras.saving.deserialize_keras_object(stored["config"])
        found = saved.value_of(name, each)
        assert found == pytest.approx(stored["value"], rel=2e-5, abs=2e-6), name


@pytest.mark.one_backend
def test_public_names_and_arguments_are_the_stored_ones():
    # After a change on purpose: python -m tests.signatures > the file, and a
    # line in the changelog.
    stored = signatures.STORED.read_text().splitlines()
    assert signatures.signatures() == stored
