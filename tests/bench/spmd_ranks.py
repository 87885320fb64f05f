"""Program of each rank in tests/bench/spmd.py, over slurm_share.spmd, mpi4py, pPython or plain sockets.

The bench starts it in the peer's own Python, which has NumPy. SPMD_BENCH names a JSON file with the plan. Every rank
writes its number, process and versions into the plan's folder, and rank 0 writes the measured seconds.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

DROPPED = 2
"""Number of first samples to drop, in which connections and memory are made."""
SIDE = 4096
LARGE = 1 << 20
"""Size from which on an array is written before both ends meet; a smaller one changes in its first and last element."""
WORK = 1_000_000


class SameNames:
    """Calls with the same names in slurm_share.spmd and in mpi4py."""

    comm: Any

    def send(self, array: Any, dest: int) -> None:
        self.comm.Send(array, dest)

    def receive(self, room: Any, source: int) -> Any:
        self.comm.Recv(room, source)
        return room

    def send_object(self, value: Any, dest: int) -> None:
        self.comm.send(value, dest)

    def receive_object(self, source: int) -> Any:
        return self.comm.recv(source=source)

    def bcast(self, array: Any) -> Any:
        self.comm.Bcast(array)
        return array


class Ours(SameNames):
    def __init__(self) -> None:
        import importlib.metadata

        from slurm_share import spmd
        from slurm_share.spmd import dmat

        self.spmd, self.comm, self.dmat = spmd, spmd.COMM_WORLD, dmat
        self.rank, self.size = self.comm.rank, self.comm.size
        self.version = f"slurm-share {importlib.metadata.version('slurm-share')}, NumPy {np.__version__}"

    def barrier(self) -> None:
        self.comm.barrier()

    def gathered(self, part: Any) -> Callable[[], Any]:
        whole = self.spmd.from_local(
            part.reshape(1, -1), self.spmd.Map((1, self.size), "b"), (1, part.size * self.size)
        )
        return lambda: whole.gather(0)

    def moved(self, rows: Any, to: str) -> Callable[[], Any]:
        before, after = self.spmd.Map((self.size, 1), "b"), ("b" if to == "columns" else {"dist": "bc", "b_size": 3})
        array = self.spmd.from_local(rows, before, (SIDE, SIDE))
        wanted = self.spmd.Map((1, self.size), after)
        return lambda: array.redistribute(wanted).local


class Mpi(SameNames):
    """Calls of mpi4py, as in its tutorial."""

    def __init__(self) -> None:
        import mpi4py
        from mpi4py import MPI

        self.mpi, self.comm = MPI, MPI.COMM_WORLD
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        library = MPI.Get_library_version().splitlines()[0].strip("\0 ")
        self.version = f"mpi4py {mpi4py.__version__}, {' '.join(library.split())}, NumPy {np.__version__}"

    def barrier(self) -> None:
        self.comm.Barrier()

    def gathered(self, part: Any) -> Callable[[], Any]:
        room = np.empty((1, part.size * self.size)) if self.rank == 0 else None

        def gather() -> Any:
            self.comm.Gather(part, room)
            return room

        return gather

    def moved(self, rows: Any, to: str) -> Callable[[], Any]:
        places = [_columns(to, rank, self.size) for rank in range(self.size)]
        here, all_rows = places[self.rank], np.array_split(np.arange(SIDE), self.size)
        counts = [len(rows) * len(_indices(place)) for place in places]
        coming = [len(part) * len(_indices(here)) for part in all_rows]

        def move() -> Any:
            packed = np.concatenate([rows[:, place].reshape(-1) for place in places])
            room = np.empty(sum(coming))
            self.comm.Alltoallv([packed, counts], [room, coming])
            return room.reshape(SIDE, -1)

        return move


class PPython:
    """Calls of pPython, in a run of its pRUN."""

    def __init__(self) -> None:
        import pPython
        from pPython.dmat import agg, put_local
        from pPython.map import Dmap, zeros
        from pPython.utils import BcastMsg, RecvMsg, SendMsg
        from pPython_ver import pPython_ver

        self.calls = (SendMsg, RecvMsg, BcastMsg, agg, put_local, Dmap, zeros)
        self.rank, self.size, self.tags = pPython.Pid, pPython.Np, {"message": 0, "bcast": 0}
        self.version = f"pPython {pPython_ver()}, NumPy {np.__version__}"
        self.tiny = zeros(1, self.size, map=self._map([1, self.size], {}))

    def _map(self, grid: list[int], how: Any) -> Any:
        return self.calls[5](grid, how, range(self.size))

    def _next(self, kind: str = "message") -> str:
        self.tags[kind] += 1  # a second message of the same tag takes the place of the first
        return f"{kind}{self.tags[kind]}"

    def send(self, array: Any, dest: int) -> None:
        self.calls[0](dest, self._next(), array)

    def receive(self, room: Any, source: int) -> Any:
        return self.calls[1](source, self._next())[0]

    def send_object(self, value: Any, dest: int) -> None:
        self.send(value, dest)

    def receive_object(self, source: int) -> Any:
        return self.receive(None, source)

    def barrier(self) -> None:
        self.calls[3](self.tiny)

    def bcast(self, array: Any) -> Any:
        return self.calls[2](0, self._next("bcast"), array)[0]

    def gathered(self, part: Any) -> Callable[[], Any]:
        whole = self.calls[6](1, part.size * self.size, map=self._map([1, self.size], {}))
        self.calls[4](whole, part.reshape(1, -1))
        return lambda: self.calls[3](whole)

    def moved(self, rows: Any, to: str) -> Callable[[], Any]:
        array = self.calls[6](SIDE, SIDE, map=self._map([self.size, 1], {}))
        self.calls[4](array, rows)
        how = {} if to == "columns" else {"dist": "bc", "b_size": 3}
        target = self.calls[6](SIDE, SIDE, map=self._map([1, self.size], how))

        def move() -> Any:
            target[:, :] = array
            return target.local

        return move


class OursAsPPython:
    """pPython's calls for messages, as slurm_share.spmd has them."""

    def __init__(self, ours: Any) -> None:
        from slurm_share.spmd.ppython import messages

        self.rank, self.barrier, self.tag = ours.rank, ours.barrier, 0
        self._send, self._receive = messages.SendMsg, messages.RecvMsg

    def send(self, array: Any, dest: int) -> None:
        self.tag += 1
        self._send(dest, f"message{self.tag}", array)

    def receive(self, room: Any, source: int) -> Any:
        self.tag += 1
        return self._receive(source, f"message{self.tag}")[0]


