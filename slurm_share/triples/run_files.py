"""Create the folder of a run and its files at submission (`run_folder` describes them)."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from ..core import append_file, files, locks, process
from ..core.errors import UsageError
from ..core.process import Deadline
from ..packing import TaskSpec
from . import kept_script, run_folder
from .records import Run
from .rules import moved, submission

_MODES = dict.fromkeys((run_folder.LAUNCH_SCRIPT, run_folder.MAP_SCRIPT, run_folder.REDUCE_SCRIPT), 0o777) | {
    run_folder.ENVIRONMENT: 0o600
}
"""File modes before the umask; 0666 for all others. The environment may contain passwords and tokens."""

CLAIM = "resuming"
"""File that exists while a process resumes the run, with its identity."""
_CLAIM = re.compile(r"pid ([0-9]{1,10}) start ([0-9]{1,19}) in (\S{1,40}) on (\S{1,64})\n", re.ASCII)
LOCK_S, LOCK_PAUSE_S = 1.0, 0.01
"""Most seconds to wait for the lock of a stale claim, which others hold for less than a millisecond."""


def make_folder(parent: Path, prefix: str = "LLSUB") -> Path:
    """Make the folder `PREFIX.<n>` with the next free number in `parent`, and return it. Raises UsageError.

    mkdir(2) is atomic, on NFS too, so two processes never get the same folder.
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
            f"cannot make a folder for the run in {parent} ({error.strerror}); submit from a folder to which you may "
            "write and that has free space"
        ) from error


def _number(name: str, prefix: str) -> int:
    match = re.fullmatch(rf"{re.escape(prefix)}\.([0-9]{{1,9}})", name, re.ASCII)
    return int(match[1]) if match else 0


def identified(run: Run, folder: Path) -> Run:
    """Return a new run with an id of its own, and with its folder."""
    return replace(run, id=secrets.token_hex(8), folder=str(folder))


def write(
    folder: Path,
    run: Run,
    tasks: Sequence[str],
    script: str,
    scheduler: Sequence[str] = (),
    *,
    environ: Mapping[str, str] | None = None,
    specs: Sequence[TaskSpec] = (),
    is_kept: bool = True,
) -> None:
    """Write the files of a new folder, run.json last. Each file appears complete or not at all.

    `specs`: the requests of each task, if they differ. `environ`: the environment for `llsub --resume`, readable only
    by its owner; None: not recorded. `is_kept`: keep the program if it is a script. Raises UsageError, after removing
    the files and the empty folder, if one cannot be written.
    """
    contents = {}
    if run.task_kind != "rank":
        contents[run_folder.TASKS] = "".join(f"{line}\n" for line in tasks).encode("utf-8", "surrogateescape")
    if specs:
        contents[run_folder.SPECS] = run_folder.render_specs(specs)
    if environ is not None:
        contents[run_folder.ENVIRONMENT] = run_folder.render_environment(environ)
    contents[run_folder.LAUNCH_SCRIPT] = script.encode("utf-8", "surrogateescape")
    if is_kept:
        run, kept = kept_script.read(run)
        if kept is not None:
            contents[str(kept_script.path_in(Path(), run))] = kept
    contents[run_folder.RUN] = run_folder.render_run(replace(run, scheduler=tuple(scheduler)))
    try:
        for name, data in contents.items():
            _write_part(folder, name, data)
    except OSError as error:
        remove(folder)
        raise UsageError(
            f"cannot write {folder / name} ({error.strerror}); nothing was submitted: free space, or submit from "
            "another folder"
        ) from error


def _write_part(folder: Path, name: str, data: bytes) -> None:
    """Write a file of a run with its mode. Raises OSError."""
    is_kept = name.startswith(f"{run_folder.KEPT}/")
    if is_kept:
        (folder / run_folder.KEPT).mkdir(exist_ok=True)
    _write_whole(folder / name, data, 0o777 if is_kept else _MODES.get(name, 0o666))


def keep_again(folder: Path, run: Run) -> Run:
    """Keep the program as it is now, and return the run with its hash. Raises UsageError if it cannot be written.

    Call it as `rewrite_run`, which has to follow.
    """
    new, data = kept_script.read(run)
    if data is not None:
        try:
            _write_part(folder, str(kept_script.path_in(Path(), new)), data)
        except OSError as error:
            why = f"cannot write {kept_script.path_in(folder, new)} ({error.strerror}); nothing was submitted"
            raise UsageError(why) from error
    return new


def rewrite_run(folder: Path, run: Run) -> None:
    """Replace run.json. Call it only with the run `claimed` and without a job of it in the queue.

    Raises UsageError if it cannot be written; the old file is kept then.
    """
    file = folder / run_folder.RUN
    try:
        _write_whole(file, run_folder.render_run(run), 0o666)
    except OSError as error:
        raise UsageError(f"cannot write {file} ({error.strerror}); nothing was submitted") from error


def ask_to_begin(folder: Path) -> None:
    """Let the run's script ask whether its job has something to do (--until-done). Conditions as for `rewrite_run`."""
    file = folder / run_folder.LAUNCH_SCRIPT
    try:
        made = submission.asking_to_begin(os.fsdecode(file.read_bytes()))
        _write_whole(file, os.fsencode(made), _MODES[run_folder.LAUNCH_SCRIPT])
    except OSError as error:
        raise UsageError(f"cannot write {file} ({error.strerror}); nothing was submitted") from error


