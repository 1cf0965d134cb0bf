"""Parts of pages that a script prints: each stands between two marks."""

END = "<!-- end -->"


def mark(command):
    """What stands above the part that a command prints."""
    return f"<!-- printed by: {command} -->\n"


def between(page, begin, text, otherwise):
    """The page with a text between the mark `begin` and the next `END`.

    Raises:
        ValueError: saying `otherwise`, if a mark is missing.
    """
    before, found, rest = page.partition(begin)
    _, end, after = rest.partition(END)
    if not found or not end:
        raise ValueError(otherwise)
    return f"{before}{begin}\n{text}\n\n{END}{after}"
