"""`llfree` (LLSC's LLfree): free nodes, cores and GPUs for each kind of node."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from ..core import names, terminal
from ..core.command import enter
from ..core.parser import Parser
from ..slurm.free import read_free
from ..slurm.records import ClusterName
from ..slurm.rules.free import FreeKind

PROGRAM = "llfree"
SCHEMA = 1
COLUMNS = (
    terminal.TerminalColumn("PARTITION", shrinks_to=12),
    terminal.TerminalColumn("FEATURES", shrinks_to=8, goes=3),
    terminal.TerminalColumn("GPU_TYPE", shrinks_to=20),
    terminal.TerminalColumn("CORES", right=True, goes=2),
    terminal.TerminalColumn("FREE_CORES", right=True),
    terminal.TerminalColumn("NODES", right=True, goes=1),
    terminal.TerminalColumn("FREE_NODES", right=True),
    terminal.TerminalColumn("GPUS", right=True, goes=4),
    terminal.TerminalColumn("FREE_GPUS", right=True),
)
"""LLSC's tools read free cores from field 5 and free nodes from field 7. No field contains a blank. On a narrow
terminal GPUS is left out first, because it is the product of two other columns."""
EXAMPLES = """\
columns
  One line for each kind of node in each partition; a node in two partitions
  counts in both. GPU_TYPE: type, and number of such GPUs in a node.
  Free nodes: no job is there. Free GPUs: no job has the GPU or a part of it.
  Nodes that are down, drained, reserved or do not respond are counted, but
  nothing on them is free. On a narrow terminal some columns are left out, and
  the last line names them. A pipe gets all columns.

examples
  llfree                     free resources in all partitions
  llfree -p gpu              in one partition
  llfree --hide-header | awk '$1 == "gpu" { print $5, "cores,", $7, "nodes" }'
  llfree --json

exit codes
  0 done, 1 Slurm did not answer, 2 invalid request.
"""


def parser() -> Parser:
    """Return the command's parser."""
    parser = Parser(
        prog=PROGRAM,
        description="List free nodes, cores and GPUs,\nexcept on nodes that another user has exclusively.",
        epilog=EXAMPLES,
        add_help=False,
        allow_abbrev=False,
    )
    parser.word_advice = f"write {PROGRAM} -p {{}} for a partition"
    parser.add_argument("-p", "--partition", metavar="NAME", help="this partition, or several separated by commas")
    parser.add_argument("-h", "--hide-header", action="store_true", help="print no column headings")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--help", action="help", help="show this help message and exit")
    parser.add_version()
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    arguments = parser().parse_args(argv)
    return enter(PROGRAM, lambda: print_free(arguments))


def print_free(arguments: argparse.Namespace) -> int:
    """Query Slurm and print free resources. Raises UsageError for an unknown partition, CommandError."""
    cluster, kinds = read_free(None if arguments.partition is None else arguments.partition.split(","))
    if arguments.json:
        if arguments.hide_header:
            print(f"{PROGRAM}: --hide-header ignored: JSON has no headings", file=sys.stderr)
        print(json.dumps(as_json(cluster, kinds), indent=2))
    else:
        terminal.print_lines(as_lines(cluster, kinds, hide_header=arguments.hide_header, width=terminal.width()))
    return names.EXIT_OK


def as_lines(cluster: ClusterName, kinds: Sequence[FreeKind], *, hide_header: bool, width: int) -> list[str]:
    """Return the table as lines. The first line is always there: LLSC's tools expect it, also with --hide-header."""
    first = f"LLGrid: {terminal.safe(cluster.cluster)} (running slurm {terminal.safe(cluster.version)})"
    (headings, *rows), left_out = terminal.lay_out(COLUMNS, [_row(kind) for kind in kinds], width)
    note = [f"({', '.join(left_out)}: shown in a wider terminal, in a pipe, or with --json)"] if left_out else []
    return [first, *rows] if hide_header else [first, headings, *rows, *note]


def _row(kind: FreeKind) -> tuple[str, ...]:
    numbers = (kind.cores, kind.free_cores, kind.nodes, kind.free_nodes, kind.gpus, kind.free_gpus)
    gpus = ",".join(f"{name or 'gpu'}:{count}" for name, count in kind.gpus_each)
    return (kind.partition, kind.features or "-", gpus or "-", *map(str, numbers))


def as_json(cluster: ClusterName, kinds: Sequence[FreeKind]) -> dict[str, Any]:
    """Return the documented JSON form, schema 1."""
    return {
        "schema": SCHEMA,
        "cluster": cluster.cluster,
        "slurm": cluster.version,
        "kinds": [
            {
                "partition": kind.partition,
                "features": kind.features or None,
                "gpus_of_a_node": [{"type": name or None, "count": count} for name, count in kind.gpus_each],
                "cores_of_a_node": kind.cores_each,
                "cores": kind.cores,
                "free_cores": kind.free_cores,
                "nodes": kind.nodes,
                "free_nodes": kind.free_nodes,
                "gpus": kind.gpus,
                "free_gpus": kind.free_gpus,
            }
            for kind in kinds
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
