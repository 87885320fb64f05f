"""The one place a program is started."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from .errors import CommandError


def run(argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> str:
    """Standard output of `argv`, which is given no input.

    Raises CommandError when the program is not there, takes longer than `timeout_s`, or ends with a code other than 0.
    """
    command = tuple(argv)
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, env=env, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise CommandError(command, None, f"no answer within {timeout_s:g} s") from error
    except OSError as error:
        raise CommandError(command, None, str(error)) from error
    if done.returncode != 0:
        raise CommandError(command, done.returncode, done.stderr)
    return done.stdout
