"""Read ended and running jobs from Slurm's accounts, with sacct.

Users choose names, folders and arguments, and these may have any character in them. So fields are separated by a random
word that nobody can have written into them, and records are told apart by the number of their fields.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ..core import nodelist, numbers
from ..core.process import run
from ..core.records import Amount, Count, Level, Moment

LONG_S = 60.0
"""Seconds that sacct may take: slurmdbd reads its tables for it, and a busy site's are large."""
FIELDS = (
    "JobID", "JobIDRaw", "User", "UID", "State", "ExitCode", "Submit", "Start", "End", "ElapsedRaw", "TimelimitRaw",
    "AllocCPUS", "NNodes", "NTasks", "NodeList", "TotalCPU", "ReqMem", "MaxRSS", "ReqTRES", "AllocTRES",
    "ConsumedEnergyRaw", "Restarts", "Partition", "WorkDir", "SubmitLine", "JobName", "AdminComment", "Comment",
    "SystemComment",
)  # fmt: skip
"""Fields of sacct, which 24.11 and 26.05 both have."""


class AccountedJob(Struct, frozen=True, gc=False, kw_only=True):
    """One start of a job in Slurm's accounts, with the sums of its steps. `None`: Slurm does not tell it."""

    job: Count
    """Slurm's number; of an array's element its own."""
    id: str
    """As users write it: 4711, 4711_3, 4711+1."""
    name: str = ""
    user: str = ""
    uid: Count | None = None
    partition: str = ""
    state: str = ""
    """One word of Slurm's: RUNNING, COMPLETED, TIMEOUT ..."""
    exit_code: Count | None = None
    signal: Count | None = None
    submitted: Moment | None = None
    start: Moment | None = None
    end: Moment | None = None
    """None: it still runs, or waits."""
    elapsed_s: Level | None = None
    limit_s: Level | None = None
    """None: no limit, or not told."""
    cpus: Count | None = None
    nodes: tuple[str, ...] = ()
    tasks: Count | None = None
    """The most tasks of one of its steps."""
    gpus: Count | None = None
    """GPUs of the allocation; 0: none. Parts of a GPU (shards) do not count."""
    asked_gpus: Count | None = None
    shards: Count | None = None
    cpu_s: Level | None = None
    """TotalCPU: time in user and kernel mode of processes that have ended."""
    memory_asked_mib: Amount | None = None
    """ReqMem on each node; None: not told."""
    memory_peak_mib: Amount | None = None
    """The largest MaxRSS of a step: a task's, not a node's."""
    energy_j: Level | None = None
    """Energy of its nodes, where the site measures it (AcctGatherEnergyType) or notes it (TRES energy)."""
    restarts: Count | None = None
    folder: str = ""
    submit_line: str = ""
    """Without its quotes."""
    admin_comment: str = ""
    comment: str = ""
    system_comment: str = ""

    @property
    def has_begun(self) -> bool:
        """Return whether it has started."""
        return self.start is not None

    @property
    def runs(self) -> bool:
        """Return whether it has started and not ended."""
        return self.start is not None and self.end is None

    @property
    def array(self) -> str | None:
        """Return the number of its array as text; None: it is no element of one."""
        return self.id.partition("_")[0] if "_" in self.id else None

    @property
    def het(self) -> str | None:
        """Return the number of its heterogeneous job as text; None: it is no part of one."""
        return self.id.partition("+")[0] if "+" in self.id else None


def argv(
    delimiter: str,
    *,
    jobs: Sequence[str] = (),
    user: str = "",
    everybody: bool = False,
    since: float | None = None,
    until: float | None = None,
    steps: bool = True,
) -> list[str]:
    """Return the command for these jobs (4711, 4711_3, 4711+1), or for the jobs of `user` that ran between two moments
    (Unix time)."""
    found = ["sacct", "--duplicates", "--noheader", "--parsable", f"--delimiter={delimiter}"]
    found += [f"--format={','.join(FIELDS)}"]
    if jobs:
        return [*found, f"--jobs={','.join(jobs)}"]
    found += ["--allusers"] if everybody else [f"--user={user}"]
    found += [] if since is None else [f"--starttime={_written(since)}"]
    found += [] if until is None else [f"--endtime={_written(until)}"]
    return found if steps else [*found, "--allocations"]


def _written(moment: float) -> str:
    """Return a moment as sacct takes it, in the host's time: Slurm takes no Unix time."""
    import time

    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(moment))


def read(
    *,
    jobs: Sequence[str] = (),
    user: str = "",
    everybody: bool = False,
    since: float | None = None,
    until: float | None = None,
    steps: bool = True,
    timeout_s: float = LONG_S,
) -> tuple[AccountedJob, ...]:
    """Return the starts of jobs in the order of Slurm's accounts. Parameters: as `argv`. `steps` False: without CPU
    time and peaks, which are known of steps only, and faster.

    Raises CommandError where there are no accounts, or slurmdbd does not answer.
    """
    delimiter = secrets.token_hex(8)
    words = argv(delimiter, jobs=jobs, user=user, everybody=everybody, since=since, until=until, steps=steps)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SACCT_", "SLURM_TIME_FORMAT"))}
    return parse(run(words, timeout_s=timeout_s, env={**env, "SLURM_TIME_FORMAT": "%s"}), delimiter)


