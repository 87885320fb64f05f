"""Reports of Slurm's logs and a job's output about the job's end."""

from __future__ import annotations

import bisect
import functools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from .records import expand

_LINE = re.compile(r"\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+)\] (.*)")
_JOB = re.compile(r"(?:JobId|StepId)=(?:\d+_\d+\((\d+)\)|(\d+))")
"""JobId=7, JobId=7_2(9) of an array's element, StepId=7.0, StepId=7.batch."""
_STARTED = re.compile(r"slurmctld version \S+ started")
_RECOVERED = re.compile(r"Recovered JobId=\S+ Assoc=")
_REGISTERED = re.compile(r"_slurm_rpc_node_registration complete for (\S+)")
_NEVER_ASKED = "REQUEST_LAUNCH_PROLOG notification failed"
"""The log line of slurmd about a job whose Prolog it was never told to start."""
_NO_ROOM = "; make room there"
"""The hooks' log lines about a full disk."""
_STATE_UNWRITABLE = "NODE UNWELL: 3 jobs refused in 10 minutes for a cause of the node's own (state-unwritable)"
"""The Prolog's log line when it drains a node whose state it cannot write (share/rules/drain.py)."""
_WITHOUT_TASK = re.compile(r"prolog: job (\d+) has a slurmstepd here, .* that has no task any more")
"""The Prolog's log line about an earlier job on the node whose tasks have ended."""
_HOOK_KILLED = re.compile(r"\b(?:prolog|epilog) failed status=0:9\b")
"""The log line of slurmd about a job whose Prolog or Epilog got SIGKILL."""
_OF_A_NODE = re.compile(
    rf"{_NEVER_ASKED}|{_HOOK_KILLED.pattern}|{_NO_ROOM}|{_WITHOUT_TASK.pattern}|{re.escape(_STATE_UNWRITABLE)}"
)
_OURS = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+0000) (.*)")
_ALLOTTED = re.compile(r"sched: Allocate|_slurm_rpc_allocate_resources")
_NODES = re.compile(rf"(?:{_ALLOTTED.pattern})\b.* NodeList=(\S+)")
_TAKEN = re.compile(r"_slurm_rpc_submit_batch_job: JobId=(\d+)")
_PROLOG_FAILED = "Prolog or job env setup failure on node"
_GIVEN_UP = re.compile(r"^Requeuing |_slurm_rpc_requeue: |_job_complete: |of requeuing JobId=")
GIVEN_UP_S = 2.0
"""The longest time between the node's line and the job's line."""
OUTPUT_MOST = 2000
"""How much of the end of a job's output is kept."""


@dataclass(frozen=True)
class LogLine:
    """A line of slurmctld's log with SlurmctldDebug=debug2."""

    at: float
    """Seconds since the epoch."""
    text: str


