"""Records of a chaos run: what was submitted, which nodes were drained, what Slurm and the jobs wrote."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True)
class Submission:
    """A job as a user submitted it. Times here and below are seconds since the epoch."""

    tag: str
    user: str
    kind: str
    at: float
    is_taken: bool
    """Whether the command reported success. Slurm may have taken the job anyway if the network was cut."""
    job: int = 0
    """The job number that the command printed; 0: none."""


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
    """start, task, over or end."""
    restart: int
    at: float
    node: str
    what: str
    """The task, or the code."""
    pid: int = 0
    """The PID of a task's program."""
    slot: str = ""
    """The slot of a task; none: it has none. Empty: not recorded."""


@dataclass(frozen=True)
class Record:
    """A job as slurmctld reports it."""

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
    """The number of the job's array; 0: none."""


def parse_lines(text: str) -> tuple[Line, ...]:
    """Parse a job's own file. A line that a power cut tore is skipped."""
    rows = (line.split() for line in text.splitlines())
    return tuple(
        Line(
            row[0],
            int(row[1]),
            float(row[2]),
            row[3],
            "".join(row[4:5]),
            int("".join(row[5:6]) or 0),
            "".join(row[6:7]),
        )
        for row in rows
        if len(row) >= 4
    )


def parse_records(text: str) -> tuple[Record, ...]:
    """Parse the output of `scontrol -o show jobs`."""
    found = []
    for line in text.splitlines():
        values = dict(re.findall(r"(\w+)=(\S*)", line))
        if "JobId" in values:
            names = ("JobName", "JobState", "StartTime", "EndTime", "NodeList", "Reason", "ExitCode")
            tag, state, start, end, *rest = (values.get(name, "") for name in names)
            restarts, array = (int(values.get(name, "0")) for name in ("Restarts", "ArrayJobId"))
            times = _seconds(start), _seconds(end)
            found.append(Record(int(values["JobId"]), tag, state, restarts, *times, *rest, array))
    return tuple(found)


def _seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0


def expand(nodes: str) -> set[str]:
    """Return the nodes of a list such as n[1-2,5] or n3,n4."""
    found: set[str] = set()
    for name, inside in re.findall(r"([a-z]+)(\d+|\[[^]]*\])", nodes):
        for part in inside.strip("[]").split(","):
            first, _, last = part.partition("-")
            found |= {f"{name}{number}" for number in range(int(first), int(last or first) + 1)}
    return found
