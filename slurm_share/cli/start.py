"""The entry points of all commands. They make Ctrl-C safe before they import a command.

The import of a command takes 0.1 to 0.3 s before `core.command` turns an interrupt into exit code 130. Until then, and
while the interpreter ends, SIGINT has the system's default effect: the process ends without a traceback, and a shell
shows 130.
"""

from __future__ import annotations

import signal

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from collections.abc import Callable

EXIT_INTERRUPTED = 130
EXIT_FAILED = 1
EXIT_NOT_DONE = 3
"""Exit code of a failed `slurm-share doctor`, for which 1 and 2 are findings (see cli/doctor.py; a test compares)."""
EXIT_USAGE = 2
HOSTS = ("ClusterShell", "h11", "httpx", "msgspec", "prometheus_client", "psutil", "pynvml", "rich")
"""Modules of the extra `hosts`, by their import names; a test compares them with pyproject.toml."""
PACKAGED = "/opt/slurm-share/lib/python3/site-packages/"
"""Folder of the .deb and .rpm, which contain all modules: a missing one was removed."""
SYSTEM_COMMANDS = "/usr/bin"


def _command(module: str, *others: str) -> Callable[[], int]:
    """Return the entry point of the command in a module of `slurm_share.cli`. `others`: modules that it imports late,
    since not every host has them."""
    return lambda: _run(f"slurm_share.cli.{module}", *others)


llsub = _command("llsub")
llmapreduce = _command("llmapreduce")
llstat = _command("llstat")
llkill = _command("llkill")
llfree = _command("llfree")
llload = _command("llload")
llload_tui = _command("llload_tui", "slurm_share_tui.main")
slurm_share = _command("main")


def _run(module: str, *others: str) -> int:
    """Import the modules and run the first one's `main`; return the exit code.

    Keeps SIGINT ignored if the caller ignores it (`nohup`, a background job of a shell script).
    """
    is_heard = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    if is_heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    import importlib

    try:
        for other in others:
            importlib.import_module(other)
        main = importlib.import_module(module).main
    except Exception as error:  # noqa: BLE001  (a damaged module may raise anything)
        return _broken(error)
    try:
        if is_heard:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return int(main())
    except (ImportError, SyntaxError) as error:
        return _broken(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        if is_heard:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _broken(error: Exception) -> int:
    """Print which module cannot be imported; return the exit code. Imports no module of ours, which may be damaged."""
    import os
    import sys

    missing = error.name if isinstance(error, ModuleNotFoundError) and error.name else ""
    without_hosts = missing.partition(".")[0] in HOSTS and not __file__.startswith(PACKAGED)
    frame, file = error.__traceback__, getattr(error, "filename", None) or getattr(error, "path", None) or ""
    while frame is not None and not file:
        code = frame.tb_frame.f_code.co_filename
        file = "" if frame.tb_next is not None or code.startswith("<") else code
        frame = frame.tb_next
    program = os.path.basename(sys.argv[0]) or "slurm-share"  # noqa: PTH119
    is_doctor = program == "slurm-share" and sys.argv[1:2] == ["doctor"]
    what = " ".join(f"{type(error).__name__}: {error}".split())
    where = f" ({file})" if file and file not in what else ""
    name = f"{program} doctor" if is_doctor else program
    sentence = f"its Python modules cannot be loaded: {what}{where}; install slurm-share on this host anew"
    if without_hosts:
        ours = f"{SYSTEM_COMMANDS}/{program}"
        is_other = os.access(ours, os.X_OK) and os.path.realpath(ours) != os.path.realpath(sys.argv[0])
        there = f"; this host's own is {ours}" if is_other else ""
        sentence = (
            f"{missing} is not installed in {sys.prefix}: commands need the extra `hosts` "
            f"(pip install 'slurm-share[hosts]'){there}"
        )
    if sys.stderr is not None:
        print(f"{name}: {sentence}", file=sys.stderr)
    if is_doctor:
        return EXIT_NOT_DONE
    return EXIT_USAGE if without_hosts else EXIT_FAILED
