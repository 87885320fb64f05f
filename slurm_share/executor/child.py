"""The process that runs the user's functions: forked by a worker, warm between calls, ended at any time.

It reads a call, runs it, and answers with the result as a pickle. It is the only process of a node that loads pickles.
"""

from __future__ import annotations

import atexit
import collections
import functools
import gc
import io
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any

from . import frames, links, run_folder

_functions: dict[bytes, Any] = {}
"""Functions by their pickles: a function is loaded once, as a module would be."""
_FUNCTIONS_MOST = 64


def main(sock: socket.socket, folder: str, config: run_folder.Config) -> None:
    """Run calls until the worker closes the socket. Does not return."""
    code = 0
    try:
        _prepare(config)
        if _initialize(sock, folder, config):
            links.send_blocking(sock, links.READY, b"")
            _serve(sock, folder)
        else:
            code = 1
    except (BrokenPipeError, ConnectionError):
        pass
    except BaseException:  # noqa: BLE001  (what is not caught here would go on in the worker's own code)
        traceback.print_exc()
        code = 1
    finally:
        _end(code)


def _end(code: int) -> None:
    """End as multiprocessing's processes do: after threads and atexit functions, with flushed output."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except BaseException:  # noqa: BLE001
        code = code or 1
    finally:
        os._exit(code)


def _prepare(config: run_folder.Config) -> None:
    for path in config.sys_path:
        if path not in sys.path:
            sys.path.append(path)
    if config.cwd:
        try:
            os.chdir(config.cwd)
            if "" not in sys.path:
                sys.path.insert(0, "")
        except OSError:
            pass  # the folder of the client does not exist here; the run's is as good
    gc.unfreeze()


def _initialize(sock: socket.socket, folder: str, config: run_folder.Config) -> bool:
    """Run the initializer; return False if it failed, which the worker is told."""
    if not config.has_initializer:
        return True
    try:
        initializer, arguments = pickle.loads(frames.read_own(f"{folder}/{run_folder.INITIALIZER}"))
        initializer(*arguments)
    except BaseException:  # noqa: BLE001  (as ProcessPoolExecutor does)
        text = traceback.format_exc()
        sys.stderr.write(f"the initializer of the executor failed\n{text}")
        links.send_blocking(sock, links.FAILED, text.encode(errors="replace"))
        return False
    return True


def _serve(sock: socket.socket, folder: str) -> None:
    while (message := links.receive_blocking(sock)) is not None:
        client = int.from_bytes(message[1][:4], "little")
        (call,) = frames.unpack_calls(message[1][4:], client)
        result = _run(call, folder)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                pass  # the user's function closed or replaced it
        del call
        links.send_blocking(sock, links.RESULT, frames.pack_result(result))


def _run(call: frames.Call, folder: str) -> frames.Result:
    began = time.perf_counter()
    kind, content = frames.VALUE, b""
    try:
        function, args, kwargs = _load(call, folder)
    except BaseException as error:  # noqa: BLE001
        kind, content = frames.RAISED, raised(error)
    else:
        try:
            value = function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001  (as ProcessPoolExecutor does: SystemExit is a result too)
            kind, content = frames.RAISED, raised(error)
        else:
            try:
                content = dumps(value)
            except BaseException as error:  # noqa: BLE001
                kind, content = frames.RAISED, raised(error)
            del value
    result = frames.Result(call.client, call.index, kind, time.perf_counter() - began, content, 0, call.attempt)
    if len(content) >= frames.LARGE_BYTES:
        _store(result, folder, call.attempt)
    return result


def _load(call: frames.Call, folder: str) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    function = _functions.get(call.function)
    if function is None:
        function = pickle.loads(call.function)
        if len(_functions) >= _FUNCTIONS_MOST:
            _functions.clear()
        _functions[call.function] = function
    if call.flags & frames.IN_FILE:
        # Read by this user's own descriptor, since a pickle of somebody else could run anything.
        with open(frames.open_own(f"{folder}/{run_folder.DATA}/{call.arguments.decode()}"), "rb") as file:
            args, kwargs = pickle.load(file)
    else:
        args, kwargs = pickle.loads(call.arguments)
    return function, args, kwargs


def check_cloudpickle() -> None:
    """Raise ImportError, with the way out, if this Python has no cloudpickle: nothing could be sent to a worker."""
    try:
        _pickler()
    except ImportError as error:
        raise ImportError(
            f"calls are sent with cloudpickle, which {sys.executable} does not have ({error}): "
            "python3 -m pip install cloudpickle",
            name=error.name,
        ) from error


def dumps(value: object) -> bytes:
    """Return a pickle of a value; functions and classes that are not importable are in it by value."""
    with io.BytesIO() as file:
        _pickler()(file).dump(value)
        return file.getvalue()


@functools.cache
def _pickler() -> type[pickle.Pickler]:
    """Return cloudpickle's pickler, which keeps the file of a function in it: tracebacks show its lines.

    Since 3.1.2 cloudpickle writes "<dynamic-code>" in its place.
    """
    import cloudpickle

    reduce = getattr(cloudpickle.cloudpickle, "_code_reduce", None)
    if reduce is None:
        return cloudpickle.CloudPickler  # type: ignore[no-any-return]

    def code(value: CodeType) -> tuple[object, ...]:
        make, words, *rest = reduce(value)
        return make, tuple(value.co_filename if word == "<dynamic-code>" else word for word in words), *rest

    table = collections.ChainMap({CodeType: code}, cloudpickle.CloudPickler.dispatch_table)
    return type("Pickler", (cloudpickle.CloudPickler,), {"dispatch_table": table})


def raised(error: BaseException) -> bytes:
    """Return an exception as the content of a result: its pickle if that can be read again, and its text."""
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    text = "".join(lines)
    error.__traceback__ = None
    try:
        pickled = dumps(error)
        pickle.loads(pickled)
    except BaseException as problem:  # noqa: BLE001  (a class of the user's may raise anything)
        pickled = b""
        text += f"\n(the exception could not be pickled: {type(problem).__name__}: {problem})"
    name = type(error).__qualname__
    try:
        said = str(error)
    except BaseException:  # noqa: BLE001
        said = ""
    return pickle.dumps((pickled, name, said, text))


def _store(result: frames.Result, folder: str, attempt: int) -> None:
    """Write a large result into a file of its own."""
    name = f"r{result.client}.{result.index}.{attempt}.{os.getpid()}"
    try:
        frames.write_new(f"{folder}/{run_folder.DATA}/{name}", result.content)
    except OSError as error:
        size = len(result.content)
        result.kind = frames.UNSTORED
        result.content = f"its result of {size} bytes could not be written into {folder}: {error.strerror}".encode()
        return
    result.content, result.flags = name.encode(), frames.IN_FILE


def fork(
    folder: str, config: run_folder.Config, environment: dict[str, str], close: Callable[[], None]
) -> tuple[int, socket.socket]:
    """Fork a child that runs calls; return its pid and the worker's end of its socket. Raises OSError.

    environment: variables to set there. close: closes, in the child, what belongs to the worker.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    try:
        ours.close()
        os.setpgid(0, 0)
        links.die_with_parent()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        close()
        os.environ.update(environment)
        sys.argv = [""]
        if not isinstance(sys.stdin, io.TextIOBase) or not sys.stdin.closed:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        os._exit(1)
    main(theirs, folder, config)
    os._exit(1)
