"""Raises an exception at a chosen step of a call: at the places where Python itself does so.

CPython runs the handlers of signals, and raises what PyThreadState_SetAsyncExc left for a thread, at three places: at
the entry of a function, after a call of a C function, and where a loop jumps back. `Interrupted(n)` counts these
places below a `with` statement, in this package and in the standard library, and at the n-th does what it was given.
"""

from __future__ import annotations

import dis
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_PACKAGE = f"{os.sep}slurm_share{os.sep}spmd{os.sep}"
_CALLS = {number for name, number in dis.opmap.items() if name in ("CALL", "CALL_KW", "CALL_FUNCTION_EX")}
_BACK = {number for name, number in dis.opmap.items() if name == "JUMP_BACKWARD"}


class Interrupted:
    """A context manager: at the n-th step of the calls in its block, `act` runs, which may raise."""

    def __init__(self, number: int, act: Callable[[], None], inside: str = _PACKAGE) -> None:
        self.left, self._act, self._inside = number, act, inside
        self.where = ""
        """File and line of the step; empty: the calls had fewer steps."""
        self._last: dict[FrameType, int] = {}
        self._codes: dict[CodeType, dict[int, int]] = {}
        self._depth = 0

    def __enter__(self) -> Interrupted:
        self._own = sys._getframe(1)
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_exception: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, _argument: Any) -> Any:
        above = frame.f_back
        if above is not None:
            self._last.pop(above, None)  # a function of Python: its return is no such place
        if frame.f_code.co_filename == __file__:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if frame.f_code.co_name not in ("<lambda>", "<genexpr>"):
            self._step(frame)
        return self._opcode

    def _opcode(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event != "opcode":
            self._last.pop(frame, None)
            return self._opcode
        code = frame.f_code
        if code not in self._codes:
            self._codes[code] = {one.offset: one.opcode for one in dis.get_instructions(code)}
        opcode = self._codes[code].get(frame.f_lasti, 0)
        if self._last.pop(frame, None) is not None or opcode in _BACK:
            self._step(frame)
        if opcode in _CALLS:
            self._last[frame] = opcode
        return self._opcode

    def _step(self, frame: FrameType) -> None:
        if self.left <= 0 or not self._is_inside(frame):
            return
        self.left -= 1
        if self.left == 0:
            self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_qualname}"
            sys.settrace(None)
            self._act()

    def _is_inside(self, frame: FrameType | None) -> bool:
        while frame is not None and frame is not self._own:
            if self._inside in frame.f_code.co_filename:
                return True
            frame = frame.f_back
        return False
