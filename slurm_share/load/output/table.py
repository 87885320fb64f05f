"""llload's table of nodes: LLSC's columns, in their order and widths. Survey in, lines out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from msgspec.structs import replace as changed
from rich.cells import cell_len

from ...core import terminal
from ...core.text import counted
from .. import columns
from ..columns.node_columns import note as note_of
from ..rules.node_rows import NodeRow, judged_rows
from ..snapshot import Survey
from ..text import cut, filled, worst, wrapped
from .notes import View, footer, header

HOST_LEAST = 8
_YELLOW, _RED, _BOLD, _REVERSE, _OFF = "\x1b[33m", "\x1b[31m", "\x1b[1m", "\x1b[7m", "\x1b[0m"
_PAINT = {"H": _BOLD + _YELLOW, "!": _RED + _REVERSE}
"""A line with only a hint has no colour."""


def as_lines(survey: Survey, view: View, width: int) -> list[str]:
    """Return the whole output, each line at most `width` columns."""
    rows = judged_rows(survey)
    if view.quiet:
        return _table(rows, view, width)[0][1:] if rows else []
    head = header(survey, view, width)
    if not rows:
        return [*head, *wrapped(view.if_empty, width)]
    if view.detail or view.jobs or view.processes:
        from . import detail  # loads the columns of jobs and processes, which the table of nodes does not need
    lines, left_out = detail.gpu_table(rows, width) if view.detail else _table(rows, view, width)
    parts = [*head, *lines]
    if view.jobs:
        table, missing = detail.job_table(rows, survey, width)
        parts += ["", *table] if table else []
        left_out += missing
    if view.processes:
        table, missing = detail.process_table(rows, view.whole or survey, width)
        parts += ["", *table] if table else []
        left_out += missing
    notes = footer(survey, view, rows)
    if left_out:
        named = ", ".join(dict.fromkeys(left_out))
        notes.append(f"({named}: in a wider terminal, in a pipe, or with --tsv or --json)")
    return [*parts, *wrapped(notes, width)]


def fitted(survey: Survey, view: View, width: int, height: int | None) -> list[str]:
    """Return the output in `height` lines, with as many nodes as fit, and a line that says how many are left out."""
    if height is None:
        return as_lines(survey, view, width)
    shown = survey
    if len(survey.nodes) > height:
        shown = _first(survey, height)
    while True:
        cut = len(shown.nodes) < len(survey.nodes)
        said = f"{counted(len(survey.nodes) - len(shown.nodes), 'more node')}: a taller terminal, --sort or -t N"
        lines = as_lines(shown, replace(view, more=said if cut else "", whole=view.whole or survey), width)
        if len(lines) > height and len(view.advice) > 1 < view.advice_lines:
            view = replace(view, advice_lines=1)  # nodes take precedence over advice
            continue
        if len(lines) <= height or len(shown.nodes) <= 1:
            return lines if len(lines) <= height else [*lines[: height - 1], "…"]
        shown = _first(survey, max(1, len(shown.nodes) - max(1, (len(lines) - height) // 2)))


def _first(survey: Survey, count: int) -> Survey:
    return changed(survey, nodes=survey.nodes[:count])


# --- The table of nodes -----------------------------------------------------------------------------------------------


_PARTS = (
    ("CORES", "cores_used", (5, 5, 5)),
    ("CORES", "load", (7,)),
    ("MEMORY", "memory_used", (6, 6, 6)),
    ("GPUS", "gpus_used", (5, 5, 4)),
    ("", "gpu_load", (4,)),
    ("", "gpumem_used", (6, 5, 5)),
)
"""The group of a column, its id, and its least widths: of TOTAL, USED and FREE, or of a load. Source of the widths:
LLload's output in MIT SuperCloud's documentation ("Monitoring System and Job Status")."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """A choice of LLload's columns that fits some width."""

    roomy: bool
    free: bool
    groups: frozenset[str]

    @property
    def left_out(self) -> list[str]:
        """Return the headings of the columns that are left out."""
        gone = [name for name in ("CORES", "MEMORY", "GPUS") if name not in self.groups]
        return [] if self.free else ["FREE", *gone]


