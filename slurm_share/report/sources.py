"""Read all that is known of a job or a run, each figure from the first source that has it.

The order: files of the launcher in the run's folder, the agents' records, the job's SystemComment, the records that
this node's hooks keep, a site's Prometheus, and Slurm's accounts. A source that is not there, or does not answer, is
one sentence of the report. The caller sees own jobs; root and operators see all.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import UNSET, Struct

from ..core import numbers
from ..core.errors import CommandError, StateError, UsageError, shown
from ..core.paths import USAGE_RECORDS
from ..core.records import JobStart
from ..core.settings import Settings
from ..core.text import natural
from ..load import client, usage_of
from ..node import processes
from ..slurm import accounts, jobs
from ..slurm.accounts import AccountedJob
from ..slurm.records import QueuedJob
from ..slurm.rules.resources import share_of
from ..triples import Ended, Run, result_files, run_folder, submitting
from ..usage import EnergyUse, GpuUse, JobUse, TaskUse, UseSeries, comment, files
from . import prometheus
from .records import JobReport
from .rules import merge

TASKS_MOST = 200_000
"""Most attempts at tasks of which a report has the figures: some 100 MB of memory."""
ASKED_MOST = 32
"""Most starts of which the agents are asked; of a larger array they are asked about the last ones."""
FOREVER_S = 360 * 86400.0
"""Time that is left of a job without a limit: Slurm writes a year."""
_JOB = re.compile(r"[0-9]{1,10}(?:[_+](?:[0-9]{1,10}|\[[0-9,-]{1,200}\]))?", re.ASCII)
_TRIPLE = re.compile(r"--comment=llsub (\[[0-9]+,[0-9]+(?:,[0-9]+)?\])", re.ASCII)
NO_ACCOUNTS = (
    "Slurm's accounts cannot be read ({}): elapsed time, limits and energy of the accounts are missing; the report is "
    "from the run's folder, the agents and this node only"
)


NOT_YET = (
    "Slurm's accounts do not have this job yet: elapsed time and limits are those of slurmctld, as far as it tells them"
)


class Viewer(Struct, frozen=True):
    """The user who asks."""

    uid: int
    user: str
    is_operator: bool

    def may_see(self, uid: int | None) -> bool:
        """Return whether the user may see jobs of `uid`."""
        return self.is_operator or uid == self.uid


def viewer(settings: Settings) -> Viewer:
    """Return the user of this process."""
    uid = os.geteuid()
    name = processes.read_user_name(uid)
    return Viewer(uid, name, uid == 0 or is_operator(uid, settings.operators_group))


def is_operator(uid: int, group: str) -> bool:
    """Return whether a user is in the operators' group."""
    from ..load import callers

    return callers.is_operator(uid, group)


def read(argument: str, who: Viewer, settings: Settings) -> JobReport:
    """Return what is known of the job or the folder of a run that a user named.

    Raises UsageError if there is none, or if it belongs to another user.
    """
    if not argument:
        raise UsageError("an argument is empty: write job ids or folders of runs (is a shell variable not set?)")
    if _JOB.fullmatch(argument) and not (Path(argument) / run_folder.RUN).exists():
        if any(numbers.whole(part, numbers.UINT32_MOST) is None for part in re.findall("[0-9]+", argument)):
            raise UsageError(f"there is no job {argument}: Slurm's numbers end at {numbers.UINT32_MOST}")
        return read_job(argument, who, settings)
    if "/" in argument or os.path.lexists(argument) or argument.startswith("LLSUB"):
        return read_run(submitting.find_folder(argument), who, settings)
    raise UsageError(f"{shown(argument)} is neither a job (4711, 4711_3, 4711+1) nor the folder of a run (LLSUB.<n>)")


