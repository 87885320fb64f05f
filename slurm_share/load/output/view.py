"""What a person wants of llload, and one node as its line has it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from ..rules import figures as numbers
from ..rules import flags as flagging
from ..rules.figures import Figures
from ..rules.flags import Flag
from ..snapshot import Advice, NodeLoad, Survey
from ..text import why_silent

ADVICE_LINES = 3
"""Under the table; --advise has them all."""


@dataclass(frozen=True, slots=True)
class View:
    """What is wanted of a survey."""

    gpus: bool = False
    detail: bool = False
    jobs: bool = False
    processes: bool = False
    advice: tuple[Advice, ...] = ()
    advice_lines: int = ADVICE_LINES
    quiet: bool = False
    color: bool = False
    chosen: str = ""
    """Why not every node of the survey has a line, such as: flagged."""
    whole: Survey | None = None
    """The survey before nodes were chosen from it, for what is said of all of them."""
    more: str = ""
    """Nodes that there is no room for, in words."""
    nobody: tuple[str, ...] = field(default=())
    """What to say where there is no node."""


@dataclass(frozen=True, slots=True)
class Row:
    """One node, as its line has it."""

    node: NodeLoad
    figures: Figures
    flags: tuple[Flag, ...]
    codes: tuple[str, ...]

    @staticmethod
    def of(node: NodeLoad) -> Row:
        """Its figures and its letters."""
        one = numbers.figures(node)
        found = flagging.flags(node, one)
        return Row(node, one, found, flagging.codes(found))

    @property
    def worst(self) -> str:
        """The letter that colours the line: ! before H before L; empty: none."""
        return next((letter for letter in "!HL" if any(code[1] == letter for code in self.codes)), "")

    def note(self, mixed: bool) -> str:
        """The last column: letters, and why a node is silent."""
        said = list(self.codes)
        if mixed and self.figures.gpu_load_by in ("util", "both"):
            said.append("util")
        if self.node.snapshot is None:
            said.append(why_silent(self.node))
        return " ".join(said)


def is_color_wanted(*, never: bool, terminal: bool) -> bool:
    """NO_COLOR (no-color.org: any value but none), TERM=dumb and pipes have none."""
    return terminal and not never and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
