"""Checks of arguments: one form for every complaint."""

import contextlib
import numbers
from collections import Counter
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Set
from typing import Any

import keras
import numpy as np

# No count is so large; an array of this length would fill any memory.
MOST = 2**31


def require(
    valid: bool, problem: str, remedy: str = "", /, **received: object
) -> None:
    """Raise `ValueError(problem, what came in, remedy)` unless `valid`."""
    if not valid:
        found = ", ".join(
            f"{name}={value!r}" for name, value in received.items()
        )
        raise ValueError(f"{problem} Received: {found}. {remedy}".rstrip())


def is_one_of(value: Any, allowed: Collection) -> bool:
    """Whether a value is one of those allowed, strings or `None`."""
    return (value is None or isinstance(value, str)) and value in allowed


def require_one_of(allowed: Collection, **received: object) -> None:
    """Raise unless every value is one of those allowed, strings or `None`."""
    names = [f'"{x}"' if isinstance(x, str) else str(x) for x in allowed]
    choice = f"one of {', '.join(names)}"
    if len(names) == 2:
        choice = " or ".join(names)
    for name, value in received.items():
        known = is_one_of(value, allowed)
        require(known, f"`{name}` must be {choice}.", **{name: value})


def require_kind(
    kind: type | tuple[type, ...], what: str, /, **received: object
) -> None:
    """Raise unless every value is an instance of a class, or one of several."""
    for name, value in received.items():
        valid = isinstance(value, kind)
        require(valid, f"`{name}` must be {what}.", **{name: value})


def is_number(value: Any) -> bool:
    """Whether a value is one real number, which can be compared with others.

    That of an array or tensor without axes is one, too.
    """
    if isinstance(value, np.ndarray | np.generic):
        return value.ndim == 0 and value.dtype.kind in "biuf"
    if keras.ops.is_tensor(value) or isinstance(value, keras.Variable):
        return len(value.shape) == 0
    return isinstance(value, numbers.Real)


def is_integer(value: Any) -> bool:
    """Whether a value is a Python or NumPy integer, and no boolean."""
    integers = int | np.integer
    return isinstance(value, integers) and not isinstance(value, bool)


def are_numbers(values: Any) -> bool:
    """Whether values are a list, a tuple or a row of real numbers."""
    if isinstance(values, np.ndarray):
        return values.ndim == 1 and values.dtype.kind in "biuf"
    return isinstance(values, list | tuple) and all(map(is_number, values))


def require_number(**received: Any) -> None:
    """Raise unless every value is one real number."""
    for name, value in received.items():
        problem = f"`{name}` must be a number."
        require(is_number(value), problem, **{name: value})


def require_at_least(least: float, **received: Any) -> None:
    """Raise unless every value is at least so large; for what is no count."""
    for name, value in received.items():
        problem = f"`{name}` must be at least {least}."
        valid = is_number(value) and value >= least
        require(valid, problem, **{name: value})


def require_positive(**received: Any) -> None:
    """Raise unless every value is above 0."""
    for name, value in received.items():
        valid = is_number(value) and value > 0
        problem = f"`{name}` must be positive."
        require(valid, problem, **{name: value})


def require_fraction(*, zero: bool = False, **received: Any) -> None:
    """Raise unless every value is in (0, 1), or in [0, 1) with `zero`."""
    for name, value in received.items():
        where = "[0, 1)" if zero else "(0, 1)"
        valid = is_number(value) and (0 < value < 1 or (zero and value == 0))
        problem = f"`{name}` must be in {where}."
        require(valid, problem, **{name: value})


def generator(seed: Any, *more: int) -> np.random.Generator:
    """NumPy's generator of random numbers, or `ValueError` for a bad seed.

    Args:
        seed: int, at least 0.
        *more: further integers, for one of several generators.
    """
    try:
        return np.random.default_rng([seed, *more] if more else seed)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`seed` must be at least 0, an integer. Received: seed={seed!r}."
        ) from error


def require_flags(*, none: bool = False, **received: Any) -> None:
    """Raise unless every value is true or false, or `None` with `none`."""
    choice = "True, False or None" if none else "True or False"
    for name, value in received.items():
        valid = is_number(value) and value in (False, True)
        valid = valid or (none and value is None)
        require(valid, f"`{name}` must be {choice}.", **{name: value})


def require_integer(least: int, **received: Any) -> None:
    """Raise unless every value is an integer that is at least so large."""
    for name, value in received.items():
        valid = is_integer(value) and least <= value < MOST
        problem = f"`{name}` must be at least {least}, an integer."
        require(valid, problem, **{name: value})


def require_widths(**received: Any) -> None:
    """Raise unless every value is a list or tuple of widths of layers."""
    for name, value in received.items():
        valid = isinstance(value, list | tuple)
        valid = valid and all(is_integer(w) and w >= 1 for w in value)
        problem = f"`{name}` must be a tuple of widths, integers of at least 1."
        require(valid, problem, **{name: value})


def in_class_order(values: Any, name: str) -> Any:
    """Values of classes by their ids, where a dict or a Series has such keys.

    Raises:
        ValueError: if the keys are not 0, 1, ..., in any order.
    """
    keys = getattr(values, "index", None)
    keys = values.keys() if isinstance(values, Mapping) else keys
    if keys is None or callable(keys):  # a list has a method of this name
        return values
    if not isinstance(values, Mapping):
        values = dict(zip(keys, np.asarray(values), strict=True))
    if not all(k in values for k in range(len(values))):
        raise ValueError(
            f"The keys of `{name}` must be the class ids 0, 1, ... Received: "
            f"{list(values)[:10]}."
        )
    return np.array([values[k] for k in range(len(values))])


def class_names_of(
    class_names: Any, num_classes: int | None = None
) -> list[str] | None:
    """Names of classes as a list in the order of their ids.

    Args:
        class_names: `None`, a list, an array, or a dict or Series by id.
        num_classes: how many there must be, where that is known.

    Raises:
        ValueError: for names without an order, equal names, or others than one
            for each class.
    """
    if class_names is None:
        return None
    names = in_class_order(class_names, "class_names")
    ordered = isinstance(names, Collection) and not isinstance(
        names, str | bytes | Set
    )
    names = list(names) if ordered else []
    if not names or not all(
        isinstance(name, str | numbers.Number | np.generic) for name in names
    ):
        raise ValueError(
            "`class_names` must be a list of names, in the order of the class "
            f"ids. Received: class_names={class_names!r}."
        )
    names = [str(name) for name in names]
    twice = [name for name, number in Counter(names).items() if number > 1]
    if twice:
        raise ValueError(
            "`class_names` must differ, to tell the classes apart. Received: "
            f"{twice[0]!r} for {names.count(twice[0])} classes."
        )
    if num_classes not in (None, len(names)):
        raise ValueError(
            "`class_names` must have a name for each class. Received: "
            f"{len(names)} names for {num_classes} classes."
        )
    return names


@contextlib.contextmanager
def errors_named(name: object) -> Iterator[None]:
    """A `ValueError` says of which of several things it is, if it has a name.

    Args:
        name: of a model, a file or a label; empty where there is one alone.
    """
    try:
        yield
    except ValueError as error:
        if not name:
            raise
        raise ValueError(f"{name}: {error}") from None