def read_job(text: str, who: Viewer, settings: Settings) -> JobReport:
    """Return what is known of a job. Raises UsageError if there is none, or it is another user's."""
    starts, problems = _starts([text])
    if not starts:
        has_accounts = not problems
        starts = _from_queue(text, problems, has_accounts=has_accounts)
        problems += [NOT_YET] if has_accounts else []
    _refuse_others(text, starts, who)
    started = tuple(one for one in starts if one.has_begun) or starts
    last = started[-1]
    folder = _folder_of(last)
    numbers_of = {one.job for one in started}
    run = None if folder is None else _run_of(folder, problems)
    uses, series = _uses(started, who, settings, problems, folder if run is not None else None, run)
    tasks, left_out = ((), 0) if folder is None or run is None else _tasks(folder, run, numbers_of, problems)
    return _report(text, started, uses, series, tasks, left_out, folder, run, problems)


def read_run(folder: Path, who: Viewer, settings: Settings) -> JobReport:
    """Return what is known of a run: of all its jobs. Raises UsageError if it is another user's."""
    run = run_folder.read_run(folder)
    owner = run_folder.read_foreign_owner(folder, who.uid)
    if owner is not None and not who.is_operator:
        raise UsageError(
            f"{folder.name} is a run of {processes.read_user_name(owner)}; a report is for its user and for operators"
        )
    problems: list[str] = []
    known = run_folder.read_jobs(folder)
    starts: tuple[AccountedJob, ...] = ()
    if known:
        starts, said = _starts([str(job) for job in known])
        problems += said
        # A copied folder has the ids of jobs that may be somebody else's by now.
        starts = tuple(one for one in starts if one.has_begun and who.may_see(one.uid))
    uses, series = _uses(starts, who, settings, problems, folder, run)
    tasks, left_out = _tasks(folder, run, None, problems)
    return _report(folder.name, starts, uses, series, tasks, left_out, folder, run, problems)


def read_folder(folder: Path, environ: Mapping[str, str], who: Viewer) -> JobReport:
    """Return what a run's folder tells of the job of this process at its end, before Slurm's accounts know that.

    Raises StateError for a folder that is none of a run.
    """
    run = run_folder.read_run(folder)
    problems: list[str] = []
    number = numbers.whole(environ.get("SLURM_JOB_ID"), numbers.UINT32_MOST)
    wanted = None if number is None else {number}
    launched, series = _of_launcher(folder, run, wanted, problems)
    tasks, left_out = _tasks(folder, run, wanted, problems)
    uses = merge.merged([launched])
    starts: tuple[AccountedJob, ...] = ()
    if number is not None:
        begin = numbers.whole(environ.get("SLURM_JOB_START_TIME"))
        end = numbers.whole(environ.get("SLURM_JOB_END_TIME"))
        now = time.time()
        starts = (
            AccountedJob(
                job=number,
                id=str(number),
                name=environ.get("SLURM_JOB_NAME", ""),
                user=who.user,
                uid=who.uid,
                partition=environ.get("SLURM_JOB_PARTITION", ""),
                start=begin,
                end=now,
                elapsed_s=None if begin is None else max(0.0, now - begin),
                limit_s=None if begin is None or end is None or end > now + FOREVER_S else end - begin,
                nodes=tuple(dict.fromkeys(use.node for use in uses)),
                cpus=_own_cpus(environ) or sum(use.cpus or 0 for use in uses) or None,
                restarts=numbers.whole(environ.get("SLURM_RESTART_COUNT")) or 0,
            ),
        )
    return _report(folder.name, starts, uses, tuple(series), tasks, left_out, folder, run, problems)


_CPUS = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", re.ASCII)


def _own_cpus(environ: Mapping[str, str]) -> int | None:
    """Return the CPUs of this process's job on all its nodes, from SLURM_JOB_CPUS_PER_NODE: 8(x2),4."""
    found = [_CPUS.fullmatch(part) for part in environ.get("SLURM_JOB_CPUS_PER_NODE", "").split(",")]
    return sum(int(one[1]) * int(one[2] or 1) for one in found if one is not None) or None


def read_day(who: Viewer, now: float, *, hours: float = 24.0) -> list[JobReport]:
    """Return the user's jobs of the last day, the oldest first, from Slurm's accounts and the jobs' comments alone.

    Raises CommandError without accounts.
    """
    return of_accounts(accounts.read(user=who.user, since=now - 3600 * hours), now)


