"""Objects to bytes and back: arrays as they lie in memory, everything else as pickle protocol 5 with its buffers.

`meta` of an ARRAY body: dtype and shape; of PICKLE5: the lengths of pickle and buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def encode(value: Any) -> tuple[int, bytes, Sequence[memoryview]]:
    """Return form, meta and buffers (contiguous bytes) of a value. Arrays are not copied where they are contiguous."""
    raise NotImplementedError


def decode(form: int, meta: bytes, body: memoryview) -> Any:
    """Return the value of a body. An array lies in `body` and can be written to."""
    raise NotImplementedError
