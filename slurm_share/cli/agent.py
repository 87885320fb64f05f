"""`slurm-share agent`: run the service that samples this node and answers permitted callers."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from ..core import config, log, names
from ..core.errors import UsageError


def add_to(commands: Any) -> None:
    """Add the command `agent` to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "agent", help="run the service that samples this node and answers on a socket (as user slurm-share)"
    )
    parser.add_argument(
        "--node",
        metavar="NAME",
        help="Slurm's name of this node (default: $SLURMD_NODENAME, slurmd's -N, or this host's node in slurm.conf)",
    )
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="configuration file (default: " + names.CONFIG_FILE + ")"
    )
    parser.set_defaults(run=run_agent)


def run_agent(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM. Raises UsageError for root, ConfigError, StateError as `service.serve` does."""
    if os.geteuid() == 0:
        raise UsageError(
            "the agent needs no root and does not run as root; start slurm-share-agent.service, "
            "or: setpriv --reuid slurm-share --regid slurm-share --init-groups slurm-share agent"
        )
    settings = config.load(arguments.config).settings
    log.use_journal(settings.log == "journal")
    # Imported here, so that the other commands of `slurm-share` start without it.
    from ..load import NodeSampler, service, this_node

    node = this_node(arguments.node)
    service.run(settings, lambda: NodeSampler(node))
    return names.EXIT_OK
