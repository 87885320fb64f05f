"""The archive's records: each user's load on each node, every quarter of an hour, as lines of a TSV file.

A file holds one day (UTC) and begins with MAGIC and the names of the columns. An empty field is unknown.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from msgspec import Struct

from ..core import numbers

VERSION = 1
_FAMILY = "# slurm-share archive "
MAGIC = f"{_FAMILY}{VERSION}"
ALL = "*"
"""Node and user of the line that every survey writes. It tells an hour without jobs from an hour without a survey."""
INTERVAL_S = 900
"""Seconds between two samples, as at LLSC."""
DAY_S = 86400


class Sample(Struct, frozen=True, kw_only=True):
    """One user on one node at one moment. The fields are the columns of the file, in this order."""

    time: int
    """Start of the interval, Unix time in seconds; in the file 2026-11-21T17:30:00Z."""
    node: str
    user: str
    jobs: int
    """The user's jobs that run on the node."""
    cpus: int | None = None
    """CPUs of the node that these jobs have."""
    cpu_load: float | None = None
    """CPUs busy, mean of the last 15 minutes of the jobs: the node's load average if the user has the whole node, else
    the CPU time of the jobs."""
    memory_mib: int | None = None
    """Host memory of the jobs."""
    gpus: int | None = None
    """GPUs of the node that these jobs have, whole or in part; 0: none."""
    gpu_load: float | None = None
    """Sum over these GPUs, mean of the last 15 minutes of the jobs; 2.0 is two GPUs fully busy."""
    gpu_memory_mib: int | None = None
    load_by: str = ""
    """sm: SM activity; util: utilisation, an upper bound of SM activity."""
    nppn: int | None = None
    """Tasks on the node of the job for which there is an advice."""
    advised: int | None = None
    """NPPN that was advised."""
    decided_by: str = ""
    """The bound that decided."""
    work: str = ""
    """`WorkClass` of the job, such as idle."""
    interval_s: int = INTERVAL_S
    """Length of the interval in seconds."""


COLUMNS = Sample.__struct_fields__
_TEXT = {"node", "user", "load_by", "decided_by", "work"}
_FLOAT = {"cpu_load", "gpu_load"}
_MAYBE = {"cpus", "memory_mib", "gpus", "gpu_memory_mib", "nppn", "advised", *_FLOAT}
HEAD = f"{MAGIC}\n{chr(9).join(COLUMNS)}\n"
_ESCAPED = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_ESCAPES = str.maketrans(_ESCAPED)
_UNESCAPED = {escaped[1]: plain for plain, escaped in _ESCAPED.items()}
_INTERVAL_MOST_S = DAY_S
_DIGITS_MOST = 15
_FLOAT_MOST = 1e9
"""Above any load of a node, and small enough that sums over years stay exact."""


def render(sample: Sample) -> str:
    """Return the line of a sample, with its newline."""
    return "\t".join(_field(name, getattr(sample, name)) for name in COLUMNS) + "\n"


def _field(name: str, value: object) -> str:
    if value is None:
        return ""
    if name == "time":
        return time_text(int(str(value)))
    if isinstance(value, float):
        return f"{value:.3f}"
    return str(value).translate(_ESCAPES)


def parse(line: str) -> Sample:
    """Parse a line without its newline. Raises ValueError for any other text, such as a torn line."""
    fields = line.split("\t")
    if len(fields) != len(COLUMNS):
        raise ValueError(f"{len(fields)} fields")
    values = {name: _value(name, text) for name, text in zip(COLUMNS, fields, strict=True)}
    sample = Sample(**values)
    if not sample.node or not sample.user or not 0 < sample.interval_s <= _INTERVAL_MOST_S or sample.jobs < 0:
        raise ValueError("not a sample")
    return sample


def _value(name: str, text: str) -> Any:
    if name == "time":
        return parse_time(text)
    if name in _TEXT:
        if not text.replace("\t", "").isprintable():
            raise ValueError("control characters")
        return _unescaped(text)
    if not text and name in _MAYBE:
        return None
    if name in _FLOAT:
        number = float(text)
        if not 0 <= number <= _FLOAT_MOST:
            raise ValueError(text[:_DIGITS_MOST])
        return number
    found = numbers.whole(text)
    if found is None:
        raise ValueError(text[:_DIGITS_MOST])
    return found


def _unescaped(text: str) -> str:
    try:
        return re.sub(r"\\(.?)", lambda found: _UNESCAPED[found[1]], text)
    except KeyError as error:
        raise ValueError("unknown escape") from error


def time_text(time: float) -> str:
    """Return the time as text: 2026-11-21T17:30:00Z."""
    return datetime.fromtimestamp(int(time), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@lru_cache(maxsize=4096)
def parse_time(text: str) -> int:
    """Return the Unix time that `time_text` wrote. Raises ValueError for another form."""
    return int(datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp())


def foreign_version(line: str) -> str | None:
    """Return the version that a file's first line names if it is not ours; such a file is neither read nor added to.
    None: the line names our version, or none."""
    text = line.rstrip("\n")
    return text.removeprefix(_FAMILY) if text.startswith(_FAMILY) and text != MAGIC else None


def file_name(time: float) -> str:
    """Return the file's name for the UTC day of this time."""
    return f"{time_text(time)[:10]}.tsv"


def slot(time: float, interval_s: int) -> int:
    """Return the start of the interval that contains the time. All samples of an interval have the same time."""
    return int(time) // interval_s * interval_s
