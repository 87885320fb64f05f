"""The record of the variables that slurm-share set for a job (names.py, "The record of variables").

plugins/given.c does the same in C; tests/contract/test_given_in_two_languages.py compares the two.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from . import names

_ESCAPED = re.compile(rb"%([0-9A-F]{2})")
_PLAIN = frozenset(range(0x21, 0x7F)) - {ord("%")}
"""Bytes that are written as they are."""
_JOBS_MOST = (1 << 32) - 1
OWN_PREFIXES = (names.GIVEN_PREFIX, "LLSUB_", "LLMR")
"""Prefixes of variables that are slurm-share's own with any value: some are different for each task of a worker. Only
they are recorded without a value."""


def recorded_job(environ: Mapping[str, str]) -> int | None:
    """Return the job of an environment's record; 0: a run outside any job; None: there is no record."""
    record = environ.get(names.ENV_GIVEN)
    return None if record is None else _parse(record)[0]


def read(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that slurm-share set and nobody has changed since, with their values."""
    record = environ.get(names.ENV_GIVEN)
    if record is None:
        return {}
    found = ((name, value, environ.get(name)) for name, value in _parse(record)[1])
    return {name: now for name, value, now in found if now is not None and value in (None, now)}


def forget(environ: Mapping[str, str], job: int | None = None, *, slurms_stay: bool = False) -> dict[str, str]:
    """Return the environment without its record and the variables in it, if the record is not of this job.

    `job` None: the record of any job is another one's. `slurms_stay`: Slurm has already set its own variables for this
    job, and they stay, too.
    """
    of = recorded_job(environ)
    if of is None or (job is not None and of == job):
        return dict(environ)
    left_out = {name for name in read(environ) if not (slurms_stay and _is_slurms(name))} | {names.ENV_GIVEN}
    return {name: value for name, value in environ.items() if name not in left_out}


def render(job: int, items: Mapping[str, str | None]) -> str:
    """Return the text of a record: variables with their values; None: the variable is slurm-share's with any value."""
    text = str(job)
    for name, value in items.items():
        item = name if value is None else f"{name}={_escaped(value)}"
        if len(text) + 1 + len(item) < names.GIVEN_MAX_BYTES:
            text += f" {item}"
    return text


def _parse(record: str) -> tuple[int, list[tuple[str, str | None]]]:
    """Return the job and the items, each with its value, or None for any."""
    job, *items = record.split(" ")
    number = int(job) if re.fullmatch("[1-9][0-9]{0,9}", job) else 0
    parts = [item.partition("=") for item in items]
    parts = [(name, equals, value) for name, equals, value in parts if equals or name.startswith(OWN_PREFIXES)]
    found = [(name, _unescaped(value) if equals else None) for name, equals, value in parts if name]
    return number if number <= _JOBS_MOST else 0, found


def _escaped(value: str) -> str:
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in os.fsencode(value))


def _unescaped(text: str) -> str:
    return os.fsdecode(_ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), os.fsencode(text)))


def _is_slurms(name: str) -> bool:
    own = name.startswith("SLURM_") and not name.startswith(names.GIVEN_PREFIX)
    return own or name == names.ENV_VISIBLE_DEVICES