def of_accounts(found: Iterable[AccountedJob], now: float) -> list[JobReport]:
    """Return a report of each job, whose starts are together, from the accounts and the jobs' comments alone."""
    by_job: dict[str, list[AccountedJob]] = {}
    for one in sorted(found, key=_order):
        by_job.setdefault(one.id, []).append(one)
    reports = []
    for name, starts in by_job.items():
        problems: list[str] = []
        uses = merge.merged([[use for one in starts for use in _of_comment(one, problems)]])
        known = {(one.job, one.uid) for one in starts}
        kept = tuple(use for use in uses if (use.job, use.uid) in known)
        share = share_of(starts[-1].admin_comment, "", starts[-1].comment) or ""
        triple = _triple(starts[-1], None)
        reports.append(JobReport(title=name, starts=tuple(starts), uses=kept, now=now, share=share, triple=triple))
    return reports


def _report(
    title: str,
    starts: tuple[AccountedJob, ...],
    uses: tuple[JobUse, ...],
    series: tuple[UseSeries, ...],
    tasks: tuple[TaskUse, ...],
    left_out: int,
    folder: Path | None,
    run: Run | None,
    problems: Sequence[str],
) -> JobReport:
    last = starts[-1] if starts else None
    share = "" if last is None else share_of(last.admin_comment, "", last.comment) or ""
    if not share:
        share = next((str(use.share) for use in uses if use.share is not None), "")
    return JobReport(
        title=title,
        starts=starts,
        uses=uses,
        series=series,
        tasks=tasks,
        tasks_left_out=left_out,
        run=folder.name if folder is not None and run is not None else "",
        script=str(folder / run_folder.LAUNCH_SCRIPT) if folder is not None and run is not None else "",
        run_tasks=None if run is None else run.tasks,
        triple=_triple(last, run),
        share=share,
        now=time.time(),
        problems=tuple(dict.fromkeys(problems)),
    )


def _triple(job: AccountedJob | None, run: Run | None) -> str:
    if run is not None and run.triple is not None:
        return str(run.triple)
    found = _TRIPLE.search(job.submit_line) if job is not None else None
    return found[1] if found else ""


def _refuse_others(text: str, starts: Iterable[AccountedJob], who: Viewer) -> None:
    for one in starts:
        if not who.may_see(one.uid):
            raise UsageError(
                f"job {text} is a job of {shown(one.user) if one.user else 'another user'}; a report is for its user "
                "and for operators"
            )


# ---- Slurm ----


def _starts(wanted: Sequence[str]) -> tuple[tuple[AccountedJob, ...], list[str]]:
    """Return the starts of jobs in Slurm's accounts, and why they cannot be read."""
    try:
        found = accounts.read(jobs=wanted)
    except CommandError as error:
        return (), [NO_ACCOUNTS.format(reason(error))]
    return tuple(sorted(found, key=_order)), []


def _order(one: AccountedJob) -> tuple[float, str, int]:
    """Return the key that sorts by start; elements of an array that started together by number: the last one has the
    array's own job id, the lowest."""
    return (one.start or 1e11, natural(one.id), one.restarts or 0)


def reason(error: CommandError) -> str:
    """Return the last sentence of what a command said."""
    lines = [line.strip() for line in error.stderr.splitlines() if line.strip()]
    return shown(lines[-1], 160) if lines else str(error)


def _from_queue(text: str, problems: list[str], *, has_accounts: bool) -> tuple[AccountedJob, ...]:
    """Return a job that slurmctld still has, where the accounts do not have it. Raises UsageError if it has none.

    `has_accounts`: they can be read; slurmctld sends its jobs only when slurmdbd is there again.
    """
    unknown = UsageError(f"there is no job {text} in Slurm's accounts; squeue and sacct list yours")
    number = numbers.whole(re.split(r"[_+]", text)[0], numbers.UINT32_MOST)
    assert number is not None
    try:
        found = [one for one in jobs.read_all_shown(number, has_ended=True) if text in one.names]
    except CommandError as error:
        if has_accounts:
            raise unknown from error
        problems.append(f"slurmctld does not answer ({reason(error)})")
        return (AccountedJob(job=number, id=text, uid=os.geteuid()),)
    if not found and has_accounts:
        raise unknown
    if not found:
        raise UsageError(
            f"slurmctld has no job {text} any more, and Slurm's accounts cannot be read; for a run of llsub write its "
            "folder: slurm-share report LLSUB.<n>"
        )
    now = time.time()
    return tuple(sorted((of_queue(one, now) for one in found), key=_order))


