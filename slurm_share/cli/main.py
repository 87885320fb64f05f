"""`slurm-share`: the command of administrators and operators, with sub-commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..core.command import enter
from ..core.parser import Parser
from . import (
    agent,
    archive,
    config,
    doctor,
    install,
    lab,
    launch,
    pack,
    pip_line,
    report,
    sample,
    signal_task,
    status,
    switch,
)


def parser() -> Parser:
    """Return the command's parser with all sub-commands."""
    top = Parser(
        prog="slurm-share", description="Manage slurm-share, which shares GPUs between the tasks of one Slurm user."
    )
    top.add_version()
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for module in (
        status,
        switch,
        config,
        install,
        doctor,
        launch,
        sample,
        agent,
        archive,
        report,
        pack,
        lab,
        pip_line,
    ):
        module.add_to(commands)
    signal_task.add_to(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0: done, 1: failed, 2: wrong usage. Print failures as a sentence on stderr."""
    arguments = parser().parse_args(argv)
    return enter("slurm-share", lambda: arguments.run(arguments))


if __name__ == "__main__":
    sys.exit(main())
