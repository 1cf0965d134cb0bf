"""One seed, one number: to the bit on one backend, and alike on all three."""

import hashlib
import importlib.util
import itertools
import json
import sys

import keras
import numpy as np
import pytest

from tests.determinism import more_numbers as more
from tests.determinism import numbers
from tests.helpers import run_python


def by_name(*groups):
    return {each.__name__: each for each in groups}


# Groups of numbers that no draw of a backend has a part in.
ALIKE = by_name(
    numbers.losses,
    numbers.maps,
    numbers.measures,
    numbers.rows_in_use,
    numbers.decisions,
    numbers.steps,
    more.procedures,
    more.several,
    more.options,
    more.judgements,
)
GROUPS = {**ALIKE, **by_name(numbers.trainings)}


def digest(arrays):
    """A hash of all bits of arrays."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(array.tobytes())
    return found.hexdigest()[:16]


@pytest.mark.slow
def test_two_processes_have_the_same_bits():
    first, second = (
        json.loads(
            run_python(
                ["-m", "tests.determinism.test_determinism"]
            ).splitlines()[-1]
        )
        for _ in range(2)
    )
    assert set(first) == set(GROUPS)
    for group, found in first.items():
        assert len(found) >= 2, group
        assert found == second[group]


@pytest.mark.slow
@pytest.mark.weekly
@pytest.mark.backends("torch", reason="starts a process of each backend itself")
def test_three_backends_have_the_same_numbers(tmp_path, monkeypatch):
    backends = ("tensorflow", "jax", "torch")
    for backend in backends:
        if importlib.util.find_spec(backend) is None:
            pytest.skip(f"{backend} is not installed")
    found = {}
    for backend in backends:
        monkeypatch.setenv("KERAS_BACKEND", backend)
        file = tmp_path / f"{backend}.npz"
        run_python(["-m", "tests.determinism.test_determinism", str(file)])
        with np.load(file) as arrays:
            found[backend] = dict(arrays)
    assert len(found["torch"]) > 150
    for group in ALIKE:
        assert any(name.startswith(f"{group}, ") for name in found["torch"])
    for one, other in itertools.combinations(backends, 2):
        assert found[one].keys() == found[other].keys()
        for name, array in found[one].items():
            np.testing.assert_allclose(
                array,
                found[other][name],
                rtol=2e-5,
                atol=2e-6,
                err_msg=f"{name}: {one} and {other}",
            )


def main(arguments):
    """Print hashes or, with a file, store the arrays that no weight starts."""
    keras.utils.set_random_seed(0)
    if arguments:
        np.savez(
            arguments[0],
            **{
                f"{group}, {name}, {place}": array
                for group, each in ALIKE.items()
                for name, arrays, _ in each()
                for place, array in enumerate(arrays)
            },
        )
        return
    found = {
        group: {name: digest(arrays) + text for name, arrays, text in each()}
        for group, each in GROUPS.items()
    }
    print(json.dumps(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
