"""How llload and the dashboard write one value: unknown, none, memory, loads, times, folded names. Values in, text
out."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from rich.cells import cell_len, set_cell_size

from ..core import nodelist, terminal
from .rules.figures import Figures
from .rules.flags import MEANINGS
from .rules.thresholds import CPU_BAND, GPU_BAND, HELD_IDLE, HELD_IDLE_S
from .snapshot import NodeLoad

if TYPE_CHECKING:  # llload's table of nodes has no row of a job
    from .rules.job_rows import Sum

UNKNOWN = "?"
NONE = "-"
Triple = tuple[str, str, str]
"""TOTAL, USED, FREE."""
Letter = Literal["L", "H", "!", ""]
"""How a cell is marked, besides its words: low, high, over; as llload's flags."""
ABOUT_IDLE = (
    f"idle is below {HELD_IDLE:.0f} % for {HELD_IDLE_S / 60:.0f} minutes; ? before so much is known; 1? is without "
    "those of which it is not"
)
ABOUT_NOTE = (
    f"cL cH: CPU load below {CPU_BAND[0]:.0f} or above {CPU_BAND[1]:.0f} % of the CPUs in use; "
    f"gL gH: GPU load below {GPU_BAND[0]:.0f} or above {GPU_BAND[1]:.0f} % of the GPUs in use; "
) + "; ".join(f"{code}: {MEANINGS[code]}" for code in ("iL", "m!", "v!", "n!"))


def number(value: int | None) -> str:
    """A count."""
    return UNKNOWN if value is None else str(value)


def load_text(value: float | None) -> str:
    """A load, with two decimals."""
    return UNKNOWN if value is None else f"{value:.2f}"


def percent_text(value: float | None, none: str = UNKNOWN) -> str:
    """`none`: what stands there where nobody could say."""
    return none if value is None else f"{value:.0f}%"


def gigabytes(mib: int | None) -> str:
    """Memory with a decimal; below one GB in MB."""
    return UNKNOWN if mib is None else f"{mib / 1024:.1f}GB" if mib >= 1024 else f"{mib}MB"


def idle_text(value: int | None, *, partial: bool) -> str:
    """Return the number of idle GPUs; 2? leaves out those for which it is not known."""
    return UNKNOWN if value is None else f"{value}{UNKNOWN if partial else ''}"


def core_text(one: Figures) -> Triple:
    """CORES - USED = FREE."""
    return _whole(one.cpus, one.cpus_used, one.cpus_free, one)


def gpu_count_text(one: Figures) -> Triple:
    """GPUS - USED = FREE."""
    return _whole(one.gpus, one.gpus_used, one.gpus_free, one)


def _whole(total: int | None, used: int | None, free: int | None, one: Figures) -> Triple:
    if not one.is_open:
        return (number(total), number(used), NONE)
    return (number(total), number(used), number(free))


def gpu_load_text(one: Figures) -> str:
    """The sum over a node's GPUs; 1.20? is without those that did not say."""
    if one.gpus == 0:
        return NONE
    return load_text(one.gpu_load) + (UNKNOWN if one.partial_gpu_load else "")


def gpu_memory_text(one: Figures) -> Triple:
    """GPUMEM - USED = FREE."""
    if one.gpus == 0:
        return (NONE, NONE, NONE)
    total, used, free = memory_text(one.gpu_memory_mib, one.gpu_memory_used_mib)
    return (total, used + UNKNOWN, free + UNKNOWN) if one.partial_gpu_memory else (total, used, free)


def memory_text(total: int | None, used: int | None) -> Triple:
    """Whole GB (1,073,741,824 bytes) as LLload has them; free is the difference of what is printed."""
    if total is None or used is None:
        return (whole_gigabytes(total), whole_gigabytes(used), UNKNOWN)
    return (
        whole_gigabytes(total),
        whole_gigabytes(used),
        whole_gigabytes((_rounded(total) - _rounded(used)) * 1024) if total >= 1024 else whole_gigabytes(total - used),
    )


def _rounded(mib: int) -> int:
    return (mib + 512) // 1024


