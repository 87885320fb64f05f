"""The folder of a run: the paths in it, and reading and writing its records.

::

    LLSUB.3/
        run.json                               what is to run (Run)
        tasks                                  a line a task, where there is further work than one task a process
        specs.jsonl                            what each task asks for (TaskSpec), of a packed run of unlike tasks
        launch.sh                              the script given to the scheduler
        submit.json                            the scheduler command, a list of words
        environment                            the environment at the submission, NAME=VALUE with a NUL after each; 0600
        jobs                                   a line a submission: job id, time
        llsub-triple-mode-launch.log-4711      what launchers and scheduler said
        p0-p23_n1/                             a node's first and last process, and its name
            train.sh.log.0 ...                 a process's or a task's output
            results.jsonl                      how each attempt ended (Ended), one line each, appended
            progress.json                      how far it is (Progress)
            waits.json                         of ranks: which of them wait for messages (a list of Wait)
            decisions.jsonl                    of a packed run: what each decision saw and did (packing/journal.py)
            sizes.jsonl                        of a packed run on several nodes: sizes of running tasks, for the others
        queue/4711/                            of dynamic distribution: which node took which tasks
        rendezvous/, rendezvous.<restart>/     of ranks on several nodes: their secret (rendezvous_files.py)
        summary.json                           every task's last attempt
        exit_code                              of ranks whose run was ended: its exit code

The names of folder and logs are LLSC's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from ..core.errors import StateError
from ..packing import TaskSpec
from .records import Ended, Progress, Run, Wait

LAUNCH_LOG = "llsub-triple-mode-launch.log-"
RESULTS = "results.jsonl"
PROGRESS = "progress.json"
WAITS = "waits.json"
SUMMARY = "summary.json"
EXIT_CODE = "exit_code"
TASKS = "tasks"
SPECS = "specs.jsonl"
"""What the user wrote about each task of a packed run, a `TaskSpec` a line; missing: all are as `Run.pack.spec`."""
JOBS = "jobs"
LAUNCH_SCRIPT = "launch.sh"
RUN = "run.json"
SUBMIT = "submit.json"
QUEUE = "queue"
ENVIRONMENT = "environment"
_ENVIRONMENT_MAX_BYTES = 8 * 1024 * 1024
"""No program starts with more: the kernel takes 6 MiB of arguments and environment at most (exec.c, _STK_LIM)."""

_ended = msgspec.json.Decoder(Ended)
_encoder = msgspec.json.Encoder()
_spec = msgspec.json.Decoder(TaskSpec)


def node_folder(folder: Path, run: Run, first: int, last: int, node: str) -> Path:
    """Return the folder of a node's logs and results."""
    return folder / run.log_folder / f"p{first}-p{last}_{node}"


def log_name(run: Run, rank: int, task: int) -> str:
    """Return the name of a task's log in its node's folder."""
    return f"{run.name}.log.{task if run.logs == 'task' else rank}"


def render_run(run: Run) -> bytes:
    """Return the contents of run.json."""
    return msgspec.json.format(msgspec.json.encode(run), indent=2) + b"\n"


def read_run(folder: Path) -> Run:
    """Return the run of a folder. Raises StateError for a folder that holds none."""
    file = folder / RUN
    try:
        return parse_run(file.read_bytes(), str(file))
    except OSError as error:
        raise StateError(str(file), f"this is not the folder of a run ({error.strerror})") from error


def parse_run(data: bytes, file: str) -> Run:
    """Return the run from the contents of run.json. Raises StateError, which names `file`, for anything else."""
    try:
        run = msgspec.json.decode(data, type=Run)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StateError(file, f"this is not the folder of a run ({error})") from error
    if run.version != 1:
        raise StateError(file, f"it was made by another release of slurm-share (version {run.version}, not 1)")
    return run


def read_tasks(folder: Path) -> list[str]:
    """Return the lines of the tasks file. Raises StateError."""
    file = folder / TASKS
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape").split("\n")[:-1]
    except OSError as error:
        raise StateError(str(file), str(error.strerror)) from error


def render_specs(specs: Sequence[TaskSpec]) -> bytes:
    """Return the contents of specs.jsonl."""
    return b"".join(_encoder.encode(spec) + b"\n" for spec in specs)


def read_specs(folder: Path, run: Run) -> tuple[TaskSpec, ...]:
    """Return what each task of a packed run asks for; empty: all ask for `Run.pack.spec`.

    Raises StateError for a file that has not one for each task.
    """
    file = folder / SPECS
    try:
        data = file.read_bytes()
        specs = tuple(_spec.decode(line) for line in data.split(b"\n")[:-1])
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise StateError(str(file), f"cannot tell what the tasks ask for ({why}); submit the run anew") from error
    if len(specs) != run.tasks:
        raise StateError(str(file), f"it is of {len(specs)} tasks, and the run has {run.tasks}; submit the run anew")
    return specs


