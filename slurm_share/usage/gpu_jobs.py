"""Write which jobs have which GPU into the files that dcgm-exporter and the exporter of jobstats read.

Prolog and Epilog call this for every job with GPUs. What belongs into the files follows from root's own entries, one
for each job, in the state folder: so a killed hook, or a reboot, leaves nothing that the next hook does not put right.
One lock is held for reading the entries and writing the files. Nothing here may fail a job or hold it up: what
fails is a sentence in the log, and the hook's watchdog ends what hangs.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import msgspec

from ..core import files, locks, names, numbers, text_files
from ..core.errors import DriverError, StateError
from ..core.process import Deadline
from ..node import processes
from ..node.gpus import driver as nvml
from ..node.records import Gpu
from .rules import gpu_jobs
from .rules.gpu_jobs import GpuJob

LOCK_S = 1.0
"""How long a hook waits for the lock, which is held for milliseconds."""
LOCK_PAUSE_S = 0.005
MOST_BYTES = 1 << 20
_LOCK = ".lock"
_NEW = ".slurm-share.new"
"""A file until its rename; no exporter takes it for a GPU's."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ENCODER = msgspec.json.Encoder()


def begin(
    job: int,
    uid: int,
    gpus: Sequence[Gpu],
    folders: tuple[str, str],
    root: Path,
    boot_id: str,
    say: Callable[[str], None],
) -> None:
    """Enter a job with its GPUs, and write the files. `folders`: those of the settings job_mapping_folder and
    gpustat_folder, empty where switched off. Never raises for the job's sake: `say` gets a sentence instead."""
    mapping, gpustat = folders
    instances = {
        gpu.uuid: number for gpu in gpus if gpu.uuid.startswith("MIG-") and (number := _instance(gpu.uuid)) is not None
    }
    lines = gpu_jobs.lines_of(job, uid, gpus, instances, mapping, gpustat)
    uuids = tuple(gpu.uuid for gpu in gpus if gpu.problem is None)
    entry = GpuJob(job, uid, boot_id, time.clock_gettime(time.CLOCK_BOOTTIME), uuids, lines)

    def change(folder: Path, known: tuple[GpuJob, ...]) -> tuple[GpuJob, ...]:
        files.write(folder / str(job), _ENCODER.encode(entry), new=folder / _NEW)
        others = tuple(one for one in known if one.job != job)
        may_be_over = gpu_jobs.ended(others, entry, ())
        over = may_be_over and gpu_jobs.ended(others, entry, (one.job_id for one in processes.read_live_jobs()))
        for number in over:
            (folder / str(number)).unlink(missing_ok=True)
        return (*(one for one in others if one.job not in over), entry)

    _update(root, change, folders, f"job {job}", say)


def end(job: int, root: Path, say: Callable[[str], None]) -> None:
    """Remove a job's entry and its lines, if it has any. Never raises, as `begin`."""
    if not os.path.lexists(root / names.GPU_JOBS_FOLDER / str(job)):
        return

    def change(folder: Path, known: tuple[GpuJob, ...]) -> tuple[GpuJob, ...]:
        (folder / str(job)).unlink(missing_ok=True)
        return tuple(one for one in known if one.job != job)

    _update(root, change, (), f"job {job}", say)


def read(root: Path) -> tuple[GpuJob, ...]:
    """Return the entries of this node; a damaged one is as none."""
    folder = root / names.GPU_JOBS_FOLDER
    found = []
    try:
        listed = os.listdir(folder)  # noqa: PTH208  (a Path for each is slow)
    except FileNotFoundError:
        return ()
    for name in listed:
        if numbers.whole(name) is None:
            continue
        try:
            data = files.read(folder / name, MOST_BYTES)
            if data is not None:
                found.append(msgspec.json.decode(data, type=GpuJob))
        except (StateError, *text_files.NOT_JSON):
            continue
    return tuple(found)


def _instance(uuid: str) -> int | None:
    """Return the driver's GPU instance id of a MIG instance; None: it does not tell."""
    try:
        return nvml.read_instance_id(uuid)
    except DriverError:
        return None


def _update(
    root: Path,
    change: Callable[[Path, tuple[GpuJob, ...]], tuple[GpuJob, ...]],
    folders: Collection[str],
    who: str,
    say: Callable[[str], None],
) -> None:
    folder = root / names.GPU_JOBS_FOLDER
    try:
        root.mkdir(mode=0o755, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if not locks.take(lock, Deadline.after(LOCK_S), LOCK_PAUSE_S):
                say(f"{who}: another hook holds {folder / _LOCK}: the files about its GPUs are not written")
                return
            before = read(root)
            after = change(folder, before)
            places = {*folders, *(line.folder for one in (*before, *after) for line in one.lines)} - {""}
            for place in sorted(places):
                _write_folder(place, gpu_jobs.contents(after), who, say)
        finally:
            os.close(lock)
    except OSError as error:
        say(f"{who}: {error.filename or folder}: {error.strerror}: the files about its GPUs are not written")


def _write_folder(place: str, wanted: gpu_jobs.Lines, who: str, say: Callable[[str], None]) -> None:
    """Make the files of a folder say what is wanted, each replaced as a whole; remove those of GPUs without a job."""
    problem = _make(Path(place))
    if problem:
        say(f"{who}: {problem}: the files about its GPUs are not written there")
        return
    try:
        fd = os.open(place, _FOLDER)
    except OSError as error:
        say(f"{who}: {place}: {error.strerror}: the files about its GPUs are not written there")
        return
    try:
        texts = {name: "".join(f"{line}\n" for line in lines) for (at, name), lines in wanted.items() if at == place}
        for name in os.listdir(fd):  # noqa: PTH208
            if gpu_jobs.is_of_gpu(name) and name not in texts:
                os.unlink(name, dir_fd=fd)
        for name, text in texts.items():
            if _text(name, fd) != text.encode():
                new = Path(_NEW)
                files.write(Path(name), text.encode(), mode=0o644, new=new, folder=fd, finish=_readable)
    except OSError as error:
        say(f"{who}: {place}: {error.strerror}: the files about its GPUs are not all written")
    finally:
        os.close(fd)


def _make(place: Path) -> str:
    """Make the folder, if the one above is there; return why it may not be used, empty: it may be.

    Folder and parents must be root's, and no link: a user who could put a link there would choose which file root
    writes. So the parents are examined before anything is made.
    """
    if why := next(filter(None, map(_why_unsafe, place.parents)), ""):
        return why
    try:
        place.mkdir(mode=0o755)
        place.chmod(0o755)
    except FileExistsError:
        pass
    except OSError as error:
        return f"{place} cannot be made ({error.strerror})"
    return _why_unsafe(place, may_be_shared=False)


def _why_unsafe(folder: Path, *, may_be_shared: bool = True) -> str:
    """Return why a user could change what is in a folder; empty: he cannot. may_be_shared: as /tmp is."""
    try:
        found = folder.lstat()
    except OSError as error:
        return f"{folder} cannot be used ({error.strerror})"
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder} is a link or no folder"
    is_shared = may_be_shared and found.st_mode & stat.S_ISVTX
    if found.st_uid not in (0, os.geteuid()) or (found.st_mode & 0o022 and not is_shared):
        return f"another user than root may write to {folder}"
    return ""


def _text(name: str, folder: int) -> bytes | None:
    try:
        return files.read_regular(name, MOST_BYTES, folder=folder)
    except OSError:
        return None


def _readable(fd: int) -> None:
    os.fchmod(fd, 0o644)
