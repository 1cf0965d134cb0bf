"""The page of the record has every key that is written, and no other."""

import collections
import inspect
import json
import pathlib
import re
import warnings

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.calibration import _few_samples
from keras_calib.layers._affine import AffineCalibration
from keras_calib.layers._shrunk import ShrunkCalibration
from tests.calibration import test_local
from tests.calibration import test_multi_label
from tests.calibration.test_guard import NeedsMany
from tests.helpers import fitted_layers

# Keys are from fits in NumPy.
pytestmark = pytest.mark.one_backend
PAGE = pathlib.Path(__file__).parents[2] / "examples" / "docs" / "record.md"
# Dictionaries with keys of their own, which the page names `guard.by` and so
# on, and dictionaries of such by the name of a map.
INNER, BY_MAP = ("guard", "prior_correction"), ("trials",)
GROUPS = {
    "calibration layers": kc.layers.CalibrationLayer,
    "ridge layers": AffineCalibration,
    "shrunk layers": ShrunkCalibration,
}


RNG = np.random.default_rng(0)
Z = 4 * RNG.normal(size=(300, 3)).astype("float32")
Y = (Z / 2 + RNG.gumbel(size=Z.shape)).argmax(axis=1)


def as_in_papers():
    """Layers without regularization or shrinkage, not fitted."""
    for name in kc.layers.__all__:
        make = getattr(kc.layers, name)
        arguments = inspect.signature(make.__init__).parameters
        options = {}
        if "regularization" in arguments:
            value = "odir" if name == "DirichletScaling" else None
            options = {"regularization": value}
        elif "shrinkage" in arguments and "method" not in arguments:
            options = {"shrinkage": None}
        if options:
            yield name, make(**options)


def fits_as_in_papers():
    for name, layer in as_in_papers():
        z, y = (Z[:, :2], Y.clip(0, 1)) if layer.binary_only else (Z, Y)
        yield name, layer.adapt(z, y)
    # No sample is wrong; and the last class has none.
    for labels in (Z.argmax(axis=1), np.where(Y == 2, 1, Y)):
        for name, layer in as_in_papers():
            if isinstance(layer, AffineCalibration):
                yield name, layer.adapt(Z, labels)


def special_layers():
    """Fits that write keys which others do not."""
    layers = kc.layers
    yield layers.VectorScaling().adapt(Z, Y, objective="label_smoothing")
    yield layers.TemperatureScaling().adapt(Z, Y, objective="ece")
    yield layers.TemperatureScaling().adapt_to_blocks(lambda: [(Z, Y)])
    for scaling in ("normal", layers.ClassLossScaling(reduction="sum")):
        yield layers.VectorScaling().adapt(Z, Y, class_loss_scaling=scaling)
    reversed_class = Z * np.array([1, 1, -1], "float32")
    yield layers.VectorScaling(regularization=None).adapt(reversed_class, Y)
    yield layers.MetaCal(min_accuracy=0.7).adapt(Z, Y)
    many = 2 * RNG.normal(size=(300, 101)).astype("float32")
    labels = (many + RNG.gumbel(size=many.shape)).argmax(axis=1)
    for kind in (layers.MatrixScaling, layers.DirichletScaling):
        yield kind().adapt(many, labels)


def no_fit(*_):
    raise ValueError("no optimum")


def network():
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(3, use_bias=False)]
    )
    model.set_weights([np.eye(3)])
    return model


def calibrated_models():
    def of(x, y, **options):
        options = {"from_logits": True, "verbose": 0, **options}
        return kc.calibrate(network(), x, y, **options)

    yield of(Z, Y)
    yield of(Z, Y, fuse=True)
    yield of(Z, Y, guard=False)
    yield of(Z, Y, method=NeedsMany(regularization=None))
    yield of(Z, Y, stream=True)
    yield of(Z, Y, method="auto")
    yield of(Z, Y, method="auto", mixture=True)
    yield of(Z[:100], Y[:100], method="auto")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_few_samples, "quiet_fit", no_fit)
        yield of(Z[:100], Y[:100], method="auto")
    for method in ("temperature", "platt"):
        yield test_multi_label.calibrated_by(
            test_multi_label.network(), method=method
        )
    x, y, _ = test_local.images()
    yield kc.calibrate(
        test_local.network("softmax"),
        x,
        y,
        method=test_local.local(epochs=2),
        groups=np.arange(30) // 3,
        verbose=0,
    )
    yield kc.adjust_prior(of(Z, Y), Z, verbose=0)


