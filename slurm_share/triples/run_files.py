"""Make and fill the folder of a run, as `run_folder` describes it, at submission."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from ..core import locks, process
from ..core.errors import UsageError
from ..core.process import Deadline
from ..packing import TaskSpec
from . import run_folder
from .records import Run

_MODES = {run_folder.LAUNCH_SCRIPT: 0o777, run_folder.ENVIRONMENT: 0o600}
"""Before the umask; 0666 for all others. An environment holds passwords and tokens."""
CLAIM = "resuming"
"""Who is submitting this run anew at this moment; gone afterwards."""
_CLAIM = re.compile(r"pid ([0-9]{1,10}) start ([0-9]{1,19}) in (\S{1,40}) on (\S{1,64})\n", re.ASCII)
LOCK_S, LOCK_PAUSE_S = 1.0, 0.01
"""For the lock of a claim that is looked at, which is held for less than a millisecond."""


def make_folder(parent: Path, prefix: str = "LLSUB") -> Path:
    """Make a new folder `PREFIX.<n>` in `parent`, one more than the highest, and return it.

    mkdir(2) is atomic, on NFS too: two at the same moment never get the same. Raises UsageError where none can be made.
    """
    try:
        number = max((_number(path.name, prefix) for path in parent.iterdir()), default=0)
        while True:
            number += 1
            folder = parent / f"{prefix}.{number}"
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder
    except OSError as error:
        raise UsageError(
            f"cannot make a folder for the run in {parent} ({error.strerror}); go to one that you may write to, "
            "with space left, and submit from there"
        ) from error


def _number(name: str, prefix: str) -> int:
    match = re.fullmatch(rf"{re.escape(prefix)}\.([0-9]{{1,9}})", name, re.ASCII)
    return int(match[1]) if match else 0


def write(
    folder: Path,
    run: Run,
    tasks: Sequence[str],
    script: str,
    scheduler: Sequence[str] = (),
    *,
    environ: Mapping[str, str] | None = None,
    specs: Sequence[TaskSpec] = (),
) -> None:
    """Fill a new folder: tasks (where there are lines of them), what each of them asks for (where it is not the same
    for all), launch.sh, the scheduler command, the environment for `llsub --resume` (readable by its owner alone; None:
    not recorded), and run.json last.

    Each file appears whole or not at all. Raises UsageError where one cannot be written, with the folder gone again if
    nothing else is in it.
    """
    files = {
        run_folder.LAUNCH_SCRIPT: script.encode("utf-8", "surrogateescape"),
        run_folder.RUN: run_folder.render_run(run),
    }
    if environ is not None:
        files = {run_folder.ENVIRONMENT: run_folder.render_environment(environ)} | files
    if scheduler:
        files = {run_folder.SUBMIT: msgspec.json.encode(list(scheduler)) + b"\n"} | files
    if specs:
        files = {run_folder.SPECS: run_folder.render_specs(specs)} | files
    if run.task_kind != "rank":
        files = {run_folder.TASKS: "".join(f"{line}\n" for line in tasks).encode("utf-8", "surrogateescape")} | files
    try:
        for name, data in files.items():
            _write_whole(folder / name, data, _MODES.get(name, 0o666))
    except OSError as error:
        remove(folder)
        raise UsageError(
            f"cannot write {folder / name} ({error.strerror}); nothing was submitted: make room, or submit from "
            "another folder"
        ) from error


def rewrite_run(folder: Path, run: Run) -> None:
    """Replace a run's run.json. Only with the run `claimed` and no job of it in the queue.

    Raises UsageError where it cannot be written; the old one is then still there.
    """
    file = folder / run_folder.RUN
    try:
        _write_whole(file, run_folder.render_run(run), 0o666)
    except OSError as error:
        with contextlib.suppress(OSError):
            _temporary(file).unlink()
        raise UsageError(f"cannot write {file} ({error.strerror}); nothing was submitted") from error


def remove(folder: Path) -> None:
    """Remove what `write` made, for a run that was not submitted. Other files stay."""
    names = (run_folder.TASKS, run_folder.SPECS, run_folder.LAUNCH_SCRIPT, run_folder.SUBMIT, run_folder.ENVIRONMENT)
    for name in (*names, run_folder.RUN):
        for path in (folder / name, _temporary(folder / name)):
            with contextlib.suppress(OSError):
                path.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def _write_whole(path: Path, data: bytes, mode: int) -> None:
    """Write a file beside `path` and rename it. fsync, because a file system may notice only then that it is full.

    The file is always a new one: secrets are never written into a file that others may have open.
    """
    part = _temporary(path)
    with contextlib.suppress(FileNotFoundError):
        part.unlink()  # left by a process that was killed
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def note_job(folder: Path, job_id: int) -> None:
    """Add a submission to `jobs`. Raises OSError."""
    with open(folder / run_folder.JOBS, "ab") as file:
        file.write(f"{job_id} {time.time():.0f}\n".encode())


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold the claim to resubmit this run within the context.

    A file made with O_EXCL, which NFS (from version 3 on) does atomically. It names its process, so that the file of
    one that was killed is taken over on the same host. Raises UsageError where another one has it.
    """
    claim = folder / CLAIM
    fd = _make_claim(claim)
    try:
        try:
            with open(fd, "wb") as file:
                file.write(_myself().encode())
        except OSError as error:
            raise UsageError(f"cannot write {claim} ({error.strerror}); nothing was submitted: make room") from error
        yield
    finally:
        claim.unlink(missing_ok=True)


def _make_claim(claim: Path) -> int:
    while True:
        try:
            return os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError as error:
            if not _remove_if_stale(claim):
                raise UsageError(
                    f"{claim.parent.name} is being resumed at this moment{_by_whom(claim)}; wait for that, or, where "
                    f"it was killed, remove {claim} and write this again"
                ) from error
        except OSError as error:
            raise UsageError(f"cannot write {claim} ({error.strerror}); nothing was submitted") from error


def _myself() -> str:
    identity = process.identify(os.getpid())
    start = None if identity is None else identity.start_ticks
    return f"pid {os.getpid()} start {start} in {_pid_namespace()} on {os.uname().nodename}\n"


def _pid_namespace() -> str:
    """Return the PID namespace: containers of one host may share its name and number processes from 1."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return "-"


def _remove_if_stale(claim: Path) -> bool:
    """Remove the claim of a process of this host that has ended. True: try again; False: it may still run.

    Two at once: only the one that holds the stale file's lock removes it, and only while it is still in the folder.
    """
    try:
        fd = os.open(claim, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        if not locks.take(fd, Deadline.after(LOCK_S), LOCK_PAUSE_S):
            return False
        if not _is_gone(os.read(fd, 256).decode("ascii", "replace")):
            return False
        mine, there = os.fstat(fd), claim.lstat()
        if (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino):
            claim.unlink()
        return True
    except FileNotFoundError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def _is_gone(text: str) -> bool:
    """Return whether the process that a claim names was on this host and has ended."""
    match = _CLAIM.fullmatch(text)
    if match is None or (match[3], match[4]) != (_pid_namespace(), os.uname().nodename):
        return False
    pid, start = int(match[1]), int(match[2])
    identity = process.identify(pid)
    if identity is not None:
        return identity.start_ticks != start
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False  # another user's, which hidepid hides
    except (OSError, OverflowError):
        return True
    return True  # a zombie: it ends


def _by_whom(claim: Path) -> str:
    try:
        text = claim.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
    if match := _CLAIM.fullmatch(f"{text}\n"):
        return f" (by pid {match[1]} on {match[4]})"
    return f" (by {text[:80]})" if text.isprintable() and text else ""
