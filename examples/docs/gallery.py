"""The scripts of `examples` as pages of sphinx-gallery, each with its picture.

The scripts stay as they are. Their copies get what sphinx-gallery reads: a
title with a line below it, which is the first line of the docstring, the place
of the picture, and a note where a script does not run without its folder. No
script runs while the pages are built: together they take an hour of training,
on backends and data that a builder need not have. The tests run them, and
`examples/stories/run.py --figures` draws the pictures again.
"""

import pathlib
import re
import shutil

EXAMPLES = pathlib.Path(__file__).parents[1]
SCRIPTS, PAGES = "gallery_scripts", "gallery"
# Name of a folder, its title, and the scripts with their pictures, which lie
# below `examples/figures`.
PARTS = {
    "begin": (
        "Begin",
        {
            "quickstart": "quickstart_reliability",
            "report_and_card": "story_report_and_card",
            "stories/published_network": "",
            "stories/keras_hub_text": "",
        },
    ),
    "train": (
        "Train",
        {
            "stories/image_classification": "",
            "stories/transfer_learning": "",
            "stories/tuned": "",
            "training_procedures": "story_training_procedures",
            "mutual_learning": "story_mutual_learning",
            "refine_then_calibrate": "story_refine_then_calibrate",
        },
    ),
    "tasks": (
        "Text, pixels, tables, series",
        {
            "stories/text_classification": "",
            "stories/tokens": "",
            "stories/pixels": "",
            "segmentation": "story_segmentation",
            "stories/imbalanced_table": "",
            "stories/time_series": "",
        },
    ),
    "decide": (
        "Shift and decisions",
        {
            "stories/corrupted_images": "",
            "stories/reject_and_predict_sets": "",
        },
    ),
    "engines": (
        "Several devices, and a training step of one's own",
        {
            "stories/data_parallel": "",
            "distributed": "story_distributed",
            "stories/custom_train_step_tensorflow": "",
            "stories/custom_train_step_jax": "",
            "stories/custom_train_step_torch": "",
        },
    ),
}
TITLE = """Stories
=======

Whole scripts, from data to a calibrated model. They make their data, or take
what scikit-learn ships; the few that need files say which. Every picture is
drawn by its script. Most scripts import a module of their folder, and their
pages say so: take the folder ``examples`` of the repository, not one file.
"""
NOTE = """
.. note::

    This script imports {modules} of the folder ``examples``. Run it in a copy
    of that folder: the file that is downloaded here does not run alone.
"""
IMPORTED = re.compile(r"^(?:import|from) (\w+)", flags=re.M)
DOCSTRING = re.compile(r'\A"""(.*?)"""\n', flags=re.S)
# An indented block after a line of text is a command.
COMMAND = re.compile(r"\n\n(?=    \S)")


def picture(script, named):
    """The path of a script's picture, from `examples`."""
    name = named or f"story_{pathlib.PurePath(script).name}"
    return f"figures/{name}.png"


def scripts():
    """Every script with its picture, as paths from `examples`."""
    return {
        f"{script}.py": picture(script, named)
        for _, part in PARTS.values()
        for script, named in part.items()
    }


def folders():
    """Each part of the gallery: its folder, title and scripts, in order."""
    for number, (name, (title, part)) in enumerate(PARTS.items()):
        yield f"{number}_{name}", title, part


def places():
    """Every script, and the folder `stories`, with its page."""
    yield "stories", f"{PAGES}/index"
    for folder, _, part in folders():
        for script in part:
            stem = pathlib.PurePath(script).name
            yield f"{script}.py", f"{PAGES}/{folder}/{stem}"


def modules(text):
    """The modules of `examples` that a script imports."""
    ours = {path.stem for path in EXAMPLES.rglob("*.py")}
    return sorted(ours & set(IMPORTED.findall(text)))


def page(text, image):
    """The text of a script as sphinx-gallery reads it."""
    title, _, rest = DOCSTRING.match(text)[1].partition("\n")
    title = title.rstrip(".")
    rest = COMMAND.sub("\n\n::\n\n", f"\n{rest.rstrip()}")
    figure = f".. image:: /{image}\n    :alt: What the script draws"
    note = ""
    if shared := modules(text):
        note = NOTE.format(modules=" and ".join(f"``{m}``" for m in shared))
    header = f"{title}\n{'=' * len(title)}\n\n{figure}{rest}\n{note}"
    # The first line: it would be text of the page at the end.
    return (
        f'"""\n{header}"""\n'
        f'# sphinx_gallery_thumbnail_path = "{image}"\n'
        + DOCSTRING.sub("", text, count=1)
    )


def write(folder):
    """Write the copies, and the pictures, for sphinx-gallery to read."""
    target = folder / SCRIPTS
    shutil.rmtree(target, ignore_errors=True)
    shutil.rmtree(folder / "figures", ignore_errors=True)
    (folder / "figures").mkdir()
    target.mkdir()
    (target / "GALLERY_HEADER.rst").write_text(TITLE)
    for name, title, part in folders():
        place = target / name
        place.mkdir()
        header = f"{title}\n{'-' * len(title)}\n"
        (place / "GALLERY_HEADER.rst").write_text(header)
        for script, named in part.items():
            image = picture(script, named)
            shutil.copy(EXAMPLES / image, folder / image)
            text = (EXAMPLES / f"{script}.py").read_text(encoding="utf-8")
            copy = place / f"{pathlib.PurePath(script).name}.py"
            copy.write_text(page(text, image), encoding="utf-8")


def settings(folder):
    """`sphinx_gallery_conf`: the order above, and nothing is run."""
    order = [
        pathlib.PurePath(script).name + ".py"
        for _, part in PARTS.values()
        for script in part
    ]
    return {
        "examples_dirs": str(folder / SCRIPTS),
        "gallery_dirs": PAGES,
        "plot_gallery": False,
        "download_all_examples": False,
        "remove_config_comments": True,
        "show_signature": False,
        "write_computation_times": False,
        "within_subsection_order": Order(order),
        "nested_sections": False,
    }


class Order:
    """A key that sorts scripts as they are listed."""

    def __init__(self, names):
        self.names = names

    def __call__(self, script):
        return self.names.index(pathlib.PurePath(script).name)

    def __repr__(self):
        return f"<Order {self.names}>"