@dataclass(frozen=True)
class Evidence:
    """The logs and outputs of a run."""

    log: Sequence[LogLine] = ()
    """Lines in order of time."""
    outputs: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """The jobs' output by tag and number: slurmctld gives a number that it forgot again."""

    def about(self, job: int, since: float, until: float = math.inf) -> list[str]:
        """Return what slurmctld logged about a job between two moments."""
        return [line.text for line in self._by_job.get(job, ()) if since <= line.at <= until]

    def of(self, tag: str, job: int, since: float, until: float = math.inf) -> str:
        """Return what slurmctld logged about a job between two moments, and the job's output."""
        return "\n".join([*self.about(job, since, until), self.outputs.get((tag, job), "")])

    def registered(self, node: str, after: float) -> float | None:
        """Return when the node first registered after that moment; None: it did not."""
        times = self._registrations.get(node, [])
        place = bisect.bisect_right(times, after)
        return times[place] if place < len(times) else None

    def allotted(self, job: int, begin: float, end: float) -> bool:
        """Return whether slurmctld gave the job nodes between two moments."""
        return any(_ALLOTTED.search(text) for text in self.about(job, begin, end))

    def given(self, job: int, node: str, until: float) -> float:
        """Return when slurmctld last gave the job that node, until a moment; 0: it did not."""
        given = ((line.at, _NODES.search(line.text)) for line in self._by_job.get(job, ()) if line.at <= until)
        return max((at for at, nodes in given if nodes is not None and node in expand(nodes[1])), default=0.0)

    def hook_failed(self, job: int, node: str, since: float, until: float) -> bool:
        """Return whether slurmctld logged between two moments that the job's Prolog failed, or its Epilog on that node,
        or the node's slurmd that it was killed. For a Prolog that runs with the first step, slurmctld names only the
        node, when that registers again; it gives up the job at the same moment, or later if the node is cut off."""
        said = self.about(job, since, until)
        if any(text.startswith(f"{node}: ") and _HOOK_KILLED.search(text) for text in said):
            return True
        if any("Prolog launch failure" in one or f"epilog error on {node}," in one for one in said):
            return True
        failures = (line.at for line in self.log if f"{_PROLOG_FAILED} {node}," in line.text)
        drains = [at for at in failures if since <= at <= until]
        return any(
            _GIVEN_UP.search(text) for at in drains for text in self.about(job, at - GIVEN_UP_S, at + GIVEN_UP_S)
        )

    def has_lost_run(self, job: int, begin: float, end: float) -> bool:
        """Return whether a slurmctld started between two moments knew the job, but not that it ran."""
        for start in (one for one in self._starts if begin < one <= end):
            known = [text for text in self.about(job, start, end) if "Recovered " in text]
            if any(_RECOVERED.search(text) for text in known) and not any("StepId=batch" in text for text in known):
                return True
        return False

    def restarted(self, begin: float, end: float) -> bool:
        """Return whether a slurmctld started between two moments."""
        return any(begin < one <= end for one in self._starts)

    def never_asked(self, node: str) -> list[float]:
        """Return when a node's slurmd gave up a job because it was never told to run the Prolog."""
        return [line.at for line in self.log if line.text.startswith(f"{node}: ") and _NEVER_ASKED in line.text]

    def unwritable(self, node: str) -> list[float]:
        """Return when a node's Prolog drained it because three jobs had found its state folder unwritable."""
        return [line.at for line in self.log if line.text.startswith(f"{node}: ") and _STATE_UNWRITABLE in line.text]

    def without_task(self, node: str, job: int, since: float) -> float | None:
        """Return when a node's Prolog first found, after that moment, that the job has no task there any more; None:
        none did. Our log has whole seconds."""
        here = [line for line in self.log if line.at >= since - 1.0 and line.text.startswith(f"{node}: ")]
        told = ((line.at, _WITHOUT_TASK.search(line.text)) for line in here)
        return next((at for at, one in told if one is not None and int(one[1]) == job), None)

    def lost_runs(self, job: int, at: float) -> bool:
        """Return whether the next slurmctld did not find the job, taken at that moment, in its saved state."""
        start = next((one for one in self._starts if one > at), None)
        if start is None or not any(_TAKEN.search(text) for text in self.about(job, at, start)):
            return False
        end = next((one for one in self._starts if one > start), math.inf)
        return not any(_RECOVERED.search(text) for text in self.about(job, start, end))

    @functools.cached_property
    def _by_job(self) -> Mapping[int, Sequence[LogLine]]:
        found: dict[int, list[LogLine]] = defaultdict(list)
        for line in self.log:
            for job in set(numbers(line.text)):
                found[job].append(line)
        return found

    @functools.cached_property
    def _registrations(self) -> Mapping[str, list[float]]:
        found: dict[str, list[float]] = defaultdict(list)
        for line in self.log:
            if (one := _REGISTERED.search(line.text)) is not None:
                found[one[1]].append(line.at)
        return found

    @functools.cached_property
    def _starts(self) -> Sequence[float]:
        return [line.at for line in self.log if _STARTED.search(line.text)]


def numbers(text: str) -> list[int]:
    """Return the jobs that a line is about."""
    return [int(one or other) for one, other in _JOB.findall(text)]


def parse_log(text: str) -> tuple[LogLine, ...]:
    """Parse slurmctld's log. A line that a kill cut off is skipped; of the debug lines only registrations are kept."""
    found = (_LINE.match(line) for line in text.splitlines())
    wanted = (one for one in found if one and (not one[2].startswith("debug") or _REGISTERED.search(one[2])))
    return tuple(LogLine(datetime.fromisoformat(one[1]).replace(tzinfo=UTC).timestamp(), one[2]) for one in wanted)


def parse_node(node: str, slurmd: str, ours: str) -> tuple[LogLine, ...]:
    """Return the lines of a node's logs that report a Prolog that was never requested, or why a hook drained the
    node."""
    rows = [
        (one[1], one[2])
        for text, form in ((slurmd, _LINE), (ours, _OURS))
        for one in map(form.match, text.splitlines())
        if one
    ]
    return tuple(
        LogLine(datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp(), f"{node}: {said}")
        for at, said in rows
        if _OF_A_NODE.search(said)
    )


def what_matters(evidence: Evidence, jobs: Iterable[int]) -> Evidence:
    """Return the evidence to keep: when slurmctld and the nodes were back, and everything about these jobs."""
    wanted = set(jobs)

    def matters(line: LogLine) -> bool:
        is_of_all = _STARTED.search(line.text) or _REGISTERED.search(line.text) or _OF_A_NODE.search(line.text)
        is_of_all = is_of_all or _PROLOG_FAILED in line.text
        return bool(is_of_all) or not wanted.isdisjoint(numbers(line.text))

    outputs = {(tag, job): text[-OUTPUT_MOST:] for (tag, job), text in evidence.outputs.items() if job in wanted}
    return Evidence(tuple(line for line in evidence.log if matters(line)), outputs)
