"""`slurm-share methods`: the ways to share a GPU that this node has, with the reason for each that it has not."""

from __future__ import annotations

import argparse
import json
from typing import Any

from msgspec import to_builtins
from rich.table import Table

from ..core import names, terminal
from ..core.config import load

SCHEMA = 1
EXIT_NO_ANSWER = 1
EPILOG = """\
Any user may call it, on the node in question: srun -w NODE --gres=gpu:1 slurm-share methods. What each method isolates
and costs is in the page methods.md of the documentation.

examples
  slurm-share methods                                    what this node has
  srun --gres=gpu:1 slurm-share methods                  what a node with GPUs has
"""


def add_to(commands: Any) -> None:
    """Add the sub-command `methods`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "methods", help="print in which ways this node can share its GPUs, and why not in others", epilog=EPILOG
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=print_methods)


def print_methods(arguments: argparse.Namespace) -> int:
    """Print the methods. Return 0, also on a host without GPUs, or 1 if its driver does not answer."""
    # Imported late: all commands of slurm-share load this module, also the launchers on all nodes.
    from ..share import methods, node_offer
    from ..slurm import node_name

    offer = node_offer.read_offer(load().settings)
    here = methods.judge(offer)
    is_simulated = any(gpu.simulated for gpu in offer.gpus)
    elsewhere = [] if offer.driver else _nodes_with_gpus()
    problem = offer.problem
    if elsewhere and node_name.read_node_name() not in elsewhere:
        problem = ""  # a login node may have the driver's library without a driver
    if arguments.json:
        found: dict[str, Any] = {
            "schema": SCHEMA,
            "driver": offer.driver,
            "simulated": is_simulated,
            "cgroup": offer.cgroup,
            "methods": [to_builtins(one) for one in here],
            "nodes_with_gpus": elsewhere,
        }
        print(json.dumps(found, indent=2))
    elif offer.driver is None:
        terminal.print_lines([terminal.safe(line) for line in _absent(problem, elsewhere)])
    else:
        table = Table(box=None, pad_edge=False)
        for column in ("METHOD", "HERE", "WHY, AND WITH WHAT RESTRICTION"):
            table.add_column(column, no_wrap=column != "WHY, AND WITH WHAT RESTRICTION")
        for one in here:
            example = f"for example {one.request}" if one.is_here else ""
            table.add_row(one.name, "yes" if one.is_here else "no", "; ".join(filter(None, (one.why, example))))
        head = f"driver {terminal.safe(offer.driver)}, cgroup {f'v{offer.cgroup}' if offer.cgroup else 'none'}"
        parts = ["SIMULATED GPUs: nothing is computed on them"] if is_simulated else []
        terminal.show(*parts, head, table)
    return EXIT_NO_ANSWER if problem else names.EXIT_OK


def _absent(problem: str, elsewhere: list[str]) -> list[str]:
    """Return what to do on a host without GPUs."""
    from ..core.nodelist import fold

    where = f"the nodes with GPUs are {fold(elsewhere)}; ask" if elsewhere else "ask"
    return [problem or "this host has no GPU", f"{where} one of them: srun --gres=gpu:1 slurm-share methods"]


def _nodes_with_gpus() -> list[str]:
    from ..core.errors import SlurmShareError
    from ..slurm import nodes

    try:
        return [node.name for node in nodes.read_nodes(timeout_s=10) if node.gpus]
    except (SlurmShareError, OSError):
        return []  # no Slurm here, or it does not answer: then only the advice remains
