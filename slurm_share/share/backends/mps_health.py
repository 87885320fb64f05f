"""Read the state of MPS on a node: whether daemons run and answer, who uses them, which programs are installed."""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...core import numbers, process
from ...core.errors import CommandError, MpsError
from ...core.paths import Paths
from ...core.patterns import pattern
from ...core.process import Deadline
from ...core.records import Owner, ProcessIdentity
from ...core.verdicts import FileFact, UnknownFact
from ...mps import control as mp_control
from ...mps import front_ends, processes
from ...mps import partitions as mp_partitions
from ...mps.records import MPS_NAME, GpuChunks, MpsHealth, MpsPlace, MpsProcess
from ...node import process_table
from ...node import processes as node_processes
from ..records import LedgerJob
from .base import NOT_ASKED, Daemon, Examination, Health, Host

FIRST_WITH_VERSION = 590
"""The first driver whose MPS control program has `-v` (docs.nvidia.com/deploy/mps, release 590)."""
ASK_S = 4.0
"""The time limit for an answer of a daemon or of the control program. Another front end can keep a daemon busy for a
moment."""
PIPE_VARIABLE = processes.PIPE_VARIABLE.decode()
PROTOCOL_VARIABLE = processes.PROTOCOL_VARIABLE.decode()
ENVIRONMENT_FILES = ("etc/environment", "etc/default/slurmd", "etc/sysconfig/slurmd")
PROFILE_FOLDER = "etc/profile.d"
NOBODY = 65534
_SETS_PROTOCOL = pattern(rb"[^#]*\bCUDA_MPS_PROTOCOL_VERSION=")
_CUDA_VERSION = pattern(r"(?a)\b([1-9][0-9]0[0-9]0)\b")


class MpsOnNode(Health, frozen=True):
    """The state of MPS on a node, for the checks of `slurm-share doctor`."""

    control: FileFact | None = None
    """NVIDIA's MPS control program, as configured; None: it is missing."""
    server: FileFact | None = None
    """The server program; None: it is missing."""
    foreign: tuple[MpsProcess, ...] = ()
    """MPS daemons that are not ours."""
    control_cuda: tuple[int, int] | None = None
    """The CUDA version of the control program; None: unknown."""
    chunks: tuple[GpuChunks, ...] = ()
    """How the driver divides GPUs into static partitions, as far as hooks have seen it."""
    protocol_set_in: tuple[str, ...] = ()
    """Files of the node, and slurmd's environment, that choose a protocol of MPS for programs of others."""


def read(
    host: Host, wanted: Collection[tuple[int, str]], *, with_processes: bool, examination: Examination | None
) -> MpsOnNode:
    """Return the state of the wanted daemons, (uid, pipe directory), and, with an examination, of the programs."""
    proc_folder = str(host.root / "proc")
    daemons = [read_daemon(uid, folder, proc_folder) for uid, folder in wanted]
    if with_processes:
        daemons = list(_with_processes(daemons, proc_folder))
    if examination is None:
        return MpsOnNode(tuple(daemons))
    control = host.settings.mps_control
    if examination.asks_daemons and control:
        daemons = _asked(daemons, host, proc_folder)
    return MpsOnNode(
        tuple(daemons),
        lost=tuple(_lost(examination.plans, host.paths)),
        control=examination.read_file(control) if control else None,
        server=_server(control, examination),
        foreign=read_foreign(control, f"/{host.paths.root.relative_to(host.root)}", proc_folder),
        control_cuda=read_control_cuda(control, examination.driver) if host.root == Path("/") else None,
        chunks=mp_partitions.read_known(host.paths.root),
        protocol_set_in=tuple(_protocol_set_in(host.root)),
    )


# ---- Daemons of ours ----


