"""Runs the ranks of a test as processes, with the rendezvous of each pretended node in a thread of the test.

    results = run_ranks(4, "all_first", 100)     # rank_programs.all_first(transport, 100) on each of four ranks

As a program this module is one rank: `python in_processes.py FUNCTION FD`, with pickled arguments in standard input.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from rendezvous_ends import variables, wait_for

from slurm_share.spmd import key_folder, wire
from slurm_share.spmd.rendezvous import Rendezvous
from slurm_share.spmd.rules import ends

PATIENCE_S = 120.0
RUN = f"test-{os.getpid()}.0"
_HERE = Path(__file__)


class Run:
    """The processes and the rendezvous of one test."""

    def __init__(
        self, size: int, program: str, *args: Any, per_node: int | None = None, environ: dict[str, str] | None = None
    ) -> None:
        """`per_node`: number of ranks per pretended node; nodes use TCP between each other."""
        self.size = size
        self._per_node = per_node or size
        self._nodes = [
            (f"n{number + 1}", min(self._per_node, size - first))
            for number, first in enumerate(range(0, size, self._per_node))
        ]
        self._folder = tempfile.TemporaryDirectory()
        folder = f"{self._folder.name}/key"
        key_folder.make_folder(folder)
        self.key = key_folder.read_key(folder)
        setups = [
            wire.Setup(RUN, node, tuple(self._nodes), folder, interface="127.0.0.1") for node in range(len(self._nodes))
        ]
        self._rendezvous: list[Any] = [Rendezvous(setup, lambda _message: None) for setup in setups]
        self.name = self._rendezvous[0].ready.name
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
        self._folder.cleanup()

    def stop_rendezvous(self) -> None:
        """Close all connections of the rendezvous, as if it was killed."""
        self._stop.set()
        self._thread.join()

    def port(self, rank: int) -> int:
        """Return the TCP port of a rank."""
        return int(self._rendezvous[0]._link._state._ranks[rank].hello.port)

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

    def wait_for_start(self, then_s: float = 0.3) -> None:
        """Wait until all ranks have joined, and a moment longer."""
        wait_for(lambda: all(one._has_begun for one in self._rendezvous), "the ranks have not joined")
        time.sleep(then_s)

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
                **variables(self._rendezvous[rank // self._per_node].ready, rank, self.size, self._per_node),
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
        running = dict(enumerate(self.processes))
        while not self._stop.is_set():
            select.select(self._rendezvous, [], [], 0.02)
            for rank, process in list(running.items()):
                if process.poll() is not None:
                    del running[rank]
                    code = process.returncode
                    end = (None, -code) if code < 0 else (code, None)
                    node = rank // self._per_node
                    ended = wire.RankEnded(rank, self._nodes[node][0], *end, ends.reason(*end))
                    self._rendezvous[node].ended(ended)
            for one in self._rendezvous:
                one.step(0.0)
        for one in self._rendezvous:
            one.close()


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


def run_command(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `python -m slurm_share.spmd` with these arguments."""
    command = [sys.executable, "-m", "slurm_share.spmd", *map(str, arguments)]
    return subprocess.run(command, **{"capture_output": True, "text": True, "timeout": 4 * PATIENCE_S, **options})


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
