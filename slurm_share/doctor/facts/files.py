"""Owners of the files that tell Slurm what to run as root."""

from __future__ import annotations

import pwd
import re
from pathlib import Path

from ...core import numbers
from ...core.errors import ConfigError
from ...core.installed import LUA
from ...slurm.conf import read_conf
from ...slurm.conf_text import ConfText
from . import programs
from .records import FileFact, Unseen

OTHER_FILES = ("gres.conf", "cgroup.conf", "job_submit.lua", "cli_filter.lua", "job_container.conf", "namespace.yaml",
          "topology.conf", "topology.yaml", "oci.conf", "acct_gather.conf")  # fmt: skip
"""Files next to slurm.conf that slurmd, slurmctld and slurmstepd read (slurm.conf(5), FILES)."""
_USER = re.compile(r"([^()]+?)(?:\(([0-9]{1,10})\))?")


def read_owned(folder: str, plugstack: str, text: ConfText | Unseen, root: Path = Path("/")) -> tuple[FileFact, ...]:
    """Return slurm.conf and plugstack.conf with all that they include, the folders of include patterns, the files next
    to them, and this package's job_submit.lua. Missing files are left out."""
    seen = () if isinstance(text, Unseen) else (_from(path, root) for path in text.files)
    paths = [*seen, *_plugstack(plugstack, root), *(f"{folder}/{name}" for name in OTHER_FILES), LUA]
    found = (programs.read_file_fact(path, root) for path in dict.fromkeys(paths))
    return tuple(one for one in found if one is not None)


def _plugstack(path: str, root: Path) -> list[str]:
    """Return plugstack.conf's files, and the folder of an include pattern even if it is empty."""
    file = root / path.lstrip("/")
    try:
        stack = read_conf(file)
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except (ConfigError, OSError):
        return [path]
    wanted = (line.split()[1].strip('"') for line in lines if re.match(r"\s*include\s+\S", line, re.IGNORECASE))
    folders = {str((file.parent / one if not one.startswith("/") else root / one.lstrip("/")).parent) for one in wanted}
    return [path, *(_from(one, root) for one in stack.files), *sorted(_from(Path(one), root) for one in folders)]


def _from(path: Path, root: Path) -> str:
    """Return a path as seen by a process whose root folder that is."""
    return f"/{path.relative_to(root)}" if path.is_relative_to(root) else str(path)


def uid_of(said: str) -> int:
    """Return the uid of SlurmUser: `slurm` in slurm.conf, `slurm(64030)` from the controller.

    Returns root's for a user that this host does not know, who owns nothing trusted here.
    """
    match = _USER.fullmatch(said.strip())
    if match is None:
        return 0
    if match[2]:
        return int(match[2])
    try:
        number = numbers.whole(match[1], numbers.UINT32_MOST)
        return pwd.getpwnam(match[1]).pw_uid if number is None else number
    except (KeyError, ValueError):  # ValueError: a NUL in the name
        return 0
