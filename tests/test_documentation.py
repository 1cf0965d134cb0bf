"""The code of every page runs, on small data and a small network."""

import ast
import importlib.util
import inspect
import pathlib
import re

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import Pieces

ROOT = pathlib.Path(__file__).parents[1]
PAGES = sorted(
    path
    for path in [
        ROOT / "README.md",
        *ROOT.glob(".github/**/*.md"),
        *ROOT.glob("keras_calib/**/*.md"),
        *ROOT.glob("examples/docs/*.md"),
        *ROOT.glob("examples/results/*.md"),
    ]
    if "```python" in path.read_text()
)
# What a block needs, if it has one of these names in it.
NEEDS = {"loader": "torch", "dataset": "tensorflow"}


def blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S)


def missing_packages(code):
    """Packages that a block imports and that are not installed."""
    found = re.findall(r"^(?:from|import) (\w+)", code, flags=re.M)
    names = dict.fromkeys(found)
    return [name for name in names if not importlib.util.find_spec(name)]


def network(name=None):
    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(16, "relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10),
        ],
        name=name,
    )


def probable_network():
    return keras.Sequential([network(), keras.layers.Softmax()])


def names_on_the_pages(digits, ends_in_softmax):
    """What the pages take for granted: data, and networks, mostly of logits."""
    (x, y), (x_val, y_val), (x_test, y_test) = digits
    x, y = x[:96], y[:96]
    names = {
        "keras": keras,
        "kc": kc,
        "np": np,
        "x": x,
        "y": y,
        "x_val": x_val,
        "y_val": y_val,
        "x_test": x_test,
        "y_test": y_test,
        "val_ds": Pieces(x_val, y_val),
        "py_dataset": Pieces(x, y),
        "labels": y_test,
        "majority": Pieces(x[:64], y[:64]),
        "rest": Pieces(x[64:], y[64:]),
        "epochs": 2,
    }
    for name in ("network", "primary", "auxiliary", "model"):
        names[name] = network()
    for name in ("first", "second", "third"):
        names[name] = probable_network()
    if ends_in_softmax:
        names["model"] = probable_network()
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=not ends_in_softmax
    )
    names["model"].compile("adam", loss, metrics=["accuracy"])
    names["model"].fit(x, y, epochs=5, verbose=0)
    p = names["model"].predict(x_test, verbose=0)
    p = p if ends_in_softmax else keras.ops.softmax(p)
    names["probabilities"] = keras.ops.convert_to_numpy(p)
    names["ece"] = kc.metrics.ExpectedCalibrationError(from_logits=True)
    names["loss"] = kc.losses.ACLS(from_logits=True)
    if importlib.util.find_spec("tensorflow"):
        import tensorflow as tf

        names["dataset"] = tf.data.Dataset.from_tensor_slices((x, y))
    if importlib.util.find_spec("torch"):
        import torch

        names["loader"] = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y)),
            batch_size=32,
        )
    return names


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_the_code_of_the_page_runs(page, digits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if page.parent == ROOT:
        # One program, which takes nothing for granted.
        code = "\n".join(blocks(page))
        exec(compile(shortened(code), str(page), "exec"), {})
        return
    names = names_on_the_pages(digits, page.name == "start.md")
    trained = names["model"]
    for code in blocks(page):
        if page.stem == "from_another_library" and missing_packages(code):
            continue
        # A new one each time: Keras keeps the metrics of an earlier `compile`.
        names["network"], names["model"] = network(), copy_of(trained)
        if "add_sample_index" in code and "SampleHistoryModel" not in code:
            names["model"] = kc.models.SampleHistoryModel(
                network(), num_samples=len(names["x"])
            )
            names["model"].compile("adam", kc.losses.CRL(from_logits=True))
        exec(compile(shortened(code), str(page), "exec"), names)


def test_table_beside_other_libraries_counts_our_losses():
    text = (ROOT / "README.md").read_text()
    told = re.search(r"^\| calibration losses \| (\d+) \|", text, flags=re.M)
    public = [getattr(kc.losses, name) for name in kc.losses.__all__]
    bases = (kc.losses.ClassificationLoss, kc.losses.PenalizedLoss)
    losses = [
        found
        for found in public
        if isinstance(found, type)
        and issubclass(found, keras.losses.Loss)
        and found not in bases
    ]
    assert int(told[1]) == len(losses)


def defaults_on_the_page(room):
    """Names in a package's table of defaults, each compared with its code."""
    page = (ROOT / f"keras_calib/{room}/README.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (`\w+=.*`) \|$", page, flags=re.M)
    for name, told in rows:
        found = getattr(getattr(kc, room), name)
        known = inspect.signature(found).parameters
        for key, value in re.findall(r"`(\w+)=([^`]*)`", told):
            assert known[key].default == ast.literal_eval(value), (name, key)
    return {name for name, _ in rows}


def test_defaults_of_the_callbacks_are_those_of_the_page():
    public = {
        name
        for name in kc.callbacks.__all__
        if isinstance(getattr(kc.callbacks, name), type)
    }
    assert defaults_on_the_page("callbacks") == public


def test_defaults_of_the_plots_are_those_of_the_page():
    # The others have data and words as arguments, and nothing to choose.
    assert set(kc.plots.__all__) - defaults_on_the_page("plots") == {
        "confidence_map",
        "risk_coverage",
    }


def copy_of(model):
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    copy.compile("adam", model.loss, metrics=["accuracy"])
    return copy


def shortened(code):
    """Few epochs, and no line for a package that is not there."""
    code = re.sub(r"epochs=\d+", "epochs=3", code)
    for word, package in NEEDS.items():
        if not importlib.util.find_spec(package):
            lines = code.splitlines()
            code = "\n".join(line for line in lines if word not in line)
    return code
