"""Classes of a table: of its columns of scores, and of its labels."""

from collections.abc import Collection
from collections.abc import Sequence

import numpy as np

# Words for the classes 0 and 1, in lower case.
WORDS = {
    "false": 0,
    "no": 0,
    "negative": 0,
    "true": 1,
    "yes": 1,
    "positive": 1,
}
FALSE_AND_TRUE = ["false", "true"]
# Labels that an error shows.
MANY = 10


def check_columns(classes: dict[str, str]) -> None:
    """Refuse columns of scores that are not one for each class.

    Args:
        classes: from names of columns to those of their classes.

    Raises:
        ValueError: if a class is missing, or there twice.
    """
    names = list(classes.values())
    if len(names) > 1 and "" in names:
        column = list(classes)[names.index("")]
        raise ValueError(f"`{column}`, beside others, is of no class")
    seen = dict(zip(names, classes, strict=True))
    for column, name in classes.items():
        if seen[name] != column:
            raise ValueError(
                f"`{column}` and `{seen[name]}` mean the same: keep one"
            )
    if len(names) == 1 and _is_not_class_1(names[0]):
        [column] = classes
        raise ValueError(
            f"`{column}` alone is of class {names[0]}, and one column is the "
            "probability (or logit) of class 1: name it so, or add the other"
        )


def _is_not_class_1(name):
    if name.isdecimal():
        return int(name) != 1
    return WORDS.get(name.lower()) == 0


def in_order(
    values: list[np.ndarray], classes: list[str]
) -> tuple[list[np.ndarray], list[str] | None]:
    """Numbered classes by their number, named ones as they come.

    Returns:
        values: a column per class.
        class_names: names in the order of `values`; `None` for numbers.
    """
    if not all(each.isdecimal() for each in classes):
        return values, classes
    order = np.argsort([int(each) for each in classes], kind="stable")
    if [int(classes[k]) for k in order] != list(range(len(classes))):
        raise ValueError(
            f"classes are numbered from 0 without gaps, not {sorted(classes)}"
        )
    return [values[k] for k in order], None


def ids_of(labels: Sequence, class_names: list[str] | None) -> np.ndarray:
    """Class ids of labels that are numbers, names of classes, or true or false.

    Numbers count the columns from 0, except that 0 and 1 are the classes
    `false` and `true` where the columns have these names. Where a label is
    missing, the id is -1, or NaN among numbers.

    Args:
        labels: numbers, texts, truth values or `None`.
        class_names: of the columns; `None` if they are numbered, or one.

    Raises:
        ValueError: if it is not certain which column a label belongs to.
    """
    names = ["" if each is None else str(each).strip() for each in labels]
    given = [name for name in dict.fromkeys(names) if name]
    ids = places_of(given, class_names or FALSE_AND_TRUE)
    if ids is not None and (given or class_names):
        ids[""] = -1
        return np.array([ids[name] for name in names], "int64")
    _check_numbers(given, class_names)
    found = np.array([name or "nan" for name in names], "float64")
    if class_names is not None:
        found = _of_columns(found, given, class_names)
    # Above, a float stands for several whole numbers.
    exact = (np.abs(found) <= 2**53).all()
    whole = exact and (found == np.floor(found)).all()
    return found.astype("int64") if whole else found


def places_of(
    names: Collection[str], classes: Sequence[str]
) -> dict[str, int] | None:
    """The place of each name among the classes.

    Names that differ in case alone are one, unless two classes do.

    Returns:
        A dict with all names, or `None` if one of them is of no class.
    """
    exact = {name: place for place, name in enumerate(classes)}
    if set(names) <= exact.keys():
        return exact
    lower = {name.lower(): place for name, place in exact.items()}
    found = {name: lower.get(name.lower(), -1) for name in names}
    if len(lower) < len(exact) or -1 in found.values():
        return None
    return found


def reads_as_number(text: str) -> bool:
    """Whether a text is a number, NaN included; not `1_0`, as in Python."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _check_numbers(given, class_names):
    """Refuse words that are of no class, or beside numbers."""
    words = [name for name in given if not reads_as_number(name)]
    if not words:
        return
    remedy = "Labels are names of columns, or numbers from 0"
    if class_names is None:
        remedy = "Labels are numbers from 0, or true and false"
    known = class_names or FALSE_AND_TRUE
    for word in words:
        if places_of([word], known) is None:
            raise ValueError(
                f"the label {word!r} is no number and no class of the columns"
                f"{f' {class_names}' if class_names else ''}. Received: labels "
                f"{given[:MANY]}. {remedy}"
            )
    raise ValueError(
        f"some labels are numbers, and others are names. Received: labels "
        f"{given[:MANY]}. {remedy}"
    )


def _of_columns(numbers, given, class_names):
    """Numbers as places of columns that have names."""
    lower = [name.lower() for name in class_names]
    if sorted(lower) == FALSE_AND_TRUE:
        return np.select(
            [numbers == 0, numbers == 1],
            [lower.index("false"), lower.index("true")],
            numbers,
        )
    words = [WORDS[name] for name in lower if name in WORDS]
    # `isdigit` knows superscripts, too.
    digits = any(
        reads_as_number(each) or each.isdigit() for each in class_names
    )
    if words != sorted(words) or digits:
        raise ValueError(
            "labels that are numbers count the columns from 0, and these "
            f"columns may be meant by their names: {class_names}. Received: "
            f"labels {given[:MANY]}. Write the names of the columns instead"
        )
    return numbers
