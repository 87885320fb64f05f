"""Read nodes repeatedly: make Surveys from Slurm's facts, read rarely, and a source's snapshots, read each time."""

from __future__ import annotations

import difflib
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from msgspec import Struct

from ...core import nodelist
from ...core.background import BackgroundCall
from ...core.errors import CommandError, SlurmShareError, UsageError, shown
from ...core.process import Deadline
from ...core.settings import Settings
from ...core.text import natural, span_text
from ...node import processes
from ...slurm import jobs as slurm_jobs
from ...slurm import nodes as slurm_nodes
from ...slurm.records import ClusterName, QueuedJob, SlurmNode
from ..snapshot import NodeLoad, Survey
from .base import Source, SourceAnswer, SourceRequest

REFRESH_S = 60.0
"""Seconds between two queries of Slurm, however often surveys are read."""
RETRY_S = 10.0
"""Seconds after a query that failed."""
AGAIN_S = 2.0
"""Seconds between two queries that the user waits for."""
SLURM_TIMEOUT_S = 30.0
"""The longest time for one query; a survey does not wait for it if there are facts of an earlier one."""
OLD_S = 90.0
"""Age from which Slurm's facts are shown with their age."""
LEAST_INTERVAL_S, MOST_INTERVAL_S = 0.2, 3600.0
"""Limits of --interval of `slurm-share sample`."""
PLACED = ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT")
"""States of jobs that have nodes."""
WAITING = "PENDING"
WAITING_MOST = 1000
"""Most waiting jobs that are read in full, a kilobyte and 0.4 ms each; those of the highest priority."""
OTHERS = "slurm-share-agent on the nodes and --source agents, or --source prometheus"
SHOWN_MOST = 200
"""Most characters of a list of nodes in a sentence."""

_SILENT = "Slurm does not answer"


class SlurmAnswers(Struct, frozen=True, kw_only=True):
    """Slurm's answers at one moment."""

    taken: float | None
    """Unix time at which Slurm was asked. None: it has not answered yet."""
    cluster: ClusterName
    nodes: Mapping[str, SlurmNode]
    jobs: tuple[QueuedJob, ...]
    """Jobs with nodes; empty if only a line of every node is wanted."""
    places: frozenset[str]
    """Nodes with jobs."""
    waiting: tuple[QueuedJob, ...] = ()
    """Jobs without nodes yet, if they are wanted."""
    waiting_more: int = 0
    """Number of further waiting jobs that were not read."""


NO_FACTS = SlurmAnswers(taken=None, cluster=ClusterName("", ""), nodes={}, jobs=(), places=frozenset())


class _SurveyPart(Struct, frozen=True, kw_only=True):
    """The part of Slurm's facts that a survey needs. It is made once for new facts, not for each survey."""

    facts: SlurmAnswers
    nodes: tuple[str, ...]
    addresses: Mapping[str, str]
    jobs: tuple[QueuedJob, ...]
    waiting: tuple[QueuedJob, ...]
    down: Mapping[str, str]
    """Node that is not read -> why."""
    notes: tuple[str, ...]


