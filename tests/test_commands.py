"""Commands on the pages name what is there.

Those that take seconds are run: what prints stored rows
(`tests/examples/test_page_commands.py`), the block of `keras-calib`
(`tests/command_line/test_page.py`), the quickstart (`tests/examples`), and the
tests' own command (`.ci/run`). The others train for
hours, install from the network or open an environment; of these the files,
options and extras are looked up.
"""

import pathlib
import re
import shlex
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGES = sorted(
    path
    for pattern in ("*.md", ".github/*.md", "keras_calib/*/*.md")
    for path in ROOT.glob(pattern)
)
PAGES += sorted(ROOT.glob("examples/docs/*.md"))
PAGES += sorted(ROOT.glob("examples/results/*.md"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# A fenced block of the shell, an indented block, and code within a line.
FENCED = re.compile(r"```bash\n(.*?)```", flags=re.S)
INDENTED = re.compile(r"^    (?! )(.*(?:\\\n.*)*)", flags=re.M)
INLINE = re.compile(r"`([^`]+)`")
SCRIPT = re.compile(r"^(examples|tests)/\S+\.py$|^\.ci/\S+$")
pytestmark = pytest.mark.one_backend


def commands(text):
    """Lists of words, those of each command of a page."""
    python = re.compile(r"```python\n.*?```", flags=re.S)
    text = python.sub("", text)
    lines = FENCED.findall(text) + INDENTED.findall(FENCED.sub("", text))
    lines = [line for block in lines for line in lines_of(block)]
    lines += INLINE.findall(FENCED.sub("", text).replace("\n", " "))
    for line in lines:
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # an apostrophe: no command
            continue
        starts = ("python", ".ci/", "KERAS_", ".venv/", "pip", "keras-calib")
        if words and words[0].startswith(starts):
            yield words


def lines_of(block):
    """Commands of a block: lines, whole where they go on, and parts of them."""
    for line in block.replace("\\\n", " ").splitlines():
        yield from re.split(r"&&|;", line)


@pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_commands_name_what_is_there(page):
    for words in commands(page.read_text(encoding="utf-8")):
        scripts = [word for word in words if SCRIPT.match(word)]
        for script in scripts:
            assert (ROOT / script).exists(), words
        extras = re.findall(r"\[([a-z,]+)\]", " ".join(words))
        if "pip" in " ".join(words):
            known = PROJECT["optional-dependencies"]
            for extra in ",".join(extras).split(","):
                assert not extra or extra in known, words
        if scripts and scripts[0].endswith(".py"):
            folder = (ROOT / scripts[0]).parent
            known = "".join(each.read_text() for each in folder.glob("*.py"))
            for word in words[words.index(scripts[0]) :]:
                if word.startswith("--"):
                    option = word.partition("=")[0]
                    named = option[2:].replace("-", "_")
                    assert option in known or f'"{named}"' in known, words
        if "-m" in words and "pytest" in words:
            for word in words[words.index("pytest") :]:
                path = word.partition("::")[0]
                assert not path.startswith("tests/") or (ROOT / path).exists()


def test_commands_are_found():
    text = (
        "Run `python examples/quickstart.py` or\n\n"
        "    KERAS_BACKEND=jax python examples/mutual_learning.py --seeds 3\n\n"
        "```bash\npython3 -m venv .venv && "
        '.venv/bin/pip install ".[jax]"\n'
        "python examples/a.py --first \\\n  --same  # the rest is said\n"
        "python examples/b.py --second\n```\n"
    )
    found = [words[-1] for words in commands(text)]
    fenced = [".venv", ".[jax]", "--same", "--second"]
    assert found == [*fenced, "3", "examples/quickstart.py"]


def test_a_wrong_option_is_found_in_any_line_of_a_block(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```bash\npython examples/papers/table.py S  # printed\n"
        "python examples/papers/run.py S --no-such-option\n```\n"
    )
    with pytest.raises(AssertionError, match="no-such-option"):
        test_commands_name_what_is_there(page)


def test_most_pages_have_commands():
    assert sum(len(list(commands(page.read_text()))) for page in PAGES) > 20
