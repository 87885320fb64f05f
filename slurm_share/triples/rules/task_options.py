"""Parse and write the options of one task: its time, place in the order, cores, host memory and part of a GPU.

The same texts stand on the command line, in `#LLSUB` lines and in JSON; `name` is the option as the user wrote it.
"""

from __future__ import annotations

import re
import shlex

from msgspec.structs import replace

from ...core import numbers
from ...core.errors import UsageError, shown
from ...packing import TaskSpec
from . import pack_options

NONE = "none"
"""Value for no limit, which takes back an option for the lines below."""
LINE_OPTIONS = ("gpu-mem", "gpus-per-task", "name", "task-time", "priority", "task-cpus", "task-mem")
"""The options of an `#LLSUB` line in a tasks file."""
NEED_PACK = ("gpu-mem", "gpus-per-task")
"""Those that only a packed run has."""
PRIORITY_MOST = 1_000_000
CPUS_MOST = 65_536
"""More cores than any node has."""
MEM_MOST_MIB = 1024 * 1024 * 1024
TIME_MOST_S = 366 * 86_400.0
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_WITH_UNIT = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhd])", re.ASCII)
_OF_SBATCH = re.compile(r"(?:(?P<days>[0-9]{1,4})-)?(?P<parts>[0-9]{1,9}(?::[0-9]{1,9}){0,2})", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,9})([mgt])i?b?", re.ASCII | re.IGNORECASE)
_MIB_PER = {"M": 1, "G": 1024, "T": 1024 * 1024}
_PRIORITY = re.compile(r"[+-]?[0-9]{1,8}", re.ASCII)


def with_option(spec: TaskSpec, name: str, text: str, *, at: str | None = None) -> TaskSpec:
    """Return the options with one of LINE_OPTIONS set to a text. Raises UsageError, which names the option.

    `at`: the option in messages, such as `gpu_mem=` in JSON; None: as on the command line.
    """
    at = f"--{name}" if at is None else at
    match name:
        case "gpu-mem":
            return pack_options.with_gpu_mem(spec, text, f"{at}=" if at.startswith("--") else at)
        case "gpus-per-task":
            return pack_options.with_gpus(spec, text, at)
        case "name":
            return replace(spec, name=pack_options.parse_name(text, at))
        case "task-time":
            return replace(spec, timeout_s=parse_time(text, at))
        case "priority":
            return replace(spec, priority=parse_priority(text, at))
        case "task-cpus":
            return replace(spec, cpus=parse_cpus(text, at))
        case "task-mem":
            return replace(spec, mem_mib=parse_mem(text, at))
    raise ValueError(name)


def parse_time(text: str, name: str) -> float | None:
    """Return a time in seconds; None for `none`. Raises UsageError.

    The forms are those of sbatch (minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S), and a number with s, m, h or d.
    """
    if text == NONE:
        return None
    seconds = _seconds(text)
    if seconds is None or not 0 < seconds <= TIME_MOST_S:
        raise UsageError(
            f"{name} is a time such as 90s, 10m, 2h, or as sbatch has it: 10 (minutes), 10:00, 1:00:00, 1-12, up to a "
            f"year, or {NONE}; not {shown(text) or 'empty'}"
        )
    return seconds


def _seconds(text: str) -> float | None:
    if match := _WITH_UNIT.fullmatch(text):
        return float(match[1]) * _UNITS[match[2]]
    match = _OF_SBATCH.fullmatch(text)
    if match is None:
        return None
    parts = [int(part) for part in match["parts"].split(":")]
    if match["days"] is not None:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
        return int(match["days"]) * 86_400.0 + hours * 3600 + minutes * 60 + seconds
    if len(parts) == 3:
        return float(parts[0] * 3600 + parts[1] * 60 + parts[2])
    return float(parts[0] * 60 + (parts[1] if len(parts) == 2 else 0))


def time_text(seconds: float) -> str:
    """Return a time as `parse_time` reads it, in the largest unit that gives a whole number."""
    for unit in ("d", "h", "m"):
        if seconds % _UNITS[unit] == 0:
            return f"{seconds / _UNITS[unit]:.0f}{unit}"
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"


def parse_priority(text: str, name: str) -> int:
    """Return a priority. Raises UsageError."""
    value = int(text) if _PRIORITY.fullmatch(text) else PRIORITY_MOST + 1
    if abs(value) > PRIORITY_MOST:
        raise UsageError(
            f"{name} is a whole number from -{PRIORITY_MOST} to {PRIORITY_MOST}, higher ones first, not "
            f"{shown(text) or 'empty'}"
        )
    return value


def parse_cpus(text: str, name: str) -> int | None:
    """Return a number of cores; None for `none`. Raises UsageError."""
    if text == NONE:
        return None
    cpus = numbers.whole(text, CPUS_MOST)
    if not cpus:
        raise UsageError(
            f"{name} is a whole number of cores from 1 to {CPUS_MOST}, or {NONE}, not {shown(text) or 'empty'}"
        )
    return cpus


def parse_mem(text: str, name: str) -> int | None:
    """Return an amount of host memory in MiB; None for `none`. Raises UsageError."""
    if text == NONE:
        return None
    match = _SIZE.fullmatch(text)
    mib = int(match[1]) * _MIB_PER[match[2].upper()] if match else 0
    if not 0 < mib <= MEM_MOST_MIB:
        raise UsageError(
            f"{name} is a size with its unit, such as 8G or 800M, up to 1024T, or {NONE}, not {shown(text) or 'empty'}"
        )
    return mib


def line_of(spec: TaskSpec, base: TaskSpec, *, is_packed: bool) -> str:
    """Return the options of an `#LLSUB` line that sets all options of the tasks below it; the rest as in `texts_of`."""
    texts = texts_of(spec, base, is_packed=is_packed)
    return " ".join(f"--{name}={shlex.quote(text)}" for name, text in texts.items())


def texts_of(spec: TaskSpec, base: TaskSpec, *, is_packed: bool) -> dict[str, str]:
    """Return the options of a task, name in LINE_OPTIONS -> its text.

    `base`: the options of the command line, which a new run may not have. Options that are as without any option, both
    in `spec` and in `base`, are left out.
    """
    default = TaskSpec()
    texts = {
        "gpu-mem": pack_options.gpu_mem_text(spec),
        "gpus-per-task": "0.5" if spec.is_half else str(spec.gpus),
        "name": spec.name,
        "task-time": NONE if spec.timeout_s is None else time_text(spec.timeout_s),
        "priority": str(spec.priority),
        "task-cpus": NONE if spec.cpus is None else str(spec.cpus),
        "task-mem": NONE if spec.mem_mib is None else f"{spec.mem_mib}M",
    }
    fields = {"task-time": "timeout_s", "priority": "priority", "task-cpus": "cpus", "task-mem": "mem_mib"}
    said = {}
    for name, text in texts.items():
        field = fields.get(name)
        is_default = field is not None and all(getattr(one, field) == getattr(default, field) for one in (spec, base))
        if not is_default and (is_packed or name not in NEED_PACK):
            said[name] = text
    return said
