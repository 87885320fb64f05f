"""How an array is spread over ranks: for every rank and dimension the indices that it owns and that it stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


class Map:
    """The distribution of an array of any number of dimensions over a grid of ranks."""

    def __init__(
        self,
        grid: Sequence[int],
        dist: Any = "b",
        ranks: Sequence[int] | None = None,
        overlap: Sequence[int] | None = None,
        order: str = "C",
    ) -> None:
        """`grid`: processes along each dimension; `ranks`: as many as their product, in `order` (None: 0, 1, ...).

        `dist`: "b" block, "c" cyclic, ("bc", k) block-cyclic, one for all dimensions or a sequence; pPython's
        dictionaries too. `overlap`: elements of the right neighbour that are stored along each block dimension.
        Raises UsageError where these do not fit together.
        """
        raise NotImplementedError

    grid: tuple[int, ...]
    dist: tuple[tuple[str, int], ...]
    """Per dimension ("b", 0), ("c", 0) or ("bc", k)."""
    ranks: tuple[int, ...]
    overlap: tuple[int, ...]
    order: str

    def coordinates(self, rank: int) -> tuple[int, ...] | None:
        """Return the place of a rank in the grid; None: it has no part of the array."""
        raise NotImplementedError

    def owned(self, shape: Sequence[int], rank: int) -> tuple[Indices, ...]:
        """Return per dimension the global indices that the rank owns, ascending. Empty ones where it has no part."""
        raise NotImplementedError

    def stored(self, shape: Sequence[int], rank: int) -> tuple[Indices, ...]:
        """Return per dimension the global indices that the rank stores: what it owns, and its overlap."""
        raise NotImplementedError

    def owners(self, shape: Sequence[int], axis: int, indices: Indices) -> Indices:
        """Return for each global index along an axis the process (place in the grid along it) that owns it."""
        raise NotImplementedError

    def digest(self) -> bytes:
        """Return 8 bytes that are equal where maps are equal."""
        raise NotImplementedError


def from_ppython(spec: Mapping[str, Any]) -> Map:
    """Return the map of a pPython dictionary."""
    raise NotImplementedError
