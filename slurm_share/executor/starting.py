"""Start the workers of an executor: in a job of Slurm through `llsub`, or on this machine."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import dispatcher, frames, run_folder
from .errors import SubmissionFailed

WORKER = str(Path(__file__).with_name("worker.py").absolute())
ENV_LLSUB = "SLURM_SHARE_LLSUB"
"""Variable with the path of llsub, where several are in PATH."""
LOCAL, START_LOCK = "local.json", "local.lock"
"""Where the workers of a local run are: private folder of the node, name of the start, pids; who starts them."""
START_TRIES = 20
"""Times that a local worker that ends by itself is started again."""
QUIET_S = 10.0
"""Seconds without a sign of life of any dispatcher until Slurm is asked whether the job still exists."""
ASK_S = 15.0
"""Seconds between two questions to Slurm about the job."""
TOLD_ASK_S = 2.0
"""The same after workers were told to end."""
LOCAL_QUIET_S = 3.0
"""The same for workers on this machine, where a lock says whether they live. Above the dispatchers' BEAT_S."""


@dataclass(frozen=True)
class Wanted:
    """The job that the user asked for: the arguments of `Executor`."""

    triple: tuple[int, ...]
    share: str | None = None
    pack: bool = False
    gpu_mem_mib: int | None = None
    folder: str | None = None
    is_local: bool = False
    name: str = "executor"
    partition: str | None = None
    time: str | None = None
    options: str | None = None


_left: list[subprocess.Popen[bytes]] = []
"""Local workers that another client still uses."""


def parse_triple(triple: Sequence[int] | int | None, max_workers: int | None, *, is_local: bool) -> tuple[int, ...]:
    """Return nodes, workers on each and, if given, threads. Raises ValueError."""
    if max_workers is not None:
        if triple is not None:
            raise ValueError("write triple or max_workers, not both")
        if isinstance(max_workers, bool) or not isinstance(max_workers, int) or max_workers < 1:
            raise ValueError("max_workers must be greater than 0")
        triple = max_workers
    if triple is None:
        if not is_local:
            raise ValueError("write a triple, [nodes, workers on each node, threads], or local=True")
        triple = len(os.sched_getaffinity(0))
    found = [1, triple] if isinstance(triple, int) else list(triple)
    if not 2 <= len(found) <= 3 or any(isinstance(one, bool) or not isinstance(one, int) or one < 1 for one in found):
        raise ValueError(f"triple={triple!r}: write [nodes, workers on each node] or [nodes, workers, threads]")
    if is_local and found[0] != 1:
        raise ValueError(f"triple={triple!r}: local=True has one node")
    return tuple(found)


@dataclass
class Job:
    """Where the workers of a run are."""

    folder: str
    """The executor's folder."""
    id: str = ""
    start: str = ""
    """The name of its only start, for workers that this process started."""
    most_workers: int = 1
    workers: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    is_temporary: bool = False
    node_folder: str = ""
    tries: int = 0
    is_ending: bool = False
    lock: str = ""
    """The lock of a local run whose workers another process started."""
    _asked: float = 0.0

    def ended(self, quiet_s: float, *, is_told: bool) -> str | None:
        """Return how the job ended; None: it is in the queue or runs, or that is not known now.

        quiet_s: seconds since a dispatcher gave a sign of life. is_told: the workers were told to end.
        """
        if self.workers:
            return self._local_ended()
        if self.lock and quiet_s > LOCAL_QUIET_S and not _is_locked(self.lock):
            return "the workers on this machine ended"
        if not self.id or (quiet_s < QUIET_S and not is_told):
            return None
        if self._asked and time.monotonic() - self._asked < (TOLD_ASK_S if is_told else ASK_S):
            return None
        self._asked = time.monotonic()
        return job_ended(self.id)

    def _local_ended(self) -> str | None:
        for rank, process in list(self.workers.items()):
            code = process.poll()
            if code is None or self.is_ending:
                continue
            if code in (0, 1, 75) or self.tries >= START_TRIES:
                if all(one.poll() is not None for one in self.workers.values()):
                    return f"the workers on this machine ended (exit code {code})"
                continue
            self.tries += 1
            self.workers[rank] = _start_worker(self, rank)
        return None

    def _has_others(self) -> bool:
        try:
            return len(run_folder.clients(self.folder)) > 1
        except OSError:
            return False  # the folder was removed

    def forget(self) -> None:
        """Forget workers that have ended, before others are started."""
        self.workers.clear()
        self.lock = self.id = ""

    def ending(self) -> None:
        """Note that the client sends no further calls."""
        self.is_ending = True

    def wait(self) -> None:
        """Wait for local workers to end, and remove what is temporary; not while another client uses them."""
        if self.workers and self._has_others():
            _left.extend(self.workers.values())
            self.workers.clear()
            return
        for process in self.workers.values():
            process.wait()
        self.workers.clear()
        if self.node_folder:
            shutil.rmtree(self.node_folder, ignore_errors=True)
            self.node_folder = ""
        if self.is_temporary:
            shutil.rmtree(Path(self.folder).parent, ignore_errors=True)


