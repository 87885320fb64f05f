"""Read the token with which an operator authenticates to an agent or a Prometheus."""

from __future__ import annotations

import grp
import os
from pathlib import Path

from ...core.errors import StateError, UsageError
from ..agent.token import MIN_BYTES, read_token

INSTEAD = "--source srun needs none and shows your own jobs"


def read(file: str, key: str, least: int = MIN_BYTES) -> str:
    """Return the token in `file`, which the setting `key` names. Raises UsageError, which says who may read it and what
    to do."""
    try:
        return read_token(file, least).decode("ascii")
    except FileNotFoundError as error:
        raise UsageError(
            f"there is no token {file} on this host ({key}); copy it here from a node, readable by operators only "
            f"(0640); {INSTEAD}"
        ) from error
    except OSError as error:
        raise UsageError(
            f"cannot read the token {file} ({error.strerror}); it is for {_who_may(file)}: an administrator can add "
            f"you; {INSTEAD}"
        ) from error
    except StateError as error:
        raise UsageError(f"{error} ({key})") from error


def _who_may(file: str) -> str:
    try:
        found = Path(file).stat()
    except OSError:
        return "root and the operators"
    if not found.st_mode & 0o040:
        return "root" if found.st_uid == 0 else f"the user of number {found.st_uid}"
    try:
        group = grp.getgrgid(found.st_gid).gr_name
    except KeyError:
        group = str(found.st_gid)
    return f"root and the group {group}" if group != "root" or os.getgid() else "root"
