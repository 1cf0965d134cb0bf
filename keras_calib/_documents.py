"""Markdown tables and JSON values."""

import math
from typing import Any

import numpy as np


def markdown_table(heads: list[str], rows: list[list[Any]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return ["| " + " | ".join(map(escape, row)) + " |" for row in lines]


def escape(text: Any) -> str:
    """Text that ends no cell or line of Markdown, and is no tag of HTML."""
    text = str(text).replace("|", "\\|").replace("<", "\\<")
    return text.replace("\n", " ")


def to_json(value: Any) -> Any:
    """Only what JSON can hold: NaN and infinity become `None`."""
    if isinstance(value, dict):
        return {str(key): to_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value
