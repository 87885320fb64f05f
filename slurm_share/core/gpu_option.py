"""Parse and write GPU requests: TYPE:COUNT after -g, gpu:TYPE:COUNT in Slurm's gres."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .errors import UsageError, shown


def parse_gpus(text: str) -> tuple[tuple[str, int], ...]:
    """Return (type, count) of each request after -g: `2`, `a100:2`, `gpu:a100:2`, or several with commas.

    The type is "" for any type. Raises UsageError.
    """
    found = []
    for request in text.split(","):
        if re.fullmatch(r"(?:.*:)?0+", request, re.ASCII):
            raise UsageError(
                f"-g {shown(text)}: write 1 GPU or more, or leave -g away: without a triple a job then has no GPU, and "
                "with one whole nodes with all that they have"
            )
        match = re.fullmatch(r"(?:gpu:)?(?:([A-Za-z][\w.+-]*|[1-9]g\.[\w.+-]+):)?([1-9][0-9]{0,3})", request, re.ASCII)
        if match is None or match[1] == "gpu":
            raise UsageError(f"-g {shown(text)}: {shown(request)!r} is not TYPE:COUNT or COUNT, such as volta:2 or 2")
        found.append((match[1] or "", int(match[2])))
    return tuple(found)


def gres(gpus: Iterable[tuple[str, int]]) -> str:
    """Return the GPUs as Slurm's gres text."""
    return ",".join(f"gpu:{kind}:{count}" if kind else f"gpu:{count}" for kind, count in gpus)
