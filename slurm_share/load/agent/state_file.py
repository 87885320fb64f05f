"""Save the agent's state across a restart, in one file of its runtime folder, which a reboot empties."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ...core import files
from ...core.errors import StateError

_MAGIC = b"slurm-share-agent 1"
MAX_BYTES = 64 * 1024 * 1024


def write(file: Path, data: bytes) -> None:
    """Replace the file atomically, mode 0600 because it has all users' peaks. Raises OSError."""
    # One temporary name, of which a killed agent leaves at most one file: there is one agent at a time.
    files.write(file, _MAGIC + b" " + _digest(data) + b"\n" + data, new=file.with_name(f".{file.name}.new"))


def read(file: Path) -> bytes | None:
    """Return the data that was written last; None without a file. Raises StateError for a file that is damaged, belongs
    to another user, or cannot be read."""
    whole = files.read(file, MAX_BYTES)
    if whole is None:
        return None
    head, newline, data = whole.partition(b"\n")
    if not newline or head != _MAGIC + b" " + _digest(data):
        raise StateError(str(file), "is damaged, or of another release")
    return data


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode("ascii")
