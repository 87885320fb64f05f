"""Processes, as the kernel lists them."""

from __future__ import annotations

import psutil


def read_owner(pid: int) -> str | None:
    """The user a process runs as; None where it is gone or hidden (hidepid)."""
    try:
        return str(psutil.Process(pid).username())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None
