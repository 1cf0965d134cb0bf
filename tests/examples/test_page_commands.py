"""Commands of the papers' pages: printing ones are run, others are parsed."""

import pytest

from tests.test_commands import PAGES
from tests.test_commands import ROOT
from tests.test_commands import commands

FOLDER = "examples/papers"
# What draws, writes, or reads what a reader has made.
NOT_RUN = {"--figures", "--into", "mine", "papers", "all"}
# Stands for a name.
WORDS = {"TABLE"}
pytestmark = pytest.mark.one_backend


def found(script):
    """The arguments of every command with a script of the papers."""
    seen = set()
    for page in PAGES:
        for words in commands(page.read_text(encoding="utf-8")):
            place = f"{FOLDER}/{script}.py"
            if place in words and not WORDS & set(words):
                seen.add(tuple(words[words.index(place) + 1 :]))
    return sorted(seen)


def printed():
    return [each for each in found("table") if not NOT_RUN & set(each)]


@pytest.mark.parametrize("arguments", printed(), ids=" ".join)
def test_command_prints_a_table(arguments, papers, capsys, monkeypatch):
    import table

    monkeypatch.chdir(ROOT)
    try:
        table.main(list(arguments))
    except SystemExit as ended:
        # Rows of a table that no page shows yet.
        assert str(ended).startswith("No rows yet: python examples/papers/")
        return
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("|") for line in lines)


@pytest.mark.parametrize("arguments", found("run"), ids=" ".join)
def test_arguments_of_a_run_are_accepted(arguments, papers):
    import protocols
    import run

    given = run.parse(list(arguments))
    assert given.table in protocols.TABLES or given.paper


def test_commands_of_both_kinds_are_found():
    assert len(printed()) > 10 and len(found("run")) > 10
