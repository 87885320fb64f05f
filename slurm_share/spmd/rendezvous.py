"""Rendezvous process of a node: the ranks of a run find each other through it and learn which ranks end or wait.

Use by its parent, the launcher (`local` runs the same code within its own process):

1. The parent starts `python -m slurm_share.spmd.rendezvous` with pipes for standard input and output, and writes the
   line `wire.encode(Setup(...))`. The line does not contain the key: for a run of several nodes,
   `key_folder.make_folder(folder)` is called once at submission, and the process of each node reads the key there.
2. The parent reads lines from standard output, `wire.decode(line)`. The first is `Ready`. Then the parent starts the
   ranks, with LLSUB_RENDEZVOUS = `ready.name`, LLSUB_ADDRESS = `ready.address` and the numbers of rank, size and node.
   If the process cannot work, it ends with code 1 instead and writes the reason to standard error.
3. The parent writes `Ended(rank, node, code, signal, why)` for each rank of its node that ends, also with code 0.
   `rules.ends.reason` makes the clause `why`. Empty lines are ignored.
4. The parent reads `RankWaits` (which rank waits for what), `Note` (lines for the node's log), `NodeLoss` (a node does
   not answer any more) and at most one `Ending`: the run must end. All ranks know by then, so their calls raise. The
   parent waits END_GRACE_S, sends SIGTERM to the remaining ranks, then SIGKILL. `Ending` comes on every node, with the
   same exit code and sentence.
5. The process ends with code 0 when it is no longer needed: when all ranks of its node have ended, on node 0 when all
   ranks of the run have ended. The parent waits for that before it exits, which keeps node 0 until the others are done.
   If standard input ends, the parent has died, and the process ends at once.

The process never blocks on one connection. Standard library only.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import socket
import sys
from collections.abc import Callable

from . import wire
from .errors import SpmdError, TransportError
from .lines import AwakeClock, ConnectionSet, LineConnection
from .names import CONTROL_BYTES, HALF_OPEN, MOST_RANKS, MOST_RANKS_PER_NODE, RANK_LINE_BYTES, REFUSALS_NAMED, VERSION
from .node_links import Center, Uplink
from .rules import ends
from .system import peer_uid, raise_file_limit

_BACKLOG = 4096
_RUN_BYTES = 48
"""Limit of a run's name: the room that is left for it in the name of a rank's socket."""
_PASSES = 100
_PR_SET_PDEATHSIG = 1


class _Client:
    """A connection to this node's socket; the connection of a rank after its Hello."""

    def __init__(self, connection: LineConnection) -> None:
        self.connection = connection
        self.rank: int | None = None
        self.pid = 0
        """Process id from Hello, for messages only."""
        self.is_done = False
        """Whether it has sent Bye."""


