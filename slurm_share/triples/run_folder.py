"""The folder of a run: its paths, and reading and writing its records.

::

    LLSUB.3/
        run.json                               the run (Run)
        tasks                                  one line per task, with --tasks or inputs
        specs.jsonl                            a run whose tasks differ: the options of each task (TaskSpec)
        launch.sh                              the script of the job; llmapreduce: map.sh, reduce.sh
        kept/train.sh                          the script as it was submitted (kept_script.py)
        environment                            the environment at submission, NUL-terminated NAME=VALUE; mode 0600
        added/1 ...                            tasks added later, and the ends of jobs (added_tasks.py)
        followers                              the folders of the runs that wait for this one (chains.py)
        jobs                                   one line per submission: job id, time, and "after" and the id of the
                                               job of the run that submitted it (--until-done)
        resuming                               while a process resumes the run: its identity (run_files.py)
        llsub-triple-mode-launch.log-4711      output of launchers and scheduler
        p0-p23_n1/                             first and last process of a node, and its name
            train.sh.log.0 ...                 output of a process or a task
            results.jsonl                      the end of each attempt (Ended), one line each, appended
            events.jsonl                       progress, decisions and measurements of the launcher (packing/events.py)
        queue/4711/                            dynamic distribution: chunks of tasks that were claimed
        rendezvous/, rendezvous.<restart>/     ranks on several nodes: their key, and the addresses of the nodes
        summary.json                           the attempt that counts for each task

The names of the folders and logs are LLSC's.
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

from ..core import numbers, text_files
from ..core.errors import StateError, UsageError, quoted, shown
from ..core.records import JobStart
from ..core.text import counted
from ..packing import ProgressReader, TaskSpec
from . import added_tasks
from .records import TASKS_MAX, Ended, Run
from .rules import deal, failing, moved

LAUNCH_LOG = "llsub-triple-mode-launch.log-"
RESULTS = "results.jsonl"
SUMMARY = "summary.json"
TASKS = "tasks"
SPECS = "specs.jsonl"
"""The options of each task, one `TaskSpec` per line; missing: all are as in `Run.spec`, or `Run.pack.spec`."""
JOBS = "jobs"
LAUNCH_SCRIPT = "launch.sh"
MAP_SCRIPT = "map.sh"
REDUCE_SCRIPT = "reduce.sh"
JOB_SCRIPTS = (LAUNCH_SCRIPT, MAP_SCRIPT, REDUCE_SCRIPT)
"""The scripts of jobs."""
RUN = "run.json"
QUEUE = "queue"
ENVIRONMENT = "environment"
KEPT = "kept"
WRITTEN = (TASKS, SPECS, LAUNCH_SCRIPT, ENVIRONMENT, KEPT, RUN)
"""The files that are written at submission, which determine what is executed."""
_ENVIRONMENT_MAX_BYTES = 8 * 1024 * 1024
"""Most bytes of the file. The kernel limits arguments and environment of a program to 6 MiB (exec.c, _STK_LIM)."""
NOT_JSON = text_files.NOT_JSON
"""Errors of msgspec for text that is not a record."""

_NO_RUN = "this is not the folder of a run ({})"
_ended = msgspec.json.Decoder(Ended)
_encoder = msgspec.json.Encoder()
_spec = msgspec.json.Decoder(TaskSpec)


def read_part(path: str | Path, size: int, start: int = 0) -> bytes:
    """Return at most `size` bytes of a file from an offset on, without waiting for a pipe. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.pread(fd, size, start)
    finally:
        os.close(fd)


def read_end(path: str | Path, most: int, start: int = 0) -> bytes:
    """Return at most `most` bytes from the end of a file, and none before `start`. Raises OSError."""
    return read_part(path, most, max(start, os.stat(path).st_size - most))  # noqa: PTH116


def node_folder(folder: Path, run: Run, first: int, last: int, node: str) -> Path:
    """Return the folder with the logs and results of a node."""
    return folder / run.log_folder / f"p{first}-p{last}_{node}"


def log_name(run: Run, rank: int, task: int) -> str:
    return f"{run.name}.log.{task if run.logs == 'task' else rank}"


def render_run(run: Run) -> bytes:
    """Return the contents of run.json, without the tasks that were added later."""
    if run.added:
        run = _with_added(run, 0)
    return msgspec.json.format(msgspec.json.encode(run), indent=2) + b"\n"