def read_daemon(uid: int, folder: str, proc_folder: str = "/proc") -> Daemon:
    """Return a daemon's state from the holder of its lock, which the kernel names. The daemon is not asked."""
    place = MpsPlace("", folder, "", Owner(uid, uid))
    try:
        holder = processes.lock_holder(place, proc_folder)
    except MpsError as error:
        return Daemon(uid, folder, "hidden", why=str(error))
    if holder is None:
        return Daemon(uid, folder, "dead", why=f"the MPS daemon in {folder} is gone")
    if holder.name is not None and not processes.is_daemon(holder, place):
        return Daemon(uid, folder, "foreign", why=f"MPS in {folder}: {processes.describe_foreign(holder)}")
    # A process that the kernel does not show (hidepid) counts as the daemon.
    return Daemon(uid, folder, NOT_ASKED, None if holder.name is None else holder.pid)


def _with_processes(daemons: Sequence[Daemon], proc_folder: str) -> Iterator[Daemon]:
    """Yield the daemons with their processes. Only processes of the daemon's user count: any user can run a program of
    that name with another user's pipe directory."""
    found = processes.read_processes(proc_folder, uids={one.uid for one in daemons}) if daemons else ()
    for daemon in daemons:
        pids = tuple(
            one.identity.pid
            for one in found
            if one.identity.uid == daemon.uid and processes.is_of(one.pipe, daemon.folder)
        )
        yield Daemon(daemon.uid, daemon.folder, daemon.condition, daemon.pid, daemon.why, pids)


def _asked(daemons: Sequence[Daemon], host: Host, proc_folder: str) -> list[Daemon]:
    """Return the daemons; ask those that run for their state, except root's."""
    with ThreadPoolExecutor(max(1, len(daemons))) as pool:
        return list(pool.map(lambda one: _ask(one, host, proc_folder) if one.lives and one.uid else one, daemons))


def _ask(one: Daemon, host: Host, proc_folder: str) -> Daemon:
    paths = Paths(cgroup=host.root / "sys/fs/cgroup")
    place = mp_control.node_place(paths, host.settings.mps_control, owner_of(one.uid), "", pipe=one.folder)
    health = _health(place, proc_folder)
    if health is None:
        return one
    return Daemon(one.uid, one.folder, health.condition, health.daemon.pid if health.daemon else None, health.why)


def _health(place: MpsPlace, proc_folder: str) -> MpsHealth | None:
    """Return the state of a daemon, without asking one that is stopped; None: it cannot be asked (other checks report
    that)."""
    try:
        daemon = processes.read_daemon(place, proc_folder)
        if daemon is not None and node_processes.is_stopped(daemon.pid, proc_folder):
            return MpsHealth("stopped", daemon, why=f"its daemon, process {daemon.pid}, is stopped (SIGSTOP)")
        return front_ends.examine(place, Deadline.after(ASK_S), proc_folder)
    except MpsError:
        return None


def owner_of(uid: int) -> Owner:
    """Return the owner of a daemon, as whom it is asked: with his primary group, not a group with the uid's number."""
    try:
        return Owner(uid, pwd.getpwuid(uid).pw_gid)
    except KeyError:
        return Owner(uid, uid)


def read_users(place: MpsPlace, deadline: Deadline, proc_folder: str = "/proc") -> tuple[ProcessIdentity, ...]:
    """Return the programs that use a daemon, or are about to: its clients, if it answers, and every process of its
    owner that has its pipe directory in the environment. The owner can forge the latter, which only keeps a daemon
    alive."""
    pids: set[int] = set()
    try:
        front_end = front_ends.of(place, proc_folder)
        for server in front_end.read_servers(place, deadline):
            pids.update(front_end.read_clients(place, server.pid, deadline))
    except MpsError:
        pass  # it is dead or hangs
    names = (f"{PIPE_VARIABLE}={place.pipe}".encode(), f"{PIPE_VARIABLE}={place.pipe}/".encode())
    for one in node_processes.read_processes_of(place.owner.uid, Path(proc_folder)):
        if one.identity.name == MPS_NAME:
            continue
        variables = _environ(one.identity.pid, proc_folder).split(b"\0")
        if any(value == names[0] or value.startswith(names[1]) for value in variables):
            pids.add(one.identity.pid)
    found = (process.identify(pid, proc_folder) for pid in sorted(pids))
    return tuple(one for one in found if one is not None)


