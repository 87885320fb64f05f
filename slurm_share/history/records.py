"""History: what each user's jobs did on each node, every quarter of an hour, as lines of a TSV file.

A file has one day, UTC, and begins with MAGIC and the names of the columns. A field that is empty is unknown.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from msgspec import Struct

VERSION = 1
_FAMILY = "# slurm-share archive "
MAGIC = f"{_FAMILY}{VERSION}"
ALL = "*"
"""Node and user of the line that every survey leaves, jobs or none: without it, an hour without jobs and an hour
without a survey would be the same."""
INTERVAL_S = 900
"""Between two samples, as at LLSC."""
DAY_S = 86400


class Sample(Struct, frozen=True, kw_only=True):
    """One user on one node at one moment. The fields are the columns of the file, in this order."""

    time: int
    """Unix time, seconds, at which its interval begins; in the file 2026-11-21T17:30:00Z."""
    node: str
    user: str
    jobs: int
    """Running there."""
    cpus: int | None = None
    """That these jobs have there."""
    cpu_load: float | None = None
    """CPUs busy, mean of the last 15 minutes of its jobs: the node's load average where the user has all of it, else
    the CPU time of the jobs."""
    memory_mib: int | None = None
    """Host memory of the jobs."""
    gpus: int | None = None
    """That these jobs have there, whole or a part; 0: none."""
    gpu_load: float | None = None
    """Sum over these GPUs, mean of the last 15 minutes of its jobs; 2.0 is two GPUs fully busy."""
    gpu_memory_mib: int | None = None
    load_by: str = ""
    """sm: SM activity; util: utilisation, an upper bound of it."""
    nppn: int | None = None
    """Tasks on the node, of the job that an advice is for."""
    advised: int | None = None
    """NPPN that was advised."""
    decided_by: str = ""
    """The bound that decided."""
    work: str = ""
    """The class in a word."""
    interval_s: int = INTERVAL_S
    """What it stands for."""


COLUMNS = Sample.__struct_fields__
_TEXT = {"node", "user", "load_by", "decided_by", "work"}
_FLOAT = {"cpu_load", "gpu_load"}
_MAYBE = {"cpus", "memory_mib", "gpus", "gpu_memory_mib", "nppn", "advised", *_FLOAT}
HEAD = f"{MAGIC}\n{chr(9).join(COLUMNS)}\n"
_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
_INTERVAL_MOST_S = DAY_S
_DIGITS_MOST = 15
_FLOAT_MOST = 1e9
"""Above any load of a node, and below what sums of years overflow by."""


def render(sample: Sample) -> str:
    """Return its line, with the newline."""
    return "\t".join(_field(name, getattr(sample, name)) for name in COLUMNS) + "\n"


def _field(name: str, value: object) -> str:
    if value is None:
        return ""
    if name == "time":
        return time_text(int(str(value)))
    if isinstance(value, float):
        return f"{value:.3f}"
    text = str(value)
    for plain, escaped in _ESCAPES:
        text = text.replace(plain, escaped)
    return text


def parse(line: str) -> Sample:
    """Parse a line without its newline. Raises ValueError for any other text, such as a line that was torn."""
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
        return _plain(text)
    if not text and name in _MAYBE:
        return None
    if name in _FLOAT:
        number = float(text)
        if not 0 <= number <= _FLOAT_MOST:
            raise ValueError(text[:_DIGITS_MOST])
        return number
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MOST):
        raise ValueError(text[:_DIGITS_MOST])
    return int(text)


def _plain(text: str) -> str:
    if "\\" not in text:
        return text
    escapes = {"\\": "\\", "t": "\t", "n": "\n", "r": "\r"}
    found, rest = "", text
    while rest:
        one, rest = rest[0], rest[1:]
        if one == "\\":
            one, rest = escapes.get(rest[:1], ""), rest[1:]
            if not one:
                raise ValueError("an escape that is none")
        found += one
    return found


def time_text(time: float) -> str:
    """Return the time as text: 2026-11-21T17:30:00Z."""
    return datetime.fromtimestamp(int(time), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@lru_cache(maxsize=4096)
def parse_time(text: str) -> int:
    """Return the Unix time of such a text. Raises ValueError for another form."""
    return int(datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp())


def foreign_version(line: str) -> str | None:
    """Of a line that names another version of this form, that version: its file is another release's, and neither
    read nor added to."""
    text = line.rstrip("\n")
    return text.removeprefix(_FAMILY) if text.startswith(_FAMILY) and text != MAGIC else None


def file_name(time: float) -> str:
    """Return the file's name for the UTC day of this time."""
    return f"{time_text(time)[:10]}.tsv"


def slot(time: float, interval_s: int) -> int:
    """Return the start of the interval that a time is in: all samples of an interval have the same time."""
    return int(time) // interval_s * interval_s
