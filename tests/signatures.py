"""The public names and their arguments, one to a line.

    python -m tests.signatures > tests/signatures.txt

`tests/signatures.txt` holds what users may rely on: a change of it is a change
for them, and belongs into the changelog.
"""

import inspect
import pathlib
import re

from tests.test_house import CALLABLES

STORED = pathlib.Path(__file__).with_suffix(".txt")


def signatures():
    """Each public class or function, with its arguments and defaults."""
    found = []
    for name, each in sorted(CALLABLES.items()):
        arguments = inspect.signature(each)
        plain = [
            value.replace(annotation=inspect.Parameter.empty)
            for value in arguments.parameters.values()
        ]
        shown = inspect.Signature(plain)
        # Classes and functions among the defaults show where they lie.
        text = re.sub(r" at 0x[0-9a-f]+", "", f"{name}{shown}")
        found.append(text)
    return found


if __name__ == "__main__":
    print(*signatures(), sep="\n")
