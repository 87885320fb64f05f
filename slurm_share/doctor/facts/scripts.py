"""The scripts that slurm.conf names: their files, texts and syntax. None of them is run."""

from __future__ import annotations

import pwd
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from ...core import numbers
from ...core.errors import CommandError, ConfigError
from ...core.installed import LUA
from ...core.process import finish
from ...slurm.conf import read_conf
from ...slurm.conf_text import ConfText
from . import programs
from .records import FileFact, Mount, Role, SiteScript, SlurmFacts, UnknownFact, Values

SYNTAX_S = 5.0
_MOST_BYTES = 1 << 18
_ON_NODES = ("TaskProlog", "TaskEpilog")
_ON_CONTROLLERS = ("PrologSlurmctld", "EpilogSlurmctld")


def read_scripts(
    facts: SlurmFacts,
    source: Values,
    roles: Collection[Role],
    folder: str,
    root: Path = Path("/"),
    mounts: Sequence[Mount] = (),
) -> tuple[SiteScript, ...]:
    """Return the site's scripts as this host has them, without our own programs.

    folder: of slurm.conf, for relative names. A script that is missing is listed on the hosts that run it: on a
    controller or a compute node. Prolog and Epilog are in `facts`, with the files of patterns.
    """
    found: dict[tuple[str, str], SiteScript] = {}
    for key, hooks in (("Prolog", facts.prologs), ("Epilog", facts.epilogs)):
        for hook in () if isinstance(hooks, UnknownFact) else hooks:
            for file in hook.files:
                found[key, file.path] = _script(key, file.path, file, root)
    for key in (*_ON_NODES, *_ON_CONTROLLERS):
        runs_here = ("compute" if key in _ON_NODES else "controller") in roles
        values = source.get(key.lower(), ())
        for value in values if key in _ON_CONTROLLERS else values[-1:]:
            path = value if value.startswith("/") else f"{folder}/{value}"
            file_fact = programs.read_file_fact(path, root, mounts)
            if file_fact is not None or runs_here:
                found[key, path] = _script(key, path, file_fact, root)
    return tuple(found.values())


def _script(key: str, path: str, file: FileFact | None, root: Path) -> SiteScript:
    text = _text(file, root)
    script = SiteScript(key, path, file, text)
    if file is None or not script.is_shell or not file.interpreter_is_there or root != Path("/"):
        return script
    return SiteScript(key, path, file, text, _syntax(file, has_extglob="extglob" in script.lines))


def _text(file: FileFact | None, root: Path) -> str | UnknownFact:
    """Return the text of a script; empty for a program in machine code."""
    if file is None or not file.is_file:
        return ""
    try:
        with (root / file.chain[-1].path.lstrip("/")).open("rb") as stream:
            data = stream.read(_MOST_BYTES)
    except OSError as error:
        return UnknownFact(f"{file.path} cannot be read ({error.strerror})")
    return "" if b"\0" in data[:1024] else data.decode("utf-8", "replace")


def _syntax(file: FileFact, *, has_extglob: bool = False) -> str | UnknownFact:
    """Return the message of the script's own shell, which with -n reads the commands and runs none."""
    words = _first_line(file)
    if has_extglob and words[-1].rpartition("/")[2] == "bash":
        words = [*words, "-O", "extglob"]  # -n runs no shopt, and bash then takes +(...) for an error
    try:
        done = finish([*words, "-n", file.path], timeout_s=SYNTAX_S, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"})
    except CommandError as error:
        return UnknownFact(str(error))
    said = next(iter(done.stderr.strip().splitlines()), f"it ended with {done.code}")
    return said.removeprefix(f"{file.path}: ") if done.code else ""


def _first_line(file: FileFact) -> list[str]:
    """Return the shell that the script names, directly or through env."""
    name = file.interpreter or "/bin/sh"
    return [name] if name.rpartition("/")[2] != "env" else [name, "bash"]


OTHER_FILES = ("gres.conf", "cgroup.conf", "job_submit.lua", "cli_filter.lua", "job_container.conf", "namespace.yaml",
          "topology.conf", "topology.yaml", "oci.conf", "acct_gather.conf")  # fmt: skip
"""Files next to slurm.conf that slurmd, slurmctld and slurmstepd read (slurm.conf(5), FILES)."""
_USER = re.compile(r"([^()]+?)(?:\(([0-9]{1,10})\))?")


def read_owned(
    folder: str, plugstack: str, text: ConfText | UnknownFact, root: Path = Path("/")
) -> tuple[FileFact, ...]:
    """Return slurm.conf and plugstack.conf with all that they include, the folders of include patterns, the files next
    to them, and this package's job_submit.lua. Missing files are left out."""
    seen = () if isinstance(text, UnknownFact) else (_from(path, root) for path in text.files)
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
