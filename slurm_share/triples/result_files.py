"""The results of a run: `results.jsonl` of each node, appended by its launcher.

They are read as a stream, because a run may have a million results on hundreds of nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from ..core.append_file import AppendFile
from ..core.errors import StateError
from ..core.records import JobStart
from ..slurm.records import QueuedJob
from . import run_folder
from .records import Ended, Run

TAIL_BYTES = 256 * 1024
"""Most bytes read from the end of a node's results for llload: some hundred tasks, of possibly a million."""
BLOCK_BYTES = 1 << 20
"""Bytes per read when all results are read."""
WINDOW_BYTES = 1 << 16
WINDOWS_MOST = 256
"""Most windows that are kept, 16 MiB with WINDOW_BYTES. Lines are read again in the order of tasks, which is nearly the
order of lines in each file."""
_OFFSET_BITS = 44
"""Bits of the offset in a place: up to 16 TiB in a file. The bits above hold the number of the file."""
_OFFSET = (1 << _OFFSET_BITS) - 1

_decode = msgspec.json.Decoder(Ended).decode


# --- Writing --------------------------------------------------------------------------------------------------------


class Results:
    """The results file of one launcher.

    Results are written at once, so they survive the launcher; after `settle` they survive a power loss. The file is
    locked until guard and loop have closed it, because two launchers of one run on one node would run tasks twice. If
    the disk is full, lines are kept and written later; `lost` returns lines that were never written.
    """

    def __init__(self, folder: Path) -> None:
        """Open and lock the file. Raises OSError if it cannot be opened, BlockingIOError if it is locked."""
        self.file = folder / run_folder.RESULTS
        # On NFS without a lock server, flock is local to the node, which is enough, or fails, which is ignored.
        self._opened = AppendFile(self.file, mode=0o666, is_held=True)
        self.lost = b""
        """Lines that are not written."""
        self._unsettled = False
        self.write_error: OSError | None = None
        """The last error of a write."""

    def write(self, *ended: Ended) -> None:
        """Append results in one write."""
        self._put(self.lost + b"".join(map(run_folder.render_ended, ended)))

    def _put(self, data: bytes) -> None:
        try:
            self._opened.append(data)
            self.lost = b""
        except OSError as error:
            self.write_error, self.lost = error, data
        self._unsettled = True

    def settle(self) -> None:
        """Try again to write lines that are not written, and fsync the file."""
        if self.lost:
            self._put(self.lost)
        if self._unsettled:
            try:
                self._opened.sync()
                self._unsettled = False
            except OSError as error:
                self.write_error = error

    def close(self) -> None:
        """Write lines that are not written if possible, and close the file."""
        self.settle()
        self._opened.close()


# --- Reading --------------------------------------------------------------------------------------------------------


class ResultFiles:
    """The `results.jsonl` of all nodes of a run, in the order of their paths."""

    def __init__(self, folder: Path, run: Run, *, all_starts: bool = False) -> None:
        """`all_starts`: also earlier starts of ranks that start together."""
        self._files = sorted((folder / run.log_folder).glob(f"p*_*/{run_folder.RESULTS}"))
        self._tasks = run.tasks
        self._only: str | None = None
        """The only start (records.Ended.job) that counts; None: all starts count."""
        if run.together and not all_starts:
            last = max(self, key=lambda ended: ended.started, default=None)
            self._only = None if last is None else last.job
        self._windows: dict[int, tuple[int, bytes]] = {}
        """Number of a file -> (offset, bytes), the most recent last."""

    def __len__(self) -> int:
        return len(self._files)

    @property
    def folders(self) -> list[Path]:
        """Return the folders of the nodes."""
        return [file.parent for file in self._files]

    def __iter__(self) -> Iterator[Ended]:
        """Yield every attempt, file by file. Raises StateError."""
        return (ended for number in range(len(self)) for _, ended in self.of_file(number))

    def of_file(self, number: int) -> Iterator[tuple[int, Ended]]:
        """Yield (place, attempt) for every attempt in file `number`, in the order of the file.

        For ranks that start together, yields only attempts of the last start. Skips incomplete lines and tasks that the
        run does not have. Raises StateError for a file that cannot be read, because its tasks would run again.
        """
        file = self._files[number]
        place, rest, tasks, only = number << _OFFSET_BITS, b"", self._tasks, self._only
        with run_folder.reading(file), open(file, "rb", buffering=0) as opened:
            is_open = True
            while is_open:
                data = opened.read(BLOCK_BYTES)
                is_open = bool(data)
                *lines, rest = (rest + (data or b"\n")).split(b"\n")
                for line in lines:
                    try:
                        ended = _decode(line)
                        if 0 <= ended.task < tasks and only in (None, ended.job):
                            yield place, ended
                    except run_folder.NOT_JSON:
                        pass
                    place += len(line) + 1

    def folder_of(self, place: int) -> Path:
        """Return the folder of the node on which the attempt at a place ran."""
        return self._files[place >> _OFFSET_BITS].parent

    def lines(self, places: Iterable[int]) -> Iterator[bytes]:
        """Yield the lines at places from `of_file`, without line ends. Raises StateError."""
        current, start, data = -1, 0, b""
        for place in places:
            number, offset = place >> _OFFSET_BITS, place & _OFFSET
            if number != current:
                current = number
                start, data = self._windows.get(number, (0, b""))
            end = data.find(b"\n", offset - start) if offset >= start else -1
            if end < 0:
                start, data = offset, self._window(number, offset)
                end = data.find(b"\n")
                if end < 0:
                    end = len(data)
            yield data[offset - start : end]

    def _window(self, number: int, offset: int) -> bytes:
        """Read and keep at least one whole line of a file, from an offset on."""
        self._windows.pop(number, None)
        if len(self._windows) >= WINDOWS_MOST:
            del self._windows[next(iter(self._windows))]
        file, size = self._files[number], WINDOW_BYTES
        with run_folder.reading(file):
            while len(data := run_folder.read_part(file, size, offset)) == size and b"\n" not in data:
                size *= 2
        self._windows[number] = (offset, data)
        return data

    def ended(self, place: int) -> Ended:
        """Return the attempt at a place. Raises StateError."""
        return _decode(next(self.lines([place])))


