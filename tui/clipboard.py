"""Copy text to the terminal's clipboard, safe for pasting into a shell."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from textual.app import App

from slurm_share.core import terminal


def put(app: App[Any], lines: Iterable[str]) -> None:
    """Copy these lines, with control characters escaped: pasted into a shell, they must not press Enter."""
    app.copy_to_clipboard("\n".join(map(terminal.safe, lines)))