def _with_added(run: Run, added: int) -> Run:
    """Return a run with another number of added tasks."""
    found = msgspec.structs.replace(run, tasks=run.first_tasks + added, added=added)
    return failing.with_max_failures(found, run.max_failures_written) if run.max_failures_written else found


@contextlib.contextmanager
def reading(file: Path | str, said: str = "{}") -> Iterator[None]:
    """Translate errors of reading and decoding a file into StateError. `said`: the text around the reason."""
    try:
        yield
    except (OSError, *NOT_JSON) as error:
        why = error.strerror if isinstance(error, OSError) else shown(str(error), 200)
        raise StateError(str(file), said.format(why)) from error


def read_run(folder: Path) -> Run:
    """Return the run of a folder, with the tasks that were added to it.

    Raises StateError if the folder is not the folder of a run.
    """
    file = folder / RUN
    with reading(file, _NO_RUN):
        run = parse_run(file.read_bytes(), str(file))
    return with_added(folder, run)


def with_added(folder: Path, run: Run) -> Run:
    """Return a run with the tasks that have been added to it up to now. Raises StateError."""
    if not run.may_grow:
        return run
    number, last = added_tasks.read_last(folder)
    return run if last is None else up_to(folder, run, last, number)


def up_to(folder: Path, run: Run, head: added_tasks.Head, number: int) -> Run:
    """Return a run with the tasks that were added up to an entry. Raises StateError for an impossible one."""
    added = head.end - run.first_tasks
    if added < 0 or head.end > TASKS_MAX:
        file = folder / added_tasks.FOLDER / str(number)
        raise StateError(str(file), f"it does not belong to this run, which has {run.first_tasks} tasks without it")
    return run if added == run.added else _with_added(run, added)


def read_run_of_job(folder: Path, run_id: str) -> Run:
    """Return the run of a folder for a job of the run with that id (empty: any).

    Raises StateError if the folder is that of another run, or of none.
    """
    try:
        run = read_run(folder)
    except StateError as error:
        if run_id and isinstance(error.__cause__, FileNotFoundError):
            raise StateError(str(folder), moved.GONE) from error
        raise
    if run_id and run.id != run_id:
        raise StateError(str(folder), moved.OTHER)
    return run


def no_run_text(argument: str, folder: Path, error: StateError) -> str:
    """Return why `argument`, which names `folder`, is not the folder of a run. `error`: of `read_run`."""
    name = shown(argument, 200) or repr(argument)
    if not os.path.lexists(folder):
        return f"there is no folder {name}; the folders of runs are called LLSUB.<n>, and ls -d LLSUB.* lists them"
    if not folder.is_dir():
        return f"{name} is a file, not the folder of a run; these are called LLSUB.<n>"
    if not os.path.lexists(folder / RUN):
        return f"{name} is not the folder of a run: there is no {RUN} in it; the folders of runs are called LLSUB.<n>"
    return f"{name} is not the folder of a run, or it is damaged: {error}"


def parse_run(data: bytes, file: str) -> Run:
    """Return the run from the contents of run.json. Raises StateError, which names `file`."""
    with reading(file, _NO_RUN):
        run = msgspec.json.decode(data, type=Run)
    if run.version != 1:
        raise StateError(
            file, f"it was made by another release of slurm-share (version {quoted(run.version, 20)}, not 1)"
        )
    return run


def read_tasks(folder: Path) -> list[str]:
    """Return the lines of the tasks file. Raises StateError."""
    file = folder / TASKS
    with reading(file):
        # Bytes: reading as text would end a line at a CR too, and shift the numbers of all later tasks.
        return [text_files.decode(line) for line in file.read_bytes().split(b"\n")[:-1]]


def read_lines(folder: Path, run: Run) -> list[str]:
    """Return the line of each task, with those of added tasks; fewer, if the tasks file is not complete.

    Raises StateError.
    """
    lines = read_tasks(folder)
    if run.added and len(lines) == run.first_tasks:
        for entry in added_tasks.read_entries(folder):
            lines += entry.lines
        del lines[run.tasks :]
    return lines


def decode_specs(entry: added_tasks.Entry) -> list[TaskSpec]:
    """Return the options of the tasks of an entry; empty: they have the run's. Raises StateError."""
    with reading(f"{added_tasks.FOLDER}/{entry.number}", "the options of the tasks cannot be read ({})"):
        return [_spec.decode(line) for line in entry.specs]


def render_specs(specs: Sequence[TaskSpec]) -> bytes:
    """Return the contents of specs.jsonl."""
    return b"".join(_encoder.encode(spec) + b"\n" for spec in specs)


