"""Other threads of a rank that could still send a message while one of them waits for ever.

A thread could not if only another thread can continue it, and none will: it waits without a time limit for a lock, an
event, a queue, the end of a thread, work of a ThreadPoolExecutor, or for a message. Whether a thread that sleeps or
computes will send, nobody knows, so it counts as one that could. Python shows where each thread is
(sys._current_frames). A thread that was continued a moment ago may not have run yet, so the caller asks twice.
"""

from __future__ import annotations

import sys
import threading
import time
from types import CodeType, FrameType
from typing import Any

_HARMLESS = ("tqdm._monitor",)
"""Modules whose threads never send a message: a progress bar refreshes."""


def at_rest(ignored: threading.Thread | None) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Return how many other threads could send a message, and where the others are, to compare with the next answer.

    `ignored`: a thread of this package, which sends only what others have sent.
    """
    frames = sys._current_frames()
    own = threading.get_ident()
    active, places = 0, []
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if thread.ident == own or thread is ignored or type(thread).__module__ in _HARMLESS:
            continue
        if frame is not None and _waits_for_ever(frame):
            places.append((thread.ident or 0, frame.f_lasti))
        else:
            active += 1
    return active, tuple(sorted(places))


def _waits_for_ever(frame: FrameType) -> bool:
    code, values = frame.f_code, frame.f_locals
    if code is threading.Condition.wait.__code__:
        return values.get("timeout") is None or _is_in_receive(frame.f_back)
    if code is threading.Thread.run.__code__:
        return getattr(values.get("self"), "_target", None) is time.sleep  # the thread ends after it
    if code is threading.Thread.join.__code__:
        return values.get("timeout") is None
    before_3_13 = getattr(threading.Thread, "_wait_for_tstate_lock", None)
    if before_3_13 is not None and code is before_3_13.__code__:
        return bool(values.get("timeout", -1) == -1)
    return code is _code_of("concurrent.futures.thread", "_worker") or _is_in_receive(frame)


def _is_in_receive(frame: FrameType | None) -> bool:
    """Return whether the thread waits for a message, without a limit."""
    pause = _code_of(f"{__package__}.waits", "Waits", "pause")
    for _ in range(4):
        if frame is None:
            return False
        if frame.f_code is pause:
            return bool(getattr(frame.f_locals.get("wait"), "limit_s", 0) is None)
        frame = frame.f_back
    return False


def _code_of(module: str, *path: str) -> CodeType | None:
    """Return the code of a function of a module; None: the module was not imported, or has no such function."""
    found: Any = sys.modules.get(module)
    for name in path:
        found = getattr(found, name, None)
    return getattr(found, "__code__", None)
