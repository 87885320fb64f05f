"""The option `--version` of all commands."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from .installed import version


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the option to a command's parser."""
    parser.add_argument(
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
