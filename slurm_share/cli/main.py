"""`slurm-share`: the command of administrators and operators, with sub-commands."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..core.command import enter
from ..core.parser import Parser

if TYPE_CHECKING:  # tells tools which modules there are
    from . import (  # noqa: F401
        agent,
        archive,
        config,
        doctor,
        install,
        lab,
        launch,
        methods,
        pack,
        pip_line,
        prove,
        report,
        results,
        sample,
        signal_task,
        status,
        switch,
    )

MODULES = {
    "status": "status",
    "methods": "methods",
    "off": "switch",
    "on": "switch",
    "config": "config",
    "install": "install",
    "doctor": "doctor",
    "prove": "prove",
    "launch": "launch",
    "sample": "sample",
    "agent": "agent",
    "archive": "archive",
    "report": "report",
    "pack": "pack",
    "results": "results",
    "lab": "lab",
    "pip-line": "pip_line",
    "signal": "signal_task",
}
"""Sub-command -> its module, in the order of the help page."""


def parser(command: str | None = None) -> Parser:
    """Return the command's parser with the sub-commands of that one's module; with all, if none has that name.

    The import of all modules takes 0.2 s, which every launcher and every sampler would wait for. Raises ImportError for
    a damaged one.
    """
    top = Parser(
        prog="slurm-share", description="Manage slurm-share, which shares GPUs between the tasks of one Slurm user."
    )
    top.add_version()
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for name in [MODULES[command]] if command in MODULES else dict.fromkeys(MODULES.values()):
        try:
            module: Any = importlib.import_module(f"{__package__}.{name}")
        except (ImportError, SyntaxError):
            raise
        except Exception as error:
            raise ImportError(f"{type(error).__name__}: {error}") from error
        module.add_to(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0: done, 1: failed, 2: wrong usage. Print failures as a sentence on stderr."""
    words = sys.argv[1:] if argv is None else argv
    arguments = parser(next(iter(words), None)).parse_args(words)
    return enter("slurm-share", lambda: arguments.run(arguments))


if __name__ == "__main__":
    sys.exit(main())
