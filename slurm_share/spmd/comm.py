"""Public interface of messages, with mpi4py's names and order of arguments.

Lower-case calls take any object, upper-case calls arrays and other buffers. Every send is buffered: it returns without
waiting for the receiver. Tags are integers or strings.
"""

from __future__ import annotations

import contextlib
import math
import operator
import os
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from . import buffers, codec, collectives, world
from .calls import Group
from .envelope import Envelope, Tag
from .errors import UsageError
from .names import TAG_BYTES
from .reductions import MAX as MAX
from .reductions import MIN as MIN
from .reductions import PROD as PROD
from .reductions import SUM as SUM
from .reductions import Op as Op
from .transport import USER, Transport

ANY_SOURCE = -1
ANY_TAG: Any = None


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


class Comm:
    """Communicator of all ranks of a run."""

    def __init__(self, transport: Transport | Callable[[], Transport]) -> None:
        """`transport`: a callable is called at the first use, so that an import makes no connection."""
        self._made = transport

    @cached_property
    def group(self) -> Group:
        """State of the collective calls of all ranks."""
        return Group(self._made() if callable(self._made) else self._made)

    @property
    def transport(self) -> Transport:
        return self.group.transport

    @property
    def rank(self) -> int:
        """Number of this process in the run, from 0."""
        return self.group.rank

    @property
    def size(self) -> int:
        """Number of ranks in the run."""
        return self.group.size

    @property
    def node(self) -> str:
        """Name of this rank's node."""
        return self.group.nodes[self.group.node].name

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of all nodes, in the order of their ranks."""
        return tuple(place.name for place in self.group.nodes)

    @property
    def node_rank(self) -> int:
        """Number of this rank on its node, from 0."""
        return self.group.rank - self.group.node_ranks[0]

    @property
    def node_size(self) -> int:
        """Number of ranks on this rank's node."""
        return len(self.group.node_ranks)

    def Get_rank(self) -> int:
        """Return `rank`; mpi4py's name."""
        return self.rank

    def Get_size(self) -> int:
        """Return `size`; mpi4py's name."""
        return self.size

    def __repr__(self) -> str:
        if "group" not in vars(self):
            return "<Comm, not connected yet>"
        return f"<Comm: rank {self.rank} of {self.size} on {self.node}>"

    # Messages from rank to rank

    def send(self, obj: Any, dest: int, tag: Tag = 0) -> None:
        """Send any object without waiting for the receiver. Raises RunEnded if the receiver has ended."""
        rank, known = self._rank(dest, "send"), _tag(tag)
        self.transport.send(rank, USER, known, *codec.encode(obj))

    def recv(
        self,
        source: int = ANY_SOURCE,
        tag: Any = ANY_TAG,
        *,
        timeout_s: float | None = None,
        status: Status | None = None,
    ) -> Any:
        """Wait for the first message of that source and tag, and return its object.

        Raises ReceiveTimeout after `timeout_s` seconds, RunEnded if no rank is left that could send it.
        """
        message = self.transport.receive(*self._wanted(source, tag), "recv", _seconds(timeout_s))
        envelope = message.envelope
        if status is not None:
            status.take(envelope)
        return codec.decode(envelope.form, envelope.meta, message.take())

    def Send(self, array: Any, dest: int, tag: Tag = 0) -> None:
        """Send an array as it lies in memory. Raises ValueError if it is not contiguous."""
        rank, known = self._rank(dest, "Send"), _tag(tag)
        self.transport.send(rank, USER, known, *codec.encode(buffers.readable_array(array, "Send")))

    def Recv(
        self,
        array: Any,
        source: int = ANY_SOURCE,
        tag: Any = ANY_TAG,
        *,
        timeout_s: float | None = None,
        status: Status | None = None,
    ) -> None:
        """Wait for the first message of that source and tag, and copy its array to the start of `array`.

        Raises MessageMismatch if it is no array, is longer, or has another type; then the message stays. Raises
        ValueError if `array` is not contiguous; ReceiveTimeout and RunEnded as `recv`.
        """
        room = buffers.writable_array(array, "Recv")
        message = self.transport.receive(*self._wanted(source, tag), "Recv", _seconds(timeout_s))
        try:
            part = buffers.fitting_bytes(room, message.envelope)
        except UsageError:
            self.transport.put_back(message)
            raise
        message.take_into(part)
        if status is not None:
            status.take(message.envelope)

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: Tag = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: Any = ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        """Send one object, then receive and return another. `recvbuf` is unused: it is mpi4py's fourth argument."""
        self.send(sendobj, dest, sendtag)
        return self.recv(source, recvtag, status=status)

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: Tag = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: Any = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Send one array, then receive another into `recvbuf`."""
        buffers.writable_array(recvbuf, "Sendrecv")
        self.Send(sendbuf, dest, sendtag)
        self.Recv(recvbuf, source, recvtag, status=status)

    def probe(self, source: int = ANY_SOURCE, tag: Any = ANY_TAG, status: Status | None = None) -> bool:
        """Wait for a message of that source and tag without removing it. Returns True."""
        message = self.transport.receive(*self._wanted(source, tag), "probe")
        self.transport.put_back(message)
        if status is not None:
            status.take(message.envelope)
        return True

    def iprobe(self, source: int = ANY_SOURCE, tag: Any = ANY_TAG, status: Status | None = None) -> bool:
        """Return whether there is a message of that source and tag, without removing it."""
        envelope = self.transport.probe(*self._wanted(source, tag))
        if envelope is not None and status is not None:
            status.take(envelope)
        return envelope is not None

    Probe = probe
    """mpi4py's name of `probe`."""
    Iprobe = iprobe
    """mpi4py's name of `iprobe`."""

    def waiting(self) -> tuple[Envelope, ...]:
        """Return the descriptions of all messages that have not been received, in the order of arrival."""
        return self.transport.waiting()

    # Collective calls

    def barrier(self) -> None:
        """Wait until all ranks have made this call."""
        collectives.barrier(self.group)

    Barrier = barrier
    """mpi4py's name of `barrier`."""

    def bcast(self, obj: Any = None, root: int = 0) -> Any:
        """Return the root's object on every rank."""
        return collectives.bcast(self.group, obj, self._rank(root, "bcast"))

    def scatter(self, sendobj: Sequence[Any] | None = None, root: int = 0) -> Any:
        """Return to each rank its element of the root's sequence."""
        return collectives.scatter(self.group, sendobj, self._rank(root, "scatter"))

    def gather(self, obj: Any, root: int = 0) -> list[Any] | None:
        """Return the list of all ranks' objects on the root, None elsewhere."""
        return collectives.gather(self.group, obj, self._rank(root, "gather"))

    def allgather(self, obj: Any) -> list[Any]:
        """Return the list of all ranks' objects on every rank."""
        return collectives.allgather(self.group, obj)

    def alltoall(self, objs: Sequence[Any]) -> list[Any]:
        """Return element `rank` of every rank's sequence, in the order of ranks."""
        return collectives.alltoall(self.group, objs)

    def reduce(self, obj: Any, op: Any = SUM, root: int = 0) -> Any:
        """Return the combination of all ranks' objects on the root, None elsewhere.

        Objects are combined in the order of ranks, first on each node. So the result has the same bits in every run of
        the same ranks on the same nodes. `op`: SUM, PROD, MIN, MAX or an associative function of two values.
        """
        return collectives.reduce(self.group, obj, op, self._rank(root, "reduce"))

    def allreduce(self, obj: Any, op: Any = SUM) -> Any:
        """Return the combination of all ranks' objects on every rank; see `reduce`."""
        return collectives.allreduce(self.group, obj, op)

    def scan(self, obj: Any, op: Any = SUM) -> Any:
        """Return the combination of the objects of rank 0 to this one."""
        return collectives.scan(self.group, obj, op)

    def Bcast(self, array: Any, root: int = 0) -> None:
        """Copy the root's array into the array of every rank."""
        buffers.bcast(self.group, array, self._rank(root, "Bcast"))

    def Gather(self, sendbuf: Any, recvbuf: Any = None, root: int = 0) -> None:
        """Copy the arrays of all ranks, of equal length, into the root's `recvbuf`, one after the other."""
        buffers.gather(self.group, sendbuf, recvbuf, self._rank(root, "Gather"))

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Copy the arrays of all ranks, of equal length, into every rank's `recvbuf`, one after the other."""
        buffers.allgather(self.group, sendbuf, recvbuf)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Copy each rank's part of the root's `sendbuf` into its `recvbuf`."""
        buffers.scatter(self.group, sendbuf, recvbuf, self._rank(root, "Scatter"))

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Copy this rank's part of every rank's `sendbuf` into `recvbuf`, one after the other."""
        buffers.alltoall(self.group, sendbuf, recvbuf)

    def Reduce(self, sendbuf: Any, recvbuf: Any = None, op: Op = SUM, root: int = 0) -> None:
        """Combine the arrays of all ranks element by element into the root's `recvbuf`; see `reduce`."""
        buffers.reduce(self.group, sendbuf, recvbuf, op, self._rank(root, "Reduce"))

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """Combine the arrays of all ranks element by element into every rank's `recvbuf`; see `reduce`."""
        buffers.allreduce(self.group, sendbuf, recvbuf, op)

    def abort(self, code: int = 1, why: str = "") -> NoReturn:
        """End the run: the current or next call of every rank raises Aborted, and this process exits with the code."""
        self.transport.abort(int(code), why)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the reader is gone, or the stream is closed
                stream.flush()
        os._exit(int(code) & 0xFF or 1)

    Abort = abort
    """mpi4py's name of `abort`."""

    # Checks of arguments

    def _rank(self, rank: Any, call: str) -> int:
        number = _whole(rank)
        if number is None or not 0 <= number < self.size:
            raise UsageError(f"{call}: there is no rank {rank!r}; the run has ranks 0 to {self.size - 1}")
        return number

    def _wanted(self, source: Any, tag: Any) -> tuple[int | None, int, Tag | None]:
        number = None if source is None or source == ANY_SOURCE else self._rank(source, "recv")
        return number, USER, None if tag is None else _tag(tag)


def _whole(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _seconds(timeout_s: Any) -> float | None:
    try:
        if timeout_s is None or not math.isnan(timeout_s):
            return None if timeout_s is None else float(timeout_s)
    except TypeError:
        pass
    raise UsageError(f"timeout_s is a number of seconds or None, not {timeout_s!r}")


def _tag(tag: Any) -> Tag:
    if isinstance(tag, str):
        length = len(tag.encode("utf-8", "surrogatepass"))  # undecodable file names have surrogates
        if length > TAG_BYTES:
            raise UsageError(f"the tag {tag[:40]!r}... has {length} bytes; tags have at most {TAG_BYTES}")
        return str(tag)
    number = _whole(tag)
    if number is None or not -(1 << 63) <= number < 1 << 63:
        raise UsageError(f"{tag!r} is no tag: tags are strings, or integers of 64 bits")
    return number


COMM_WORLD = Comm(world.transport)
