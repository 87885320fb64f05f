"""Runs of ranks for tests of the launcher, with programs that implement the protocol of the rendezvous process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from launches import PATIENCE_S, QUIET, Launched, alive, children, read_proc, wait_for

from slurm_share.packing import ProgressReader, RankWait
from slurm_share.triples import run_folder
from slurm_share.triples.records import Run, Triple

ROOT = Path(__file__).parents[4]

LAUNCH = """
import sys
from slurm_share.triples.launcher import guard, rank_group
rank_group.END_GRACE_S = {}
guard.LOST_NODE_S = 0.1
from slurm_share.cli.main import main
sys.exit(main())
"""
"""The launcher, with less patience than it has in earnest."""
RANK = f"""#!{sys.executable}
import json, os, signal, socket, sys, time
sys.path.insert(0, {str(ROOT)!r})
from slurm_share.spmd import wire
rank = int(os.environ["LLSUB_RANK"])
link = socket.socket(socket.AF_UNIX)
link.connect("\\0" + os.environ["LLSUB_RENDEZVOUS"])
lines = link.makefile("rb")
def say(message):
    link.sendall(wire.encode(message))
def hear():
    line = lines.readline()
    return wire.decode(line) if line else None
say(wire.Hello(rank, os.getpid(), 1234))
welcome = hear()
print("socket", os.environ["LLSUB_RENDEZVOUS"])
print("ready", welcome, flush=True)
"""
"""The beginning of a rank: it has said hello and has been welcomed."""
FOLLOW = RANK + "message = hear()\nprint('heard', message, flush=True)\nsys.exit(3)\n"
"""A rank that waits until it hears of an end, and gives up."""


class Ranks(Launched):
    """A run's folder, and the launchers of its nodes on this machine."""

    def __init__(
        self, folder: Path, text: str, per_node: int, nodes: int = 1, *, grace_s: float = 60.0, **more: Any
    ) -> None:
        """`grace_s`: stands for END_GRACE_S, between the end of one rank and SIGTERM for the others. Long, so that
        ranks on a busy machine hear of the end and end themselves."""
        self.grace_s = grace_s
        script = folder / "prog.py"
        script.write_text(text)
        script.chmod(0o755)
        count = per_node * nodes
        what = {"command": (str(script),), "together": True, **more}
        run = Run(name="prog.py", cwd=str(folder), triple=Triple(nodes, per_node), processes=count, tasks=count, **what)
        super().__init__(folder / "LLSUB.1", run)
        if nodes > 1:
            run_folder.make_key(self.folder)
        self.nodes = nodes
        self.launchers: list[subprocess.Popen[str]] = []

    def start(self, restart: int = 0, only: tuple[int, ...] | None = None, **environ: str) -> Ranks:
        """Begin. Several nodes are several addresses of this machine."""
        for node in range(self.nodes) if only is None else only:
            slurm = {}
            if self.nodes > 1:
                names = [f"127.0.0.{number + 1}" for number in range(self.nodes)]
                slurm = {
                    "SLURM_JOB_ID": "4711",
                    "SLURM_NODEID": str(node),
                    "SLURM_NNODES": str(self.nodes),
                    "SLURMD_NODENAME": names[node],
                    "SLURM_STEP_NODELIST": ",".join(names),
                    "SLURM_RESTART_COUNT": str(restart),
                }
            argv = [sys.executable, "-c", LAUNCH.format(self.grace_s), "launch", str(self.folder)]
            self.launchers.append(self.launch(argv, {**QUIET, **slurm, **environ}))
        return self

    def end(self) -> tuple[list[int], str]:
        said = [launcher.communicate(timeout=PATIENCE_S)[0] for launcher in self.launchers]
        codes = [launcher.returncode for launcher in self.launchers]
        self.launchers = []
        return codes, "\n".join(said)

    def go(self, **environ: str) -> tuple[list[int], str]:
        return self.start(**environ).end()

    def start_ready(self) -> Ranks:
        """Begin, and wait until each rank is ready."""
        self.start()
        wait_for(lambda: all("ready" in self.log(rank) for rank in range(self.run.processes)))
        return self

    def sockets(self) -> set[str]:
        """The abstract sockets of its rendezvous processes."""
        lines = "".join(self.logs()).splitlines()
        return {f"@{line.split()[1]}" for line in lines if line.startswith("socket ")}

    def open_sockets(self) -> set[str]:
        mine = tuple(self.sockets())
        return {name for name in sockets() if name.startswith(mine)}

    def waits(self) -> list[RankWait]:
        return [wait for one in ProgressReader(self.folder / self.run.log_folder).read() for wait in one.waits]

    def pid(self, rank: int) -> int:
        mark = f"LLSUB_RANK={rank}\0".encode()
        return wait_for(lambda: [pid for pid in self.processes() if mark in read_proc(pid, "environ")])[0]

    def loop_pid(self, node: int = 0) -> int:
        return wait_for(lambda: children(self.launchers[node].pid))[0]

    def rendezvous_pid(self, node: int = 0) -> int:
        loop = self.loop_pid(node)
        return wait_for(lambda: [pid for pid in children(loop) if b"spmd.rendezvous" in read_proc(pid, "cmdline")])[0]

    def processes(self) -> list[int]:
        return alive(str(self.folder.parent / "prog.py"))


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(pid, number)


def sockets() -> set[str]:
    """The abstract sockets of rendezvous processes and ranks on this machine."""
    names = (line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines())
    return {name for name in names if name.startswith("@slurm-share")}