def read_specs(folder: Path, run: Run) -> tuple[TaskSpec, ...]:
    """Return the options of each task of a run; empty: all have the same (`rules.deal.spec_of`).

    Raises StateError for a file that does not have the options of each task. A map has no such file: one of this name
    in the folder of its --tempdir is the user's.
    """
    if run.kind == "llmapreduce":
        return ()
    file = folder / SPECS
    specs: tuple[TaskSpec, ...] | None = None
    said = "the options of the tasks cannot be read ({}); submit the run again"
    with reading(file, said), contextlib.suppress(FileNotFoundError):
        specs = tuple(_spec.decode(line) for line in file.read_bytes().split(b"\n")[:-1])
    if specs is not None and len(specs) != run.first_tasks:
        raise StateError(
            str(file), f"it has {counted(len(specs), 'line')}, but the run has {run.first_tasks} tasks; submit it again"
        )
    return _with_added_specs(folder, run, specs or ()) if run.added else specs or ()


def _with_added_specs(folder: Path, run: Run, first: tuple[TaskSpec, ...]) -> tuple[TaskSpec, ...]:
    base = deal.base_spec(run)
    found = list(first)
    for entry in added_tasks.read_entries(folder):
        if entry.head.end > run.tasks:
            break
        specs = decode_specs(entry)
        if specs or found:
            found += [base] * (entry.head.first - len(found))
            found += specs or [base] * entry.head.tasks
    return tuple(found)


def read_jobs(folder: Path) -> list[int]:
    """Return the job ids of a run's submissions, oldest first. Raises StateError."""
    file, data = folder / JOBS, b""
    with reading(file), contextlib.suppress(FileNotFoundError):
        data = file.read_bytes()
    return parse_jobs(data)


def parse_jobs(data: bytes) -> list[int]:
    """Return the job ids in the file `jobs`."""
    lines = [line.split() for line in data.split(b"\n")]
    found = [numbers.whole(line[0]) for line in lines if line]
    return [number for number in found if number is not None]


def read_job_before(folder: Path, job: int) -> int | None:
    """Return the job of the run that submitted `job`; None: the user did. Raises StateError.

    A job that is not recorded is one whose submission was killed before it noted the id: it follows the last one.
    """
    file, data = folder / JOBS, b""
    with reading(file), contextlib.suppress(FileNotFoundError):
        data = file.read_bytes()
    lines = [words for line in data.split(b"\n") if (words := line.split())]
    for words in lines:
        if numbers.whole(words[0]) == job:
            return numbers.whole(words[3]) if len(words) > 3 and words[2] == b"after" else None
    return next(reversed(parse_jobs(data)), None)


def scheduler_command(folder: Path, run: Run) -> tuple[str, ...]:
    """Return the command that submitted the run, for its present folder.

    Raises StateError if there is none, or if it is not sbatch. The check matters because the command is executed.
    """
    argv = run.scheduler
    if argv[:1] != ("sbatch",) or len(argv) < 2:
        why = "its scheduler command is not an sbatch command" if argv else "there is no scheduler command"
        raise StateError(str(folder / RUN), f"{why}; submit the script again")
    return argv if is_same(Path(argv[-1]).parent, folder) else moved.argv_in(argv, str(folder))


def is_same(folder: Path, other: Path) -> bool:
    """Return whether two paths are the same folder, also through links."""
    try:
        return folder == other or os.path.samestat(folder.stat(), other.stat())
    except OSError:
        return False


def typed(folder: Path) -> str:
    """Return a folder as one writes it in a shell: its name if it is in the working folder, else its whole path."""
    try:
        is_here = is_same(folder.parent, Path.cwd())
    except OSError:
        is_here = False
    return shlex.quote(folder.name if is_here and not folder.name.startswith("-") else str(folder))


def asks_for_memory(run: Run) -> bool:
    """Return whether a run's job asks Slurm for less than all memory of its nodes; False outside Slurm."""
    return bool(run.scheduler) and [word for word in run.scheduler if word.startswith("--mem")][-1:] != ["--mem=0"]


def render_environment(environ: Mapping[str, str]) -> bytes:
    """Return the contents of the file `environment`. Names and values may contain any bytes but NUL.

    The contents always end with a NUL, so that an incomplete or empty file can be detected.
    """
    return b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environ.items()) or b"\0"


