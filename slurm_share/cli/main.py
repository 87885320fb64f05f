"""`slurm-share`: the command of administrators, operators and the curious."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .. import names
from ..errors import SlurmShareError, UsageError
from . import config, status

EXIT_FAILED = 1


def parser() -> argparse.ArgumentParser:
    """The command's words; each sub-command adds its own."""
    top = argparse.ArgumentParser(
        prog="slurm-share", description="GPUs shared between the tasks of one Slurm user: what is shared on this node."
    )
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    status.add_to(commands)
    config.add_to(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 done, 1 failed, 2 the caller's mistake, each failure with a sentence on stderr."""
    arguments = parser().parse_args(argv)
    try:
        if sys.stdout is None:
            raise UsageError("standard output is closed; there is nowhere to write to")
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader (head, less) has seen enough.
        _forget_output()
        return names.EXIT_OK
    except KeyboardInterrupt:
        return 130
    except UsageError as error:
        _say(error)
        return names.EXIT_USAGE
    except SlurmShareError as error:
        _say(error)
        return EXIT_FAILED
    except OSError as error:
        _forget_output()
        _say(error)
        return EXIT_FAILED


def _say(error: Exception) -> None:
    if sys.stderr is not None:
        print(f"slurm-share: {error}", file=sys.stderr)


def _forget_output() -> None:
    """What is still buffered must not raise again when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    sys.exit(main())
