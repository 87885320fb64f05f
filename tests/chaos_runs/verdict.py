"""The verdict on a chaos run: which jobs were lost or ran twice, and who caused a drain. It works on values only."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_share.core.names import EXIT_REFUSED

from .causes import NEIGHBOUR, ROUND_S, UNREGISTERED_S, Case, Done, explains, is_cancelled, job_of_hook, killed_hook
from .evidence import Evidence
from .plan import CHEATER, CHEATER_UID
from .records import Drain, Line, Record, Submission, expand

HOOK_REASONS = ("prolog error", "epilog error")
"""Slurm's reasons for a drain after a Prolog or Epilog that did not end with 0."""
FOUND_S = 2 * UNREGISTERED_S
"""How long after its cause the operator may find a drain: the node may register late, and slurmctld answer late."""
UNLIKE = "one srun cannot give each node its own number of tasks"
"""The message of slurm-share about a job whose nodes have unequal numbers of GPUs."""
TRIPLES_TASKS = frozenset("0123")
"""The tasks of TRIPLE in jobs.py."""
UNSHARED_KINDS = ("ordinary", "plain")
"""The kinds of job in jobs.py that have no share."""
FULL = re.compile(r"\bjob (\d+)\b.*/user\b.* is full")
"""Our log's sentence about a job that found no room in the users' part, which no fault fills."""
MOST_SAME = 5
"""How often our log may have the same sentence about a job of the cheater's: twice, and again for each killed hook."""
NOT_ANOTHERS = re.compile(r".*/tmp/slurm-share-\d+.*")
"""A place that the cheater takes from the others: what they read must not send them there."""
ENDED = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL")


WOULD_BE = {f"{EXIT_REFUSED}:0": "exit code 69", "1:0": "exit code 1"}
"""How each COMPLETED job is judged once more, as if it had ended so and everything that any action makes a job print
had been printed. This shows how sharp the verdict is.
"""


@dataclass
class Judgement:
    """The losses and counts of a run."""

    wrong: list[str] = field(default_factory=list)
    lost: int = 0
    twice: int = 0
    mixed: int = 0
    drained: int = 0
    left: int = 0
    unshared: int = 0
    grown: int = 0
    full: int = 0
    counts: Counter[str] = field(default_factory=Counter)


def judge(
    submissions: Sequence[Submission],
    done: Sequence[Done],
    records: Iterable[Record],
    files: Mapping[tuple[str, int], Sequence[Line]],
    drains: Sequence[Drain],
    evidence: Evidence,
) -> Judgement:
    """Return the verdict. `files`: what the jobs wrote, by tag and job number."""
    found = Judgement()
    by_tag = defaultdict(list)
    for record in records:
        by_tag[record.tag].append(record)
    for one in submissions:
        if not by_tag[one.tag]:
            _never_known(one, evidence, found)
        for record in by_tag[one.tag]:
            lines = files.get((one.tag, record.job_id), ())
            _judge_end(one, record, lines, done, evidence, found)
    kinds = {one.tag: one for one in submissions}
    for (tag, job_id), lines in files.items():
        who = f"{kinds[tag].kind} job {job_id} ({tag})"
        _judge_runs(who, job_id, lines, evidence, found)
        if kinds[tag].kind not in UNSHARED_KINDS:
            _judge_shares(who, lines, found)
    _judge_neighbours(kinds, files, evidence, found)
    _judge_drains(drains, done, evidence, found)
    return found


def _never_known(one: Submission, evidence: Evidence, found: Judgement) -> None:
    if not one.is_taken:
        found.counts["not taken by sbatch"] += 1
    elif evidence.lost_runs(one.job, one.at - ROUND_S):
        found.counts["forgotten by a killed slurmctld"] += 1
    else:
        found.lost += 1
        found.wrong.append(f"{one.kind} job {one.tag} was taken, and Slurm does not know it")


def _judge_end(
    one: Submission, record: Record, lines: Sequence[Line], done: Sequence[Done], evidence: Evidence, found: Judgement
) -> None:
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
                why = cause(one, would_be, lines, done, evidence, is_told=False)
                found.counts[f"COMPLETED, where {what} would be a loss"] += why is None
    else:
        why = cause(one, record, lines, done, evidence)
        if why is not None:
            found.counts[f"{record.state}, explained by {why}"] += 1
            return
        found.lost += 1
        found.wrong.append(
            f"{who} on {record.nodes} is {record.state} ({record.reason}, {record.code}) for no reason that is known"
        )


