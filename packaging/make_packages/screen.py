"""The files of slurm-share-tui: the dashboard and its libraries, apart from what hooks and commands import."""

from __future__ import annotations

import os

from localcluster.progress import Say, stage

from . import base, wheels
from .recipe import HOME, SCREEN, SCREEN_HOME, SITE_PACKAGES, Build


def make(build: Build, say: Say) -> None:
    """Lay out slurm-share-tui after slurm-share."""
    run, show = base.dependencies()
    there = {wheel.name.split("-")[0] for wheel in wheels.fetched(run, build.cache, say)}
    # Resolved together, so that both packages have one release of what both need.
    both = wheels.fetched([*run, *show], build.cache, say)
    with stage(say, "slurm-share-tui"):
        tree = build.tree(SCREEN)
        own = tree / SCREEN_HOME / SITE_PACKAGES / "slurm_share_tui"
        base.environment(tree / SCREEN_HOME)
        (tree / SCREEN_HOME / "bin/python").symlink_to(os.path.relpath(f"/{HOME}/bin/python", f"/{SCREEN_HOME}/bin"))
        base.screen_code(build).rename(own)
        wheels.laid_out([wheel for wheel in both if wheel.name.split("-")[0] not in there], own.parent)
        (own.parent / "slurm-share.pth").write_text(f"/{HOME}/{SITE_PACKAGES}\n")
        base.command(tree, SCREEN_HOME, "llload-tui", "slurm_share.cli.start:llload_tui")
        base.documents(tree, SCREEN)
