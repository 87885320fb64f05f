"""Rings in shared memory: frames of one rank to another of its node, without a system call.

Each ordered pair of ranks that has exchanged some messages gets one ring, which the sender makes and passes once over
the Unix socket. It has one writer and one reader. Frames of a pair use the ring or the socket, and their common
sequence numbers keep the order: a frame whose turn has not come stays where it is.

    u64 head, written by the sender: bytes written | u64 tail, by the receiver: bytes read | u64 awake, by the receiver
    from DATA_AT: frames, contiguous and at multiples of 8: u64 sequence, u64 context, u32 length of the description,
    u32 length of the body, description, body. A description of no length: the next frame is at the start.

The head is written last, so a sender that is killed leaves no half frame. A receiver that will sleep in epoll sets
awake to 0 and reads the head again; a sender that has written the head reads awake again. Both pass a lock between,
which is a memory barrier, so one of them sees the other's change. A sender that finds 0 uses the socket, whose data
wakes the receiver. That is as quick as before, and a ring needs no file descriptor of its own.

The order of plain stores holds on x86-64 only. On other processors there are no rings, and all frames use sockets.
CPython runs signal handlers at calls and at jumps backwards. So a sequence number and a head (or tail) that are stored
without a call between them change together, also if a handler raises an exception.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import Any

from . import frames
from .envelope import Tag
from .errors import TransportError
from .frames import Frame
from .segments import MappedSegment, Segment

IS_ORDERED = os.uname().machine in ("x86_64", "AMD64")
"""Whether other processors see this processor's stores in the order of the program."""
RING_BYTES = 512 << 10
"""Size of the frames in a ring: a power of two, with room for a largest frame beside one that is being read."""
RING_BODY_BYTES = 256 << 10
"""Limit of a body in a ring. Larger ones are in segments, which need an answer through the socket."""
MOST_RINGS = 16
"""Limit of rings that a rank makes, so of 8 MiB of memory. Messages to further ranks use sockets."""
SELDOM = 63
"""Mask of a frame's number: each 64th frame of a ring takes the general path, which also looks into the sockets."""
RING_MESSAGES = 8
"""Number of messages to a rank after which there is a ring, so that a run of many ranks starts without."""
HEAD, TAIL, AWAKE = 0, 8, 9
"""Places of 8 bytes. The sender's is in another cache line than the receiver's."""
DATA_AT = 128
FRAME = struct.Struct("<QQII")
FRAME_BYTES = FRAME.size
SEGMENT_BYTES = RING_BYTES + 4096
MASK = RING_BYTES - 1
_JOINED_BYTES = 2048
"""Bodies up to this size are copied twice, which takes less time than a further statement."""
_PLAIN = 1
"""In place of the sequence number of a description: a message in one frame."""
_MOST_KNOWN = 1024
_pack, _pack_into, _unpack_from = FRAME.pack, FRAME.pack_into, FRAME.unpack_from


class RingWriter:
    """The sender's end."""

    __slots__ = ("_map", "_read", "descriptions", "segment", "words")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.words = segment.memory[:DATA_AT].cast("Q")
        self._map = segment.map
        self._read = 0
        """The tail when it was read last."""
        self.descriptions: dict[tuple[Tag, int, bytes], bytes] = {}
        """Descriptions by tag, form and meta of messages in one frame."""

    def put(self, sequence: int, context: int, description: bytes, buffers: Sequence[Any], size: int) -> int:
        """Write a frame, which the receiver does not see yet. Return the head that shows it; 0: use the socket.

        `buffers` are contiguous bytes, `size` in all.
        """
        words = self.words
        if not words[AWAKE]:
            return 0
        head = words[HEAD]
        place = head & MASK
        length = len(description)
        total = (FRAME_BYTES + length + size + 7) & -8
        skipped = 0
        if place + total > RING_BYTES:
            skipped = RING_BYTES - place
        end: int = head + skipped + total
        if end - self._read > RING_BYTES:
            self._read = words[TAIL]
            if end - self._read > RING_BYTES:
                return 0
        at = DATA_AT + place
        if skipped:
            _pack_into(self._map, at, 0, 0, 0, 0)
            at = DATA_AT
        if size <= _JOINED_BYTES:
            self._map[at : at + FRAME_BYTES + length + size] = b"".join(
                (_pack(sequence, context, length, size), description, *buffers)
            )
            return end
        body_at = at + FRAME_BYTES + length
        self._map[at:body_at] = _pack(sequence, context, length, size) + description
        for buffer in buffers:
            after = body_at + memoryview(buffer).nbytes
            self._map[body_at:after] = buffer
            body_at = after
        return end

    def describe(self, tag: Tag, form: int, meta: bytes) -> bytes:
        """Return the description of a message in one frame."""
        key = (tag, form, meta)
        found = self.descriptions.get(key)
        if found is None:
            if len(self.descriptions) >= _MOST_KNOWN:
                self.descriptions.clear()
            found = frames.pack(frames.DATA, _PLAIN, form=form, tag=frames.tag_to_bytes(tag), meta=meta)
            self.descriptions[key] = found
        return found


