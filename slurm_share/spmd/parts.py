"""What a distributed array has, for the modules that `dmat` uses itself."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .comm import Comm
from .rules.maps import Map


class Spread(Protocol):
    """An array of which every rank has a part: `dmat.Dmat`."""

    comm: Comm
    shape: tuple[int, ...]
    map: Map

    @property
    def ndim(self) -> int: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def local(self) -> NDArray[Any]: ...

    @property
    def owned(self) -> NDArray[Any]: ...
