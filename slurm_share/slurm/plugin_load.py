"""Try whether Slurm's programs can load the SPANK plugin's object, each in a process of its own."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ..core.errors import CommandError
from ..core.process import Finished, exchange
from ..core.records import Owner

LOAD_S = 10.0
"""Seconds in which a program has to end. It takes milliseconds."""
NOBODY = Owner(65534, 65534)
"""The user `nobody` of Linux distributions: srun and sbatch load the plugin as a user."""
_SAID = re.compile(r"cannot be preloaded \((.*)\): ignored|symbol lookup error: \S+: (.*)")
_NEEDED = re.compile(r"^\S+: (.*) \(required by \S+\)$")
_MISSING = re.compile(r"error while loading shared libraries: (.*)")
_CONF = "ClusterName=none\nSlurmctldHost=localhost\n"


def write_conf(folder: str) -> str:
    """Write a slurm.conf with which Slurm's programs start and ask nobody; return its path."""
    file = Path(folder, "slurm.conf")
    file.write_text(_CONF, encoding="ascii")
    Path(folder).chmod(0o755)
    file.chmod(0o644)
    return str(file)


def read_problem(program: str, path: str, conf: str, owner: Owner | None = None) -> str:
    """Return why a Slurm program, run by `owner` if the caller is root, does not load the object; "": it does.

    The dynamic loader loads the object into the program and resolves all symbols at once (ld.so(8), LD_PRELOAD and
    LD_BIND_NOW): Slurm calls dlopen(3) with RTLD_LAZY, and a symbol that is missing ends the program at its first use.
    The program has the symbols that a plugin needs, and exits at once with -V, slurmstepd with an error. What it also
    says or does without the object is no sign of a problem of the object.
    """
    env = {"PATH": os.defpath, "SLURM_CONF": conf, "LC_ALL": "C", "LD_BIND_NOW": "1"}
    try:
        done = _run(program, {**env, "LD_PRELOAD": path}, owner)
        why = parse(done, path)
        if done.code == 0 and not why:
            return ""
        without = _run(program, env, owner)
    except CommandError as error:
        # a site may keep a program from users; then it is not for them to load the object
        is_closed = owner is not None and isinstance(error.__cause__, PermissionError)
        return "" if is_closed else str(error)
    if why:
        return "" if parse(without, path) == why else why
    return f"it ends with {done.code} with the object{_last(done)}" if without.code == 0 else ""


def _run(program: str, env: Mapping[str, str], owner: Owner | None) -> Finished:
    return exchange([program, "-V"], timeout_s=LOAD_S, env=env, owner=owner)


def parse(done: Finished, path: str) -> str:
    """Return the reason that the dynamic loader gives for not loading the object; "": it gives none."""
    if done.code < 0:
        return f"it is ended by signal {-done.code} with the object"
    for line in done.stderr.splitlines():
        if path in line and (match := _SAID.search(line)):
            return match[1] or match[2]
        if path in line and (match := _NEEDED.search(line)):
            return match[1]
        if match := _MISSING.search(line):
            return match[1]
    return ""


def _last(done: Finished) -> str:
    lines = done.stderr.split("\n")
    said = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {said[:200]}" if said else ""
