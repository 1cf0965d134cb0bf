"""Settings of Sphinx: `sphinx-build -W examples/docs docs_build`.

Nothing is fetched and no script is run: the pages of the repository are copied
beside these by `repository_pages`, the stories by `gallery`, and the equations,
which docstrings have as text, are added by `equations`.
"""

import inspect
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))

import equations  # noqa: E402
import gallery  # noqa: E402
import repository_pages  # noqa: E402

import keras_calib  # noqa: E402

project = "keras_calib"
author = "The keras_calib developers"
copyright = author
version = release = keras_calib.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
]
html_theme = "furo"
html_title = f"keras_calib {version}"
html_static_path = ["static"]
html_css_files = ["equations.css"]
html_math_renderer = "mathml"
exclude_patterns = ["_build", gallery.SCRIPTS]
myst_heading_anchors = 4
myst_fence_as_directive = ["math"]
# In a docstring `x` is code, as in Markdown, and a link where it is a name.
default_role = "py:obj"
autodoc_typehints = "none"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
napoleon_custom_sections = [
    "Example",
    "Reference",
    ("Call arguments", "params_style"),
]
# Members that a class has from Keras are described there, and those that are
# for new losses and layers in the code.
LEFT_OUT = {
    "add_variable",
    "add_weight",
    "as_affine",
    "build",
    "call",
    "compute_loss",
    "compute_output_shape",
    "from_config",
    "get_config",
    "penalty",
    "reset_state",
    "stateless_reset_state",
    "stateless_result",
    "stateless_update_state",
    "terms",
    "test_step",
    "train_step",
    "variables",
}

repository_pages.write(HERE)
gallery.write(HERE)
sphinx_gallery_conf = gallery.settings(HERE)


def links_lead_to_the_site(app, name, source):
    """Those of the pages of this folder, which are for the repository."""
    if "/" not in name:
        source[0] = repository_pages.with_links_of_site(source[0])


def indented_blocks_are_literal(app, what, name, obj, options, lines):
    """Formulas and tables in docstrings are indented and shown as they are.

    Sections (`Args:` and so on) are left to napoleon.
    """
    found, base, literal = [], 0, False
    for place, line in enumerate(lines):
        if re.match(r"[A-Z][A-Za-z ]*:$", line):
            break
        indent = len(line) - len(line.lstrip())
        if line.strip() and indent < base + 4:
            base, literal = indent, False
        elif line.strip() and not literal and not lines[place - 1].strip():
            found += [" " * base + "::", ""]
            literal = True
        found.append(line)
    else:
        place = len(lines)
    lines[:] = found + lines[place:]


def constants_have_no_docstring(app, what, name, obj, options, lines):
    """Of a constant it would be that of `tuple`; the page says what it is."""
    if what == "data":
        lines.clear()


def some_members_are_left_out(app, what, name, obj, skip, options):
    of_scikit_learn = re.fullmatch("set_.*_request|get_metadata_routing", name)
    if name in LEFT_OUT or name.startswith("on_") or of_scikit_learn:
        return True
    return None


def arguments_of_init(app, what, name, obj, options, signature, returns):
    """The arguments of a class, where `__new__` of Keras takes any."""
    if what != "class" or signature != "(*args, **kwargs)":
        return None
    found = inspect.signature(obj.__init__)
    _, *arguments = (
        argument.replace(annotation=argument.empty)
        for argument in found.parameters.values()
    )
    return str(inspect.Signature(arguments)), None


def setup(app):
    app.connect("source-read", links_lead_to_the_site)
    # Before napoleon, whose priority is 500.
    app.connect(
        "autodoc-process-docstring", indented_blocks_are_literal, priority=400
    )
    app.connect(
        "autodoc-process-docstring", equations.into_docstring, priority=450
    )
    app.connect("autodoc-process-docstring", constants_have_no_docstring)
    app.connect("autodoc-process-signature", arguments_of_init)
    app.connect("autodoc-skip-member", some_members_are_left_out)
    app.add_html_math_renderer(
        "mathml",
        inline_renderers=(equations.visit_inline, None),
        block_renderers=(equations.visit_block, None),
    )
