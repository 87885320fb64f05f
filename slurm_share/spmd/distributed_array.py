"""Interface of distributed arrays, for modules that `dmat` imports."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .comm import Comm
from .rules.maps import Map


class Distributed(Protocol):
    """The attributes of `dmat.Dmat` that other modules use."""

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
