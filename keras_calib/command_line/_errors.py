"""Errors in the words of the shell: one line, with options and files."""

import contextlib
import csv
import re
import sys
import traceback
from collections.abc import Collection
from collections.abc import Iterator

from keras_calib.inputs.arguments import errors_named

# Letters of an error that may quote a file, or what a backend holds.
LONGEST = 500
# What bad input raises; of other errors the type is said, too.
EXPECTED = (ValueError, OSError, ImportError, csv.Error)
COLORS = re.compile(r"\x1b\[[0-9;]*m")
# Headings of Keras and TensorFlow, which have the cause further below.
OF_LAYER = "Exception encountered when calling"
ARGUMENTS = "Arguments received by"
OF_GRAPH = "Graph execution error"
# Arguments of Python that commands have as options, and how they are written.
OPTIONS = (
    "from_logits",
    "ignore_class",
    "seed",
    "method",
    "max_seconds",
    "corruptions",
    "severities",
    "value_range",
)
ARGUMENT = re.compile(r"`(\w+)(=[^`]*)?`")


@contextlib.contextmanager
def errors_of(path: object) -> Iterator[None]:
    """Errors of models and values, in a line that names their file.

    Args:
        path: of the file; empty if the error names it by itself.

    Raises:
        ValueError: for any error but those of folders, disks and packages.
    """
    with errors_named(path):
        try:
            yield
        except (OSError, ImportError):
            raise
        # Layers and backends raise whatever they like.
        except Exception as error:
            raise ValueError(one_line(error)) from error


def one_line(error: Exception) -> str:
    """What an error says, in one line without colors.

    Of an error that bad input does not raise, these are its type and its first
    line.
    """
    text = COLORS.sub("", str(error))
    lines = [each.rstrip() for each in text.splitlines() if each.strip()]
    expected = isinstance(error, EXPECTED)
    if lines and OF_LAYER in lines[0]:
        # The cause, which may be long, and not the arguments below it.
        ends = [k for k, each in enumerate(lines) if each.startswith(ARGUMENTS)]
        lines = lines[: ends[0] if ends else None]
        lines = lines if expected else [" ".join(lines[:2])]
    elif lines and OF_GRAPH in lines[0]:
        # Between the heading and the cause are lines of code, indented.
        lines = [each for each in lines if not each[0].isspace()][-1:]
    if expected:
        return " ".join(" ".join(lines).split())
    name = type(error).__name__
    return f"{name}: {lines[0][:LONGEST].strip()}" if lines else name


def in_options(text: str, known: Collection[str]) -> str:
    """Advice on arguments of Python as advice on the options of a command.

    Args:
        text: of an error or a warning, with arguments in backticks.
        known: names of what the command takes.
    """
    others = []

    def option(match):
        name, value = match[1], match[2] or ""
        if name in OPTIONS and name in known:
            return _as_option(name, value)
        if value:
            others.append(f"`{name}`")
        return match[0]

    text = ARGUMENT.sub(option, text)
    if others:
        names = ", ".join(dict.fromkeys(others))
        text += f" ({names}: in Python only, no option of this command.)"
    return text


def _as_option(name, value):
    if name == "from_logits":
        no = "`--no-from-logits`"
        yes = "`--from-logits`"
        return {"=False": no, "=": f"{yes} or {no}"}.get(value, yes)
    words = re.sub(r'[=(),"]', " ", value).split()
    return f"`{' '.join(['--' + name.replace('_', '-'), *words])}`"


def print_traceback(error: BaseException) -> None:
    """Print where an error came from, also what it was before."""
    each: BaseException | None = error
    while each is not None:
        each.__suppress_context__ = False
        each = each.__cause__ or each.__context__
    traceback.print_exception(error, file=sys.stderr)
