"""Warnings that point at the line of the user."""

import os
import sys
import warnings
from collections.abc import Iterable

import keras

# Folders of this package and of Keras, whose frames a user did not write, with
# the names that files have in these frames: not normalized.
INSIDE = tuple(
    os.path.join(os.path.dirname(file), "")
    for file in (__file__, keras.__file__)
    if file
)


class FewSamplesWarning(UserWarning):
    """Calibration samples leave open which temperature is right."""


def warn(message: str | Warning, category: type[Warning] = UserWarning) -> None:
    """`warnings.warn`, as if from the first line outside of these folders.

    Python shows a warning of a line once. If all came from a line in here, a
    second model would get none.

    Args:
        message: text, or a warning.
        category: class of the warning.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(INSIDE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def warn_again(caught: Iterable[warnings.WarningMessage]) -> None:
    """Warn of what `catch_warnings` has recorded, from the same lines."""
    for each in caught:
        warnings.warn_explicit(
            each.message, each.category, each.filename, each.lineno
        )
