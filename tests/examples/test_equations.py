"""The equations of the pages: one for each public name, and all are drawn."""

import inspect
import re

import pytest

import keras_calib as kc
from tests.helpers import example

pytest.importorskip("docutils")
# The only part that depends on the backend is the import.
pytestmark = pytest.mark.one_backend
equations = example("docs/equations.py")
NAMES = [
    (family, name)
    for family, entries in equations.table().items()
    for name in entries
]


def public(family, name):
    return getattr(getattr(kc, family) if family else kc, name)


@pytest.mark.parametrize("family", ["losses", "metrics", "layers", "models"])
def test_every_public_name_has_an_equation_or_a_reason(family):
    entries = equations.table()[family]
    assert set(entries) == set(getattr(kc, family).__all__)
    for name, entry in entries.items():
        assert ("latex" in entry) != ("none" in entry), name
        assert len(entry.get("none", "a reason")) >= len("a reason")


@pytest.mark.parametrize(("family", "name"), NAMES)
def test_equation_names_arguments_and_sources_of_its_docstring(family, name):
    entry = equations.table()[family][name]
    document = inspect.getdoc(public(family, name))
    if name == "calibration_errors":
        document += " ".join(kc.metrics.calibration_errors([0, 1], [0.4, 0.7]))
    for code in re.findall("`([^`]+)`", entry.get("where", "")):
        word = re.sub("=.*", "", code).strip('"').removeprefix("kc.losses.")
        assert re.search(rf"\b{word}\b", document), code
    author, *rest = re.split(r"[ ,]", entry.get("source", "").strip())
    # The docstring of a class may leave the numbers to that of its function.
    functions = [document]
    functions += [
        inspect.getdoc(public(family, other))
        for other, candidate in equations.table()[family].items()
        if candidate is entry
    ]
    reference = " ".join(text.partition("Reference:")[2] for text in functions)
    assert author in reference
    for number in re.findall(r"\d+", " ".join(rest)):
        assert re.search(rf"(eqs?\.|equation)[^.;]*\b{number}\b", reference), (
            entry["source"]
        )


@pytest.mark.parametrize(("family", "name"), NAMES)
def test_equation_becomes_mathml(family, name):
    entry = equations.table()[family][name]
    formulas = equations.INLINE.findall(entry.get("where", ""))
    for latex in [*formulas, entry.get("latex", "")]:
        # Raises for a command that is not known.
        drawn = equations.mathml(latex, as_block=True)
        assert drawn.startswith("<math") and "\\" not in drawn


def test_unknown_command_raises():
    from docutils.utils.math import MathError

    with pytest.raises(MathError, match="unknowncommand"):
        equations.mathml(r"\unknowncommand")


def test_thin_space_where_a_function_has_no_brackets():
    drawn = equations.mathml(r"p \log q + \log(q)")
    assert len(re.findall("<mspace", drawn)) == 2
    assert "<mspace" not in equations.mathml(r"\operatorname{smECE}_s")


def test_docstring_keeps_its_text_and_gets_the_equation_of_its_penalty():
    lines = inspect.getdoc(kc.losses.MDCA).splitlines()
    found = list(lines)
    name = "keras_calib.losses.MDCA"
    equations.into_docstring(None, "class", name, kc.losses.MDCA, None, found)
    added = "\n".join(found[2 : len(found) - len(lines) + 2])
    assert found[:2] == lines[:2] and found[-len(lines) + 2 :] == lines[2:]
    assert added.count(".. math::") == 2
    assert r"\mathcal{L}_{\text{primary}} + \lambda R" in added
    assert r"\left| \frac{1}{n} \sum_{i=1}^{n} p_{ik}" in added
    assert "(Hebbalaguppe et al., eq. 5.)" in added


@pytest.mark.parametrize("family", equations.PLACES)
def test_page_of_a_family_has_all_its_equations(family):
    folder = equations.HERE.parents[1] / "keras_calib" / family
    text = (folder / "README.md").read_text()
    page = equations.with_equations(text, family)
    assert len(page) > len(text)
    for line in text.splitlines():
        assert line in page
    for name, entry in equations.table()[family].items():
        if "latex" in entry and "classes" not in entry:
            assert f"`{name} <keras_calib.{family}.{name}>`" in page
            assert entry["latex"].strip() in page


def test_page_without_its_place_for_equations_is_an_error():
    assert equations.with_equations("# Plots\n", "plots") == "# Plots\n"
    with pytest.raises(ValueError, match="no heading"):
        equations.with_equations("# Losses\n", "losses")
