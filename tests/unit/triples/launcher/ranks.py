"""Runs of ranks for tests of the launcher, with programs that implement the protocol of the rendezvous process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurm_share.triples import rendezvous_files, run_folder
from slurm_share.triples.records import Ended, Run, Triple, Wait

PATIENCE_S = 120
"""For what takes seconds on a machine that has nothing else to do."""
QUIET = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "CUDA_VISIBLE_DEVICES": ""}
ROOT = Path(__file__).parents[4]

LAUNCH = """
import sys
from slurm_share.triples.launcher import together
together.END_GRACE_S = {}
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


class Ranks:
    """A run's folder, and the launchers of its nodes on this machine."""

    def __init__(
        self, folder: Path, text: str, per_node: int, nodes: int = 1, *, grace_s: float = 1.0, **more: Any
    ) -> None:
        """`grace_s`: stands for END_GRACE_S, between the end of one rank and SIGTERM for the others."""
        self.grace_s = grace_s
        self.folder = folder / "LLSUB.1"
        self.folder.mkdir()
        script = folder / "prog.py"
        script.write_text(text)
        script.chmod(0o755)
        count = per_node * nodes
        what = {"command": (str(script),), "together": True, **more}
        self.run = Run(
            name="prog.py", cwd=str(folder), triple=Triple(nodes, per_node), processes=count, tasks=count, **what
        )
        (self.folder / run_folder.RUN).write_bytes(run_folder.render_run(self.run))
        if nodes > 1:
            rendezvous_files.make(self.folder)
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
            self.launchers.append(
                subprocess.Popen(
                    argv,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    cwd=self.folder.parent,
                    env={**QUIET, **slurm, **environ},
                    start_new_session=True,
                )
            )
        return self

    def end(self) -> tuple[list[int], str]:
        said = [launcher.communicate(timeout=PATIENCE_S)[0] for launcher in self.launchers]
        codes = [launcher.returncode for launcher in self.launchers]
        self.launchers = []
        return codes, "\n".join(said)

    def go(self, **environ: str) -> tuple[list[int], str]:
        return self.start(**environ).end()

    def log(self, rank: int) -> str:
        found = list(self.folder.glob(f"p*/prog.py.log.{rank}"))
        return found[0].read_text() if found else ""

    def are_ready(self) -> bool:
        return all("ready" in self.log(rank) for rank in range(self.run.processes))

    def results(self) -> dict[int, Ended]:
        found: dict[int, Ended] = {}
        for file in self.folder.glob("p*/results.jsonl"):
            found |= {ended.task: ended for ended in run_folder.parse_results(file.read_bytes())}
        return found

    def outcomes(self) -> list[str]:
        found = self.results()
        return [found[rank].outcome for rank in sorted(found)]

    def sockets(self) -> set[str]:
        """The abstract sockets of its rendezvous processes."""
        logs = "".join(self.log(rank) for rank in range(self.run.processes))
        return {f"@{line.split()[1]}" for line in logs.splitlines() if line.startswith("socket ")}

    def open_sockets(self) -> set[str]:
        mine = tuple(self.sockets())
        return {name for name in sockets() if name.startswith(mine)}

    def waits(self) -> list[Wait]:
        return run_folder.read_waits(self.folder, self.run)

    def pid(self, rank: int) -> int:
        return wait_for(lambda: [pid for pid in self.processes() if variable(pid, "LLSUB_RANK") == str(rank)])[0]

    def loop_pid(self, node: int = 0) -> int:
        return wait_for(lambda: children(self.launchers[node].pid))[0]

    def rendezvous_pid(self, node: int = 0) -> int:
        loop = self.loop_pid(node)
        return wait_for(lambda: [pid for pid in children(loop) if "spmd.rendezvous" in command(pid)])[0]

    def processes(self) -> list[int]:
        return [pid for pid in living() if str(self.folder.parent / "prog.py") in command(pid)]


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(pid, number)


def living() -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state = (folder / "stat").read_bytes().rpartition(b")")[2].split()[0]
            except OSError:
                continue
            if state != b"Z":
                found.append(int(folder.name))
    return found


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def variable(pid: int, name: str) -> str | None:
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    return next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), None)


def children(pid: int) -> list[int]:
    """Pids of the children of all threads of a process."""
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for one in found for word in one.read_text().split()]


def sockets() -> set[str]:
    """The abstract sockets of rendezvous processes and ranks on this machine."""
    names = (line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines())
    return {name for name in names if name.startswith("@slurm-share")}


def wait_for(what: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = what()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen")
