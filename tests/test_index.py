"""The index of rooms and equations names what is there."""

import ast
import pathlib
import re

import pytest

import keras_calib as kc

PACKAGE = pathlib.Path(kc.__file__).parent
PAGE = PACKAGE / "README.md"
ROW = re.compile(r"^\| (.+) \| `([\w/]+\.py)` \| `(\w+)` \|$", flags=re.M)
EQUATIONS = ROW.findall(PAGE.read_text()) if PAGE.exists() else []


@pytest.mark.parametrize(("equation", "file", "name"), EQUATIONS)
def test_the_equation_is_where_the_index_says(equation, file, name):
    tree = ast.parse((PACKAGE / file).read_text())
    functions = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }
    assert name in functions


def test_every_room_is_in_the_index():
    assert len(EQUATIONS) > 25
    text = PAGE.read_text()
    for room in PACKAGE.iterdir():
        if (room / "__init__.py").exists():
            assert f"`{room.name}`" in text, room.name
