"""The index of rooms and equations names what is there."""

import ast
import inspect
import pathlib
import re

import pytest

import keras_calib as kc
from keras_calib.calibration._methods import METHODS
from tests.test_house import FLOORS

PACKAGE = pathlib.Path(kc.__file__).parent
PAGE = PACKAGE / "README.md"
ROW = re.compile(r"^\| (.+) \| `([\w/]+\.py)` \| `(\w+)` \|$", flags=re.M)
EQUATIONS = ROW.findall(PAGE.read_text()) if PAGE.exists() else []
EQUATION = re.compile(
    r"\b(?:eqs?\.|equations?)\s+(\d+)(?: (?:and|to) (\d+))?", flags=re.I
)
# Of a row: what need not stand in the file.
SMALL_WORDS = {"and", "the", "its", "with", "how"}


@pytest.mark.parametrize(("equation", "file", "name"), EQUATIONS)
def test_the_equation_is_where_the_index_says(equation, file, name):
    """Not inside of another function, where nobody would look for it."""
    body = ast.parse((PACKAGE / file).read_text()).body
    for node in list(body):
        if isinstance(node, ast.ClassDef):
            body += node.body
    names = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    for node in body:
        if isinstance(node, ast.Assign):
            names |= {each.id for each in node.targets if hasattr(each, "id")}
    assert name in names


@pytest.mark.parametrize(("equation", "file", "name"), EQUATIONS)
def test_the_file_knows_the_words_of_its_row(equation, file, name):
    """A row of another file, or one that moved, names what is not in it."""
    text = (PACKAGE / file).read_text()
    topic = EQUATION.sub("", equation).partition(":")[0]
    words = set(re.findall(r"[a-z]{3,}", topic.lower())) - SMALL_WORDS
    assert words
    assert not {word for word in words if word not in text.lower()}
    numbers = {number for pair in EQUATION.findall(equation) for number in pair}
    found = {number for pair in EQUATION.findall(text) for number in pair}
    assert numbers <= found | {""}


def test_no_row_stands_twice():
    assert len({row[0] for row in EQUATIONS}) == len(EQUATIONS)
    assert len({row[1:] for row in EQUATIONS}) == len(EQUATIONS)


def test_every_room_is_in_the_index():
    assert len(EQUATIONS) > 50
    rows = re.findall(r"^\| (`.+?) \|", PAGE.read_text(), flags=re.M)
    rooms = [
        {room.removesuffix(".py") for room in re.findall(r"`([\w.]+)`", row)}
        for row in rows
    ]
    assert rooms == FLOORS


def named_in_tables(room):
    """What the first cells of the tables of a package's page name."""
    page = (PACKAGE / room / "README.md").read_text()
    cells = re.findall(r"^\| (`.+?) \| ", page, flags=re.M)
    return set(re.findall(r"`(\w+)", " ".join(cells)))


def test_every_loss_map_and_metric_is_on_its_page():
    bases = {"ClassificationLoss", "PenalizedLoss", "LossPart", "AdaFocalTable"}
    bases |= {"CalibrationLayer", "DecisionLayer", "CalibrationMetric"}
    for room, family in (
        ("losses", kc.losses),
        ("layers", kc.layers),
        ("metrics", kc.metrics),
    ):
        public = {name: getattr(family, name) for name in family.__all__}
        classes = {
            name
            for name, found in public.items()
            if inspect.isclass(found)
            and (room != "layers" or hasattr(found, "adapt"))
        }
        assert not classes - bases - named_in_tables(room), room


def test_every_loss_is_in_the_index():
    files = {
        inspect.getsourcefile(getattr(kc.losses, name))
        for name in kc.losses.__all__
    }
    told = {str(PACKAGE / file) for _, file, _ in EQUATIONS}
    assert not files - told


def test_every_method_is_in_the_lists():
    page = (PACKAGE / "layers/README.md").read_text()
    for name in METHODS:
        assert f'`"{name}"`' in inspect.getdoc(kc.calibrate)
        assert f"`{name}`" in page
