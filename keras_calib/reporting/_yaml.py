"""YAML of dicts, lists, strings and numbers, for the metadata of a card.

Every string is quoted, because a bare one can be read as something else: `no`
is false, `1e-05` a string, `a: b` a dict.
"""

import re

# What is printable, and stands for itself between double quotes.
ESCAPED = {'"': '\\"', "\\": "\\\\"}
PLAIN_KEY = re.compile(r"[a-z][a-z_-]*")


def front_matter(content: dict) -> str:
    """A dict as the block that stands above the Markdown of a page."""
    return "\n".join(["---", *_lines(content), "---", ""])


def _lines(value, indent=0):
    """Lines of a dict or a list; an empty one does not occur."""
    space = " " * indent
    for key, each in _items(value):
        if isinstance(each, dict | list):
            inner = list(_lines(each, indent + 2))
            if key == "-":
                # The first key of a dict stands behind the dash.
                yield f"{space}- {inner[0].lstrip()}"
                yield from inner[1:]
            else:
                yield f"{space}{key}"
                yield from inner
        else:
            yield f"{space}{key} {_scalar(each)}"


def _items(value):
    if isinstance(value, list):
        return [("-", each) for each in value]
    return [
        (f"{key if PLAIN_KEY.fullmatch(key) else _scalar(key)}:", each)
        for key, each in value.items()
    ]


def _scalar(value):
    if isinstance(value, str):
        return '"' + "".join(map(_quoted, value)) + '"'
    text = repr(value)
    # A number without a point before its exponent is read as a string.
    return text if "." in text or "e" not in text else text.replace("e", ".0e")


def _quoted(letter):
    if letter.isprintable():
        return ESCAPED.get(letter, letter)
    return f"\\U{ord(letter):08x}"
