"""`llsub --spmd`: a run of ranks of one program that send messages to each other."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from ..core.errors import UsageError
from ..slurm import script as script_reader
from ..slurm.script import Script
from ..spmd import checks
from ..spmd.errors import UsageError as WrongVariable
from ..triples import PackOptions, Triple, pack_options, planning, rank_python, together

PYTHON_ENDING = ".py"


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add --spmd to a parser."""
    spmd = parser.add_argument_group("ranks (processes that send messages to each other: slurm_share.spmd, pPython)")
    spmd.add_argument(
        "--spmd",
        action="store_true",
        help="run the processes as ranks of one program that start together; when a rank fails, the others are ended "
        f"(with --keep-going they go on). A {PYTHON_ENDING} file that is not executable runs with "
        f"${rank_python.ENV_PYTHON}, or the python3 in your PATH",
    )


def read_script(given: str, *, is_spmd: bool) -> Script:
    """Return the script. With --spmd, a Python program need not be executable. Raises UsageError."""
    return script_reader.read_script(given, to_execute=not (is_spmd and _is_python(given)))


def _is_python(given: str) -> bool:
    """Return whether a program needs a Python to run it: its name ends in .py, and it is not executable."""
    return given.endswith(PYTHON_ENDING) and not os.access(given, os.X_OK)


def with_ranks(
    asked: planning.TaskOptions,
    script: Script | None,
    triple: Triple,
    arguments: argparse.Namespace,
    *,
    note: Callable[[str], None],
    environ: Mapping[str, str] = os.environ,
) -> planning.TaskOptions:
    """Return the work of a run of ranks. `note` prints a note for the user.

    Raises UsageError for options that conflict with --spmd, variables with wrong values, and a Python without our
    package.
    """
    if script is None:
        raise UsageError(f"--spmd needs a program: llsub --spmd PROG {triple}")
    try:
        checks.check_variables(environ)
    except WrongVariable as error:
        raise UsageError(str(error)) from None
    options = (
        "tasks",
        "ntasks",
        "sweep",
        "zip",
        "distribution",
        "retries",
        "max_failures",
        "checkpoint_signal",
        "until_done",
        "task_time",
        "slot",
        "task_cpus",
        "task_mem",
        *PackOptions.__struct_fields__,
    )
    together.check([name for name in options if pack_options.is_written(getattr(arguments, name))], triple)
    if not arguments.local:
        settings = planning.read_settings(arguments.partition)
        together.check_nodes(triple.nodes, settings.messages.between_nodes)
    python = None
    if _is_python(script.path):
        python = rank_python.find(environ)
        doubt = rank_python.check(python, environ)
        if doubt:
            note(doubt)
    return replace(asked, pack=PackOptions(), python=python, together=True, keep_going=arguments.keep_going)
