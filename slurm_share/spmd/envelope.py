"""Description of a message: its tag, form and size."""

from __future__ import annotations

from typing import NamedTuple

Tag = int | str
NOTHING = object()
"""In place of a message that did not come on the straight path: the general path receives it."""
RAW, ARRAY, PICKLE5 = 0, 1, 2
"""Forms of a body: bytes; an array with dtype and shape in the meta; pickle protocol 5, followed by its buffers."""

SYNCHRONOUS = 0x20
"""Added to the form of a message whose sender waits until a receive has got it."""


class Envelope(NamedTuple):
    """Description of a message, without its body."""

    source: int
    context: int
    tag: Tag
    form: int
    size: int
    """Size of the body in bytes."""
    meta: bytes = b""
