"""Read the ledger and the plans from disk; state.py writes them. The ledger is JSON; plan.py has the text of a plan."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ..core import names
from ..core.errors import StateError
from ..core.paths import Paths
from . import plan as plan_text
from .records import Ledger, Plan

VERSION = 1
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


def read_boot_id(file: Path = BOOT_ID_FILE) -> str:
    """Return this boot's identity. State with another one was written before a restart of the machine."""
    return file.read_text(encoding="ascii").strip()


def read_ledger(paths: Paths, boot_id: str) -> Ledger:
    """Return the ledger; an empty one where there is none, or where it was written before the last boot.

    Raises StateError when it cannot be understood, PermissionError when it is not for the caller's eyes.
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
            raise StateError(file, f"version {version} was written by another release; this one knows {VERSION}")
        return msgspec.json.decode(data, type=_Envelope).ledger
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StateError(file, f"is not a ledger: {error}") from error


class _Versioned(msgspec.Struct):
    version: int


class _Envelope(msgspec.Struct):
    ledger: Ledger


def read_plan(paths: Paths, job_id: int) -> plan_text.Contents | None:
    """Return the job's plan; None where there is none, or none that the caller may read.

    Raises StateError for a torn plan, and for one of another job than its folder's or of another user than its file's
    owner: where the file system has no access lists, the file belongs to the job's user, who can write anything into
    it, but must not speak for anybody else.
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
        raise StateError(str(file), f"speaks of job {plan.job_id} of uid {plan.uid}, and is not theirs")
    return plan


def read_plans(paths: Paths) -> tuple[Plan, ...]:
    """Return every plan of this node that can be understood; refusals are not among them."""
    try:
        jobs = [int(folder.name) for folder in paths.jobs.iterdir() if folder.name.isdecimal()]
    except OSError:
        return ()
    found = []
    for job in sorted(jobs):
        try:
            plan = read_plan(paths, job)
        except StateError:
            continue  # being written, or torn: it says nothing
        if isinstance(plan, Plan):
            found.append(plan)
    return tuple(found)
