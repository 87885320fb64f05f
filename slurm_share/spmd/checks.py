"""Checks of a program and of the user's variables before a run. llsub checks the variables too.

Without pathlib, because each rank would pay for its import.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

from .errors import UsageError
from .names import ENV_PPYTHON_MPI, ENV_RENDEZVOUS, ENV_SEND_LIMIT, ENV_START_S, ENV_TRANSPORT, START_S

SIZES = ("OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE")
"""Variables with the number of processes: of Open MPI, MVAPICH, and Hydra (MPICH, Intel MPI) and Slurm's PMI-2."""
PMIX_RANK, STEP_SIZE = "PMIX_RANK", "SLURM_STEP_NUM_TASKS"
"""PMIx sets only the rank; the number of processes is that of srun's tasks."""


def check_program(path: str) -> None:
    """Raise UsageError if there is no such program, or it cannot be read."""
    if not os.path.exists(path):  # noqa: PTH110
        raise UsageError(f"there is no program {path}")
    if os.path.isdir(path) and not os.path.exists(os.path.join(path, "__main__.py")):  # noqa: PTH110,PTH112,PTH118
        raise UsageError(f"{path} is a folder without __main__.py; give a program")
    if not os.access(path, os.R_OK) and not is_executable(path):
        raise UsageError(f"the program {path} cannot be read: {os.strerror(errno.EACCES)}")


def is_executable(path: str) -> bool:
    """Return whether a file is a program of its own, and not one for this Python."""
    return not path.endswith(".py") and os.path.isfile(path) and os.access(path, os.X_OK)  # noqa: PTH113


def check_variables(environ: Mapping[str, str]) -> None:
    """Raise UsageError for a wrong value of LLSUB_START_S, LLSUB_SEND_LIMIT or LLSUB_TRANSPORT."""
    start_s(environ)
    send_limit_bytes(environ)
    uses_mpi(environ)


def start_s(environ: Mapping[str, str]) -> float:
    """Return LLSUB_START_S or its default. Raises UsageError."""
    text = environ.get(ENV_START_S, "")
    try:
        seconds = float(text) if text else START_S
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e9:
        raise UsageError(f"{ENV_START_S} is a number of seconds above 0 and below 1e9, not {text!r}")
    return seconds


def send_limit_bytes(environ: Mapping[str, str]) -> int | None:
    """Return LLSUB_SEND_LIMIT, None if it is not set. Raises UsageError."""
    text = environ.get(ENV_SEND_LIMIT, "")
    if not text:
        return None
    try:
        limit = int(text)
    except ValueError:
        limit = 0
    if limit < 1:
        raise UsageError(f"{ENV_SEND_LIMIT} is a number of bytes, not {text!r}")
    return limit


def uses_mpi(environ: Mapping[str, str]) -> bool:
    """Return whether messages go over mpi4py: a variable says so, or an MPI has started several processes.

    Raises UsageError if LLSUB_TRANSPORT has an unknown value.
    """
    said = environ.get(ENV_TRANSPORT, "")
    if said not in ("", "mpi", "own"):
        raise UsageError(f"{ENV_TRANSPORT}={said}: write mpi (mpi4py) or own (slurm_share's), or unset it")
    if said:
        return said == "mpi"
    if environ.get(ENV_PPYTHON_MPI) == "1":
        return True
    return ENV_RENDEZVOUS not in environ and world_size(environ)[1] > 1


def world_size(environ: Mapping[str, str]) -> tuple[str, int]:
    """Return the variable with the number of processes that an MPI has started, and the number; ("", 1): none."""
    names = [*SIZES, *([STEP_SIZE] if PMIX_RANK in environ else [])]
    found = ((name, int(environ[name])) for name in names if environ.get(name, "").isdecimal())
    return max(found, key=lambda one: one[1], default=("", 1))
