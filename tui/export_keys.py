"""Handle the key for an export: ask for the file, write it in a thread, and report the result."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_share.core.errors import UsageError, shown
from slurm_share.core.text import counted

from . import export

if TYPE_CHECKING:
    from .program import Program

READONLY = "nothing is written: the dashboard runs with --readonly (or readonly = true)"


def begin(dashboard: Program) -> None:
    """Ask for a file, and write what the table with the focus shows."""
    from .screens.export import ExportScreen

    grid, picture = dashboard.main_screen.grid, dashboard.picture
    if dashboard.readonly:
        dashboard.say(READONLY, severity="warning")
        return
    if grid is None or picture is None:
        dashboard.say("there is nothing to export yet")
        return
    query = grid.query_text
    what = f"export {counted(grid.count, 'row')} of {counted(len(grid.chosen), 'column')}"
    what += f", filter {query}" if query else ""
    # As they are shown now, not when the name is typed.
    columns, rows, survey = export.columns_of(grid), grid.shown_rows, picture.survey
    about = {
        "table": grid.name or "", "filter": query, "taken": survey.taken, "cluster": survey.cluster,
        "source": survey.source, "simulated": picture.is_simulated,
    }  # fmt: skip

    def answer(chosen: tuple[Path, bool] | None) -> None:
        if chosen is not None:
            file, over = chosen
            dashboard.call_after_refresh(
                lambda: dashboard.run_worker(_write(dashboard, columns, rows, about, file, over=over), name="export")
            )

    dashboard.push_screen(ExportScreen(what, export.default_name(grid.name or "table", survey.taken)), answer)


async def _write(
    dashboard: Program, columns: list[Any], rows: Sequence[Any], about: dict[str, Any], file: Path, *, over: bool
) -> None:
    """Write the file. A thread does it, since a home directory on a file server may hang."""
    suffix = file.suffix.casefold()
    if suffix == ".svg":
        data = dashboard.export_screenshot(title=f"llload-tui {about['cluster']}")
    elif suffix == ".json":
        data = export.as_json(columns, rows, about)
    else:
        data = export.as_csv(columns, rows, about["taken"])
    try:
        await asyncio.to_thread(export.write, file, data, over=over)
    except FileExistsError:
        dashboard.say(f"{shown(str(file), 80)} exists meanwhile and is left as it is; export again", severity="warning")
    except UsageError as error:
        dashboard.say(str(error), severity="warning")
    else:
        dashboard.say(f"wrote {'the screen' if suffix == '.svg' else counted(len(rows), 'row')} to {file.absolute()}")
