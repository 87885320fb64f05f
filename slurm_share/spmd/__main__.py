"""`python -m slurm_share.spmd [-n N] PROG [ARG...]`: run a program as the ranks of a run.

A launcher starts each rank with the same command without -n, and with LLSUB_RENDEZVOUS in the environment.
"""

from __future__ import annotations

import errno
import io
import os
import runpy
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from . import names
from .checks import check_program, check_variables, is_executable
from .errors import Aborted, NodeLost, PeerEnded, RunEnded, SpmdError, StartTimeout, UsageError
from .ppython import finder
from .ppython.module import names_without_import

HELP = """\
usage: python -m slurm_share.spmd [-n N] [--logs FOLDER] PROG [ARG...]

Run N ranks of a Python program on this machine. They send each other messages
and share arrays with slurm_share.spmd, or with pPython's functions.

  -n N           number of ranks, 1 to 256; default 1, or this rank of a run
  --logs FOLDER  write what ranks 1 and up print into FOLDER/PROG.<rank>.out
  -h, --help     show this text

The output of rank 0 is unchanged; that of the others has "[rank] " before each
line. Without OMP_NUM_THREADS, each rank gets its part of the cores. If a rank
fails, the others are told, and are ended after 10 seconds.

Exit code: 0 if all ranks ended with 0, 75 if ranks ended with 75 (saved) and
none failed, 1 if one failed, 2 if the command was wrong, 130 after Ctrl-C; or
the code that a rank passed to abort().
"""
USAGE = 2
_QUIET = (PeerEnded, NodeLost, Aborted, StartTimeout)
"""Errors that other ranks caused: the traceback that matters is theirs."""
_OWN_FOLDER = os.path.dirname(__file__) + os.sep  # noqa: PTH120
_OWN_FILES = (__file__, runpy.run_path.__code__.co_filename)


@dataclass(frozen=True)
class SpmdArguments:
    """Parsed command line."""

    program: str
    args: tuple[str, ...]
    size: int | None
    """None: without -n."""
    logs: str | None


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    if argv and argv[0] in ("-h", "--help"):
        return _print_help()
    try:
        request = parse(argv)
        check_program(request.program)
        check_variables(os.environ)
        if request.size is not None or request.logs is not None:
            return _run_here(request)
        is_log = _prints_into_log()
        _end_with_command()
        return run_program(request.program, request.args, is_log=is_log)
    except UsageError as error:
        print(f"slurm_share.spmd: {error}", file=sys.stderr)
        return USAGE