def move(folder: Path, run: Run, new: Run) -> None:
    """Write the files of a run for the folder in which it is now: scripts, tasks, and last run.json.

    `new`: the run there. May be repeated after an interruption. Call it only with the run `claimed` and without a job
    of it in the queue. Raises UsageError if a file cannot be read or written, or is not as it was written.
    """
    contents: dict[str, bytes] = {}
    argv, old = run.scheduler, run.folder
    if argv:
        for name in (run_folder.LAUNCH_SCRIPT, run_folder.MAP_SCRIPT, run_folder.REDUCE_SCRIPT):
            with contextlib.suppress(FileNotFoundError):
                text = os.fsdecode((folder / name).read_bytes())
                made = moved.script_in(text, old, str(folder), argv)
                if made is None:
                    raise UsageError(
                        f"{folder / name} was made for another folder, and has no line folder={old}; submit the run "
                        "again"
                    )
                contents[name] = os.fsencode(made)
    if run.kind == "llmapreduce":
        lines = moved.tasks_in(run, run_folder.read_tasks(folder), old, str(folder))
        contents[run_folder.TASKS] = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
    contents[run_folder.RUN] = run_folder.render_run(new)
    for name, data in contents.items():
        try:
            _write_whole(folder / name, data, _MODES.get(name, 0o666))
        except OSError as error:
            raise UsageError(f"cannot write {folder / name} ({error.strerror}); nothing was submitted") from error


def remove(folder: Path, names: Iterable[str] = run_folder.WRITTEN, *, and_itself: bool = True) -> None:
    """Remove these files and folders of a run, and with `and_itself` the folder, if it is then empty.

    Other files stay, and so does what cannot be removed. `names`: by default the files of `write`.
    """
    for name in names:
        path = folder / name
        with contextlib.suppress(OSError):  # Path.is_dir raises it too, for example for a lost file server
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
    if and_itself:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _write_whole(file: Path, data: bytes, mode: int) -> None:
    """Replace a file; fsync(2) can report a full file system."""
    # The temporary file is always new, so that secrets are never written to a file that others have open.
    files.write(file, data, mode=mode, new=file.with_name(f".{file.name}.part"), flush=True)


def note_job(folder: Path, job_id: int, after: int | None = None) -> None:
    """Append a job id to the file `jobs`. `after`: the job of the run that submitted it. Raises OSError."""
    more = "" if after is None else f" after {after}"
    append_file.append(folder / run_folder.JOBS, f"{job_id} {time.time():.0f}{more}\n".encode(), mode=0o666)


class RunIsClaimedError(UsageError):
    """Another process resumes the run at this moment."""


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold the claim to resume a run within the context. Raises RunIsClaimedError if another process holds it.

    The claim is a file created with O_EXCL, which is atomic on NFS from version 3 on. It contains the identity of its
    process, so that the claim of a killed process can be taken over on the same host.
    """
    claim = folder / CLAIM
    fd = _make_claim(claim)
    try:
        try:
            with open(fd, "wb") as file:
                file.write(_myself().encode())
        except OSError as error:
            raise UsageError(
                f"cannot write {claim} ({error.strerror}); nothing was submitted: free space, and try again"
            ) from error
        yield
    finally:
        claim.unlink(missing_ok=True)


def _make_claim(claim: Path) -> int:
    while True:
        try:
            return os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError as error:
            if not _remove_if_stale(claim):
                raise RunIsClaimedError(
                    f"{claim.parent.name} is being resumed at this moment{_by_whom(claim)}; wait for that, or, if it "
                    f"was killed, remove {claim} and try again"
                ) from error
        except OSError as error:
            raise UsageError(f"cannot write {claim} ({error.strerror}); nothing was submitted") from error


def _myself() -> str:
    identity = process.identify(os.getpid())
    start = None if identity is None else identity.start_ticks
    return f"pid {os.getpid()} start {start} in {_pid_namespace()} on {os.uname().nodename}\n"


def _pid_namespace() -> str:
    """Return the PID namespace, because containers may share the host's name and have the same pids."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return "-"


def _remove_if_stale(claim: Path) -> bool:
    """Remove the claim of a process of this host that has ended. True: try again; False: it may still run.

    Of several processes, only the one that holds the lock of the stale file removes it, and only if it is still there.
    """
    try:
        fd = os.open(claim, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not locks.take(fd, Deadline.after(LOCK_S), LOCK_PAUSE_S):
                return False
            if not _is_gone(os.read(fd, 256).decode("ascii", "replace")):
                return False
            if os.path.samestat(os.fstat(fd), claim.lstat()):
                claim.unlink()
            return True
        finally:
            os.close(fd)
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _is_gone(text: str) -> bool:
    """Return whether the process of a claim was on this host and has ended."""
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
        return False  # a process of another user, hidden by hidepid
    except (OSError, OverflowError):
        return True
    return True  # a zombie


def _by_whom(claim: Path) -> str:
    try:
        text = claim.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
    if match := _CLAIM.fullmatch(f"{text}\n"):
        return f" (by pid {match[1]} on {match[4]})"
    return f" (by {text[:80]})" if text.isprintable() and text else ""