class ResultFollower:
    """Reads the results of one start of a job as they come."""

    def __init__(self, logs: Path, job: str) -> None:
        """Read nothing yet. `logs`: the folder of the nodes' folders. `job`: as in records.Ended."""
        self._logs, self._job = logs, job
        self._offsets: dict[Path, int] = {}

    def read(self) -> Iterator[Ended]:
        """Yield the attempts that have ended since the last call; a file that cannot be read is tried again."""
        for file in sorted(self._logs.glob(f"p*_*/{run_folder.RESULTS}")):
            while True:
                start = self._offsets.get(file, 0)
                try:
                    data = run_folder.read_part(file, BLOCK_BYTES, start)
                except OSError:
                    break
                end = data.rfind(b"\n") + 1
                if not end:
                    break
                self._offsets[file] = start + end
                yield from (ended for ended in run_folder.parse_results(data[:end]) if ended.job == self._job)


class DoneTasks:
    """The set of tasks that are done, with a byte for each task of the run."""

    def __init__(self, is_done: bytearray) -> None:
        self._is_done = is_done

    def __contains__(self, task: object) -> bool:
        return isinstance(task, int) and task < len(self._is_done) and self._is_done[task] == 1

    def __len__(self) -> int:
        return self._is_done.count(1)


def read_done(folder: Path, run: Run, *, before_start: str | None = None) -> DoneTasks:
    """Return the tasks that are done. Raises StateError.

    `before_start`: a job with its requeues, as in records.Ended; tasks done by it do not count.
    """
    found = bytearray(run.tasks)
    if run.together and before_start is not None:
        return DoneTasks(found)
    for ended in ResultFiles(folder, run):
        if ended.outcome == "done" and ended.job != before_start:
            found[ended.task] = 1
    return DoneTasks(found)


def read_before(folder: Path, run: Run) -> tuple[DoneTasks, dict[int, Ended]]:
    """Return the tasks that are done, and task -> its last attempt that ran out of GPU memory. Raises StateError.

    An attempt after it that was killed, or failed for another reason, does not show that the task needs less. Both are
    empty for ranks that start together, which all run again.
    """
    done = bytearray(run.tasks)
    if run.together:
        return DoneTasks(done), {}
    out_of_memory: dict[int, Ended] = {}
    for ended in ResultFiles(folder, run):
        known = out_of_memory.get(ended.task)
        if ended.outcome == "done":
            done[ended.task] = 1
            out_of_memory.pop(ended.task, None)
        elif (
            ended.outcome == "gpu memory" and not done[ended.task] and (known is None or ended.started >= known.started)
        ):
            out_of_memory[ended.task] = ended
    return DoneTasks(done), out_of_memory


# --- For llload -----------------------------------------------------------------------------------------------------


def read_memory_failures(jobs: Iterable[QueuedJob], uid: int) -> dict[int, int]:
    """Return job id -> number of its latest tasks that ran out of GPU memory, for running llsub jobs of `uid`.

    The folder of a run is that of the job's script. Skips jobs without such tasks, and jobs whose folder cannot be read
    here or does not belong to the user.
    """
    found = {}
    for job in jobs:
        script = Path(job.script)
        if job.uid != uid or "RUNNING" not in job.states or script.name != run_folder.LAUNCH_SCRIPT:
            continue
        try:
            count = _failures(script.parent, job.job_id, uid) if script.is_absolute() else 0
        except (OSError, StateError, ValueError):
            continue
        if count:
            found[job.job_id] = count
    return found


def _failures(folder: Path, job: int, uid: int) -> int:
    if run_folder.read_foreign_owner(folder, uid) is not None:
        return 0
    run = run_folder.read_run(folder)
    ended = (
        one
        for file in sorted((folder / run.log_folder).glob(f"p*_*/{run_folder.RESULTS}"))
        for one in run_folder.parse_results(_read_last(file))
    )
    # All starts of this job; the folder may also contain earlier jobs of the run.
    return sum(
        one.outcome == "gpu memory" and JobStart.parse(one.job).number == job and not _gets_more(one) for one in ended
    )


def _gets_more(ended: Ended) -> bool:
    """Return whether a packed run tries the task again with more GPU memory booked: it had more than its booking, which
    says nothing about the number of tasks."""
    return ended.again is True and isinstance(ended.gpu_booked_mib, int)


def _read_last(file: Path) -> bytes:
    """Return the last whole lines of a file."""
    data = run_folder.read_end(file, TAIL_BYTES + 1)
    return data.partition(b"\n")[2] if len(data) > TAIL_BYTES else data
