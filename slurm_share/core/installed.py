"""Where the packages install the files that Slurm's configuration names, and the version that is installed."""

from __future__ import annotations

from functools import cache

HOME = "/opt/slurm-share"
LIB = "/usr/lib/slurm-share"
OBJECT = "share_gpu.so"
PLUGIN = f"{LIB}/{OBJECT}"
"""A link to the object for the Slurm of this host."""
CHOOSER = "/usr/sbin/slurm-share-plugin"
"""Makes that link, and builds an object where none fits."""
LUA = f"{LIB}/job_submit.lua"
WHEELS = "/usr/share/slurm-share/wheels"
"""slurm_share as a wheel, for users' own environments."""
PROLOG_NAME, EPILOG_NAME = "slurm-share-prolog", "slurm-share-epilog"
PROLOG, EPILOG = f"{HOME}/bin/{PROLOG_NAME}", f"{HOME}/bin/{EPILOG_NAME}"


@cache
def version() -> str:
    """Return the version of slurm-share; empty if it is not installed."""
    import importlib.metadata  # 20 ms, which most programs that import this module do not need

    try:
        return importlib.metadata.version("slurm-share")
    except importlib.metadata.PackageNotFoundError:
        return ""
