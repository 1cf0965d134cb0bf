"""The equations of `equations.toml` as mathematics in the pages.

Sphinx's own renderers fetch a script when a page is read, or need LaTeX.
Docutils turns LaTeX into MathML, which browsers draw by themselves: nothing is
fetched, neither while the pages are built nor while they are read.
"""

import functools
import pathlib
import re
import tomllib

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

from keras_calib.losses import PenalizedLoss

HERE = pathlib.Path(__file__).parent
INLINE = re.compile(r"\$([^$]+)\$")
# TeX sets a thin space beside a function without brackets, docutils none.
FUNCTION = r"\\(?:exp|log|tanh)(?![a-z])|\\operatorname\{\w+\}"
SPACES = (
    (re.compile(rf"(?<=[\w}})])\s*(?={FUNCTION})"), r"\, "),
    (re.compile(rf"({FUNCTION})\s*(?=[a-zA-Z0-9]|\\(?!left|,))"), r"\1\, "),
)
# The equations of a family stand in the copy of its page before this heading.
PLACES = {
    "losses": "## What they look like",
    "metrics": "## Intervals, floor and test",
    "layers": "## What the evidence says",
    "models": "## What it costs",
    "callbacks": "## Killed, and started again",
}


@functools.cache
def table():
    """`{family: {name: entry}}`; a class has the entry of its function."""
    families = read()
    del families["notation"]
    for family in families.values():
        for entry in list(family.values()):
            family.update(dict.fromkeys(entry.get("classes", ()), entry))
    return families


def read():
    return tomllib.loads((HERE / "equations.toml").read_text("utf-8"))


def notation(family, role):
    """What letters mean in the equations of a family; empty for most."""
    return INLINE.sub(role, read()["notation"].get(family, "").strip())


def described(entry, role, is_penalty=False):
    """What the letters of an equation mean, and where the paper has it."""
    parts = [entry.get("where", "").strip()]
    if is_penalty:
        parts += [r"$\lambda$ is `weight`."]
    if "source" in entry:
        parts += [f"({entry['source']}.)"]
    return INLINE.sub(role, " ".join(filter(None, parts)))


def restructured(entry, is_penalty=False):
    """Lines of reStructuredText for the reference."""
    formulas = [entry["latex"].strip()]
    if is_penalty:
        primary = read()["losses"]["PenalizedLoss"]["latex"]
        formulas.insert(0, primary.strip())
    lines = []
    for latex in formulas:
        lines += [".. math::", ""]
        lines += [f"    {line}" for line in latex.splitlines()] + [""]
    where = described(entry, r":math:`\1`", is_penalty)
    return [*lines, *where.splitlines(), ""]


def section(family):
    """A section with the equations of a family, for its page."""
    parts = ["## The equations", notation(family, r"{math}`\1`")]
    for name, entry in read()[family].items():
        if "latex" in entry:
            links = [
                f"{{py:obj}}`{name} <keras_calib.{family}.{name}>`"
                for name in entry.get("classes", [name])
            ]
            parts += [
                ", ".join(links),
                f"```math\n{entry['latex'].strip()}\n```",
                described(entry, r"{math}`\1`"),
            ]
    return "\n\n".join(filter(None, parts))


def with_equations(text, family):
    """The page of a family with its equations, if it has a place for them."""
    place = PLACES.get(family)
    if place is None:
        return text
    before, heading, after = text.partition(f"\n{place}\n")
    if not heading:
        raise ValueError(f"The page of {family} has no heading {place!r}.")
    return f"{before}\n{section(family)}\n{heading}{after}"


def into_docstring(app, what, name, obj, options, lines):
    """Put the equation below the first paragraph of a docstring.

    The docstring of a package gets the notation of its equations.
    """
    if what == "module":
        family = name.rpartition(".")[2]
        lines += ["", *notation(family, r":math:`\1`").splitlines(), ""]
        return
    family, _, short = name.removeprefix("keras_calib.").rpartition(".")
    entry = table().get(family, {}).get(short, {})
    if "latex" not in entry:
        return
    is_penalty = (
        isinstance(obj, type)
        and issubclass(obj, PenalizedLoss)
        and obj is not PenalizedLoss
    )
    end = lines.index("") + 1
    lines[end:end] = restructured(entry, is_penalty)


def mathml(latex, as_block=False):
    """MathML of LaTeX; raises `MathError` for what docutils does not know."""
    for place, space in SPACES:
        latex = place.sub(space, latex)
    return tex2mathml(latex, as_block=as_block)


def visit_inline(writer, node):
    writer.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def visit_block(writer, node):
    formula = mathml(node.astext(), as_block=True)
    writer.body.append(f'<div class="math">\n{formula}</div>\n')
    raise nodes.SkipNode
