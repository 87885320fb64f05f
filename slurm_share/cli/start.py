"""The entry point of every command: makes Ctrl-C safe, and only then imports the command.

A command imports for 0.1 to 0.3 s before it reaches `core.command`, which turns an interrupt into exit code 130. Until
then, and while the interpreter ends, SIGINT has the system's default effect: the process ends without a traceback, and
a shell shows 130.
"""

from __future__ import annotations

import signal

EXIT_INTERRUPTED = 130
EXIT_FAILED = 1
EXIT_NOT_DONE = 3
"""Exit code of a failed `slurm-share doctor`, whose 1 and 2 are findings (see cli/doctor.py; a test compares)."""
EXIT_USAGE = 2
HOSTS = ("ClusterShell", "h11", "httpx", "msgspec", "prometheus_client", "pynvml", "rich")
"""What the extra `hosts` installs, by the names that are imported; a test compares with pyproject.toml."""
PACKAGED = "/opt/slurm-share/lib/python3/site-packages/"
"""Where the packages have it all: what is missing there was lost."""
SYSTEM_COMMANDS = "/usr/bin"


def llsub() -> int:
    """Run `llsub`."""
    return _run("slurm_share.cli.llsub")


def llmapreduce() -> int:
    """Run `llmapreduce`."""
    return _run("slurm_share.cli.llmapreduce")


def llstat() -> int:
    """Run `llstat`."""
    return _run("slurm_share.cli.llstat")


def llkill() -> int:
    """Run `llkill`."""
    return _run("slurm_share.cli.llkill")


def llfree() -> int:
    """Run `llfree`."""
    return _run("slurm_share.cli.llfree")


def llload() -> int:
    """Run `llload`."""
    return _run("slurm_share.cli.llload")


def llload_tui() -> int:
    """Run `llload-tui`."""
    return _run("slurm_share.cli.llload_tui")


def slurm_share() -> int:
    """Run `slurm-share`."""
    return _run("slurm_share.cli.main")


def _run(module: str) -> int:
    """Import the module and run its `main`; return the exit code.

    A caller that ignores SIGINT (`nohup`, a background job of a shell script) keeps it ignored.
    """
    heard = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    if heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    import importlib

    try:
        main = importlib.import_module(module).main
    except Exception as error:  # noqa: BLE001  (whatever a module that is torn does: there is nobody above)
        return _broken(error)
    try:
        if heard:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return int(main())
    except (ImportError, SyntaxError) as error:
        return _broken(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        if heard:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _broken(error: Exception) -> int:
    """Say which module cannot be imported, and return the exit code. Nothing of ours is imported: it may be torn."""
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
    said = f"its Python modules cannot be loaded: {what}{where}; install slurm-share on this host anew"
    if without_hosts:
        ours = f"{SYSTEM_COMMANDS}/{program}"
        is_other = os.access(ours, os.X_OK) and os.path.realpath(ours) != os.path.realpath(sys.argv[0])
        there = f"; this host's own is {ours}" if is_other else ""
        said = (
            f"{missing} is not installed in {sys.prefix}: commands need the extra `hosts` "
            f"(pip install 'slurm-share[hosts]'){there}"
        )
    if sys.stderr is not None:
        print(f"{name}: {said}", file=sys.stderr)
    if is_doctor:
        return EXIT_NOT_DONE
    return EXIT_USAGE if without_hosts else EXIT_FAILED
