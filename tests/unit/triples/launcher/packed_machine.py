"""Packed runs for tests: real programs on simulated GPUs, with MPS daemons of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

from launches import PATIENCE_S, Launched, alive

from slurm_share.packing import EVENTS, PackRequest, PackSettings, TaskSpec, read_decisions
from slurm_share.triples.records import Run, Triple

HOME = Path(__file__).resolve().parents[4] / "packaging" / "demo" / "simgpu"
TASK = str(HOME / "simgpu-task")
QUICK = PackSettings(flat_after_s=2.0, settle_s=0.5, settle_max_s=3.0)
"""Settings that wait for seconds instead of minutes."""

LAUNCH = """
import os
import sys
import time
from pathlib import Path
from slurm_share.cli import launch
from slurm_share.core.paths import Paths
from slurm_share.core.settings import Settings
launch._settings = lambda: Settings(simulated_gpus=True, mps_control=sys.argv[3])
launch.Paths = lambda: Paths(tmp=Path(sys.argv[2]))
from slurm_share.cli.main import main
from slurm_share.triples.launcher import sampler
sampler.PATIENCE_S = 30.0  # the host may be overloaded
if os.environ.get("OPENS_DRIVER_AFTER"):  # a driver that is slow to open: until that file exists
    reader, sampler.STALE_S = sampler._session, 300.0
    def opened_late(*known):
        while not os.path.exists(os.environ["OPENS_DRIVER_AFTER"]):
            time.sleep(0.01)
        return reader(*known)
    sampler._session = opened_late
if len(sys.argv) > 4:  # a clock that somebody sets back an hour every second time that it is asked
    import itertools
    real, turn = time.time, itertools.count()
    time.time = lambda: real() - 3600 * (next(turn) % 2)
sys.exit(main(["launch", sys.argv[1]]))
"""
CONTROL = """#!/bin/bash
export PATH={home}:$PATH SIMGPU_STATE={state}
exec {home}/nvidia-cuda-mps-control "$@"
"""


class Machine:
    """Simulated GPUs with a state folder of their own, and the launchers on them. Its folder has a short name, since
    that of an MPS daemon's socket has at most 108 bytes."""

    def __init__(self, library: Path, gpus: int, memory_mib: int, mps: bool) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="p", dir="/tmp"))
        self.state = self.home / "state"
        self.tmp = self.home / "tmp"
        self.tmp.mkdir()
        self.control = self.home / "control"
        if mps:
            self.control.write_text(CONTROL.format(home=HOME, state=self.state))
            self.control.chmod(0o755)
        self.environ = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.home),
            "SIMGPU_STATE": str(self.state),
            "LD_LIBRARY_PATH": str(library),
            "CUDA_VISIBLE_DEVICES": ",".join(str(number) for number in range(gpus)),
        }
        words = [HOME / "simgpu-init", str(gpus), "--memory-mib", str(memory_mib)]
        subprocess.run(words, env=self.environ, check=True, stdout=subprocess.DEVNULL)
        self.started: list[subprocess.Popen[str]] = []

    def run(self, lines: list[str], **more: Any) -> Packed:
        return Packed(self, lines, **more)

    def bookings(self) -> list[str]:
        return [str(path) for path in self.tmp.glob("slurm-share-*/live/*") if path.name != "lock"]

    def history(self, record: str) -> list[dict[str, Any]]:
        """Return the records of a kind in the user's history."""
        files = sorted((self.home / ".local/state/slurm-share/tasks").glob("????-??.jsonl"))
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return [one for one in lines if one["record"] == record]

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()
        for pid in alive(str(self.home), "environ"):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.home, ignore_errors=True)


class Packed(Launched):
    """A run and its launcher: packed with `settings`, with another request, or plain (`pack` None)."""

    def __init__(
        self,
        machine: Machine,
        lines: list[str],
        *,
        at_once: int = 8,
        specs: list[TaskSpec] | None = None,
        pack: PackRequest | Literal["quick"] | None = "quick",
        settings: PackSettings = QUICK,
        **more: Any,
    ) -> None:
        self.machine = machine
        run = Run(
            name="mix",
            cwd=str(machine.home),
            triple=Triple(1, at_once),
            processes=at_once,
            tasks=len(lines),
            command=(),
            task_kind="command",
            distribution="dynamic",
            bind=False,
            pack=PackRequest(settings=settings) if pack == "quick" else pack,
            retries=settings.retries,
            **more,
        )
        number = len(list(machine.home.glob("LLSUB.*"))) + 1
        super().__init__(machine.home / f"LLSUB.{number}", run, lines, specs or ())

    def start(self, *more: str) -> subprocess.Popen[str]:
        machine = self.machine
        argv = [sys.executable, "-c", LAUNCH, self.folder, machine.tmp, machine.control, *more]
        machine.started.append(self.launch(argv, machine.environ))
        return machine.started[-1]

    def end(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        text, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, text

    def go(self, *more: str) -> tuple[int, str]:
        return self.end(self.start(*more))

    def go_well(self, *more: str) -> str:
        """Run to the end; return what the launcher said."""
        code, said = self.go(*more)
        assert code == 0, said
        return said

    def stop(self, process: subprocess.Popen[str]) -> str:
        """Tell the launcher to end; return what it said since the last reading."""
        process.send_signal(signal.SIGTERM)
        return self.end(process)[1]

    def decisions(self) -> list[Any]:
        return list(read_decisions((self.node / EVENTS).read_bytes()))