def _print_help() -> int:
    try:
        print(HELP, end="", flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else the interpreter fails to flush the text at its exit
        if not isinstance(error, BrokenPipeError):
            print(f"slurm_share.spmd: cannot write to standard output ({error.strerror})", file=sys.stderr)
            return 1
    return 0


def parse(argv: Sequence[str]) -> SpmdArguments:
    """Parse a command line. Arguments after the program belong to the program. Raises UsageError."""
    rest = list(argv)
    size: int | None = None
    logs: str | None = None
    while rest and rest[0].startswith("-") and rest[0] != "--":
        option, _equals, value = rest.pop(0).partition("=")
        if option.startswith("-n") and option[2:].isdigit() and not value:
            option, value = "-n", option[2:]
        if option not in ("-n", "--logs"):
            raise UsageError(f"there is no option {option}; see python -m slurm_share.spmd --help")
        if not value:
            if not rest:
                raise UsageError(f"{option} needs a value; see python -m slurm_share.spmd --help")
            value = rest.pop(0)
        if option == "--logs":
            logs = value
        elif value.isascii() and value.isdigit():
            size = int(value[:20])  # Python refuses to convert thousands of digits
        else:
            raise UsageError(f"-n is a number of ranks, not {value[:40]!r}")
    if rest and rest[0] == "--":
        rest.pop(0)
    if not rest:
        raise UsageError("which program? usage: python -m slurm_share.spmd [-n N] PROG [ARG...]")
    return SpmdArguments(rest[0], tuple(rest[1:]), size, logs)


def run_program(program: str, args: Sequence[str], *, is_log: bool = False) -> int:
    """Run a program in this process, as `python PROG` does; return its exit code.

    `is_log`: it prints into a file that loses what a full disk does not take.
    """
    if is_executable(program):
        return _replace(program, args)
    sys.argv[:] = [program, *args]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(program))  # noqa: PTH120
    finder.install()
    _write_lines_whole(is_log)
    try:
        runpy.run_path(program, init_globals=names_without_import(program), run_name="__main__")
    except _QUIET as error:
        sys.last_value = error  # as the interpreter does; the transport then delivers messages for a short time only
        rank = os.environ.get(names.ENV_RANK, "0")
        # One write: print would write the newline separately, possibly after the output of another rank.
        sys.stderr.write(f"rank {rank} ends: {error}\n")
        return error.code or 1 if isinstance(error, Aborted) else 1
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001
        sys.last_value = error
        # The traceback begins with the program, not with the code that runs it.
        error.__traceback__ = _from_program(error.__traceback__)
        if isinstance(error, RunEnded | UsageError | KeyboardInterrupt):
            _end_in_program(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _run_here(request: SpmdArguments) -> int:
    from . import local

    size = 1 if request.size is None else request.size
    local.check(request.program, size)
    signal.signal(signal.SIGTERM, _stop)
    try:
        outcome = local.run_local(request.program, size, request.args, logs=request.logs)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except UsageError:
        raise
    except SpmdError as error:
        print(f"slurm_share.spmd: {error}", file=sys.stderr)
        return 1
    if outcome.why:
        sys.stderr.write(f"slurm_share.spmd: {outcome.why}\n")
    return outcome.code & 255 or int(outcome.code != 0)  # the shell gets eight bits


def _stop(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def _end_with_command() -> None:
    """Make this rank end with the command that started it. A launcher ends its ranks itself."""
    parent = os.environ.pop(names.ENV_PARENT, "")
    if parent:
        from .rendezvous import end_with_parent

        end_with_parent()
        if os.getppid() != int(parent):
            sys.exit(128 + signal.SIGKILL)


def _replace(program: str, args: Sequence[str]) -> int:
    """Replace this process by a program that is not Python. Python that it starts finds the run in the environment."""
    path = program if os.sep in program else os.path.join(".", program)  # noqa: PTH118
    try:
        os.execv(path, [program, *args])
    except OSError as error:
        print(f"slurm_share.spmd: {program} cannot be run: {error.strerror}", file=sys.stderr)
        return 126


def _write_lines_whole(is_log: bool) -> None:
    """Buffer output by lines. With `python -u`, print writes a line and its newline separately, and ranks mix them."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper) or not stream.write_through:
            continue
        if is_log:
            log = _Log(stream.fileno(), "w", closefd=False)
            setattr(sys, name, io.TextIOWrapper(log, stream.encoding, stream.errors, line_buffering=True))
        else:
            stream.reconfigure(line_buffering=True, write_through=False)


class _Log(io.FileIO):
    """Log file that discards output while the disk is full. The rank continues: its messages need no disk."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return memoryview(data).nbytes


def _prints_into_log() -> bool:
    """Return whether a launcher, and not the user, has opened the output files of this rank."""
    is_own = names.ENV_PARENT in os.environ and os.environ.get(names.ENV_RANK) == "0"
    return names.ENV_RENDEZVOUS in os.environ and not is_own


def _from_program(traceback: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames of this file and of runpy."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename in _OWN_FILES:
        traceback = traceback.tb_next
    return traceback


def _end_in_program(traceback: TracebackType | None) -> None:
    """Cut the frames of this package from the end: the program's call, or Ctrl-C in it, is the cause."""
    last = None
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(_OWN_FOLDER):
            last = traceback
        traceback = traceback.tb_next
    if last is not None:
        last.tb_next = None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
