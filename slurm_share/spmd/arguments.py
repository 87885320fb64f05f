"""Checks of the arguments of calls on a communicator."""

from __future__ import annotations

import math
import operator
from typing import Any

from .constants import ANY_TAG
from .envelope import Tag
from .errors import UsageError
from .names import TAG_BYTES


def whole(value: Any) -> int | None:
    """Return an integer of any type; None: the value is none, or a bool."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def checked_status(status: Any, call: str) -> None:
    """Raise UsageError unless it is None or a Status, so that no message is received without a place for it."""
    if status is not None and not hasattr(status, "take"):
        raise UsageError(f"{call}: a status is an MPI.Status or None, not {status!r}")


def seconds(timeout_s: Any) -> float | None:
    """Return a timeout in seconds; None: without a limit. Raises UsageError."""
    try:
        if timeout_s is None or not math.isnan(timeout_s):
            return None if timeout_s is None else float(timeout_s)
    except TypeError:
        pass
    raise UsageError(f"timeout_s is a number of seconds or None, not {timeout_s!r}")


def is_any_tag(tag: Any) -> bool:
    """Return whether a receive takes messages of every tag."""
    return tag is None or (not isinstance(tag, str) and whole(tag) == ANY_TAG)


def tag_of(tag: Any) -> Tag:
    """Return the tag of a message. Raises UsageError."""
    if isinstance(tag, str):
        length = len(tag.encode("utf-8", "surrogatepass"))  # undecodable file names have surrogates
        if length > TAG_BYTES:
            raise UsageError(f"the tag {tag[:40]!r}... has {length} bytes; tags have at most {TAG_BYTES}")
        return str(tag)
    number = whole(tag)
    if number is None or not -(1 << 63) <= number < 1 << 63:
        raise UsageError(f"{tag!r} is no tag: tags are strings, or integers of 64 bits")
    if number == ANY_TAG:
        raise UsageError("a message needs a tag of its own: -1 is ANY_TAG, which only a receive can name")
    return number
