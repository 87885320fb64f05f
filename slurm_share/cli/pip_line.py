"""`slurm-share pip-line`: print the pip command that installs slurm_share into a user's Python."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from ..core import installed, names
from ..core.errors import SlurmShareError

PACKAGE = Path(__file__).resolve().parents[1]
PARTS = ("spmd", "executor")
"""Extras of the package, each for one part that users' programs import."""


def add_to(commands: Any) -> None:
    """Add the sub-command `pip-line`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "pip-line",
        help="print the pip command that installs slurm_share into your own Python",
        description="Print the pip command that installs slurm_share into the Python of your programs, for what they "
        "import: slurm_share.spmd, messages and arrays between tasks, with NumPy (packaging/docs/spmd.md); or "
        "slurm_share.Executor, calls of Python functions, with cloudpickle (packaging/docs/python.md). Run the command "
        "in the environment of those programs.",
    )
    parser.add_argument("part", nargs="?", choices=PARTS, default=PARTS[0], help="what they import (default: spmd)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the command. Raises SlurmShareError if there is neither a wheel nor a checkout."""
    print(f"python3 -m pip install {shlex.quote(f'{source(PACKAGE, Path(installed.WHEELS), args.part)}[{args.part}]')}")
    return names.EXIT_OK


def source(package: Path, wheels: Path, part: str) -> Path:
    """Return the path to install: the checkout that `package` is in, else the wheel of its version in `wheels`.

    `part`: of PARTS, for the message. Raises SlurmShareError if there is neither.
    """
    if (package.parent / "pyproject.toml").is_file():
        return package.parent
    wheel = wheels / f"slurm_share-{installed.version()}-py3-none-any.whl"
    if not wheel.is_file():
        raise SlurmShareError(
            f"{wheel} is not there: the packages of slurm-share bring it; install them on this host, or name a "
            f"checkout: python3 -m pip install '/path/to/slurm-share[{part}]'"
        )
    return wheel
