"""Read the release of the Slurm on this host."""

from __future__ import annotations

import re

from ..core.errors import CommandError
from ..core.process import run

_TIMEOUT_S = 30.0


def parse_version(text: str) -> str | None:
    """Return 26.05.5 for `slurm 26.05.5`, the output of `scontrol --version`, or Debian's form of it; None: neither."""
    match = re.search(r"\bslurm\S*\s+(\d+\.\d+\S*)", text)
    return match[1] if match else None


def read_release() -> tuple[int, int] | None:
    """Return the release, such as (24, 11); None: scontrol does not exist here, or names none."""
    try:
        version = parse_version(run(["scontrol", "--version"], timeout_s=_TIMEOUT_S))
    except CommandError:
        return None
    numbers = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(numbers[1]), int(numbers[2])) if numbers else None
