"""Types of command-line arguments, for `argparse`."""

import argparse
import difflib
import shlex


def positive_int(text):
    """A number of things, at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(
            f"a number, at least 1. Received: {number}"
        )
    return number


def one_of_many(names):
    """For `add_argument`: one of names of which an error tells only near ones.

    All of them are in the help, as `choices` would have them in each error.
    """

    def name(text):
        if text in names:
            return text
        near = difflib.get_close_matches(text, names, cutoff=0.5)
        near = f", near are {', '.join(near)}" if near else ""
        raise argparse.ArgumentTypeError(
            f"there is no {text!r}{near}; `--help` names all {len(names)}"
        )

    listed = ", ".join(map(shlex.quote, names)).replace("%", "%%")
    return {"type": name, "help": f"one of {listed}"}
