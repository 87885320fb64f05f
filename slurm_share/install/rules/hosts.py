"""Other hosts: hook wrappers for nodes without the package, what nodes and backup controllers lack or have."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field

from ...core.installed import EPILOG, LUA, PROLOG
from ...core.nodelist import fold
from ...slurm.conf_text import Edit
from .choices import PARTIAL

MARK = "# slurm-share: starts the hook where the package is, and ends with 0 where it is not"
WRAPPERS = {"Prolog": "slurm-share-prolog.sh", "Epilog": "slurm-share-epilog.sh"}
"""Names of the wrappers. They lie beside slurm.conf and are named without a folder, so they are found on a shared file
system, in a copy on each host and, from Slurm 23.11 on, among the files that a configless controller sends.
"""
MODE = 0o755


def wrapper(key: str) -> str:
    """Return the text of the wrapper for Prolog or Epilog, without the final newline."""
    hook = PROLOG if key == "Prolog" else EPILOG
    return f'#!/bin/sh\n{MARK}\nhook={hook}\n[ ! -x "$hook" ] || exec "$hook" "$@"'


def is_wrapper(name: str, text: str) -> bool:
    """Return whether a file is a wrapper of this or another release of ours."""
    return name.rpartition("/")[2] in WRAPPERS.values() and MARK in text.split("\n")


def starts_ours(values: Iterable[str]) -> bool:
    """Return whether one of these values of Prolog= and Epilog= starts our hook, directly or by a wrapper: the next job
    drains a node that lacks the file."""
    return any(value in (PROLOG, EPILOG) or value.rpartition("/")[2] in WRAPPERS.values() for value in values)


def wrapper_edits(folder: str, texts: Mapping[str, str]) -> Iterator[Edit]:
    """Yield the missing wrappers, each as a whole file."""
    for key, name in WRAPPERS.items():
        if f"{folder}/{name}" not in texts:
            yield Edit(f"{folder}/{name}", wrapper(key))


def foreign_wrappers(folder: str, texts: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each file that has a wrapper's name but is not ours."""
    for name in WRAPPERS.values():
        file = f"{folder}/{name}"
        if file in texts and not is_wrapper(file, texts[file]):
            yield f"{file} is not the wrapper that slurm-share writes; move it away, then run this again"


def unrunnable_wrappers(files: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each wrapper that is not executable."""
    for file in sorted(files):
        yield (
            f"{file} is not executable, and Slurm drains each node whose Prolog or Epilog it cannot run: "
            f"chmod 755 {shlex.quote(file)}, then run this again"
        )


class NodesSeen(Struct, frozen=True):
    """Which nodes have the package, as far as they answered."""

    having: tuple[str, ...] = ()
    lacking: Mapping[str, tuple[str, ...]] = {}
    """Node -> files that it lacks."""
    silent: tuple[str, ...] = field(default=(), name="not_checked")
    """Nodes that did not answer."""


def node_refusals(seen: NodesSeen, taken: Collection[str], feature: str, featured: Sequence[str]) -> Iterator[str]:
    """Yield the reasons not to write. `featured`: nodes with the feature."""
    if PARTIAL not in taken:
        if seen.lacking:
            what = ", ".join(dict.fromkeys(file for files in seen.lacking.values() for file in files))
            yield (
                f"{fold(seen.lacking)} lack{'s' * (len(seen.lacking) == 1)} {what}: anybody's next job there would "
                "drain the node. Install slurm-share and slurm-share-spank there first; where they are not to have "
                f"them: --with {PARTIAL}"
            )
        return
    if not feature:
        yield (
            f"--with {PARTIAL}: shared jobs must keep to the nodes with the package; give those a feature in "
            'slurm.conf (NodeName=... Feature=share) and write node_feature = "share" into /etc/slurm-share/config.toml'
        )
        return
    if not featured:
        yield f"--with {PARTIAL}: no node has the feature {feature} of node_feature: no shared job would run"
    if wrong := [node for node in seen.lacking if node in featured]:
        yield (
            f"{fold(wrong)} have the feature {feature} and lack the package: shared jobs would fail there; take the "
            "feature from their line, or install the package"
        )


def node_notes(seen: NodesSeen, taken: Collection[str], feature: str, featured: Sequence[str]) -> Iterator[str]:
    """Yield notes for the administrator that do not block writing."""
    if seen.silent:
        yield (
            f"not checked, since they did not answer: {fold(seen.silent)}"
            + ("" if PARTIAL in taken else ". The next job on a node without the package drains it")
        )
    if PARTIAL in taken:
        yield (
            f"{' and '.join(WRAPPERS.values())} must be beside slurm.conf on each node before the reconfigure, with "
            "mode 0755: a configless controller sends them, on a shared file system they are there; elsewhere copy "
            "them with slurm.conf, or put the text above into the nodes' image"
        )
    if PARTIAL in taken and seen.lacking:
        yield f"without the package, and left alone: {fold(seen.lacking)}"
    if PARTIAL in taken and feature and (left := [node for node in seen.having if node not in featured]):
        yield f"{fold(left)} have the package and not the feature {feature}: no shared job comes there"


class ControllersSeen(Struct, frozen=True):
    """The other controllers, as far as they answered."""

    others: tuple[str, ...] = ()
    is_one_here: bool = True
    """Whether this host is a controller."""
    without_lua: tuple[str, ...] = ()
    """Controllers that answered and lack the package's job_submit.lua."""
    differing: Mapping[str, tuple[str, ...]] = {}
    """Host -> Slurm files that differ from those on this host."""
    silent: tuple[str, ...] = ()


def controller_refusals(seen: ControllersSeen) -> Iterator[str]:
    """Yield the reasons not to write."""
    if seen.without_lua:
        yield (
            f"{', '.join(seen.without_lua)}: a controller that lacks {LUA}: when it takes over, jobs that ask to "
            "share run as ordinary ones; install slurm-share-spank there first"
        )


def controller_notes(seen: ControllersSeen, files: Sequence[str]) -> Iterator[str]:
    """Yield notes for the administrator. `files`: files to be written."""
    if not seen.others:
        return
    if not seen.is_one_here:
        yield "this host is not in SlurmctldHost: copy what is written here to the controllers"
    if files:
        yield (
            f"other controllers: {', '.join(seen.others)}. Each needs the package slurm-share-spank and, before the "
            f"reconfigure, the same {', '.join(files)} (on a shared file system they are)"
        )
    for host, others in seen.differing.items():
        yield f"on {host} {', '.join(others)} differs from this host's: copy the right one to the other host"
    if seen.silent:
        yield f"other controllers that did not answer, and were not checked: {', '.join(seen.silent)}"
