"""A site in which not every node has the package: hooks that do without it, and who has to have the feature."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from ...core.installed import EPILOG, PROLOG
from ...core.nodelist import fold
from ...slurm.conf_text import Edit
from .choices import PARTIAL

MARK = "# slurm-share: starts the hook where the package is, and ends with 0 where it is not"
WRAPPERS = {"Prolog": "slurm-share-prolog.sh", "Epilog": "slurm-share-epilog.sh"}
"""Beside slurm.conf, and named without a folder: so it is where slurm.conf is, on a shared file system, as a copy on
each host, and, from 23.11 on, sent to the nodes with slurm.conf by a configless controller."""
MODE = 0o755


def wrapper(key: str) -> str:
    """The text of the wrapper for Prolog or Epilog, without its last newline."""
    hook = PROLOG if key == "Prolog" else EPILOG
    return f'#!/bin/sh\n{MARK}\nhook={hook}\n[ ! -x "$hook" ] || exec "$hook" "$@"'


def is_wrapper(name: str, text: str) -> bool:
    """Whether a file is a wrapper of ours, of this release or another."""
    return name.rpartition("/")[2] in WRAPPERS.values() and MARK in text.split("\n")


def starts_ours(values: Iterable[str]) -> bool:
    """Whether one of these values of Prolog= and Epilog= starts our hook, by itself or by a wrapper: a node that lacks
    the file is drained by its next job."""
    return any(value in (PROLOG, EPILOG) or value.rpartition("/")[2] in WRAPPERS.values() for value in values)


def wrapper_edits(folder: str, texts: Mapping[str, str]) -> Iterator[Edit]:
    """The wrappers that are not there, each a whole file."""
    for key, name in WRAPPERS.items():
        if f"{folder}/{name}" not in texts:
            yield Edit(f"{folder}/{name}", wrapper(key))


def foreign_wrappers(folder: str, texts: Mapping[str, str]) -> Iterator[str]:
    """Files in the place of a wrapper that are none: sentences."""
    for name in WRAPPERS.values():
        file = f"{folder}/{name}"
        if file in texts and not is_wrapper(file, texts[file]):
            yield f"{file} is not the wrapper that slurm-share writes; move it away, then write this again"


def unrunnable_wrappers(files: Iterable[str]) -> Iterator[str]:
    """Wrappers without a mode to be run: sentences."""
    for file in sorted(files):
        yield (
            f"{file} has no mode to be run, and Slurm drains each node whose Prolog or Epilog it cannot run: "
            f"chmod 755 {shlex.quote(file)}, then write this again"
        )


class NodesSeen(Struct, frozen=True):
    """Which nodes have the package, as far as they could be asked."""

    having: tuple[str, ...] = ()
    lacking: Mapping[str, tuple[str, ...]] = {}
    """With what is not there."""
    silent: tuple[str, ...] = ()
    """Did not answer."""


def node_refusals(seen: NodesSeen, taken: Collection[str], feature: str, featured: Sequence[str]) -> Iterator[str]:
    """Why nothing may be written: sentences. `featured`: the nodes that have the feature."""
    if PARTIAL not in taken:
        if seen.lacking:
            what = ", ".join(dict.fromkeys(file for files in seen.lacking.values() for file in files))
            yield (
                f"{fold(seen.lacking)} lack {what}: anybody's next job there would drain the node. Install "
                f"slurm-share and slurm-share-spank there first; where they are not to have them: --with {PARTIAL}"
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
    """What is worth a look, and keeps nobody from writing."""
    if seen.silent:
        yield (
            f"not checked, for they did not answer: {fold(seen.silent)}. A node without the package is drained by its "
            "next job"
            if PARTIAL not in taken
            else f"not checked, for they did not answer: {fold(seen.silent)}"
        )
    if PARTIAL in taken:
        yield (
            f"{' and '.join(WRAPPERS.values())} have to be beside slurm.conf on each node before the reconfigure, with "
            "mode 0755: a configless controller sends them, on a shared file system they are there; elsewhere copy "
            "them with slurm.conf, or put the text above into the nodes' image"
        )
    if PARTIAL in taken and seen.lacking:
        yield f"without the package, and left alone: {fold(seen.lacking)}"
    if PARTIAL in taken and feature and (left := [node for node in seen.having if node not in featured]):
        yield f"{fold(left)} have the package and not the feature {feature}: no shared job comes there"
