"""The parser of all commands."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from .installed import version


class Parser(argparse.ArgumentParser):
    """A parser whose epilog keeps its lines. Its sub-commands get such parsers, too."""

    def __init__(self, *, epilog: str | None = None, **options: Any) -> None:
        if epilog is not None:
            options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(epilog=epilog, **options)

    def add_version(self) -> None:
        """Add the option --version."""
        self.add_argument(
            "--version", nargs=0, action=_Print, default=argparse.SUPPRESS, help="print the version and exit"
        )


class _Print(argparse.Action):
    """Read the version only if it is asked for: that takes 20 ms."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        print(f"{parser.prog} of slurm-share {version() or '(not installed)'}")
        parser.exit()
