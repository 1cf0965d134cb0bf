import pathlib
import sys

import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "examples" / "papers"


@pytest.fixture(scope="module")
def papers():
    """The modules of `examples/papers` can be imported."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield FOLDER
    finally:
        sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def work(papers):
    import work

    return work
