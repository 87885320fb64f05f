"""How cells are written that several tables have, in llload's words. Values in, words and figures out."""

from __future__ import annotations

import time
from collections.abc import Iterable

from slurm_share.load.rules.flags import MEANINGS
from slurm_share.load.rules.thresholds import CPU_BAND, GPU_BAND, HELD_IDLE, HELD_IDLE_S
from slurm_share.load.text import (
    NONE,
    UNKNOWN,
    Triple,
    count_words,
    gigabytes,
    load_words,
)
from slurm_share.load.text import percent as percent_words

from ..column import Letter
from ..rows import Sum

SPARK_VALUES = 40
"""More than any sparkline in a table is wide."""
NOTE_KEEPS = 20
"""Of the column that says in words what is wrong: bars and sparklines give way to it (n! down (Not responding))."""
ABOUT_IDLE = (
    f"idle is below {HELD_IDLE:.0f} % for {HELD_IDLE_S / 60:.0f} minutes; ? before so much is known; 1? is without "
    "those of which it is not"
)
ABOUT_NOTE = (
    f"cL cH: CPU load below {CPU_BAND[0]:.0f} or above {CPU_BAND[1]:.0f} % of the CPUs in use; "
    f"gL gH: GPU load below {GPU_BAND[0]:.0f} or above {GPU_BAND[1]:.0f} % of the GPUs in use; "
) + "; ".join(f"{code}: {MEANINGS[code]}" for code in ("iL", "m!", "v!", "n!"))


def gb(mib: float | None) -> float | None:
    """For sorting and filtering: GB of 1,073,741,824 bytes."""
    return None if mib is None else mib / 1024


def share(percent: float | None) -> float | None:
    """Of a bar."""
    return None if percent is None else percent / 100


def of_words(triple: Triple) -> str:
    """USED/TOTAL of llload's TOTAL - USED = FREE: 96/96, 190/1024GB, 0.3/32GB."""
    total, used, _ = triple
    if total == used == NONE:
        return NONE
    for unit in ("GB", "MB"):
        if total.endswith(unit) and used.rstrip(UNKNOWN).endswith(unit):
            return f"{used.replace(unit, '')}/{total}"
    return f"{used}/{total}"


def summed_load(one: Sum) -> str:
    """A load; 1.20? is without those that did not say."""
    return load_words(one.value) + (UNKNOWN if one.partial else "")


def summed_memory(one: Sum) -> str:
    """Memory; 12.3GB? is without those that did not say."""
    return gigabytes(one.mib) + (UNKNOWN if one.partial else "")


def summed_percent(percent: float | None, *, is_whole: bool) -> str:
    """Of what several nodes have; 88%? takes those that did not say for as busy as the others."""
    return percent_words(percent) + (UNKNOWN if percent is not None and not is_whole else "")


def summed_count(one: Sum) -> str:
    """A count; 7? is without those that did not say."""
    return UNKNOWN if one.value is None else f"{one.value:.0f}" + (UNKNOWN if one.partial else "")


def joined(names: Iterable[object]) -> str:
    """alice,bob; - where there is none."""
    return ",".join(map(str, names)) or NONE


def named(name: str) -> str:
    """A name of a user or of a node: ? where there is none, and in quotes where it would be taken for unknown or none
    itself."""
    return f'"{name}"' if name in (UNKNOWN, NONE) else name or UNKNOWN


def known(words: str) -> str | None:
    """What is sorted and filtered by where a cell has words."""
    return None if words == UNKNOWN else words


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


def time_words(seconds: float | None) -> str:
    """As squeue's column TIME: 1-02:03:04, 2:03:04, 3:04."""
    if seconds is None:
        return NONE
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}-{hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def moment_words(taken: float | None, now: float) -> str:
    """A time of day, 14:05; of another day with its date, 23.11. 14:05."""
    if taken is None:
        return UNKNOWN
    at, today = time.localtime(taken), time.localtime(now)
    return time.strftime("%H:%M" if at[:3] == today[:3] else "%d.%m. %H:%M", at)


__all__ = [
    "ABOUT_IDLE", "ABOUT_NOTE", "NONE", "NOTE_KEEPS", "SPARK_VALUES", "UNKNOWN", "count_words", "gb", "gigabytes",
    "joined", "known", "letter_of", "load_words", "moment_words", "named", "of_words", "percent_words", "share",
    "summed_count", "summed_load", "summed_memory", "summed_percent", "time_words", "worst",
]  # fmt: skip
