"""Small networks, each for one test: TensorFlow traces none of them."""

import pytest


@pytest.fixture(autouse=True)
def eager(eager_functions):
    """See `eager_functions`."""