def whole_gigabytes(mib: int | None) -> str:
    """Below one GB with a decimal: 0 would say that nothing is in use."""
    if mib is None:
        return UNKNOWN
    if 0 < mib < 1024:
        return f"{max(0.1, mib / 1024):.1f}GB" if mib < 973 else "1GB"
    return f"{_rounded(mib)}GB"


def count_text(count: int, what: str) -> str:
    """3 GPUs, 1 GPU."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def is_or_are(count: int) -> str:
    """As the number wants it."""
    return "is" if count == 1 else "are"


def why_silent(node: NodeLoad) -> str:
    """Why there is no snapshot, with Slurm's reason where it has one."""
    why = terminal.safe(node.why) or "no answer"
    reason = "" if node.slurm is None else terminal.safe(node.slurm.reason)
    return f"{why} ({reason})" if reason and reason not in why else why


def fold(names: Iterable[str]) -> str:
    """As Slurm writes them: n[1-3]."""
    return terminal.safe(nodelist.fold(names))


def filled(text: str, width: int) -> str:
    """Cut, or with blanks, to exactly `width` columns."""
    text = cut(text, width)
    return text + " " * (width - cell_len(text))


def cut(text: str, width: int) -> str:
    """At most `width` columns, with a sign where something is cut off."""
    return text if cell_len(text) <= width else set_cell_size(text, max(0, width - 1)) + "…"


def wrapped(lines: Iterable[str], width: int) -> list[str]:
    """Sentences in lines of `width`; in a pipe each is one line. As `textwrap`, by columns instead of characters."""
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
    """Return GB of 1,073,741,824 bytes, for sorting and filtering."""
    return None if mib is None else mib / 1024


def share(percent_used: float | None) -> float | None:
    """Return a bar's length as a ratio, 1.0 is full."""
    return None if percent_used is None else percent_used / 100


def of_text(triple: Triple) -> str:
    """USED/TOTAL of llload's TOTAL - USED = FREE: 96/96, 190/1024GB, 0.3/32GB."""
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


def summed_percent(value: float | None, *, is_whole: bool) -> str:
    """Return a mean over nodes; 88%? counts nodes that are silent as busy as the others."""
    return percent_text(value) + (UNKNOWN if value is not None and not is_whole else "")


def summed_count(one: Sum) -> str:
    """Return a count; 7? leaves out nodes that are silent."""
    return UNKNOWN if one.value is None else f"{one.value:.0f}" + (UNKNOWN if one.partial else "")


def joined(names: Iterable[object]) -> str:
    """Return alice,bob; or - if there are none."""
    return ",".join(map(str, names)) or NONE


def named(name: str) -> str:
    """A name of a user or of a node: ? where there is none, and in quotes where it would be taken for unknown or none
    itself."""
    return f'"{name}"' if name in (UNKNOWN, NONE) else name or UNKNOWN


def known(shown_text: str) -> str | None:
    """What is sorted and filtered by where a cell has words."""
    return None if shown_text == UNKNOWN else shown_text


def letter_of(codes: Iterable[str], of: str) -> Letter:
    """How the cell of one kind of load is marked, by the codes of its line: c, g, m, v, n."""
    for code in codes:
        if code[0] == of:
            return "!" if code[1] == "!" else "H" if code[1] == "H" else "L"
    return ""


def worst(codes: Iterable[str]) -> Letter:
    """The letter that marks a line: ! before H before L."""
    letters = {code[1] for code in codes}
    return "!" if "!" in letters else "H" if "H" in letters else "L" if "L" in letters else ""


def time_text(seconds: float | None) -> str:
    """As squeue's column TIME: 1-02:03:04, 2:03:04, 3:04."""
    if seconds is None:
        return NONE
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}-{hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def moment_text(taken: float | None, now: float) -> str:
    """A time of day, 14:05; of another day with its date, 23.11. 14:05."""
    if taken is None:
        return UNKNOWN
    at, today = time.localtime(taken), time.localtime(now)
    return time.strftime("%H:%M" if at[:3] == today[:3] else "%d.%m. %H:%M", at)
