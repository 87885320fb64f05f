"""Make the rows of users and jobs. Values in, values out. The rows of nodes are in `node_rows`, those of GPUs and
processes in `gpu_rows`.

A row computes the value of a cell only when the cell is drawn or sorted by, so making rows is quick.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

from msgspec import Struct

from ...core import nodelist
from ...core.errors import UsageError
from ...share import queue
from ...slurm.records import QueuedJob
from ..snapshot import Advice, HeldGpu, JobLoad, Snapshot, Survey, UserLoad
from . import idle
from .figures import percent
from .flags import OF_JOBS, in_order
from .node_rows import NodeRow

Key = TypeVar("Key", bound=Hashable)
Load = TypeVar("Load", JobLoad, UserLoad)


class Picture(Protocol):
    """A survey with its rows of nodes, from which these rows are made."""

    @property
    def survey(self) -> Survey:
        """Return the survey, with its jobs."""

    @property
    def nodes(self) -> Sequence[NodeRow]:
        """Return a row for each node."""

    @property
    def advice(self) -> Sequence[Advice]:
        """Return the advice for its running jobs."""


class Sum(Struct, frozen=True):
    """The sum of several figures; None if none of them is known."""

    value: float | None
    partial: bool = False
    """True: some figures are not known, and the sum is without them."""

    @property
    def mib(self) -> int | None:
        """Return the sum as whole MiB."""
        return None if self.value is None else int(self.value)


def summed(values: Iterable[float | None], *, is_all: bool = True) -> Sum:
    """Return the sum of the known values. `is_all` False: there are further values that are not known."""
    found = list(values)
    known = [value for value in found if value is not None]
    return Sum(sum(known) if known else None, bool(known) and (not is_all or len(known) < len(found)))


@dataclass(frozen=True)
class UsageRow:
    """The load of a job or a user on its nodes, and what Slurm has given to it."""

    records: tuple[QueuedJob, ...] = ()
    """Slurm's records: several for an array in one line; none if Slurm has none."""
    loads: Sequence[tuple[NodeRow, JobLoad | UserLoad]] = ()
    """The load on each node that answered."""
    held: tuple[HeldGpu, ...] = ()
    """GPUs that its running jobs hold, also on nodes without a process of it."""
    silent: tuple[NodeRow, ...] = ()
    """Its nodes that did not answer."""
    now: float = 0.0
    """Unix time of the survey."""
    is_own: bool = False

    @cached_property
    def node_names(self) -> tuple[str, ...]:
        """Return the names of its nodes: those in Slurm's records, and those that report it."""
        named = [name for one in self.records for name in nodes_of(one)]
        return tuple(dict.fromkeys([*named, *(row.name for row, _ in self.loads)]))

    @cached_property
    def measured(self) -> int:
        """Return how many of its nodes answered."""
        return len({row.name for row, _ in self.loads})

    @property
    def is_whole(self) -> bool:
        """Return whether all of its nodes answered."""
        return self.measured >= len(self.node_names)

    @property
    def part_measured(self) -> float:
        """Return the ratio of its nodes that answered, 0.0 to 1.0."""
        return self.measured / len(self.node_names) if self.node_names else 1.0

    @property
    def is_waiting(self) -> bool:
        """Return whether Slurm has given it no node yet, so that it is known to use nothing."""
        return bool(self.records) and not self.loads and not any(one.nodes for one in self.records)

    @cached_property
    def gpus(self) -> int | None:
        """Return the GPUs that Slurm gave, over all nodes; without Slurm, those with a process on them."""
        if self.is_waiting:
            return 0
        known = [one.gpus for one in self.records if one.nodes and one.gpus is not None]
        if known:
            return sum(known)
        return None if self.records or not self.loads else sum(len(load.gpus) for _, load in self.loads)

    def gpus_on(self, node: str) -> int | None:
        """Return the GPUs that Slurm gave it on one node; without Slurm, those with a process on them."""
        told = [idle.count_on(one, node) for one in self.records if node in nodes_of(one)]
        if not self.records:
            return sum(len(load.gpus) for row, load in self.loads if row.name == node)
        known = [count for count in told if count is not None]
        return sum(known) if known and len(known) == len(told) else None

    @property
    def has_no_gpu(self) -> bool:
        """Return whether Slurm gave it no GPU and none of its processes is on one. Tasks are counted on GPUs, so the
        number of its tasks is not known."""
        raise NotImplementedError

    @cached_property
    def cpus(self) -> int | None:
        """Return the CPUs that Slurm gave, over all nodes."""
        if self.is_waiting:
            return 0
        known = [one.cpus for one in self.records if one.nodes and one.cpus is not None]
        return sum(known) if known else None

    @cached_property
    def memory_requested(self) -> Sum:
        """Return the memory that Slurm gave its running jobs, over all nodes, in MiB; of a waiting job what it asks
        for."""
        return summed(map(requested_mib, self._counted))

    @property
    def cpus_requested(self) -> int | None:
        """Return the CPUs that Slurm gave, over all nodes; of a waiting job those that it asks for."""
        known = [one.cpus for one in self._counted if one.cpus is not None]
        return sum(known) if known else None

    @property
    def _counted(self) -> Sequence[QueuedJob]:
        """Return its records with nodes; if it waits, all of them."""
        return self.records if self.is_waiting else [one for one in self.records if one.nodes]

    @property
    def memory_percent(self) -> float | None:
        """Return the host memory in use in percent of what it has on nodes that answered."""
        if self.is_waiting or self.memory_requested.partial:
            return None
        return percent(self.memory.value, (self.memory_requested.value or 0) * self.part_measured)

    @cached_property
    def idle_gpus(self) -> Sum:
        """Return the number of GPUs that are held and idle."""
        found, is_partial = idle.count(self.held)
        known = len({one.uuid for one in self.held})
        if not known and self.gpus:
            return Sum(None)
        return Sum(found, found is not None and (is_partial or known < (self.gpus or 0)))

    @cached_property
    def gpu_load(self) -> Sum:
        """Return the load summed over GPUs: 2.0 is two fully busy."""
        return summed((load.gpu_load for _, load in self.loads), is_all=self.is_whole)

    @property
    def gpu_percent(self) -> float | None:
        """Return the load in percent of the GPUs that it has on nodes that answered."""
        return percent(self.gpu_load.value, (self.gpus or 0) * self.part_measured)

    @cached_property
    def gpu_memory(self) -> Sum:
        """Return the GPU memory in use, in MiB."""
        return summed((load.gpu_memory_mib for _, load in self.loads), is_all=self.is_whole)

    @cached_property
    def cpu(self) -> Sum:
        """Return the CPU time in cores, over all nodes."""
        return summed((load.cpu_cores for _, load in self.loads), is_all=self.is_whole)

    @property
    def cpu_percent(self) -> float | None:
        """Return the load in percent of the CPUs that it has on nodes that answered."""
        return percent(self.cpu.value, (self.cpus or 0) * self.part_measured)

    @cached_property
    def memory(self) -> Sum:
        """Return the host memory in use, in MiB."""
        return summed((load.memory_mib for _, load in self.loads), is_all=self.is_whole)

    @cached_property
    def codes(self) -> tuple[str, ...]:
        """Return the codes of its nodes' flags, each once. What one job does to a node, such as an idle GPU, counts for
        that job and its user only."""
        rows = (*(row for row, _ in self.loads), *self.silent)
        codes = [code for row in rows for code in row.codes if code not in OF_JOBS]
        codes += ["iL"] if any(one.idle for one in self.held) else []
        return in_order([*codes, *(["mH"] if self.has_kills else [])])

    @property
    def has_kills(self) -> bool:
        """Return whether the kernel ended processes of it because host memory was full."""
        return False


