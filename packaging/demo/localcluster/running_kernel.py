"""A running user-mode Linux kernel over this machine's own root: boot it, run programs in it, end it.

Its root is the machine's, and what is written there stays in its memory: nothing of the machine changes, except in the
one folder `kept`. It has cgroup v2 only, and no network. A program is started over a serial line: see serial_lines.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import cluster as clusters
from . import kernel, namespaces, paths, process, serial_lines
from .errors import ClusterError
from .progress import say
from .records import PARTS, RELEASES

_BOOT_S = 300.0
"""Two seconds on an idle machine."""
_WATCH_S = 0.5
_MEMORY_RATIO = 0.4
_MEMORY_MIB = (1024, 4096)
"""The kernel's memory: this ratio of the machine's, within these limits. It is used as it is touched."""
STATE = "kernel.json"
ON_V2 = "SLURM_SHARE_TEST_ON_V2"
"""Set for every program inside: every cluster that a test asks for has cgroup v2."""


class RunningKernel:
    """A kernel that runs, and its serial lines; as a context manager it is ended at the end."""

    def __init__(
        self, version: str, lines_to: Sequence[serial_lines.SerialLine], started: subprocess.Popen[bytes], log: Path
    ) -> None:
        self.version = version
        self.lines = lines_to
        self._started = started
        self._log = log
        self._ready = threading.Event()

    @classmethod
    def boot(cls, layers: str, folder: Path, *, count: int = 1, kept: Path | None = None) -> RunningKernel:
        """Boot the kernel with `count` serial lines; return when they are served. Its console goes to `folder`/console.

        `layers` are those that clusters inside use. Programs write to this machine in the folder `kept` only. Raises
        Misuse where there is no kernel, ClusterError if it does not boot.
        """
        made = kernel.provide()
        pairs = [socket.socketpair() for _ in range(count)]
        theirs = [end.detach() for _, end in pairs]
        log = folder / "console"
        argv = kernel.start_argv(made, boot_arguments(made, theirs, layers, kept, _memory_mib()))
        started = process.start(argv, log, theirs)
        for fd in theirs:
            os.close(fd)
        running = cls(made.version, [serial_lines.SerialLine(end.detach()) for end, _ in pairs], started, log)
        threading.Thread(target=running._watch, daemon=True).start()
        try:
            for line in running.lines:
                if line.receive()[0] != serial_lines.READY:
                    raise serial_lines.LineClosed
        except serial_lines.LineClosed:
            running.end()
            raise ClusterError(f"the user-mode Linux kernel {made.version} did not boot: {running.said()}") from None
        except BaseException:
            running.end()
            raise
        running._ready.set()
        return running

    def said(self) -> str:
        """Return the last lines of the console."""
        return " | ".join(self._log.read_text(errors="replace").strip().splitlines()[-30:])

    def run(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str) -> int:
        """Run a program inside as root, with our streams, signals and terminal; return its exit code."""
        return serial_lines.run(self.lines[0], argv, env=env, cwd=cwd)

    def end(self) -> None:
        """Cut the kernel's power. Can be repeated."""
        self._started.kill()  # and with it all that it has started: see process.bound_to_us
        self._started.wait()
        for line in self.lines:
            with contextlib.suppress(OSError):
                os.close(line.fd)

    def _watch(self) -> None:
        """End a kernel that panics, which would stand still for ever, or that does not boot in time."""
        late = time.monotonic() + _BOOT_S
        while self._started.poll() is None:
            if "Kernel panic" in self.said() or (time.monotonic() > late and not self._ready.is_set()):
                self._started.kill()
            time.sleep(_WATCH_S)

    def __enter__(self) -> RunningKernel:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


# ---- one program ----------------------------------------------------------------------------------------------------


def run_once(argv: Sequence[str]) -> int:
    """Boot a kernel, run one program in it, in the caller's folder and environment, and end it; return the exit code.

    The layers of clusters, of the release that is to be tested or of all, are made before: there is no network inside.
    What the program writes below the checkout's build/kernel stays.
    """
    wanted = os.environ.get("SLURM_SHARE_TEST_RELEASE")
    releases = [wanted] if wanted in RELEASES else list(RELEASES)
    stack = ":".join(clusters.layers_of(release, PARTS)[1] for release in releases)
    kept = paths.CHECKOUT / "build/kernel"
    kept.mkdir(parents=True, exist_ok=True)
    folder = paths.RUN_ROOT / f"kernel.{os.getpid()}"
    _clear_ended()
    try:
        write_state(folder, stack)
        begin = time.monotonic()
        with RunningKernel.boot(stack, folder, kept=kept) as running:
            say(f"  kernel {running.version} with cgroup v2 only: booted in {time.monotonic() - begin:.1f} s")
            try:
                return running.run(argv, env=inside_env(), cwd=str(Path.cwd()))
            except serial_lines.LineClosed:
                raise ClusterError(f"the user-mode Linux kernel ended: {running.said()}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for left in (paths.RUN_ROOT, kept):
            with contextlib.suppress(OSError):
                left.rmdir()  # empty, unless another cluster is up or something was kept


def _clear_ended() -> None:
    """Remove the folders of runs that were killed; their kernels ended with them."""
    for folder in paths.RUN_ROOT.glob("kernel.*"):
        if not Path(f"/proc/{folder.name.partition('.')[2]}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def write_state(folder: Path, stack: str) -> None:
    """Write which layers are in use, so that they are not removed, and that this process holds the kernel."""
    folder.mkdir(parents=True, exist_ok=True)
    holder = {"pid": os.getpid(), "start_ticks": namespaces.start_ticks(os.getpid())}
    (folder / STATE).write_text(json.dumps({"layers": stack, "holder": holder}))


def inside_env() -> dict[str, str]:
    """Return the environment of programs inside: the caller's, since the files are the same."""
    return {**os.environ, ON_V2: "1"}


def boot_arguments(
    made: kernel.Kernel, fds: Sequence[int], layers: str, kept: Path | None, memory_mib: int
) -> list[str]:
    """Return the kernel's command line; serial line N is the file descriptor `fds`[N]. kernel-init reads the values."""
    files = [str(file) for file in kernel.module_files(made)]
    return [
        *(f"mem={memory_mib}M", "root=/dev/root", "rootfstype=hostfs", f"rootflags={kernel.MACHINE}", "ro"),
        *(*kernel.FLAGS, "con0=null,fd:1"),
        *(f"ssl{number}=fd:{fd}" for number, fd in enumerate(fds)),
        f'init="{paths.HERE / "kernel-init"}"',
        f'KERNEL_PYTHON="{sys.executable}"',
        f'KERNEL_CACHE="{paths.cache()}"',
        f'KERNEL_LAYERS="{layers}"',
        f'KERNEL_MODULES="{":".join(files)}"',
        f'KERNEL_KEPT="{kept or ""}"',
        f"KERNEL_LINES={len(fds)}",
    ]


def _memory_mib() -> int:
    have = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
    lowest, highest = _MEMORY_MIB
    return max(lowest, min(highest, int(have * _MEMORY_RATIO)))
