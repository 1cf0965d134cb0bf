"""Searches on an interval: a zero, or the minimum of one valley."""

import math


def false_position(function, left, right, tolerance=1e-9):
    """Where a function turns from negative to positive, by `regula falsi`.

    The Illinois rule halves the value of an end that stays, which makes the
    false position converge faster than linearly.

    Returns:
        The zero, or `None` without a change of sign.
    """
    at_left, at_right = function(left), function(right)
    if not at_left < 0 < at_right:
        return None
    side = 0
    for _ in range(60):
        middle = (left * at_right - right * at_left) / (at_right - at_left)
        value = function(middle)
        if abs(value) < 1e-15:
            return middle
        if value < 0:
            step, left, at_left = middle - left, middle, value
            at_right = at_right / 2 if side < 0 else at_right
            side = -1
        else:
            step, right, at_right = right - middle, middle, value
            at_left = at_left / 2 if side > 0 else at_left
            side = 1
        if step < tolerance:
            return middle
    return middle


def golden_section(function, left, right, tolerance=1e-8):
    """The minimizer of a function with one valley in an interval."""
    ratio = (math.sqrt(5) - 1) / 2
    c, d = right - ratio * (right - left), left + ratio * (right - left)
    at_c, at_d = function(c), function(d)
    while right - left > tolerance:
        if at_c < at_d:
            right, d, at_d = d, c, at_c
            c = right - ratio * (right - left)
            at_c = function(c)
        else:
            left, c, at_c = c, d, at_d
            d = left + ratio * (right - left)
            at_d = function(d)
    return (left + right) / 2
