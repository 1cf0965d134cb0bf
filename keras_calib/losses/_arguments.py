"""One form for every complaint about an argument."""

from keras_calib._typing import Tensor


def require(valid, problem, remedy, **received) -> Tensor:
    """Raise `ValueError(problem, what came in, remedy)` unless `valid`."""
    if not valid:
        found = ", ".join(
            f"{name}={value!r}" for name, value in received.items()
        )
        raise ValueError(f"{problem} Received: {found}. {remedy}")
