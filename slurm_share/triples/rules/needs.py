"""Which tasks wait for which others (`after` in a tasks file): checks at submission, and the state while a run runs.

A task names what it waits for, and a name may stand for several tasks: it waits for all that have the name when it is
submitted or added. The tasks that have one name are counted together, so that a thousand tasks that wait for a
thousand others cost two thousand entries, not a million.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Container, Sequence
from graphlib import CycleError, TopologicalSorter

from ...core.errors import UsageError, shown
from ...core.text import did_you_mean
from ...packing import TaskSpec
from ..records import GivenUp

NAMES_MOST = 1000
"""Most names that one task waits for."""
_CYCLE_MOST = 6
"""Most lines of a cycle that a message names."""


def check(specs: Sequence[TaskSpec], numbers: Sequence[int], source: str, known: Collection[str] = ()) -> None:
    """Raise UsageError, with line numbers, for a name that no line has, and for tasks that wait for each other.

    `numbers`: of the lines of `specs`. `known`: names of tasks that the run has already.
    """
    if not any(spec.after for spec in specs):
        return
    names = {spec.name for spec in specs if spec.name}
    order: TopologicalSorter[int | str] = TopologicalSorter()
    for task, spec in enumerate(specs):
        for name in spec.after:
            if name not in names and name not in known:
                hint = did_you_mean(name, sorted(names.union(known)))
                raise UsageError(
                    f'{source}: line {numbers[task]} waits for {shown(name) or repr("")}, but no line has that "name"'
                    f"{hint}"
                )
            if name in names:
                order.add(task, name)
        if spec.name:
            order.add(spec.name, task)
    try:
        order.prepare()
    except CycleError as error:
        lines = [numbers[task] for task in reversed(error.args[1]) if isinstance(task, int)]
        lines = list(dict.fromkeys(lines))
        if len(lines) == 1:
            raise UsageError(
                f"{source}: line {lines[0]} waits for itself; remove its own name from its after"
            ) from error
        shown_lines = ", ".join(map(str, lines[:_CYCLE_MOST])) + ", ..." * (len(lines) > _CYCLE_MOST)
        raise UsageError(
            f"{source}: the lines {shown_lines} wait for each other in a circle; remove a name from the after of one"
        ) from error


class _Group:
    """The tasks that had one name at one moment."""

    __slots__ = ("left", "users")

    def __init__(self, left: int) -> None:
        self.left = left
        self.users: list[int] = []


class Needs:
    """The tasks of a run that wait for others, as one launcher knows them."""

    def __init__(self, done: Container[int]) -> None:
        """`done`: the tasks that were done in earlier jobs."""
        self._done = done
        self._specs: list[TaskSpec] = []
        self._members: dict[str, list[int]] = {}
        self._groups: dict[str, list[tuple[int, _Group]]] = {}
        """Name -> (number of its tasks at one moment, their group), in order."""
        self._unmet: dict[int, int] = {}
        """Waiting task -> the number of groups that it waits for."""
        self._ready: list[tuple[int, int]] = []
        """(-priority, task), a heap."""
        self._settled: dict[int, str] = {}
        """Task that a waiting one may need -> done, failed or left, with which it ended in this job."""
        self._given_up: list[GivenUp] = []
        self.left = 0
        """Tasks that cannot run in this job, because one that they wait for is left for another one."""

    def __contains__(self, task: object) -> bool:
        """Return whether a task waits for others, or did."""
        return isinstance(task, int) and task < len(self._specs) and bool(self._specs[task].after)

    def add(self, specs: Sequence[TaskSpec]) -> None:
        """Add the next tasks of the run, submitted or added together."""
        first = len(self._specs)
        self._specs += specs
        for task, spec in enumerate(specs, first):
            if spec.name:
                self._members.setdefault(spec.name, []).append(task)
        failed: list[tuple[int, str]] = []
        for task, spec in enumerate(specs, first):
            if not spec.after or task in self._done:
                continue
            self._unmet[task] = 0
            for name in dict.fromkeys(spec.after):
                group = self._group(name)
                if group.left:
                    group.users.append(task)
                    self._unmet[task] += 1
                    bad = next(
                        (one for one in self._members[name] if self._settled.get(one) not in (None, "done")), None
                    )
                    if bad is not None:
                        failed.append((bad, self._settled[bad]))
            if not self._unmet[task]:
                self._is_ready(task)
        for task, how in failed:
            self._end_users(task, how, f"task {task} ({self._specs[task].name}), which has not been done")

    def _group(self, name: str) -> _Group:
        """Return the group of the tasks that have a name now."""
        members, groups = self._members.get(name, []), self._groups.setdefault(name, [])
        if not groups or groups[-1][0] != len(members):
            left = sum(1 for one in members if one not in self._done and self._settled.get(one) != "done")
            groups.append((len(members), _Group(left)))
        return groups[-1][1]

    def _is_ready(self, task: int) -> None:
        del self._unmet[task]
        heapq.heappush(self._ready, (-self._specs[task].priority, task))

    # ---- Ends ----

    def ended(self, task: int, how: str, why: str = "") -> None:
        """Note how a task has ended in this job for good: `done`, `failed`, or `left` for another job."""
        if task in self._settled or not task < len(self._specs):
            return
        self._settled[task] = how
        name = self._specs[task].name
        if not name or name not in self._groups:
            return
        if how != "done":
            self._end_users(task, how, f"task {task} ({name}), {why}")
            return
        index = self._members[name].index(task) if len(self._groups[name]) > 1 else 0
        for size, group in self._groups[name]:
            if index < size:
                group.left -= 1
                for user in group.users if group.left == 0 else ():
                    if user in self._unmet:
                        self._unmet[user] -= 1
                        if self._unmet[user] == 0:
                            self._is_ready(user)

    def _end_users(self, task: int, how: str, why: str) -> None:
        """End the tasks that wait for one that is not done, and those that wait for them."""
        todo = [(task, why)]
        while todo:
            one, because = todo.pop()
            name = self._specs[one].name
            members = self._members.get(name, ())
            for size, group in self._groups.get(name, ()):
                if one not in members[:size] if len(self._groups[name]) > 1 else False:
                    continue
                for user in group.users:
                    if user not in self._unmet:
                        continue
                    del self._unmet[user]
                    self._settled[user] = how
                    if how == "failed":
                        self._given_up.append(GivenUp(user, f"it needs {because}"))
                    else:
                        self.left += 1
                    own = self._specs[user].name
                    if own in self._groups:
                        todo.append((user, f"task {user} ({own}), which does not run"))

    # ---- What may start ----

    @property
    def is_waiting(self) -> bool:
        """Return whether tasks wait, may start, or have to be given up."""
        return bool(self._unmet or self._ready or self._given_up)

    @property
    def waiting(self) -> int:
        """Return the number of tasks that wait for others."""
        return len(self._unmet)

    def first(self) -> int | None:
        """Return the task that starts next of those that have all they need; None: there is none."""
        return self._ready[0][1] if self._ready else None

    def drop_first(self) -> None:
        """Remove that task: it starts, here or elsewhere."""
        heapq.heappop(self._ready)

    def take_given_up(self) -> list[GivenUp]:
        """Return the tasks that do not run because one that they need has failed, each once."""
        found, self._given_up = self._given_up, []
        return found

    def leave_all(self) -> int:
        """Wait no longer, and return how many tasks did."""
        count, self._unmet = len(self._unmet), {}
        self.left += count
        return count
