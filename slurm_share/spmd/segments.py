"""Shared memory between the ranks of a node: segments made by memfd_create, which end with the processes.

The sender owns a segment: it makes it, writes it, passes its file descriptor once to each peer, and reuses it after the
peer has copied the contents. So a body is copied twice: by the send into a segment, and from there by the receive, into
the buffer of `Recv` or the memory of the new object. One copy would need a send that waits for its receiver, or the
right to read another process's memory. A new segment is slower than the socket, because the kernel must clear its
pages. So messages use only segments whose pages have been touched.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from . import memory
from .errors import NoRoom, TransportError
from .names import SEGMENT_IDLE, SEGMENT_MIN

MOST_SEGMENTS = 128
"""Limit of segments that one rank has for messages; each needs a file descriptor."""
_RESERVE = 4
"""A segment for the next message is made only if this many times its size is available."""
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_Bytes = NDArray[np.uint8]


def class_of(size: int) -> int:
    """Return the size of the segments for messages of `size` bytes: a power of two."""
    return max(SEGMENT_MIN, 1 << (size - 1).bit_length()) if size > 1 else SEGMENT_MIN


class Segment:
    """One memfd of the sender, mapped."""

    def __init__(self, number: int, size: int) -> None:
        """Make the segment and touch its pages. Raises NoRoom."""
        self.number, self.size = number, size
        self.busy = True
        self.lent_to: int | None = None
        """Rank that has to free it."""
        self.passed: set[int] = set()
        """Ranks that have its file descriptor."""
        self.fd = -1
        if size > memory.available_bytes():  # the kernel would not refuse it, but kill a process
            raise NoRoom(f"no shared memory of {size} bytes: only {memory.available_bytes()} are available")
        try:
            self.fd = os.memfd_create("slurm-share", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self.fd, size)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
            os.posix_fallocate(self.fd, 0, size)
            self.map = mmap.mmap(self.fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except (OSError, ValueError) as error:
            if self.fd >= 0:
                os.close(self.fd)
            raise NoRoom(f"no shared memory of {size} bytes: {error}") from error
        self.memory = memoryview(self.map)
        self._bytes: _Bytes = np.frombuffer(self.map, np.uint8)

    def write(self, buffers: Sequence[memoryview]) -> None:
        """Copy the buffers into the segment one after the other."""
        copy(self._bytes, buffers)

    def close(self) -> None:
        """Close the file descriptor; the mapping ends with its last view."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class SharedWindow:
    """Segment that this rank shares with others of its node."""

    def __init__(
        self, segment: Segment, give_back: Callable[[Segment], None], leave: Callable[[Segment], None]
    ) -> None:
        """`leave` gets the segment of a window that ends without a release; peers may still read it."""
        self.segment: Segment | None = segment
        self.memory = segment.memory
        self._give_back, self._leave = give_back, leave

    def __del__(self) -> None:
        if self.segment is not None:
            self._leave(self.segment)

    def release(self) -> None:
        """Give the segment back. The caller knows that no rank uses it any more."""
        segment, self.segment = self.segment, None
        if segment is not None:
            self._give_back(segment)


class Pool:
    """The segments of one rank."""

    def __init__(self) -> None:
        self._numbers = 0
        self._all: dict[int, Segment] = {}
        self._free: dict[int, list[Segment]] = {}
        """By size; the last one was used most recently, so its pages are in the cache."""
        self.unused: deque[Segment] = deque()
        """Segments of windows that ended without a release, such as those of a communicator of some ranks."""
        self.dropped: list[Segment] = []
        """Closed segments for which DROP must still be sent."""

    @property
    def total_bytes(self) -> int:
        """Total size of all segments in bytes."""
        return sum(segment.size for segment in self._all.values())

    @property
    def busy(self) -> int:
        """Number of segments that peers have not freed."""
        return sum(segment.busy for segment in self._all.values())

    def take(self, size: int) -> Segment | None:
        """Return a free segment for `size` bytes; None: there is none."""
        free = self._free.get(class_of(size))
        if not free:
            return None
        segment = free.pop()
        segment.busy = True
        return segment

    def grow(self, size: int) -> None:
        """Make a free segment for the next message of that size, if the limits allow it."""
        wanted = class_of(size)
        if not self._make_room(wanted) or _RESERVE * wanted > memory.available_bytes():
            return
        try:
            segment = self._make(wanted)
        except NoRoom:
            return  # messages go through the socket
        self.give_back(segment)

    def window(self, size: int) -> Segment:
        """Return a segment for a window, outside the limits for messages. Raises NoRoom."""
        return self.take(size) or self._make(class_of(size))

    def drop_unused(self) -> None:
        """Close the segments of windows that ended without a release. Peers keep what they still read."""
        while self.unused:
            segment = self.unused.popleft()
            if segment.number in self._all:
                self._drop(segment)

    def freed(self, number: int) -> None:
        """Free a segment that a peer has copied. Raises TransportError if the segment is not in use."""
        segment = self._all.get(number)
        if segment is None or not segment.busy:
            raise TransportError(f"segment {number} was freed while it was not in use")
        self.give_back(segment)

    def give_back(self, segment: Segment) -> None:
        """Make a segment free, or close it if too many bytes would be free."""
        segment.busy, segment.lent_to = False, None
        if sum(free.size for frees in self._free.values() for free in frees) + segment.size > SEGMENT_IDLE:
            self._drop(segment)
        else:
            self._free.setdefault(segment.size, []).append(segment)

    def abandon(self, rank: int) -> None:
        """Close the segments that a rank has not freed and never will."""
        for segment in [one for one in self._all.values() if one.busy and one.lent_to == rank]:
            segment.passed.discard(rank)
            self._drop(segment)

    def close(self) -> None:
        """Close all file descriptors. Peers keep their mappings."""
        for segment in self._all.values():
            segment.close()
        self._all.clear()
        self._free.clear()

    def _make_room(self, wanted: int) -> bool:
        """Drop free segments of other sizes until the limits allow one of `wanted` bytes. Return whether they do."""
        while self.total_bytes + wanted > SEGMENT_IDLE or len(self._all) >= MOST_SEGMENTS:
            others = [frees for size, frees in self._free.items() if size != wanted and frees]
            if not others:
                return False
            self._drop(others[0].pop(0))
        return True

    def _make(self, size: int) -> Segment:
        self._numbers += 1
        segment = Segment(self._numbers, size)
        self._all[segment.number] = segment
        return segment

    def _drop(self, segment: Segment) -> None:
        del self._all[segment.number]
        segment.close()
        if segment.passed:
            self.dropped.append(segment)


class MappedSegment:
    """Segment of a peer, mapped into this process."""

    def __init__(self, fd: int, size: int) -> None:
        """Map and close the file descriptor. Raises TransportError if it is no sealed segment of `size` bytes."""
        try:
            if os.fstat(fd).st_size < size or not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise TransportError(f"a segment that is smaller than {size} bytes, or could become so")
            self.size = os.fstat(fd).st_size
            self.map = mmap.mmap(fd, self.size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except (OSError, ValueError) as error:
            raise TransportError(f"a segment that cannot be mapped: {error}") from error
        finally:
            os.close(fd)
        self.memory = memoryview(self.map)


def copy(target: _Bytes, sources: Iterable[memoryview]) -> None:
    """Copy the sources into the target one after the other; for large copies, NumPy releases the GIL."""
    at = 0
    for source in sources:
        place = target[at : at + source.nbytes]
        if source.nbytes < 1 << 16 and source.format == "B":
            place.data[:] = source
        else:
            place[:] = np.frombuffer(source, np.uint8)
        at += source.nbytes