# --- Jobs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobRow(UsageRow):
    """A job, or all elements of an array in one line."""

    loads: tuple[tuple[NodeRow, JobLoad], ...] = ()
    number: int = 0
    """Slurm's job number of the record; for an array in one line, the array's number."""
    is_array: bool = False
    """True: an array in one line."""
    advice: Advice | None = None

    @property
    def has_no_gpu(self) -> bool:
        return self.gpus == 0 and not self.tasks.value

    @property
    def job(self) -> QueuedJob | None:
        """Return Slurm's record; for an array in one line, that of its first element. None: Slurm has none."""
        return self.records[0] if self.records else None

    @property
    def id(self) -> str:
        """Return the job's number as squeue prints it; for an array in one line, the array's number."""
        return str(self.number) if self.is_array or self.job is None else self.job.id

    @property
    def user(self) -> str:
        """Return the user's name; empty: not known."""
        if self.job is not None:
            return self.job.user
        return self.loads[0][1].user if self.loads else ""

    @property
    def name(self) -> str:
        """Return the job's name; empty: not known."""
        return "" if self.job is None else self.job.name

    @cached_property
    def states(self) -> dict[str, int]:
        """Return state, as in squeue's column ST -> number of elements; empty without Slurm."""
        found: dict[str, int] = Counter()
        for one in self.records:
            found[queue.state_of(one)] += elements_of(one)
        return found

    @property
    def runs_s(self) -> float | None:
        """Return the seconds since it started, or since an array's first running element did; None: it waits, or not
        known."""
        starts = [one.start for one in self.records if one.start is not None and one.nodes]
        return max(0.0, self.now - min(starts)) if starts else None

    @property
    def starts(self) -> float | None:
        """Return the Unix time at which it started, or an array's first running element did; for a waiting job, the
        time that Slurm expects. None: not known."""
        began = [one.start for one in self.records if one.start is not None and one.nodes]
        expected = [one.start for one in self.records if one.start is not None and not one.nodes]
        return min(began or expected, default=None)

    @property
    def has_kills(self) -> bool:
        return bool(self.kills.value)

    @property
    def is_unlimited(self) -> bool:
        """Return whether it has no time limit."""
        return bool(self.records) and all(one.is_unlimited for one in self.records)

    @property
    def limit_s(self) -> float | None:
        """Return the time limit, seconds; of an array's elements the longest. None: unlimited, or not known."""
        return max((one.limit_s for one in self.records if one.limit_s is not None), default=None)

    @property
    def left_s(self) -> float | None:
        """Return the seconds until its limit ends it, or an array's first running element. None: it waits, is
        unlimited, or not known."""
        ends = min((one.ends for one in self.records if one.ends is not None), default=None)
        return None if ends is None else max(0.0, ends - self.now)

    @cached_property
    def kills(self) -> Sum:
        """Return the number of processes that the kernel ended because the job's memory was full."""
        return summed((load.memory_kills for _, load in self.loads), is_all=self.is_whole)

    @cached_property
    def tasks(self) -> Sum:
        """Return the number of tasks with a process on a GPU now."""
        found = (None if "tasks" in load.unknown else load.tasks for _, load in self.loads)
        return summed(found, is_all=self.is_whole)

    @cached_property
    def slots(self) -> int | None:
        """Return the slots of its share, on nodes that answered; None: no share, or not known."""
        known = [load.slots for _, load in self.loads if load.slots is not None]
        return sum(known) if known else None

    @property
    def share(self) -> int | None:
        """Return N of --share-gpu=N; None: no share, or not known."""
        told = next((load.share for _, load in self.loads if load.share is not None), None)
        return told if told is not None or self.job is None else queue.tasks_per_gpu(self.job)

    @property
    def sharing(self) -> str:
        """Return how its tasks share their GPUs, each way once: mps+time-slicing; empty: no share, or not known."""
        return "+".join(dict.fromkeys(load.sharing for _, load in self.loads if load.sharing))

    @property
    def triple(self) -> str | None:
        """Return the triple, if llsub made this job."""
        return None if self.job is None else queue.triple_of(self.job)

    @cached_property
    def peak_mib(self) -> int | None:
        """Return the highest GPU memory of one task; None: no task was measured."""
        return max((load.task_peak_mib for _, load in self.loads if load.task_peak_mib is not None), default=None)

    @property
    def tasks_measured(self) -> int:
        """Return the number of tasks on which the peaks rest."""
        return sum(load.tasks_measured for _, load in self.loads)


