"""Read the steps of this node as process trees below their slurmstepd.

If a job has no cgroup, or its cgroup does not count CPU time or memory, these trees tell which processes belong to it
and what they use.
The sampler reads every process of the node here; for psutil's cost see load/collectors.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from ..core import numbers
from . import cgroups
from .cgroups import slurp
from .readings import JobNow

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 1024 * 1024
UID = re.compile(rb"^Uid:\t([0-9]+)\t", re.MULTILINE)
_ANCESTORS = 64
MOST_PARENTS = 32
"""Most processes among which the task or the launcher of a process is searched: itself and its parents."""


class Step(Struct):
    """A step, identified by its slurmstepd."""

    job: int
    name: str
    uid: int | None
    cpu_ticks: int
    memory_pages: int
    is_llload: bool = False
    """It only looks at the job, for llload."""


class StepTrees:
    """Reader of the steps of one node. It remembers the title and the user of each slurmstepd between reads."""

    def __init__(self, proc: str) -> None:
        self._proc = proc
        self._stepds: dict[tuple[int, bytes], tuple[int, str] | None] = {}
        self._owners: dict[tuple[int, bytes], int] = {}
        self._llload: dict[tuple[int, bytes], bool] = {}
        """slurmstepd -> whether its step is llload's."""

    def read(self) -> tuple[Mapping[str, Step], Mapping[int, tuple[Step, int]]]:
        """Return (steps by slurmstepd, pid of each process below them -> its step and the top process of its task)."""
        parents: dict[int, int] = {}
        ticks: dict[int, tuple[int, int]] = {}
        steps: dict[str, Step] = {}
        roots: dict[int, Step] = {}
        stepds = {}
        owners = {}
        for entry in os.listdir(self._proc):  # noqa: PTH208
            if not entry.isdigit():
                continue
            name, fields = read_stat(f"{self._proc}/{entry}")
            if len(fields) < 22:
                continue
            pid = int(entry)
            parents[pid] = int(fields[1])
            ticks[pid] = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
            if not name.startswith(b"slurmstepd"):
                continue
            key = pid, fields[19]
            stepds[key] = self._stepds[key] if key in self._stepds else self._read_step(pid)
            if (found := stepds[key]) is not None:
                job, step = found
                # Count the CPU time of ended children, which were tasks, and not slurmstepd's own.
                roots[pid] = Step(job, step, self._owners.get(key), ticks[pid][1], 0)
                steps[f"{step}.{pid}.{fields[19].decode()}"] = roots[pid]
                owners[pid] = key
        # Forget a slurmstepd that has no title yet, so that the next read looks it up again.
        self._stepds = {key: found for key, found in stepds.items() if found is not None}
        tops: dict[int, tuple[Step, int]] = {}
        for pid in parents:
            chain: list[int] = []
            ancestor = pid
            while ancestor not in tops and ancestor not in roots and ancestor in parents and len(chain) < _ANCESTORS:
                chain.append(ancestor)
                ancestor = parents[ancestor]
            if ancestor in tops:
                found_step, top = tops[ancestor]
            elif ancestor in roots and chain:
                found_step, top = roots[ancestor], chain[-1]
            else:
                continue
            for descendant in chain:
                tops[descendant] = found_step, top
        for pid, (owner, _) in tops.items():
            owner.cpu_ticks += sum(ticks[pid])
            statm = slurp(f"{self._proc}/{pid}/statm").split()
            if len(statm) > 2:
                owner.memory_pages += int(statm[1]) - int(statm[2])
            if owner.uid is None:
                match = UID.search(slurp(f"{self._proc}/{pid}/status"))
                if match and int(match[1]) != 0:  # root: the process has not changed to the user of the task yet
                    owner.uid = int(match[1])
        self._owners = {key: uid for pid, key in owners.items() if (uid := roots[pid].uid) is not None}
        self._mark_llload(roots, owners, {top: step for step, top in tops.values()})
        return steps, tops

    def _mark_llload(
        self, roots: Mapping[int, Step], stepds: Mapping[int, tuple[int, bytes]], of_tops: Mapping[int, Step]
    ) -> None:
        """Mark the steps of llload: their only task here is a sampler."""
        tasks: dict[int, list[int]] = {}
        for top, step in of_tops.items():
            tasks.setdefault(id(step), []).append(top)
        known = {}
        for pid, key in stepds.items():
            step = roots[pid]
            tops = tasks.get(id(step), []) if numbers.whole(step.name) is not None else []
            found = self._llload.get(key)
            if found is None and tops:
                found = cgroups.is_sampler(f"{self._proc}/{tops[0]}") if len(tops) == 1 else False
            if found is not None:
                known[key] = step.is_llload = found
        self._llload = known

    def _read_step(self, pid: int) -> tuple[int, str] | None:
        found = cgroups.read_stepd(Path(self._proc, str(pid)))
        return None if found is None or found[1] is None else (found[0], found[1])


