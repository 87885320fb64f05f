"""The entry point of every command: makes Ctrl-C safe, and only then imports the command.

A command imports for 0.1 to 0.3 s before it reaches `cli.door`, which turns an interrupt into exit code 130. Until
then, and while the interpreter ends, SIGINT has the system's default effect: the process ends without a traceback, and
a shell shows 130.
"""

from __future__ import annotations

import signal

EXIT_INTERRUPTED = 130


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
    return _run("slurm_share_tui.main")


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

    main = importlib.import_module(module).main
    try:
        if heard:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return int(main())
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        if heard:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
