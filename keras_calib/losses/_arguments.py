"""One form for every complaint about an argument."""


def require(valid: bool, problem: str, remedy: str, **received: object) -> None:
    """Raise `ValueError(problem, what came in, remedy)` unless `valid`."""
    if not valid:
        found = ", ".join(
            f"{name}={value!r}" for name, value in received.items()
        )
        raise ValueError(f"{problem} Received: {found}. {remedy}")