class Sockets:
    """Two processes and one TCP connection between them, without any frame: the limit of two nodes."""

    def __init__(self) -> None:
        self.rank, self.size, self.version = int(os.environ["SPMD_RANK"]), 2, f"plain sockets, NumPy {np.__version__}"
        address = (os.environ["SPMD_ADDRESS"], int(os.environ["SPMD_PORT"]))
        if self.rank == 0:
            with socket.create_server(address) as listener:
                self.link = listener.accept()[0]
        else:
            self.link = self._connected(address)
        self.link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _connected(self, address: tuple[str, int]) -> socket.socket:
        until = time.monotonic() + 20
        while True:
            try:
                return socket.create_connection(address, timeout=None)
            except ConnectionRefusedError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)

    def send(self, array: Any, dest: int) -> None:
        self.link.sendall(memoryview(array).cast("B"))

    def receive(self, room: Any, source: int) -> Any:
        view = memoryview(room).cast("B")
        while view:
            view = view[self.link.recv_into(view) :]
        return room

    def barrier(self) -> None:
        self.link.sendall(b"x")
        self.link.recv(1)


PEERS: dict[str, Callable[[], Any]] = {"ours": Ours, "mpi4py": Mpi, "pPython": PPython, "sockets": Sockets}


def _indices(place: Any) -> Any:
    return np.arange(SIDE)[place]