def cause(
    one: Submission,
    record: Record,
    lines: Sequence[Line],
    done: Sequence[Done],
    evidence: Evidence,
    *,
    is_told: bool = True,
) -> str | None:
    """Return why a job did not complete, as a word for counting; None: for no known reason. Of several actions that can
    explain it, the nearest to its end counts. is_told=False: ignore what logs and output say."""
    said = evidence.of(one.tag, record.job_id, one.at - ROUND_S)
    if record.state == "TIMEOUT" and one.kind == "overtime":
        return "its own time limit"
    if record.code.startswith(f"{EXIT_REFUSED}:") and _are_unlike(record.nodes) and (UNLIKE in said or not is_told):
        return "nodes with unlike numbers of GPUs"
    case = Case(
        one.tag,
        record.job_id,
        one.user,
        record.state,
        record.code,
        frozenset(expand(record.nodes)),
        record.start,
        record.end,
        is_told,
        {line.pid: line.node for line in lines if line.word == "task"},
        taken=one.at,
        array=record.array,
    )
    if any(is_cancelled(d, case, evidence) for d in done):
        return "cancel"
    fitting = [d for d in done if explains(d, case, evidence)]
    nearest = min(fitting, key=lambda d: abs(d.ended - record.end), default=None)
    return None if nearest is None else nearest.event.action


def jobs_in_question(
    submissions: Iterable[Submission],
    done: Iterable[Done],
    records: Iterable[Record],
    files: Mapping[tuple[str, int], Sequence[Line]],
    evidence: Evidence,
) -> set[int]:
    """Return the jobs whose log lines and output the verdict looks at."""
    records = tuple(records)
    known = {record.tag for record in records}
    asked = {record.job_id for record in records if record.state != "COMPLETED"} | {record.array for record in records}
    asked |= {one.job for one in submissions if one.tag not in known} | {job_of_hook(one) for one in done}
    for (_, job), lines in files.items():
        if len({(line.word, line.restart, line.what) for line in lines}) < len(lines):
            asked.add(job)
    said = [text for (_, job), text in evidence.outputs.items() if job in asked]
    asked |= {int(job) for text in said for job in re.findall(NEIGHBOUR, text)}
    return asked - {0}


def _are_unlike(nodes: str) -> bool:
    """Return whether a job has n1, with four GPUs, and another node, with two: its srun is refused."""
    return "n1" in expand(nodes) and len(expand(nodes)) > 1


def _judge_runs(who: str, job: int, lines: Sequence[Line], evidence: Evidence, found: Judgement) -> None:
    """Check that each run of a job started once, and each task once. A run that slurmctld forgot may start again under
    the same number: then it allocated nodes again."""
    for restart in sorted({line.restart for line in lines}):
        mine = [line for line in lines if line.restart == restart]
        seen = Counter((line.word, line.what) for line in mine if line.word in ("start", "task"))
        twice = [(word, what) for (word, what), count in seen.items() if count > 1]
        if not twice:
            continue
        doubled = [f"{word} {what}".strip() for word, what in twice]
        at = [[line.at for line in mine if (line.word, line.what) == one] for one in twice]
        if all(
            evidence.allotted(job, min(some), max(some)) or evidence.has_lost_run(job, min(some), max(some))
            for some in at
        ):
            found.counts["run again by a slurmctld that had forgotten the run"] += 1
        else:
            found.twice += 1
            found.wrong.append(f"{who} did {', '.join(doubled)} more than once in run {restart}")


def _judge_shares(who: str, lines: Sequence[Line], found: Judgement) -> None:
    """Check that no task of a share began without a slot."""
    unshared = [line for line in lines if line.word == "task" and line.slot == "none"]
    found.unshared += len(unshared)
    found.wrong += [f"task {line.what} of {who} on {line.node} began without a slot" for line in unshared]


