"""Dmap: a map that can also be read as pPython's dictionary."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Sequence, ValuesView
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..rules.maps import Map


class Dmap(Map):
    """Map with pPython's arguments and keys.

    `map["dim" | "grid_spec" | "grid" | "dist_spec" | "proc_list" | "overlap"]` are read-only.
    """

    name = "grid_map_class"

    def __init__(
        self,
        grid_spec: Sequence[int],
        dist_spec: Any = None,
        proc_list: Sequence[int] | None = None,
        overlap: Sequence[int] | None = None,
        order: str = "C",
    ) -> None:
        """Raises UsageError if the arguments do not match."""
        super().__init__(grid_spec, dist_spec, proc_list, overlap, order)
        self._spec: dict[str, Any] = {
            "dim": len(self.grid),
            "grid_spec": list(self.grid),
            "proc_list": np.array(self.ranks),
            "dist_spec": {axis: _as_dictionary(*dist) for axis, dist in enumerate(self.dist)},
            "overlap": None if overlap is None else list(self.overlap),
            "grid": self.placed,
        }

    @property
    def shape(self) -> list[int]:
        """Number of processes along each dimension."""
        return list(self.grid)

    @property
    def placed(self) -> NDArray[np.int64]:
        """The ranks as an array of the grid's shape."""
        return np.array(self.ranks, dtype=np.int64).reshape(self.grid, order="C" if self.order == "C" else "F")

    def __getattr__(self, name: str) -> Any:
        """Return a value of the dictionary. `grid` and `overlap` are attributes of Map."""
        if name in ("dim", "grid_spec", "dist_spec", "proc_list"):
            return self._spec[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getitem__(self, key: str) -> Any:
        return self._spec[key]

    def __contains__(self, key: object) -> bool:
        return key in self._spec

    def __iter__(self) -> Iterator[str]:
        return iter(self._spec)

    def __len__(self) -> int:
        return len(self._spec)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value of the dictionary, or `default` if there is none."""
        return self._spec.get(key, default)

    def keys(self) -> KeysView[str]:
        """Return the names of the dictionary."""
        return self._spec.keys()

    def values(self) -> ValuesView[Any]:
        """Return the values of the dictionary."""
        return self._spec.values()

    def items(self) -> ItemsView[str, Any]:
        """Return the names and values of the dictionary."""
        return self._spec.items()

    def copy(self) -> Dmap:
        """Return a new map that is equal."""
        return Dmap(self.grid, self["dist_spec"], self.ranks, self["overlap"], self.order)

    def show(self) -> None:
        """Print grid, overlap and distributions."""
        _print(
            "  Map object",
            f"      Dimension:  {self['dim']}",
            f"      Grid specification: {self['grid_spec']}",
            f"      Grid: {self['grid']}",
            f"      Overlap: {self['overlap']}",
            "      Distribution: ",
            *(f"         Dim {axis}: {dist['dist']}" for axis, dist in self["dist_spec"].items()),
        )


def as_dmap(map: Map) -> Dmap:
    """Return the map as a Dmap."""
    if isinstance(map, Dmap):
        return map
    overlap = map.overlap if any(map.overlap) else None
    dist = {axis: _as_dictionary(*one) for axis, one in enumerate(map.dist)}
    return Dmap(map.grid, dist, map.ranks, overlap, map.order)


def inmap(m: Map, r: int) -> bool:
    """Return whether a rank has a part of the arrays of a map."""
    return m.coordinates(int(r)) is not None


def _as_dictionary(kind: str, block: int) -> dict[str, Any]:
    return {"dist": kind, "b_size": block} if kind == "bc" else {"dist": kind}


def _print(*lines: str) -> None:
    import sys

    sys.stdout.write("\n".join(lines) + "\n")
