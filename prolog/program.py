"""The programs that slurmd starts: slurm-share-prolog and slurm-share-epilog."""

from __future__ import annotations

import os
import sys

from slurm_share.core import names
from slurm_share.share import hook

TYPE_CHECKING = False  # mypy takes it for True; importing `typing` would take half the time of an ordinary job's Prolog
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn


def prolog() -> NoReturn:
    """Run the Prolog as a program of its own."""
    from .prolog import main

    _be_program(main)


def epilog() -> NoReturn:
    """Run the Epilog as a program of its own."""
    from .epilog import main

    _be_program(main)


def _be_program(main: Callable[[], int]) -> NoReturn:
    """Run a hook as the program that slurmd starts, and exit with its code.

    To save time, garbage collection is off (the process lives for about 0.1 s), and the interpreter is not shut down
    properly, since all files are written by then. If the front found no helper, the hook starts one for later hooks.
    """
    if sys.argv[1:] == [hook.HELPER_ARGUMENT]:
        from . import helper

        helper.program()
    if sys.argv[1:2] == [hook.AFTER_ARGUMENT]:
        import importlib

        from .helper import leave_slurmds_cgroup

        leave_slurmds_cgroup()
        # By name: it asks Slurm, the agent and slurmdbd, which no hook does.
        importlib.import_module("slurm_share.report.after_end").program(sys.argv[2:])
    hook.begin()
    has_front = os.environ.pop(names.ENV_FRONT, "") != ""
    code = main()
    if has_front and hook.wants_helper():
        from . import helper_start

        helper_start.start(lambda text: hook.report("hooks", text))
    hook.leave(code)
