"""The texts of values in llload and the dashboard: unknown, none, memory, loads, times, node lists. Values in, text
out."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from rich.cells import cell_len, set_cell_size

from ..core import nodelist, terminal
from ..core.terminal import ELLIPSIS
from ..core.terminal import cut as cut
from ..core.text import joules_text
from .rules.figures import NodeFigures
from .rules.flags import MEANINGS, WRONG_NOW, needs_attention
from .rules.thresholds import CPU_BAND, GPU_BAND, HELD_IDLE, HELD_IDLE_S
from .snapshot import NodeLoad

if TYPE_CHECKING:  # llload's table of nodes does not load the rows of jobs
    from .rules.job_rows import Sum

UNKNOWN = "?"
NONE = "-"
Triple = tuple[str, str, str]
"""TOTAL, USED, FREE."""
Letter = Literal["L", "H", "!", ""]
"""The mark of a cell besides its text: L a hint, H full or wasted, ! wrong now. Only the last is red."""
ABOUT_IDLE = (
    f"idle is below {HELD_IDLE:.0f} % for {HELD_IDLE_S / 60:.0f} minutes; ?: not known yet; 1?: without GPUs for which "
    "it is not known"
)
ABOUT_NOTE = (
    f"cL cH: CPU load below {CPU_BAND[0]:.0f} or above {CPU_BAND[1]:.0f} % of the CPUs in use; "
    f"gL gH: GPU load below {GPU_BAND[0]:.0f} or above {GPU_BAND[1]:.0f} % of the GPUs in use; "
) + "; ".join(f"{code}: {MEANINGS[code]}" for code in ("iL", "m!", "mH", "v!", "n!"))

ABOUT_SEVERITY = "dead (n!), full (m! mH v!), waste (iL), hint (cL cH gL gH)"


def number(value: int | None, none: str = UNKNOWN) -> str:
    """Return a count as text. `none`: the text for a value that is not known."""
    return none if value is None else str(value)


def load_text(value: float | None) -> str:
    """Return a load with two decimals; ? if it is not known."""
    return UNKNOWN if value is None else f"{value:.2f}"


def percent_text(value: float | None, none: str = UNKNOWN) -> str:
    """Return a percentage as text. `none`: the text for a value that is not known."""
    return none if value is None else f"{value:.0f}%"


def gigabytes(mib: int | None) -> str:
    """Return memory in GB with a decimal; below one GB in MB."""
    return UNKNOWN if mib is None else f"{mib / 1024:.1f}GB" if mib >= 1024 else f"{mib}MB"


def idle_text(value: int | None, *, partial: bool) -> str:
    """Return the number of idle GPUs; 2? leaves out GPUs for which it is not known."""
    return UNKNOWN if value is None else f"{value}{UNKNOWN if partial else ''}"


def core_text(one: NodeFigures) -> Triple:
    """Return the CPUs of a node: total, used, free."""
    return _whole(one.cpus, one.cpus_used, one.cpus_free, one)


def gpu_count_text(one: NodeFigures) -> Triple:
    """Return the GPUs of a node: total, used, free."""
    return _whole(one.gpus, one.gpus_used, one.gpus_free, one)


def _whole(total: int | None, used: int | None, free: int | None, one: NodeFigures) -> Triple:
    return (number(total), number(used), number(free) if one.is_open else NONE)


def gpu_load_text(one: NodeFigures) -> str:
    """Return the sum of loads over a node's GPUs; 1.20? is without GPUs whose load is not known."""
    if one.gpus == 0:
        return NONE
    return load_text(one.gpu_load) + (UNKNOWN if one.partial_gpu_load else "")


def gpu_memory_text(one: NodeFigures) -> Triple:
    """Return the GPU memory of a node: total, used, free."""
    if one.gpus == 0:
        return (NONE, NONE, NONE)
    total, used, free = memory_text(one.gpu_memory_mib, one.gpu_memory_used_mib)
    return (total, used + UNKNOWN, free + UNKNOWN) if one.partial_gpu_memory else (total, used, free)


def memory_text(total: int | None, used: int | None) -> Triple:
    """Return total, used and free memory in whole GB (2^30 bytes), as LLload; free is the difference of the printed
    numbers."""
    if total is None or used is None:
        return (whole_gigabytes(total), whole_gigabytes(used), UNKNOWN)
    free = (_rounded(total) - _rounded(used)) * 1024 if total >= 1024 else total - used
    return (whole_gigabytes(total), whole_gigabytes(used), whole_gigabytes(free))


def _rounded(mib: int) -> int:
    return (mib + 512) // 1024


def whole_gigabytes(mib: int | None) -> str:
    """Return memory in whole GB; below one GB with a decimal, because 0 would mean that none is in use."""
    if mib is None:
        return UNKNOWN
    if 0 < mib < 1024:
        return f"{max(0.1, mib / 1024):.1f}GB" if mib < 973 else "1GB"
    return f"{_rounded(mib)}GB"


def why_silent(node: NodeLoad) -> str:
    """Return why there is no snapshot of a node, with Slurm's reason if there is one."""
    why = terminal.safe(node.why) or "no answer"
    reason = "" if node.slurm is None else terminal.safe(node.slurm.reason)
    return f"{why} ({reason})" if reason and reason not in why else why