class RingReader:
    """The receiver's end."""

    __slots__ = ("_mapped", "known", "map", "view", "words")

    def __init__(self, mapped: MappedSegment) -> None:
        """Raises TransportError if the memory is too small for a ring."""
        if mapped.size < SEGMENT_BYTES:
            raise TransportError(f"a ring of {mapped.size} bytes")
        self._mapped = mapped
        self.view = mapped.memory
        self.map = mapped.map
        self.words = mapped.memory[:DATA_AT].cast("Q")
        self.known: dict[bytes, tuple[Tag, int, bytes]] = {}
        """Tag, form and meta by description, of messages in one frame."""

    @property
    def is_empty(self) -> bool:
        """Whether the receiver has read all frames."""
        words = self.words
        return bool(words[HEAD] == words[TAIL])

    def first(self) -> tuple[int, int, bytes, int, int, int] | None:
        """Return the first frame; None: there is none.

        It is sequence, context, description, position and size of the body, and the tail after it. Raises
        TransportError for a frame that reaches beyond the ring.
        """
        words = self.words
        tail = words[TAIL]
        if words[HEAD] == tail:
            return None
        place = tail & MASK
        sequence, context, length, size = _unpack_from(self.map, DATA_AT + place)
        if not length:
            tail += RING_BYTES - place
            place = 0
            sequence, context, length, size = _unpack_from(self.map, DATA_AT)
        described_at = DATA_AT + place + FRAME_BYTES
        at = described_at + length
        if at + size > DATA_AT + RING_BYTES:
            raise TransportError(f"a frame of {length} and {size} bytes in a ring at {place}")
        after = tail + ((FRAME_BYTES + length + size + 7) & -8)
        return sequence, context, self.map[described_at:at], at, size, after

    def body(self, at: int, size: int) -> memoryview:
        """Return a copy of a body, writable."""
        return memoryview(bytearray(self.view[at : at + size]))

    def plain(self, description: bytes) -> tuple[Tag, int, bytes] | None:
        """Return tag, form and meta of a message in one frame; None: it is another frame. Raises TransportError."""
        found = self.known.get(description)
        if found is None:
            frame, tag, meta = parse(description)
            if frame.kind != frames.DATA or frame.sequence != _PLAIN:
                return None
            if len(self.known) >= _MOST_KNOWN:
                self.known.clear()
            found = self.known[description] = (frames.tag_of_bytes(tag), frame.form, meta)
        return found


def parse(description: bytes) -> tuple[Frame, bytes, bytes]:
    """Return header, tag and meta of a description. Raises TransportError if it is invalid."""
    if len(description) < frames.HEADER.size:
        raise TransportError(f"a description of {len(description)} bytes")
    frame = frames.unpack(description)
    meta_at = frames.HEADER.size + frame.tag_bytes
    if meta_at + frame.meta_bytes != len(description):
        raise TransportError(f"a description of {len(description)} bytes for a tag and meta of other lengths")
    return frame, description[frames.HEADER.size : meta_at], description[meta_at:]
