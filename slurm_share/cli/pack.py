"""`slurm-share pack`: what goes with `llsub --pack`; each sub-command is in a file of its own."""

from __future__ import annotations

import argparse
from typing import Any

from . import pack_explain, pack_history, pack_simulate


def add_to(commands: Any) -> None:
    """Add `pack` with its sub-commands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "pack", help="unlike tasks on shared GPUs: explain a run, show sizes that are known, simulate a policy"
    )
    subcommands = parser.add_subparsers(metavar="COMMAND", required=True)
    pack_explain.add_to(subcommands)
    pack_history.add_to(subcommands)
    pack_simulate.add_to(subcommands)
