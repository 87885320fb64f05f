"""The row of a node: its record with figures and flags, for llload and the dashboard."""

from __future__ import annotations

from msgspec import Struct

from ..snapshot import NodeLoad, Survey
from . import figures, flags, idle
from .figures import Figures
from .flags import Flag


class NodeRow(Struct, frozen=True, gc=False, omit_defaults=True):
    """A node with its figures and flags, computed by the process that reads the survey."""

    node: NodeLoad
    figures: Figures
    flags: tuple[Flag, ...] = ()
    queued_users: tuple[str, ...] = ()
    """Users with jobs there by Slurm's queue, for a silent node."""
    queued_jobs: tuple[str, ...] = ()
    """Jobs there by Slurm's queue, as squeue writes them, for a silent node."""

    @property
    def name(self) -> str:
        """Return Slurm's name of the node."""
        return self.node.name

    @property
    def codes(self) -> tuple[str, ...]:
        """Return each flag's code once, as in llload's NOTE: gL, m!."""
        return tuple(dict.fromkeys(flag.code for flag in self.flags))


def row_of(node: NodeLoad) -> NodeRow:
    """Return the row of a node whose GPUs have been judged (`idle.py`)."""
    one = figures.figures(node)
    return NodeRow(node, one, flags.flags(node, one))


def rows_of(survey: Survey) -> tuple[NodeRow, ...]:
    """Return a row for each node of a survey, with its GPUs judged."""
    return tuple(map(row_of, idle.judged(survey).nodes))
