"""Read which folders of the node a job has of its own (job_container.conf, namespace.yaml), for hooks and doctor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ..core.errors import ConfigError, UsageError

BY_DEFAULT = "/tmp,/dev/shm"
"""Default of Dirs in job_container.conf(5) and namespace.yaml(5)."""
KEYS = ("JobContainerType", "NamespaceType")
_VALUE = r"""\b{}\s*[=:]\s*["']?([^\s"'#]+)"""
_DIRS, _BASE, _NODES = (re.compile(_VALUE.format(key), re.IGNORECASE) for key in ("dirs", "basepath", "nodename"))


def file_of(kind: str) -> str:
    """Return the name of the file beside slurm.conf that a plugin reads: namespace/linux, namespace/tmpfs,
    job_container/tmpfs. Empty: it is none of these."""
    family, _, name = kind.lower().partition("/")
    if family not in ("job_container", "namespace") or name in ("", "none"):
        return ""
    return "namespace.yaml" if name == "linux" else "job_container.conf"


def private_folders(text: str, node: str | None = None) -> tuple[str, ...]:
    """Return the folders that each job has of its own, from the text of such a file.

    node: lines about other nodes are left out; None: of all nodes. Of namespace.yaml only the defaults count for a
    node.
    """
    rows = [row for row in _rows(text) if node is None or _is_about(row, node)]
    if any(match[1].lower() == "none" for row in rows if (match := _BASE.search(row))):
        return ()
    found = [match[1] for row in rows if (match := _DIRS.search(row))] or [BY_DEFAULT]
    if node is not None and "node_confs" in text:
        found = found[:1]
    return tuple(dict.fromkeys(folder for one in found for folder in one.split(",") if folder))


def _rows(text: str) -> Iterator[str]:
    for row in text.splitlines():
        if plain := row.partition("#")[0].strip():
            yield plain


def _is_about(row: str, node: str) -> bool:
    match = _NODES.search(row)
    if match is None:
        return True
    from ..core import nodelist  # its import takes time

    try:
        return node in nodelist.parse(match[1])
    except UsageError:
        return True


def hides(folders: tuple[str, ...], path: str) -> str:
    """Return the private folder that hides a path of the node from jobs; "": none does."""
    return next((one for one in folders if f"{path}/".startswith(f"{one.rstrip('/')}/")), "")


def read_private(slurm_conf: Path, node: str) -> tuple[str, tuple[str, ...]]:
    """Return the file that gives jobs folders of their own ("": none does), and the folders. Nothing is private where a
    file cannot be read.

    Most sites use no such plugin: their slurm.conf is searched for its name, and not parsed.
    """
    try:
        data = slurm_conf.read_bytes().lower()
        if not any(word in data for word in (b"jobcontainertype", b"namespacetype", b"include")):
            return "", ()
        from .conf import read_conf

        conf = read_conf(slurm_conf)
        name = next(filter(None, (file_of(conf.value(key) or "") for key in KEYS)), "")
        if not name:
            return "", ()
        file = slurm_conf.with_name(name)
        text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    except (ConfigError, OSError, ValueError):  # ValueError: a name that no file can have
        return "", ()
    return file.name, private_folders(text, node)
