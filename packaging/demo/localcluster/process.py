"""Start programs; the only user of subprocess in a local cluster."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from .errors import CommandFailed, NotDone

_PAUSE_RATIO = 0.2
"""Longest pause between two polls, as a ratio of the time waited so far: a wait ends at most this ratio too late."""
_LONGEST_PAUSE_S = 0.25
OUTSIDE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Search path for the machine's own tools: a user's PATH may lack the sbin folders."""


UMASK = 0o022
"""The cluster's users must be able to read what we make, whatever the caller's umask."""
_umask_lock = threading.Lock()
_nested = 0
_callers_umask = UMASK
"""The umask to restore. A process has one umask: the first thread to enter saves it, the last to leave
restores it.
"""


@contextlib.contextmanager
def usual_umask() -> Iterator[None]:
    """Use umask 022, and restore the caller's at the end."""
    global _nested, _callers_umask
    with _umask_lock:
        if _nested == 0:
            _callers_umask = os.umask(UMASK)
        _nested += 1
    try:
        yield
    finally:
        with _umask_lock:
            _nested -= 1
            if _nested == 0:
                os.umask(_callers_umask)


def run(
    argv: Sequence[str],
    *,
    check: bool = True,
    input: str | None = None,
    timeout_s: float | None = None,
    env: Mapping[str, str] | None = None,
    apart: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and return its output.

    Raises CommandFailed for a code other than 0, unless `check` is off, and NotDone after `timeout_s`. Without `input`
    stdin is empty, so that no program waits for a keyboard. `apart`: use a session of its own, so that a program that
    signals its own process group (kill 0) does not end its caller; process groups span namespaces.
    """
    try:
        done = subprocess.run(
            list(argv),
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=_outside_env() if env is None else dict(env),
            umask=UMASK,
            start_new_session=apart,
            check=False,
        )
    except FileNotFoundError:
        raise CommandFailed(argv, 127, f"{argv[0]} is not on this machine") from None
    except subprocess.TimeoutExpired as error:
        raise NotDone(f"the end of `{' '.join(argv[-4:])}`", timeout_s or 0.0, _text(error.stderr)) from None
    if check and done.returncode != 0:
        raise CommandFailed(argv, done.returncode, done.stdout + done.stderr)
    return done


def start_apart(argv: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
    """Start a program that outlives this process, in a session of its own; append its output to `log`.

    `argv` is run through setsid(1) -f: a terminal's Ctrl-C does not reach it, and it is not our child.
    """
    with log.open("ab") as sink:
        subprocess.run(
            ["/usr/bin/setsid", "-f", *argv],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env=dict(env),
            cwd="/",
            umask=UMASK,
            check=True,
        )


def start(argv: Sequence[str], log: Path, pass_fds: Collection[int]) -> subprocess.Popen[bytes]:
    """Start a program beside this process, in a session of its own; append its output to `log`. It gets the file
    descriptors `pass_fds` with their numbers."""
    with log.open("ab") as sink:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env={"PATH": OUTSIDE_PATH},
            cwd="/",
            umask=UMASK,
            pass_fds=tuple(pass_fds),
            start_new_session=True,
        )


def become(argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Replace this process with a program, which thus has our terminal, signals and exit code."""
    os.umask(UMASK)
    os.execve(argv[0], list(argv), dict(env))


def open_missing_streams() -> None:
    """Open /dev/null as stdin, stdout or stderr if the caller closed it, for this process and programs that replace it.

    Otherwise the next opened file gets that number, and a program writes its output into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # open() returns the lowest free number, which is this one
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def bound_to_us(argv: Sequence[str]) -> list[str]:
    """Return the command line of `argv` in a pid namespace and a mount namespace that end with this process.

    setpriv --pdeathsig ends unshare(1) with us, even after kill -9, and unshare --kill-child ends everything below.
    """
    unshare = ["/usr/bin/unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--propagation", "private"]
    return ["/usr/bin/setpriv", "--pdeathsig", "KILL", *unshare, "--", *argv]


def wait_until(
    true: Callable[[], object], what: str, seconds: float, *, every_s: float = 0.005, why: Callable[[], str] = str
) -> None:
    """Poll until `true()` holds; raise NotDone with `what` (and `why()`) after `seconds`.

    Polls every `every_s` seconds, and less often the longer it has waited: most polls start programs on a host, which
    would slow down other clusters on the same cores.
    """
    begin = time.monotonic()
    while not true():
        waited_s = time.monotonic() - begin
        if waited_s > seconds:
            raise NotDone(what, seconds, why())
        time.sleep(max(every_s, min(waited_s * _PAUSE_RATIO, _LONGEST_PAUSE_S)))


def _outside_env() -> dict[str, str]:
    own = os.environ.get("PATH", "")
    # PYTHON* variables are meant for the caller's Python, not for the machine's tools and their pip
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return {**kept, "PATH": f"{own}:{OUTSIDE_PATH}" if own else OUTSIDE_PATH, "LC_ALL": "C.UTF-8"}


def _text(output: bytes | str | None) -> str:
    if output is None:
        return ""
    return output if isinstance(output, str) else output.decode(errors="replace")
