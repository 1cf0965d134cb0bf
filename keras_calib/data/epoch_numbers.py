"""Numbers of epochs that go on where the last call of `fit` ended."""

from typing import Any


class EpochNumbers:
    """Counts the epochs of a model over several calls of `fit`.

    Keras begins each call with 0, or with `initial_epoch`. What depends on the
    number of an epoch (an order, a period) would begin again, too, and a
    period of two epochs would never end where each call has one.

    Attributes:
        completed: int, number of epochs that were completed.
        now: int, number of the epoch that began last.
    """

    def __init__(self) -> None:
        self.completed = 0
        self.now = 0
        self._model: Any = None

    def begin(self, epoch: int, model: Any = None) -> int:
        """Number of an epoch that begins.

        Args:
            epoch: int, its number in this call of `fit`.
            model: the model that is trained; another one begins with `epoch`.
        """
        if model is not self._model:
            self._model = model
            self.completed = 0
        self.now = max(epoch, self.completed)
        return self.now

    def end(self) -> int:
        """Complete the epoch that began last; the number of completed ones."""
        self.completed = self.now + 1
        return self.completed
