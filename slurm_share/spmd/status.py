"""Description of a received message, with mpi4py's names."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arguments import whole
from .constants import ANY_SOURCE, ANY_TAG, PROC_NULL, UNDEFINED
from .envelope import Envelope, Tag
from .errors import UsageError


class Status:
    """Description of a message: `source`, `tag`, and `count`, its size in bytes."""

    def __init__(self, status: Status | None = None) -> None:
        self.source: int = ANY_SOURCE
        """Rank that sent the message; PROC_NULL if there was none to receive."""
        self.tag: Tag | None = ANY_TAG
        """Tag of the message."""
        self.count = 0
        """Size of the message in bytes."""
        self.error = 0
        """Always 0: errors are raised."""
        self.cancelled = False
        """Whether the receive was cancelled."""
        if status is not None:
            vars(self).update(vars(status))

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if isinstance(other, Status) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Status: source {self.source}, tag {self.tag!r}, {self.count} bytes>"

    def take(self, envelope: Envelope) -> None:
        """Copy the description from an envelope."""
        self.source, self.tag, self.count = envelope.source, envelope.tag, envelope.size
        self.error, self.cancelled = 0, False

    def clear(self, source: int = ANY_SOURCE, *, cancelled: bool = False) -> None:
        """Describe that there is no message."""
        self.source, self.tag, self.count, self.error, self.cancelled = source, ANY_TAG, 0, 0, cancelled

    def nothing(self) -> None:
        """Describe a receive from PROC_NULL."""
        self.clear(PROC_NULL)

    def Get_source(self) -> int:
        """Return the rank that sent the message."""
        return self.source

    def Set_source(self, source: int) -> None:
        """Set the rank that sent the message."""
        self.source = source

    def Get_tag(self) -> Tag | None:
        """Return the tag of the message."""
        return self.tag

    def Set_tag(self, tag: Tag) -> None:
        """Set the tag of the message."""
        self.tag = tag

    def Get_error(self) -> int:
        """Return `error`."""
        return self.error

    def Set_error(self, error: int) -> None:
        """Set `error`."""
        self.error = error

    def Get_count(self, datatype: Any = None) -> int:
        """Return the number of whole elements of that type; None: of bytes. UNDEFINED: a part of one is left."""
        size = _size_of(datatype)
        if size == 0:
            return 0 if self.count == 0 else UNDEFINED
        return UNDEFINED if self.count % size else self.count // size

    def Get_elements(self, datatype: Any) -> int:
        """Return the number of basic elements of that type; as `Get_count` unless the type is composed."""
        parts = max(int(getattr(datatype, "count", 1) or 1), 1) if hasattr(datatype, "dtype") else 1
        size = _size_of(datatype) // parts
        if size == 0:
            return 0 if self.count == 0 else UNDEFINED
        return UNDEFINED if self.count % size else self.count // size

    def Set_elements(self, datatype: Any, count: int) -> None:
        """Set the size of the message to that of `count` elements."""
        number = whole(count)
        if number is None or number < 0:
            raise UsageError(f"Set_elements: the count is a number from 0 on, not {count!r}")
        self.count = number * _size_of(datatype)

    def Is_cancelled(self) -> bool:
        """Return whether the receive was cancelled."""
        return self.cancelled

    def Set_cancelled(self, flag: bool) -> None:
        """Set whether the receive was cancelled."""
        self.cancelled = bool(flag)


def _size_of(datatype: Any) -> int:
    """Return the bytes of one element; `datatype`: one of MPI's, or what NumPy takes as a dtype; None: bytes."""
    if datatype is None:
        return 1
    if isinstance(datatype, (str, type, np.dtype)):
        return int(np.dtype(datatype).itemsize)
    size = getattr(datatype, "size", None)
    if isinstance(size, int):
        return size
    try:
        return int(np.dtype(datatype).itemsize)
    except TypeError:
        raise UsageError(f"{datatype!r} is no type of elements") from None
