"""Transport over mpi4py, for ranks that `mpiexec` or `srun --mpi=...` has started.

A send copies the message and gives it to MPI; later calls check whether MPI has sent it. So a message longer than MPI's
eager limit moves only while its sender is in a call of this package.

Every message is one MPI message with the same MPI tag: a head (kind, form, context, lengths), tag, meta and body. So
messages of one rank to another arrive in the order of sending, and `transport.Queues` does the matching.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from itertools import groupby
from types import TracebackType
from typing import Any

from . import checks, frames, memory
from .bodies import Received, new_bytes
from .envelope import RAW, Envelope, Tag
from .errors import NoRoom, PeerEnded, ReceiveTimeout, TransportError, UsageError
from .names import ENV_PPYTHON_MPI, ENV_RENDEZVOUS, ENV_SEND_LIMIT, ENV_SIZE, ENV_TRANSPORT
from .rules import trees
from .transport import Buffers, NodePlace, Posted, Queues, Transport, Window, communicator_of, wanted_text

LARGE = 1 << 30
"""Size from which on messages are sent in blocks, because MPI before version 4 counts in 32 bits."""
BLOCK = 1 << 20
SPIN_S, SPIN_MOVING_S = 200e-6, 50e-3
"""Seconds for which a waiting call polls MPI without a pause if every rank has a core; and while a message moves."""
PAUSE_MIN_S, PAUSE_MAX_S = 20e-6, 1e-3
PAUSE_MOVING_S = 50e-6
"""Longest pause while a message moves: MPI moves a large one piece by piece, in each poll."""
MEMORY_PART = 4
"""Unsent messages of all ranks of a node may take up to one in so many parts of its memory."""

_HEAD = struct.Struct("<BBHIQQ")
"""Kind, form, bytes of the tag, of the meta, of the body; context."""
_DATA, _BYE = 0, 1
_ALIGNED = 64
"""The body begins at a multiple of this offset, an alignment that suits any array."""


def make_transport() -> MpiTransport:
    """Return the transport of this process; the first call starts MPI.

    From then on an uncaught exception of the program ends all ranks, as under `python -m mpi4py`, because MPI would let
    the others wait for ever. Raises TransportError if there is no mpi4py, or if it belongs to another MPI.
    """
    name, size = checks.world_size(os.environ)
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        why = f" ({name}={size})" if name else ""
        raise TransportError(
            f"messages are to go over MPI{why}, and mpi4py cannot be imported by {sys.executable}: {error}; install it "
            f"(python3 -m pip install mpi4py), or set {ENV_TRANSPORT}=own"
        ) from error
    alone = MPI.COMM_WORLD.Get_size() == 1
    if alone and ENV_RENDEZVOUS in os.environ and int(os.environ.get(ENV_SIZE) or 1) > 1:
        raise TransportError(
            f"messages are to go over mpi4py ({ENV_TRANSPORT}=mpi or {ENV_PPYTHON_MPI}=1), and neither llsub --spmd "
            f"nor -n starts an MPI: use mpiexec or `srun --mpi=`, or set {ENV_TRANSPORT}=own"
        )
    if alone and size > 1:
        library = MPI.Get_library_version().splitlines()[0].strip("\0 ")
        raise TransportError(
            f"{size} processes were started ({name}), and the MPI of mpi4py ({library}) finds itself alone: it does "
            "not know what started them; use that MPI's own mpiexec, or another `srun --mpi=`"
        )
    made = MpiTransport(MPI, MPI.COMM_WORLD.Dup())
    if made.size > 1:
        _end_all_with_an_exception(made)
    return made


def _end_all_with_an_exception(transport: MpiTransport) -> None:
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        transport.abort(1, f"{kind.__name__}: {error}")

    sys.excepthook = hook


class MpiTransport(Transport):
    """One rank of an MPI world."""

    has_windows = False

    def __init__(self, mpi: Any, comm: Any) -> None:
        """`mpi`: the module mpi4py.MPI. `comm`: a communicator for this transport alone."""
        self._mpi, self._comm = mpi, comm
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self._queues = Queues(self.rank)
        self._lock = threading.RLock()
        self._sent: deque[tuple[Any, bytes]] = deque()
        """Unfinished send requests, and the bytes of each."""
        self._sent_bytes = 0
        self._coming: dict[int, deque[tuple[Any, Any]]] = {}
        """By source: unfinished receive requests and their memory, in the order of sending."""
        self._ended: set[int] = set()
        self._closed = False
        self._status = mpi.Status()
        self._block = mpi.BYTE.Create_contiguous(BLOCK).Commit()
        self.nodes, local_size, cores = _places(mpi, comm)
        self._spin_s = SPIN_S if local_size <= cores else 0.0
        self._limit = checks.send_limit_bytes(os.environ) or memory.total_bytes() // MEMORY_PART // local_size

    def send(
        self, dest: int, context: int, tag: Tag, form: int, meta: bytes, buffers: Buffers, window: Window | None = None
    ) -> None:
        data = _pack(_DATA, context, tag, form, meta, buffers)
        with self._lock:
            self._check_open()
            if dest in self._ended:
                raise self._peer_ended(dest)
            if dest == self.rank:
                self._queues.put(_unpack(self.rank, memoryview(bytearray(data)))[1])
                self._answer()
                return
            self._wait_for_room(len(data))
            self._start_send(dest, data)
            self._progress()

    def receive(
        self, source: int | None, context: int, tag: Tag | None, call: str, timeout_s: float | None = None
    ) -> Received:
        wait = _Wait(self._spin_s)
        while True:
            with self._lock:
                self._poll()
                message = self._queues.take(source, context, tag)
                if message is None:
                    self._raise_if_nobody_sends(source, context)
            if message is not None:
                return message
            if timeout_s is not None and wait.waited_s() > timeout_s:
                whom = "any rank" if source is None else f"rank {source}"
                raise ReceiveTimeout(f"rank {self.rank} has waited {timeout_s:g} s in {call} for {whom}, tag {tag!r}")
            wait.pause(self._moves())

    def wait(self, posted: Sequence[Posted], call: str, timeout_s: float | None = None) -> None:
        wait = _Wait(self._spin_s)
        while not any(one.is_done for one in posted):
            self.poll(posted)
            if any(one.is_done for one in posted):
                return
            if timeout_s is not None and wait.waited_s() > timeout_s:
                raise ReceiveTimeout(f"rank {self.rank} has waited {timeout_s:g} s in {call} for {wanted_text(posted)}")
            wait.pause(self._moves())

    def _note_ends(self, posted: Sequence[Posted]) -> None:
        for one in posted:
            try:
                self._raise_if_nobody_sends(one.source, one.context)
            except PeerEnded as error:
                self._fail(one, error)

    def _send_answer(self, dest: int, context: int, tag: Tag) -> None:
        data = _pack(_DATA, context, tag, RAW, b"", ())
        if dest == self.rank:
            self._queues.put(_unpack(self.rank, memoryview(bytearray(data)))[1])
        elif dest not in self._ended:
            self._start_send(dest, data)

    def abort(self, code: int, why: str) -> None:
        """End every rank by MPI_Abort, which kills the other ranks: they raise nothing."""
        sys.stdout.flush()
        print(f"rank {self.rank} ends the run with code {code}: {why}", file=sys.stderr, flush=True)  # noqa: T201
        self._comm.Abort(code or 1)

    def close(self) -> None:
        """Wait until all ranks close, and receive meanwhile, so that their sends finish.

        End every rank with code 1 if the last collective calls of two ranks differ.
        """
        with self._lock:
            if self._closed or self._mpi.Is_finalized():
                self._closed = True
                return
            goodbye = _pack(_BYE, 0, 0, 0, b"", ())
            for step in range(1, self.size):
                self._start_send((self.rank + step) % self.size, goodbye)
            wait = _Wait(0.0)
            while len(self._ended) < self.size - 1 or self._sent:
                self._progress()
                wait.pause(self._moves())
            if self._queues.late is not None:
                self.abort(1, str(self._queues.late))
            self._closed = True
            self._block.Free()
            self._comm.Free()

    def _poll(self) -> None:
        self._check_open()
        self._progress()

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("this rank has ended its part of the run: no message can be sent or received any more")

    def _peer_ended(self, rank: int) -> PeerEnded:
        node = self.nodes[trees.node_of(self.nodes, rank)]
        return PeerEnded(rank, node.name, None, None, "has ended and sends nothing more")

    def _raise_if_nobody_sends(self, source: int | None, context: int) -> None:
        if source in self._ended:
            raise self._peer_ended(source)
        if source is None and self._ended:
            others = set(self._queues.members.get(communicator_of(context), range(self.size))) - {self.rank}
            if others and others <= self._ended:
                raise self._peer_ended(max(others))

    def _wait_for_room(self, size: int) -> None:
        if size > self._limit:
            raise NoRoom(
                f"a message of {size} bytes exceeds the limit of a rank's unsent messages, {self._limit} bytes; send "
                f"it in parts, or set {ENV_SEND_LIMIT}"
            )
        wait = _Wait(self._spin_s)
        while self._sent_bytes + size > self._limit:
            self._progress()
            self._sent = deque(one for one in self._sent if not one[0].Test())
            self._sent_bytes = sum(len(data) for _, data in self._sent)
            wait.pause(True)

    def _moves(self) -> bool:
        return bool(self._sent or self._coming)

    def _start_send(self, dest: int, data: bytes) -> None:
        if len(data) > LARGE:
            data += bytes(-len(data) % BLOCK)
            what = [data, len(data) // BLOCK, self._block]
        else:
            what = [data, self._mpi.BYTE]
        try:
            request = self._comm.Isend(what, dest, 0)
        except self._mpi.Exception as error:
            raise TransportError(f"MPI cannot send to rank {dest}: {error}") from error
        self._sent.append((request, data))
        self._sent_bytes += len(data)

    def _progress(self) -> None:
        """Let MPI receive and send without waiting, and queue complete messages."""
        try:
            while (found := self._comm.Improbe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG, self._status)) is not None:
                self._start_receive(found, self._status.Get_source())
            for source in list(self._coming):
                self._finish_receives(source)
            self._answer()
            while self._sent and self._sent[0][0].Test():
                self._sent_bytes -= len(self._sent.popleft()[1])
        except self._mpi.Exception as error:
            raise TransportError(f"MPI cannot go on: {error}") from error

    def _start_receive(self, found: Any, source: int) -> None:
        size = self._status.Get_count(self._mpi.BYTE)
        if size < 0 or size > LARGE:
            blocks = self._status.Get_count(self._block)
            room, what = new_bytes(blocks * BLOCK), [blocks, self._block]
        else:
            room, what = new_bytes(size), [self._mpi.BYTE]
        self._coming.setdefault(source, deque()).append((found.Irecv([room, *what]), room))

    def _finish_receives(self, source: int) -> None:
        """Queue the messages of a rank that have arrived completely."""
        coming = self._coming[source]
        while coming and coming[0][0].Test():
            kind, message = _unpack(source, coming.popleft()[1])
            if kind == _BYE:
                self._ended.add(source)
            else:
                self._queues.put(message)
        if not coming:
            del self._coming[source]


class _Wait:
    """The pauses of one waiting call: none at first, then longer and longer ones."""

    def __init__(self, spin_s: float) -> None:
        self._began = time.monotonic()
        self._spin_s = spin_s
        self._pause_s = PAUSE_MIN_S

    def waited_s(self) -> float:
        return time.monotonic() - self._began

    def pause(self, moves: bool) -> None:
        """Pause, for less time if a message `moves`."""
        spin_s = max(self._spin_s, SPIN_MOVING_S) if moves and self._spin_s else self._spin_s
        if self.waited_s() >= spin_s:
            time.sleep(min(self._pause_s, PAUSE_MOVING_S) if moves else self._pause_s)
            self._pause_s = min(self._pause_s * 1.3, PAUSE_MAX_S)


def _pack(kind: int, context: int, tag: Tag, form: int, meta: bytes, buffers: Buffers) -> bytes:
    word = frames.tag_to_bytes(tag)
    head = _HEAD.pack(kind, form, len(word), len(meta), sum(buffer.nbytes for buffer in buffers), context)
    head += word + meta
    return b"".join((head, bytes(-len(head) % _ALIGNED), *buffers))


def _unpack(source: int, data: memoryview) -> tuple[int, Received]:
    kind, form, tag_bytes, meta_bytes, size, context = _HEAD.unpack_from(data)
    after_tag = _HEAD.size + tag_bytes
    tag = frames.tag_of_bytes(bytes(data[_HEAD.size : after_tag]))
    meta = bytes(data[after_tag : after_tag + meta_bytes])
    begin = after_tag + meta_bytes
    begin += -begin % _ALIGNED
    return kind, Received(Envelope(source, context, tag, form, size, meta), [data[begin : begin + size]])


def _places(mpi: Any, comm: Any) -> tuple[tuple[NodePlace, ...], int, int]:
    """Return the nodes, and the numbers of ranks and cores of this node.

    If the ranks of a node are not consecutive, each run of consecutive ones counts as a node of that name.
    """
    here = (mpi.Get_processor_name(), tuple(os.sched_getaffinity(0)))
    everywhere = comm.allgather(here)
    nodes, first = [], 0
    for name, ranks in groupby(everywhere, key=lambda one: one[0]):
        count = len(list(ranks))
        nodes.append(NodePlace(name, first, count))
        first += count
    near = [cores for name, cores in everywhere if name == here[0]]
    return tuple(nodes), len(near), len({core for cores in near for core in cores})