def read_jobs(folder: Path) -> list[int]:
    """Return the job ids of a run's submissions, oldest first; none before the first. Raises StateError."""
    file = folder / JOBS
    try:
        lines = [line.split() for line in file.read_text(encoding="ascii", errors="replace").splitlines()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StateError(str(file), str(error.strerror)) from error
    return [int(line[0]) for line in lines if line and line[0].isdecimal()]


def read_scheduler_command(folder: Path) -> tuple[str, ...]:
    """Return the command that submitted the run.

    Raises StateError for a folder whose run was never given to a scheduler, and for words that are no sbatch command:
    these are started.
    """
    file = folder / SUBMIT
    try:
        argv = msgspec.json.decode(file.read_bytes(), type=tuple[str, ...])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise StateError(str(file), f"there is no scheduler command ({why})") from error
    if argv[:1] != ("sbatch",):
        raise StateError(str(file), "this is no command of sbatch; submit the script anew")
    return argv


def render_environment(environ: Mapping[str, str]) -> bytes:
    """Return the file `environment`. Names and values may be any bytes but NUL, a shell function's text among them.

    It always ends with a NUL: so one that was cut off, or emptied, can be told from a whole one.
    """
    return b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environ.items()) or b"\0"


def parse_environment(data: bytes) -> dict[str, str]:
    """Return the variables in the contents of the file `environment`."""
    pairs = (os.fsdecode(one).partition("=") for one in data.split(b"\0"))
    return {name: value for name, equals, value in pairs if name and equals}


def read_environment(folder: Path) -> dict[str, str] | None:
    """Return the environment at a run's submission; None: it was not recorded.

    Raises StateError for a file that cannot be read, or is not what `render_environment` made: a part of an environment
    would run the tasks in another one without a word. Also for a file that others may read or change.
    """
    file = folder / ENVIRONMENT
    try:
        fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as opened:
            mode = os.fstat(fd).st_mode
            is_file = stat.S_ISREG(mode)
            data = opened.read(_ENVIRONMENT_MAX_BYTES + 1) if is_file else b""
    except FileNotFoundError:
        return None
    except OSError as error:
        why = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise StateError(str(file), f"{why}; --env=current does without it") from error
    if not is_file or not data.endswith(b"\0") or len(data) > _ENVIRONMENT_MAX_BYTES:
        raise StateError(str(file), "this is not the whole environment of a submission; --env=current does without it")
    if mode & 0o077:
        raise StateError(
            str(file),
            f"others may read or change it (mode {stat.S_IMODE(mode):04o}), and it holds secrets and decides what the "
            f"tasks run; if nobody has changed it, chmod 600 {shlex.quote(str(file))}; --env=current does without it",
        )
    return parse_environment(data)


def read_foreign_owner(folder: Path, uid: int) -> int | None:
    """Who other than `uid` owns the folder of a run, or a file in it that says what is run or which jobs are its; None:
    nobody. Such a folder is somebody else's word: it may be read and not acted on."""
    owners = []
    with contextlib.suppress(FileNotFoundError):
        owners.append(folder.stat().st_uid)
    for name in (RUN, SUBMIT, JOBS, TASKS, SPECS, LAUNCH_SCRIPT, ENVIRONMENT):
        with contextlib.suppress(FileNotFoundError):
            owners.append((folder / name).lstat().st_uid)  # of a link too: its owner chose where it leads
    return next((owner for owner in owners if owner != uid), None)


def render_ended(ended: Ended) -> bytes:
    """Return one line of results.jsonl."""
    return _encoder.encode(ended) + b"\n"


def parse_results(data: bytes) -> Iterator[Ended]:
    """Return the attempts in a results.jsonl.

    A line that was cut off by a crash, or by a full disk, is left out: its task then counts as never ended.
    """
    for line in data.split(b"\n"):
        if line:
            try:
                yield _ended.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue


def write_progress(folder: Path, progress: Progress) -> None:
    """Write a node's progress.json whole. A full or absent disk is no error: the file is only for display."""
    file = folder / PROGRESS
    new = file.with_suffix(".new")
    try:
        new.write_bytes(_encoder.encode(progress))
        new.replace(file)
    except OSError:
        new.unlink(missing_ok=True)


def read_progress(folder: Path, run: Run, job: str | None = None) -> list[Progress]:
    """Return the progress of each node, of one job if given. Missing and damaged files are left out."""
    found = []
    for file in sorted((folder / run.log_folder).glob(f"p*_*/{PROGRESS}")):
        try:
            progress = msgspec.json.decode(file.read_bytes(), type=Progress)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if job is None or progress.job == job:
            found.append(progress)
    return found


def write_waits(folder: Path, waits: Sequence[Wait]) -> None:
    """Write whole which ranks of a node wait for messages. Raises OSError."""
    new = (folder / WAITS).with_suffix(".new")
    new.write_bytes(_encoder.encode(waits))
    new.replace(folder / WAITS)


def read_waits(folder: Path, run: Run) -> list[Wait]:
    """Return the ranks that wait for messages, on all nodes. Missing and damaged files are left out."""
    found: list[Wait] = []
    for file in sorted((folder / run.log_folder).glob(f"p*_*/{WAITS}")):
        try:
            found += msgspec.json.decode(file.read_bytes(), type=list[Wait])
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return found


def write_exit_code(folder: Path, code: int) -> None:
    """Write the exit code of a run of ranks that has to end; 0: remove what an earlier start wrote. Raises OSError."""
    if code:
        (folder / EXIT_CODE).write_text(f"{code}\n")
    else:
        (folder / EXIT_CODE).unlink(missing_ok=True)


def read_exit_code(folder: Path) -> int:
    """Return the exit code of a run of ranks that had to end; 0 where there is none."""
    try:
        return int((folder / EXIT_CODE).read_text())
    except (OSError, ValueError):
        return 0
