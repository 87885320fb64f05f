"""Read processes and mounts of this host with psutil. For the doctor, the agent and the dashboard.

Three kinds of programs read /proc themselves, with the other modules of this package:

* Hooks: importing psutil takes 23 ms, and all imports of an ordinary job's Prolog take 3 ms
  (tests/bench/hook_imports.py).
* The sampler: psutil takes 3.5 times as long for each process, 77 us instead of 22 us (tests/bench/sampler_cost.py).
* The launcher: importing psutil adds 8 ms to the 96 ms of its imports, and 2 MiB (node/descendants.py).

slurm_share.spmd runs in the users' Python, which has NumPy but not psutil.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
from msgspec import Struct

PROC = Path("/proc")


class HostProcess(Struct, frozen=True):
    """A process, as it was at one moment."""

    pid: int
    name: str
    """The kernel's name of the process."""
    uid: int
    """Real uid."""
    is_stopped: bool
    """Stopped by SIGSTOP, or traced."""
    program: str
    """Path of the program file, or the first argument if the caller may not see that; "": unknown."""
    argv: tuple[str, ...]


def read_named(names: Collection[str], proc: Path = PROC) -> tuple[HostProcess, ...]:
    """Return the processes with one of these names, without zombies and those that end meanwhile; sorted by pid."""
    with _procfs(proc):
        try:
            pids = psutil.pids()
        except OSError:
            return ()
        return tuple(found for pid in pids if (found := _read(pid, names)) is not None)


def _read(pid: int, names: Collection[str]) -> HostProcess | None:
    # Not psutil.process_iter: it keeps its processes, with the /proc in which it found them.
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            name, status = process.name(), process.status()
            if name not in names or status == psutil.STATUS_ZOMBIE:
                return None
            # as_dict gives "" for what the caller may not see (AccessDenied).
            seen = process.as_dict(["exe", "cmdline"], ad_value="")
            is_stopped = status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
            return HostProcess(pid, name, process.uids().real, is_stopped, seen["exe"], tuple(seen["cmdline"]))
    except (psutil.Error, OSError):
        return None  # OSError: its folder is still there, but no longer its files


def read_mounts(proc: Path = PROC) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Return (point, type, options of the mount and its file system) of each mount, in the kernel's order."""
    with _procfs(proc):
        try:
            found = psutil.disk_partitions(all=True)
        except OSError:
            return ()
    return tuple((one.mountpoint, one.fstype, tuple(one.opts.split(","))) for one in found)


def read_resident_bytes() -> int | None:
    """Return the resident memory of this process; None: unknown."""
    try:
        return int(psutil.Process().memory_info().rss)
    except (psutil.Error, OSError):
        return None


def read_begun_environ() -> Mapping[str, str]:
    """Return the environment with which this process was started, or its present one if that cannot be read.

    Python adds LC_CTYPE to the present one if the locale is C.
    """
    try:
        return psutil.Process().environ() or os.environ
    except (psutil.Error, OSError):
        return os.environ


@contextmanager
def _procfs(proc: Path) -> Iterator[None]:
    """Let psutil read another /proc, as tests do. The setting is one for all threads."""
    usual = psutil.PROCFS_PATH
    psutil.PROCFS_PATH = str(proc)
    try:
        yield
    finally:
        psutil.PROCFS_PATH = usual
