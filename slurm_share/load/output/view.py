"""How llload is to print a survey."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from ..snapshot import Advice, Survey

ADVICE_LINES = 3
"""Under the table; --advise has them all."""


@dataclass(frozen=True, slots=True)
class View:
    """Options of llload's output."""

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


def is_color_wanted(*, never: bool, terminal: bool) -> bool:
    """Return whether to use colour: not with NO_COLOR set (no-color.org), TERM=dumb or a pipe."""
    return terminal and not never and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
