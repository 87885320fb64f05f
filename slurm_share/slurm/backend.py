"""Choose the backend that answers a question to Slurm: its commands, or pyslurm (setting `slurm.backend`)."""

from __future__ import annotations

import importlib.metadata
import re
from functools import cache

from ..core import config
from ..core.errors import CommandError, ConfigError
from ..core.process import run
from ..core.settings import Slurm
from ..core.typed import Literal
from . import pyslurm_backend
from .pyslurm_backend import TIMEOUT_S, PyslurmReply, Topic

VERSION_S = 30.0
"""The time limit of `scontrol --version`."""


class PyslurmMissingError(CommandError):
    """The site wants pyslurm, and it cannot be used."""

    def __str__(self) -> str:
        return (
            f'slurm.backend is "pyslurm" in config.toml, and pyslurm cannot be used: {self.stderr}; install one that '
            'was built for the Slurm of this host, or write backend = "auto" there'
        )


@cache
def _setting() -> Literal["auto", "cli", "pyslurm"]:
    try:
        return config.load().settings.slurm.backend
    except ConfigError:
        return Slurm().backend  # `config print` names what is wrong


@cache
def _installed() -> str:
    """Return the version of pyslurm without importing it; empty: it is not installed."""
    try:
        return importlib.metadata.version("pyslurm")
    except importlib.metadata.PackageNotFoundError:
        return ""


def parse_version(text: str) -> str | None:
    """Return 26.05.5 for `slurm 26.05.5`, the output of `scontrol --version`, or Debian's form of it; None: neither."""
    match = re.search(r"\bslurm\S*\s+(\d+\.\d+\S*)", text)
    return match[1] if match else None


def read_release() -> tuple[int, int] | None:
    """Return the release, such as (24, 11); None: scontrol does not exist here, or names none."""
    try:
        version = parse_version(run(["scontrol", "--version"], timeout_s=VERSION_S))
    except CommandError:
        return None
    numbers = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(numbers[1]), int(numbers[2])) if numbers else None


@cache
def _fits() -> bool:
    """Return whether a pyslurm is installed that is of the release of Slurm on this host."""
    numbers = re.match(r"(\d+)\.(\d+)", _installed())
    return numbers is not None and read_release() == (int(numbers[1]), int(numbers[2]))


def ask(*topics: Topic, timeout_s: float = TIMEOUT_S) -> PyslurmReply | None:
    """Return pyslurm's answer; None: Slurm's commands are to be asked.

    Raises PyslurmMissingError where the site wants pyslurm and it cannot be used.
    """
    setting = _setting()
    if setting == "cli" or (setting == "auto" and not _fits()):
        return None
    try:
        return pyslurm_backend.read_answer(topics, timeout_s)
    except CommandError as error:
        if setting == "auto":
            return None
        raise PyslurmMissingError(error.argv, error.code, error.stderr) from error


def describe() -> str:
    """Return a sentence that names the backend in use, and why, where another one was wanted."""
    commands = "Slurm is asked through its commands"
    if _setting() == "cli":
        return commands
    if _setting() == "auto" and not _fits():
        other = f": the pyslurm here is {_installed()}, for another release of Slurm" if _installed() else ""
        return commands + other
    try:
        version = pyslurm_backend.read_answer(()).pyslurm
    except CommandError as error:
        return f"{commands}: pyslurm cannot be used: {error.stderr}"
    return f"Slurm is asked through pyslurm {version}, and through its commands for what that does not tell"
