"""Handle the keys for actions: ask for confirmation, let `actions.py` act, and report the result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from slurm_share.core import terminal as screen
from slurm_share.core.errors import SlurmShareError
from slurm_share.core.text import counted
from slurm_share.load import Survey

from . import clipboard, keymap
from .action_rules import Action, PlannedAction
from .location import Target

if TYPE_CHECKING:
    from textual.screen import Screen

    from .actions import Commands
    from .program import MainScreen

Answer = TypeVar("Answer")
PATIENCE_S = 1.0
"""After this many seconds a note says that the action takes longer."""
LIMIT_S = 150.0
"""Longest wait for an action, seconds, more than for Slurm: after that a file server hangs, and other keys must
work."""
NAMED_MOST = 60
"""Most columns of a name in a note."""


def copy(main_screen: MainScreen) -> None:
    lines = () if main_screen.shown is None else main_screen.shown.copy_lines()
    if not lines:
        main_screen.dashboard.say("there is nothing here to copy")
        return
    clipboard.put(main_screen.app, lines)
    first = screen.shortened(lines[0], NAMED_MOST)
    what = first if len(lines) == 1 else f"{counted(len(lines), 'line')}: {first} ..."
    main_screen.dashboard.say(f"copied {what}")


def begin(main_screen: MainScreen, action: Action) -> None:
    """Begin an action, one at a time, or say why it is not possible."""
    dashboard, view = main_screen.dashboard, main_screen.shown
    commands, picture = dashboard.commands, dashboard.picture
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
    if any(worker.group == group and not worker.is_finished for worker in main_screen.workers):
        dashboard.say("one action at a time: the last one has not finished", severity="warning")
        return
    assert picture is not None
    do = {"cancel": _cancel, "signal": _signal, "output": _output}[action]
    dashboard.typed.begin_lookup()
    main_screen.run_worker(_run_lookup(main_screen, do(main_screen, commands, targets, picture.survey)), group=group)


async def _run_lookup(main_screen: MainScreen, doing: Coroutine[Any, Any, None]) -> None:
    try:
        await doing
    finally:
        main_screen.dashboard.typed.end_lookup()


async def _over(main_screen: MainScreen, screen: Screen[Answer]) -> Answer | None:
    """Show a screen and return its answer. Keys go to it from now on; those after its answer wait for what it opens."""
    answer = main_screen.app.push_screen(screen, wait_for_dismiss=True)
    main_screen.dashboard.typed.end_lookup()
    return await answer


async def _cancel(main_screen: MainScreen, commands: Commands, targets: tuple[Target, ...], survey: Survey) -> None:
    planned = await _slowly(main_screen, partial(commands.ask_cancel, targets, survey))
    if planned is not None:
        await _confirm(main_screen, commands, planned)


async def _signal(main_screen: MainScreen, commands: Commands, targets: tuple[Target, ...], survey: Survey) -> None:
    from .screens.signal import SignalChoice

    choice = await _over(main_screen, SignalChoice(commands.scopes(targets[0], survey)))
    if choice is None:
        return
    main_screen.dashboard.typed.begin_lookup()
    planned = await _slowly(main_screen, partial(commands.ask_signal, targets[0], *choice, survey))
    if planned is not None:
        await _confirm(main_screen, commands, planned)


async def _output(main_screen: MainScreen, commands: Commands, targets: tuple[Target, ...], survey: Survey) -> None:
    from .screens.log import LogScreen

    files = await _slowly(main_screen, partial(commands.ask_output, targets[0], survey))
    if files:
        closes = keymap.keys_of("output", main_screen.dashboard.keys)
        await _over(main_screen, LogScreen(files, lambda file: commands.open_output(file, targets[0]), closes=closes))


async def _confirm(main_screen: MainScreen, commands: Commands, planned: PlannedAction) -> None:
    """Ask for confirmation, and act after a yes."""
    from .screens.confirm import Confirm

    if not await _over(main_screen, Confirm(planned)):
        main_screen.dashboard.say("nothing was done")
        return
    done = await _slowly(main_screen, partial(commands.carry_out, planned))
    if done is not None:
        main_screen.dashboard.say("; ".join(done))
        main_screen.dashboard.read_now()


async def _slowly(main_screen: MainScreen, do: Callable[[], Answer]) -> Answer | None:
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
            main_screen.dashboard.say("this takes a moment ...")
            await asyncio.wait({answer}, timeout=LIMIT_S - PATIENCE_S)
        if answer.done():
            return answer.result()
        main_screen.dashboard.say(f"no answer within {LIMIT_S:g} s: the result is unknown", severity="error")
    except (SlurmShareError, OSError) as error:
        main_screen.dashboard.say(str(error), severity="error")
    except Exception as error:  # noqa: BLE001 - our own fault must not end the dashboard
        main_screen.dashboard.say(f"internal error of slurm-share: {error!r}", severity="error")
    finally:
        answer.cancel()  # a later result goes nowhere, not even to an event loop that has ended
    return None
