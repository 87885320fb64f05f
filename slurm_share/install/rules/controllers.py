"""Backup controllers: files that they lack, or that differ from this host's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from ...core.installed import LUA


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