def judge_cheats(
    done: Sequence[Done], ours: Mapping[str, str], outputs: Mapping[tuple[str, int], str], found: Judgement
) -> None:
    """Check that our logs name the cheater where root had to undo a mount of hers, and say nothing of her jobs again
    and again; that no job of the others found the users' part full; and that no output sends them to her folders. ours:
    our log of each node. outputs: of the others."""
    cheats = jobs_of_cheater(done)
    for node, text in ours.items():
        said = [line.partition(" ")[2] for line in text.splitlines()]
        hers = Counter(one for one in said if f"of uid {CHEATER_UID}" in one and re.search(r"\bjob \d+\b", one))
        full = sorted({job for one in said if (told := FULL.search(one)) and (job := told[1]) not in cheats})
        found.full += len(full)
        found.wrong += [f"job {job} found the users' part of {node} full" for job in full]
        for one, count in hers.items():
            if count > MOST_SAME:
                found.grown += 1
                found.wrong.append(f"the log of {node} has this {count} times: {one}")
    unseen = {mounted_on(one) for one in done if one.event.actor == CHEATER} - {None}
    for node in sorted(str(one) for one in unseen):
        if not re.search(rf"uid {CHEATER_UID}\b.*mount", ours.get(node, "")):
            found.wrong.append(f"the log of {node} does not say that uid {CHEATER_UID} had something mounted there")
    for (tag, job), text in outputs.items():
        for told in NOT_ANOTHERS.findall(text):
            found.wrong.append(
                f"the output of job {job} ({tag}) sends its user to a folder that others can take: {told}"
            )


def jobs_of_cheater(done: Iterable[Done]) -> set[str]:
    """Return the numbers of the cheater's jobs."""
    return {job for one in done if one.event.actor == CHEATER for job in re.findall(r"^job (\d+)", one.said)}


def mounted_on(one: Done) -> str | None:
    """Return the node on which the cheater had something mounted; None: on none."""
    told = re.search(r": [1-9]\d* mounts on (\w+)$", one.said) if one.event.action == "mount" else None
    return None if told is None else told[1]


def _judge_neighbours(
    kinds: Mapping[str, Submission],
    files: Mapping[tuple[str, int], Sequence[Line]],
    evidence: Evidence,
    found: Judgement,
) -> None:
    """Check that no task of another user started on a node while a user's shared tasks ran there. Only runs with a
    recorded end count. An srun that slurmctld does not answer ends long after its tasks: a node is free of them once
    its Prolog says so, if every one of them had said so itself."""
    spans: list[tuple[str, str, float, float]] = []
    for (tag, job), lines in files.items():
        if kinds[tag].kind in UNSHARED_KINDS:
            continue
        for mine in _runs(lines):
            end = max((line.at for line in mine if line.word == "end"), default=0.0)
            for node in {line.node for line in mine if line.word == "task"}:
                begin = min(line.at for line in mine if line.node == node)
                spans.append((node, kinds[tag].user, begin, min(end, _free(node, job, mine, begin, evidence))))
    begun = [(line, tag) for (tag, _), lines in files.items() for line in lines if line.word in ("start", "task")]
    for node, user, begin, end in spans:
        for line, tag in begun:
            if line.node == node and begin < line.at < end and kinds[tag].user != user:
                found.mixed += 1
                found.wrong.append(f"{line.word} of {kinds[tag].user}'s {tag} on {node} beside {user}'s shared job")


def _free(node: str, job: int, run: Sequence[Line], begin: float, evidence: Evidence) -> float:
    """Return when the node's Prolog found that the tasks of this run, which began at that moment, had ended there;
    infinity: it did not, or a task had not ended. The batch script of a run that has an end is such a task."""
    said = evidence.without_task(node, job, begin)
    begun = {line.pid for line in run if line.word == "task" and line.node == node}
    over = {line.pid: line.at for line in run if line.word == "over" and line.node == node}
    is_script_there = any(line.word == "start" and line.node == node for line in run)
    if said is None or is_script_there or not all(over.get(pid, math.inf) <= said + ROUND_S for pid in begun):
        return math.inf
    return said


def _runs(lines: Sequence[Line]) -> list[list[Line]]:
    """Return the lines of each run of a job. Slurm gives a run that it had forgotten the same number again."""
    runs: dict[tuple[int, int], list[Line]] = defaultdict(list)
    started: Counter[int] = Counter()
    for line in sorted(lines, key=lambda one: one.at):
        started[line.restart] += line.word == "start"
        runs[line.restart, started[line.restart]].append(line)
    return list(runs.values())