def start(wanted: Wanted, initializer: bytes | None, options: dict[str, object]) -> tuple[Job, run_folder.Config]:
    """Start the workers; return where they are. Raises SubmissionFailed, ValueError and OSError.

    options: of each call.
    """
    config = run_folder.Config(
        processes=wanted.triple[0] * wanted.triple[1],
        sys_path=[path if path else os.getcwd() for path in sys.path],
        cwd=os.getcwd(),
        is_local=wanted.is_local,
        has_initializer=initializer is not None,
        made=options,
    )
    if wanted.is_local:
        return _start_local(wanted, config, initializer), config
    return _submit(wanted, config, initializer), config


def _start_local(wanted: Wanted, config: run_folder.Config, initializer: bytes | None) -> Job:
    if wanted.folder is None:
        parent = tempfile.mkdtemp(prefix="slurm-share-executor-")
    else:
        parent = os.path.abspath(wanted.folder)
        os.makedirs(parent, exist_ok=True)
    folder = f"{parent}/{run_folder.NAME}"
    if os.path.lexists(f"{folder}/{run_folder.CONFIG}"):
        raise ValueError(f"{parent} has an executor already: Executor.attach({parent!r}), or name another folder")
    run_folder.make(folder, config, initializer)
    job = Job(folder, most_workers=config.processes, is_temporary=wanted.folder is None)
    start_workers(job)
    return job


def start_workers(job: Job) -> None:
    """Start the workers of a local run, unless another process has. Raises OSError and ValueError."""
    fd = os.open(f"{job.folder}/{START_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # two clients that attach at once start them once
        if _find_local(job):
            return
        job.start = f"local.{secrets.token_hex(4)}"
        os.makedirs(f"{job.folder}/{run_folder.CLAIMS}/{job.start}", 0o700, exist_ok=True)
        job.node_folder = tempfile.mkdtemp(prefix="slurm-share-node-")
        for rank in range(job.most_workers):
            job.workers[rank] = _start_worker(job, rank)
        found = [[one.pid, dispatcher.process_start(one.pid)] for one in job.workers.values()]
        frames.write_new(f"{job.folder}/{LOCAL}", json.dumps([job.node_folder, job.start, found]).encode())
    finally:
        os.close(fd)


def _find_local(job: Job) -> bool:
    """Return whether a local run has workers that another process started. Raises OSError and ValueError."""
    try:
        node_folder, start, processes = json.loads(frames.read_own(f"{job.folder}/{LOCAL}"))
    except FileNotFoundError:
        return False
    lock = f"{node_folder}/{dispatcher.LOCK}"
    lives = any(dispatcher.process_start(pid) == began for pid, began in processes)  # they may not have the lock yet
    if not lives and not _is_locked(lock):
        return False
    job.start, job.lock = start, lock
    return True


def _is_locked(lock: str) -> bool:
    """Return whether a dispatcher holds the lock of its node."""
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _start_worker(job: Job, rank: int) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "SLURM_SHARE_EXECUTOR_NODE": job.node_folder,
        "SLURM_SHARE_EXECUTOR_RANK": str(rank),
        "SLURM_SHARE_EXECUTOR_START": job.start,
    }
    return subprocess.Popen(
        [sys.executable, WORKER, job.folder],
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in the client's terminal does not end them
    )