def read_environment(folder: Path) -> dict[str, str] | None:
    """Return the environment at submission; None: it was not recorded.

    Raises StateError for a file that cannot be read, is incomplete (the tasks would silently run in another
    environment), or that others may read or change.
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
        raise StateError(str(file), f"{why}; use --env=current instead") from error
    if not is_file or not data.endswith(b"\0") or len(data) > _ENVIRONMENT_MAX_BYTES:
        raise StateError(str(file), "this is not a complete environment; use --env=current instead")
    if mode & 0o077:
        raise StateError(
            str(file),
            f"others may read or change it (mode {stat.S_IMODE(mode):04o}), but it may contain secrets and affects "
            f"the tasks; if nobody has changed it, run chmod 600 {shlex.quote(str(file))}, else use --env=current",
        )
    pairs = (os.fsdecode(one).partition("=") for one in data.split(b"\0"))
    return {name: value for name, equals, value in pairs if name and equals}


def read_foreign_owner(folder: Path, uid: int) -> int | None:
    """Return another owner than `uid` of a run's folder, or of a file in it that determines commands or jobs.

    None: `uid` owns all of them. A folder with another owner may be read, but not acted on.
    """
    owners = []
    with contextlib.suppress(FileNotFoundError):
        owners.append(folder.stat().st_uid)
    added = folder / added_tasks.FOLDER
    files = [*(folder / name for name in (*WRITTEN, JOBS)), added]
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        files += [added / entry.name for entry in os.scandir(added)]
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            owners.append(file.lstat().st_uid)  # for a link, the owner of the link
    return next((owner for owner in owners if owner != uid), None)


def render_ended(ended: Ended) -> bytes:
    """Return a line of results.jsonl, with its line end."""
    return _encoder.encode(ended) + b"\n"


def parse_results(data: bytes) -> Iterator[Ended]:
    """Yield the attempts in a results.jsonl without incomplete lines, whose attempts count as never ended."""
    for line in data.split(b"\n"):
        if line:
            try:
                yield _ended.decode(line)
            except NOT_JSON:
                continue


def read_exit_code(folder: Path, run: Run) -> int:
    """Return the exit code of a run of ranks whose last start had to end; 0: it had not, or the run has no ranks."""
    if not run.together:
        return 0
    shown = ProgressReader(folder / run.log_folder).read()
    last = max(shown, key=lambda one: one.at, default=None)
    return max((one.exit_code for one in shown if last is not None and one.job == last.job), default=0)


# ---- Ranks on several nodes ----

KEY_FOLDER = "rendezvous"
"""Folder of the key and of the addresses of the nodes; `slurm_share.spmd.key_folder` defines its contents.

The key is made at submission, well before a node reads it, because a network file system may show a new file late. The
launcher of node 0 removes it at the end of the job. A requeue makes a new key in a new folder, `rendezvous.1`, because
an interrupted start leaves its folder behind; a further job of the run in `rendezvous.4712`. A rank may join only with
the key of the present start, so ranks of an earlier start, on a node that lost contact, are refused."""


def key_folder_of(folder: Path, job: str = "") -> Path:
    """Return the rendezvous folder of a run. `job`: as in records.Ended, "4711.1" after the first requeue."""
    start = JobStart.parse(job)
    jobs = read_jobs(folder) if job else []
    if jobs and jobs[0] != start.number:  # the first job may start before its id is written
        return folder / f"{KEY_FOLDER}.{start}"
    restarts = start.restarts
    return folder / (f"{KEY_FOLDER}.{restarts}" if restarts else KEY_FOLDER)


def make_key(folder: Path) -> None:
    """Make the folder and the key at submission. Raises UsageError, after removing them, if that fails."""
    place = key_folder_of(folder)
    try:
        _make_key(place)
    except OSError as error:
        if not isinstance(error, FileExistsError):
            remove_key(place)
        raise UsageError(
            f"cannot make the key of the run in {place} ({error.strerror}); nothing was submitted"
        ) from error


def _make_key(place: Path) -> None:
    from ..spmd import key_folder  # imported here: what reads the records of runs does without it

    key_folder.make_folder(str(place))


def make_key_anew(place: Path) -> None:
    """Make the folder and the key of a later start of the run, and remove those of earlier ones. Raises OSError."""
    for old in place.parent.glob(f"{KEY_FOLDER}*"):
        if old != place:
            remove_key(old)
    if not place.exists():
        _make_key(place)


def remove_key(place: Path) -> None:
    """Remove the folder and its files, as far as possible."""
    with contextlib.suppress(OSError):
        for file in place.iterdir():
            with contextlib.suppress(OSError):
                file.unlink()
        place.rmdir()
