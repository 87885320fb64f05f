"""Connections between ranks: the sender's end with its backlog, and the receiver's end with its half-read frame.

Both classes serve Unix sockets in a node and TCP between nodes; segments need Unix sockets. The transport holds the
lock, and calls `Incoming.read` and `Outgoing.flush` when epoll reports that they can continue. They do not wait, except
that `Outgoing.write` may wait for a reading peer as long as a copy of the data would take.
"""

from __future__ import annotations

import array
import errno
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from . import frames
from .bodies import Received, SegmentBody, new_bytes, split_buffers
from .envelope import Envelope, Tag
from .errors import NoRoom, TransportError
from .frames import Frame
from .handshake import HandshakeClient, HandshakeRefused
from .names import VERSION
from .rings import AWAKE, HEAD, RING_BODY_BYTES, RING_BYTES, TAIL, RingReader, RingWriter, parse
from .segments import MappedSegment, Segment

SCRATCH_BYTES = 256 << 10
_CONTROL_BYTES = socket.CMSG_SPACE(8 * 4)
_CLOEXEC, _CUT = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_CTRUNC)
_MOST_PARTS = 512
"""Limit of buffers in one sendmsg, below IOV_MAX = 1024."""
_PASSING = (errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM)
"""Errors after which a send is retried: too many file descriptors in transit, or no kernel memory at the moment."""
_MOST_TRIES, _RETRY_S = 12, 0.1
_PEER_READS_MS = 2
"""Time after which a peer that accepts nothing counts as not reading, so that the rest of a frame is copied."""
_COPY_BYTES_PER_S = 1.5e9
"""Assumed speed of a copy into new memory. An idle virtual machine joined 64 MiB at 1.8 to 2.2 GB/s."""
_IN_RING = frozenset((frames.DATA, frames.SEGMENT, frames.PART, frames.WINDOW, frames.DROP))
_READS = 32
"""Reads of one long body before other connections are served."""


@dataclass(eq=False, slots=True)
class _BacklogPart:
    """Part of a backlog: data that the kernel has not accepted yet."""

    data: memoryview
    segment: Segment | None
    """Segment whose file descriptor accompanies the first byte."""
    is_message: bool


@dataclass(eq=False, slots=True)
class KeptTotal:
    """Total of bytes in the backlogs of all connections of a process."""

    bytes: int = 0


