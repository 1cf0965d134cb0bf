import pathlib
import sys

import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "examples" / "papers"


@pytest.fixture(scope="module")
def papers():
    """The modules of `examples/papers` and `examples` can be imported."""
    folders = [str(FOLDER), str(FOLDER.parent)]
    sys.path[:0] = folders
    try:
        yield FOLDER
    finally:
        for folder in folders:
            sys.path.remove(folder)


@pytest.fixture(scope="module")
def work(papers):
    import work

    return work