class Rendezvous:
    """The rendezvous of one node. The caller calls `step` when `fileno` is readable or `due_s` has passed.

    Raises SpmdError or OSError if the node cannot take part.
    """

    def __init__(self, setup: wire.Setup, say: Callable[[wire.Record], None]) -> None:
        """`say` gets the messages for the parent: RankWaits, Ending, Note. The parent starts ranks after `ready`."""
        _check(setup)
        self._setup, self._say = setup, say
        self._first = sum(count for _name, count in setup.nodes[: setup.node])
        self._count = setup.nodes[setup.node][1]
        self._clock = AwakeClock(2 * setup.heartbeat_s)
        self._selector = selectors.DefaultSelector()
        self._listener, name = _listen(setup)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._sockets = f"{name}/r"
        self._watched = ConnectionSet(self._selector)
        self._half_open: dict[_Client, None] = {}
        """Connections without Hello, the oldest first."""
        self._refused: set[_Client] = set()
        """Connections to close once the reason is written."""
        self._ranks: dict[int, _Client] = {}
        """All ranks that have sent Hello, by number."""
        self._left_to_end = set(range(self._first, self._first + self._count))
        self._before_begin: list[bytes] = []
        """Lines for ranks whose Hello comes after the run can no longer begin."""
        self._has_begun = False
        self._is_ending = False
        self._asked: int | None = None
        """Number of Ask of node 0, until it is answered."""
        self._refusals = 0
        self._link: Center | Uplink
        if setup.node == 0:
            self._link = Center(setup, self._watched, self._clock, self._note, self._refused_one)
        else:
            self._link = Uplink(setup, self._watched, self._clock, self._note)
        self.ready = wire.Ready(name, self._link.address)

    def fileno(self) -> int:
        """Return a file descriptor that is readable when `step` has work."""
        return self._selector.fileno()

    def due_s(self) -> float:
        """Return the seconds after which `step` has work even if nothing is readable."""
        if self._asked is not None:
            return 0.0
        moment = self._link.due_at()
        left_s = self._setup.heartbeat_s if moment is None else moment - self._clock.now
        return max(0.0, min(left_s, self._setup.heartbeat_s))

    @property
    def is_over(self) -> bool:
        """Whether this node is done: all its ranks (on node 0 all of the run) have ended, and all nodes know."""
        return not self._left_to_end and self._link.is_over

    def step(self, timeout_s: float) -> None:
        """Wait for work, at most `timeout_s`, and do it."""
        self._pass(timeout_s)
        if self._asked is not None:
            for _turn in range(_PASSES):
                if not self._pass(0.0):
                    # Nothing is left to read: all earlier messages are passed on.
                    number, self._asked = self._asked, None
                    self._link.tell(None, wire.DrainAnswer(number))
                    self._after()
                    break
        self._flush()

    def ended(self, message: wire.RankEnded) -> None:
        """Note that a rank of this node has ended, as its parent reports. The next `step` tells the others."""
        if message.rank not in self._left_to_end:
            return
        client = self._ranks.get(message.rank)
        if client is not None:
            # Its last messages come before its end.
            while client.connection.end is None and (lines := client.connection.lines()):
                self._lines_of(client, lines)
        self._left_to_end.discard(message.rank)
        self._link.tell(message.rank, message)
        if not self._left_to_end and isinstance(self._link, Uplink):
            self._link.leave()

    def close(self) -> None:
        """Close all sockets; remaining ranks lose their connection."""
        for client in [*self._half_open, *self._ranks.values()]:
            self._drop(client)
        self._link.close()
        self._listener.close()
        self._selector.close()

    def watch(self, connection: LineConnection, ready: Callable[[], None]) -> None:
        """Serve the parent's connection in `step` too."""
        self._watched.add(connection, ready)

    def _pass(self, timeout_s: float) -> bool:
        """Wait for events and handle them, then do what is due. Return whether there were events."""
        self._flush()
        events = self._selector.select(max(0.0, min(timeout_s, self.due_s())))
        self._clock.step()
        for key, _mask in events:
            key.data()
        self._after()
        return bool(events)

    def _after(self) -> None:
        """Do what is due, and pass on all messages."""
        for message in self._link.take(self._clock.now):
            self._apply(message)

    def _apply(self, message: wire.Record) -> None:
        """Do this node's part of a message to all nodes."""
        if isinstance(message, wire.DrainQuestion):
            self._asked = message.number
        elif isinstance(message, wire.RunEnding):
            if not self._is_ending:
                self._is_ending = True
                self._say(message)
        elif isinstance(message, wire.Note):
            if self._setup.node == 0:
                self._say(message)
        else:
            if isinstance(message, wire.NodeLoss):
                self._say(message)
            if isinstance(message, wire.Welcome):
                self._has_begun = True
                message = message.changed(sockets=self._sockets, key=self._link.key.hex())
            line = wire.encode(message)
            if not self._has_begun:
                self._before_begin.append(line)
            for client in self._ranks.values():
                client.connection.write(line)

    def _accept(self) -> None:
        for _turn in range(HALF_OPEN):
            try:
                sock, _nothing = self._listener.accept()
            except OSError:
                return  # no connection is left, or no file descriptor is free
            uid = peer_uid(sock)
            if uid != os.geteuid():
                self._refused_one(f"a connection of uid {uid} was refused: this run is uid {os.geteuid()}'s")
                sock.close()
                continue
            client = _Client(LineConnection(sock, RANK_LINE_BYTES))
            self._half_open[client] = None
            self._watched.add(client.connection, lambda client=client: self._ready(client))  # type: ignore[misc]
            # All ranks of the node may connect at the same moment, so they do not count.
            if len(self._half_open) > HALF_OPEN + self._count:
                oldest = next(iter(self._half_open))
                self._ready(oldest)  # its Hello may have arrived in the meantime
                if oldest in self._half_open:
                    self._drop(oldest)

    def _ready(self, client: _Client) -> None:
        if client.connection.end is None:
            self._lines_of(client, client.connection.lines())
        if client.connection.end is not None:
            if client.connection.is_broken:
                self._refused_one(f"{_name_of(client)} was disconnected: {client.connection.end}")
            self._drop(client)

    def _lines_of(self, client: _Client, lines: list[bytes]) -> None:
        for line in lines:
            if client in self._refused or client.connection.end is not None:
                return
            try:
                message = wire.decode(line)
            except TransportError as error:
                self._refuse(client, str(error))
                return
            if client.rank is None:
                self._hello(client, message)
            elif isinstance(
                message, wire.RankWaiting | wire.RankWorking | wire.Bye | wire.RunAborted | wire.CallMismatch
            ):
                client.is_done = client.is_done or isinstance(message, wire.Bye)
                self._report(client.rank, message)
                self._link.tell(client.rank, message)
            else:
                self._refuse(client, f"a rank does not send {type(message).__name__} here")

    def _hello(self, client: _Client, message: wire.Record) -> None:
        here = range(self._first, self._first + self._count)
        why = ""
        if not isinstance(message, wire.Hello):
            why = f"a rank sends Hello first, not {type(message).__name__}"
        elif message.version != VERSION:
            why = (
                f"this program has version {message.version} of slurm_share.spmd's protocol, the run has {VERSION}: "
                "reinstall slurm_share in the program's Python (slurm-share pip-line prints the command)"
            )
        elif message.rank not in here:
            why = f"there is no rank {message.rank} on this node; it has ranks {here[0]} to {here[-1]}"
        elif message.rank in self._ranks:
            first = self._ranks[message.rank]
            why = (
                f"process {first.pid} {'has been' if first.is_done else 'is'} rank {message.rank}, and a rank is one "
                "process from its first message to its end"
            )
        elif message.rank not in self._left_to_end:
            why = f"rank {message.rank} has ended; this process is left over from it"
        if why or not isinstance(message, wire.Hello):
            self._refuse(client, why)
            return
        client.rank, client.pid = message.rank, message.pid
        self._half_open.pop(client, None)
        self._ranks[message.rank] = client
        for line in self._before_begin:
            client.connection.write(line)
        self._link.tell(message.rank, message)

    def _report(self, rank: int, message: wire.Record) -> None:
        if isinstance(message, wire.RankWaiting):
            self._say(wire.RankWaits(rank, ends.wait_text(message), message.since_s))
        elif isinstance(message, wire.RankWorking | wire.Bye):
            self._say(wire.RankWaits(rank, "", 0.0))

    def _refuse(self, client: _Client, why: str) -> None:
        self._refused_one(f"{_name_of(client)} was disconnected: {why}")
        self._refused.add(client)
        client.connection.write(wire.encode(wire.RankRefused(why)))

    def _flush(self) -> None:
        self._watched.flush()
        for client in [client for client in self._refused if client.connection.is_flushed]:
            self._drop(client)
        if isinstance(self._link, Uplink):
            self._link.flushed()

    def _drop(self, client: _Client) -> None:
        self._half_open.pop(client, None)
        self._refused.discard(client)
        self._watched.close(client.connection)

    def _note(self, text: str) -> None:
        self._say(wire.Note(text))

    def _refused_one(self, text: str) -> None:
        self._refusals += 1
        if self._refusals <= REFUSALS_NAMED:
            more = "; further ones are not named" if self._refusals == REFUSALS_NAMED else ""
            self._note(text + more)


