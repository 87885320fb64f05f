"""Read how many CPUs a user may have: the limits of the user's associations, where there is accounting."""

from __future__ import annotations

import os
import pwd
import re

from ..core.errors import CommandError
from ..core.process import run

_CPUS = re.compile(r"(?:^|,)cpu=([0-9]{1,18})(?=,|$)")


def parse_cpu_limit(text: str, partition: str | None) -> int | None:
    """Return the highest limit of the associations that apply in `partition`; None: one of them has no limit, or there
    is none."""
    limits: list[int] = []
    for line in text.splitlines():
        where, _, tres = line.partition("|")
        if where in ("", partition):
            found = [int(number) for field in tres.split("|") for number in _CPUS.findall(field)]
            if not found:
                return None
            limits.append(min(found))
    return max(limits, default=None)


def read_cpu_limit(partition: str | None) -> int | None:
    """Return the caller's own limit; None as well where there is no accounting, or it does not answer."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
        argv = ["sacctmgr", "-nP", "show", "assoc", f"user={user}", "format=partition,grptres,maxtres"]
        return parse_cpu_limit(run(argv, timeout_s=10), partition)
    except (CommandError, KeyError):
        return None
