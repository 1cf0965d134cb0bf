"""What a model with memory tells its losses about the batch."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator

from keras_calib._typing import Tensor


@dataclasses.dataclass
class BatchHistory:
    """What a model with memory knows about the samples of one batch.

    Attributes:
        correct: how often each sample was right, before this step, `(n,)`;
            `None` for validation data.
        seen: how often it was seen, `(n,)`.
        lowest: the smallest `correct` in the whole data set, a scalar.
        parts: filled by the loss: its parts as scalars, for the logs.
    """

    correct: Tensor = None
    seen: Tensor = None
    lowest: Tensor = None
    parts: dict = dataclasses.field(default_factory=dict)


# The history of the batch that is being traced: the model sets it around its
# losses, so that any loss in it, also a nested one, finds it.
_current: contextvars.ContextVar[BatchHistory | None] = contextvars.ContextVar(
    "batch_history", default=None
)


@contextlib.contextmanager
def batch_history(history: BatchHistory) -> Iterator[BatchHistory]:
    """Let losses inside the block see the history of this batch."""
    token = _current.set(history)
    try:
        yield history
    finally:
        _current.reset(token)


def current_history() -> BatchHistory | None:
    """The history of this batch; `None` outside of `batch_history`."""
    return _current.get()
