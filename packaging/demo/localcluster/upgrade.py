"""A rolling upgrade: another release's files in the place of a host's own, under its running jobs.

A host is upgraded as a package manager does it, by other files under the same names: /usr and /opt of the newer root
are mounted over the older ones. /etc, /var and /run stay. What runs goes on with the files it has open, a slurmstepd
and its tasks as well; what starts from then on is the newer release's. Files that only the older root has stay in sight
underneath, as another package's would: a Python program that runs still finds the modules of its own version. Slurm's
plugins that are no more are gone.

Both plugin objects are on every host, /usr/lib/slurm-share/RELEASE/share_gpu.so, and the link that plugstack.conf names
leads to the one of the host's Slurm.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import conf, paths
from .records import Root

_PLUGINS = "usr/lib/*/slurm-wlm/*.so"
EXCHANGE = """\
for part in usr opt; do
    mountpoint -q "/$part" || mount --bind "/.ahead/$part" "/$part"
done
ldconfig  # the list of libraries is in /etc
"""
"""The newer release's files, on a host that was booted with /.ahead."""


@dataclass(frozen=True)
class Ahead:
    """What a cluster can be upgraded to."""

    release: str
    now: str
    """Layers of the root that a host boots from: the older release's, and both plugin objects."""
    layers: str
    """Layers of what is seen in /.ahead: the newer release's over the older one's, and both plugin objects."""
    done: tuple[str, ...] = ()
    """Hosts that are upgraded."""

    def with_done(self, host: str) -> Ahead:
        """One host more is upgraded."""
        return replace(self, done=(*self.done, host))

    @classmethod
    def of_state(cls, state: Mapping[str, Any] | None) -> Ahead | None:
        """As it stands in a cluster's state file."""
        return None if state is None else cls(**{**state, "done": tuple(state["done"])})


def prepare(name: str, older: tuple[Root, str], newer: tuple[Root, str]) -> Ahead:
    """Lay out the plugin objects of both releases; each is a root and its layers, without which no object is there."""
    objects = {root.release: _object(stack) for root, stack in (older, newer)}
    tops = [_objects_layer(name, root.release, objects) for root, _ in (older, newer)]
    _remove_plugins(tops[1], Path(older[0].path), Path(newer[0].path))
    now, ahead = older[1], f"{newer[1]}:{older[1]}"
    return Ahead(newer[0].release, f"{tops[0]}:{now}", f"{tops[1]}:{ahead}")


def _remove_plugins(layer: Path, older: Path, newer: Path) -> None:
    """Hide Slurm's own plugins that the newer release does not have: it would try to load them."""
    for file in older.glob(_PLUGINS):
        name = file.relative_to(older)
        if not (newer / name).exists():
            (layer / name).parent.mkdir(parents=True, exist_ok=True)
            os.mknod(layer / name, stat.S_IFCHR, 0)  # how overlayfs writes "removed" (overlayfs.rst, whiteouts)


def _object(stack: str) -> Path | None:
    """The plugin in the uppermost layer that has it; None: the cluster is without."""
    found = (Path(layer + conf.PLUGIN) for layer in stack.split(":"))
    return next((file for file in found if file.exists()), None)


def _objects_layer(name: str, release: str, objects: Mapping[str, Path | None]) -> Path:
    """A layer with all objects, and the link to that of `release`."""
    layer = paths.run_dir(name) / f"objects-{release}"
    link = Path(f"{layer}{conf.PLUGIN}")
    shutil.rmtree(layer, ignore_errors=True)
    link.parent.mkdir(parents=True)
    for each, file in objects.items():
        if file is not None:
            (link.parent / each).mkdir()
            shutil.copyfile(file, link.parent / each / link.name)
    if objects[release] is not None:
        link.symlink_to(f"{release}/{link.name}")
    return layer