class Outgoing:
    """Connection that this rank made in order to send."""

    def __init__(
        self,
        rank: int,
        sock: socket.socket,
        kept: KeptTotal,
        connect: Callable[[], tuple[socket.socket, HandshakeClient]] | None,
    ) -> None:
        """`connect` makes a connection that starts with a handshake; None: `sock` is ready to use.

        A rank with many new connections closes some during their handshake. Then `connect` is called again.
        """
        self.rank, self.sock, self._connect = rank, sock, connect
        self.client: HandshakeClient | None = None
        """The unfinished handshake; None: the connection can be used."""
        self.retry_at: float | None = None
        """Time of the next attempt to connect; None: no attempt is due."""
        self._tries = 0
        self._kept = kept
        self.in_node = sock.family == socket.AF_UNIX
        self.broken: str | None = None
        self.untaken = 0
        """Number of messages in the backlog when the connection broke."""
        self.backlog_bytes = 0
        self.backlog: deque[_BacklogPart] = deque()
        self.sequence = 0
        """Number of the next frame."""
        self.ring: RingWriter | None = None
        self.messages = 0
        """Number of messages while there was no ring."""
        self._replies = 0
        self._rest = b""
        self._fence = threading.Lock()
        """Nothing else is in it: its use is a memory barrier."""
        if connect is not None:
            self.reconnect()

    @property
    def kept_messages(self) -> int:
        """Number of messages in the backlog."""
        return sum(kept.is_message for kept in self.backlog)

    def reconnect(self) -> None:
        """Make the connection and begin the handshake."""
        assert self._connect is not None
        self.sock.close()
        self.retry_at = None
        self._tries += 1
        try:
            self.sock, self.client = self._connect()
        except OSError as error:
            self.give_up(f"rank {self.rank} takes no connections: {error.strerror}")

    def write(
        self,
        kind: int,
        buffers: Sequence[memoryview] = (),
        *,
        form: int = 0,
        tag: bytes = b"",
        meta: bytes = b"",
        body_bytes: int = 0,
        context: int = 0,
        segment: Segment | None = None,
    ) -> None:
        """Send as much of a frame as the kernel accepts, and keep a copy of the rest.

        Raises TransportError if the connection is broken, NoRoom if there is no memory for the copy. After NoRoom the
        frame counts as not sent; if a part of it was sent, the connection is given up.
        """
        fd_of = None
        if segment is not None and self.rank not in segment.passed and kind != frames.DROP:
            fd_of = segment
            segment.passed.add(self.rank)
        fields: dict[str, Any] = {"form": form, "tag": tag, "meta": meta, "body_bytes": body_bytes, "context": context}
        fields["segment"] = segment.number if segment is not None else 0
        if self.ring is not None and fd_of is None and kind in _IN_RING and not self.backlog:
            inline = body_bytes if buffers else 0
            if inline <= RING_BODY_BYTES:
                description = frames.pack(kind, 0, **fields)
                if self._put(self.ring, description, buffers, inline, context):
                    return
        head = frames.pack(kind | (frames.FD if fd_of else 0), self.sequence, **fields)
        self.sequence += 1
        total = len(head) + (body_bytes if buffers else 0)
        sent = 0
        if not self.backlog and self.client is None:
            parts: Sequence[bytes | memoryview] = (
                (head, *buffers) if len(buffers) < _MOST_PARTS else (b"".join((head, *buffers)),)
            )
            sent = self._push(parts, fd_of)
            if 0 < sent < total and total > SCRATCH_BYTES:
                sent += self._push_while_taken(parts, sent, total - sent)
        if sent < total and self.broken is None:
            try:
                self._keep((head, *buffers), sent, None if sent else fd_of, kind in (frames.DATA, frames.SEGMENT))
            except NoRoom:
                self.sequence -= 1
                if fd_of is not None:
                    fd_of.passed.discard(self.rank)
                raise
        if self.broken is not None:
            raise TransportError(self.broken)

    def put(self, context: int, tag: Tag, form: int, meta: bytes, buffers: Sequence[memoryview], size: int) -> bool:
        """Write a message without a window into the ring, and return whether that was possible."""
        ring = self.ring
        if ring is None or self.backlog or size > RING_BODY_BYTES:
            return False
        return self._put(ring, ring.describe(tag, form, meta), buffers, size, context)

    def wake_reader(self) -> None:
        """Send a frame that wakes the receiver, if it sleeps and has not read the ring."""
        words = self.ring.words if self.ring is not None else None
        if words is not None and not words[AWAKE] and words[TAIL] != words[HEAD]:
            try:
                self.write(frames.WAKE)
            except TransportError:
                if words[TAIL] != words[HEAD]:  # else the receiver has taken everything before it ended
                    raise

    def _put(
        self, ring: RingWriter, description: bytes, buffers: Sequence[memoryview], size: int, context: int
    ) -> bool:
        """Write a frame into the ring, and return whether that was possible."""
        if len(description) > RING_BYTES // 4 or self.broken is not None:
            return False
        head = ring.put(self.sequence, context, description, buffers, size)
        if not head:
            return False
        self.sequence += 1
        ring.words[HEAD] = head
        with self._fence:
            pass
        self.wake_reader()
        return True

    def flush(self) -> None:
        """Send as much of the backlog as the kernel accepts, or continue the handshake."""
        if self.client is not None:
            self._authenticate(self.client)
        while self.backlog and self.client is None and self.broken is None:
            first = self.backlog[0]
            batch = [first.data]
            for kept in islice(self.backlog, 1, 64) if first.data.nbytes < SCRATCH_BYTES else ():
                if kept.segment is not None:
                    break
                batch.append(kept.data)
            sent = self._push(batch, first.segment)
            if not sent:
                return
            self._sent(sent)

    def read_replies(self) -> list[int]:
        """Return the numbers of the segments that the peer has freed. Raises TransportError."""
        try:
            data = self.sock.recv(4096)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as error:
            self.give_up(f"the connection to rank {self.rank} failed: {error.strerror}")
            return []
        if not data:
            self.give_up(f"rank {self.rank} has closed the connection")
            return []
        data = self._rest + data
        numbers = []
        for at in range(0, len(data) - frames.HEADER.size + 1, frames.HEADER.size):
            frame = frames.unpack(data, at)
            if frame.kind != frames.FREE or frame.sequence != self._replies:
                raise TransportError(f"rank {self.rank} answered with an unexpected frame")
            self._replies += 1
            numbers.append(frame.segment)
        self._rest = data[len(data) - len(data) % frames.HEADER.size :]
        return numbers

    def give_up(self, why: str) -> None:
        """Mark the connection as broken and drop its backlog."""
        if self.broken is None:
            self.broken = why
            self.untaken = self.kept_messages
            self.backlog.clear()
            self._kept.bytes -= self.backlog_bytes
            self.backlog_bytes = 0

    def _keep(self, parts: Sequence[bytes | memoryview], sent: int, fd_of: Segment | None, is_message: bool) -> None:
        try:
            left = memoryview(b"".join(parts))[sent:]
        except MemoryError:
            if sent:
                self.give_up(f"rank {self.rank} was sent half a message, and there was no memory for the rest")
            raise NoRoom(f"no memory to keep a message for rank {self.rank}") from None
        self.backlog.append(_BacklogPart(left, fd_of, is_message))
        self.backlog_bytes += left.nbytes
        self._kept.bytes += left.nbytes

    def _push(self, parts: Sequence[bytes | memoryview], fd_of: Segment | None) -> int:
        """Return the number of bytes that the kernel accepted."""
        try:
            if fd_of is None:
                return self.sock.sendmsg(parts)
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd_of.fd]))
            return self.sock.sendmsg(parts, [rights])
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            if error.errno in _PASSING:
                return 0
            self.give_up(f"the connection to rank {self.rank} failed: {error.strerror}")
            return 0

    def _push_while_taken(self, parts: Sequence[bytes | memoryview], sent: int, left: int) -> int:
        """Send the rest of a large frame while the peer reads it; return the number of bytes that the kernel accepted.

        That is faster than a copy of the rest, and is given up after the time of a copy.
        """
        rest = split_buffers([memoryview(part).cast("B") for part in parts], sent)[1]
        until = time.monotonic() + left / _COPY_BYTES_PER_S
        poller = select.poll()
        poller.register(self.sock, select.POLLOUT)
        taken = 0
        while taken < left and time.monotonic() < until and poller.poll(_PEER_READS_MS):
            count = self._push(rest, None)
            if not count:
                break
            taken += count
            rest = split_buffers(rest, count)[1]
        return taken

    def _sent(self, count: int) -> None:
        self.backlog_bytes -= count
        self._kept.bytes -= count
        while count:
            first = self.backlog[0]
            if first.data.nbytes <= count:
                count -= first.data.nbytes
                self.backlog.popleft()
            else:
                first.data, first.segment = first.data[count:], None
                return

    def _authenticate(self, client: HandshakeClient) -> None:
        try:
            while not client.done:
                answer = client.feed(self.sock.recv(client.wants))
                if answer and self.sock.send(answer) != len(answer):
                    raise OSError(errno.EMSGSIZE, "a new connection accepts less than one message")
            self.client = None
        except (BlockingIOError, InterruptedError):
            return
        except HandshakeRefused as error:
            self._try_again(str(error))
        except ConnectionRefusedError as error:
            self.give_up(f"rank {self.rank} takes no connections: {error.strerror}")
        except OSError as error:
            self._try_again(f"the connection to rank {self.rank} failed: {error.strerror}")

    def _try_again(self, why: str) -> None:
        if self._tries >= _MOST_TRIES:
            self.give_up(why)
        else:
            self.retry_at = time.monotonic() + _RETRY_S * self._tries


