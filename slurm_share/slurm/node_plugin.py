"""Find out whether this node's slurmstepd can load the SPANK plugin, as hooks need it: without a question to Slurm."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..core.errors import ConfigError
from ..core.installed import OBJECT
from ..node import process_table
from ..node.cgroups import slurp
from . import plugin_load
from .conf import read_conf

_STEPD = "slurmstepd"


def named_paths(lines: Iterable[str], folders: Sequence[str]) -> tuple[str, ...]:
    """Return the paths of our plugin in the lines of plugstack.conf.

    `folders`: of PluginDir, in which Slurm looks for a name that is no absolute path (spank.c).
    """
    found = []
    for values in map(str.split, lines):
        name = values[1].strip('"') if len(values) > 1 else ""
        if name.startswith("/") and name.endswith(OBJECT):
            found.append(name)
        elif name == OBJECT and folders:
            found.append(f"{next((one for one in folders if Path(one, name).exists()), folders[0])}/{name}")
    return tuple(dict.fromkeys(found))


def read_problem(slurm_conf: str) -> str:
    """Return why slurmstepd does not load the plugin here; "": it does, or that cannot be found out.

    `slurm_conf`: the path of slurm.conf, which slurmd gives to its hooks.
    """
    try:
        conf = read_conf(Path(slurm_conf))
        file = Path(conf.value("PlugStackConfig") or Path(slurm_conf).with_name("plugstack.conf"))
        if not file.exists():
            return f"there is no {file}"
        lines = [line.text for line in read_conf(file).lines]
    except (ConfigError, OSError):
        return ""
    paths = named_paths(lines, [one for one in (conf.value("PluginDir") or "").split(":") if one])
    if not paths:
        return "" if any(OBJECT in line for line in lines) else f"{file} does not name {OBJECT}"
    program = find_stepd()
    if program is None:
        return ""
    with tempfile.TemporaryDirectory(prefix="slurm-share-") as folder:
        empty = plugin_load.write_conf(folder)
        problems = [plugin_load.read_problem(program, path, empty) for path in paths]
    # one of several entries is enough: the plugin refuses to run twice
    return problems[0] if all(problems) else ""


def read_value(slurm_conf: str, key: str) -> str:
    """Return a setting of slurm.conf; "": it is not set, or the file cannot be read."""
    try:
        return read_conf(Path(slurm_conf)).value(key) or ""
    except (ConfigError, OSError):
        return ""


def find_stepd(proc: str = "/proc") -> str | None:
    """Return the path of slurmstepd, or of slurmd if it is not beside that; None: no slurmd of root's runs here."""
    folder = find_folder(proc)
    if folder is None:
        return None
    return next((path for name in (_STEPD, "slurmd") if is_of_root(path := f"{folder}/{name}")), None)


def find_folder(proc: str = "/proc") -> str | None:
    """Return the folder of the slurmd that runs here; None: none does.

    A user can give any program that name, also one that runs as root (setuid): the folder's programs are checked
    before they are started.
    """
    for pid, (_, name, _, _) in process_table.read(proc, ()).items():
        if name not in process_table.SLURMD_NAMES or b"\nUid:\t0\t0\t0\t0\n" not in slurp(
            Path(proc, str(pid), "status")
        ):
            continue
        try:
            program = os.readlink(f"{proc}/{pid}/exe").removesuffix(" (deleted)")  # noqa: PTH115
        except OSError:
            continue
        if os.path.basename(program).encode() in process_table.SLURMD_NAMES:  # noqa: PTH119
            return os.path.dirname(program)  # noqa: PTH120
    return None


def is_of_root(path: str) -> bool:
    """Return whether a program is there that only root can have written."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return False
    return found.st_uid == 0 and not found.st_mode & 0o022
