"""The documentation builds: no warning, no broken link, nothing fetched."""

import os
import pathlib
import re
import subprocess
import sys
from importlib import import_module

import pytest

import keras_calib as kc
from tests.helpers import example
from tests.test_house import PUBLIC

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.one_backend
def test_it_builds_without_warnings(tmp_path):
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_parser")
    pytest.importorskip("furo")
    pytest.importorskip("sphinx_gallery")
    command = ["-m", "sphinx", "-W", "--keep-going", "-q", "-E"]
    done = subprocess.run(
        [sys.executable, *command, "examples/docs", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    # A class from its docstring, with a link to another one; a page of a
    # package; a link between pages.
    losses = (tmp_path / "reference" / "losses.html").read_text()
    assert 'id="keras_calib.losses.MDCA"' in losses
    assert 'href="#keras_calib.losses.FocalLoss"' in losses
    # Its equation, which the browser draws: no page fetches a script.
    entry = losses.partition('id="keras_calib.losses.MDCA"')[2]
    assert entry.index("<math") < entry.index("Parameters")
    pages = tmp_path.rglob("*.html")
    assert not re.findall(
        r'<(?:script|link|img)[^>]*(?:src|href)="(?:https?:)?//[^>]*>',
        "".join(page.read_text() for page in pages),
    )
    # The arguments of a layer, which `__new__` of Keras hides.
    layers = (tmp_path / "reference" / "layers.html").read_text()
    entry = layers.partition('id="keras_calib.layers.VectorScaling"')[2]
    assert ">regularization<" in entry.partition("<dd>")[0]
    assert ">args<" not in layers
    metrics = (tmp_path / "pages" / "metrics.html").read_text()
    assert 'id="the-clinical-panel"' in metrics
    # A story, under the first line of its docstring and with its picture.
    story = (tmp_path / "gallery" / "2_tasks" / "tokens.html").read_text()
    assert "the next word of a sentence" in story
    assert "_images/story_tokens.png" in story
    every_public_name_has_an_entry(tmp_path / "objects.inv")
    start = (tmp_path / "start.html").read_text()
    assert 'href="which_method.html"' in start


@pytest.mark.one_backend
def test_every_page_of_results_is_in_the_site():
    pages = (ROOT / "examples/docs/repository_pages.py").read_text()
    evidence = (ROOT / "examples/docs").glob("*.md")
    listed = "".join(page.read_text() for page in evidence)
    results = sorted((ROOT / "examples/results").glob("*.md"))
    assert results
    for page in results:
        path = page.relative_to(ROOT).as_posix()
        found = re.search(rf'"{re.escape(path)}": "(\w+)"', pages)
        assert found, path
        assert f"pages/{found[1]}\n" in listed, path


def every_public_name_has_an_entry(inventory):
    """Under its package, or under `keras_calib` if it is there, too."""
    from sphinx.util.inventory import InventoryFile

    with inventory.open("rb") as file:
        found = InventoryFile.load(file, "", lambda base, name: name)
    entries = {
        name
        for kind, names in found.items()
        if kind.startswith("py:")
        for name in names
    }
    assert {f"keras_calib.{name}" for name in kc.__all__} - entries <= {
        "keras_calib.__version__"
    }
    # The command line has a page of its own.
    for room in set(PUBLIC) - {"command_line"}:
        for name in import_module(f"keras_calib.{room}").__all__:
            both = {f"keras_calib.{room}.{name}"}
            if hasattr(kc, name):
                both.add(f"keras_calib.{name}")
            assert both & entries, name


def test_every_script_of_the_gallery_has_its_picture():
    gallery = example("docs/gallery.py")
    told = f"a gallery of {len(gallery.scripts())} scripts"
    assert told in (ROOT / "CHANGELOG.md").read_text()
    for script, picture in gallery.scripts().items():
        text = (gallery.EXAMPLES / script).read_text()
        page = gallery.page(text, picture)
        title, line = page.splitlines()[1:3]
        assert title == text[3:].splitlines()[0].rstrip(".")
        assert line == len(title) * "="
        assert (gallery.EXAMPLES / picture).stat().st_size > 5_000
    # All stories but those that the pages leave to their folder.
    shown = {pathlib.PurePath(script).stem for script in gallery.scripts()}
    assert shown >= set(example("stories/run.py").STORIES)
