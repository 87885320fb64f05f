"""Take in the tasks that are added to a run while its launchers run (`added_tasks`), and end the job with a seal.

A launcher that has nothing left to do marks in the job's folder of the queue that it ends. The one that finds all marks
seals the job, so that no task that was added before is left. If a launcher was killed without a mark, the summary at
the end of the job seals it; tasks added in between are left for `llsub --resume`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Container
from pathlib import Path

from ...core.errors import StateError
from ...packing import TaskSpec
from .. import added_tasks, run_folder
from ..records import Run
from ..rules import deal
from .claims import Claims
from .feeder import Feeder
from .need_queue import NeedQueue
from .node import Node

LEASE_S = 120.0
"""Seconds without a renewal after which a client that adds tasks as they come counts as gone. It renews its lease every
10 seconds (task_stream.py); a network file system may show that late."""
_MARK = "ended."
"""Beginning of the name of a launcher's mark; the number of its node follows."""


class Growth:
    """The added tasks of one launcher's run. Only the thread of the loop calls it."""

    def __init__(
        self,
        run: Run,
        folder: Path,
        node: Node,
        lines: list[str],
        specs: list[TaskSpec],
        done: Container[int] = frozenset(),
        say: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """`run`, with its added tasks, `lines` and `specs` are as the launcher has read them at its beginning.

        `done`: the tasks that were done in earlier jobs. `say` writes a sentence to the job's log.
        """
        self._done = done
        self.say = say
        self.run = run
        """The run with the tasks that are known now."""
        self._folder = folder
        self._owner = _read_owner(folder)
        """Tasks that another user has put into the run's folder, which may be open to a group, do not run."""
        self._node = node
        self._lines = lines
        self._specs = specs
        self._queue = folder / run_folder.QUEUE / node.job
        self._seen = 0
        """Number of the last entry whose tasks the feeder has."""
        self.is_on = run.may_grow
        self._leases: dict[Path, tuple[bytes, float]] = {}
        """Lease -> its contents, and when they were first read (monotonic clock, seconds)."""
        self.is_open = False
        """True: a client will add further tasks, so that the launcher waits for them."""
        self._has_begun = False

    def first_needs(self) -> NeedQueue | None:
        """Return the tasks of the submission that wait for others; None: there are none."""
        first = self._specs[: self.run.first_tasks]
        return self._make_needs(len(first)) if any(spec.after for spec in first) else None

    def _make_needs(self, count: int) -> NeedQueue:
        """Return a queue that knows the first `count` tasks."""
        node = self._node
        claims = None if node.count == 1 else Claims(self._queue, f"{node.name}-{os.getpid()}-needs", ())
        claim = (lambda task: True) if claims is None else claims.take_task
        found = NeedQueue(self._done, node.folder.parent, node.job, node.name, node.count, claim)
        found.add(self._specs[:count])
        return found

    def begin(self, feeder: Feeder) -> None:
        """Give the feeder the tasks that were added before this launcher began. Raises StateError."""
        for entry in added_tasks.read_entries(self._folder, owner=self._owner) if self.run.added else ():
            if entry.head.end > self.run.tasks:
                break
            self._seen = entry.number
            self._feed(feeder, entry)

    def look(self, feeder: Feeder) -> bool:
        """Take in what was added since the last call; return whether there are new tasks. Raises StateError."""
        if not self.is_on or feeder.closed:
            return False
        before = self.run.tasks
        self._look_for_leases()
        for entry in added_tasks.read_entries(self._folder, self._seen, self._owner):
            if entry.head.last_seal == self._node.job:
                break  # tasks for a later job
            self._take(entry)
            self._feed(feeder, entry)
        return self.run.tasks > before

    def _look_for_leases(self) -> None:
        now = time.monotonic()
        found = added_tasks.read_leases(self._folder)
        self._leases = {
            file: known if (known := self._leases.get(file, (b"", now)))[0] == data else (data, now)
            for file, data in found.items()
        }
        for file, (_, since_s) in list(self._leases.items()):
            if now - since_s > LEASE_S:
                del self._leases[file]
                self.say(
                    f"the client that adds tasks has not been heard of for {LEASE_S:g} s: the run ends when its tasks "
                    "have ended"
                )
                with contextlib.suppress(OSError):
                    file.unlink()
        self.is_open = bool(self._leases)

    def _take(self, entry: added_tasks.Entry) -> None:
        new = run_folder.up_to(self._folder, self.run, entry.head, entry.number)
        if entry.head.first != self.run.tasks:
            file = self._folder / added_tasks.FOLDER / str(entry.number)
            raise StateError(str(file), f"its first task is {entry.head.first}, not {self.run.tasks}")
        specs = run_folder.decode_specs(entry)
        if specs and not self._specs:
            self._specs += [deal.base_spec(self.run)] * self.run.tasks
        if self._specs:
            specs = specs or [deal.base_spec(self.run)] * entry.head.tasks
            self._specs += specs
        self._lines += entry.lines
        self.run, self._seen = new, entry.number

    def _feed(self, feeder: Feeder, entry: added_tasks.Entry) -> None:
        new = self._specs[entry.head.first : entry.head.end]
        if feeder.needs is None and any(spec.after for spec in new):
            feeder.hold(self._make_needs(entry.head.first))
        if feeder.needs is not None:
            feeder.needs.add(new)
        if entry.head.tasks:
            chunks = deal.added_chunks(self.run, entry.head.first, entry.head.tasks, self._specs)
            feeder.extend(chunks, self._make_claims)

    def _make_claims(self) -> Claims:
        return Claims(self._queue, f"{self._node.name}-{os.getpid()}", ())

    # ---- The end ----

    def may_end(self, feeder: Feeder) -> bool:
        """Return whether the launcher, which has nothing left to do, may end; False: there are new tasks.

        Raises StateError.
        """
        if not self.is_on:
            return True
        if self.look(feeder) or (self.is_open and not feeder.closed):
            return False
        mark(self._queue, self._node)
        if feeder.closed or not self._are_all_marked():
            return True
        try:
            while not added_tasks.seal(self._folder, self._node.job, self._seen, self.run.first_tasks):
                if self.look(feeder):
                    self._unmark()
                    return False
                if added_tasks.read_head(self._folder, self._seen + 1).last_seal == self._node.job:
                    return True  # another launcher has sealed it
        except OSError:
            pass  # a full disk, for example, on which nothing can be added either
        return True

    def _are_all_marked(self) -> bool:
        if self._node.count == 1:
            return True
        try:
            names = {entry.name for entry in os.scandir(self._queue)}
        except OSError:
            return False
        return all(f"{_MARK}{index}" in names for index in range(self._node.count))

    def _unmark(self) -> None:
        with contextlib.suppress(OSError):
            (self._queue / f"{_MARK}{self._node.index}").unlink()


def _read_owner(folder: Path) -> int | None:
    """Return the uid to which a run belongs; None: not known.

    It is compared with the owner of entries, and not our own uid: some file systems show another owner of all files.
    """
    try:
        return (folder / run_folder.RUN).lstat().st_uid
    except OSError:
        return None


def mark(queue: Path, node: Node) -> None:
    """Mark that the launcher of a node ends, for those of the other nodes."""
    if node.count > 1:
        with contextlib.suppress(OSError):
            queue.mkdir(parents=True, exist_ok=True)
            (queue / f"{_MARK}{node.index}").touch()


def seal_at_end(folder: Path, run: Run, job: str) -> Run:
    """Seal a job whose launchers have ended, unless they did, and return the run with the tasks that are its own.

    Raises StateError.
    """
    if not run.may_grow:
        return run
    found = added_tasks.read_seal(folder, job)
    if found is None:
        with contextlib.suppress(OSError):
            while not added_tasks.seal(folder, job, added_tasks.read_numbers(folder), run.first_tasks):
                pass
        found = added_tasks.read_seal(folder, job)
    return run_folder.with_added(folder, run) if found is None else run_folder.up_to(folder, run, found, 0)
