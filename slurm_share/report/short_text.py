"""The short report: at most 12 lines of 80 columns, for the end of a job's output.

A function of records alone: hooks call it with what they know, the launcher's summary with what all nodes wrote.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core import terminal
from ..core.text import counted, gib_range_text, gib_text
from .records import JobFigures, JobReport
from .rules import figures as adding
from .rules import wording

LINES = 12
WIDTH = 80


def lines(report: JobReport, advice: Sequence[str] = ()) -> list[str]:
    """Return the short report. `advice`: what to ask for next time, the most important first; as much as fits is
    printed."""
    found = adding.figures(report)
    said = [
        _head(report, found),
        *_gpus(found),
        *_rows("GPU memory", _gpu_memory(found)),
        *_rows("energy", wording.energy(found)),
        *_rows("CPU", wording.cpu(found)),
        *_rows("memory", wording.memory(found)),
        *_rows("tasks", wording.tasks(report)),
    ]
    said += [terminal.shortened(f"  next time   {one}", WIDTH) for one in advice[: LINES - 1 - len(said)]]
    return [*said, terminal.shortened(f"  all of it   slurm-share report {report.title}", WIDTH)][:LINES]


def _rows(label: str, text: str) -> list[str]:
    return [terminal.shortened(f"  {label:<11} {text}", WIDTH)] if text else []


def _head(report: JobReport, found: JobFigures) -> str:
    return terminal.shortened(f"slurm-share: {wording.outcome(report, found)}", WIDTH)


def _gpus(found: JobFigures) -> list[str]:
    if not found.gpu_count:
        return []
    text = wording.gpu_load(found)
    noun = "SIMULATED GPU" if found.simulated else "GPU"
    idle = _rows("GPUs idle", wording.idle(found).removeprefix("idle "))
    return [*_rows("GPUs", f"{counted(found.gpu_count, noun)}, {text}"), *idle]


def _gpu_memory(found: JobFigures) -> str:
    if not found.gpu_count or found.gpu_peak_mib is None:
        return ""
    cap = "" if found.gpu_cap_mib is None else f", cap of a task {wording.cap(found)}"
    whole = "" if not found.gpu_memory_mib else f" of {gib_text(found.gpu_memory_mib)}"
    peaks = [one.use.memory_peak_mib for one in found.gpus if one.use.memory_peak_mib is not None]
    written = gib_range_text(min(peaks), max(peaks)) if len(peaks) > 1 else gib_text(peaks[0])
    return f"peak {written}{whole}{cap}"