def fold(names: Iterable[str]) -> str:
    """Return node names in Slurm's notation: n[1-3]."""
    return terminal.safe(nodelist.fold(names))


def filled(text: str, width: int, where: terminal.Cut = "end") -> str:
    """Cut the text or pad it with blanks to exactly `width` columns."""
    text = cut(text, width, where)
    return text + " " * (width - cell_len(text))


def wrapped(lines: Iterable[str], width: int) -> list[str]:
    """Wrap sentences to `width` columns, as textwrap does by characters. In a pipe, each stays one line."""
    found: list[str] = []
    for line in lines:
        if cell_len(line) <= width:
            found.append(line)
            continue
        lead = line[: len(line) - len(line.lstrip())]
        now, begun = lead, False
        for word in line.split():
            if begun and cell_len(now) + 1 + cell_len(word) > width:
                found.append(now)
                now, begun = lead + "  ", False
            now, begun = f"{now} {word}" if begun else now + word, True
            while cell_len(now) > width:
                head = set_cell_size(now, width).rstrip()
                found.append(head)
                now = lead + "  " + now[len(head) :]
        found.append(now)
    return found


# --- Cells of tables ------------------------------------------------------------------------------------------------


def gb(mib: float | None) -> float | None:
    """Return GB of 2^30 bytes, for sorting and filtering."""
    return None if mib is None else mib / 1024


def share(percent_used: float | None) -> float | None:
    """Return the length of a bar as a ratio; 1.0 is full."""
    return None if percent_used is None else percent_used / 100


def of_text(triple: Triple) -> str:
    """Return USED/TOTAL of a triple: 96/96, 190/1024GB, 0.3/32GB."""
    total, used, _ = triple
    if total == used == NONE:
        return NONE
    for unit in ("GB", "MB"):
        if total.endswith(unit) and used.rstrip(UNKNOWN).endswith(unit):
            return f"{used.replace(unit, '')}/{total}"
    return f"{used}/{total}"


def summed_load(one: Sum) -> str:
    """Return a sum of loads; 1.20? leaves out nodes that are silent."""
    return load_text(one.value) + (UNKNOWN if one.partial else "")


def summed_memory(one: Sum) -> str:
    """Return a sum of memory; 12.3GB? leaves out nodes that are silent."""
    return gigabytes(one.mib) + (UNKNOWN if one.partial else "")


def energy_text(joules: float | None) -> str:
    """Return energy in a readable unit: 512J, 5.1kJ, 1.20kWh; empty: not known."""
    return "" if joules is None else joules_text(joules).replace(" ", "")


def summed_percent(value: float | None, *, is_whole: bool) -> str:
    """Return a mean over nodes; 88%? counts nodes that are silent as busy as the others."""
    return percent_text(value) + (UNKNOWN if value is not None and not is_whole else "")


def summed_count(one: Sum) -> str:
    """Return a count; 7? leaves out nodes that are silent."""
    return UNKNOWN if one.value is None else f"{one.value:.0f}" + (UNKNOWN if one.partial else "")


def joined(names: Iterable[object]) -> str:
    """Return the names joined by commas; - if there are none."""
    return ",".join(map(str, names)) or NONE


def first_of(names: str) -> str:
    """Return the first of the names that `joined` has joined, and whether there are more: alice,…"""
    first, comma, _ = names.partition(",")
    return f"{first},{ELLIPSIS}" if comma else first


def named(name: str) -> str:
    """Return the name of a user or a node; ? if it is empty, and in quotes if it is `?` or `-` itself."""
    return f'"{name}"' if name in (UNKNOWN, NONE) else name or UNKNOWN


def known(shown_text: str) -> str | None:
    """Return a cell's text as a value for sorting and filtering; None for ?."""
    return None if shown_text == UNKNOWN else shown_text


def letter_of(codes: Iterable[str], of: str) -> Letter:
    """Return the mark of the cell of one kind of load (c, g, i, m, v or n), from the codes of its line."""
    return worst(code for code in codes if code[0] == of)


def worst(codes: Iterable[str]) -> Letter:
    """Return the letter that marks a line: ! before H before L."""
    letters = {mark(code) for code in codes}
    return "!" if "!" in letters else "H" if "H" in letters else "L" if "L" in letters else ""


def mark(code: str) -> Letter:
    """Return the mark of one code."""
    return "!" if code in WRONG_NOW else "H" if needs_attention([code]) else "L"


def time_text(seconds: float | None) -> str:
    """Return a duration as in squeue's column TIME: 1-02:03:04, 2:03:04, 3:04."""
    if seconds is None:
        return NONE
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}-{hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def moment_text(taken: float | None, now: float) -> str:
    """Return a time of day, such as 14:05; of another day with its date, such as 2026-11-23 14:05."""
    if taken is None:
        return UNKNOWN
    at, today = time.localtime(taken), time.localtime(now)
    return time.strftime("%H:%M" if at[:3] == today[:3] else "%Y-%m-%d %H:%M", at)