_ALL = frozenset({"CORES", "MEMORY", "GPUS", ""})
_SHAPES = (
    _Shape(True, True, _ALL),
    _Shape(False, True, _ALL),
    _Shape(False, False, _ALL),
    _Shape(False, False, _ALL - {"MEMORY"}),
    _Shape(False, False, frozenset({"GPUS", ""})),
    _Shape(False, False, frozenset({""})),
)
"""From LLload's own down to that of a narrow terminal. FREE goes first: it is the difference of the other two."""


def _table(rows: Sequence[NodeRow], view: View, width: int) -> tuple[list[str], list[str]]:
    """Return (lines with the headings first, headings that were left out)."""
    names = [terminal.safe(row.node.name) for row in rows]
    mixed = len({row.figures.gpu_load_by for row in rows} - {""}) > 1 or any(
        row.figures.gpu_load_by == "both" for row in rows
    )
    notes = [note_of(row, mixed and view.gpus) for row in rows]
    host = max([HOST_LEAST, *map(cell_len, names)])
    note = max(map(cell_len, notes), default=0)
    # The letters are never cut. The text after them may be, and stands in full below the table.
    letters = [" ".join(row.codes) for row in rows]
    least = max((len(one) + (2 if one != said else 0) for one, said in zip(letters, notes, strict=True)), default=0)
    if note:
        note, least = max(note, len("NOTE")), max(least, len("NOTE"))
    parts = list(_cells(rows, view.gpus))
    shapes = _SHAPES if view.gpus else [shape for shape in _SHAPES if "GPUS" in shape.groups][:-1]
    for shape in shapes:
        lined_up = [_lined_up(cells, widths, shape) for group, widths, cells in parts if group in shape.groups]
        wide = sum(cell_len(one[0]) + 1 for one in lined_up)
        if host + wide + (least + 1 if least else 0) <= width:
            break
    host = max(HOST_LEAST, min(host, width - wide - (least + 1 if least else 0)))
    note = min(note, max(0, width - host - wide - 1))
    lines = []
    for place in range(len(rows) + 1):
        name = "HOSTNAME" if place == 0 else names[place - 1]
        cells = " ".join(one[place] for one in lined_up)
        line = f"{filled(name, host, 'middle')} {cells}"
        if note:
            line = f"{line} {cut('NOTE' if place == 0 else notes[place - 1], note)}"
        line = line.rstrip()
        line = cut(line, width)
        if place and view.color and (letter := worst(rows[place - 1].codes)) in _PAINT:
            line = f"{_PAINT[letter]}{line}{_OFF}"
        lines.append(line)
    left_out = [heading for heading in shape.left_out if view.gpus or heading != "GPUS"]
    return lines, left_out


def _cells(rows: Sequence[NodeRow], gpus: bool) -> Iterator[tuple[str, tuple[int, ...], list[tuple[str, ...]]]]:
    """Yield (group, least widths, cells with the headings first) of each column of LLload, not yet aligned."""
    by_id = {column.id: column for column in columns.NODES}
    for group, id, widths in _PARTS:
        column = by_id[id]
        if not gpus and id.startswith("gpu"):
            continue
        if column.triple is None:
            yield group, widths, [("LOAD",), *((column.table_of(row),) for row in rows)]
        else:
            yield group, widths, [(column.heading, "USED", "FREE"), *map(column.triple, rows)]


def _lined_up(cells: Sequence[tuple[str, ...]], least: Sequence[int], shape: _Shape) -> list[str]:
    """Return the cells of a column aligned: a load, or the equation `TOTAL - USED = FREE`."""
    widths = [
        max(wide if shape.roomy else len(cells[0][at]), *(len(cell[at]) for cell in cells[1:]))
        for at, wide in enumerate(least)
    ]
    lines = []
    for cell in cells:
        aligned = [f"{text:>{wide}}" for text, wide in zip(cell, widths, strict=True)]
        lines.append(" - ".join(aligned[:2]) + (f" = {aligned[2]}" if shape.free and len(aligned) > 2 else ""))
    return lines