def job_rows(picture: Picture, *, arrays: bool = True, user: str = "") -> list[JobRow]:
    """Return a row for each job, the viewer's own first, else in Slurm's order. `arrays`: all elements of an array are
    one row. `user`: only this user's jobs."""
    survey = picture.survey
    loads = _by(picture, lambda seen: [load for load in seen.jobs if user in ("", load.user)], lambda load: load.job)
    held, silent = _held(picture, lambda one: one.job), _silent(picture)
    advice = _advice_of(picture)
    groups: dict[tuple[bool, int], list[QueuedJob]] = {}
    for job in survey.jobs:
        if user and job.user != user:
            continue
        key = (True, job.array) if arrays and job.array is not None else (False, job.job_id)
        groups.setdefault(key, []).append(job)
    found = []
    for (_, number), jobs in groups.items():
        first = jobs[0]
        is_array = len(jobs) > 1 or (arrays and elements_of(first) > 1)
        pairs = [pair for job in jobs for pair in loads.pop(job.job_id, ())]
        of_jobs = [one for job in jobs for one in held.get(job.job_id, ())]
        number = number if is_array else first.job_id
        found.append(_job_row(survey, number, jobs, pairs, of_jobs, _silent_of(jobs, silent), advice, is_array))
    for number, pairs in loads.items():  # a job that started after Slurm was asked, or without Slurm
        found.append(_job_row(survey, number, (), pairs, held.get(number, ()), (), advice))
    return sorted(found, key=lambda row: not row.is_own)