def _environ(pid: int, proc_folder: str) -> bytes:
    try:
        return Path(proc_folder, str(pid), "environ").read_bytes()
    except OSError:
        return b""


def _lost(plans: Iterable[tuple[LedgerJob, frozenset[str]]], paths: Paths) -> Iterator[tuple[int, int, str]]:
    """Yield (job, uid, path) of the missing files of daemons that jobs need. A user may have changed his plan: of the
    folders in it, only those on GPUs that the ledger gives to the job are checked."""
    for job, named in plans:
        given = {str(paths.mps_pipe(job.uid, gpu)) for gpu in job.gpus}
        for folder in sorted(named & given):
            for path in (folder, f"{folder}/control", f"{folder}/logs"):
                if not os.path.lexists(path):
                    yield job.job_id, job.uid, path


# ---- The node's MPS ----


def read_foreign(control: str, state_root: str, proc_folder: str = "/proc") -> tuple[MpsProcess, ...]:
    """Return the daemons of either protocol that are not ours. A process that only has the name of one, such as su
    behind a link, does not count."""
    files = processes.read_program_files(control) if control else frozenset[str]()
    return tuple(
        one
        for one in processes.foreign_daemons(processes.read_processes(proc_folder), state_root)
        if one.program is None or processes.runs_program(one, files)
    )


def _protocol_set_in(root: Path) -> Iterator[str]:
    """Yield the names of files that set PROTOCOL_VARIABLE for logins or for slurmd, and whether slurmd has it."""
    files = [root / name for name in ENVIRONMENT_FILES]
    try:
        files += sorted((root / PROFILE_FOLDER).iterdir())
    except OSError:
        pass  # there is no such folder
    for file in files:
        try:
            text = file.read_bytes()
        except OSError:
            continue
        if any(_SETS_PROTOCOL.match(line) for line in text.splitlines()):
            yield f"/{file.relative_to(root)}"
    proc = str(root / "proc")
    for pid, (_, name, _, _) in process_table.read(proc, ()).items():
        if name in process_table.SLURMD_NAMES and f"{PROTOCOL_VARIABLE}=".encode() in _environ(pid, proc):
            yield f"the environment of slurmd (process {pid})"


def _server(control: str, examination: Examination) -> FileFact | None:
    """Return the server program, which the daemon starts from its own folder or its search path; None: missing."""
    folders = [os.path.dirname(control), "/usr/bin", "/usr/sbin"] if control else []  # noqa: PTH120
    found = (examination.read_file(f"{one}/nvidia-cuda-mps-server") for one in folders)
    return next((one for one in found if one is not None), None)


def read_control_cuda(program: str, driver: str | UnknownFact) -> tuple[int, int] | None:
    """Return the CUDA version that the MPS control program reports (`-v`), such as (13, 1); None: it does not.

    A program older than driver 590 ignores `-v` and tries to connect to a daemon, so it is not run. A newer one runs as
    nobody, with a pipe directory that does not exist.
    """
    major = numbers.whole(driver.partition(".")[0]) if isinstance(driver, str) else None
    if not program or major is None or major < FIRST_WITH_VERSION:
        return None
    nobody = Owner(NOBODY, NOBODY) if os.geteuid() == 0 else None
    env = {"PATH": mp_control.SEARCH_PATH, PIPE_VARIABLE: "/nonexistent/slurm-share"}
    try:
        said = process.exchange([program, "-v"], timeout_s=ASK_S, env=env, owner=nobody)
    except CommandError:
        return None
    return parse_control_cuda(said.stdout + said.stderr)


def parse_control_cuda(text: str) -> tuple[int, int] | None:
    """Return (13, 1) for a text with the number 13010, which is major * 1000 + minor * 10 as in CUDA_VERSION of cuda.h;
    None for a text without such a number."""
    match = _CUDA_VERSION.search(text)
    return None if match is None else (int(match[1]) // 1000, int(match[1]) % 1000 // 10)