def judge_left(
    left: Mapping[str, Sequence[str]],
    done: Sequence[Done],
    files: Mapping[tuple[str, int], Sequence[Line]],
    found: Judgement,
) -> None:
    """Check that an ended job left nothing on a node before the next job came. The next hook cleans up where a hook was
    killed, or where a process of the cheater's held what is hers. `left`: what is left, by node. `files`: what the jobs
    wrote. A node where a shared job's task began a minute after the last such kill had its next hook."""
    begun: dict[str, float] = {}
    for line in (one for lines in files.values() for one in lines if one.word == "task" and one.slot != "none"):
        begun[line.node] = max(begun.get(line.node, 0.0), line.at)
    killed = {
        one.event.actor
        for one in done
        if killed_hook(one) and begun.get(one.event.actor, 0.0) <= one.ended + UNREGISTERED_S
    }
    hers = jobs_of_cheater(done)
    for node, all_left in left.items():
        some = [one for one in all_left if not _is_cheaters(one, hers)]
        if len(some) < len(all_left):
            found.counts["nodes with something left of the cheater's before their next shared job"] += 1
        if some and node in killed:
            found.counts["nodes with something left, since a hook was killed, before their next shared job"] += 1
        elif some:
            found.left += 1
            found.wrong += [
                f"left on {node}, where no hook was killed, before its next shared job: {one}" for one in some
            ]


def _is_cheaters(left: str, jobs: Collection[str]) -> bool:
    """Return whether this is a path of the cheater's, or a line of the ledger about her alone. jobs: hers."""
    uids, numbers = re.findall(r"'uid': (\d+)", left), re.findall(r"/jobs/(\d+)", left)
    is_hers = set(uids) == {str(CHEATER_UID)} or any(one in jobs for one in numbers)
    return is_hers or re.search(rf"/mps/{CHEATER_UID}(/|$)", left) is not None


def _while_full(node: str, done: Sequence[Done], evidence: Evidence) -> list[float]:
    """Return when a node's Prolog drained it for its state folder while that was full."""
    fills = [one for one in done if one.event.action == "fill_state" and one.event.actor == node]
    return [
        at for at in evidence.unwritable(node) if any(one.began - ROUND_S <= at <= one.ended + ROUND_S for one in fills)
    ]


def _last(times: Sequence[float], drain: Drain) -> float | None:
    """Return the last of those times that can have led to this drain; None: none."""
    return max((at for at in times if 0 <= drain.at - at <= FOUND_S), default=None)


def _judge_drains(drains: Sequence[Drain], done: Sequence[Done], evidence: Evidence, found: Judgement) -> None:
    """Check that no drain was slurm-share's fault. A failed Prolog or Epilog is ours, unless it was killed and
    slurmctld names that job, or the state folder was full and the Prolog says so, as policy.md promises. Each such
    thing explains one drain, soon after it. Other reasons are Slurm's."""
    killed = [
        one
        for one in done
        if evidence.hook_failed(job_of_hook(one), one.event.actor, one.began, one.ended + UNREGISTERED_S)
    ]
    unasked = {node: evidence.never_asked(node) for node in {drain.node for drain in drains}}
    full = {node: _while_full(node, done, evidence) for node in unasked}
    for drain in drains:
        if not any(reason in drain.reason.lower() for reason in HOOK_REASONS):
            found.counts[f"drained by Slurm: {drain.reason}"] += 1
            continue
        why = [
            one
            for one in killed
            if one.event.actor == drain.node
            and 0 <= drain.at - one.began <= FOUND_S
            and drain.reason.lower().startswith(killed_hook(one))
        ]
        if why:
            killed.remove(why[0])
            found.counts["drained, since a hook was killed"] += 1
        elif (at := _last(unasked[drain.node], drain)) is not None:
            unasked[drain.node].remove(at)
            found.counts["drained by Slurm: it never asked for the Prolog"] += 1
        elif (at := _last(full[drain.node], drain)) is not None:
            full[drain.node].remove(at)
            found.counts["drained as it should be, since three jobs found its state full"] += 1
        else:
            found.drained += 1
            found.wrong.append(f"{drain.node} was drained by slurm-share: {drain.reason}")
