"""A cluster inside a user-mode Linux kernel of its own, used from outside under its name like any other.

A process of its own holds the kernel as long as the cluster is up. In the cluster's run directory it has a socket, over
which each command of `cluster` gets one of the kernel's serial lines and runs `cluster` inside.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from types import FrameType

from . import locks, namespaces, paths, process, serial_lines
from .errors import ClusterError, Misuse
from .records import Identity
from .running_kernel import STATE, RunningKernel, inside_env, write_state

_LINES = 8
"""Programs that may run at once; another waits."""
_BOOT_S = 360.0
"""Longer than a kernel is given to boot."""
_END_S = 60.0
_SOCKET, _FAILED, _LAYERS = "socket", "failed", "layers"
"""Files in the run directory."""


def is_up(name: str) -> bool:
    """Return whether the cluster of that name runs in a kernel of its own."""
    return _holder(name) is not None


def up(name: str, layers: str, argv: Sequence[str]) -> int:
    """Boot a kernel for a cluster and run `cluster` there with `argv`, which brings it up; return the exit code.

    `layers` are those of its hosts: there is no network inside to make any. Nothing is left after a failure. Raises
    Misuse if a cluster of that name is up, ClusterError if the kernel does not boot.
    """
    busy = f"cluster {name} is being brought up or down by another process; wait for it, or choose another --name"
    with locks.exclusively(paths.lock_file(name), busy):
        if paths.run_dir(name).exists():
            raise Misuse(f"there is a cluster {name}; use it, or take it down with: cluster --name {name} down")
        code = 1
        try:
            _start_holder(name, layers)
            code = forward(name, argv)
        finally:
            if code != 0:
                _end(name)
        return code


def forward(name: str, argv: Sequence[str]) -> int:
    """Run `cluster` with these arguments inside the kernel of a cluster, with our streams, signals and terminal; return
    its exit code."""
    program = str(paths.HERE.parent / "cluster")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(paths.run_dir(name) / _SOCKET))
            return serial_lines.run(
                serial_lines.SerialLine(connection.fileno()), [program, *argv], env=inside_env(), cwd="/"
            )
        except (OSError, serial_lines.LineClosed):
            raise ClusterError(
                f"the kernel of cluster {name} has ended; clear it with: cluster --name {name} down"
            ) from None


def down(name: str) -> None:
    """End the kernel of a cluster and remove everything."""
    busy = f"cluster {name} is being brought up or down by another process; end that one first"
    with locks.exclusively(paths.lock_file(name), busy):
        _end(name)


def hold(name: str) -> None:
    """Boot the kernel of a cluster and give its lines to programs that ask for one, until SIGTERM."""
    signal.signal(signal.SIGTERM, _exit)
    folder = paths.run_dir(name)
    layers = (folder / _LAYERS).read_text()
    write_state(folder, layers)
    try:
        running = RunningKernel.boot(layers, folder, count=_LINES)
    except ClusterError as error:
        (folder / _FAILED).write_text(str(error))
        return
    free: queue.SimpleQueue[serial_lines.SerialLine] = queue.SimpleQueue()
    for line in running.lines:
        free.put(line)
    with running, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(folder / "socket.new"))  # only root enters the folder's parents with write access
        (folder / "socket.new").chmod(0o600)
        listener.listen()
        (folder / "socket.new").rename(folder / _SOCKET)
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_serve, args=(client, free), daemon=True).start()


def _serve(client: socket.socket, free: queue.SimpleQueue[serial_lines.SerialLine]) -> None:
    with client:
        line = free.get()
        try:
            serial_lines.relay(client, line)
        except serial_lines.LineClosed:
            os.kill(os.getpid(), signal.SIGTERM)  # the kernel has ended
        free.put(line)


def _start_holder(name: str, layers: str) -> None:
    folder = paths.run_dir(name)
    folder.mkdir(parents=True)
    (folder / _LAYERS).write_text(layers)
    log = folder / "holder"
    argv = [sys.executable, "-I", str(paths.HERE / "hold-kernel"), name]
    process.start_apart(argv, log, {"PATH": process.OUTSIDE_PATH, "SLURM_SHARE_CACHE": str(paths.cache())})

    def ended() -> bool:
        return (folder / _SOCKET).exists() or (folder / _FAILED).exists()

    process.wait_until(ended, "the boot of the kernel", _BOOT_S, why=log.read_text)
    if not (folder / _SOCKET).exists():
        raise ClusterError((folder / _FAILED).read_text())


def _end(name: str) -> None:
    holder = _holder(name)
    if holder:
        with contextlib.suppress(ProcessLookupError):
            os.kill(holder.pid, signal.SIGTERM)
        process.wait_until(lambda: not is_up(name), "the end of the kernel", _END_S)
    shutil.rmtree(paths.run_dir(name), ignore_errors=True)


def _holder(name: str) -> Identity | None:
    """Return the process that holds the cluster's kernel, if it is alive."""
    try:
        identity = Identity(**json.loads((paths.run_dir(name) / STATE).read_text())["holder"])
    except (OSError, ValueError, KeyError):
        return None
    return identity if namespaces.start_ticks(identity.pid) == identity.start_ticks else None


def _exit(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit
