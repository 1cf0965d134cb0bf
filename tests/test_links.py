"""One setting, from which a script writes the links of README and package."""

import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
ADDRESS = "https://example.org/someone/keras_calib"
FILES = ("README.md", "pyproject.toml")
pytestmark = pytest.mark.one_backend


def write_links(folder, address):
    """The README and the project's table after a change of the setting."""
    project = folder / "pyproject.toml"
    text = re.sub(
        '(?m)^address = ".*"', f'address = "{address}"', project.read_text()
    )
    project.write_text(text)
    command = [sys.executable, ROOT / ".ci" / "links", folder]
    subprocess.run(command, check=True, capture_output=True)
    settings = tomllib.loads(project.read_text())["project"]
    return (folder / "README.md").read_text(), settings


def links(text):
    return re.findall(r"!?\[[^\]]*\]\(([^)\s]+)\)", text)


def test_links_follow_the_setting_and_come_back(tmp_path):
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path)
    relative, settings = write_links(tmp_path, "")
    assert "urls" not in settings
    inside = [place for place in links(relative) if ":" not in place]
    assert len(inside) > 5
    for place in inside:
        assert (ROOT / place.partition("#")[0]).exists(), place

    absolute, settings = write_links(tmp_path, f"{ADDRESS}/")
    assert settings["urls"]["Source"] == ADDRESS
    assert settings["urls"]["Issues"] == f"{ADDRESS}/issues"
    for before, after in zip(links(relative), links(absolute), strict=True):
        if before in inside and not before.startswith("#"):
            kind = "raw" if before.endswith(".png") else "blob"
            assert after == f"{ADDRESS}/{kind}/main/{before}"
        else:
            assert after == before

    other = ADDRESS.replace("someone", "another")
    moved, settings = write_links(tmp_path, other)
    assert moved == absolute.replace(ADDRESS, other)
    assert settings["urls"]["Source"] == other
    back, settings = write_links(tmp_path, "")
    assert back == relative and "urls" not in settings


PAGES = [
    path
    for pattern in (
        "examples/docs/*.md",
        "examples/results/*.md",
        ".github/*.md",
    )
    for path in sorted(ROOT.glob(pattern))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_pages_hold_in_the_repository(page):
    for place in links(page.read_text(encoding="utf-8")):
        path = place.partition("#")[0]
        if ":" not in place and path:
            assert (page.parent / path).exists(), place


def test_the_files_are_those_of_the_setting(tmp_path):
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path)
    script = [sys.executable, ROOT / ".ci" / "links", tmp_path]
    subprocess.run(script, check=True, capture_output=True)
    for name in FILES:
        assert (tmp_path / name).read_text() == (ROOT / name).read_text()
