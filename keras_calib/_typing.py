"""Types of the public signatures."""

from typing import Any
from typing import TypeAlias

from numpy.typing import ArrayLike as ArrayLike

Tensor: TypeAlias = Any
"""A tensor of the backend, or a NumPy array."""
Logs: TypeAlias = dict[str, Any] | None
"""The logs that Keras passes to callbacks."""
