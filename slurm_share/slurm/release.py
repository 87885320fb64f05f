"""Which Slurm is on this host."""

from __future__ import annotations

import re

from ..core.errors import CommandError
from ..core.process import run

_TIMEOUT_S = 30.0


def parse_version(text: str) -> str | None:
    """26.05.5 of what `scontrol --version` says: `slurm 26.05.5`, or with Debian's name for it; None: it says none."""
    match = re.search(r"\bslurm\S*\s+(\d+\.\d+\S*)", text)
    return match[1] if match else None


def read_release() -> tuple[int, int] | None:
    """(24, 11) and the like; None: there is no scontrol here, or it did not say."""
    try:
        version = parse_version(run(["scontrol", "--version"], timeout_s=_TIMEOUT_S))
    except CommandError:
        return None
    numbers = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(numbers[1]), int(numbers[2])) if numbers else None
