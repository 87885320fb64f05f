"""A hook's environment, read as a letter from a stranger.

SLURM_* and the GPU variables are slurmd's own: it sets them after, and so over, anything that came along with the job
(Slurm 22.05 to 26.05, src/slurmd/common/ prep and run_script code). SPANK_* were written on the user's side of the
wire. All are bounded and matched against the form they must have; nothing of them ever reaches a shell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from .. import names, share_option
from ..errors import HookEnvError, OptionError, shown
from ..records import JobContext, ShareRequest

TYPE_CHECKING = False  # as mypy knows it, without the import of `typing`
if TYPE_CHECKING:
    from typing import Literal

_NUMBER = re.compile(r"[0-9]{1,10}", re.ASCII)
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}", re.ASCII)
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,254}", re.ASCII)
_DEVICE = re.compile(r"[0-9]{1,4}|(?:GPU|MIG)-[0-9A-Za-z/-]{4,80}", re.ASCII)
_UINT32_MAX = 2**32 - 1
_NO_GPUS = ("", "NoDevFiles")
"""NoDevFiles: what Slurm writes where a gres was granted without device files (gres_common.c)."""


def read(environ: Mapping[str, str]) -> JobContext:
    """The job that slurmd describes.

    Raises HookEnvError where Slurm's own variables are missing or are not what Slurm writes. A bad share value raises
    nothing: it comes from the user's side, and is answered with `share_problem`.
    """
    share, problem = _share(environ)
    return JobContext(
        job_id=_number(environ, "SLURM_JOB_ID"),
        uid=_number(environ, "SLURM_JOB_UID"),
        gid=_number(environ, "SLURM_JOB_GID"),
        node=_matching(environ, "SLURMD_NODENAME", _NODE),
        granted=_granted(environ),
        share=share,
        share_problem=problem,
        exclusive=_exclusive(environ),
        restart_count=_optional_number(environ, "SLURM_JOB_RESTART_COUNT"),
        user=_optional(environ, "SLURM_JOB_USER"),
        partition=_optional(environ, "SLURM_JOB_PARTITION"),
        sluid=_optional(environ, "SLURM_JOB_SLUID"),
        tasks=_optional_number(environ, "SLURM_JOB_NTASKS"),
        nodes=_optional_number(environ, "SLURM_JOB_NUM_NODES"),
        direct=environ.get(names.HOOK_DIRECT) == "1",
    )


def _share(environ: Mapping[str, str]) -> tuple[ShareRequest | None, str | None]:
    text = environ.get(names.HOOK_VARIABLE)
    if text is None:
        return None, None
    try:
        return share_option.parse(text), None
    except OptionError as error:
        return None, f"{names.HOOK_VARIABLE}={shown(text)} ({error.why})"


def _exclusive(environ: Mapping[str, str]) -> Literal["node", "user"] | None:
    """26.05 says SLURM_JOB_EXCLUSIVE=NODE|USER. Before that SLURM_JOB_OVERSUBSCRIBE says USER; its NO is also said of
    jobs that merely do not share cores, so it proves nothing."""
    word = environ.get("SLURM_JOB_EXCLUSIVE", environ.get("SLURM_JOB_OVERSUBSCRIBE"))
    if word == "USER":
        return "user"
    return "node" if environ.get("SLURM_JOB_EXCLUSIVE") == "NODE" else None


def _granted(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The job's GPUs: indices, or UUIDs since Slurm 25.11; both are in CUDA_VISIBLE_DEVICES, node-level in a hook."""
    variable = "CUDA_VISIBLE_DEVICES" if "CUDA_VISIBLE_DEVICES" in environ else "SLURM_JOB_GPUS"
    text = environ.get(variable, "")
    if text in _NO_GPUS:
        return ()
    devices = tuple(text.split(","))
    if len(text) > 65536 or not all(_DEVICE.fullmatch(device) for device in devices):
        raise HookEnvError(variable, text)
    return devices


def _number(environ: Mapping[str, str], variable: str) -> int:
    value = int(_matching(environ, variable, _NUMBER))
    if value > _UINT32_MAX:
        raise HookEnvError(variable, str(value))
    return value


def _optional_number(environ: Mapping[str, str], variable: str) -> int | None:
    """A number that slurmd leaves out where it has no credential at hand, or where nobody gave it to the job."""
    return _number(environ, variable) if variable in environ else None


def _matching(environ: Mapping[str, str], variable: str, form: re.Pattern[str]) -> str:
    value = environ.get(variable)
    if value is None or not form.fullmatch(value):
        raise HookEnvError(variable, value)
    return value


def _optional(environ: Mapping[str, str], variable: str) -> str | None:
    """A variable that slurmd leaves out when it has no credential at hand, and that only people read."""
    value = environ.get(variable)
    return value if value is not None and _WORD.fullmatch(value) else None
