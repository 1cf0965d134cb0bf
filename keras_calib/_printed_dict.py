"""A dictionary that can be read when it is printed."""

import pprint

# Longer lists are printed in short.
LONGEST = 20


class PrintedDict(dict):
    """One that prints a key per line, and long lists by their ends."""

    def __str__(self) -> str:
        shown = _shortened(dict(self))
        return pprint.pformat(shown, compact=True, sort_dicts=False)

    # What a console shows without `print`.
    __repr__ = __str__


def _shortened(value):
    """Long lists, such as a number for each of many classes, by their ends."""
    if isinstance(value, dict):
        return {key: _shortened(each) for key, each in value.items()}
    if isinstance(value, list) and len(value) > LONGEST:
        return [*value[:3], "...", value[-1], f"{len(value)} in all"]
    return value
