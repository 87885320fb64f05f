"""Read the environment of a hook as untrusted input.

slurmd sets SLURM_* and the GPU variables itself, after those that came with the job, which it replaces (Slurm 22.05 to
26.05, src/slurmd/common/ prep and run_script code). SPANK_* come from the user. The length and the form of each value
are checked, and none reaches a shell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..core import names, numbers
from ..core.errors import HookEnvError, OptionError
from ..core.records import ShareRequest
from ..node.gpus.driver import is_uuid
from .records import JobContext

TYPE_CHECKING = False  # as mypy knows it, without the import of `typing`
if TYPE_CHECKING:
    from typing import Literal

_ALNUM = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_IN_NODE = _ALNUM | frozenset("._-")
_IN_VALUE = _ALNUM | frozenset("_.@+-")
_NAME_MOST = 255
_NO_GPUS = ("", "NoDevFiles")
"""Slurm writes NoDevFiles for a gres that was granted without device files (gres_common.c)."""


def read(environ: Mapping[str, str], parse_share: Callable[[str], ShareRequest | None]) -> JobContext:
    """Return the job that slurmd describes. `parse_share` reads the text of `--share-gpu`, and raises OptionError.

    Raises HookEnvError where Slurm's own variables are missing or are not what Slurm writes. A bad share value comes
    from the user, raises nothing, and is in `share_problem`.
    """
    share, problem = _share(environ, parse_share)
    return JobContext(
        job_id=_number(environ, "SLURM_JOB_ID"),
        uid=_number(environ, "SLURM_JOB_UID"),
        gid=_number(environ, "SLURM_JOB_GID"),
        node=_matching(environ, "SLURMD_NODENAME", _is_node),
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
        node_list=environ.get("SLURM_JOB_NODELIST"),
        is_batch="SLURM_JOB_STDIN" in environ,  # salloc and srun have no such file (seen on 24.11 and 26.05)
    )


def _share(
    environ: Mapping[str, str], parse: Callable[[str], ShareRequest | None]
) -> tuple[ShareRequest | None, str | None]:
    text = environ.get(names.HOOK_VARIABLE)
    if text is None:
        return None, None
    try:
        return parse(text), None
    except OptionError as error:
        return None, f"{names.HOOK_VARIABLE}: {error}"


def _exclusive(environ: Mapping[str, str]) -> Literal["node", "user"] | None:
    """Return whether the nodes are the job's, or its user's, alone; None: neither, or not known.

    26.05 sets SLURM_JOB_EXCLUSIVE=NODE|USER. Before that SLURM_JOB_OVERSUBSCRIBE is USER; its NO is also set for jobs
    that merely do not share cores, so it proves nothing.
    """
    value = environ.get("SLURM_JOB_EXCLUSIVE", environ.get("SLURM_JOB_OVERSUBSCRIBE"))
    if value == "USER":
        return "user"
    return "node" if environ.get("SLURM_JOB_EXCLUSIVE") == "NODE" else None


def _granted(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the job's GPUs on this node: indices, or UUIDs since Slurm 25.11. A hook finds either in
    CUDA_VISIBLE_DEVICES."""
    variable = "CUDA_VISIBLE_DEVICES" if "CUDA_VISIBLE_DEVICES" in environ else "SLURM_JOB_GPUS"
    text = environ.get(variable, "")
    if text in _NO_GPUS:
        return ()
    devices = tuple(text.split(","))
    if len(text) > 65536 or not all(_is_index(device) or is_uuid(device) for device in devices):
        raise HookEnvError(variable, text)
    return devices


def _number(environ: Mapping[str, str], variable: str) -> int:
    value = numbers.whole(environ.get(variable), numbers.UINT32_MOST)
    if value is None:
        raise HookEnvError(variable, environ.get(variable))
    return value


def _optional_number(environ: Mapping[str, str], variable: str) -> int | None:
    """Return a number, or None where slurmd leaves it out: it has no credential, or the job has no such number."""
    return _number(environ, variable) if variable in environ else None


def _is_index(text: str) -> bool:
    return len(text) <= 4 and numbers.whole(text) is not None


def _is_node(text: str) -> bool:
    return 1 <= len(text) <= _NAME_MOST and text[0] in _ALNUM and _IN_NODE.issuperset(text)


def _is_value(text: str) -> bool:
    """Return whether a text can be the name of a user or of a partition."""
    return 1 <= len(text) <= _NAME_MOST and (text[0] in _ALNUM or text[0] == "_") and _IN_VALUE.issuperset(text)


def _matching(environ: Mapping[str, str], variable: str, is_valid: Callable[[str], bool]) -> str:
    value = environ.get(variable)
    if value is None or not is_valid(value):
        raise HookEnvError(variable, value)
    return value


def _optional(environ: Mapping[str, str], variable: str) -> str | None:
    """Return a text that is shown to people only, or None where slurmd leaves it out or it is no name."""
    value = environ.get(variable)
    return value if value is not None and _is_value(value) else None
