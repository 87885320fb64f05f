"""Paths of the installed files that Slurm's configuration names, and the installed version."""

from __future__ import annotations

from functools import cache

HOME = "/opt/slurm-share"
LIB = "/usr/lib/slurm-share"
OBJECT = "share_gpu.so"
PLUGIN = f"{LIB}/{OBJECT}"
"""Link to the plugin that was built for the Slurm release of this host."""
CHOOSER = "/usr/sbin/slurm-share-plugin"
"""Program that makes that link, and builds the plugin if none fits."""
LUA = f"{LIB}/job_submit.lua"
WHEELS = "/usr/share/slurm-share/wheels"
"""Folder with slurm_share as a wheel, for users' own environments."""
PROLOG_NAME, EPILOG_NAME = "slurm-share-prolog", "slurm-share-epilog"
PROLOG, EPILOG = f"{HOME}/bin/{PROLOG_NAME}", f"{HOME}/bin/{EPILOG_NAME}"


@cache
def version() -> str:
    """Return the version of slurm-share; empty if it is not installed."""
    import importlib.metadata  # takes 20 ms, and most programs that import this module do not need it

    try:
        return importlib.metadata.version("slurm-share")
    except importlib.metadata.PackageNotFoundError:
        return ""
