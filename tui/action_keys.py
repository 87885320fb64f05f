"""Handle the keys for actions: ask for confirmation, let `actions.py` act, and report the result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from slurm_share.core import terminal
from slurm_share.core.errors import SlurmShareError
from slurm_share.core.text import counted
from slurm_share.load import Survey

from . import clipboard, keymap
from .action_rules import Action, PlannedAction
from .location import JobPlace

if TYPE_CHECKING:
    from textual.screen import Screen

    from .actions import JobActions
    from .program import Program

Answer = TypeVar("Answer")
PATIENCE_S = 1.0
"""After this many seconds a note says that the action takes longer."""
LIMIT_S = 150.0
"""Longest wait for an action, seconds, more than for Slurm: after that a file server hangs, and other keys must
work."""
NAMED_MOST = 60
"""Most columns of a name in a note."""


def copy(dashboard: Program) -> None:
    view = dashboard.main_screen.shown
    lines = () if view is None else view.copy_lines()
    if not lines:
        dashboard.say("there is nothing here to copy")
        return
    clipboard.put(dashboard, lines)
    first = terminal.shortened(lines[0], NAMED_MOST)
    what = first if len(lines) == 1 else f"{counted(len(lines), 'line')}: {first} ..."
    dashboard.say(f"copied {what}")


def begin(dashboard: Program, action: Action) -> None:
    """Begin an action, one at a time, or say why it is not possible."""
    view, commands, picture = dashboard.main_screen.shown, dashboard.commands, dashboard.picture
    if commands is None:
        dashboard.say("this dashboard can act on nothing")
        return
    targets = () if view is None else view.targets()
    if why := commands.why_not(action, targets, None if picture is None else picture.survey):
        dashboard.say(why, severity="warning")
        return
    # The cursor stays where it was when the row that the user chose is gone.
    if action != "output" and view is not None and view.grid.is_on_another_row and not view.grid.marks:
        dashboard.say("the row that you chose is gone: put the cursor on the right row", severity="warning")
        return
    # Output is read from file systems that may hang: that must not delay an action.
    group = "output" if action == "output" else "acting"
    if any(worker.group == group and not worker.is_finished for worker in dashboard.workers):
        dashboard.say("one action at a time: the last one has not finished", severity="warning")
        return
    assert picture is not None
    do = {"cancel": _cancel, "signal": _signal, "output": _output}[action]
    dashboard.typed.begin_lookup()
    dashboard.main_screen.run_worker(
        _run_lookup(dashboard, do(dashboard, commands, targets, picture.survey)), group=group
    )


async def _run_lookup(dashboard: Program, doing: Coroutine[Any, Any, None]) -> None:
    try:
        await doing
    finally:
        dashboard.typed.end_lookup()


async def _over(dashboard: Program, screen: Screen[Answer]) -> Answer | None:
    """Show a screen and return its answer. Keys go to it from now on; those after its answer wait for what it opens."""
    answer = dashboard.push_screen(screen, wait_for_dismiss=True)
    dashboard.typed.end_lookup()
    return await answer


async def _cancel(dashboard: Program, commands: JobActions, targets: tuple[JobPlace, ...], survey: Survey) -> None:
    planned = await _slowly(dashboard, partial(commands.ask_cancel, targets, survey))
    if planned is not None:
        await _confirm(dashboard, commands, planned)


async def _signal(dashboard: Program, commands: JobActions, targets: tuple[JobPlace, ...], survey: Survey) -> None:
    from .screens.confirm import SignalChoice

    choice = await _over(dashboard, SignalChoice(commands.scopes(targets[0], survey)))
    if choice is None:
        return
    dashboard.typed.begin_lookup()
    planned = await _slowly(dashboard, partial(commands.ask_signal, targets[0], *choice, survey))
    if planned is not None:
        await _confirm(dashboard, commands, planned)


async def _output(dashboard: Program, commands: JobActions, targets: tuple[JobPlace, ...], survey: Survey) -> None:
    from .screens.log import LogScreen

    files = await _slowly(dashboard, partial(commands.ask_output, targets[0], survey))
    if files:
        closes = keymap.keys_of("output", dashboard.keys)
        await _over(dashboard, LogScreen(files, lambda file: commands.open_output(file, targets[0]), closes=closes))


async def _confirm(dashboard: Program, commands: JobActions, planned: PlannedAction) -> None:
    """Ask for confirmation, and act after a yes."""
    from .screens.confirm import Confirm

    if not await _over(dashboard, Confirm(planned)):
        dashboard.say("nothing was done")
        return
    done = await _slowly(dashboard, partial(commands.carry_out, planned))
    if done is not None:
        dashboard.say("; ".join(done))
        dashboard.read_now()


async def _slowly(dashboard: Program, do: Callable[[], Answer]) -> Answer | None:
    """Return the result of `do`; None if it failed, which is reported. It runs in a thread that nothing joins, so that
    a hanging Slurm delays neither keys nor the end of the dashboard."""
    future: Future[Answer] = Future()
    future.set_running_or_notify_cancel()  # from now on only `run` ends it

    def run() -> None:
        try:
            future.set_result(do())
        except Exception as error:  # noqa: BLE001 - the future must be resolved in any case
            future.set_exception(error)

    threading.Thread(target=run, name="acting", daemon=True).start()
    answer = asyncio.wrap_future(future)
    try:
        await asyncio.wait({answer}, timeout=PATIENCE_S)
        if not answer.done():
            dashboard.say("this takes a moment ...")
            await asyncio.wait({answer}, timeout=LIMIT_S - PATIENCE_S)
        if answer.done():
            return answer.result()
        dashboard.say(f"no answer within {LIMIT_S:g} s: the result is unknown", severity="error")
    except (SlurmShareError, OSError) as error:
        dashboard.say(str(error), severity="error")
    except Exception as error:  # noqa: BLE001 - our own fault must not end the dashboard
        dashboard.say(f"internal error of slurm-share: {error!r}", severity="error")
    finally:
        answer.cancel()  # a later result goes nowhere, not even to an event loop that has ended
    return None