def find_llsub() -> str:
    """Return the path of llsub. Raises SubmissionFailed."""
    asked = os.environ.get(ENV_LLSUB)
    found = shutil.which(asked or "llsub")
    if found is None:
        raise SubmissionFailed(
            f"there is no {asked or 'llsub'} on this host: write its path into {ENV_LLSUB}, or use local=True"
        )
    return found


def _submit(wanted: Wanted, config: run_folder.Config, initializer: bytes | None) -> Job:
    if wanted.folder is not None:
        raise ValueError("folder= is for local=True; a run of Slurm has LLSUB.<n> in the working folder")
    argv = [find_llsub(), sys.executable, f"[{','.join(map(str, wanted.triple))}]", "-J", wanted.name]
    argv += ["--retries", "3"]  # of a worker: the launcher starts one again that was killed
    for option, value in (("-p", wanted.partition), ("-T", wanted.time), ("--options", wanted.options)):
        if value is not None:
            argv.append(f"{option}={value}" if option.startswith("--") else option)
            if not option.startswith("--"):
                argv.append(value)
    if wanted.share is not None:
        argv.append(f"--share-gpu={wanted.share}")
    if wanted.pack:
        argv += ["--pack", f"--name={wanted.name}"]  # sizes are learned by name: all executors have the same command
        if wanted.gpu_mem_mib is not None:
            argv.append(f"--gpu-mem={wanted.gpu_mem_mib}M")
    argv += ["--", WORKER]
    parent, job_id = run_llsub(argv)
    folder = f"{parent}/{run_folder.NAME}"
    run_folder.make(folder, config, initializer)
    return Job(folder, id=job_id, most_workers=config.processes)


def run_program(argv: Sequence[str]) -> str:
    """Run llsub; return what it said. Raises SubmissionFailed with that."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError as error:
        raise SubmissionFailed(f"{argv[0]} cannot be executed: {error.strerror}") from error
    said = "\n".join(part.strip() for part in (done.stdout, done.stderr) if part.strip())
    if done.returncode != 0:
        raise SubmissionFailed(f"the job could not be submitted (llsub, exit code {done.returncode}): {said}")
    return said


def run_llsub(argv: Sequence[str]) -> tuple[str, str]:
    """Submit a run; return its folder and the id of its job. Raises SubmissionFailed with what llsub said."""
    said = run_program(argv)
    folder = re.search(r"^llsub --watch (\S+) shows", said, re.MULTILINE)
    job = re.search(r"^job (\d+)\b", said, re.MULTILINE)
    if folder is None or job is None:
        raise SubmissionFailed(f"llsub did not say which job it submitted: {said}")
    return os.path.abspath(folder[1]), job[1]


def job_ended(job: str) -> str | None:
    """Return how a job ended; None: it is in the queue or runs, or Slurm does not answer."""
    try:
        done = subprocess.run(
            ["squeue", "-h", "-j", job, "-t", "all", "-o", "%T"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return f"job {job} has ended" if "Invalid job id" in done.stderr else None
    state = (done.stdout.split() or [""])[0]
    if not state:
        return f"job {job} has ended"
    live = ("PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "STOPPED")
    if state in (*live, "SIGNALING", "STAGE_OUT", "RESIZING", "SPECIAL_EXIT", "REQUEUE_FED", "RESV_DEL_HOLD"):
        return None
    return f"job {job} has ended ({state})"
