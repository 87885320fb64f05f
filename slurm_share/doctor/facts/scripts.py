"""The scripts that slurm.conf names: their files, texts and syntax. None of them is run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from ...core.errors import CommandError
from ...core.process import finish
from . import programs
from .records import FileFact, Mount, Role, SiteScript, SlurmFacts, Unseen, Values

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
        for hook in () if isinstance(hooks, Unseen) else hooks:
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


def _text(file: FileFact | None, root: Path) -> str | Unseen:
    """Return the text of a script; empty for a program in machine code."""
    if file is None or not file.is_file:
        return ""
    try:
        with (root / file.chain[-1].path.lstrip("/")).open("rb") as stream:
            data = stream.read(_MOST_BYTES)
    except OSError as error:
        return Unseen(f"{file.path} cannot be read ({error.strerror})")
    return "" if b"\0" in data[:1024] else data.decode("utf-8", "replace")


def _syntax(file: FileFact, *, has_extglob: bool = False) -> str | Unseen:
    """Return the message of the script's own shell, which with -n reads the commands and runs none."""
    words = _first_line(file)
    if has_extglob and words[-1].rpartition("/")[2] == "bash":
        words = [*words, "-O", "extglob"]  # -n runs no shopt, and bash then takes +(...) for an error
    try:
        done = finish([*words, "-n", file.path], timeout_s=SYNTAX_S, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"})
    except CommandError as error:
        return Unseen(str(error))
    said = next(iter(done.stderr.strip().splitlines()), f"it ended with {done.code}")
    return said.removeprefix(f"{file.path}: ") if done.code else ""


def _first_line(file: FileFact) -> list[str]:
    """Return the shell that the script names, directly or through env."""
    name = file.interpreter or "/bin/sh"
    return [name] if name.rpartition("/")[2] != "env" else [name, "bash"]
