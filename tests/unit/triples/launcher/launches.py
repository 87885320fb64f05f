"""Launchers outside Slurm as processes, for tests, and what they leave in the folder of a run."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from slurm_share.packing import TaskSpec
from slurm_share.triples import run_folder
from slurm_share.triples.records import Ended, Run

PATIENCE_S = 240
"""For what takes seconds on a machine that has nothing else to do."""
QUIET = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "CUDA_VISIBLE_DEVICES": ""}


class Launched:
    """The folder of a run."""

    def __init__(self, folder: Path, run: Run, lines: Sequence[str] = (), specs: Sequence[TaskSpec] = ()) -> None:
        self.folder = folder
        folder.mkdir()
        self.write(run)
        (folder / run_folder.TASKS).write_text("".join(f"{line}\n" for line in lines))
        if specs:
            (folder / run_folder.SPECS).write_bytes(run_folder.render_specs(specs))

    def write(self, run: Run) -> None:
        self.run = run
        (self.folder / run_folder.RUN).write_bytes(run_folder.render_run(run))

    def launch(self, argv: Sequence[Any], env: dict[str, str], stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
        return subprocess.Popen(
            argv, env=env, cwd=self.folder.parent, stdout=stdout, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip

    @property
    def node(self) -> Path:
        return next(self.folder.glob("p*_*"))

    def log(self, number: int) -> str:
        return "".join(file.read_text() for file in self.folder.glob(f"p*/{self.run.name}.log.{number}"))

    def logs(self) -> list[str]:
        return [file.read_text() for file in self.folder.glob(f"p*/{self.run.name}.log.*")]

    def ended(self) -> list[Ended]:
        files = self.folder.glob(f"p*/{run_folder.RESULTS}")
        return [one for file in files for one in run_folder.parse_results(file.read_bytes())]

    def attempts(self) -> dict[int, list[Ended]]:
        found: dict[int, list[Ended]] = {}
        for one in self.ended():
            found.setdefault(one.task, []).append(one)
        return found

    def outcomes(self) -> dict[int, list[str]]:
        return {task: [one.outcome for one in tried] for task, tried in sorted(self.attempts().items())}

    def results(self) -> dict[int, Ended]:
        """The attempt of each task that counts: the first that is done, else the last."""
        best = {}
        for task, tried in self.attempts().items():
            best[task] = next((one for one in tried if one.outcome == "done"), tried[-1])
        return best

    def result_outcomes(self) -> dict[int, str]:
        return {task: one.outcome for task, one in sorted(self.results().items())}


def wait_for(what: Callable[[], Any], timeout: float = PATIENCE_S) -> Any:
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen")


def read_proc(pid: int, name: str) -> bytes:
    """A file of a process; empty: the process is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def is_alive(pid: int) -> bool:
    return read_proc(pid, "stat").rpartition(b")")[2].split()[:1] not in ([], [b"Z"])


def alive(mark: str, *names: str) -> list[int]:
    """Pids of living processes with `mark` in their command line or in other files (`environ`)."""
    pids = (int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit())
    files = ("cmdline", *names)
    return [pid for pid in pids if mark.encode() in b"\n".join(read_proc(pid, one) for one in files) and is_alive(pid)]


def children(pid: int) -> list[int]:
    """Pids of the children of all threads of a process."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]
