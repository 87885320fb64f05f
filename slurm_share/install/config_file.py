"""Writes the line of `slurm-share off` into config.toml, and takes it out again."""

from __future__ import annotations

from pathlib import Path

from ..core import config
from ..core.errors import UsageError
from ..core.paths import CONFIG_FILE
from ..core.settings import Configuration
from ..share import switch
from . import files


def write_switched_off(before: Configuration, *, off: bool) -> Configuration:
    """Write the line, or take it out, and return what the file says then. Raises StateError where it cannot be written,
    UsageError where the line cannot be found."""
    if before.settings.switched_off == off:
        return before
    file = Path(before.file or CONFIG_FILE)
    try:
        old: bytes | None = file.read_bytes()
    except FileNotFoundError:
        old = None
    new = switch.switched((old or b"").decode("utf-8"), off=off)
    if new is None:
        raise UsageError(
            f"{file}: write `switched_off = {str(off).lower()}` there by hand: it stands in no usual place"
        )
    files.replace(str(file), old, new.encode())
    return config.load()
