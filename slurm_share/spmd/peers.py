"""All connections of a rank: connect, accept, prove, and do what the kernel says can be done.

Everything here is called with the transport's lock held, and nothing waits.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from . import frames
from .bodies import Lent, Received
from .channels import SCRATCH_BYTES, Incoming, KeptTotal, Outgoing
from .control import Control, Ends
from .drainer import Drainer
from .errors import NoRoom, SpmdError, TransportError
from .handshake import RANKS, Client, Refused, Server
from .joining import Joined
from .names import HALF_OPEN, HANDSHAKE_S, NOTED_CONNECTIONS, VERSION
from .segments import Pool
from .system import is_same_user
from .turns import Turn
from .wire import Place

_YOUNG_S = 0.25
"""A connection that has proved nothing yet is not closed for a new one before."""
_SOCKET_BYTES = 1 << 20
"""Asked for as send buffer in a node; the kernel gives at most net.core.wmem_max."""
_Half = tuple[float, Callable[[], None]]


class Peers:
    """Connections to and from the other ranks, and to the rendezvous process."""

    def __init__(self, joined: Joined, turn: Turn, ends: Ends, deliver: Callable[[Received], None]) -> None:
        self.epoll = select.epoll()
        self.control = Control(joined.control, joined.rest)
        self.pool = Pool()
        self.kept = KeptTotal()
        self.outgoing: dict[int, Outgoing] = {}
        self.gone: dict[int, tuple[float, bool]] = {}
        """Ranks that have closed their connection: when, and whether they said BYE before."""
        self.to_free: deque[Lent] = deque()
        """Segments whose contents have been taken. Senders are told in the next call, behind its own message: told at
        once, a sender that waits for that message would be woken twice."""
        self._joined, self._turn, self._ends, self._deliver = joined, turn, ends, deliver
        self._rank, self._run = joined.rank, joined.welcome.run
        self._place = next(place for place in joined.welcome.nodes if _is_on(joined.rank, place))
        self._handlers: dict[int, Callable[[], None]] = {}
        self._incoming: set[Incoming] = set()
        self._is_many_noted = False
        self._halves: dict[socket.socket, _Half] = {}
        self._paused: list[socket.socket] = []
        """Listening sockets that take no connections for the moment."""
        self._unanswered: set[Incoming] = set()
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._drainer = Drainer(turn.lock, lambda: self.outgoing.values(), self._drained)
        self._register(self._wake, self._woken)
        self._register(joined.control.fileno(), self._read_control)
        for listener, accept in zip(joined.listeners, (self._accept_in_node, self._accept_between_nodes), strict=False):
            self._register(listener.fileno(), partial(self._accept_all, listener, accept))
        for record in self.control.read():  # what came behind Welcome
            ends.take(record)

    @property
    def drains(self) -> bool:
        """Whether the thread that empties backlogs is there."""
        return self._drainer.is_running

    def wake(self) -> None:
        """Let the thread that waits for the kernel return."""
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def _woken(self) -> None:
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            pass  # several threads were waiting, and another one was quicker

    def handle(self, events: Iterable[tuple[int, int]]) -> bool:
        """Do what can be done; return whether there was anything."""
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
        """Do what is due: close connections that have proved nothing, take connections again."""
        for sock, (since, close) in list(self._halves.items()):
            if now - since > HANDSHAKE_S:
                self._close_unproved(sock, close)
        for listener in self._paused:
            self.epoll.register(listener.fileno(), select.EPOLLIN)
        self._paused.clear()

    @property
    def is_busy_accepting(self) -> bool:
        """Whether `tick` will have something to do."""
        return bool(self._halves or self._paused)

    def to(self, rank: int) -> Outgoing:
        """Return the connection to a rank; make it at the first use. Raises TransportError."""
        found = self.outgoing.get(rank)
        if found is not None:
            return found
        in_node = _is_on(rank, self._place)
        made = self._connect_in_node(rank) if in_node else self._connect_between_nodes(rank)
        self.outgoing[rank] = made
        self._note_many()
        if in_node:
            self._register(made.sock.fileno(), partial(self._read_replies, made))
            made.write(frames.HELLO, form=VERSION, meta=self._run.encode(), context=self._rank)
        return made

    @property
    def must_send(self) -> bool:
        """Whether there is a backlog that no thread empties, because none could be started: call `keep_going` often."""
        return bool(self.kept.bytes) and not self._drainer.is_running

    def keep_going(self) -> None:
        """Start the thread that empties backlogs, where there is one."""
        if self.kept.bytes:
            self._drainer.start()

    def answer_free(self) -> None:
        """Tell senders which of their segments can be used again."""
        while self.to_free:
            lent = self.to_free.popleft()
            if not lent.connection.closed:
                lent.connection.answer_free(lent.number)
                if lent.connection.has_unsent:
                    self._unanswered.add(lent.connection)
        for connection in list(self._unanswered):
            connection.answer_free()
            if connection.closed or not connection.has_unsent:
                self._unanswered.discard(connection)

    def tell_dropped(self) -> None:
        """Tell peers which segments have been closed."""
        while self.pool.dropped:
            segment = self.pool.dropped.pop()
            for rank in segment.passed:
                channel = self.outgoing[rank]
                if channel.broken is None:
                    with contextlib.suppress(TransportError):
                        channel.write(frames.DROP, segment=segment)

    def read_all_from(self, rank: int | None) -> None:
        """Read everything that a rank, or with None any rank, has sent and the kernel has."""
        for listener, accept in zip(
            self._joined.listeners, (self._accept_in_node, self._accept_between_nodes), strict=False
        ):
            self._accept_all(listener, accept)
        self._read_control()
        for one in [one for one in self._incoming if rank is None or one.rank == rank]:
            before = None
            while not one.closed and before != (before := one.progress):
                self._read(one)

    def is_open_from(self, rank: int) -> bool:
        """Whether a connection is there on which that rank has not said BYE."""
        return any(one.rank == rank and not one.said_bye for one in self._incoming)

    def close(self) -> None:
        """Close everything. Threads that still wait find no handler and no descriptor of this rank."""
        self._handlers.clear()
        for outgoing in self.outgoing.values():
            outgoing.give_up("the transport is closed")
        for one in self._incoming:
            one.close()
        for sock in self._halves:
            sock.close()
        for outgoing in self.outgoing.values():
            outgoing.sock.close()
        for listener in self._joined.listeners:
            listener.close()
        self.control.sock.close()
        self.epoll.close()
        self.pool.close()
        self._drainer.close()
        os.close(self._wake)
        self._wake = -1

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
            if (
                not one.in_node
                and not one.waits_for_proof
                and one.sock.fileno() not in self._handlers
                and not one.broken
            ):
                self._register(one.sock.fileno(), partial(self._read_replies, one))
        self.wake()

    def _read_control(self) -> None:
        for record in self.control.read():
            self._ends.take(record)
        self.control.send_rest()
        if self.control.lost:
            self._unregister(self.control.sock.fileno())

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
        try:
            try:
                incoming.read(self._scratch)
            finally:
                if incoming.rank is not None and incoming.sock in self._halves:
                    self._identified(incoming)
        except TransportError as error:
            self._failed(incoming, error)
        except MemoryError as error:  # NoRoom too; the stream cannot be read on behind what was lost
            self._failed(incoming, error if isinstance(error, NoRoom) else NoRoom("no memory for a message"))
        if incoming.closed:
            self._close_incoming(incoming)

    def _identified(self, incoming: Incoming) -> None:
        assert incoming.rank is not None
        if not _is_on(incoming.rank, self._place) or incoming.rank == self._rank:
            raise TransportError(f"a process of this node says that it is rank {incoming.rank}")
        self._halves.pop(incoming.sock, None)

    def _failed(self, incoming: Incoming, error: SpmdError) -> None:
        who = "a connection" if incoming.rank is None else f"the connection of rank {incoming.rank}"
        note(f"rank {self._rank}: {who} was closed: {error}")
        if incoming.rank is not None and incoming.sock not in self._halves:
            self._ends.failed(incoming.rank, error)
        incoming.closed = True

    def _close_incoming(self, incoming: Incoming) -> None:
        self._unregister(incoming.sock.fileno())
        self._incoming.discard(incoming)
        if self._halves.pop(incoming.sock, None) is None and incoming.rank is not None:
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
                except BlockingIOError:  # its queue of new connections is full
                    time.sleep(0.001)
                    self._turn.raise_interrupt()
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
        place = next(place for place in self._joined.welcome.nodes if _is_on(rank, place))
        family = socket.AF_INET6 if ":" in place.address else socket.AF_INET

        def connect() -> tuple[socket.socket, Client]:
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.connect((place.address, self._joined.welcome.ports[rank]))
            except BlockingIOError:
                pass  # under way
            except OSError:
                sock.close()
                raise
            return sock, Client(bytes.fromhex(self._joined.welcome.key), self._run, self._rank, rank, RANKS)

        return Outgoing(rank, _socket(family, rank), self.kept, connect)

    def _accept_all(self, listener: socket.socket, accept: Callable[[socket.socket], None]) -> None:
        while listener not in self._paused:
            if len(self._halves) >= HALF_OPEN:
                oldest, (since, close) = next(iter(self._halves.items()))
                if time.monotonic() - since < _YOUNG_S:
                    self._pause(listener)
                    return
                self._close_unproved(oldest, close)
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
            note(f"rank {self._rank}: a connection of another user was closed")
            sock.close()
            return
        incoming = Incoming(sock, None, self._run, self._deliver, self.to_free.append)
        self._halves[sock] = (time.monotonic(), partial(self._close_incoming, incoming))
        self._add(incoming)
        self._read(incoming)

    def _accept_between_nodes(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server = Server(bytes.fromhex(self._joined.welcome.key), self._run, self._rank, RANKS)
        self._halves[sock] = (time.monotonic(), partial(self._close_socket, sock))
        self._register(sock.fileno(), partial(self._prove, sock, server))
        with contextlib.suppress(OSError):
            sock.send(server.start())

    def _prove(self, sock: socket.socket, server: Server) -> None:
        try:
            answer = server.feed(sock.recv(server.wants))
            if answer:
                sock.send(answer)
        except (BlockingIOError, InterruptedError):
            return
        except (Refused, OSError) as error:
            note(f"rank {self._rank}: {error}")
            self._close_unproved(sock, partial(self._close_socket, sock))
            return
        if server.peer is not None:
            self._unregister(sock.fileno())
            del self._halves[sock]
            self._add(Incoming(sock, server.peer, self._run, self._deliver, self.to_free.append))

    def _add(self, incoming: Incoming) -> None:
        self._incoming.add(incoming)
        self._note_many()
        self._register(incoming.sock.fileno(), partial(self._read, incoming))

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

    def _close_unproved(self, sock: socket.socket, close: Callable[[], None]) -> None:
        close()
        self._halves.pop(sock, None)


def note(text: str) -> None:
    """Write one line for the node's log."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"slurm-share: {text}\n")
        sys.stderr.flush()


def _socket(family: int, rank: int) -> socket.socket:
    """Return a new non-blocking socket. Raises TransportError where there is none, such as with too many open files."""
    try:
        return socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError as error:
        raise TransportError(f"rank {rank} cannot be connected to: {error.strerror}") from error


def _is_on(rank: int, place: Place) -> bool:
    return place.first <= rank < place.first + place.count
