"""Find Slurm's name of this node. It may have dots, or differ from the host's name (NodeHostname, slurmd -N)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ..node import process_table
from ..node.cgroups import is_started_by_root, slurp


def read_node_name(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> str:
    """Return Slurm's name of this node.

    It is $SLURMD_NODENAME, which slurmd gives to hooks and tasks, else the name given to the only slurmd here (-N),
    else the node that slurm.conf has for this host, else the short host name, as on a login host.
    """
    environ = os.environ if environ is None else environ
    if name := environ.get("SLURMD_NODENAME"):
        return name
    host = os.uname().nodename
    return _from_files(host, environ, root) or host.partition(".")[0]


def is_node(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> bool:
    """Return whether this host is a compute node of Slurm: it has a name that is not only the host's, or a slurmd."""
    environ = os.environ if environ is None else environ
    if environ.get("SLURMD_NODENAME") or _argv_of_daemons(root / "proc"):
        return True
    return _from_files(os.uname().nodename, environ, root) is not None


def lacks_gpus(node: str, environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> bool:
    """Return whether slurm.conf names this node, and gives it no GPUs; False if it cannot be read."""
    from ..core.errors import ConfigError
    from .conf import read_conf, slurm_conf_path
    from .rules.node_name import has_gpus

    try:
        file = root / str(slurm_conf_path(None, os.environ if environ is None else environ, root)).lstrip("/")
        return has_gpus(read_conf(file), node) is False
    except (ConfigError, OSError):
        return False


def _from_files(host: str, environ: Mapping[str, str], root: Path) -> str | None:
    # imported here: in a job, where programs must start fast, the name is in the environment
    from ..core.errors import ConfigError
    from .conf import read_conf, slurm_conf_path
    from .rules.node_name import name_of_option, node_of_host

    daemons = _argv_of_daemons(root / "proc")
    if len(daemons) == 1 and (name := name_of_option(daemons[0])):
        return name
    try:
        file = root / str(slurm_conf_path(None, environ, root)).lstrip("/")
        return node_of_host(read_conf(file), host)
    except (ConfigError, OSError):
        return None


def _argv_of_daemons(proc: Path) -> list[list[str]]:
    """Return the arguments of each slurmd of root's. A user can start a program with that name, too."""
    found = []
    for pid, (_, name, _, _) in process_table.read(str(proc), ()).items():
        if name in process_table.SLURMD_NAMES and is_started_by_root(proc / str(pid)):
            text = slurp(proc / str(pid) / "cmdline").decode(errors="replace")
            found.append(text.rstrip("\0").split("\0"))
    return found
