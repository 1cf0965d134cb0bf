"""What holds for every public name: docstrings, configs, errors.

`tests/test_package.py` has the arguments of functions, and runs the examples.
"""

import ast
import inspect
import pathlib
import re

import keras
import pytest

import keras_calib as kc
from tests.test_package import PUBLIC

ROOT = pathlib.Path(kc.__file__).parent
CLASSES = {
    found: name for name, found in PUBLIC.items() if inspect.isclass(found)
}
NAMED = pytest.mark.parametrize(
    "found", CLASSES, ids=lambda found: found.__name__
)
# Bases, parts and results: what makes them has the example.
WITHOUT_EXAMPLE = {
    "CalibratedModel",
    "CalibrationLayer",
    "CalibrationMetric",
    "ClassLossScaling",
    "ClassificationLoss",
    "DecisionLayer",
    "LossPart",
    "ModelCard",
    "PenalizedLoss",
    "PreprocessedModel",
    "Report",
    "ShiftResult",
    *(name for name in kc.layers.__all__ if name.endswith("Objective")),
}
# Bases and parts, or ideas of nobody's paper: tables, files, averages.
WITHOUT_REFERENCE = {
    "AdaFocalTable",
    "CalibrationLayer",
    "CalibrationMetric",
    "CalibrationMixture",
    "ClassLossScaling",
    "ClassificationLoss",
    "DecisionLayer",
    "FocalObjective",
    "LabelSmoothingObjective",
    "LogProbabilities",
    "LossObjective",
    "LossPart",
    "NegativeLogLikelihoodObjective",
    "Objective",
    "PenalizedLoss",
}
# A message says what to do by one of these, where nothing was received.
REMEDY = re.compile(
    r"\b(Check|Leave out|Let|Look|Pass|Train|Use|leave out|pass|\{remedy\})\b"
    r"|\{remedy\}|\{hint\}|\{error\}"
)
BASES = {
    "CalibrationLayer",
    "CalibrationMetric",
    "ClassificationLoss",
    "DecisionLayer",
    "PenalizedLoss",
}
# First arguments that are a model, or make one.
MODEL_FIRST = (
    *("model", "models", "members", "networks", "primary"),
    "predictions_or_models",
)
GATHERED = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
pytestmark = pytest.mark.one_backend


def documentation(found):
    return inspect.getdoc(found) or ""


@pytest.mark.parametrize("name", PUBLIC)
def test_the_first_line_is_a_sentence(name):
    first = documentation(PUBLIC[name]).splitlines()[0]
    assert first.endswith((".", ":")) and first[0].upper() == first[0]
    assert len(first) <= 80


@NAMED
def test_every_argument_of_a_class_is_documented(found):
    text = documentation(found)
    for name, each in inspect.signature(found.__init__).parameters.items():
        if name == "self" or each.kind in (
            each.VAR_KEYWORD,
            each.VAR_POSITIONAL,
        ):
            continue
        # Several may share a line; those of saved files are named in a line.
        assert re.search(rf"\b{name}\b", text) or name == "record", name


@NAMED
def test_classes_have_an_example(found):
    if found.__name__ not in WITHOUT_EXAMPLE:
        assert "Example:\n" in documentation(found)


@NAMED
def test_methods_name_their_paper(found):
    room = found.__module__.split(".")[1]
    if room not in ("layers", "losses", "metrics"):
        pytest.skip("no method of a paper")
    if found.__name__ not in WITHOUT_REFERENCE:
        assert "Reference:\n" in documentation(found)


@pytest.mark.parametrize("name", PUBLIC)
def test_what_raises_says_so(name):
    found = PUBLIC[name]
    where = found
    if inspect.isclass(found):
        # A data class has its checks after `__init__`, which is generated.
        where = getattr(found, "__post_init__", found.__init__)
    if not inspect.isfunction(where):
        pytest.skip("nothing of ours raises")
    if inspect.isclass(found) and where.__name__ not in vars(found):
        pytest.skip("its base raises")
    if "<string>" in where.__code__.co_filename:
        pytest.skip("nothing of ours raises")
    source = inspect.getsource(where)
    if re.search(r"raise (Value|Type)Error|\brequire(_\w+)?\(", source):
        assert re.search(r"Raises:\n", documentation(found)), name


