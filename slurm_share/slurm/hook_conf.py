"""Read what a hook needs of slurm.conf without a command of Slurm: PrivateData, and what the TaskProlog replaces.

slurmstepd runs TaskProlog after the SPANK plugin (exec_task in task.c), so its values replace the share's, and no
callback of the plugin follows. A hook acts on what is certain (rules/task_prolog.py); doctor's check `task-prolog` also
names what is possible.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..core.errors import ConfigError

_MOST_BYTES = 64 * 1024
"""The longest script that is read, which takes 0.3 s. A TaskProlog runs before every task, and is short."""


def read_replaced(slurm_conf: Path) -> tuple[str, tuple[str, ...]]:
    """Return the path of the TaskProlog that slurm.conf names, and the variables that it replaces for every task. None
    are where there is no such script, or where it cannot be read.

    On a cluster without a TaskProlog, a look for its name in slurm.conf suffices.
    """
    try:
        data = slurm_conf.read_bytes().lower()
        if b"taskprolog" not in data and b"include" not in data:
            return "", ()
        from .conf import read_conf  # its import takes time

        path = read_conf(slurm_conf).value("TaskProlog")
        if not path:
            return "", ()
        file = slurm_conf.parent / path  # Slurm looks there for a name without a folder
        text = _read(file)
        from .rules import task_prolog

        return str(file), task_prolog.replaced(text)
    except (ConfigError, OSError, ValueError):  # ValueError: a name that no file can have
        return "", ()


def _read(file: Path) -> str:
    """Return the text of a script; "": it is no text, or too long."""
    fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as stream:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
            return ""
        data = stream.read(_MOST_BYTES)
    return "" if b"\0" in data else data.decode("utf-8", "replace")


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
