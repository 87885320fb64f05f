"""Runs the ranks of a test as processes, with a small rendezvous process in the test.

    results = run_ranks(4, "all_first", 100)     # rank_programs.all_first(transport, 100) on each of four ranks

As a program this module is one rank: `python in_processes.py FUNCTION FD`, with pickled arguments in standard input.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from rendezvous_ends import variables

from slurm_share.spmd import wire
from slurm_share.spmd.transport import NodePlace

PATIENCE_S = 60.0
_HERE = Path(__file__)


class Run:
    """The processes and the rendezvous of one test."""

    def __init__(
        self, size: int, program: str, *args: Any, per_node: int | None = None, environ: dict[str, str] | None = None
    ) -> None:
        """`per_node`: number of ranks per pretended node; nodes use TCP between each other."""
        self.size, self.name = size, f"slurm-share-test/{os.getpid()}/{secrets.token_hex(8)}"
        self.run_id = "test.0"
        self._per_node = per_node or size
        self._nodes = -(-size // self._per_node)
        self.key = secrets.token_hex(32) if self._nodes > 1 else ""
        self.hellos: dict[int, wire.Hello] = {}
        self.said: list[tuple[int, wire.Record]] = []
        self._ranks: dict[int, socket.socket] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind("\0" + self.name)
        self._listener.listen(256)
        self._stop = threading.Event()
        self.processes: list[subprocess.Popen[bytes]] = []
        self._results: list[int] = []
        for rank in range(size):
            self._start(rank, program, args, environ or {})
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_exception: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        self.stop_rendezvous()
        for fd in self._results:
            os.close(fd)
        self._results = []

    def stop_rendezvous(self) -> None:
        """Close all connections of the rendezvous, as if it was killed."""
        self._stop.set()
        self._thread.join()

    def results(self, patience_s: float = PATIENCE_S) -> list[Any]:
        """Return the result of each rank, or the exception that it raised; None for a rank that died."""
        until = time.monotonic() + patience_s
        found = []
        for fd in self._results:
            data = b""
            while True:
                ready, _, _ = select.select([fd], [], [], max(0.0, until - time.monotonic()))
                if not ready:
                    raise TimeoutError(f"rank {len(found)} has not finished within {patience_s} s")
                more = os.read(fd, 1 << 20)
                if not more:
                    break
                data += more
            found.append(pickle.loads(data) if data else None)
        for process in self.processes:
            process.wait(max(0.1, until - time.monotonic()))
        return found

    def wait_for_hellos(self, then_s: float = 0.3) -> None:
        """Wait until all ranks have said Hello, and a moment longer."""
        until = time.monotonic() + 30
        while len(self.hellos) < self.size and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(then_s)

    def tell(self, record: wire.Record) -> None:
        """Send a record to all ranks."""
        for sock in list(self._ranks.values()):
            with contextlib.suppress(OSError):
                sock.sendall(wire.encode(record))

    def _start(self, rank: int, program: str, args: tuple[Any, ...], environ: dict[str, str]) -> None:
        reading, writing = os.pipe()
        process = subprocess.Popen(
            [sys.executable, str(_HERE), program, str(writing)],
            stdin=subprocess.PIPE,
            pass_fds=[writing],
            cwd=_HERE.parent,
            env={
                **os.environ,
                "PYTHONPATH": str(_HERE.parents[3]),
                **variables(wire.Ready(self.name, "127.0.0.1"), rank, self.size, self._per_node),
                **environ,
            },
        )
        os.close(writing)
        assert process.stdin is not None
        process.stdin.write(pickle.dumps(args))
        process.stdin.close()
        self.processes.append(process)
        self._results.append(reading)

    def _serve(self) -> None:
        readers: dict[socket.socket, bytes] = {}
        told: set[int] = set()
        while not self._stop.is_set():
            ready, _, _ = select.select([self._listener, *readers], [], [], 0.02)
            for sock in ready:
                if sock is self._listener:
                    readers[sock.accept()[0]] = b""
                else:
                    self._read(sock, readers)
            for rank, process in enumerate(self.processes):
                if rank not in told and process.poll() is not None:
                    told.add(rank)
                    code = process.returncode
                    why = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
                    end = (None, -code) if code < 0 else (code, None)
                    self.tell(wire.Ended(rank, self._node(rank), *end, why))
        for sock in (self._listener, *readers):
            sock.close()

    def _node(self, rank: int) -> str:
        return f"n{rank // self._per_node + 1}"

    def _read(self, sock: socket.socket, readers: dict[socket.socket, bytes]) -> None:
        try:
            data = sock.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            del readers[sock]
            sock.close()
            return
        *lines, readers[sock] = (readers[sock] + data).split(b"\n")
        for record in map(wire.decode, lines):
            if isinstance(record, wire.Hello):
                self.hellos[record.rank] = record
                self._ranks[record.rank] = sock
                if len(self.hellos) == self.size:
                    self.tell(self._welcome())
            else:
                rank = next((rank for rank, one in self._ranks.items() if one is sock), -1)
                self.said.append((rank, record))
                if isinstance(record, wire.Abort):
                    self.tell(wire.Aborted(rank, record.code, record.why))

    def _welcome(self) -> wire.Welcome:
        nodes = tuple(
            NodePlace(self._node(first), first, min(self._per_node, self.size - first), "127.0.0.1")
            for first in range(0, self.size, self._per_node)
        )
        ports = tuple(self.hellos[rank].port for rank in range(self.size))
        return wire.Welcome(self.size, nodes, ports, f"{self.name}/r", self.key, self.run_id)


def run_ranks(size: int, program: str, *args: Any, patience_s: float = PATIENCE_S, **options: Any) -> list[Any]:
    """Run a function of `rank_programs` on `size` ranks and return all results. Raises the first error of a rank."""
    with Run(size, program, *args, **options) as run:
        found = run.results(patience_s)
        codes = [process.returncode for process in run.processes]
    for one in found:
        if isinstance(one, BaseException):
            raise one
    assert codes == [0] * size
    return found


def _rank(program: str, fd: int) -> None:
    args = pickle.load(sys.stdin.buffer)
    import rank_programs

    from slurm_share.spmd import world

    try:
        result = getattr(rank_programs, program)(world.transport(), *args)
        data = pickle.dumps(result)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the test looks at it
        traceback.print_exc()
        data = pickle.dumps(error)
    with open(fd, "wb") as stream:
        stream.write(data)


if __name__ == "__main__":
    _rank(sys.argv[1], int(sys.argv[2]))
