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
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader (head, less) has seen enough; what is still buffered must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return names.EXIT_OK
    except KeyboardInterrupt:
        return 130
    except UsageError as error:
        print(f"slurm-share: {error}", file=sys.stderr)
        return names.EXIT_USAGE
    except SlurmShareError as error:
        print(f"slurm-share: {error}", file=sys.stderr)
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
