"""Connections of a rank: connect, accept, authenticate, and handle the events of epoll.

The caller holds the transport's lock, which delays the handlers of signals (see `interrupts`).
Nothing here blocks.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from . import frames, wire
from .bodies import Received, SegmentBody
from .channels import SCRATCH_BYTES, Incoming, KeptTotal, Outgoing
from .drainer import Drainer
from .errors import NoRoom, SpmdError, TransportError
from .handshake import RANKS, HandshakeClient, HandshakeRefused, HandshakeServer
from .interrupts import TransportLock
from .joining import RankSockets
from .names import HALF_OPEN, HANDSHAKE_S, NOTED_CONNECTIONS, REFUSALS_NAMED, VERSION
from .rings import AWAKE, IS_ORDERED, MOST_RINGS, SEGMENT_BYTES, RingWriter
from .rules import trees
from .rules.ends import Ends
from .segments import Pool, Segment
from .system import is_same_user
from .transport import NodePlace

_YOUNG_S = 0.25
"""Seconds before a new connection may replace an unauthenticated one."""
_SOCKET_BYTES = 1 << 20
"""Requested send buffer of a Unix socket; the kernel limits it to net.core.wmem_max."""
_HalfOpen = tuple[float, Callable[[], None]]


class Peers:
    """Connections to and from the other ranks, and to the rendezvous process."""

    def __init__(
        self, joined: RankSockets, lock: TransportLock, ends: Ends, deliver: Callable[[Received], None]
    ) -> None:
        self.epoll = select.epoll()
        self.control = joined.control
        self.pool = Pool()
        self.kept = KeptTotal()
        self.outgoing: dict[int, Outgoing] = {}
        self.gone: dict[int, tuple[float, bool]] = {}
        """Ranks that have closed their connection: the time, and whether BYE came before."""
        self.to_free: deque[SegmentBody] = deque()
        """Segments whose contents have been taken. The next call sends FREE after its own message: sent at once, it
        would wake a sender that waits for that message twice."""
        self._joined, self._lock, self._ends, self._deliver = joined, lock, ends, deliver
        self._rank, self._run = joined.rank, joined.welcome.run
        self._node_ranks = self._node_of(joined.rank).ranks
        self._handlers: dict[int, Callable[[], None]] = {}
        self._incoming: set[Incoming] = set()
        self._is_many_noted = False
        self._refusals = 0
        self._half_open: dict[socket.socket, _HalfOpen] = {}
        self._paused: list[socket.socket] = []
        """Listening sockets that do not accept until the next tick."""
        self._unanswered: set[Incoming] = set()
        self.ringing: dict[int, Incoming] = {}
        """Connections of ranks that have a ring to this one."""
        self.ringed: dict[int, Outgoing] = {}
        """Connections to ranks to which this one has a ring."""
        self._awake: list[Incoming] = []
        """Those of `ringing` whose sender may use the ring, because this rank looks into it before it sleeps."""
        self._is_asleep = False
        self._fence = threading.Lock()
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.drainer = Drainer(lock.lock, lambda: self.outgoing.values(), self._drained)
        self._register(self._wake, self._clear_wake)
        self._register(joined.control.file.fileno(), self._read_control)
        accepts = (self._accept_in_node, self._accept_between_nodes)
        self._listeners = list(zip(joined.listeners, accepts, strict=False))
        for listener, accept in self._listeners:
            self._register(listener.fileno(), partial(self._accept_all, listener, accept))
        for line in joined.early:
            ends.take(wire.decode(line))

    def say(self, record: wire.Record) -> None:
        """Send a record to the rendezvous process; what the kernel does not accept is sent later."""
        self.control.write(wire.encode(record))
        self.control.flush()

    def wake(self) -> None:
        """Make the thread that waits in epoll return."""
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def _clear_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # another waiting thread has read it
            os.eventfd_read(self._wake)

    def handle(self, events: Iterable[tuple[int, int]]) -> bool:
        """Handle the events; return whether there were any."""
        done = False
        for fd, _mask in events:
            handler = self._handlers.get(fd)
            if handler is not None:
                handler()
                done = True
        if self.to_free or self._unanswered:
            self.answer_free()
        return done

    def tick(self, now: float) -> None:
        """Close connections whose handshake takes too long, and resume accepting."""
        for sock, (since, _close) in list(self._half_open.items()):
            if now - since > HANDSHAKE_S:
                self._close_half_open(sock)
        for listener in self._paused:
            self.epoll.register(listener.fileno(), select.EPOLLIN)
        self._paused.clear()

    @property
    def is_busy_accepting(self) -> bool:
        """Whether `tick` has work to come."""
        return bool(self._half_open or self._paused)

    def to(self, rank: int) -> Outgoing:
        """Return the connection to a rank, made at the first use. Raises TransportError."""
        found = self.outgoing.get(rank)
        if found is not None:
            return found
        in_node = rank in self._node_ranks
        made = self._connect_in_node(rank) if in_node else self._connect_between_nodes(rank)
        self.outgoing[rank] = made
        self._note_many()
        if in_node:
            self._register(made.sock.fileno(), partial(self._read_replies, made))
            made.write(frames.HELLO, form=VERSION, meta=self._run.encode(), context=self._rank)
        return made

    @property
    def must_send(self) -> bool:
        """Whether there is a backlog but no thread, because none could be started: call `keep_going` often."""
        return bool(self.kept.bytes) and not self.drainer.is_running

    def keep_going(self) -> None:
        """Start the thread that sends backlogs, if there is a backlog."""
        if self.kept.bytes:
            self.drainer.start()

    def answer_free(self) -> None:
        """Send FREE for the segments whose contents have been taken."""
        while self.to_free:
            lent = self.to_free.popleft()
            if not lent.connection.closed and not lent.connection.answer_free(lent.number):
                self._unanswered.add(lent.connection)
        for connection in list(self._unanswered):
            if connection.closed or connection.answer_free():
                self._unanswered.discard(connection)

    def make_ring(self, channel: Outgoing) -> None:
        """Make a ring to a rank of this node, if the limits allow it and the rank has not ended."""
        if not IS_ORDERED or not channel.in_node or len(self.ringed) >= MOST_RINGS or channel.backlog:
            return
        try:
            segment = Segment(0, SEGMENT_BYTES)
        except NoRoom:
            return  # messages go through the socket
        try:
            channel.write(frames.RING, body_bytes=SEGMENT_BYTES, segment=segment)
        except (NoRoom, TransportError):
            # The message before is sent: the receiver may have taken it and ended. The next message says so.
            segment.close()
            return
        if not channel.backlog:
            segment.close()  # the receiver has the file descriptor
        channel.ring = RingWriter(segment)
        self.ringed[channel.rank] = channel

    def read_rings(self) -> bool:
        """Deliver the frames in the rings; return whether there were any."""
        done = False
        for one in self._awake:
            if one.ring is not None and not one.ring.is_empty:
                done = self._read_ring(one) or done
        return done

    def expect(self, incoming: Incoming) -> None:
        """Let a rank use its ring to this one from now on, until this rank sleeps."""
        ring = incoming.ring
        if ring is not None and not self._is_asleep and not ring.words[AWAKE] and not incoming.closed:
            self._awake.append(incoming)
            ring.words[AWAKE] = 1

    def fall_asleep(self) -> bool:
        """Make all senders use the sockets, which wake this rank. Return False if frames were in the rings before."""
        self._is_asleep = True
        for one in self._awake:
            if one.ring is not None:
                one.ring.words[AWAKE] = 0
        with self._fence:  # a memory barrier
            pass
        if self.read_rings():
            self.wake_up()
            return False
        return True

    def wake_up(self) -> None:
        """Note that this rank does not sleep any more."""
        self._is_asleep = False
        before, self._awake = self._awake, []
        for one in before:
            self.expect(one)

    def tell_dropped(self) -> None:
        """Send DROP for the segments that have been closed."""
        while self.pool.dropped:
            segment = self.pool.dropped.pop()
            for rank in segment.passed:
                channel = self.outgoing[rank]
                if channel.broken is None:
                    with contextlib.suppress(TransportError):
                        channel.write(frames.DROP, segment=segment)

    def read_all_from(self, rank: int | None) -> None:
        """Read all data of a rank (None: of all ranks) that the kernel has received."""
        for listener, accept in self._listeners:
            self._accept_all(listener, accept)
        self._read_control()
        for one in [one for one in self._incoming if rank is None or one.rank == rank]:
            before = None
            while not one.closed and before != (before := one.progress):
                self._read(one)

    def is_open_from(self, rank: int) -> bool:
        """Return whether a connection of that rank is open without a BYE."""
        return any(one.rank == rank and not one.said_bye for one in self._incoming)

    def close(self, in_child: bool = False) -> None:
        """Close all sockets. Threads that still wait find neither handlers nor file descriptors.

        `in_child`: this is a forked child of the rank, which goes on.
        """
        for incoming in () if in_child else self.ringing.values():
            if incoming.ring is not None:
                incoming.ring.words[AWAKE] = 0  # so that senders use the socket, and notice the end
        self.ringing.clear()
        for outgoing in self.ringed.values():
            if outgoing.ring is not None:
                outgoing.ring.segment.close()
                outgoing.ring = None
        self.ringed.clear()
        self._awake.clear()
        self._handlers.clear()
        for outgoing in self.outgoing.values():
            outgoing.give_up("the transport is closed")
        for one in self._incoming:
            one.close()
        for sock in self._half_open:
            sock.close()
        for outgoing in self.outgoing.values():
            outgoing.sock.close()
        for listener in self._joined.listeners:
            listener.close()
        self.control.close()
        self.epoll.close()
        self.pool.close()
        self.drainer.close()
        os.close(self._wake)
        self._wake = -1

    def _node_of(self, rank: int) -> NodePlace:
        nodes = self._joined.welcome.nodes
        return nodes[trees.node_of(nodes, rank)]

    def _register(self, fd: int, handler: Callable[[], object]) -> None:
        self._handlers[fd] = handler  # type: ignore[assignment]
        self.epoll.register(fd, select.EPOLLIN)

    def _unregister(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self.epoll.unregister(fd)

    def _drained(self) -> None:
        if self._wake < 0:
            return  # closed
        for one in self.outgoing.values():
            is_usable = not one.in_node and one.client is None and not one.broken
            if is_usable and one.sock.fileno() not in self._handlers:
                self._register(one.sock.fileno(), partial(self._read_replies, one))
        self.wake()

    def _read_control(self) -> None:
        for line in self.control.lines():
            self._ends.take(wire.decode(line))
        self.control.flush()
        if self.control.end is not None:
            self._unregister(self.control.file.fileno())

    def _read_replies(self, outgoing: Outgoing) -> None:
        try:
            for number in outgoing.read_replies():
                self.pool.freed(number)
        except TransportError as error:
            outgoing.give_up(str(error))
        if outgoing.broken is not None:
            self._unregister(outgoing.sock.fileno())
            self.pool.abandon(outgoing.rank)

    def _read(self, incoming: Incoming) -> None:
        self._read_with(incoming, partial(incoming.read, self._scratch))
        if incoming.ring is not None and incoming.rank is not None and not incoming.closed:
            self.ringing[incoming.rank] = incoming
            self.expect(incoming)

    def _read_ring(self, incoming: Incoming) -> bool:
        before = incoming.sequence
        self._read_with(incoming, incoming.read_ring)
        return incoming.closed or incoming.sequence != before

    def _read_with(self, incoming: Incoming, read: Callable[[], object]) -> None:
        try:
            try:
                read()
            finally:
                if incoming.rank is not None and incoming.sock in self._half_open:
                    self._identified(incoming)
        except TransportError as error:
            self._failed(incoming, error)
        except MemoryError as error:  # NoRoom too; after the loss the rest of the stream cannot be parsed
            self._failed(incoming, error if isinstance(error, NoRoom) else NoRoom("no memory for a message"))
        if incoming.closed:
            self._close_incoming(incoming)

    def _identified(self, incoming: Incoming) -> None:
        assert incoming.rank is not None
        if incoming.rank not in self._node_ranks or incoming.rank == self._rank:
            raise TransportError(f"a process of this node claims to be rank {incoming.rank}")
        self._half_open.pop(incoming.sock, None)

    def _failed(self, incoming: Incoming, error: SpmdError) -> None:
        who = "a connection" if incoming.rank is None else f"the connection of rank {incoming.rank}"
        note(f"rank {self._rank}: {who} was closed: {error}")
        if incoming.rank is not None and incoming.sock not in self._half_open:
            self._ends.failed(incoming.rank, error)
        incoming.closed = True

    def _close_incoming(self, incoming: Incoming) -> None:
        self._unregister(incoming.sock.fileno())
        self._incoming.discard(incoming)
        if incoming.ring is not None:
            self.ringing = {rank: one for rank, one in self.ringing.items() if one is not incoming}
            self._awake = [one for one in self._awake if one is not incoming]
        if self._half_open.pop(incoming.sock, None) is None and incoming.rank is not None:
            self.gone[incoming.rank] = (time.monotonic(), incoming.said_bye)
        incoming.close()

    def _connect_in_node(self, rank: int) -> Outgoing:
        name = f"\0{self._joined.welcome.sockets}{rank}"
        sock = _socket(socket.AF_UNIX, rank)
        try:
            while True:
                try:
                    sock.connect(name)
                    break
                except BlockingIOError:  # the peer's backlog of connections is full
                    time.sleep(0.001)
                    self._lock.raise_interrupt()
                    if self.handle(self.epoll.poll(0)):
                        self.wake()
        except OSError as error:
            sock.close()
            raise TransportError(f"rank {rank} takes no connections: {error.strerror}") from error
        except BaseException:
            sock.close()
            raise
        if not is_same_user(sock):
            sock.close()
            raise TransportError(f"the socket of rank {rank} belongs to another user")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        return Outgoing(rank, sock, self.kept, None)

    def _connect_between_nodes(self, rank: int) -> Outgoing:
        address = self._node_of(rank).address
        family = socket.AF_INET6 if ":" in address else socket.AF_INET

        def connect() -> tuple[socket.socket, HandshakeClient]:
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.connect((address, self._joined.welcome.ports[rank]))
            except BlockingIOError:
                pass  # in progress
            except OSError:
                sock.close()
                raise
            return sock, HandshakeClient(bytes.fromhex(self._joined.welcome.key), self._run, self._rank, rank, RANKS)

        return Outgoing(rank, _socket(family, rank), self.kept, connect)

    def _accept_all(self, listener: socket.socket, accept: Callable[[socket.socket], None]) -> None:
        while listener not in self._paused:
            if len(self._half_open) >= HALF_OPEN:
                oldest, (since, _close) = next(iter(self._half_open.items()))
                if time.monotonic() - since < _YOUNG_S:
                    self._pause(listener)
                    return
                self._close_half_open(oldest)
            try:
                sock, _address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError as error:
                note(f"rank {self._rank}: a connection could not be taken: {error.strerror}")
                self._pause(listener)
                return
            sock.setblocking(False)
            accept(sock)

    def _pause(self, listener: socket.socket) -> None:
        self.epoll.unregister(listener.fileno())
        self._paused.append(listener)

    def _accept_in_node(self, sock: socket.socket) -> None:
        if not is_same_user(sock):
            self._note_refusal("a connection of another user was closed")
            sock.close()
            return
        incoming = Incoming(sock, None, self._run, self._deliver, self.to_free.append)
        self._half_open[sock] = (time.monotonic(), partial(self._close_incoming, incoming))
        self._add(incoming)
        self._read(incoming)

    def _accept_between_nodes(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server = HandshakeServer(bytes.fromhex(self._joined.welcome.key), self._run, self._rank, RANKS)
        self._half_open[sock] = (time.monotonic(), partial(self._close_socket, sock))
        self._register(sock.fileno(), partial(self._authenticate, sock, server))
        with contextlib.suppress(OSError):
            sock.send(server.start())

    def _authenticate(self, sock: socket.socket, server: HandshakeServer) -> None:
        try:
            answer = server.feed(sock.recv(server.wants))
            if answer:
                sock.send(answer)
        except (BlockingIOError, InterruptedError):
            return
        except (HandshakeRefused, OSError) as error:
            self._note_refusal(str(error))
            self._close_half_open(sock)
            return
        if server.peer is not None:
            self._unregister(sock.fileno())
            del self._half_open[sock]
            self._add(Incoming(sock, server.peer, self._run, self._deliver, self.to_free.append))

    def _add(self, incoming: Incoming) -> None:
        self._incoming.add(incoming)
        self._note_many()
        self._register(incoming.sock.fileno(), partial(self._read, incoming))

    def _note_refusal(self, text: str) -> None:
        self._refusals += 1
        if self._refusals <= REFUSALS_NAMED:
            more = "; further ones are not named" if self._refusals == REFUSALS_NAMED else ""
            note(f"rank {self._rank}: {text}{more}")

    def _note_many(self) -> None:
        if not self._is_many_noted and len(self.outgoing) + len(self._incoming) > NOTED_CONNECTIONS:
            self._is_many_noted = True
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            note(
                f"rank {self._rank} has more than {NOTED_CONNECTIONS} connections to other ranks; each takes one of "
                f"the {most} files that it may open (ulimit -n)"
            )

    def _close_socket(self, sock: socket.socket) -> None:
        self._unregister(sock.fileno())
        sock.close()

    def _close_half_open(self, sock: socket.socket) -> None:
        self._half_open[sock][1]()
        self._half_open.pop(sock, None)


def note(text: str) -> None:
    """Write a line to standard error, for the node's log."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"slurm-share: {text}\n")
        sys.stderr.flush()


def _socket(family: int, rank: int) -> socket.socket:
    """Return a new non-blocking socket. Raises TransportError if there is none, such as with too many open files."""
    try:
        return socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError as error:
        raise TransportError(f"rank {rank} cannot be connected to: {error.strerror}") from error
