"""Arrays that are spread over the ranks of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .comm import Comm
from .rules.maps import Indices, Map


class Dmat:
    """An array of which every rank has the part that its map says."""

    def __init__(self, shape: Sequence[int], map: Map, local: NDArray[Any], comm: Comm | None = None) -> None:
        """`comm`: None is COMM_WORLD. Raises UsageError where `local` has not the shape that the map gives."""
        raise NotImplementedError

    comm: Comm
    shape: tuple[int, ...]
    map: Map
    dtype: np.dtype[Any]

    @property
    def local(self) -> NDArray[Any]:
        """The part of this rank with its overlap: the array itself, not a copy."""
        raise NotImplementedError

    @property
    def owned(self) -> NDArray[Any]:
        """A view of `local` without the overlap."""
        raise NotImplementedError

    def indices(self, axis: int) -> Indices:
        """Return the global indices of what is stored here along an axis."""
        raise NotImplementedError

    def redistribute(self, map: Map) -> Dmat:
        """Return the same array with another map; collective."""
        raise NotImplementedError

    def gather(self, root: int = 0) -> NDArray[Any] | None:
        """Return the whole array on `root`, None elsewhere; collective."""
        raise NotImplementedError


def zeros(*shape: Any, map: Any = None, dtype: DTypeLike = np.float64, order: str = "C", comm: Any = None) -> Any:
    """Return a Dmat of zeros; without a map a NumPy array."""
    raise NotImplementedError


ones = rand = empty = zeros


def from_local(local: NDArray[Any], map: Map, shape: Sequence[int], comm: Comm | None = None) -> Dmat:
    """Return a Dmat of the parts that the ranks have already."""
    raise NotImplementedError
