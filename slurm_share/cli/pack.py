"""`slurm-share pack`: commands for `llsub --pack`; each sub-command has its own file."""

from __future__ import annotations

import argparse
from typing import Any

from . import pack_explain, pack_history


def add_to(commands: Any) -> None:
    """Add the parser of `pack` with its sub-commands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "pack", help="packed tasks on shared GPUs: explain a run, show known sizes"
    )
    subcommands = parser.add_subparsers(metavar="COMMAND", required=True)
    pack_explain.add_to(subcommands)
    pack_history.add_to(subcommands)
