"""Peers of tests/bench/spmd.py: how each is started, ended and checked."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROGRAM, NODES, START = (HERE / name for name in ("spmd_ranks.py", "spmd_nodes.py", "spmd_start.py"))
CORES = len(os.sched_getaffinity(0))
STALL_S = {"pPython": 25}
"""Seconds without an end or a new measurement after which a run counts as stopped. pPython itself waits for 359 s."""
_STALL_S = 60
_START_S, _START_RANK_S = 60, 0.5
"""Seconds for the first measurement, and more for each rank, because all ranks start before it."""
_MIB_PER_RANK = 70
"""Memory of a rank: Python, NumPy, two arrays of 8 MiB and their messages."""

OURS_APART, PLAIN_APART = "ours on two nodes", "plain sendall on two nodes"

Item = tuple[str, Any, int]


@dataclass
class Peer:
    """The command of one peer."""

    name: str
    kind: str
    """Its class in spmd_ranks.py."""
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    versions: set[str] = field(default_factory=set)
    failures: dict[tuple[int, str], str] = field(default_factory=dict)
    """Reasons for missing measurements, by ranks and name."""

    def started(self, ranks: int, folder: Path, program: Path) -> list[str]:
        return [word.format(ranks=ranks, folder=folder, program=program) for word in self.argv]

    def fail(self, ranks: int, name: str, why: str) -> None:
        self.failures[ranks, name] = why
        print(f"NOT MEASURED: {self.name}, {ranks} ranks: {name}: {why}", flush=True)


@dataclass
class Ran:
    """Result of one run of a peer."""

    samples: list[list[float]] = field(default_factory=list)
    """Samples of each measurement; fewer than requested if there is an `error`."""
    seconds: float = 0.0
    """Seconds from the command until all ranks have met."""
    cpu_s: float = 0.0
    """Processor time of the command and its ranks."""
    notes: int = 0
    """Lines of the command itself, such as one about a refused connection."""
    error: str = ""
    has_begun: bool = False


def clean(**more: str) -> dict[str, str]:
    """Return an environment without variables of another run, and with one NumPy thread per rank."""
    unwanted = ("PMI", "OMPI", "MPI", "SLURM", "LLSUB", "PPYTHON", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return {**kept, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **more}


def peers(options: argparse.Namespace, work: Path) -> list[Peer]:
    python = sys.executable
    found = [Peer("ours", "ours", [python, "-m", "slurm_share.spmd", "-n", "{ranks}", "{program}"])]
    mpiexec = shutil.which("mpiexec", path=f"{Path(python).parent}:{os.environ['PATH']}")
    if mpiexec is not None:
        under_mpi = [mpiexec, "-n", "{ranks}", python, "{program}"]
        found.append(Peer("mpi4py", "mpi4py", under_mpi, {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1"}))
        found.append(Peer("mpi4py as it comes", "mpi4py", under_mpi))
        found.append(Peer("ours over mpi4py", "ours", under_mpi, {"LLSUB_TRANSPORT": "mpi"}))
    if os.geteuid() == 0:
        for name, kind in ((OURS_APART, "ours"), (PLAIN_APART, "sockets")):
            found.append(Peer(name, kind, [python, str(NODES), kind, "{program}"]))
    for number, checkout in enumerate(options.ppython or ()):
        found.append(_ppython(number, checkout.resolve(), options.ppython_python.absolute(), work))
    return found


def ppython_settings(home: Path, checkout: Path, python: Path, work: Path) -> None:
    """Write pPython's settings for this machine into a home folder."""
    settings = home / "ppython_conf"
    shutil.copytree(checkout / "src/pPython/ppython_conf", settings)
    file = settings / "pyMPI_Comm_settings_local.py"
    text = re.sub(r"(\['local_dir_map'\] =).*", rf"\1 [{str(work)!r}] * 7", file.read_text())
    file.write_text(text.replace("python_location = 'python'", f"python_location = {str(python)!r}"))


