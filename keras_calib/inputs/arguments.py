"""Checks of arguments: one form for every complaint."""

from collections.abc import Collection
from typing import Any


def require(
    valid: bool, problem: str, remedy: str = "", /, **received: object
) -> None:
    """Raise `ValueError(problem, what came in, remedy)` unless `valid`."""
    if not valid:
        found = ", ".join(
            f"{name}={value!r}" for name, value in received.items()
        )
        raise ValueError(f"{problem} Received: {found}. {remedy}".rstrip())


def require_one_of(allowed: Collection, **received: object) -> None:
    """Raise unless every value is one of those allowed, strings or `None`."""
    names = [f'"{x}"' if isinstance(x, str) else str(x) for x in allowed]
    choice = f"one of {', '.join(names)}"
    if len(names) == 2:
        choice = " or ".join(names)
    for name, value in received.items():
        known = (value is None or isinstance(value, str)) and value in allowed
        require(known, f"`{name}` must be {choice}.", **{name: value})


def require_kind(kind: type, what: str, /, **received: object) -> None:
    """Raise unless every value is an instance of a class."""
    for name, value in received.items():
        valid = isinstance(value, kind)
        require(valid, f"`{name}` must be {what}.", **{name: value})


def require_at_least(least: float, **received: float) -> None:
    """Raise unless every value is at least so large, and a count finite."""
    for name, value in received.items():
        problem = f"`{name}` must be at least {least}."
        # What starts at 1 is counted.
        valid = value >= least and (least < 1 or value < float("inf"))
        require(valid, problem, **{name: value})


def require_positive(**received: float) -> None:
    """Raise unless every value is above 0."""
    for name, value in received.items():
        require(value > 0, f"`{name}` must be positive.", **{name: value})


def require_fraction(*, zero: bool = False, **received: Any) -> None:
    """Raise unless every value is in (0, 1), or in [0, 1) with `zero`."""
    for name, value in received.items():
        where = "[0, 1)" if zero else "(0, 1)"
        valid = 0 < value < 1 or (zero and value == 0)
        require(valid, f"`{name}` must be in {where}.", **{name: value})
