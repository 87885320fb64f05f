"""Run a command. Only this module turns errors into a sentence on stderr and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from . import names, slurm_home
from .errors import SlurmShareError, UsageError

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def enter(program: str, run: Callable[[], int]) -> int:
    """Run a command; return its exit code: 0 done, 1 failed, 2 wrong usage. Print failures as a sentence on stderr."""
    _fill_streams()
    slurm_home.add_to_path()
    try:
        if sys.stdout is None:
            raise UsageError("standard output is closed; there is nowhere to write to")
        code = run()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader (head, less) has seen enough.
        forget_output()
        return names.EXIT_OK
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except UsageError as error:
        _say(program, error)
        return names.EXIT_USAGE
    except SlurmShareError as error:
        _say(program, error)
        return EXIT_FAILED
    except OSError as error:
        forget_output()
        _say(program, error)
        return EXIT_FAILED


def _fill_streams() -> None:
    """Open /dev/null in place of closed standard streams (2>&-).

    Otherwise the next opened file gets the stream's number, and messages are written into it.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


def _say(program: str, error: Exception) -> None:
    """Print the error on stderr after flushing stdout: both may go to the same file or pager."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        forget_output()
    if sys.stderr is not None:
        print(f"{program}: {error}", file=sys.stderr)


def forget_output() -> None:
    """Discard standard output, so that buffered text raises no second error when the interpreter exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
