"""How the package is built: floors, sizes, signatures."""

import ast
import inspect
import io
import itertools
import pathlib
import re
import tokenize
from importlib import import_module

import pytest

import keras_calib as kc

PACKAGE = pathlib.Path(kc.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
TESTS = pathlib.Path(__file__).parent
# From the ground up; rooms on one floor may use each other.
FLOORS = [
    {
        "_documents",
        "_printed_dict",
        "_progress",
        "_typing",
        "_warning",
        "_whole_file",
        "version",
    },
    {"inputs", "keras_private", "keras_graph"},
    {"ops"},
    {"solvers"},
    {"data", "datasets", "evaluation", "losses"},
    {"metrics", "plots"},
    {"layers", "models"},
    {"calibration", "callbacks", "interop", "reporting", "shift"},
    {"_check", "_check_compiled", "_check_labels", "command_line"},
    {"__init__", "__main__"},
]
FLOOR = {room: n for n, rooms in enumerate(FLOORS) for room in rooms}
PUBLIC = ("callbacks", "calibration", "command_line", "datasets", "interop")
PUBLIC += ("layers", "losses", "metrics", "models", "plots", "reporting")
PUBLIC += ("shift",)
# Arguments that are data: these, and only these, may come by position.
DATA = {
    "labels",
    "logits",
    "probabilities",
    "sample_weight",
    "correctness",
    "y_true",
    "y_pred",
    "x",
    "y",
    "X",  # as scikit-learn writes it
    "data",
    "dataset",
}


def name_of(path):
    return path.relative_to(PACKAGE).as_posix()


def room_of(path):
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported(path):
    """The modules of this package that a file imports, also in functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{each.name}" for each in node.names]
        elif isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "keras_calib" and len(parts) > 1:
                yield parts[1:]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_is_imported_from_a_higher_floor(path):
    for parts in imported(path):
        assert FLOOR[parts[0]] <= FLOOR[room_of(path)], parts


def test_the_import_graph_has_no_circle():
    graph = {}
    for path in FILES:
        found = set()
        for parts in imported(path):
            for length in range(len(parts), 0, -1):
                target = PACKAGE.joinpath(*parts[:length])
                if target.with_suffix(".py").exists():
                    found.add(target.with_suffix(".py"))
                    break
                if (target / "__init__.py").exists():
                    found.add(target / "__init__.py")
                    break
        graph[path] = found - {path}
    done, open_ = set(), []

    def walk(path):
        assert path not in open_, [name_of(each) for each in (*open_, path)]
        if path in done:
            return
        open_.append(path)
        for other in graph[path]:
            walk(other)
        done.add(open_.pop())

    for path in FILES:
        walk(path)


@pytest.mark.parametrize("room", PUBLIC)
def test_modules_of_public_packages_are_private(room):
    for path in (PACKAGE / room).glob("*.py"):
        assert path.name.startswith("_"), path.name


def code_lines(path):
    """Numbers of the lines with code, docstrings and comments apart."""
    source = path.read_text()
    tree = ast.parse(source)
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (
            tokenize.COMMENT,
            tokenize.NL,
            tokenize.NEWLINE,
            tokenize.INDENT,
            tokenize.DEDENT,
            tokenize.ENDMARKER,
        ):
            continue
        lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef
        ) and ast.get_docstring(node, clean=False):
            first = node.body[0]
            lines -= set(range(first.lineno, first.end_lineno + 1))
    return tree, lines


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_and_functions_are_short(path):
    assert len(path.read_text().splitlines()) <= 400
    tree, lines = code_lines(path)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            own = lines & set(range(node.lineno, node.end_lineno + 1))
            assert len(own) <= 60, node.name


# What TensorFlow's AutoGraph may convert; the rest is NumPy.
OF_TENSORS = {"keras_graph", "layers", "losses", "metrics", "models", "ops"}


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if name_of(path).split("/")[0] in OF_TENSORS],
    ids=name_of,
)
def test_no_function_is_a_docstring_alone(path):
    # AutoGraph drops the docstring, cannot convert what is left, and warns.
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            only = node.body[0] if len(node.body) == 1 else None
            empty = isinstance(only, ast.Expr) and isinstance(
                only.value, ast.Constant
            )
            assert not empty, f"{node.name}: add `return None`"


def public_callables():
    rooms = [
        ("", kc),
        *((f"{r}.", import_module(f"keras_calib.{r}")) for r in PUBLIC),
    ]
    for prefix, room in rooms:
        for name in getattr(room, "__all__", []):
            found = getattr(room, name)
            if callable(found):
                yield f"{prefix}{name}", found


CALLABLES = dict(public_callables())
# What stands before the keyword-only arguments, where it is no data.
BY_POSITION = {
    "SKLearnClassifier": {"model"},
    "interop.SKLearnClassifier": {"model"},
    "add_sample_index": {"x"},
    "adjust_prior": {"model", "x", "sample_weight"},
    "calibrate": {"model", "x", "y", "sample_weight"},
    "calibration_record": {"model"},
    "check": {"model", "x", "y", "sample_weight"},
    "model_card": {"calibrated", "report"},
    "reporting.model_card": {"calibrated", "report"},
    "report": {"predictions_or_models", "x", "y"},
    "reporting.report": {"predictions_or_models", "x", "y"},
    "calibration.adjust_prior": {"model", "x", "sample_weight"},
    "calibration.calibrate": {"model", "x", "y", "sample_weight"},
    "calibration.calibration_record": {"model"},
    "calibration.CalibratedModel": {"network", "head"},
    "calibration.PreprocessedModel": {"model", "preprocessor"},
    "callbacks.AdaFocalSchedule": {"validation_data"},
    "callbacks.CalibrationMonitor": {"validation_data"},
    "callbacks.ReliabilityDiagram": {"path_or_log_dir"},
    "callbacks.RestoreCalibrated": {"monitor"},
    "callbacks.TemperatureTracker": {"validation_data"},
    "plots.calibration_history": {"history"},
    "plots.loss_profile": {"losses"},
    "datasets.load": {"name"},
    "datasets.stream": {"name", "part"},
    "datasets.inexact_images": {"name"},
    "layers.LossObjective": {"loss"},
    "losses.LossPart": {"loss", "part"},
    "models.DeepEnsemble": {"members"},
    "models.DiffDML": {"primary", "auxiliaries"},
    "models.InterleavedTraining": {"model"},
    "models.MonteCarloDropout": {"model"},
    "models.MutualLearning": {"primary", "auxiliaries"},
    "models.MutualOptimizer": {"primary", "auxiliary"},
    "models.SampleHistoryModel": {"model"},
    "models.kl_divergence": {"peer", "own"},
    "plots.shift_curves": {"result"},
    "shift.corrupt": {"images", "kind", "severity"},
    "shift.evaluate": {"model"},
}


@pytest.mark.parametrize("name", sorted(CALLABLES))
def test_help_shows_no_name_of_another_package_that_is_private(name):
    # Such as what NumPy's `ArrayLike` is made of.
    assert "._" not in re.sub(
        r"keras_calib\.[\w.]+", "", str(inspect.signature(CALLABLES[name]))
    )


@pytest.mark.parametrize("name", CALLABLES)
def test_only_data_comes_by_position(name):
    for each in inspect.signature(CALLABLES[name]).parameters.values():
        if each.kind is each.POSITIONAL_OR_KEYWORD:
            assert each.name in DATA | BY_POSITION.get(name, set())


@pytest.mark.parametrize("name", CALLABLES)
def test_public_signatures_are_annotated(name):
    found = CALLABLES[name]
    methods = [found]
    if inspect.isclass(found):
        methods = [
            each
            for key, each in vars(found).items()
            if inspect.isfunction(each)
            and (key == "__init__" or not key.startswith("_"))
        ]
    for method in methods:
        signature = inspect.signature(method)
        assert signature.return_annotation is not inspect.Signature.empty, (
            method.__qualname__
        )
        for each in signature.parameters.values():
            if each.name not in ("self", "cls"):
                assert each.annotation is not each.empty, (
                    f"{method.__qualname__}: {each.name}"
                )


def test_no_six_lines_stand_twice():
    """Of code: not docstrings, imports, or arguments that are passed on."""
    seen, twice = {}, []
    for path in FILES:
        if path.name == "__init__.py":
            continue
        tree, lines = code_lines(path)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                lines -= set(range(node.lineno, node.end_lineno + 1))
            if isinstance(node, ast.FunctionDef):
                lines -= set(range(node.lineno, node.body[0].lineno))
        text = path.read_text().splitlines()
        rows = [(n, text[n - 1].strip()) for n in sorted(lines)]
        rows = [row for row in rows if not re.fullmatch(r"(\w+)=\1,?", row[1])]
        for start in range(len(rows) - 5):
            block = tuple(line for _, line in rows[start : start + 6])
            if sum(map(len, block)) < 120:
                continue  # brackets and short names
            here = name_of(path), rows[start][0]
            if block in seen and seen[block] != here:
                twice.append((seen[block], here, block))
            seen.setdefault(block, here)
    twice = [(a, b) for a, b, _ in itertools.islice(twice, 20)]
    assert not twice


def test_what_a_module_of_tests_is_asked_for_exists():
    """A slow test is not run while working, and its helpers may move."""
    checked = 0
    for path in sorted(TESTS.rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        modules = {}
        for node in nodes:
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            folder = TESTS.parent / node.module.replace(".", "/")
            for each in node.names:
                if (folder / f"{each.name}.py").exists():
                    module = import_module(f"{node.module}.{each.name}")
                    modules[each.asname or each.name] = module
        for node in nodes:
            if not isinstance(node, ast.Attribute):
                continue
            module = modules.get(getattr(node.value, "id", None))
            if module is not None:
                where = f"{path.name}, line {node.lineno}: {node.attr}"
                assert hasattr(module, node.attr), where
                checked += 1
    assert checked > 20


def test_every_slow_test_exists():
    bodies = {}
    for name in (TESTS / "slow.txt").read_text().splitlines():
        file, *inside = name.split("::")
        if file not in bodies:
            bodies[file] = ast.parse((TESTS.parent / file).read_text()).body
        body = bodies[file]
        for part in inside:
            found = [x for x in body if getattr(x, "name", None) == part]
            assert found, f"{name}: run tests/find_slow.py again"
            body = found[0].body
