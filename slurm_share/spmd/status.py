"""Description of a received message, with mpi4py's names."""

from __future__ import annotations

from typing import Any

import numpy as np

from .constants import ANY_SOURCE
from .envelope import Envelope, Tag


class Status:
    """Description of a message: `source`, `tag`, and `count`, its size in bytes."""

    def __init__(self) -> None:
        self.source: int = ANY_SOURCE
        """Rank that sent the message."""
        self.tag: Tag | None = None
        """Tag of the message."""
        self.count = 0
        """Size of the message in bytes."""

    def take(self, envelope: Envelope) -> None:
        """Copy the description from an envelope."""
        self.source, self.tag, self.count = envelope.source, envelope.tag, envelope.size

    def Get_source(self) -> int:
        """Return the rank that sent the message."""
        return self.source

    def Get_tag(self) -> Tag | None:
        """Return the tag of the message."""
        return self.tag

    def Get_count(self, dtype: Any = None) -> int:
        """Return the size of the message in elements of that type; None: in bytes."""
        return self.count if dtype is None else self.count // np.dtype(dtype).itemsize
