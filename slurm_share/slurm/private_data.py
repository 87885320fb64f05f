"""Read PrivateData from slurm.conf, for a hook, which may not ask a Slurm command for it."""

from __future__ import annotations

from pathlib import Path

from ..core.errors import ConfigError


def read_hides_jobs(file: Path) -> bool:
    """Return whether PrivateData keeps one user from seeing another's jobs; True as well where that cannot be found
    out.

    `jobs` and `all` do; Slurm looks for the words anywhere in the value (read_config.c, "PrivateData"). Where there are
    several values any of them counts: too little is told rather than too much.
    """
    # Here and not above: a Prolog that refuses nobody, as nearly all do, shall not wait for it.
    from .conf import read_conf

    try:
        conf = read_conf(file)
    except (ConfigError, OSError, ValueError):  # ValueError: a name or pattern that no file can have
        return True
    if conf.missing:
        return True
    return any(keyword in value.lower() for value in conf.values("PrivateData") for keyword in ("job", "all"))
