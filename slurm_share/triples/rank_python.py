"""Find the Python for the ranks of `llsub --spmd`, and check that it has our package."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from ..core.errors import CommandError, UsageError, shown
from ..core.process import finish
from ..spmd.names import VERSION
from .rules import together

ENV_PYTHON = "LLSUB_PYTHON"
"""Variable with the path or name of the Python for programs of `llsub --spmd`."""
OUR_PREFIX = "/opt/slurm-share"
"""Prefix of the packages' own Python, which is not for users' programs."""
INSTALL = "slurm-share pip-line"
"""Command that prints the line that installs the package."""
CHECK_S = 20.0
"""Most seconds of the check, for a Python on a slow file server. After that, the ranks report what is missing."""
_CHECK = "from slurm_share.spmd.names import VERSION; print('version', VERSION)"


def find(environ: Mapping[str, str]) -> str:
    """Return the absolute path of the user's Python: LLSUB_PYTHON, else the first python3, else python, of PATH.

    Links are not resolved, because a virtual environment's Python is a link. Raises UsageError if there is none.
    """
    asked = environ.get(ENV_PYTHON)
    if asked:
        found = shutil.which(Path(asked).expanduser(), path=environ.get("PATH", os.defpath))
        if found is None:
            raise UsageError(
                f"{ENV_PYTHON}={shown(asked, 200)} is not an executable program; write the path of a Python"
            )
        return os.path.abspath(found)  # noqa: PTH100  # does not resolve links
    folders = environ.get("PATH", os.defpath).split(os.pathsep)
    if sys.prefix == OUR_PREFIX:
        folders = [folder for folder in folders if not Path(folder).is_relative_to(OUR_PREFIX)]
    for name in ("python3", "python"):
        found = shutil.which(name, path=os.pathsep.join(folders))
        if found is not None:
            return os.path.abspath(found)  # noqa: PTH100
    raise UsageError(f"there is no python3 on your PATH; write its path: export {ENV_PYTHON}=/path/to/python3")


def check(python: str, environ: Mapping[str, str]) -> str:
    """Check that a Python has our package in this release; return a sentence if the check fails, else "".

    Raises UsageError, with the line that installs the package, if it is missing or of another release.
    """
    try:
        done = finish([python, "-c", _CHECK], timeout_s=CHECK_S, env=environ)
    except CommandError as error:
        return f"cannot check whether {python} has {together.MODULE} ({error}); the ranks will report if it is missing"
    word, _, version = done.stdout.strip().rpartition("\n")[2].partition(" ")
    if done.code == 0 and word == "version":
        if version != str(VERSION):
            raise UsageError(together.version_text(python, version, INSTALL))
        return ""
    if together.is_module_missing(done.stderr.encode()):
        raise UsageError(together.missing_text(python, INSTALL))
    last = done.stderr.strip().rpartition("\n")[2]
    raise UsageError(
        f"{python} cannot import {together.MODULE}: {shown(last, 200)}; mend that, or name another Python: "
        f"export {ENV_PYTHON}=/path/to/python3"
    )
