"""Which rows there are, on what they were made, when, and by which commits."""

import functools
import subprocess

import protocols
import table
from places import HERE
from row_files import read_rows

HEADER = "rows of | rows | methods | made on | days".split(" | ")
# What is measured of rows of another table.
OTHERS = ("F_shift",)
NOTHING = "No rows yet."


def table_of(results):
    """A table of all tables with rows: machines and days."""
    lines = []
    for name, rows in stored(results).items():
        made, _, days = table.made_by(rows).rpartition("; ")
        methods = {row["method"] for row in rows}
        numbers = [str(len(rows)), str(len(methods))]
        lines.append([f"[{name}]({name}.md)", *numbers, made, days])
    return table.markdown(HEADER, lines) if lines else NOTHING


def stored(results):
    """Rows of all tables that have some, by the name of the table."""
    names = [name for name in protocols.TABLES if name != "miniature"]
    found = {
        name: [*read_rows(results / f"{name}.jsonl").values()]
        for name in (*names, *OTHERS)
    }
    return {name: rows for name, rows in found.items() if rows}


def of_commits(results):
    """How many rows name a commit with changed files, or one that is lost.

    Returns:
        `None` where `git` cannot tell, as without a history.
    """
    rows = [row for found in stored(results).values() for row in found]
    if not rows:
        return NOTHING
    named = [row["commit"] for row in rows if row.get("commit")]
    changed = sum(each.endswith("+") for each in named)
    here = [known(each.rstrip("+")) for each in named]
    if not any(here) or cut_short():
        return None
    lost = len(here) - sum(here)
    return (
        f"Of {len(rows)} rows {changed} name a commit with a `+`, behind which "
        f"files had changed, and {lost} one that is not in the repository: "
        "their code is not to be had again, their settings are in the rows. "
        "The driver warns before it makes rows with a `+`."
    )


@functools.cache
def known(commit):
    """Whether the repository has a commit; `False` without `git`."""
    return git("cat-file", "-e", f"{commit}^{{commit}}") is not None


def cut_short():
    """Whether the repository has its last commits only."""
    return git("rev-parse", "--is-shallow-repository") == "true"


def git(*words):
    """What a command of `git` prints; `None` where it fails."""
    command = ["git", "-C", str(HERE), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
