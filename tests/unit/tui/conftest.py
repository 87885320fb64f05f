"""Runs tests that are coroutines, each in an event loop of its own."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from textual._compositor import Compositor
from textual._context import visible_screen_stack
from textual.screen import Screen


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine; leave any other test to pytest."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(autouse=True)
def draws_only_what_a_test_looks_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what textual draws for a terminal that is not there: nobody sees it, and it is most of a test's time.

    `dashboards.screen_text` draws the whole screen, and so does a picture of it.
    """
    draw = Compositor.render_update

    def render_update(self: Compositor, full: bool = False, *, screen_stack: list[Screen] | None = None, **how: bool):
        if full:
            return draw(self, full, screen_stack, **how)
        visible_screen_stack.set(screen_stack or [])
        self._dirty_regions.clear()
        return None

    monkeypatch.setattr(Compositor, "render_update", render_update)