class Incoming:
    """Connection that another rank made in order to send to this one."""

    def __init__(
        self,
        sock: socket.socket,
        rank: int | None,
        run: str,
        deliver: Callable[[Received], None],
        give_back: Callable[[SegmentBody], None],
    ) -> None:
        """`rank`: None: the first frame tells it, as on a Unix socket."""
        self.sock, self.rank = sock, rank
        self.said_bye = False
        self.closed = False
        self._run, self._deliver, self.give_back = run, deliver, give_back
        self.sequence = 0
        """Number of the next frame."""
        self.ring: RingReader | None = None
        self._answers = 0
        self._unsent = b""
        self._rest = b""
        self._fds: deque[int] = deque()
        self._mapped: dict[int, MappedSegment] = {}
        self._parts: list[SegmentBody] = []
        self._window: memoryview | None = None
        self.body: memoryview | None = None
        """Body that is being read; None: headers are."""
        self._filled = 0
        self._head: tuple[Frame, bytes, bytes] | None = None

    def read(self, scratch: memoryview) -> None:
        """Read the data that has arrived and deliver complete messages. Raises TransportError for invalid frames."""
        for _ in range(_READS):
            target = scratch if self.body is None else self.body[self._filled :]
            try:
                count, control, flags, _address = self.sock.recvmsg_into([target], _CONTROL_BYTES, _CLOEXEC)
            except (BlockingIOError, InterruptedError):
                self.read_ring()
                return
            except OSError:
                count, control, flags = 0, [], 0  # the peer died; its data was read before
            self._keep_fds(control)
            if flags & _CUT:
                raise TransportError("too many open files: a segment could not be received")
            if count == 0:
                self.read_ring()
                self.closed = True
                return
            if self.body is None:
                self._parse(scratch[:count])
            else:
                self._filled += count
                if self._filled == self.body.nbytes:
                    assert self._head is not None
                    head, body = self._head, self.body
                    self._head = self.body = None
                    self._complete(*head, body)
            if self.body is None:
                self.read_ring()
                return

    def read_ring(self) -> bool:
        """Deliver the frames in the ring, up to one whose turn has not come; return whether there was any.

        Raises TransportError for invalid frames.
        """
        ring = self.ring
        found = False
        while ring is not None and self.body is None and (first := ring.first()) is not None:
            sequence, context, description, at, size, after = first
            if sequence == self.sequence:
                self._take_from_ring(ring, context, description, ring.body(at, size))
                self.sequence += 1
            elif sequence > self.sequence:
                break  # frames before it are in the socket
            ring.words[TAIL] = after
            found = True
        return found

    def _take_from_ring(self, ring: RingReader, context: int, description: bytes, body: memoryview) -> None:
        plain = ring.plain(description)
        if plain is None:
            self._complete(*parse(description), body)
            return
        assert self.rank is not None
        tag, form, meta = plain
        self._deliver(Received(Envelope(self.rank, context, tag, form, body.nbytes, meta), [body]))

    def answer_free(self, number: int | None = None) -> bool:
        """Send FREE for a segment; None: send the rest that the kernel did not accept before.

        Returns whether the kernel has accepted all.
        """
        if number is not None:
            self._unsent += frames.pack(frames.FREE, self._answers, segment=number)
            self._answers += 1
        try:
            self._unsent = self._unsent[self.sock.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._unsent = b""  # the sender has ended
        return not self._unsent

    @property
    def progress(self) -> tuple[int, int, int]:
        """Value that changes with every byte read."""
        return self.sequence, self._filled, len(self._rest)

    def close(self) -> None:
        """Close the socket and the file descriptors that were received and not used."""
        self.closed = True
        self.sock.close()
        while self._fds:
            os.close(self._fds.popleft())
        self._mapped.clear()
        self.body = None
        self._parts = []

    def _keep_fds(self, control: list[tuple[int, int, bytes]]) -> None:
        for level, kind, data in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array.array("i")
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
                self._fds.extend(fds)

    def _parse(self, data: memoryview) -> None:
        if self._rest:
            data = memoryview(self._rest + bytes(data))
            self._rest = b""
        at, end = 0, data.nbytes
        while end - at >= frames.HEADER.size:
            frame = frames.unpack(data, at)
            tag_at = at + frames.HEADER.size
            meta_at = tag_at + frame.tag_bytes
            body_at = meta_at + frame.meta_bytes
            if frame.sequence > self.sequence:
                self.read_ring()
            if frame.sequence != self.sequence:
                raise TransportError(f"frame {frame.sequence} came in place of frame {self.sequence}")
            if (self.rank is None) != (frame.kind == frames.HELLO):
                raise TransportError("a connection begins with HELLO, and has no other one")
            if body_at > end:
                break
            self.sequence += 1
            tag, meta = bytes(data[tag_at:meta_at]), bytes(data[meta_at:body_at])
            inline = frame.body_bytes if frame.kind == frames.DATA else 0
            if inline > end - body_at:
                self._head, self.body = (frame, tag, meta), new_bytes(frame.body_bytes)
                self._filled = end - body_at
                self.body[: self._filled] = data[body_at:end]
                return
            at = body_at + inline
            self._complete(frame, tag, meta, memoryview(bytearray(data[body_at:at])))
        self._rest = bytes(data[at:end])

    def _complete(self, frame: Frame, tag: bytes, meta: bytes, body: memoryview) -> None:
        kind = frame.kind
        if kind == frames.DATA:
            self._message(frame, tag, meta, body)
        elif kind in (frames.SEGMENT, frames.PART):
            lent = SegmentBody(self, frame.segment, self._segment(frame))
            if kind == frames.PART:
                self._parts.append(lent)
            else:
                self._message(frame, tag, meta, lent)
        elif kind == frames.WINDOW:
            self._window = self._segment(frame)
        elif kind == frames.DROP:
            self._mapped.pop(frame.segment, None)
        elif kind == frames.BYE:
            self.said_bye = True
        elif kind == frames.RING:
            self.ring = RingReader(self._map_of(frame))
        elif kind == frames.WAKE:
            pass
        elif kind == frames.HELLO:
            if (frame.form, meta) != (VERSION, self._run.encode()):
                raise TransportError(f"a rank of another run, or with version {frame.form} of the protocol")
            self.rank = frame.context
        else:
            raise TransportError(f"a frame of kind {kind} is not expected here")

    def _message(self, frame: Frame, tag: bytes, meta: bytes, last: memoryview | SegmentBody) -> None:
        assert self.rank is not None
        size = last.memory.nbytes if isinstance(last, SegmentBody) else last.nbytes
        parts: list[memoryview | SegmentBody] = [last]
        if self._parts:
            size += sum(part.memory.nbytes for part in self._parts)
            parts, self._parts = [*self._parts, last], []
        window, self._window = self._window, None
        form, checksum = frame.form, None
        if form & frames.CHECKED:
            form, meta, checksum = (
                form & ~frames.CHECKED,
                meta[: -frames.CHECKSUM_BYTES],
                meta[-frames.CHECKSUM_BYTES :],
            )
        envelope = Envelope(self.rank, frame.context, frames.tag_of_bytes(tag), form, size, meta)
        self._deliver(Received(envelope, parts, window, checksum))

    def _segment(self, frame: Frame) -> memoryview:
        """Return the memory of a peer's segment that a frame refers to."""
        if frame.has_fd:
            self._mapped[frame.segment] = self._map_of(frame)
        mapped = self._mapped.get(frame.segment)
        if mapped is None or frame.body_bytes > mapped.size:
            raise TransportError(
                f"a frame names {frame.body_bytes} bytes of segment {frame.segment}, which is not there"
            )
        return mapped.memory[: frame.body_bytes]

    def _map_of(self, frame: Frame) -> MappedSegment:
        """Map the memory whose file descriptor came with a frame."""
        if not self._fds:
            raise TransportError("a segment was announced without its file descriptor")
        return MappedSegment(self._fds.popleft(), frame.body_bytes)