class SurveyReader:
    """A reader of surveys of some nodes. Make it once, use it from one thread, close it at the end, which closes
    `source`.

    `user`: name of the user whose nodes are read. `everybody`: all nodes with GPUs or jobs, for operators. `nodes`,
    `jobs`: only these nodes, and those of these jobs (the number of an array or a heterogeneous job means all of it).
    `details`: see Asked. `waiting`: also jobs that wait for nodes, unless nodes are named or only a line of every node
    is wanted.
    """

    def __init__(
        self,
        source: Source,
        *,
        user: str,
        everybody: bool = False,
        nodes: Sequence[str] = (),
        jobs: Iterable[int | str] = (),
        settings: Settings | None = None,
        details: bool = True,
        waiting: bool = False,
        refresh_s: float = REFRESH_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock`: for ages and pauses. It must be monotonic: a clock that is set back would stop the queries."""
        self._source = source
        self._user = user
        self._everybody = everybody
        self._named = tuple(dict.fromkeys(nodes))
        self._jobs = frozenset(map(str, jobs))
        page = settings.documentation_url if settings is not None else ""
        self._needs = f"{OTHERS} ({page})" if page else OTHERS
        self._details = details
        self._waiting = waiting and (not self._named or bool(self._jobs)) and not self._is_local
        self._refresh_s = refresh_s
        self._clock = clock
        self._asking: BackgroundCall[SlurmAnswers] | None = None
        self._facts = NO_FACTS
        self._asked_at = 0.0
        self._facts_at = 0.0
        """Time on our clock at which the present facts were asked for."""
        self._slurm_problem = ""
        self._wanted = self._awaited = False
        """Whether the user waits for the next query, and for the one in progress."""
        self._hurries_until = -math.inf
        self._silent: frozenset[str] = frozenset()
        """Nodes without a snapshot in the last survey."""
        self._part: _SurveyPart | None = None
        self._check_rights()

    def read(self, timeout_s: float) -> Survey:
        """Return the survey, after at most about `timeout_s` seconds. Raises UsageError for load that the caller may
        not see and for named nodes and jobs that the first survey does not have, CommandError if Slurm has never
        answered, SlurmShareError if the source cannot be read."""
        until = Deadline.after(timeout_s)
        facts = self._slurm(until)
        if self._part is None or self._part.facts is not facts:
            part = self._chosen(facts)
            if self._part is None:
                self._check_there(part)
            self._part = part
        answer = self._snapshots(self._part, until)
        return self._make_survey(self._part, answer)

    def ask_again(self) -> None:
        """Query Slurm at the next survey, which waits a little for the answer, because the user wants new figures or
        has changed something. For a minute Slurm is queried more often, since cancelled jobs take a while to end."""
        self._wanted = True
        self._hurries_until = self._clock() + self._refresh_s
        self._source.ask_again()

    def close(self) -> None:
        """Close the source of snapshots."""
        self._source.close()

    # ---- rights -----------------------------------------------------------------------------------------------------

    def _check_rights(self) -> None:
        if self._source.name != "srun":
            return  # the source checks the caller's rights
        if self._everybody:
            raise UsageError(f"srun shows you your own jobs; --all is for operators and needs {self._needs}")
        if self._user != processes.read_user_name(os.getuid()):
            raise UsageError(
                f"srun shows you your own jobs; the load of {shown(self._user)} is for operators and needs "
                f"{self._needs}"
            )

    def _check_there(self, part: _SurveyPart) -> None:
        """Raise UsageError for named nodes and jobs that do not exist. Only the first survey checks: later a job may
        have ended."""
        facts = part.facts
        if facts is NO_FACTS:
            return
        missing = sorted(self._jobs.difference(*(job.names for job in (*facts.jobs, *facts.waiting))), key=natural)
        if missing:
            state = "running" if self._everybody else f"a running job of {shown(self._user)}"
            if self._waiting:
                state += " or waiting" if self._everybody else " or a waiting one"
            subject = f"job {missing[0]} is" if len(missing) == 1 else f"jobs {', '.join(missing)} are"
            raise UsageError(f"{subject} not {state}; see llstat")
        if not self._named:
            return
        there = {*facts.nodes, getattr(self._source, "node", "")}
        unknown = [node for node in self._named if node not in there]
        if unknown:
            raise UsageError(f"Slurm has no node {nodelist.fold(unknown)}; {_there_are(unknown[0])}")
        if self._source.name == "srun" and not part.jobs:
            raise UsageError(
                f"you have no job on {nodelist.fold(self._named)}; the load of nodes where only others have jobs is "
                f"for operators and needs {self._needs}"
            )

    # ---- Slurm ------------------------------------------------------------------------------------------------------

    def _slurm(self, until: Deadline) -> SlurmAnswers:
        """Return the newest facts. Waits only for the first ones; later ones are read in the background."""
        now = self._clock()
        if self._asking is None and (self._facts is NO_FACTS or now - self._asked_at >= self._pause_s):
            self._asked_at = now
            self._awaited, self._wanted = self._wanted, False
            self._asking = BackgroundCall(self._question())
            if self._facts is NO_FACTS:
                self._source.get_ready(self._asks_for_all, until.left())
        if self._asking is not None:
            # Wait for a while if the facts are old, as after a sleep of this process, or if the user wants new ones.
            old = self._facts is NO_FACTS or now - self._facts_at > OLD_S or self._awaited
            patient = self._facts is NO_FACTS and not self._is_local
            if self._asking.wait(until.left() if patient else min(2.0, until.left() / 2) if old else 0.0):
                asking, self._asking = self._asking, None
                self._take(asking)
            elif self._facts is NO_FACTS:
                self._slurm_problem = "no answer yet"
        if self._facts is NO_FACTS and not self._is_local:
            raise SlurmShareError(
                "Slurm does not answer, and without it the nodes of your jobs are not known; try again"
            )
        return self._facts

    @property
    def _is_local(self) -> bool:
        """Return whether the source is this node, for which Slurm's facts are optional."""
        return self._source.name == "local"

    @property
    def _asks_for_all(self) -> bool:
        """Return whether the survey is one line for every node of the cluster."""
        return self._everybody and not (self._named or self._jobs or self._details or self._is_local)

    @property
    def _pause_s(self) -> float:
        usual_s = self._refresh_s
        if self._slurm_problem or self._clock() < self._hurries_until:
            usual_s = min(RETRY_S, usual_s)
        return min(AGAIN_S, usual_s) if self._wanted else usual_s

    def _take(self, asking: BackgroundCall[SlurmAnswers]) -> None:
        try:
            self._facts, self._facts_at, self._slurm_problem = asking.answer(), self._asked_at, ""
        except SlurmShareError as error:
            self._slurm_problem = str(error)
            if self._facts is NO_FACTS and not self._is_local:
                raise
        except Exception as error:  # a fault of ours must not end a dashboard that has figures
            self._slurm_problem = f"a fault of slurm-share: {error!r}"
            if self._facts is NO_FACTS and not self._is_local:
                raise SlurmShareError(
                    f"Slurm's answer was not understood ({shown(self._slurm_problem, 160)})"
                ) from error

    def _question(self) -> Callable[[], SlurmAnswers]:
        wanted = nodelist.fold(self._named) if self._named else ""
        if self._is_local:
            wanted = getattr(self._source, "node", wanted)
        lines, everybody = self._asks_for_all, self._everybody
        waits = self._waiting and not lines
        # For lines of all nodes, read only the nodes of the queue; and the user's own jobs, for the cluster's name.
        users = [self._user] if lines or not everybody else []

        def ask() -> SlurmAnswers:
            taken = time.time()
            # Run the commands at the same time: only the nodes of the jobs depend on another's answer.
            asked = BackgroundCall(lambda: _read_nodes(wanted)) if everybody or wanted else None
            read_places = partial(slurm_jobs.read_places, PLACED, timeout_s=SLURM_TIMEOUT_S)
            places = BackgroundCall(read_places) if lines else None
            cluster, jobs, more = read_jobs(users, waiting=waits)
            folded = frozenset(job.nodes for job in jobs) if places is None else places.answer()
            jobs = jobs if places is None else ()
            names = {name for one in folded for name in nodelist.unfold(one)}
            nodes = asked.answer() if asked is not None else _read_nodes(nodelist.fold(names)) if names else ()
            return SlurmAnswers(
                taken=taken,
                cluster=cluster or NO_FACTS.cluster,
                nodes={node.name: node for node in nodes},
                jobs=tuple(job for job in jobs if job.nodes),
                places=frozenset(names),
                waiting=tuple(job for job in jobs if waits and not job.nodes and WAITING in job.states),
                waiting_more=more,
            )

        return ask

    # ---- which nodes ------------------------------------------------------------------------------------------------

    def _chosen(self, facts: SlurmAnswers) -> _SurveyPart:
        jobs = [job for job in facts.jobs if self._means(job)]
        nodes = self._nodes(facts, jobs)
        chosen = set(nodes)
        return _SurveyPart(
            facts=facts,
            nodes=nodes,
            addresses={node: known.address for node in nodes if (known := facts.nodes.get(node)) and known.address},
            jobs=tuple(job for job in jobs if not chosen.isdisjoint(nodelist.unfold(job.nodes))),
            waiting=tuple(job for job in facts.waiting if self._means(job)),
            down={node: why for node in nodes if (why := _down(facts.nodes.get(node)))},
            notes=(*(_hidden_jobs(facts) if self._everybody else ()), *_more_waiting(facts)),
        )

    def _means(self, job: QueuedJob) -> bool:
        return not self._jobs or not self._jobs.isdisjoint(job.names)

    def _nodes(self, facts: SlurmAnswers, jobs: Sequence[QueuedJob]) -> tuple[str, ...]:
        if self._is_local:
            here = str(getattr(self._source, "node", ""))
            return self._named or (here,)
        if self._named and not self._jobs:
            return tuple(node for node in self._named if node in facts.nodes)
        of_jobs = {node for job in jobs for node in nodelist.unfold(job.nodes)}
        if self._everybody and not self._jobs:
            of_jobs |= facts.places
            of_jobs |= {node.name for node in facts.nodes.values() if node.gpus or node.cpus_allocated}
        if self._named:
            of_jobs &= set(self._named)
        return tuple(sorted(of_jobs, key=natural))

    # ---- snapshots --------------------------------------------------------------------------------------------------

    def _snapshots(self, part: _SurveyPart, until: Deadline) -> SourceAnswer:
        user = "" if self._everybody else self._user
        asked = tuple(node for node in part.nodes if node not in part.down)
        question = SourceRequest(
            nodes=asked, addresses=part.addresses, jobs=part.jobs, user=user, details=self._details
        )
        answer = self._source.read(question, until.left())
        if self._source.name == "srun":
            # A job may have ended or lost a node; Slurm knows that, and a silent step does not.
            if answer.silent.keys() - self._silent:
                self._hurries_until = self._clock() + self._refresh_s
            self._silent = frozenset(answer.silent)
        return SourceAnswer(snapshots=answer.snapshots, silent={**answer.silent, **part.down}, notes=answer.notes)

    def _make_survey(self, part: _SurveyPart, answer: SourceAnswer) -> Survey:
        facts = part.facts
        notes = [*answer.notes, *part.notes]
        age = self._clock() - self._facts_at
        if self._slurm_problem and (facts is NO_FACTS or age > self._refresh_s):
            last = "" if facts is NO_FACTS else f"; its figures are {span_text(age)} old"
            said = shown(self._slurm_problem, 160)
            notes.append(f"{said if said.startswith(_SILENT) else f'{_SILENT} ({said})'}{last}")
        elif facts is not NO_FACTS and age > max(OLD_S, 1.5 * self._refresh_s):
            notes.append(f"Slurm's figures are {span_text(age)} old")
        return Survey(
            taken=time.time(),
            cluster=facts.cluster.cluster,
            slurm_version=facts.cluster.version,
            user=self._user,
            everybody=self._everybody,
            source=self._source.name,
            nodes=tuple(
                NodeLoad(
                    name=node,
                    slurm=facts.nodes.get(node),
                    snapshot=answer.snapshots.get(node),
                    why="" if node in answer.snapshots else answer.silent.get(node, "no answer"),
                )
                for node in part.nodes
            ),
            jobs=(*part.jobs, *part.waiting),
            jobs_taken=facts.taken,
            notes=tuple(notes),
        )


def read_jobs(users: Sequence[str], *, waiting: bool) -> tuple[ClusterName | None, tuple[QueuedJob, ...], int]:
    """Return (the cluster, jobs with nodes, number of further waiting jobs). `waiting`: waiting jobs as well. A short
    queue is read by one command; of a long one, only the first waiting jobs are read in full."""
    read = partial(slurm_jobs.read_queue, timeout_s=SLURM_TIMEOUT_S)
    numbers = slurm_jobs.read_waiting(users, timeout_s=SLURM_TIMEOUT_S) if waiting else ()
    if len(numbers) <= WAITING_MOST:
        return (*read(users=users, states=(*PLACED, WAITING) if waiting else PLACED), 0)
    first = numbers[:WAITING_MOST]
    asked = BackgroundCall(lambda: read(jobs=first, states=(WAITING,)))
    cluster, jobs = read(users=users, states=PLACED)
    return cluster, (*jobs, *asked.answer()[1]), len(numbers) - len(first)


def _more_waiting(facts: SlurmAnswers) -> list[str]:
    if not facts.waiting_more:
        return []
    return [f"{facts.waiting_more} more jobs wait; the {WAITING_MOST} of the highest priority are shown (llstat)"]


def _read_nodes(wanted: str) -> tuple[SlurmNode, ...]:
    return slurm_nodes.read_nodes(wanted, timeout_s=SLURM_TIMEOUT_S)


def _there_are(unknown: str) -> str:
    """Return the nodes that there are, as a hint for an unknown name, and the one that is most like it."""
    try:
        names = [node.name for node in slurm_nodes.read_nodes(timeout_s=SLURM_TIMEOUT_S)]
    except CommandError:
        return "see llfree, or sinfo"
    near = difflib.get_close_matches(unknown, names, 1)
    there = nodelist.fold(names)
    if len(there) > SHOWN_MOST:
        there = f"{there[:SHOWN_MOST].rpartition(',')[0]}, ... (see llfree)"
    return f"did you mean {near[0]}? There are {there}" if near else f"there are {there}"


def _down(node: SlurmNode | None) -> str:
    if node is None or node.answers:
        return ""
    if "NOT_RESPONDING" in node.states and "DOWN" not in node.states:
        return "not responding"
    return "powered down" if {"POWERED_DOWN", "POWERING_DOWN"} & set(node.states) else "down"


def _hidden_jobs(facts: SlurmAnswers) -> list[str]:
    """Return a note about nodes whose jobs Slurm does not show, because with PrivateData it lists others' jobs only to
    its own operators."""
    busy = [node.name for node in facts.nodes.values() if node.cpus_allocated and node.name not in facts.places]
    if not busy:
        return []
    count = f"{len(busy)} nodes have" if len(busy) > 1 else f"{busy[0]} has"
    return [f"{count} jobs that Slurm does not show you (PrivateData); be an operator in Slurm as well to see them"]


def open_source(name: str, settings: Settings, *, interval_s: float | None = None) -> Source:
    """Open the source of that name, and import only its module. `interval_s`: between two snapshots of a source that
    streams. Raises UsageError for an unknown source, or one that this site has not configured."""
    every = min(max(settings.agent_interval_s if interval_s is None else interval_s, LEAST_INTERVAL_S), MOST_INTERVAL_S)
    if name == "srun":
        from .srun import SrunSource

        return SrunSource(interval_s=every)
    if name == "local":
        from .local import LocalSource

        return LocalSource(settings)
    if name == "agents":
        from .agents import AgentsSource

        return AgentsSource(settings)
    if name == "prometheus":
        from .prometheus import PrometheusSource

        return PrometheusSource(settings)
    raise UsageError(f"there is no source {shown(name)}; there are srun, local, agents and prometheus")