def parse(text: str, delimiter: str) -> tuple[AccountedJob, ...]:
    """Return the starts of jobs in sacct's text. Rows of steps follow the row of their job."""
    values = text.split(delimiter)
    size = len(FIELDS)
    found: list[AccountedJob] = []
    for place in range(0, len(values) - size, size):
        row = dict(zip(FIELDS, values[place : place + size], strict=True))
        row["JobID"] = row["JobID"].removeprefix("\n")
        name, dot, _ = row["JobID"].partition(".")
        if not dot:
            job = _job(row)
            found += [] if job is None else [job]
        elif found and found[-1].id == name:
            found[-1] = _with_step(found[-1], row)
    return tuple(found)


def _job(row: Mapping[str, str]) -> AccountedJob | None:
    number = numbers.whole(row["JobIDRaw"], numbers.UINT32_MOST)
    if number is None:
        return None  # of an array, elements that wait have one row together, without a number of their own
    code, _, signal = row["ExitCode"].partition(":")
    allocated, asked = _tres(row["AllocTRES"]), _tres(row["ReqTRES"])
    minutes = numbers.whole(row["TimelimitRaw"])
    node_count = numbers.whole(row["NNodes"]) or 1
    has_begun = bool(row["AllocTRES"])
    return AccountedJob(
        job=number,
        id=row["JobID"],
        name=row["JobName"],
        user=row["User"],
        uid=numbers.whole(row["UID"], numbers.UINT32_MOST),
        partition=row["Partition"],
        state=row["State"].split(" ")[0],
        exit_code=numbers.whole(code),
        signal=numbers.whole(signal),
        submitted=_moment(row["Submit"]),
        start=_moment(row["Start"]) if has_begun else None,
        end=_moment(row["End"]),
        elapsed_s=numbers.whole(row["ElapsedRaw"]),
        limit_s=None if minutes is None else 60 * minutes,
        cpus=numbers.whole(row["AllocCPUS"]),
        nodes=_nodes(row["NodeList"]),
        gpus=_count(allocated, "gres/gpu") if has_begun else None,
        asked_gpus=_count(asked, "gres/gpu"),
        shards=_count(allocated, "gres/shard"),
        cpu_s=None,
        memory_asked_mib=_memory_of_node(row["ReqMem"], asked, node_count),
        energy_j=_energy(row["ConsumedEnergyRaw"], allocated),
        restarts=numbers.whole(row["Restarts"]),
        folder=row["WorkDir"],
        submit_line=row["SubmitLine"],
        admin_comment=row["AdminComment"],
        comment=row["Comment"],
        system_comment=row["SystemComment"],
    )


def _with_step(job: AccountedJob, row: Mapping[str, str]) -> AccountedJob:
    seconds, peak, tasks = cpu_seconds(row["TotalCPU"]), mib(row["MaxRSS"]), numbers.whole(row["NTasks"])
    is_ours = row["JobID"].rpartition(".")[2] not in ("batch", "extern", "interactive")
    return replace(
        job,
        cpu_s=job.cpu_s if seconds is None else (job.cpu_s or 0.0) + seconds,
        memory_peak_mib=max((one for one in (job.memory_peak_mib, peak) if one is not None), default=None),
        tasks=max(job.tasks or 0, tasks) if tasks is not None and is_ours else job.tasks,
    )


def _nodes(text: str) -> tuple[str, ...]:
    return () if text in ("", "None assigned") else tuple(nodelist.unfold(text))


def _moment(text: str) -> float | None:
    """Return a time that sacct writes as Unix time; None: Unknown, None."""
    return numbers.whole(text)


_SPAN = re.compile(r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):([0-9]+(?:\.[0-9]+)?)", re.ASCII)


def cpu_seconds(text: str) -> float | None:
    """Return a time as sacct writes TotalCPU, 1-02:03:04 or 03:04.567, in seconds; None: it is none."""
    match = _SPAN.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = match.groups("0")
    return 86400.0 * int(days) + 3600 * int(hours) + 60 * int(minutes) + float(seconds)


_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGTP]?)[cn]?", re.ASCII)
_UNITS = {"": 1 / 1024 / 1024, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}


def mib(text: str) -> int | None:
    """Return a size as sacct writes it, 1234K or 2.50G, in MiB, rounded up; None: it is none."""
    match = _SIZE.fullmatch(text)
    return None if match is None else -int(-float(match[1]) * _UNITS[match[2]] // 1)


def _tres(text: str) -> dict[str, str]:
    """Return the counts of a list of trackable resources: cpu=8,mem=2G,gres/gpu:h200=2."""
    return dict(part.split("=", 1) for part in text.split(",") if "=" in part)


def _count(tres: Mapping[str, str], name: str) -> int:
    return numbers.whole(tres.get(name)) or sum(
        numbers.whole(count) or 0 for one, count in tres.items() if one.startswith(f"{name}:")
    )


def _memory_of_node(text: str, asked: Mapping[str, str], nodes: int) -> int | None:
    """Return the memory that a job asked for on each node. ReqMem is the whole job's since 21.08, as ReqTRES has it."""
    whole = mib(asked["mem"]) if "mem" in asked else mib(text)
    return None if not whole else whole // nodes


def _energy(text: str, allocated: Mapping[str, str]) -> float | None:
    """Return the energy in joules. 0 is what Slurm has without a plugin that measures, so it is not known."""
    found = numbers.whole(allocated.get("energy")) or numbers.whole(text)
    return float(found) if found else None
