"""Settings and fixtures of all tests. The backend is `KERAS_BACKEND`'s."""

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("MPLBACKEND", "Agg")

import gc
import pathlib
import zlib

from tests import quick_jax

if os.environ["KERAS_BACKEND"] == "jax":
    for name, value in quick_jax.SETTINGS.items():
        os.environ.setdefault(name, value)

import keras
import numpy as np
import pytest

if keras.backend.backend() == "torch":
    import torch

    # Two threads on two busy cores are many times slower than one.
    torch.set_num_threads(1)


# Function names, by `find_slow.py`.
SLOW = frozenset(
    (pathlib.Path(__file__).parent / "slow.txt").read_text().splitlines()
)
# Of `--share`: one of so many on TensorFlow (slow ones) and on JAX, and the
# other slow ones on PyTorch, the quickest with small arrays. Of fast ones it
# runs every other, those that JAX does not; TensorFlow runs all by themselves.
ONE_OF = {"slow": 12, "fast": 12, "compared": 6}
# Parts of these, of slow tests with several cases, that run only once a week.
ONCE_A_WEEK = (8, 9, 10, 11)
COMPARED = ("tests/differential/", "tests/inputs/test_all_doors.py")


def pytest_addoption(parser):
    parser.addoption(
        "--share",
        action="store_true",
        help="run each slow test on one backend and a part of the others on "
        "JAX, drawn by their names, and no weekly ones",
    )


def pytest_collection_modifyitems(config, items):
    """Mark slow tests, and leave out those of other backends with `--share`.

    What NumPy computes is tested on torch, the quickest with small arrays.
    Elsewhere such tests are slow ones.
    """
    backend = keras.backend.backend()
    dropped = []
    for item in items:
        numpy_only = item.get_closest_marker("one_backend") is not None
        if numpy_only and backend != "torch":
            item.add_marker(pytest.mark.slow)
        if item.nodeid.split("[")[0] in SLOW:
            item.add_marker(pytest.mark.slow)
        able = item.get_closest_marker("backends")
        if able is not None and backend not in able.args:
            item.add_marker(pytest.mark.skip(**able.kwargs))
        if not config.getoption("share"):
            continue
        weekly = item.get_closest_marker("weekly") is not None
        if weekly or not in_share(item, backend, able, numpy_only):
            dropped.append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        left_out = set(dropped)
        items[:] = [item for item in items if item not in left_out]
    if config.getoption("share"):
        # A slow one at the end would have one worker wait for the other.
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def in_share(item, backend, able, numpy_only):
    """Whether `--share` runs a test on this backend.

    Each test of a function draws by its own name, so that with many cases
    there are some on each backend. A slow test that has none always runs.
    """
    name = item.nodeid
    number = zlib.crc32(name.encode())
    slow = item.get_closest_marker("slow") is not None
    if name.startswith("tests/examples/"):
        return True  # these run on one backend as it is
    if able is not None:
        return not slow or backend == able.args[number % len(able.args)]
    part = number % ONE_OF["slow"]
    if slow and part in ONCE_A_WEEK and "[" in name:
        return False
    if numpy_only:
        return True
    if slow:
        return backend == {0: "tensorflow", 1: "jax"}.get(part, "torch")
    if backend == "torch":
        return number % 2 == 1
    kind = "compared" if name.startswith(COMPARED) else "fast"
    return number % ONE_OF[kind] == 0


@pytest.fixture(autouse=True)
def seed():
    keras.utils.set_random_seed(0)


@pytest.fixture
def eager_functions(request):
    """TensorFlow's functions run eagerly, but in tests marked `compiled`.

    To trace the functions of a network of a few weights takes longest.
    """
    if (
        keras.backend.backend() != "tensorflow"
        or request.node.get_closest_marker("compiled") is not None
    ):
        yield
        return
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture(autouse=True, scope="module")
def bounded_memory():
    """Drop what JAX has compiled once it takes gigabytes.

    It keeps every compiled function of thousands of tests.
    """
    yield
    if keras.backend.backend() == "jax" and resident_bytes() > 4 << 30:
        import jax

        jax.clear_caches()
        gc.collect()


def resident_bytes():
    """Memory of this process; 0 where the system does not tell."""
    try:
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="session")
def data_folder():
    """Real data, where the environment says it is."""
    folder = os.environ.get("KERAS_CALIB_DATA")
    if not folder:
        pytest.skip("set KERAS_CALIB_DATA to the folder of real data")
    return pathlib.Path(folder)


@pytest.fixture(scope="session")
def digits():
    """Scikit-learn's digits: training, calibration and test arrays."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images = (images[order] / 16).astype("float32")
    labels = labels[order].astype("int32")
    splits = np.split(np.arange(len(labels)), [600, 1000])
    return [(images[part], labels[part]) for part in splits]