def of_queue(job: QueuedJob, now: float) -> AccountedJob:
    """Return a job of the queue as one of the accounts, as far as the queue tells it."""
    from ..core import nodelist

    has_begun = job.start is not None and "PENDING" not in job.states
    has_ended = not {"RUNNING", "COMPLETING", "SUSPENDED", "PENDING"} & set(job.states)
    return AccountedJob(
        job=job.job_id,
        id=job.id,
        name=job.name,
        user=job.user,
        uid=job.uid,
        partition=job.partition,
        state=job.states[0] if job.states else "",
        start=job.start if has_begun else None,
        end=now if has_ended else None,
        elapsed_s=None if has_ended or job.start is None else max(0.0, now - job.start),
        limit_s=job.limit_s,
        cpus=job.cpus,
        nodes=tuple(nodelist.unfold(job.nodes)),
        gpus=job.gpus,
        shards=1 if job.has_shards else 0,
        memory_asked_mib=max(job.memory_on_nodes_mib, default=None),
        restarts=job.restarts,
        admin_comment="" if job.share is None else f"share-gpu={job.share}",
        comment=job.comment,
    )


# ---- Use ----


def _uses(
    starts: Sequence[AccountedJob],
    who: Viewer,
    settings: Settings,
    problems: list[str],
    folder: Path | None,
    run: Run | None,
) -> tuple[tuple[JobUse, ...], tuple[UseSeries, ...]]:
    """Return the merged records of use, and series, of starts; of a run, also without Slurm's accounts."""
    wanted = {one.job for one in starts} or None
    launched, of_launcher = _of_launcher(folder, run, wanted, problems)
    asked, of_agents = _of_agents(starts, launched, settings, problems)
    commented = [use for one in starts for use in _of_comment(one, problems)]
    hooked, said = files.read_folder(USAGE_RECORDS, JobUse, jobs=wanted) if wanted else ([], [])
    problems += [] if who.uid else said  # the files of others cannot be read, and are not the caller's
    stored, of_prometheus = prometheus.read(starts, (*of_launcher, *of_agents), settings, problems)
    sources = [launched, asked, commented, hooked, stored]
    # What a file or a comment says is believed only about the job that it is of, and of its user.
    known = {(one.job, one.uid) for one in starts}
    kept = [[use for use in uses if not known or (use.job, use.uid) in known] for uses in sources]
    return merge.merged(kept), merge.merged_series([of_launcher, of_agents, of_prometheus])


def _of_launcher(
    folder: Path | None, run: Run | None, wanted: set[int] | None, problems: list[str]
) -> tuple[list[JobUse], list[UseSeries]]:
    uses: list[JobUse] = []
    series: list[UseSeries] = []
    if folder is None or run is None:
        return uses, series
    for home in sorted((folder / run.log_folder).glob("p*_*")):
        found, said = files.read_folder(home, JobUse, jobs=wanted)
        uses += found
        problems += said
        courses, said = files.read_folder(home, UseSeries, jobs=wanted)
        series += courses
        problems += said
    return uses, series


def _of_agents(
    starts: Sequence[AccountedJob], known: Sequence[JobUse], settings: Settings, problems: list[str]
) -> tuple[list[JobUse], list[UseSeries]]:
    uses: list[JobUse] = []
    series: list[UseSeries] = []
    silent: dict[str, None] = {}
    asked: dict[int, AccountedJob] = {one.job: one for one in starts if one.nodes}
    if len(asked) > ASKED_MOST:
        problems.append(f"the agents were asked about the last {ASKED_MOST} of {len(asked)} jobs only")
    for one in list(asked.values())[-ASKED_MOST:]:
        found, courses, said = usage_of(one.job, one.nodes, settings)
        uses += found
        series += courses
        silent |= dict.fromkeys(said)
        if said and not found and len(silent) == 1 and len(asked) > 1:
            break  # there is no agent here: the others would say the same
    complete = {(use.job, use.node) for use in (*known, *uses)}
    if any((one.job, node) not in complete for one in starts for node in one.nodes):
        problems += [_of_silence(one) for one in silent]
    return uses, series


