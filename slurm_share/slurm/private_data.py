"""Read PrivateData from slurm.conf, for hooks, which must not start a command of Slurm."""

from __future__ import annotations

from pathlib import Path

from ..core.errors import ConfigError


def read_hides_jobs(file: Path) -> bool:
    """Return whether PrivateData hides a user's jobs from others; True as well where the file cannot be read.

    `jobs` and `all` do. Slurm looks for the words anywhere in the value (read_config.c, "PrivateData"). Of several
    values any counts, so that no job is shown by mistake.
    """
    # Imported here: a Prolog that refuses nobody, as nearly all do, does not need it.
    from .conf import read_conf

    try:
        conf = read_conf(file)
    except (ConfigError, OSError, ValueError):  # ValueError: a name or pattern that no file can have
        return True
    if conf.missing:
        return True
    return any(keyword in value.lower() for value in conf.values("PrivateData") for keyword in ("job", "all"))
