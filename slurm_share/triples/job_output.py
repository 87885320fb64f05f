"""Find the output files of a job and read their end. Paths and contents are untrusted."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..core import numbers, text_files
from ..core.errors import CommandError, SlurmShareError, StateError, shown
from ..slurm.jobs import DATA_PARSER, ask
from . import run_folder
from .records import Run

TIMEOUT_S = 30.0
LOGS_MOST = 50
"""Most logs of one node that are offered, the newest first."""
_NODE = re.compile(r"[A-Za-z0-9._-]{1,255}")
TAIL_BYTES = 256 * 1024
"""Most bytes of one read from the end of a file."""
RUN_BYTES = 64 * 1024
"""Most bytes of a run.json; llsub writes less."""


class JobFiles(
    Struct,
    frozen=True,
    kw_only=True,
    rename={
        "user": "user_name", "uid": "user_id", "stdout": "standard_output", "stderr": "standard_error",
        "script": "command", "folder": "current_working_directory",
    },
):  # fmt: skip
    """The files of a job, as Slurm reports them."""

    job_id: int = 0
    user: str = ""
    uid: int
    stdout: str = ""
    """Empty: none, for a job with a terminal."""
    stderr: str = ""
    """Empty: none."""
    script: str = ""
    folder: str = ""
    """Working directory of the job."""
    batch_host: str = ""
    stdout_expanded: str = ""
    """The path, only in Slurm 26.11, whose `standard_output` has %j and the like."""
    stderr_expanded: str = ""


class LogFile(Struct, frozen=True):
    """A log file that may be shown."""

    title: str
    path: str


# --- Slurm's answer ---------------------------------------------------------------------------------------------------


class _JobFilesList(Struct):
    jobs: list[JobFiles]


def parse_files(text: str, job_id: int) -> JobFiles | None:
    """Return the files of a job from scontrol's JSON; None: Slurm does not know the job. Raises CommandError."""
    try:
        jobs = msgspec.json.decode(text, type=_JobFilesList).jobs
    except text_files.NOT_JSON as error:
        raise CommandError(("scontrol",), 0, f"an answer that is not its JSON: {shown(str(error), 200)}") from error
    job = next((one for one in jobs if one.job_id == job_id), None)
    if job is None:
        return None
    stdout = job.stdout_expanded or _expanded(job.stdout, job)
    stderr = job.stderr_expanded or _expanded(job.stderr, job)
    user = job.user or str(job.uid)
    return replace(job, user=user, stdout=stdout, stderr=stderr, stdout_expanded="", stderr_expanded="")


def read_files(job_id: int) -> JobFiles:
    """Return the output files of a job.

    Raises SlurmShareError if Slurm no longer knows the job, CommandError if Slurm does not answer.
    """
    # JSON, because in scontrol's text a job's name can imitate other fields.
    argv = ["scontrol", f"--json={DATA_PARSER}", "show", "job", str(job_id)]
    found = parse_files(ask(argv, TIMEOUT_S), job_id)
    if found is None:
        raise SlurmShareError(f"Slurm no longer knows job {job_id}, so its output files are not known")
    return found


def _expanded(path: str, job: JobFiles) -> str:
    """Return a path with %N replaced: scontrol expands the other patterns, and 24.11 leaves %N to slurmstepd."""
    if not job.batch_host or "%N" not in path:
        return path
    return re.sub(r"%%|%N", lambda found: job.batch_host if found[0] == "%N" else found[0], path)


# --- The logs of a run ------------------------------------------------------------------------------------------------


def choose(
    files: JobFiles, *, node: str = "", local: int | None = None, owner: int | None = None
) -> tuple[LogFile, ...]:
    """Return the log files of a job, the likeliest first; with `node`, also the logs of a run's processes there.

    `local`: number of the process on the node, from 0. `owner`: as for Tail. Logs that do not exist are left out.
    """
    found = [] if not node else _run_logs(files, node, local, owner)
    if files.stdout:
        found.append(LogFile("output of the job", files.stdout))
    if files.stderr and files.stderr != files.stdout:
        found.append(LogFile("errors of the job", files.stderr))
    return tuple(found)


def _run_logs(files: JobFiles, node: str, local: int | None, owner: int | None) -> list[LogFile]:
    if not _NODE.fullmatch(node):
        return []
    # The script, or the output, of a job of llsub is in the folder of its run.
    for folder in dict.fromkeys(Path(path).parent for path in (files.script, files.stdout) if path.startswith("/")):
        try:
            the_run = _read_run(str(folder / run_folder.RUN), owner)
            known = run_folder.parse_jobs(_read_plain(str(folder / run_folder.JOBS), owner))
            if known and files.job_id not in known:
                continue  # another run that has taken the name of a renamed folder
            return _logs_in(sorted((folder / the_run.log_folder).glob(f"p*-p*_{node}")), the_run.name, local)
        except (SlurmShareError, OSError, ValueError):
            continue
    return []