@pytest.fixture(scope="module")
def written():
    """Records, each with the layer that wrote it, or `"model"`."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, layer, _ in fitted_layers(Z, Y):
            found.append((name, layer.record))
        found += [(name, layer.record) for name, layer in fits_as_in_papers()]
        for layer in special_layers():
            found.append((type(layer).__name__, layer.record))
        for model in calibrated_models():
            found.append(("model", kc.calibration_record(model)))
    return found


def keys_of(record):
    """The keys of a record, and of its dictionaries with known keys."""
    for key, value in record.items():
        yield key
        dictionaries = value.values() if key in BY_MAP else [value]
        if key in (*INNER, *BY_MAP) and value:
            for each in dictionaries:
                yield from (f"{key}.{inner}" for inner in each)


@pytest.fixture(scope="module")
def writers(written):
    """Who wrote each key."""
    found = collections.defaultdict(set)
    for name, record in written:
        for key in keys_of(record):
            found[key].add(name)
    return found


def rows_of_page():
    """What the last column of the page says of each key."""
    rows = re.findall(
        r"(?m)^\| `([\w.]+)` \|.*\| ([^|]*) \|$", PAGE.read_text()
    )
    assert len(dict(rows)) == len(rows), "a key twice"
    return dict(rows)


def fitted_classes():
    return {
        name: type(layer) for name, layer, _ in fitted_layers(Z[:60], Y[:60])
    }


def named_layers(words, classes):
    """The layers of a cell, or `None` if it names a kind in other words."""
    found = set()
    # A comma in parentheses is in a condition.
    for item in re.split(r",\s+(?![^(]*\))", words):
        item = re.sub(r" \(.*\)", "", item)
        name = item.strip("`")
        if name in GROUPS:
            found |= {
                n for n, c in classes.items() if issubclass(c, GROUPS[name])
            }
        elif name in classes:
            found.add(name)
        elif not name.startswith("kc."):
            return None
    return found


def test_page_has_the_keys_that_are_written(writers):
    assert set(rows_of_page()) == set(writers), (
        "a row in examples/docs/record.md for each key"
    )


@pytest.mark.filterwarnings("ignore")
def test_page_names_the_layers_that_write_a_key(writers):
    classes = fitted_classes()
    for key, words in rows_of_page().items():
        named = named_layers(words, classes)
        if named is not None:
            assert named == writers[key] - {"model"}, key


def test_page_names_models_where_no_layer_writes_a_key(writers):
    for key, words in rows_of_page().items():
        if writers[key] == {"model"}:
            assert words.startswith("`kc."), key


def test_groups_on_the_page_are_those_of_the_code(written):
    text = re.sub(r"\s+", " ", PAGE.read_text())
    for name, base in list(GROUPS.items())[1:]:
        listed = re.search(rf"\*\*{name}\*\*.*?: (.*?)[;.]", text)[1]
        found = {
            layer
            for layer, _ in written
            if layer != "model" and issubclass(getattr(kc.layers, layer), base)
        }
        assert set(re.findall(r"`(\w+)`", listed)) == found


def test_values_are_plain(written):
    for name, record in written:
        assert json.loads(json.dumps(record)) == record, name
        assert "np." not in repr(record), name


def test_numbers_of_numpy_become_plain():
    class Own(kc.layers.TemperatureScaling):
        def solve(self, *data):
            found, record = super().solve(*data)
            own = {"one": np.float64(0.5), "many": [(np.int64(2), np.eye(2))]}
            return found, {**record, "own": own}

    found = Own().adapt(Z, Y).record["own"]
    expected = {"one": 0.5, "many": [[2, [[1.0, 0.0], [0.0, 1.0]]]]}
    assert found == expected
    assert "np." not in repr(found)
