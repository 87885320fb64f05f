"""The one line of slurm.conf that a hook wants, and may not ask a Slurm command for."""

from __future__ import annotations

import re
from pathlib import Path

_LINE = re.compile(r'^\s*(PrivateData\s*=|Include\s)\s*("[^"\n]*"|\S*)', re.IGNORECASE | re.MULTILINE)
_DEPTH = 8


def read_hides_jobs(file: Path) -> bool:
    """Whether PrivateData keeps one user from seeing another's jobs; True as well where that cannot be found out.

    `jobs` and `all` do; Slurm looks for the words anywhere in the value (read_config.c, "PrivateData").
    """
    try:
        return _hides(file, _DEPTH)
    except (OSError, UnicodeDecodeError, RecursionError):
        return True


def _hides(file: Path, depth: int) -> bool:
    if depth == 0:
        raise RecursionError
    text = file.read_text(encoding="utf-8").replace("\\\n", "")  # a line may go on in the next one
    for key, value in _LINE.findall(text):
        if key.lower().startswith("include"):
            # Slurm puts %c, the cluster's name, into it; a name that cannot be read hides, as above.
            if _hides(file.parent / value.strip('"'), depth - 1):
                return True
        elif any(word in value.lower() for word in ("job", "all")):
            return True
    return False