def _job_row(
    survey: Survey,
    number: int,
    records: Sequence[QueuedJob],
    loads: Sequence[tuple[NodeRow, JobLoad]],
    held: Sequence[HeldGpu],
    silent: tuple[NodeRow, ...],
    advice: Mapping[int, Advice],
    is_array: bool = False,
) -> JobRow:
    return JobRow(
        records=tuple(records),
        loads=tuple(loads),
        held=tuple(held),
        silent=silent,
        now=survey.taken,
        is_own=(records[0].user if records else loads[0][1].user) == survey.user,
        number=number,
        is_array=is_array,
        advice=advice.get((records[0].array or records[0].job_id) if records else number),
    )


def _by(
    picture: Picture, read: Callable[[Snapshot], Iterable[Load]], key: Callable[[Load], Key]
) -> dict[Key, list[tuple[NodeRow, Load]]]:
    """Return the loads on the nodes that answered, by job or by user."""
    found: dict[Key, list[tuple[NodeRow, Load]]] = defaultdict(list)
    for row in picture.nodes:
        for load in () if row.node.snapshot is None else read(row.node.snapshot):
            found[key(load)].append((row, load))
    return found


def _held(picture: Picture, by: Callable[[HeldGpu], Key]) -> Mapping[Key, list[HeldGpu]]:
    found: dict[Key, list[HeldGpu]] = defaultdict(list)
    for row in picture.nodes:
        for one in row.node.held_gpus or ():
            found[by(one)].append(one)
    return found


def _silent(picture: Picture) -> Mapping[str, NodeRow]:
    return {row.name: row for row in picture.nodes if row.node.snapshot is None}


def _silent_of(records: Iterable[QueuedJob], silent: Mapping[str, NodeRow]) -> tuple[NodeRow, ...]:
    """Return the nodes of these jobs that did not answer."""
    if not silent:
        return ()
    names = dict.fromkeys(name for one in records if one.nodes for name in nodes_of(one))
    return tuple(silent[name] for name in names if name in silent)


def _advice_of(picture: Picture) -> Mapping[int, Advice]:
    return {one.job: one for one in picture.advice if one.job is not None}