def _columns(to: str, rank: int, size: int) -> Any:
    """Return the columns of a rank: a slice of a block, else the indices of blocks of three."""
    if to == "columns":
        edges = [len(part) for part in np.array_split(np.arange(SIDE), size)]
        return slice(sum(edges[:rank]), sum(edges[: rank + 1]))
    return np.flatnonzero(np.arange(SIDE) // 3 % size == rank)


def one_way(peer: Any, nbytes: int, count: int, as_object: bool) -> list[float]:
    """Seconds of half a round trip between ranks 0 and 1; the others wait.

    Contiguous float64 arrays with new contents each time; who fills an existing array (pPython makes one) fills the
    same one. A large array is written before both ends have met, so that this is not in the time.
    """
    array = np.full(max(nbytes // 8, 1), 0.5)
    room, small, samples = np.empty_like(array), (1, "x"), []
    other = 1 - peer.rank
    for number in range(count + DROPPED):
        if nbytes >= LARGE:
            array.fill(number)
            peer.barrier()
        array[0] = array[-1] = number
        if peer.rank > 1:
            continue
        begin = time.perf_counter()
        for sends in (peer.rank == 0, peer.rank == 1):
            if sends and as_object:
                peer.send_object(small if nbytes == 0 else array, other)
            elif sends:
                peer.send(array, other)
            elif as_object:
                got = peer.receive_object(other)
            else:
                got = peer.receive(room, other)
        samples.append((time.perf_counter() - begin) / 2)
        assert got == small if as_object and nbytes == 0 else got[0] == got[-1] == number, got
    peer.barrier()
    return samples[DROPPED:]


def work() -> None:
    """Compute for some milliseconds without a system call."""
    sum(range(WORK))


def unequal(peer: Any, how: str, count: int) -> list[float]:
    """Return the seconds of turns in which half of the ranks compute and the others wait, in a receive or a barrier."""
    array = np.ones(1024)
    room, samples = np.empty_like(array), []
    for number in range(count + DROPPED):
        peer.barrier()
        begin = time.perf_counter()
        computes = (peer.rank + number) % 2 == 0
        if computes:
            work()
        if how == "receive" and computes:
            peer.send(array, peer.rank ^ 1)
        elif how == "receive":
            peer.receive(room, peer.rank ^ 1)
        peer.barrier()
        samples.append(time.perf_counter() - begin)
    return samples[DROPPED:]


def idle(peer: Any, seconds: float) -> list[float]:
    """Measure a rank 0 that computes and a rank 1 that waits for it.

    Returns the voluntary context switches and the threads of rank 0, and the share of a core, in percent, and the
    voluntary context switches of rank 1.
    """
    found = np.zeros(2)
    peer.barrier()
    begin, cpu, switches = time.perf_counter(), time.process_time(), _status("voluntary_ctxt_switches")
    if peer.rank == 0:
        while time.perf_counter() - begin < seconds:
            pass
        mine = [_status("voluntary_ctxt_switches") - switches, _status("Threads")]
        peer.send(found, 1)
        theirs = peer.receive(found, 1)
    else:
        peer.receive(found, 0)
        percent = 100 * (time.process_time() - cpu) / (time.perf_counter() - begin)
        mine = [percent, _status("voluntary_ctxt_switches") - switches]
        theirs = np.array(mine)
        peer.send(theirs, 0)
    peer.barrier()
    return [*map(float, mine), *map(float, theirs)]


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))


def together(peer: Any, call: Callable[[], Any], is_right: Callable[[Any], bool], count: int) -> list[float]:
    """Return the seconds of a collective call and a barrier."""
    samples = []
    for _ in range(count + DROPPED):
        peer.barrier()
        begin = time.perf_counter()
        got = call()
        peer.barrier()
        samples.append(time.perf_counter() - begin)
        assert is_right(got), got
    return samples[DROPPED:]


def measure(peer: Any, what: str, size: Any, count: int) -> list[float]:
    if what == "ppython":
        return one_way(peer if isinstance(peer, PPython) else OursAsPPython(peer), size, count, False)
    if what in ("latency", "object"):
        return one_way(peer, size, count, what == "object")
    if what == "unequal":
        return unequal(peer, size, count)
    if what == "idle":
        return idle(peer, size)
    if what == "barrier":
        return together(peer, lambda: None, lambda _: True, count)
    if what == "bcast":
        values = np.full(size // 8, 2.5 if peer.rank == 0 else 0.0)
        return together(peer, lambda: peer.bcast(values), lambda got: got[0] == got[-1] == 2.5, count)
    if what == "agg":
        gather = peer.gathered(np.full(size // 8, float(peer.rank)))
        whole = (1, size // 8 * peer.size)
        right = lambda got: peer.rank > 0 or (got.shape == whole and got[0, -1] == peer.size - 1)  # noqa: E731
        return together(peer, gather, right, count)
    first = sum(len(part) for part in np.array_split(np.arange(SIDE), peer.size)[: peer.rank])
    rows = np.arange(first * SIDE, (first + len(np.array_split(np.arange(SIDE), peer.size)[peer.rank])) * SIDE)
    move = peer.moved(rows.astype(np.float64).reshape(-1, SIDE), size)
    mine = _indices(_columns(size, peer.rank, peer.size))
    right = lambda got: got.shape == (SIDE, len(mine)) and (got[-1] == (SIDE - 1) * SIDE + mine).all()  # noqa: E731
    return together(peer, move, right, count)


def limit(what: str, size: int, count: int) -> list[float]:
    """Seconds of one copy of that many bytes in one process, or of what `unequal` computes.

    `copy`: one array to another, `copies`: to 32 others in turn, as the ranks of a node have one each.
    """
    source, targets, samples = np.ones(max(size // 8, 1)), np.ones((32 if what == "copies" else 1, size // 8 or 1)), []
    for number in range(count + DROPPED):
        begin = time.perf_counter()
        if what == "work":
            work()
        else:
            np.copyto(targets[number % len(targets)], source)
        samples.append(time.perf_counter() - begin)
    return samples[DROPPED:]


def main() -> None:
    plan = json.loads(Path(os.environ["SPMD_BENCH"]).read_text())
    folder = Path(plan["folder"])
    if plan["peer"] == "limit":
        _write(folder / f"limit.{os.getpid()}.json", [limit(*one) for one in plan["what"]])
        return
    peer = PEERS[plan["peer"]]()
    peer.barrier()
    ready = time.monotonic()
    who = {"pid": os.getpid(), "size": peer.size, "version": peer.version, "python": sys.version.split()[0]}
    _write(folder / f"rank.{peer.rank}.json", {**who, "ready": ready})
    samples = []
    for one in plan["what"]:
        samples.append(measure(peer, *one))
        if peer.rank == 0:  # after each: what was measured before a peer stops counts
            _write(folder / "samples.json", samples)
    print("SUCCESS")


def _write(file: Path, value: object) -> None:
    """Write a file atomically."""
    file.with_suffix(".new").write_text(json.dumps(value))
    file.with_suffix(".new").replace(file)


if __name__ == "__main__":
    main()
