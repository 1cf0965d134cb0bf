"""Functions with a kink, with the same gradient at the kink everywhere.

Backends disagree there: the slope of `abs` at 0 is 1 on JAX and 0 elsewhere,
that of a root is infinite. At a kink these have slope 0.
"""

from keras import ops

# A root below it is called zero: its slope would only magnify rounding.
FLOOR = 1e-6
# The least power of it that is far from what float32 cannot hold.
LEAST = 1e-30


def absolute(x):
    """`|x|`, with slope 0 at 0."""
    return x * ops.stop_gradient(ops.sign(x))


def root(x, power=2.0):
    """`x^(1 / power)` of `x >= 0`, with value and slope 0 near 0."""
    positive = x > max(FLOOR ** max(power, 2.0), LEAST)
    # The inner `where` keeps an infinite slope out of the other's gradient.
    x = ops.where(positive, x, 1.0)
    x = ops.sqrt(x) if power == 2 else ops.power(x, 1.0 / power)
    return ops.where(positive, x, 0.0)
