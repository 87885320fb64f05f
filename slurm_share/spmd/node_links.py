"""TCP connections between the rendezvous processes of a run's nodes: a star around node 0. Standard library only.

A line to node 0 has the rank's number, or "-" for the node itself, a space and the message. A line from node 0 is a
message for all ranks. Each end sends Beat every `heartbeat_s`. An end that sends nothing for `lost_s` is lost.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import selectors
import socket
from collections.abc import Callable

from . import key_folder, wire
from .errors import SpmdError, TransportError
from .handshake import NODES, HandshakeClient, HandshakeRefused, HandshakeServer
from .key_folder import FolderGone, FolderRefused
from .lines import AwakeClock, ConnectionSet, LineConnection
from .names import CONTROL_BYTES, HALF_OPEN, HANDSHAKE_S
from .rules import ends
from .rules.run_state import RunState
from .system import listen_tcp

_RETRY_S = 0.2
_RETRY_MOST_S = 1.0
_FROM_RANK = (
    wire.Hello | wire.RankWaiting | wire.RankWorking | wire.Bye | wire.RunAborted | wire.CallMismatch | wire.RankEnded
)
_FROM_NODE = wire.NodeJoined | wire.DrainAnswer | wire.NodeLeft | wire.Heartbeat
_BEAT = wire.encode(wire.Heartbeat())


class _HalfOpen:
    """A connection whose handshake is not finished."""

    def __init__(self, connection: LineConnection, side: HandshakeServer | HandshakeClient, until: float) -> None:
        self.connection, self.side, self.until = connection, side, until

    def advance(self) -> bool:
        """Continue the handshake with the bytes that have arrived; return whether it is finished. Raises Refused."""
        data = self.connection.receive(self.side.wants)
        if data or self.connection.end is not None:
            self.connection.write(self.side.feed(data))
        return self.side.done


class _Link:
    """An authenticated connection to a node."""

    def __init__(self, connection: LineConnection, setup: wire.Setup, now: float) -> None:
        self.connection, self._setup = connection, setup
        self.heard_at = now
        self._beat_at = now
        self.sock = connection.file
        assert isinstance(self.sock, socket.socket)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(setup.lost_s * 1000))

    @property
    def due_at(self) -> float:
        """Time of the next heartbeat."""
        return self._beat_at + self._setup.heartbeat_s

    def is_silent(self, now: float) -> bool:
        """Return whether the other end counts as lost."""
        return now - self.heard_at > self._setup.lost_s

    def beat(self, now: float, line: bytes) -> None:
        """Send the heartbeat if it is due."""
        if now >= self.due_at:
            self._beat_at = now
            self.connection.write(line)


class Center:
    """Node 0: the state of the run, and this end of the star if there are other nodes."""

    def __init__(
        self,
        setup: wire.Setup,
        watched: ConnectionSet,
        clock: AwakeClock,
        note: Callable[[str], None],
        refused: Callable[[str], None],
    ) -> None:
        """Listen, and write the address into the run's folder. `refused` gets a log line per refused connection.

        Raises FolderRefused, SpmdError, OSError.
        """
        self._setup, self._clock, self._note, self._refused = setup, clock, note, refused
        self._watched = watched
        self._state = RunState(setup.run, setup.nodes, setup.start_s, keep_going=setup.keep_going)
        self._half: dict[LineConnection, _HalfOpen] = {}
        self._links: dict[int, _Link] = {}
        self._absent = set(range(1, len(setup.nodes)))
        self._look_at = 0.0
        """When to read next which nodes cannot take part."""
        self._gone: set[int] = set()
        self._ranks = _ranks_of(setup)
        self._before: list[bytes] = []
        """Lines to all nodes that were sent before the last node joined."""
        self._listener: socket.socket | None = None
        self.key, self.address = b"", ""
        if self._absent:
            self.key = key_folder.read_key(setup.folder)
            self.address = own_address(setup)
            self._listener = listen_tcp(self.address, setup.ports, HALF_OPEN * 2)
            self._listener.setblocking(False)
            watched.selector.register(self._listener, selectors.EVENT_READ, self._accept)
            port = self._listener.getsockname()[1]
            key_folder.write_address(setup.folder, setup.run, self.key, (self.address, port))
        self._state.joined(0, self.address)

    @property
    def is_over(self) -> bool:
        """Whether every other node has left or is lost."""
        return len(self._gone) == len(self._setup.nodes) - 1

    def take(self, now: float) -> list[wire.Record]:
        """Do what is due; return the messages to all nodes since the last call, and send them to the other nodes."""
        for half in [half for half in self._half.values() if now >= half.until]:
            self._refuse(half, f"a connection was refused: it has not authenticated within {HANDSHAKE_S:g} s")
        for node, link in list(self._links.items()):
            if link.is_silent(now):
                self._lose(node, f"it has said nothing for {self._setup.lost_s:g} s")
            else:
                link.beat(now, _BEAT)
        if self._absent and now >= self._look_at:
            self._look_at = now + _RETRY_MOST_S
            self._read_failures()
        if self._absent and now >= self._setup.start_s:
            for node in sorted(self._absent):
                self._lose(node, f"it has not joined within {self._setup.start_s:g} s")
        self._state.tick(now)
        messages = self._state.take()
        lines = list(map(wire.encode, messages)) if self._links or self._absent else []
        for link in self._links.values():
            link.connection.write(b"".join(lines))
        if self._absent:
            self._before += lines
        return messages

    def due_at(self) -> float | None:
        """Return the time at which `take` has work even if no message arrives; None: never."""
        moments = [half.until for half in self._half.values()]
        moments += [link.due_at for link in self._links.values()]
        if self._absent:
            moments += [self._setup.start_s, self._look_at]
        state_due_at = self._state.due_at()
        if state_due_at is not None:
            moments.append(state_due_at)
        return min(moments, default=None)

    def tell(self, rank: int | None, message: wire.Record, node: int = 0) -> None:
        """Note a message of a rank, or of a node itself (None)."""
        if rank is not None:
            self._state.hear(rank, message, self._clock.now)
        elif isinstance(message, wire.NodeJoined):
            self._state.joined(node, message.address)
        elif isinstance(message, wire.DrainAnswer):
            self._state.answered(node, message.number, self._clock.now)
        elif isinstance(message, wire.NodeLeft):
            self._gone.add(node)
            self._state.left(node)

    def close(self) -> None:
        """Close the listener and all connections."""
        for connection in [*self._half, *(link.connection for link in self._links.values())]:
            self._watched.close(connection)
        if self._listener is not None:
            self._watched.selector.unregister(self._listener)
            self._listener.close()

    def _accept(self) -> None:
        assert self._listener is not None
        for _turn in range(HALF_OPEN):
            try:
                sock, _address = self._listener.accept()
            except OSError:
                return  # no connection is left, or no file descriptor is free
            half = _HalfOpen(
                LineConnection(sock, CONTROL_BYTES),
                HandshakeServer(self.key, self._setup.run, 0, NODES),
                self._clock.now + HANDSHAKE_S,
            )
            self._half[half.connection] = half
            self._watched.add(half.connection, lambda half=half: self._authenticate(half))  # type: ignore[misc]
            half.connection.write(half.side.start())
            if len(self._half) > HALF_OPEN:
                oldest = next(iter(self._half.values()))
                self._authenticate(oldest)  # its answer may have arrived in the meantime
            if len(self._half) > HALF_OPEN:
                self._refuse(oldest, f"a connection was refused: more than {HALF_OPEN} have not authenticated")

    def _authenticate(self, half: _HalfOpen) -> None:
        if half.connection not in self._half:
            return  # it was closed or authenticated earlier in this step
        try:
            if not half.advance():
                return
        except HandshakeRefused as error:
            self._refuse(half, str(error))
            return
        node = half.side.peer
        if node not in self._absent:
            self._refuse(
                half, f"a connection was refused: node {node} has joined already, or does not belong to this run"
            )
            return
        del self._half[half.connection]
        self._absent.discard(node)
        link = self._links[node] = _Link(half.connection, self._setup, self._clock.now)
        self._watched.replace(link.connection, lambda: self._read(node, link))
        for line in self._before:
            link.connection.write(line)

    def _refuse(self, half: _HalfOpen, why: str) -> None:
        del self._half[half.connection]
        self._watched.close(half.connection)
        self._refused(why)

    def _read(self, node: int, link: _Link) -> None:
        if self._links.get(node) is not link:
            return  # it was closed earlier in this step
        for line in link.connection.lines():
            link.heard_at = self._clock.now
            try:
                rank, message = self._parsed(node, line)
            except TransportError as error:
                self._lose(node, str(error))
                return
            if isinstance(message, wire.NodeLeft):
                self._watched.close(self._links.pop(node).connection)
            self.tell(rank, message, node)
        if link.connection.end is not None and node in self._links:
            self._lose(node, link.connection.end)

    def _parsed(self, node: int, line: bytes) -> tuple[int | None, wire.Record]:
        who, _space, text = line.partition(b" ")
        message = wire.decode(text)
        if who == b"-" and isinstance(message, _FROM_NODE):
            return None, message
        if who.isdigit() and int(who) in self._ranks[node] and isinstance(message, _FROM_RANK):
            return int(who), message
        raise TransportError(f"a node does not send {type(message).__name__} here")

    def _read_failures(self) -> None:
        """Take in which nodes cannot take part: their launchers could not start any rank."""
        try:
            failures = key_folder.read_failures(self._setup.folder, self._setup.run)
        except (FolderRefused, OSError):
            return  # it is read again
        for node in sorted(self._absent & failures.keys()):
            self._absent.discard(node)
            why = f"could not be started: {failures[node]}"
            for rank in self._ranks[node]:
                self.tell(rank, wire.RankEnded(rank, self._setup.nodes[node][0], 1, None, why))
            self.tell(None, wire.NodeLeft(), node)

    def _lose(self, node: int, why: str) -> None:
        self._note(f"node {self._setup.nodes[node][0]} is lost: {why}")
        self._absent.discard(node)
        self._gone.add(node)
        if (link := self._links.pop(node, None)) is not None:
            self._watched.close(link.connection)
        self._state.lost(node)


class Uplink:
    """The end of the star on any other node: messages go to node 0 and come from it."""

    def __init__(
        self, setup: wire.Setup, watched: ConnectionSet, clock: AwakeClock, note: Callable[[str], None]
    ) -> None:
        """Read the key. `take` connects once node 0 has written its address. Raises FolderRefused, SpmdError."""
        self._setup, self._clock, self._note = setup, clock, note
        self.key = key_folder.read_key(setup.folder)
        self.address = own_address(setup)
        self._watched = watched
        self._half: _HalfOpen | None = None
        self._link: _Link | None = None
        self._try_at: float | None = 0.0
        """Time of the next attempt to find node 0; None: it was found, or has not come in time."""
        self._pause_s = _RETRY_S
        self._pending = [b"- " + wire.encode(wire.NodeJoined(self.address))]
        self._heard: list[wire.Record] = []
        self._is_leaving = False
        self._is_shut = False
        self._why = ""
        self.is_over = False
        """Whether all messages are passed on after `leave`, or node 0 cannot be reached."""

    def take(self, now: float) -> list[wire.Record]:
        """Do what is due; return the messages of node 0, or those that its loss implies."""
        if self._half is not None and now >= self._half.until:
            self._retry(f"node 0 has not answered within {HANDSHAKE_S:g} s")
        if self._try_at is not None and now >= self._try_at:
            self._try(now)
        if self._link is None and not self.is_over and now >= self._setup.start_s:
            self._give_up()
        if self._link is not None:
            if self._link.is_silent(now):
                self._lose(f"it has said nothing for {self._setup.lost_s:g} s")
            elif not self._is_shut:
                self._link.beat(now, b"- " + _BEAT)
        heard, self._heard = self._heard, []
        return heard

    def due_at(self) -> float | None:
        """Return the time at which `take` has work even if no message arrives; None: never."""
        moments = [self._try_at] if self._try_at is not None else []
        if self._half is not None:
            moments.append(self._half.until)
        if self._link is not None:
            moments.append(self._link.due_at)
        if self._heard:
            moments.append(0.0)
        return min(moments, default=None)

    def tell(self, rank: int | None, message: wire.Record) -> None:
        """Send a message to node 0; messages before the connection is made are kept for it."""
        line = (b"-" if rank is None else str(rank).encode()) + b" " + wire.encode(message)
        if self._link is not None:
            self._link.connection.write(line)
        elif not self.is_over:
            self._pending.append(line)

    def leave(self) -> None:
        """Tell node 0 that all ranks of this node have ended, and close once it knows."""
        if not self._is_leaving:
            self._is_leaving = True
            self.tell(None, wire.NodeLeft())

    def flushed(self) -> None:
        """Shut the connection after all messages have been sent. Called after each flush."""
        if self._link is not None and self._is_leaving and not self._is_shut and self._link.connection.is_flushed:
            # close() with unread input would reset the connection and drop what node 0 has not read. Node 0 closes its
            # end when it has read Left.
            self._is_shut = True
            assert isinstance(self._link.sock, socket.socket)
            with contextlib.suppress(OSError):  # the connection has ended; the next read reports it
                self._link.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the connection to node 0, if any."""
        for one in (self._half, self._link):
            if one is not None:
                self._watched.close(one.connection)

    def _try(self, now: float) -> None:
        """Read node 0's address and begin to connect."""
        self._pause_s = min(_RETRY_MOST_S, self._pause_s * 1.5)
        self._try_at = now + self._pause_s
        try:
            address = key_folder.read_address(self._setup.folder, self._setup.run, self.key)
        except FolderGone:
            self._try_at = None
            self._lose("its launcher has ended")
            return
        except (FolderRefused, OSError) as error:
            self._tell_why(str(error))
            return
        if address is None:
            return
        try:
            family, kind, protocol, _name, where = socket.getaddrinfo(
                *address, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
            )[0]
            sock = socket.socket(family, kind, protocol)
        except OSError as error:
            self._tell_why(str(error))
            return
        sock.setblocking(False)
        result = sock.connect_ex(where)
        if result not in (0, errno.EINPROGRESS):
            sock.close()
            why = errno.errorcode.get(result, result)
            self._tell_why(f"node 0 at {address[0]} port {address[1]} cannot be reached: {why}")
            return
        self._try_at = None
        side = HandshakeClient(self.key, self._setup.run, self._setup.node, 0, NODES)
        half = self._half = _HalfOpen(LineConnection(sock, CONTROL_BYTES), side, now + HANDSHAKE_S)
        self._watched.add(half.connection, lambda: self._authenticate(half))

    def _authenticate(self, half: _HalfOpen) -> None:
        if half is not self._half:
            return  # it was closed earlier in this step
        try:
            if not half.advance():
                return
        except HandshakeRefused as error:
            self._retry(f"{error} ({half.connection.end})" if half.connection.end else str(error))
            return
        self._half = None
        link = self._link = _Link(half.connection, self._setup, self._clock.now)
        self._watched.replace(link.connection, self._read)
        link.connection.write(b"".join(self._pending))
        self._pending.clear()

    def _read(self) -> None:
        link = self._link
        if link is None:
            return
        for line in link.connection.lines():
            link.heard_at = self._clock.now
            try:
                message = wire.decode(line)
            except TransportError as error:
                self._lose(str(error))
                return
            if not isinstance(message, wire.Heartbeat):
                self._heard.append(message)
        if link.connection.end is not None:
            self._lose(link.connection.end)

    def _retry(self, why: str) -> None:
        if self._half is not None:
            self._watched.close(self._half.connection)
            self._half = None
        self._try_at = self._clock.now + self._pause_s
        self._tell_why(why)

    def _tell_why(self, why: str) -> None:
        if why != self._why:
            self._why = why
            self._note(f"node 0 is not found yet: {why}")

    def _give_up(self) -> None:
        """Stop looking for node 0, and tell the ranks of this node."""
        self._try_at = None
        if self._half is not None:
            self._watched.close(self._half.connection)
            self._half = None
        self.is_over = True
        if not self._is_leaving:
            ranks = tuple(_ranks_of(self._setup)[0])
            missing = wire.RanksMissing(ranks, self._setup.start_s)
            self._heard += [missing, ends.ending(missing, 0)]

    def _lose(self, why: str) -> None:
        if self._link is not None:
            self._watched.close(self._link.connection)
            self._link = None
        self.is_over = True
        if not self._is_leaving:
            name = self._setup.nodes[0][0]
            self._note(f"node {name} is lost: {why}")
            lost = wire.NodeLoss(name, tuple(_ranks_of(self._setup)[0]))
            self._heard += [lost, ends.ending(lost, self._setup.nodes[self._setup.node][1])]


def own_address(setup: wire.Setup) -> str:
    """Return the IP address of this node. Raises SpmdError if its name has none."""
    name = setup.interface or setup.nodes[setup.node][0]
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise SpmdError(
            f"the name {name} of this node has no address ({error.strerror}); set messages.interface to one"
        ) from error


def _ranks_of(setup: wire.Setup) -> list[range]:
    """Return the ranks of each node."""
    ends = itertools.accumulate(count for _name, count in setup.nodes)
    return [range(end - count, end) for end, (_name, count) in zip(ends, setup.nodes, strict=True)]
