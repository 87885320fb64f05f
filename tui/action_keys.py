"""Handle the keys for actions: ask for confirmation, have `actions.py` act, and report the result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from slurm_share.core import terminal as screen
from slurm_share.core.errors import SlurmShareError
from slurm_share.load import Survey, text

from . import clipboard, keymap
from .action_rules import Action, PlannedAction
from .target import Target
from .widgets.grid import Grid

if TYPE_CHECKING:
    from textual.screen import Screen

    from .actions import Commands
    from .program import MainScreen
    from .view import View

Answer = TypeVar("Answer")
PATIENCE_S = 1.0
"""Then it is said that something is waited for."""
LIMIT_S = 150.0
"""Longer than Slurm is waited for: then something hangs for good, as a file server does, and other keys go on."""
NAMED_MOST = 60
"""Columns of what is named in a note."""


def copy(board: MainScreen) -> None:
    """Copy to the terminal's clipboard, and say what was copied."""
    lines = () if board.shown is None else board.shown.copied()
    if not lines:
        board.dashboard.say("there is nothing here to copy")
        return
    clipboard.put(board.app, lines)
    what = screen.shortened(lines[0], NAMED_MOST) if len(lines) == 1 else text.count_text(len(lines), "line")
    more = "" if len(lines) == 1 else f": {screen.shortened(lines[0], NAMED_MOST)} ..."
    board.dashboard.say(f"copied {what}{more}")


# --- What asks first --------------------------------------------------------------------------------------------------


def cancel(board: MainScreen) -> None:
    """Cancel the job under the cursor, or the marked ones."""
    _begin(board, "cancel", _cancel)


def signal(board: MainScreen) -> None:
    """Signal the task or process under the cursor, or its job."""
    _begin(board, "signal", _signal)


def output(board: MainScreen) -> None:
    """Show the output of the job under the cursor."""
    _begin(board, "output", _output)


Do = Callable[["MainScreen", "Commands", tuple[Target, ...], Survey], Coroutine[Any, Any, None]]


def _begin(board: MainScreen, action: Action, do: Do) -> None:
    """Say why not, or begin; one thing at a time."""
    dashboard, view = board.dashboard, board.shown
    commands, picture = dashboard.commands, dashboard.picture
    if commands is None:
        dashboard.say("nothing can be touched from here")
        return
    targets = () if view is None else view.targets()
    if why := commands.why_not(action, targets, None if picture is None else picture.survey):
        dashboard.say(why, severity="warning")
        return
    if action != "output" and _is_on_another_row(view):
        dashboard.say("the row that you were on is gone: put the cursor on what you mean", severity="warning")
        return
    # Output is read from file systems that may hang: that must not delay an action.
    group = "output" if action == "output" else "acting"
    if any(worker.group == group and not worker.is_finished for worker in board.workers):
        dashboard.say("one thing at a time: the last one is not over yet", severity="warning")
        return
    assert picture is not None
    board.dashboard.typed.begin_lookup()
    board.run_worker(_run_lookup(board, do(board, commands, targets, picture.survey)), group=group)


async def _run_lookup(board: MainScreen, doing: Coroutine[Any, Any, None]) -> None:
    try:
        await doing
    finally:
        board.dashboard.typed.end_lookup()


async def _over(board: MainScreen, screen: Screen[Answer]) -> Answer | None:
    """What is answered there. Keys are for it from now on; those after its answer wait for what that opens."""
    answer = board.app.push_screen(screen, wait_for_dismiss=True)
    board.dashboard.typed.end_lookup()
    return await answer


def _is_on_another_row(view: View | None) -> bool:
    """Whether what would be touched came under the cursor by itself, when the row that somebody had chosen went."""
    grid = getattr(view, "grid", None)
    return isinstance(grid, Grid) and grid.is_on_another_row and not grid.marked_rows()


async def _cancel(board: MainScreen, commands: Commands, targets: tuple[Target, ...], survey: Survey) -> None:
    planned = await _slowly(board, partial(commands.ask_cancel, targets, survey))
    if planned is not None:
        await _confirm(board, commands, planned)


async def _signal(board: MainScreen, commands: Commands, targets: tuple[Target, ...], survey: Survey) -> None:
    from .screens.signal import SignalChoice

    choice = await _over(board, SignalChoice(commands.scopes(targets[0], survey)))
    if choice is None:
        return
    board.dashboard.typed.begin_lookup()
    planned = await _slowly(board, partial(commands.ask_signal, targets[0], *choice, survey))
    if planned is not None:
        await _confirm(board, commands, planned)


async def _output(board: MainScreen, commands: Commands, targets: tuple[Target, ...], survey: Survey) -> None:
    from .screens.log import LogScreen

    files = await _slowly(board, partial(commands.ask_output, targets[0], survey))
    if files:
        closes = keymap.keys_of("output", board.dashboard.keys)
        await _over(board, LogScreen(files, lambda file: commands.open_output(file, targets[0]), closes=closes))


async def _confirm(board: MainScreen, commands: Commands, planned: PlannedAction) -> None:
    """Ask, and after a yes do it."""
    from .screens.confirm import Confirm

    if not await _over(board, Confirm(planned)):
        board.dashboard.say("no: nothing was done")
        return
    done = await _slowly(board, partial(commands.carry_out, planned))
    if done is not None:
        board.dashboard.say("; ".join(done))
        board.dashboard.read_now()


async def _slowly(board: MainScreen, do: Callable[[], Answer]) -> Answer | None:
    """What it answers; None where it failed, which is said. It runs in a thread that nobody waits for at the end: a
    Slurm that does not answer holds up neither a key nor the way out."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Answer] = loop.create_future()

    def settle(answer: Answer | None, error: Exception | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(answer)  # type: ignore[arg-type]

    def run() -> None:
        answer, failed = None, None
        try:
            answer = do()
        except Exception as error:  # noqa: BLE001 - whoever waits for it would wait for ever
            failed = error
        try:
            loop.call_soon_threadsafe(settle, answer, failed)
        except RuntimeError:
            pass  # the dashboard has ended meanwhile, and its loop with it

    threading.Thread(target=run, name="acting", daemon=True).start()
    await asyncio.wait({future}, timeout=PATIENCE_S)
    if not future.done():
        board.dashboard.say("this takes a moment ...")
        await asyncio.wait({future}, timeout=LIMIT_S - PATIENCE_S)
    if not future.done():
        future.cancel()
        board.dashboard.say(f"no answer within {LIMIT_S:g} s: nobody knows what became of it", severity="error")
        return None
    try:
        return await future
    except (SlurmShareError, OSError) as error:
        board.dashboard.say(str(error), severity="error")
    except Exception as error:  # noqa: BLE001 - a fault of ours, and no reason to lose what is on the screen
        board.dashboard.say(f"a fault of slurm-share: {error!r}", severity="error")
    return None