def job_row(picture: Picture, number: int) -> JobRow | None:
    """Return the row of one job, by the number of Slurm's record; None: it is not in the survey."""
    record = next((job for job in picture.survey.jobs if job.job_id == number), None)
    loads = _by(picture, lambda seen: seen.jobs, lambda load: load.job).get(number, ())
    if record is None and not loads:
        return None
    held = _held(picture, lambda one: one.job).get(number, ())
    records = () if record is None else (record,)
    silent = _silent_of(records, _silent(picture))
    return _job_row(picture.survey, number, records, loads, held, silent, _advice_of(picture))


def nodes_of(job: QueuedJob) -> tuple[str, ...]:
    """Return the names of its nodes; none if Slurm's list cannot be parsed."""
    try:
        return nodelist.unfold(job.nodes)
    except UsageError:
        return ()


def requested_mib(job: QueuedJob) -> int | None:
    """Return the memory that Slurm gave a job, or that it asks for, over all its nodes, in MiB. None: not known, as for
    a waiting job that asks for all memory of its nodes."""
    if job.memory_on_nodes_mib:
        return sum(job.memory_on_nodes_mib)
    if job.memory_per_gpu_mib is not None:
        return None if job.gpus is None else job.memory_per_gpu_mib * job.gpus
    count = job.cpus if job.memory_is_per_cpu else job.node_count
    return job.memory_mib * count if job.memory_mib and count else None


def elements_of(job: QueuedJob) -> int:
    """Return how many elements of an array this record stands for; 1 for any other job."""
    if job.element is not None or not job.waiting:
        return 1
    try:
        spans = queue.parse_elements(job.waiting.partition("%")[0])
    except UsageError:
        return 1  # Slurm cuts long lists
    return sum((last - first) // step + 1 for first, last, step in spans)


# --- Users ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UserRow(UsageRow):
    """A user with the load on all nodes."""

    loads: tuple[tuple[NodeRow, UserLoad], ...] = ()
    user: str = ""
    advice: tuple[Advice, ...] = ()
    """Advice for the user's running jobs."""
    is_told: bool = True
    """Whether Slurm's jobs are known."""

    @property
    def has_no_gpu(self) -> bool:
        return self.gpus == 0 and not self.processes.value

    @property
    def has_kills(self) -> bool:
        snapshots = (row.node.snapshot for row, _ in self.loads)
        jobs = (job for snapshot in snapshots if snapshot is not None for job in snapshot.jobs)
        return any(job.memory_kills for job in jobs if job.user == self.user)

    @cached_property
    def running(self) -> int:
        """Return the number of jobs with nodes; each element of an array counts."""
        if not self.records:
            return len({job for _, load in self.loads for job in load.jobs})
        return sum(bool(one.nodes) for one in self.records)

    @cached_property
    def waiting(self) -> int:
        """Return the number of jobs that wait for nodes."""
        return sum(elements_of(one) for one in self.records if not one.nodes)

    @cached_property
    def processes(self) -> Sum:
        """Return the number of processes on GPUs."""
        found = (None if "processes" in load.unknown else load.processes for _, load in self.loads)
        return summed(found, is_all=self.is_whole)


def user_rows(picture: Picture) -> list[UserRow]:
    """Return a row for each user, the viewer first. In a view of own nodes, the viewer has a row even without a job."""
    survey = picture.survey
    records: dict[str, list[QueuedJob]] = defaultdict(list)
    advice: dict[str, list[Advice]] = defaultdict(list)
    for job in survey.jobs:
        records[job.user].append(job)
    for one in picture.advice:
        advice[one.user].append(one)
    loads = _by(picture, lambda seen: seen.users, lambda load: load.user)
    held, silent = _held(picture, lambda one: one.user), _silent(picture)
    users = {*records, *loads} | (set() if survey.everybody else {survey.user})
    return [
        UserRow(
            records=tuple(records.get(user, ())),
            loads=tuple(loads.get(user, ())),
            held=tuple(held.get(user, ())),
            silent=_silent_of(records.get(user, ()), silent),
            now=survey.taken,
            is_own=user == survey.user,
            user=user,
            advice=tuple(advice.get(user, ())),
            is_told=survey.jobs_taken is not None or bool(survey.jobs),
        )
        for user in sorted(users, key=lambda name: (name != survey.user, name))
    ]
