"""Bodies of messages: in memory of the receiver, or in a sender's segment until they are taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import frames
from .envelope import Envelope
from .errors import NoRoom, TransportError, UsageError
from .segments import copy


class Received:
    """Message that has arrived. Its body is in this rank's memory, or in the sender's segments until it is taken."""

    def __init__(
        self,
        envelope: Envelope,
        parts: list[memoryview | SegmentBody],
        window: memoryview | None = None,
        checksum: bytes | None = None,
    ) -> None:
        self.envelope = envelope
        self.arrival = 0
        """Number in the order of arrival at this rank; `transport.Queues` sets it."""
        self.window = window
        """The sender's window, if the message had one: shared memory that both read and write as they agreed."""
        self.member: int | None = None
        """Rank in the run that sent it; None: that is the envelope's source, not a rank of some ranks' communicator."""
        self._checksum = checksum
        self._parts: list[memoryview | SegmentBody] | None = parts
        self._taken: memoryview | None = None

    def take(self) -> memoryview:
        """Return the body as writable bytes that belong to the caller."""
        parts = self._untaken()
        if len(parts) == 1 and isinstance(parts[0], memoryview):
            self._taken = parts[0]
            self._parts = None
            self._check(parts[0])
            return parts[0]
        body = new_bytes(self.envelope.size)
        self.take_into(body)
        return body

    def take_into(self, buffer: memoryview) -> None:
        """Copy the body into `buffer`, contiguous bytes of the same size."""
        parts = self._untaken()
        if buffer.nbytes != self.envelope.size:
            raise UsageError(f"a body of {self.envelope.size} bytes does not fit a buffer of {buffer.nbytes}")
        if buffer.nbytes:
            copy(
                np.frombuffer(buffer, np.uint8), (one.memory if isinstance(one, SegmentBody) else one for one in parts)
            )
        self._taken = buffer
        self._parts = None
        for part in parts:
            if isinstance(part, SegmentBody):
                part.connection.give_back(part)
        self._check(buffer)

    def restore(self) -> None:
        """Make the body whole again after a call that took it and did not give it to the program."""
        if self._parts is None and self._taken is not None:
            self._parts = [memoryview(bytearray(self._taken))]

    def of_run(self) -> Received:
        """Return the message with its rank in the run as source. The body is in the result only."""
        source = self.envelope.source if self.member is None else self.member
        made = Received(self.envelope._replace(source=source), self._untaken(), self.window, self._checksum)
        made.arrival, self._parts = self.arrival, None
        return made

    def _check(self, body: memoryview) -> None:
        if self._checksum is not None and frames.checksum([body]) != self._checksum:
            raise TransportError(f"a body of {body.nbytes} bytes differs from what rank {self.envelope.source} sent")

    def _untaken(self) -> list[memoryview | SegmentBody]:
        if self._parts is None:
            raise UsageError("the body of a message can be taken only once")
        return self._parts

    def __del__(self) -> None:
        for part in self._parts or ():
            if isinstance(part, SegmentBody):
                part.connection.give_back(part)


@dataclass(eq=False, slots=True)
class SegmentBody:
    """Body, or part of one, in a sender's segment."""

    connection: Any
    """The `channels.Incoming` that received it."""
    number: int
    memory: memoryview


def new_bytes(size: int) -> memoryview:
    """Return `size` uninitialised bytes. Raises NoRoom."""
    return _new_array(size).data


def join_buffers(buffers: Sequence[memoryview], size: int) -> memoryview:
    """Return a copy of the buffers in one piece; `size` is the sum of their bytes. Raises NoRoom."""
    body = _new_array(size)
    copy(body, buffers)
    return body.data


def _new_array(size: int) -> NDArray[np.uint8]:
    try:
        return np.empty(size, np.uint8)
    except (MemoryError, ValueError):
        raise NoRoom(f"no memory for a message of {size} bytes") from None


def split_buffers(buffers: Sequence[memoryview], size: int) -> tuple[list[memoryview], list[memoryview]]:
    """Return the buffers of the first `size` bytes, and those of the rest."""
    begun: list[memoryview] = []
    rest: list[memoryview] = []
    for buffer in buffers:
        begun.append(buffer[:size])
        rest.append(buffer[size:])
        size -= min(size, buffer.nbytes)
    return [one for one in begun if one.nbytes], [one for one in rest if one.nbytes]
