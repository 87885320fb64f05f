"""The queue of a dynamic run: nodes claim chunks of tasks by creating files.

Every launcher computes the same table of chunks (`rules.deal.chunks`) and takes the next unclaimed chunk. To claim
chunk K, it makes a hard link named K in the queue's folder to a file of its own.

Locks do not work here: `flock` and `fcntl` locks on NFS need a lock server, are local on some mounts (`nolock`,
`local_lock`), and outlive their holder on others. link(2) is one atomic operation on every version of NFS, on Lustre,
GPFS and BeeGFS. If the answer is lost and the client repeats the request, link(2) returns EEXIST although the link is
ours. The inode number then shows that the name is a link to our file (open(2), O_EXCL, recommends the same for NFS).
A claim is never released: it holds for this job, and a resumed run starts a new queue of the tasks without a result.

On a file system without hard links, mkdir(2) is used, which is atomic too. A lost answer then costs the chunk: its
tasks are reported as unfinished.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ...core.errors import StateError

_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES, errno.EXDEV})


class Claims:
    """One launcher's access to the queue of one job."""

    def __init__(self, folder: Path, who: str, chunks: Sequence[range]) -> None:
        """Use the job's `folder` (queue/4711), which the first launcher makes. `who`: unique among the launchers.

        Raises StateError if the folder cannot be made.
        """
        self.folder = folder
        self.chunks = list(chunks)
        self._order = list(range(len(self.chunks)))
        """The numbers of the chunks in the order in which they are taken."""
        self._next = 0
        """Place in it of the first one that may not be claimed yet."""
        self._stem = f"by-{who}"
        self._mine = folder / self._stem
        self._links = True
        self._files = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._make_mine()
        except OSError as error:
            raise self._wrong(error) from error

    def extend(self, chunks: Sequence[range]) -> None:
        """Put the chunks of added tasks at the end. Every launcher gets them in the same order."""
        self._order += range(len(self.chunks), len(self.chunks) + len(chunks))
        self.chunks += chunks

    def sort(self, priority: Callable[[range], int]) -> None:
        """Take chunks of a higher priority first, from now on. A claim is for a number, so that any order is safe."""
        self._order[self._next :] = sorted(
            self._order[self._next :], key=lambda number: (-priority(self.chunks[number]), number)
        )

    def take(self) -> range | None:
        """Claim and return the next unclaimed tasks; None when all are claimed. Raises StateError."""
        try:
            while self._next < len(self._order):
                number = self._order[self._next]
                self._next += 1
                if self._claim(number):
                    return self.chunks[number]
                self._skip_taken()
        except OSError as error:
            raise self._wrong(error) from error
        return None

    def unclaimed(self) -> Sequence[range]:
        """Return the chunks after those that are known to be claimed; other nodes may have claimed some of them."""
        return self.chunks[self._next :]

    def peek(self) -> range | None:
        """Return the tasks that `take` claims next if no other node is faster; None when all are claimed.

        Raises StateError.
        """
        try:
            while self._next < len(self._order):
                number = self._order[self._next]
                if not os.path.lexists(self.folder / str(number)):
                    return self.chunks[number]
                self._next += 1
                self._skip_taken()
        except OSError as error:
            raise self._wrong(error) from error
        return None

    def take_task(self, task: int) -> bool:
        """Claim a task that waited for others, and return True; False: another launcher has it. Raises StateError."""
        try:
            return self._claim(f"task.{task}")
        except OSError as error:
            raise self._wrong(error) from error

    def _make_mine(self) -> None:
        self._mine = self.folder / f"{self._stem}.{self._files}"
        self._files += 1
        os.close(os.open(self._mine, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))

    def _claim(self, number: int | str) -> bool:
        target = self.folder / str(number)
        if not self._links:
            return self._claim_by_folder(target)
        try:
            os.link(self._mine, target)
            return True
        except FileExistsError:
            return target.samefile(self._mine)
        except OSError as error:
            if error.errno == errno.EMLINK:
                self._make_mine()
                return self._claim(number)
            if error.errno in _NO_LINKS:
                self._links = False
                return self._claim_by_folder(target)
            raise

    def _claim_by_folder(self, target: Path) -> bool:
        try:
            target.mkdir()
            return True
        except FileExistsError:
            return False

    def _skip_taken(self) -> None:
        """Skip claimed chunks by one listing of the folder. On NFS it may be old, which costs one more attempt."""
        names = {entry.name for entry in os.scandir(self.folder)}
        while self._next < len(self._order) and str(self._order[self._next]) in names:
            self._next += 1

    def _wrong(self, error: OSError) -> StateError:
        return StateError(str(self.folder), f"the queue of tasks cannot be used ({error.strerror})")
