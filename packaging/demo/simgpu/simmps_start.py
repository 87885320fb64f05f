"""SIMULATED MPS, the start of the control daemon: options, files, the lock, and what its starter is told."""

# ruff: noqa: PTH102, PTH112  (see nvidia-cuda-mps-control)
from __future__ import annotations

import fcntl
import os
import signal
import sys
import time

from simmps_common import STATIC_PARTITIONS, fault
from simmps_partitions import Partitions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from simmps import Daemon


class Options:
    """How the program was asked to start."""

    def __init__(self, argv: list[str], protocol: str) -> None:
        """Raise ValueError for other words than those of a start."""
        self.protocol = protocol
        self.is_static = False
        self.is_multiuser = False
        self.file: str | None = None
        self.config: dict[str, Any] = {}
        """Content of that file."""
        ways = []
        words = list(argv)
        while words:
            word = words.pop(0)
            if word in ("-d", "-f", "--daemon", "--foreground"):
                ways.append(word.lstrip("-")[0])
            elif protocol == "3" and word in ("-m", "--multiuser"):
                self.is_multiuser = True
            elif protocol == "3" and word in ("-a", "--apply") and words:
                self.file = words.pop(0)
            elif protocol == "2" and word in ("-S", "--static-partitioning"):
                self.is_static = True
            elif protocol != "2" or word != "-q":  # programs were seen to add -q to -S
                raise ValueError(word)
        if len(ways) != 1:
            raise ValueError("not a start")
        self.is_foreground = ways == ["f"]


def make_daemon(pipe: str, log: int | None, options: Options) -> Daemon:
    if options.protocol == "3":
        from simmps_v3 import DaemonV3

        return DaemonV3(pipe, log, options)
    from simmps_v2 import DaemonV2

    return DaemonV2(pipe, log, Partitions(options.is_static))


def open_logs(folder: str) -> int | None:
    """Open control.log if possible; fail as the real daemon does."""
    try:
        if not os.path.isdir(folder):
            os.mkdir(folder, 0o700)
        os.close(os.open(f"{folder}/server.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644))
        return os.open(f"{folder}/control.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        print(f"Warning: Failed writing log files to directory [{folder}]. No logs will be available.")
        return None


def start(pipe: str, options: Options) -> int:
    if "start" in (fault("mps_hang") or "").split():
        time.sleep(3600)
    if options.protocol == "3":
        from simmps_v3_file import read

        try:
            read(options, pipe)
        except ValueError as error:
            print(error)
            return 1
    log = open_logs(os.environ.get("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps"))
    umask = os.umask(0)
    try:
        if not os.path.isdir(pipe or "/"):
            os.mkdir(pipe, 0o777)
        lock = os.open(f"{pipe}/control_lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        print(f"Cannot access CUDA_MPS_PIPE_DIRECTORY={pipe}")
        return 1
    finally:
        os.umask(umask)
    sys.stdout.flush()
    if options.is_foreground:
        return become_daemon(pipe, log, lock, umask, None, options)
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        answer = os.read(reading, 4096)
        print(answer[1:].decode(), end="")
        return answer[0] if answer else 1
    os.close(reading)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os._exit(become_daemon(pipe, log, lock, umask, writing, options))


def become_daemon(pipe: str, log: int | None, lock: int, umask: int, parent: int | None, options: Options) -> int:
    """Take the lock, report the start to the parent, and serve until quit."""

    def tell(code: int, text: str = "") -> int:
        if parent is None:
            print(text, end="", flush=True)
        else:
            os.write(parent, bytes([code]) + text.encode())
            os.close(parent)
        return code

    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return tell(1, "An instance of this daemon is already running\n")
    if fault("mps_stubborn") is not None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    daemon = make_daemon(pipe, log, options)
    daemon.log(f"SIMULATED control daemon, in the manner of driver {daemon.style}")
    if daemon.style >= STATIC_PARTITIONS and daemon.protocol == 2:
        daemon.log(f"Static partitioning mode {'enabled' if options.is_static else 'disabled'}")
    daemon.read_environment()
    if not daemon.listen(umask):
        return tell(1)
    daemon.log(f"Starting control daemon using socket {pipe}/control")
    daemon.log(f"To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={pipe}")
    said = f"To connect CUDA applications to this daemon, set CUDA_MPS_PIPE_DIRECTORY={pipe}\n"
    tell(0, said if daemon.protocol == 3 else "")
    return daemon.run()
