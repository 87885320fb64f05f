"""What everybody wrote, judged: which jobs were lost or ran twice, whose doing a drain was. Values in, words out."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from slurm_share.names import EXIT_REFUSED

from .causes import Done, explains

FORGETS_S = 30.0
"""What a slurmctld that is killed may have forgotten: it saves its state some seconds after a change."""
HOOK_DRAIN_S = 120.0
"""From a hook's kill to the moment at which the drain for it is seen: a network may be cut meanwhile."""
HOOK_REASONS = ("prolog error", "epilog error")
"""What Slurm says of a node whose Prolog or Epilog did not end with 0."""
TRIPLES_TASKS = frozenset("0123")
"""What TRIPLE of jobs.py starts."""
ENDED = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL")


WOULD_BE = {f"{EXIT_REFUSED}:0": "exit code 69", "1:0": "exit code 1"}
"""How sharp this verdict is: each job that is COMPLETED is judged once more as if it had ended so."""


@dataclass(frozen=True)
class Submission:
    """What a user gave to Slurm. Times here and below: seconds of the wall clock."""

    tag: str
    user: str
    kind: str
    at: float
    is_taken: bool
    """Whether the command said so; Slurm may have taken it all the same when the network was cut."""


@dataclass(frozen=True)
class Drain:
    """A node that was found drained."""

    at: float
    node: str
    reason: str


@dataclass(frozen=True)
class Line:
    """A line of a job's own file."""

    word: str
    """start, task or end."""
    restart: int
    at: float
    node: str
    what: str
    """The task, or the code."""


@dataclass(frozen=True)
class Record:
    """A job as slurmctld has it."""

    job_id: int
    tag: str
    state: str
    restarts: int
    start: float
    end: float
    nodes: str
    reason: str
    code: str
    """The exit code and the signal, `69:0`."""
    array: int = 0
    """The number of the array that it is an element of; 0: of none."""


@dataclass
class Judgement:
    """What is wrong, and what can be counted."""

    wrong: list[str] = field(default_factory=list)
    lost: int = 0
    twice: int = 0
    mixed: int = 0
    drained: int = 0
    counts: Counter[str] = field(default_factory=Counter)


def parse_lines(text: str) -> tuple[Line, ...]:
    """A job's own file. A line that a power cut tore is no line."""
    rows = (line.split() for line in text.splitlines())
    return tuple(
        Line(row[0], int(row[1]), float(row[2]), row[3], row[4] if len(row) > 4 else "")
        for row in rows
        if len(row) >= 4
    )


def parse_records(text: str) -> tuple[Record, ...]:
    """What `scontrol -o show jobs` prints."""
    found = []
    for line in text.splitlines():
        values = dict(re.findall(r"(\w+)=(\S*)", line))
        if "JobId" in values:
            found.append(
                Record(
                    int(values["JobId"]),
                    values.get("JobName", ""),
                    values.get("JobState", ""),
                    int(values.get("Restarts", "0")),
                    _seconds(values.get("StartTime", "")),
                    _seconds(values.get("EndTime", "")),
                    values.get("NodeList", ""),
                    values.get("Reason", ""),
                    values.get("ExitCode", ""),
                    int(values.get("ArrayJobId", "0")),
                )
            )
    return tuple(found)


def _seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0


def judge(
    submissions: Sequence[Submission],
    done: Sequence[Done],
    records: Iterable[Record],
    files: Mapping[tuple[str, int], Sequence[Line]],
    drains: Sequence[Drain],
) -> Judgement:
    """All of it. `files`: what the jobs wrote, by tag and job number."""
    found = Judgement()
    by_tag = defaultdict(list)
    for record in records:
        by_tag[record.tag].append(record)
    for one in submissions:
        if not by_tag[one.tag]:
            _never_known(one, done, found)
        for record in by_tag[one.tag]:
            lines = files.get((one.tag, record.job_id), ())
            _judge_end(one, record, lines, done, found)
    kinds = {one.tag: one for one in submissions}
    for (tag, job_id), lines in files.items():
        _judge_runs(f"{kinds[tag].kind} job {job_id} ({tag})", lines, done, found)
    _judge_neighbours(kinds, files, found)
    _judge_drains(drains, done, found)
    return found


def _never_known(one: Submission, done: Sequence[Done], found: Judgement) -> None:
    if not one.is_taken:
        found.counts["not taken by sbatch"] += 1
    elif _controller_forgot(done, one.at):
        found.counts["forgotten by a killed slurmctld"] += 1
    else:
        found.lost += 1
        found.wrong.append(f"{one.kind} job {one.tag} was taken, and Slurm does not know it")


def _judge_end(one: Submission, record: Record, lines: Sequence[Line], done: Sequence[Done], found: Judgement) -> None:
    who = f"{one.kind} job {record.job_id} ({one.tag})"
    found.counts["jobs"] += 1
    found.counts[record.state] += 1
    found.counts["requeued"] += record.restarts > 0
    found.counts["refused by slurm-share, exit code 69"] += record.code.startswith(f"{EXIT_REFUSED}:")
    nodes = expand(record.nodes)
    if nodes and not nodes & {d.event.actor for d in done}:
        found.counts["jobs on nodes that nothing befell"] += 1
        found.counts["jobs on nodes that nothing befell, COMPLETED"] += record.state == "COMPLETED"
    if record.state not in ENDED:
        found.lost += 1
        found.wrong.append(f"{who} never ended: {record.state}, {record.reason}")
    elif record.state == "COMPLETED":
        # A triple that was requeued goes on with what was not done yet, which may be nothing.
        begun = {line.what for line in lines if line.word == "task"}
        ends = [line.what for line in lines if line.word == "end" and line.restart == record.restarts]
        if begun != TRIPLES_TASKS if one.kind == "triple" else ends[-1:] != ["0"]:
            found.lost += 1
            found.wrong.append(f"{who} is COMPLETED; tasks {sorted(begun)} began, its last run's ends are {ends}")
        else:
            for code, what in WOULD_BE.items():
                would_be = replace(record, state="FAILED", code=code)
                found.counts[f"COMPLETED, where {what} would be a loss"] += cause(one, would_be, done) is None
    else:
        why = cause(one, record, done)
        if why is not None:
            found.counts[f"{record.state}, explained by {why}"] += 1
            return
        found.lost += 1
        found.wrong.append(
            f"{who} on {record.nodes} is {record.state} ({record.reason}, {record.code}) for no reason that is known"
        )


def cause(one: Submission, record: Record, done: Sequence[Done]) -> str | None:
    """Why a job did not complete, as a word for counting; of several deeds that can have done it the one that was
    nearest to its end. None: for no reason that is known."""
    if record.state == "TIMEOUT" and one.kind == "overtime":
        return "its own time limit"
    if record.code.startswith(f"{EXIT_REFUSED}:") and _are_unlike(record.nodes):
        return "nodes with unlike numbers of GPUs"
    numbers = {str(record.job_id), str(record.array)}
    if record.state == "CANCELLED" and any(
        d.event.deed == "cancel" and d.said.startswith("cancelled ") and d.said.split()[1] in numbers for d in done
    ):
        return "cancel"
    nodes = expand(record.nodes)
    fitting = [d for d in done if explains(d, record.state, record.code, nodes, record.start, record.end)]
    nearest = min(fitting, key=lambda d: abs(d.ended - record.end), default=None)
    return None if nearest is None else nearest.event.deed


def expand(nodes: str) -> set[str]:
    """n[1-2,5] and n3,n4."""
    found: set[str] = set()
    for name, inside in re.findall(r"([a-z]+)(\d+|\[[^]]*\])", nodes):
        for part in inside.strip("[]").split(","):
            first, _, last = part.partition("-")
            found |= {f"{name}{number}" for number in range(int(first), int(last or first) + 1)}
    return found


def _are_unlike(nodes: str) -> bool:
    """Whether a job has n1, which has four GPUs, and another node, which has two: its srun is refused."""
    return "n1" in expand(nodes) and len(expand(nodes)) > 1


def _judge_runs(who: str, lines: Sequence[Line], done: Sequence[Done], found: Judgement) -> None:
    """Of one number and one run there is one start, and one of each task."""
    for restart in sorted({line.restart for line in lines}):
        mine = [line for line in lines if line.restart == restart]
        seen = Counter((line.word, line.what) for line in mine if line.word in ("start", "task"))
        doubled = [f"{word} {what}".strip() for (word, what), count in seen.items() if count > 1]
        if not doubled:
            continue
        if any(_controller_forgot(done, line.at) for line in mine):
            found.counts["run again by a slurmctld that had forgotten the run"] += 1
        else:
            found.twice += 1
            found.wrong.append(f"{who} did {', '.join(doubled)} more than once in run {restart}")


def _controller_forgot(done: Sequence[Done], at: float) -> bool:
    """Whether slurmctld was killed so soon after that moment that it may not have kept what was then."""
    kills = (one for one in done if one.event.deed == "kill_slurmctld" and one.said.startswith("killed"))
    return any(one.began - FORGETS_S <= at <= one.ended + FORGETS_S for one in kills)


def _judge_neighbours(
    kinds: Mapping[str, Submission], files: Mapping[tuple[str, int], Sequence[Line]], found: Judgement
) -> None:
    """While a user's shared tasks were at work on a node, none of another user's began there. Only runs with an end
    are looked at: of others it is not known until when they were."""
    spans: list[tuple[str, str, float, float]] = []
    for (tag, _), lines in files.items():
        if kinds[tag].kind in ("ordinary", "plain"):
            continue
        for restart in {line.restart for line in lines}:
            mine = [line for line in lines if line.restart == restart]
            end = max((line.at for line in mine if line.word == "end"), default=0.0)
            for node in {line.node for line in mine if line.word == "task"}:
                begin = min(line.at for line in mine if line.node == node)
                spans.append((node, kinds[tag].user, begin, end))
    begun = [(line, tag) for (tag, _), lines in files.items() for line in lines if line.word in ("start", "task")]
    for node, user, begin, end in spans:
        for line, tag in begun:
            if line.node == node and begin < line.at < end and kinds[tag].user != user:
                found.mixed += 1
                found.wrong.append(f"{line.word} of {kinds[tag].user}'s {tag} on {node} beside {user}'s shared job")


def _judge_drains(drains: Sequence[Drain], done: Sequence[Done], found: Judgement) -> None:
    """A Prolog or Epilog that ends badly is ours, unless it was killed; all other reasons are Slurm's own."""
    killed = [one for one in done if one.event.deed == "kill_hook" and one.said.startswith("killed")]
    for drain in drains:
        if not any(reason in drain.reason.lower() for reason in HOOK_REASONS):
            found.counts[f"drained by Slurm: {drain.reason}"] += 1
            continue
        why = [one for one in killed if one.event.actor == drain.node and 0 <= drain.at - one.began < HOOK_DRAIN_S]
        if why:
            killed.remove(why[0])
            found.counts["drained, since a hook was killed"] += 1
        else:
            found.drained += 1
            found.wrong.append(f"{drain.node} was drained by slurm-share: {drain.reason}")
