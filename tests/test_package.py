"""What holds for the package as a whole: its names, its docs, its manners."""

import ast
import builtins
import doctest
import importlib
import inspect
import pathlib
import pkgutil
import subprocess
import sys

import pytest

import keras_calib as kc

MODULES = [
    importlib.import_module(found.name)
    for found in pkgutil.walk_packages(kc.__path__, "keras_calib.")
]
PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in [kc, *MODULES]
    for name in getattr(module, "__all__", [])
    if not name.startswith("__")
}


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_documented(name):
    found = PUBLIC[name]
    documentation = inspect.getdoc(found)
    assert documentation, name
    if inspect.isfunction(found):
        for section in ("Args:", "Returns:", "Example:"):
            assert section in documentation, section
        for argument in inspect.signature(found).parameters:
            assert f"{argument}:" in documentation, argument


@pytest.mark.parametrize("module", [m.__name__ for m in MODULES])
def test_examples_of_docstrings_run(module):
    # The submodule, which may share its name with a function.
    failed, _ = doctest.testmod(
        sys.modules[module], optionflags=doctest.ELLIPSIS
    )
    assert not failed


@pytest.mark.parametrize("name", PUBLIC)
def test_examples_import_what_they_use(name):
    # `testmod` lends them the names of their module, a reader does not.
    for found in doctest.DocTestFinder().find(PUBLIC[name], name, globs={}):
        code = "".join(
            example.source
            for example in found.examples
            if doctest.SKIP not in example.options
        )
        missing = names_without_origin(code)
        assert not missing, (found.name, missing)


def names_without_origin(code):
    """Names that code reads, and neither imports nor binds."""
    read, bound = set(), set(dir(builtins))
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
    return read - bound


def test_import_is_silent_and_light():
    code = (
        "import sys, keras\n"
        "before = set(sys.modules)\n"
        "import keras_calib\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "heavy = {'matplotlib', 'tensorflow_datasets', 'keras_cv', "
        "'keras_hub', 'sklearn', 'scipy'} & new\n"
        "assert not heavy, heavy\n"
        "print('done')\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == ["done"]


def test_the_version_to_cite_is_that_of_the_package():
    root = pathlib.Path(__file__).parents[1]
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {kc.__version__}\n" in citation
