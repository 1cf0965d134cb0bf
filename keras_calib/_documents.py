"""Markdown tables and JSON values."""

import math
import re
from typing import Any

import numpy as np


def markdown_table(heads: list[str], rows: list[list[Any]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return ["| " + " | ".join(map(escape, row)) + " |" for row in lines]


def escape(text: Any) -> str:
    """Text that ends no cell or line of Markdown, and is no tag of HTML."""
    # Elsewhere, as in "p < 0.001", it is what it looks like.
    text = re.sub(r"<(?=[A-Za-z/!?])", r"\<", str(text))
    return text.replace("|", "\\|").replace("\n", " ")


def to_json(value: Any) -> Any:
    """Only what JSON can hold.

    NaN becomes `None`, and an infinity the string `"Infinity"` or
    `"-Infinity"`, which Python's `float` and JavaScript's `Number` read.
    """
    if isinstance(value, dict):
        return {str(key): to_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    if isinstance(value, float | np.floating):
        if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        return None if math.isnan(value) else float(value)
    return int(value) if isinstance(value, np.integer) else value
