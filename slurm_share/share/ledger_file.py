"""Read the ledger, which is JSON, and the plans from disk; state.py writes them, plan.py has the format of a plan."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ..core import names, numbers
from ..core.errors import StateError, quoted, shown
from ..core.paths import Paths
from . import plan as plan_text
from .records import Ledger, Plan

VERSION = 1
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


def read_boot_id(file: Path = BOOT_ID_FILE) -> str:
    """Return the kernel's id of this boot. State with another id was written before the machine's last boot."""
    return file.read_text(encoding="ascii").strip()


def read_ledger(paths: Paths, boot_id: str) -> Ledger:
    """Return the ledger; an empty one if there is none, or it was written before the last boot.

    Raises StateError if it cannot be parsed, PermissionError if the caller may not read it.
    """
    try:
        data = paths.ledger.read_bytes()
    except FileNotFoundError:
        return Ledger(boot_id)
    read = parse_ledger(data, str(paths.ledger))
    return read if read.boot_id == boot_id else Ledger(boot_id)


def render_ledger(ledger: Ledger) -> bytes:
    """Return the ledger as JSON with its version."""
    return msgspec.json.encode({"version": VERSION, "ledger": ledger})


def parse_ledger(data: bytes, file: str = "ledger") -> Ledger:
    """Return the ledger in `data`. Raises StateError, naming `file`, for anything `render_ledger` does not write."""
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if version != VERSION:
            raise StateError(
                file, f"version {quoted(version, 20)} is of another release; this one reads version {VERSION}"
            )
        return msgspec.json.decode(data, type=_Envelope).ledger
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StateError(file, f"is not a ledger: {shown(str(error), 200)}") from error


class _Versioned(msgspec.Struct):
    version: int


class _Envelope(msgspec.Struct):
    ledger: Ledger


def read_plan(paths: Paths, job_id: int) -> plan_text.Contents | None:
    """Return the job's plan; None if there is none, or the caller may not read it.

    Raises StateError for a truncated plan, and for one with another job id than its folder's or another user than its
    file's owner: on a file system without access lists the job's user owns the file and can write anything into it.
    """
    file = paths.plan(job_id)
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            owner = os.fstat(stream.fileno()).st_uid
            data = stream.read(names.PLAN_MAX_BYTES + 1)
    except (FileNotFoundError, PermissionError):
        return None
    except OSError as error:
        raise StateError(str(file), f"is not a plan: {error.strerror}") from error
    try:
        plan = plan_text.parse(data.decode("ascii"), str(file))
    except UnicodeDecodeError as error:
        raise StateError(str(file), "is not a plan: not ASCII") from error
    if plan.job_id != job_id or owner not in (0, plan.uid, os.geteuid()):
        raise StateError(str(file), f"names job {plan.job_id} of uid {plan.uid}, but belongs to another job or user")
    return plan


def read_plans(paths: Paths) -> tuple[Plan, ...]:
    """Return every plan on this node that can be parsed, without refusals and notes of unshared jobs."""
    try:
        listed = [numbers.whole(folder.name, numbers.UINT32_MOST) for folder in paths.jobs.iterdir()]
    except OSError:
        return ()
    found = []
    for job in sorted(number for number in listed if number is not None):
        try:
            plan = read_plan(paths, job)
        except StateError:
            continue  # damaged
        if isinstance(plan, Plan):
            found.append(plan)
    return tuple(found)
