"""Signals during a step that must not be cut: their handlers run at its end.

Python runs the handler of a signal in the main thread between any two bytecodes, and its exception (KeyboardInterrupt,
a time limit by `signal.setitimer`) comes out of whatever runs there: between the read of a frame and its entry in a
queue the frame would be lost. So the main thread runs no handler while it holds the lock of a transport. The handler
runs when the lock is released, or at once while the thread waits in `poll_unlocked`.

A signal mask would not do that. With a second thread in the program the kernel gives the signal to that one, and Python
still runs the handler in the main thread; a mask also costs two system calls for each message. So `Gate` puts a
`DelayedHandler` in the place of each handler: those that are there, and through `signal.signal` those that come.
`signal.getsignal` returns the program's own.

An exception that another thread raises in this one (PyThreadState_SetAsyncExc) is not delayed, because Python has
nothing that could hold it. It is safe while a message goes through a ring (`rings`). Between the calls that read or
write a socket it may still break a connection or leave the lock held: use a signal to stop a wait.
"""

from __future__ import annotations

import functools
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_Handler = Callable[[int, FrameType | None], Any]


class DelayedHandler:
    """Handler of a signal that waits for the end of a step of the main thread."""

    def __init__(self, handler: _Handler, gate: Gate) -> None:
        self.handler, self._gate = handler, gate

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        if self._gate.is_shut:
            self._gate.delayed.append((self.handler, number))
            return None
        try:
            return self.handler(number, frame)
        except BaseException as error:
            self._gate.raised = error
            raise


class Gate:
    """The handlers of a process's signals, and whether they must wait."""

    def __init__(self) -> None:
        self.is_shut = False
        """Whether handlers wait. Only the main thread changes it."""
        self.delayed: list[tuple[_Handler, int]] = []
        """Handlers to run, with the numbers of their signals."""
        self.raised: BaseException | None = None
        """The last exception of a handler."""
        self._is_installed = False

    def install(self) -> None:
        """Delay the handlers that are set and those that will be. Only the main thread can do that."""
        if self._is_installed or threading.current_thread() is not threading.main_thread():
            return
        self._is_installed = True
        set_handler, get_handler = signal.signal, signal.getsignal

        def signal_(signalnum: Any, handler: Any) -> Any:
            is_function = callable(handler) and not isinstance(handler, (DelayedHandler, signal.Handlers))
            return _own(set_handler(signalnum, DelayedHandler(handler, self) if is_function else handler))

        def getsignal(signalnum: Any) -> Any:
            return _own(get_handler(signalnum))

        for ours, theirs in ((signal_, set_handler), (getsignal, get_handler)):
            ours.__name__, ours.__qualname__, ours.__doc__ = theirs.__name__, theirs.__name__, theirs.__doc__
        signal.signal, signal.getsignal = signal_, getsignal
        for number in signal.valid_signals():
            handler = get_handler(number)
            if callable(handler):
                signal_(number, handler)

    def open(self) -> None:
        """Run the handlers that have waited, then let signals through. If a handler raises, it is open as well."""
        try:
            self.let_through()
        finally:
            self.is_shut = False

    def let_through(self) -> None:
        """Run the handlers that have waited, and open. If a handler raises, it may stay shut."""
        while True:
            if self.delayed:
                self.run_delayed()
            self.is_shut = False
            if not self.delayed:
                return
            self.is_shut = True

    def run_delayed(self) -> None:
        """Run the handlers that have waited. If one raises, the signals after it are raised again."""
        while self.delayed:
            handler, number = self.delayed.pop(0)
            try:
                handler(number, sys._getframe(1))
            except BaseException as error:
                self.raised = error
                left, self.delayed = self.delayed, []
                for _handler, later in left:
                    signal.raise_signal(later)
                raise


def _own(handler: Any) -> Any:
    return handler.handler if isinstance(handler, DelayedHandler) else handler


GATE = Gate()


class _Handed(threading.local):
    """The message that a thread has got from the queues, and that its program does not have yet."""

    is_wanted = False
    message: Any = None


HANDED = _Handed()


def puts_back(method: Callable[..., Any]) -> Any:
    """Decorate a call that receives one message: if an interrupt ends the call, the message is put back.

    An error of the call itself, such as an object that cannot be unpickled, takes the message out, as in mpi4py.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        HANDED.message, HANDED.is_wanted = None, True
        # The main thread runs no handler from here on, except while it waits: of two exceptions shortly after each
        # other the second would come before the message is back.
        shuts = threading.current_thread() is threading.main_thread() and not GATE.is_shut
        if shuts:
            GATE.is_shut = True
        try:
            result = method(self, *args, **named)
            if shuts:
                GATE.let_through()
            return result
        except BaseException as error:
            if shuts:
                GATE.is_shut = True  # before any call: a handler may have raised with the gate open
            try:
                message, HANDED.message = HANDED.message, None
                if message is not None and (error is GATE.raised or not isinstance(error, Exception)):
                    message.restore()
                    self.transport.put_back(message)
            finally:
                if shuts:
                    GATE.open()
            raise
        finally:
            HANDED.message, HANDED.is_wanted = None, False

    return call


class TransportLock:
    """The lock of a transport, a context manager. While the main thread holds it, the handlers of signals wait."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._main = threading.main_thread().ident
        self._was_shut = False
        """Whether the gate was shut before the main thread took the lock; then its end does not open it."""
        GATE.install()

    def __enter__(self) -> None:
        if threading.get_ident() == self._main:
            was_shut, GATE.is_shut = GATE.is_shut, True
            self.lock.acquire()
            self._was_shut = was_shut
        else:
            self.lock.acquire()

    def __exit__(self, *_exception: object) -> None:
        if threading.get_ident() != self._main:
            self.lock.release()
            return
        was_shut = self._was_shut
        self.lock.release()
        if not was_shut:
            GATE.is_shut = False
            if GATE.delayed:
                GATE.run_delayed()

    def raise_interrupt(self) -> None:
        """Run the delayed handlers in the main thread, although the lock is held; they may raise."""
        if GATE.delayed and threading.get_ident() == self._main:
            GATE.run_delayed()

    def poll_unlocked(self, poller: Any, timeout: float | None) -> list[tuple[int, int]]:
        """Release the lock during `poller.poll(timeout)`, and return its result."""
        main = threading.get_ident() == self._main
        self.lock.release()
        try:
            if main:
                GATE.is_shut = False
                self.raise_interrupt()  # from before the line above; a later one is raised at once
            events: list[tuple[int, int]] = poller.poll(timeout)
        finally:
            if main:
                GATE.is_shut = True  # first, because an exception within `acquire` would leave the lock free
            self.lock.acquire()
        return events