def _ppython(number: int, checkout: Path, python: Path, work: Path) -> Peer:
    """Return pPython as its documents start it: a program that calls pRUN, and settings in the home folder."""
    home = work / f"home{number}"
    ppython_settings(home, checkout, python, work)
    (work / "RUN.py").write_text(
        "import os, sys, time, pPython\nfrom pRUN import pRUN\n"
        "os.chdir(sys.argv[2])\npRUN('program.py', int(sys.argv[1]), {})\n"
    )
    asked = ["git", "-c", "safe.directory=*", "-C", str(checkout), "rev-parse", "--short=7", "HEAD"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    env = {"HOME": str(home), "USER": "bench", "PYTHONPATH": str(checkout / "src")}
    name = "pPython" if number == 0 else f"pPython {commit}"
    return Peer(name, "pPython", [str(python), str(work / "RUN.py"), "{ranks}", "{folder}"], env | {"COMMIT": commit})


def has_room(ranks: int) -> str:
    """Return why the ranks do not fit into this machine's free memory; empty: they do."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free_mib = int(lines["MemAvailable"].split()[0]) // 1024
    wanted_mib = ranks * _MIB_PER_RANK
    return "" if free_mib >= wanted_mib else f"{free_mib} MiB of memory are free, and {wanted_mib} MiB are needed"


def run(peer: Peer, ranks: int, what: Sequence[Item], work: Path) -> Ran:
    """Run a plan; an empty one only starts the ranks."""
    if error := has_room(ranks):
        return Ran(error=error)
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=work))
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"peer": peer.kind, "what": what, "folder": str(folder)}))
    # pPython runs a program's text inside a function, where functions of its own do not see each other
    (folder / "program.py").write_text(
        f"import sys\nsys.path.insert(0, {str(HERE)!r})\nimport spmd_ranks\nspmd_ranks.main()\n"
    )
    env = clean(SPMD_BENCH=str(plan), SPMD_START=f"{peer.kind}:{folder}", **peer.env)
    if ranks <= CORES:
        env.pop("MPIR_CVAR_POLLS_BEFORE_YIELD", None)
    program = PROGRAM if what or peer.kind == "pPython" else START
    code: int | None = None
    usage: resource.struct_rusage | None = None
    begin = time.monotonic()
    with (folder / "log").open("w") as output:
        # a separate session, because pPython leaves ranks behind if one of them stops
        process = subprocess.Popen(
            peer.started(ranks, folder, program), env=env, cwd=folder, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        try:
            code, usage = _waited(process, folder, ranks, STALL_S.get(peer.kind, _STALL_S))
        finally:
            end_session(process.pid)
            if usage is None:
                process.wait()
            process.returncode = process.returncode or 0  # waited for by its id
    ran = _read(peer, ranks, folder, begin, program == START)
    if usage is not None:
        ran.cpu_s = usage.ru_utime + usage.ru_stime
    if not ran.error and (code != 0 or len(ran.samples) < len(what)):
        how = "stopped, and was ended" if code is None else f"ended with {code}"
        ran.error = f"it {how}: {_said(folder)}"
    shutil.rmtree(folder)
    return ran


def _waited(
    process: subprocess.Popen[bytes], folder: Path, ranks: int, stall_s: float
) -> tuple[int | None, resource.struct_rusage | None]:
    """Wait for its end; return None if nothing was measured for a long time."""
    until, seen = time.monotonic() + _START_S + ranks * _START_RANK_S, 0.0
    has_met = False
    while time.monotonic() < until:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status), usage
        file = folder / "samples.json"
        if file.exists() and file.stat().st_mtime != seen:
            until, seen = time.monotonic() + stall_s, file.stat().st_mtime
        elif not seen and not has_met and next(folder.glob("rank.*.json"), None):
            until, has_met = time.monotonic() + stall_s, True
        time.sleep(0.02)
    return None, None


def _read(peer: Peer, ranks: int, folder: Path, begin: float, is_start: bool) -> Ran:
    """Return the results of the ranks, or an error if not all of them ran."""
    if is_start:
        met = [file.read_text().split() for file in folder.glob("ready.*")]
        pids, moments = {pid for pid, _ in met}, [float(moment) for _, moment in met]
    else:
        who = [json.loads(file.read_text()) for file in folder.glob("rank.*.json")]
        pids, moments = {one["pid"] for one in who}, [one["ready"] for one in who]
        if any(one["size"] != ranks for one in who):
            return Ran(error=f"it was to run on {ranks} ranks, and they say: {who}")
        commit = f" at {peer.env['COMMIT']}" if "COMMIT" in peer.env else ""
        peer.versions |= {f"{one['version']}{commit}, Python {one['python']}" for one in who}
    if len(pids) != ranks:
        return Ran(error=f"it was to run on {ranks} ranks, and {len(pids)} said who they are: {_said(folder)}")
    samples = folder / "samples.json"
    log = (folder / "log").read_text(errors="replace").splitlines()
    return Ran(
        samples=json.loads(samples.read_text()) if samples.exists() else [],
        seconds=max(moments) - begin,
        notes=sum(line.startswith("slurm_share.spmd:") for line in log),
        has_begun=True,
    )


def session(number: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(int(entry.name)) == number:
                found.append(int(entry.name))
    return found


def end_session(number: int) -> None:
    """Kill the remaining processes of a run."""
    for pid in session(number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)


def _said(folder: Path) -> str:
    """Return the end of a run's output; pPython's ranks write into separate files."""
    texts = [file.read_text(errors="replace") for file in (folder / "log", *sorted(folder.glob("PythonMPI/*.out")))]
    return " ".join(" ".join(texts).split())[-300:]