def _of_silence(problem: str) -> str:
    """Return why an agent is silent. The client's way out, to sample now, is none for a job that has ended."""
    before, start, _ = problem.partition(f"; {client.START_IT}")
    if not start:
        return problem
    return f"{before}; with slurm-share-agent on this host, an administrator lets it ask those of the nodes"


def _of_comment(job: AccountedJob, problems: list[str]) -> list[JobUse]:
    """Return the records that the hooks put into the job's SystemComment."""
    if not job.system_comment:
        return []
    found = comment.decode(job.system_comment)
    if found.problem:
        problems.append(found.problem)
    return list(found.uses)


# ---- The run ----


def _folder_of(job: AccountedJob) -> Path | None:
    """Return the folder of the run of which a job is one; None: it is none, or it is not there any more."""
    words = job.submit_line.rstrip().rsplit(f"/{run_folder.LAUNCH_SCRIPT}", 1)
    if len(words) != 2 or words[1]:
        return None
    # A path may have blanks: the shortest that has a run is it.
    places = [place.start() for place in re.finditer(r" /", words[0])]
    for place in reversed(places):
        folder = Path(words[0][place + 1 :])
        try:
            if (folder / run_folder.RUN).exists() and job.job in run_folder.read_jobs(folder):
                return folder
        except (OSError, StateError, ValueError):
            continue
    return None


def _run_of(folder: Path, problems: list[str]) -> Run | None:
    try:
        return run_folder.read_run(folder)
    except StateError as error:
        problems.append(str(error))
        return None


def _tasks(folder: Path, run: Run, wanted: set[int] | None, problems: list[str]) -> tuple[tuple[TaskUse, ...], int]:
    """Return the ended attempts of the jobs `wanted` (None: all), in the order of their starts, and how many more there
    are than a report can have."""
    found: list[TaskUse] = []
    left_out = 0
    try:
        for ended in result_files.ResultFiles(folder, run):
            if wanted is not None and JobStart.parse(ended.job).number not in wanted:
                continue
            if len(found) < TASKS_MOST:
                found.append(task_of(ended))
            else:
                left_out += 1
    except StateError as error:
        problems.append(str(error))
    return tuple(sorted(found, key=lambda one: (one.began or 0.0, one.task))), left_out


def task_of(ended: Ended) -> TaskUse:
    """Return a line of results.jsonl as the use of a task."""
    gpus: tuple[GpuUse, ...] = ()
    if ended.gpu_uuid:
        gpus = (
            GpuUse(
                uuid=ended.gpu_uuid,
                index=ended.gpu,
                held_s=ended.seconds,
                measured_s=ended.seconds,
                sm_percent=_known(ended, "gpu_sm_percent"),
                own_sm_percent=_known(ended, "gpu_sm_percent"),
                idle_s=_known(ended, "gpu_idle_s"),
                memory_peak_mib=ended.peak_gpu_mib,
                memory_cap_mib=ended.gpu_cap_mib,
                memory_booked_mib=None if ended.gpu_booked_mib is UNSET else ended.gpu_booked_mib,
                energy=_energy(ended),
            ),
        )
    return TaskUse(
        task=ended.task,
        attempt=ended.attempt,
        outcome=ended.outcome,
        slot=ended.slot,
        began=max(0.0, ended.started),
        seconds=ended.seconds,
        cpu_s=ended.cpu_seconds,
        memory_peak_mib=ended.peak_rss_mib,
        gpus=gpus,
    )


def _known(ended: Ended, field: str) -> float | None:
    """Return a measured field; None: the launcher did not know it, or is of an older release."""
    value = getattr(ended, field, UNSET)
    return None if value is UNSET else value


def _energy(ended: Ended) -> EnergyUse | None:
    joules = _known(ended, "energy_j")
    if joules is None:
        return None
    rule = getattr(ended, "energy_rule", UNSET)
    return EnergyUse(joules=joules, rule="power" if rule in (UNSET, None) else rule)
