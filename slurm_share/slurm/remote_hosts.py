"""Read which files other hosts have, by a command on each, and which hooks slurmctld makes nodes run."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ..core.config import REMOTE_NODE
from ..core.errors import CommandError
from ..core.process import Deadline, finish
from . import backend, controllers

AT_ONCE = 32
_ONE_S = 15.0
"""Limit of the command on one host, seconds."""
_SHOW_S = 30.0
_HOOK = re.compile(r"(?:Prolog|Epilog)(?:\[\d+\])?")
_ALWAYS = "/"
"""Every host has it: one that does not list it has not answered."""
_EMPTY = "/dev/null"
"""The same, for checksums."""
_SUM = re.compile(r"^([0-9a-f]{64})  (.+)$", re.M)


def read_there(
    hosts: Iterable[str], files: Sequence[str], argv_of: Callable[[str], Sequence[str]], deadline: Deadline
) -> dict[str, frozenset[str]]:
    """Return which of the files are on each host that answers. `argv_of`: what goes before a command for a host."""
    said = _ask(hosts, ["ls", "-d", _ALWAYS, *files], argv_of, deadline)
    lines = {host: {line.strip() for line in text.splitlines()} for host, text in said.items()}
    return {host: frozenset(found & set(files)) for host, found in lines.items() if _ALWAYS in found}


def read_sums(
    hosts: Iterable[str], files: Sequence[str], argv_of: Callable[[str], Sequence[str]], deadline: Deadline
) -> dict[str, dict[str, str]]:
    """Return the SHA-256 of each of the files that is there, on each host that answers."""
    said = _ask(hosts, ["sha256sum", _EMPTY, *files], argv_of, deadline)
    sums = {host: {name: digest for digest, name in _SUM.findall(text)} for host, text in said.items()}
    return {host: found for host, found in sums.items() if found.pop(_EMPTY, None) is not None}


def _ask(
    hosts: Iterable[str], argv: Sequence[str], argv_of: Callable[[str], Sequence[str]], deadline: Deadline
) -> dict[str, str]:
    """Run a command on each host and return its output; empty where it could not be started, or did not end.

    `argv` has no character that is special to a shell: a remote shell gets it joined.
    """

    def ask(host: str) -> tuple[str, str]:
        left = deadline.at_most(_ONE_S).left()
        if left <= 0:
            return host, ""
        try:
            return host, finish([*argv_of(host), *argv], timeout_s=left, env=environment()).stdout
        except CommandError:
            return host, ""

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(pool.map(ask, list(hosts)))


def remote_argv(remote_command: Sequence[str], host: str) -> list[str]:
    """Return what goes before a command for a host: the site's remote command, or nothing for this host itself."""
    if controllers.is_same_host(host, os.uname().nodename):
        return []
    return [host if argument == REMOTE_NODE else argument for argument in remote_command]


def run_on(
    remote_command: Sequence[str], host: str, words: Sequence[str], limit_s: float, *, most: int = 300
) -> tuple[str, str]:
    """Run a command on a host; return its output, and why there is none, in at most `most` characters."""
    try:
        done = finish([*remote_argv(remote_command, host), *words], timeout_s=limit_s, env=environment())
    except CommandError as error:
        why = f"no answer within {limit_s:g} s" if "no answer within" in error.stderr else error.stderr
        if isinstance(error.__cause__, FileNotFoundError):
            why = f"{error.argv[0]} is not on this host: install it, or set remote_command in config.toml"
        return "", why[:most]
    if not done.stdout.strip():
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return "", f"code {done.code}: {last[:most]}"
    return done.stdout, ""


def srun_argv(node: str, partition: str) -> list[str]:
    """Return the command that runs a job of one task, at once or not at all."""
    return [
        *("srun", "--quiet", "--immediate=5", "--time=1", "--nodes=1", "--ntasks=1", "--job-name=slurm-share-install"),
        *(f"--nodelist={node}", f"--partition={partition}", "--chdir=/"),
    ]


def environment() -> dict[str, str]:
    """Return the environment without the variables that would make srun start a step of the job it runs in."""
    kept = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "SLURM_CONF", "SSH_AUTH_SOCK", "KRB5CCNAME")
    return {name: os.environ[name] for name in kept if name in os.environ}


def read_hooks_in_force() -> frozenset[str] | None:
    """Return the values of Prolog and Epilog that slurmctld runs with; None: it does not answer."""
    try:
        if answer := backend.ask():
            return frozenset(answer.hooks)
        done = finish(["scontrol", "show", "config"], timeout_s=_SHOW_S)
    except CommandError:
        return None
    if done.code != 0:
        return None
    pairs = (line.partition("=") for line in done.stdout.splitlines())
    return frozenset(value.strip() for key, _, value in pairs if _HOOK.fullmatch(key.strip()))
