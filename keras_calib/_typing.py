"""Types of the public signatures."""

from typing import TYPE_CHECKING
from typing import Any
from typing import TypeAlias

if TYPE_CHECKING:
    from numpy.typing import ArrayLike as ArrayLike
else:

    class ArrayLike:
        """Stands for NumPy's union, which `help` would write out."""

    ArrayLike.__module__ = "numpy.typing"

Tensor: TypeAlias = Any
"""A tensor of the backend, or a NumPy array."""
Logs: TypeAlias = dict[str, Any] | None
"""The logs that Keras passes to callbacks."""
