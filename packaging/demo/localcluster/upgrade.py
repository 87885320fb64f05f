"""Rolling upgrade: replace a host's files with those of another release while its jobs run.

As with a package manager, the files get new content under the same names: /usr and /opt of the newer root are mounted
over the older ones. /etc, /var and /run stay. Running processes, slurmstepd and its tasks included, go on with the
files they have open; new processes use the newer release. Files that only the older root has stay visible, as another
package's would: a running Python program still finds the modules of its version. Slurm plugins that the newer release
lacks are hidden.

Both plugin objects are on every host, /usr/lib/slurm-share/RELEASE/share_gpu.so, and the link that plugstack.conf names
leads to that of the host's Slurm.
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
"""Activates the newer release's files on a host that was booted with /.ahead."""


@dataclass(frozen=True)
class Ahead:
    """The release to which a cluster can be upgraded."""

    release: str
    now: str
    """Layers of the root that a host boots from: the older release's, and both plugin objects."""
    layers: str
    """Layers of /.ahead: the newer release's over the older one's, and both plugin objects."""
    done: tuple[str, ...] = ()
    """Hosts that are upgraded already."""

    def with_done(self, host: str) -> Ahead:
        """Return a copy with one more upgraded host."""
        return replace(self, done=(*self.done, host))

    @classmethod
    def of_state(cls, state: Mapping[str, Any] | None) -> Ahead | None:
        """Return the record in a cluster's state file; None: the cluster has none."""
        return None if state is None else cls(**{**state, "done": tuple(state["done"])})


def prepare(name: str, older: tuple[Root, str], newer: tuple[Root, str]) -> Ahead:
    """Lay out the plugin objects of both releases. `older` and `newer` are each a root and its layers, in which the
    object may be missing."""
    objects = {root.release: _object(stack) for root, stack in (older, newer)}
    tops = [_objects_layer(name, root.release, objects) for root, _ in (older, newer)]
    _remove_plugins(tops[1], Path(older[0].path), Path(newer[0].path))
    now, ahead = older[1], f"{newer[1]}:{older[1]}"
    return Ahead(newer[0].release, f"{tops[0]}:{now}", f"{tops[1]}:{ahead}")


def _remove_plugins(layer: Path, older: Path, newer: Path) -> None:
    """Hide Slurm's plugins that the newer release lacks, since it would try to load them."""
    for file in older.glob(_PLUGINS):
        name = file.relative_to(older)
        if not (newer / name).exists():
            (layer / name).parent.mkdir(parents=True, exist_ok=True)
            os.mknod(layer / name, stat.S_IFCHR, 0)  # how overlayfs writes "removed" (overlayfs.rst, whiteouts)


def _object(stack: str) -> Path | None:
    """Return the plugin in the uppermost layer that has it; None: the cluster has no plugin."""
    found = (Path(layer + conf.PLUGIN) for layer in stack.split(":"))
    return next((file for file in found if file.exists()), None)


def _objects_layer(name: str, release: str, objects: Mapping[str, Path | None]) -> Path:
    """Make a layer with all objects and the link to that of `release`."""
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
