"""Give a result to its future."""

from __future__ import annotations

import concurrent.futures
import pickle
from typing import Any

from . import frames, run_folder
from .errors import ExecutorError, NotReadable, NotStored, RemoteTraceback, TimeLimit, WorkerLost
from .frames import Result

_KINDS: dict[int, type[Exception]] = {
    frames.LOST: WorkerLost,
    frames.TOO_LONG: TimeLimit,
    frames.UNSTORED: NotStored,
    frames.UNREADABLE: NotReadable,
    frames.REFUSED: ExecutorError,
}


def settle(future: concurrent.futures.Future[Any], result: Result, folder: str) -> None:
    """Set the value or the exception of a future."""
    who = f"call {result.client}.{result.index}"
    if result.kind in _KINDS:
        text = result.content.decode(errors="replace")
        tries = f" at attempt {result.attempt}" if result.attempt > 1 else ""
        set_exception(future, _KINDS[result.kind](f"{who} has no result{tries}: {text}"))
        return
    try:
        content = result.content
        if result.flags & frames.IN_FILE:
            content = frames.read_own(f"{folder}/{run_folder.DATA}/{content.decode()}")
    except OSError as error:
        set_exception(future, NotReadable(f"the result of {who} cannot be read in {folder}: {error.strerror}"))
        return
    if result.kind == frames.RAISED:
        set_exception(future, _exception(content, who))
        return
    try:
        value = pickle.loads(content)
    except BaseException as error:  # noqa: BLE001  (a class of the user's may raise anything)
        problem = NotReadable(f"the result of {who} cannot be unpickled here: {type(error).__name__}: {error}")
        problem.__cause__ = error
        set_exception(future, problem)
        return
    try:
        future.set_result(value)
    except concurrent.futures.InvalidStateError:
        pass  # cancelled at this moment


def _exception(content: bytes, who: str) -> BaseException:
    """Return an exception that a call raised, with its traceback there as the cause."""
    pickled, name, said, text = pickle.loads(content)
    problem = "it could not be pickled there"
    if pickled:
        try:
            error = pickle.loads(pickled)
            if isinstance(error, BaseException):
                error.__cause__ = RemoteTraceback(text)
                return error
            problem = "its pickle is something else"
        except BaseException as failure:  # noqa: BLE001
            problem = f"it cannot be unpickled here: {type(failure).__name__}: {failure}"
    error = NotReadable(f"{who} raised {name}: {said} ({problem})")
    error.__cause__ = RemoteTraceback(text)
    return error


def set_exception(future: concurrent.futures.Future[Any], error: BaseException) -> None:
    """Set the exception of a future that has no result yet."""
    try:
        future.set_exception(error)
    except concurrent.futures.InvalidStateError:
        pass