def main() -> int:
    """Serve a launcher through standard input and output; return the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # both go to all processes of a step; this process ends with its parent
    end_with_parent()
    raise_file_limit()
    reader = LineConnection(sys.stdin.buffer, CONTROL_BYTES)  # reads the descriptor, not the buffer
    writer = LineConnection(sys.stdout.buffer, CONTROL_BYTES)
    lines: list[bytes] = []
    while not lines and reader.end is None:
        select.select([reader.file], [], [])
        lines = reader.lines()
    try:
        setup = wire.decode(lines.pop(0) if lines else b"")
        if not isinstance(setup, wire.Setup):
            raise TransportError(f"the first line is Setup, not {type(setup).__name__}")
        node = Rendezvous(setup, lambda message: writer.write(wire.encode(message)))
    except (SpmdError, OSError) as error:
        sys.stderr.write(f"slurm_share.spmd: {error}\n")
        return 1
    writer.write(wire.encode(node.ready))

    def read_parent() -> None:
        nonlocal lines
        for line in lines + reader.lines():
            message = wire.decode(line)
            if isinstance(message, wire.RankEnded):
                node.ended(message)
        lines = []

    node.watch(reader, read_parent)
    node.watch(writer, lambda: None)
    read_parent()
    while not node.is_over and reader.end is None and not _has_no_reader(1):
        node.step(node.due_s())
    os.set_blocking(1, True)
    writer.flush()
    return 0


def _has_no_reader(pipe: int) -> bool:
    """Return whether the read end of a pipe is closed."""
    poller = select.poll()
    poller.register(pipe, 0)
    return bool(poller.poll(0))


def end_with_parent() -> None:
    """Make the kernel kill this process when the thread that started it ends (PR_SET_PDEATHSIG)."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _name_of(client: _Client) -> str:
    return "a process" if client.rank is None else f"rank {client.rank}"


def _check(setup: wire.Setup) -> None:
    size = sum(count for _name, count in setup.nodes)
    most = max(count for _name, count in setup.nodes)
    if size > MOST_RANKS or most > MOST_RANKS_PER_NODE:
        raise SpmdError(
            f"a run has at most {MOST_RANKS} ranks, and {MOST_RANKS_PER_NODE} on a node; this one has {size}, "
            f"and {most} on a node"
        )
    if "/" in setup.run or not setup.run.strip(".") or len(setup.run.encode()) > _RUN_BYTES:
        raise SpmdError(
            f"{setup.run!r} cannot name a run: a name must be a valid file name of at most {_RUN_BYTES} bytes"
        )


def _listen(setup: wire.Setup) -> tuple[socket.socket, str]:
    """Return the socket for this node's ranks and its abstract name, without the NUL byte."""
    name = f"slurm-share/{setup.run}/{setup.node}/{os.urandom(16).hex()}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(b"\0" + name.encode())
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener, name


if __name__ == "__main__":
    sys.exit(main())