@pytest.mark.parametrize(
    "name", [name for name, found in PUBLIC.items() if callable(found)]
)
def test_from_logits_is_none_only_where_a_model_tells(name):
    """As the README and `examples/docs/start.md` say."""
    parameters = dict(inspect.signature(PUBLIC[name]).parameters)
    if "from_logits" not in parameters:
        pytest.skip("takes no predictions")
    default = parameters["from_logits"].default
    if default is None:
        assert next(iter(parameters)) in MODEL_FIRST
    else:
        assert default is False


def network(name):
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(3, activation="softmax", name=f"{name}_head"),
        ],
        name=name,
    )


def two():
    return [network("first"), network("second")]


# What makes an object of a class that needs arguments, none at its default.
MAKERS = {
    "CalibratedModel": lambda: BY_NAME["CalibratedModel"](
        network("first"),
        keras.Sequential([keras.Input((3,)), kc.layers.TemperatureScaling()]),
    ),
    "CalibrationMixture": lambda: kc.layers.CalibrationMixture(
        maps=[kc.layers.TemperatureScaling(), kc.layers.VectorScaling()],
        weights=[0.25, 0.75],
    ),
    "DeepEnsemble": lambda: kc.models.DeepEnsemble(two(), from_logits=False),
    "DiffDML": lambda: kc.models.DiffDML(
        *two(), peers="all", weight=0.5, label_warmup=2
    ),
    "InterleavedTraining": lambda: kc.models.InterleavedTraining(
        network("first"), penalty_split=0.2, seed=3
    ),
    "LossPart": lambda: kc.losses.LossPart(
        kc.losses.MDCA(weight=0.5), "penalty", name="of_mdca"
    ),
    "MonteCarloDropout": lambda: kc.models.MonteCarloDropout(
        network("first"), num_masks=3
    ),
    "MutualLearning": lambda: kc.models.MutualLearning(*two(), weight=0.5),
    "MutualOptimizer": lambda: BY_NAME["MutualOptimizer"](
        keras.optimizers.SGD(0.5), keras.optimizers.Adam(0.25)
    ),
    "PreprocessedModel": lambda: BY_NAME["PreprocessedModel"](
        network("first"), None
    ),
    "PriorCorrection": lambda: kc.layers.PriorCorrection(
        source_prior=[0.5, 0.25, 0.25], target_prior=[0.25, 0.25, 0.5]
    ),
    "SampleHistoryModel": lambda: kc.models.SampleHistoryModel(
        network("first"), num_samples=7
    ),
}
BY_NAME = {found.__name__: found for found in CLASSES}


def stored_kinds():
    """Classes of the objects that Keras stores in files, but for bases."""
    kinds = (keras.losses.Loss, keras.metrics.Metric, keras.layers.Layer)
    for found in CLASSES:
        if issubclass(found, (*kinds, keras.optimizers.Optimizer)):
            if found.__name__ not in BASES:
                yield found


@pytest.mark.parametrize("found", stored_kinds(), ids=lambda f: f.__name__)
def test_configs_come_back(found):
    made = MAKERS.get(found.__name__, found)()
    config = made.get_config()
    # As a file stores it, and as it was.
    stored = keras.saving.serialize_keras_object(made)
    again = keras.saving.deserialize_keras_object(stored)
    assert type(again) is found
    new = {"name", "pair"}  # numbers that the next object has anew
    expected = {k: v for k, v in config.items() if k not in new}
    assert expected == {
        k: v for k, v in again.get_config().items() if k not in new
    }
    # `multi_label` is stored where it is true.
    known = {*config, "self", "kwargs", "name", "multi_label"}
    assert set(inspect.signature(found.__init__).parameters) <= known


def messages():
    """The text of every `ValueError` and `TypeError` that is written out."""
    for path in sorted(ROOT.rglob("*.py")):
        if path.parent.name == "command_line":
            continue  # a line that names the file, in place of an argument
        for node in ast.walk(ast.parse(path.read_text())):
            error = node.exc if isinstance(node, ast.Raise) else None
            if not isinstance(error, ast.Call) or not error.args:
                continue
            kind = getattr(error.func, "id", "")
            text = error.args[0]
            if kind in ("ValueError", "TypeError") and isinstance(
                text, ast.Constant | ast.JoinedStr | ast.BinOp
            ):
                yield f"{path.name}:{node.lineno}", ast.unparse(text)


def test_errors_say_what_came_or_what_to_do():
    found = list(messages())
    assert len(found) > 150
    assert not [
        (place, text)
        for place, text in found
        if "Received" not in text and not REMEDY.search(text)
    ]