def find_step(pid: int, proc: str, tops: Mapping[int, tuple[Step, int]]) -> tuple[int, str | None, str] | None:
    """Return (job, step, top process of the task) of a process by the slurmstepd above it."""
    if pid in tops:
        step, top = tops[pid]
        return step.job, step.name, f"p{top}"
    below = pid
    for _ in range(_ANCESTORS):
        parent = _parent(f"{proc}/{below}")
        if parent <= 1:
            break
        stepd = cgroups.read_stepd(Path(proc, str(parent)))
        if stepd is not None:
            return stepd[0], stepd[1], f"p{below}"
        below = parent
    return None


def jobs_of(
    groups: Iterable[cgroups.JobGroup], steps: Mapping[str, Step], user_of: Callable[[int], str]
) -> tuple[JobNow, ...]:
    """Return the jobs of this node. Figures that a cgroup does not have come from the job's steps.

    `user_of`: returns the name of a user id.
    """
    found: dict[int, JobNow] = {}
    by_job: dict[int, dict[str, Step]] = {}
    for key, step in steps.items():
        by_job.setdefault(step.job, {})[key] = step
    for group in groups:
        tree = by_job.pop(group.job, {})
        uid = group.uid if group.uid is not None else _uid(tree)
        if uid is None:
            continue
        cpu_s = _cpu_s(tree) if group.cpu_s is None else {"cgroup": group.cpu_s}
        memory = _memory_mib(tree) if group.memory_mib is None else group.memory_mib
        unknown = dict(group.unknown)
        if cpu_s is not None:
            unknown.pop("cpu_cores", None)
        if memory is not None:
            unknown.pop("memory_mib", None)
        found[group.job] = JobNow(
            job=group.job,
            uid=uid,
            user=user_of(uid),
            cpu_s=cpu_s,
            llload_s=_llload_s(tree) if group.cpu_s is None else group.llload_s,
            memory_mib=memory,
            memory_kills=group.memory_kills,
            use=group.use,
            unknown=unknown,
        )
    for job, tree in by_job.items():
        uid = _uid(tree)
        if uid is not None:
            found[job] = JobNow(
                job=job,
                uid=uid,
                user=user_of(uid),
                cpu_s=_cpu_s(tree),
                llload_s=_llload_s(tree),
                memory_mib=_memory_mib(tree),
                unknown={"memory_kills": cgroups.NO_GROUP},
            )
    return tuple(found[job] for job in sorted(found))


def _uid(tree: Mapping[str, Step]) -> int | None:
    return next((step.uid for step in tree.values() if step.uid is not None), None)


def _cpu_s(tree: Mapping[str, Step]) -> dict[str, float] | None:
    return {key: step.cpu_ticks / TICKS for key, step in tree.items()} if tree else None


def _llload_s(tree: Mapping[str, Step]) -> dict[str, float]:
    return {key: step.cpu_ticks / TICKS for key, step in tree.items() if step.is_llload}


def _memory_mib(tree: Mapping[str, Step]) -> int | None:
    if not tree:
        return None
    llload = sum(step.memory_pages for step in tree.values() if step.is_llload)
    pages = sum(step.memory_pages for step in tree.values()) - min(llload, cgroups.LLLOAD_MOST_MIB * MIB // PAGE)
    return pages * PAGE // MIB


def read_stat(folder: str) -> tuple[bytes, list[bytes]]:
    """Return (name, the fields of /proc/PID/stat from the third on). A name may contain blanks and brackets."""
    head, _, tail = slurp(f"{folder}/stat").rpartition(b")")
    return head.partition(b"(")[2], tail.split()


def with_parents(pid: int, proc: str) -> Iterator[tuple[int, list[bytes]]]:
    """Yield (pid, what `read_stat` returns as fields) of a process and of the parents above it, the nearest first, as
    far as they can be read; process 1 is not one of them."""
    for _ in range(MOST_PARENTS):
        fields = read_stat(f"{proc}/{pid}")[1]
        if len(fields) < 4:
            return
        yield pid, fields
        pid = int(fields[1])
        if pid <= 1:
            return


def _parent(folder: str) -> int:
    fields = read_stat(folder)[1]
    return int(fields[1]) if len(fields) > 1 else 0