def _read_run(path: str, owner: int | None) -> Run:
    """Return a run from an untrusted run.json, without waiting for a pipe and with at most RUN_BYTES of memory."""
    return run_folder.parse_run(_read_plain(path, owner), path)


def _read_plain(path: str, owner: int | None) -> bytes:
    """Return the contents of an untrusted file of a run; empty: there is none."""
    try:
        file = open_plain(path, owner)
    except FileNotFoundError:
        return b""
    try:
        if os.fstat(file).st_size > RUN_BYTES:
            raise StateError(path, f"this is not a file of a run (more than {RUN_BYTES} bytes)")
        return os.pread(file, RUN_BYTES, 0)
    finally:
        os.close(file)


def _logs_in(folders: list[Path], name: str, local: int | None) -> list[LogFile]:
    logs: list[tuple[float, int, LogFile]] = []
    likely: list[LogFile] = []
    for folder in folders:
        first = re.match(r"p([0-9]{1,9})-", folder.name)
        with os.scandir(folder) as entries:
            for entry in entries:
                behind = entry.name.removeprefix(f"{name}.log.")
                number = numbers.whole(behind) if behind != entry.name else None
                if number is None:
                    continue
                log = LogFile(f"log {number}", entry.path)
                if first and local is not None and number == int(first[1]) + local:
                    likely.append(log)
                else:
                    logs.append((entry.stat(follow_symlinks=False).st_mtime, number, log))
    newest = sorted(logs, key=lambda one: (-one[0], one[1]))[:LOGS_MOST]
    return likely + [log for _, _, log in newest]


# --- The end of a file ------------------------------------------------------------------------------------------------


class FilePart(Struct, frozen=True):
    """The result of one read of a file."""

    data: bytes
    anew: bool = False
    """True: it replaces all earlier data (the file is new, or was truncated)."""
    left_out: bool = False
    """True: data before it was skipped, because there was too much."""


def open_plain(path: str, owner: int | None = None) -> int:
    """Open an untrusted path for reading and return the descriptor. `owner`: the uid that the file must have.

    Checks the file with O_PATH first, because opening can affect a device or wait for a pipe, and then opens exactly
    that file. Raises SlurmShareError for anything but a regular file of the owner, OSError.
    """
    if not path or "\0" in path:
        raise SlurmShareError("Slurm reports no valid path")
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        found = os.fstat(place)
        if not stat.S_ISREG(found.st_mode):
            raise SlurmShareError(f"{path} is {_kind(found.st_mode)}, not a file; it cannot be shown")
        if owner is not None and found.st_uid != owner:
            raise SlurmShareError(f"{path} does not belong to the job's user; it is not shown to root")
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    finally:
        os.close(place)


class Tail:
    """The end of a file that may still grow. Never waits for a pipe and never opens a device. Use from one thread."""

    def __init__(self, path: str, owner: int | None = None) -> None:
        """`owner`: the uid that the file must have.

        A job's user chooses the path of its output, which must not give root's dashboard access to other users' files.
        """
        self._path = path
        self._owner = owner
        self._fd = -1
        self._at = 0

    def read(self) -> FilePart:
        """Return the data written since the last call; the first call returns the end of the file.

        Raises SlurmShareError, with the reason, if the file cannot be read; a later call tries again.
        """
        try:
            return self._read()
        except OSError as error:
            self.close()
            raise SlurmShareError(f"{self._path}: {error.strerror or error}") from error

    def close(self) -> None:
        """Close the file; the next read begins anew. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._at = 0

    def _read(self) -> FilePart:
        anew = False
        if self._fd >= 0 and self._is_replaced():
            self.close()
            anew = True
        if self._fd < 0:
            self._fd = open_plain(self._path, self._owner)
            anew = True
        size = os.fstat(self._fd).st_size
        if size < self._at:
            self._at, anew = 0, True
        begin = max(self._at, size - TAIL_BYTES)
        left_out = begin > self._at
        data = os.pread(self._fd, max(0, size - begin), begin)
        self._at = begin + len(data)
        if left_out:
            # Begin with a whole line.
            data = data.partition(b"\n")[2] if b"\n" in data[:-1] else data
        return FilePart(data, anew or left_out, left_out)

    def _is_replaced(self) -> bool:
        try:
            now = os.stat(self._path)  # noqa: PTH116 - any text may be the path
        except OSError:
            return False  # removed: the open file can still be read
        return not os.path.samestat(now, os.fstat(self._fd))


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    return next((argument for is_kind, argument in kinds if is_kind(mode)), "a device")
