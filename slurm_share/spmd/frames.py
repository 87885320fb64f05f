"""Frames between ranks: 40 bytes of header, then tag, meta and body.

    u8 kind | u8 form | u16 tag bytes | u32 meta bytes | u64 body bytes | u64 sequence | u64 context | u64 segment id

All numbers are little-endian. A rank sends on the connections that it made and reads on those that it accepted; only
FREE goes the other way.

    HELLO    the first frame on a Unix socket: form is the version, context the sender's rank, meta the run's name
    DATA     a message; its body follows
    SEGMENT  a message whose body lies in a segment; body bytes counts those in the segment
    PART     the next piece of a long body, in a segment; a DATA or SEGMENT frame with the rest follows
    WINDOW   shared memory that accompanies the next message; body bytes is its size
    DROP     the sender has closed a segment
    FREE     the receiver has copied the contents of a segment
    BYE      the last frame of the sender
    RING     a ring of the sender (`rings`); body bytes is the size of its memory
    WAKE     nothing: the receiver slept while a frame was put into the ring

FD in the kind: the file descriptor of the segment accompanies the frame. It is passed once per segment and peer.
CHECKED in the form: the meta ends with a CRC-32 of the body (LLSUB_CHECK=1). The sequence counts the frames of a
pair of ranks from 0, those in its ring too. This module does no I/O.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple

from .envelope import PICKLE5, SYNCHRONOUS, Tag
from .errors import TransportError
from .names import META_BYTES, TAG_BYTES

HELLO, DATA, SEGMENT, PART, WINDOW, DROP, FREE, BYE, RING, WAKE = range(1, 11)
FD = 0x80
CHECKED = 0x40
CHECKSUM_BYTES = 4
HEADER = struct.Struct("<BBHIQQQQ")
BODY_BYTES = 1 << 47
"""Limit of a body: the address space of a process."""
_NUMBER = struct.Struct("<cq")


class Frame(NamedTuple):
    """A header whose kind and lengths are valid."""

    kind: int
    form: int
    tag_bytes: int
    meta_bytes: int
    body_bytes: int
    sequence: int
    context: int
    segment: int
    has_fd: bool


def pack(
    kind: int,
    sequence: int,
    *,
    form: int = 0,
    tag: bytes = b"",
    meta: bytes = b"",
    body_bytes: int = 0,
    context: int = 0,
    segment: int = 0,
) -> bytes:
    """Return header, tag and meta of a frame."""
    return HEADER.pack(kind, form, len(tag), len(meta), body_bytes, sequence, context, segment) + tag + meta


def unpack(data: bytes | bytearray | memoryview, at: int = 0) -> Frame:
    """Return the header at offset `at` of `data`. Raises TransportError if it is invalid."""
    kind, form, tag_bytes, meta_bytes, body_bytes, sequence, context, segment = HEADER.unpack_from(data, at)
    has_fd, kind = bool(kind & FD), kind & ~FD
    if not HELLO <= kind <= WAKE or (form & ~(CHECKED | SYNCHRONOUS) > PICKLE5 and kind != HELLO):
        raise TransportError(f"a frame of unknown kind {kind} or form {form}")
    if tag_bytes > TAG_BYTES + 1 or meta_bytes > META_BYTES or body_bytes > BODY_BYTES:
        raise TransportError(f"a frame with impossible lengths: tag {tag_bytes}, meta {meta_bytes}, body {body_bytes}")
    return Frame(kind, form, tag_bytes, meta_bytes, body_bytes, sequence, context, segment, has_fd)


def tag_to_bytes(tag: Tag) -> bytes:
    """Return a tag, whose length or size `Comm` has checked, as bytes."""
    return b"s" + tag.encode("utf-8", "surrogatepass") if isinstance(tag, str) else _NUMBER.pack(b"i", tag)


def tag_of_bytes(data: bytes) -> Tag:
    """Return the tag that `tag_to_bytes` encoded. Raises TransportError if the bytes are no tag."""
    try:
        if data[:1] == b"s":
            return data[1:].decode("utf-8", "surrogatepass")
        kind, number = _NUMBER.unpack(data)
        if kind == b"i":
            return int(number)
    except (struct.error, UnicodeDecodeError):
        pass
    raise TransportError(f"a tag that cannot be read: {data[:40]!r}")


def checksum(parts: Iterable[memoryview]) -> bytes:
    """Return the CRC-32 of a body."""
    value = 0
    for part in parts:
        value = zlib.crc32(part, value)
    return value.to_bytes(CHECKSUM_BYTES, "little")
