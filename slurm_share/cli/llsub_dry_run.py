"""The text of `llsub --pack --dry-run`: sizes of tasks with their sources, and the first placements."""

from __future__ import annotations

from collections.abc import Iterator

from ..core import terminal
from ..core.text import counted, gib_range_text, gib_text
from ..triples import DryRun, Run, Tasks, task_names

TASKS_SHOWN = 12
"""Most task numbers in a line; the rest is counted."""
COMMAND_MAX = 200
PARAMETERS_SHOWN = 6
"""Most tasks that are shown with their parameters."""


def parameter_lines(run: Run, tasks: Tasks) -> Iterator[str]:
    """Yield the first tasks of a run with parameters, and their commands; nothing for another run."""
    labels = task_names.Labels(tasks.specs)
    if not labels:
        return
    yield f"{counted(run.tasks, 'task')} with parameters:"
    for task in range(min(len(labels), PARAMETERS_SHOWN)):
        command = tasks.lines[task] if run.task_kind == "command" else task_names.command_text(run, tasks.lines[task])
        yield f"  task {task}, {terminal.safe(labels[task])}: {terminal.shortened(command, COMMAND_MAX)}"
    if len(labels) > PARAMETERS_SHOWN:
        yield f"  ... and {len(labels) - PARAMETERS_SHOWN} more"


def lines_of(run: Run, found: DryRun) -> Iterator[str]:
    """Yield the lines of the preview of a run."""
    assert run.triple is not None
    nodes = counted(run.triple.nodes, "node")
    gpus = _gpus(found, ", on each " if run.triple.nodes > 1 else ", ")
    yield f"{counted(run.tasks, 'task')} on {nodes}{gpus}"
    if found.tasks < run.tasks:
        yield f"of these, the first {found.tasks}:"
    sizes = [_size(group.least_mib, group.most_mib) for group in found.preview.groups]
    width = max([len("GPU MEM"), *map(len, sizes)])
    has_sm = any(group.sm for group in found.preview.groups)
    source_width = max([len("FROM"), *(len(group.source) for group in found.preview.groups)]) if has_sm else 0
    yield f"   TASKS  {'GPU MEM':{width}}  {'FROM':{source_width}}{'  SM' if has_sm else ''}"
    for group, size in zip(found.preview.groups, sizes, strict=True):
        yield f"{group.tasks:8}  {size:{width}}  {group.source:{source_width}}  {group.sm}".rstrip()
    placements = [
        f"GPU {index} task{'s' * (len(tasks) > 1)} {_numbers(tasks)}"
        for index, tasks in found.preview.placements
        if tasks
    ]
    if placements:
        yield f"first placements: {'; '.join(placements)}"
    elif not found.gpus:
        yield f"first placements: not known before the run, {found.why_no_gpus}"
    if found.preview.whole:
        not_packed = [f"task {task} wants {gpus} GPUs" for task, gpus in found.preview.whole[:TASKS_SHOWN]]
        more = len(found.preview.whole) - len(not_packed)
        yield f"not packed: {', '.join(not_packed)}{f' and {more} more tasks' if more > 0 else ''}: they get whole GPUs"
    for task, why in found.preview.given_up[:TASKS_SHOWN]:
        yield f"cannot run: task {task}: {why}"
    if len(found.preview.given_up) > TASKS_SHOWN:
        yield f"cannot run: {len(found.preview.given_up) - TASKS_SHOWN} more tasks"


def _gpus(found: DryRun, before: str) -> str:
    if not found.gpus:
        return ""
    first = found.gpus[0]
    is_alike = all((gpu.model, gpu.total_mib) == (first.model, first.total_mib) for gpu in found.gpus)
    kind = f" {first.model}" if is_alike else " of several kinds"
    usable = ""
    if is_alike and first.total_mib is not None:
        usable = f" ({gib_text(first.total_mib - first.reserve_mib)} usable each)"
    assumed = f", assumed {found.assumed}" if found.assumed else ""
    return f"{before}{counted(len(found.gpus), 'GPU')}{kind}{usable}{assumed}"


def _size(least_mib: int | None, most_mib: int | None) -> str:
    if least_mib is None or most_mib is None:
        return "unknown"
    return gib_range_text(least_mib, most_mib)


def _numbers(tasks: tuple[int, ...]) -> str:
    more = len(tasks) - TASKS_SHOWN
    return " ".join(map(str, tasks[:TASKS_SHOWN])) + (f" and {more} more" if more > 0 else "")
