"""The options of llload's output."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..snapshot import Advice, Survey

ADVICE_LINES = 3
"""Most lines of advice below the table; --advise has all."""


@dataclass(frozen=True, slots=True)
class View:
    """The parts of a survey that llload prints, and how."""

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
    """The survey before nodes were chosen from it, for the notes about all nodes."""
    more: str = ""
    """A sentence about the nodes for which there is no room."""
    if_empty: tuple[str, ...] = ()
    """The sentences to print if there is no node."""


def is_color_wanted(*, never: bool, terminal: bool) -> bool:
    """Return whether to use colour: not with NO_COLOR (no-color.org), with TERM=dumb or in a pipe."""
    return terminal and not never and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
