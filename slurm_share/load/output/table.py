"""llload's screen: survey in, lines out. LLSC's columns, in their order, at their widths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec.structs import replace as changed
from rich.cells import cell_len

from ...core import terminal
from ..snapshot import Survey
from ..text import (
    Triple,
    core_words,
    count_words,
    cut,
    filled,
    gpu_count_words,
    gpu_load_words,
    gpu_memory_words,
    load_words,
    memory_words,
    wrapped,
)
from .detail import gpu_table, job_table, process_table
from .notes import footer, header
from .view import Row, View

HOST_LEAST = 8
_YELLOW, _RED, _REVERSE, _OFF = "\x1b[33m", "\x1b[31m", "\x1b[7m", "\x1b[0m"
_PAINT = {"L": _YELLOW, "H": _RED, "!": _RED + _REVERSE}


def as_lines(survey: Survey, view: View, width: int) -> list[str]:
    """The whole screen, each line at most `width` columns."""
    rows = [Row.of(node) for node in survey.nodes]
    if view.quiet:
        return _table(rows, view, width)[0][1:] if rows else []
    head = header(survey, view, width)
    if not rows:
        return [*head, *wrapped(view.nobody, width)]
    lines, left_out = gpu_table(rows, width) if view.detail else _table(rows, view, width)
    parts = [*head, *lines]
    if view.jobs:
        table, missing = job_table(rows, survey, width)
        parts += ["", *table] if table else []
        left_out += missing
    if view.processes:
        table, missing = process_table(rows, view.whole or survey, width)
        parts += ["", *table] if table else []
        left_out += missing
    notes = footer(survey, view, rows)
    if left_out:
        named = ", ".join(dict.fromkeys(left_out))
        notes.append(f"({named}: in a wider terminal, in a pipe, or with --tsv or --json)")
    return [*parts, *wrapped(notes, width)]


def fitted(survey: Survey, view: View, width: int, height: int | None) -> list[str]:
    """The same in `height` lines, with as many nodes as there is room for, and a sign where some have none."""
    if height is None:
        return as_lines(survey, view, width)
    shown = survey
    if len(survey.nodes) > height:
        shown = _first(survey, height)
    while True:
        cut = len(shown.nodes) < len(survey.nodes)
        said = f"{count_words(len(survey.nodes) - len(shown.nodes), 'more node')}: a taller terminal, --sort or -t N"
        lines = as_lines(shown, replace(view, more=said if cut else "", whole=view.whole or survey), width)
        if len(lines) > height and len(view.advice) > 1 < view.advice_lines:
            view = replace(view, advice_lines=1)  # nodes are what was asked for
            continue
        if len(lines) <= height or len(shown.nodes) <= 1:
            return lines if len(lines) <= height else [*lines[: height - 1], "…"]
        shown = _first(survey, max(1, len(shown.nodes) - max(1, (len(lines) - height) // 2)))


def _first(survey: Survey, count: int) -> Survey:
    return changed(survey, nodes=survey.nodes[:count])


# --- The table of nodes -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Equation:
    """`TOTAL - USED = FREE`, three columns of the paper."""

    heading: str
    widths: tuple[int, int, int]
    """The paper's, at least."""


_CORES = _Equation("CORES", (5, 5, 5))
_MEMORY = _Equation("MEMORY", (6, 6, 6))
_GPUS = _Equation("GPUS", (5, 5, 4))
_GPUMEM = _Equation("GPUMEM", (6, 5, 5))
_LOAD = 7
_GPU_LOAD = 4
"""Widths of LLload's two columns LOAD. All of these are those of its output in MIT SuperCloud's documentation
("Monitoring System and Job Status")."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """How much of the paper's line there is room for."""

    roomy: bool
    free: bool
    groups: frozenset[str]

    @property
    def left_out(self) -> list[str]:
        """Headings of what is not there."""
        gone = [name for name in ("CORES", "MEMORY", "GPUS") if name not in self.groups]
        return [] if self.free else ["FREE", *gone]


_ALL = frozenset({"CORES", "MEMORY", "GPUS"})
_SHAPES = (
    _Shape(True, True, _ALL),
    _Shape(False, True, _ALL),
    _Shape(False, False, _ALL),
    _Shape(False, False, _ALL - {"MEMORY"}),
    _Shape(False, False, frozenset({"GPUS"})),
    _Shape(False, False, frozenset()),
)
"""From the paper's own down to what a narrow terminal shows. FREE goes first: it is the difference of the other two."""


def _table(rows: Sequence[Row], view: View, width: int) -> tuple[list[str], list[str]]:
    """(lines with the headings first, headings that were left out)."""
    names = [terminal.safe(row.node.name) for row in rows]
    mixed = len({row.figures.gpu_load_by for row in rows} - {""}) > 1 or any(
        row.figures.gpu_load_by == "both" for row in rows
    )
    notes = [row.note(mixed and view.gpus) for row in rows]
    host = max([HOST_LEAST, *map(cell_len, names)])
    note = max(map(cell_len, notes), default=0)
    # The letters are never cut; what follows them may be, and is said in full below the table.
    letters = [" ".join(row.codes) for row in rows]
    least = max((len(one) + (2 if one != said else 0) for one, said in zip(letters, notes, strict=True)), default=0)
    if note:
        note, least = max(note, len("NOTE")), max(least, len("NOTE"))
    parts = _parts(rows, view.gpus)
    shapes = _SHAPES if view.gpus else [shape for shape in _SHAPES if "GPUS" in shape.groups][:-1]
    for shape in shapes:
        columns = _columns(parts, shape, view.gpus)
        wide = sum(cell_len(column[0]) + 1 for column in columns)
        if host + wide + (least + 1 if least else 0) <= width:
            break
    host = max(HOST_LEAST, min(host, width - wide - (least + 1 if least else 0)))
    note = min(note, max(0, width - host - wide - 1))
    lines = []
    for place in range(len(rows) + 1):
        name = "HOSTNAME" if place == 0 else names[place - 1]
        cells = " ".join(column[place] for column in columns)
        line = f"{filled(name, host)} {cells}"
        if note:
            line = f"{line} {cut('NOTE' if place == 0 else notes[place - 1], note)}"
        line = line.rstrip()
        line = cut(line, width)
        if place and view.color and rows[place - 1].worst:
            line = f"{_PAINT[rows[place - 1].worst]}{line}{_OFF}"
        lines.append(line)
    left_out = [word for word in shape.left_out if view.gpus or word != "GPUS"]
    return lines, left_out


def _parts(rows: Sequence[Row], gpus: bool) -> dict[str, list[Triple] | list[str]]:
    """The cells of every group, not yet lined up."""
    cells: dict[str, list[Triple] | list[str]] = {
        "CORES": [core_words(row.figures) for row in rows],
        "LOAD": [load_words(row.figures.load) for row in rows],
        "MEMORY": [memory_words(row.figures.memory_mib, row.figures.memory_used_mib) for row in rows],
    }
    if gpus:
        cells["GPUS"] = [gpu_count_words(row.figures) for row in rows]
        cells["GPU LOAD"] = [gpu_load_words(row.figures) for row in rows]
        cells["GPUMEM"] = [gpu_memory_words(row.figures) for row in rows]
    return cells


def _columns(parts: dict[str, list[Triple] | list[str]], shape: _Shape, gpus: bool) -> list[list[str]]:
    """Columns lined up, each with its heading first."""

    def equation(kind: _Equation) -> list[str]:
        cells: list[Triple] = parts[kind.heading]  # type: ignore[assignment]
        heads = (kind.heading, "USED", "FREE")
        widths = [
            max(kind.widths[at] if shape.roomy else len(heads[at]), *(len(cell[at]) for cell in cells))
            for at in range(3)
        ]
        return [
            f"{one[0]:>{widths[0]}} - {one[1]:>{widths[1]}}" + (f" = {one[2]:>{widths[2]}}" if shape.free else "")
            for one in (heads, *cells)
        ]

    def load(name: str, least: int) -> list[str]:
        cells: list[str] = parts[name]  # type: ignore[assignment]
        wide = max(least if shape.roomy else 4, *map(len, cells))
        return [f"{one:>{wide}}" for one in ("LOAD", *cells)]

    columns = []
    if "CORES" in shape.groups:
        columns.append(equation(_CORES))
    if "CORES" in shape.groups or not gpus:
        columns.append(load("LOAD", _LOAD))
    if "MEMORY" in shape.groups:
        columns.append(equation(_MEMORY))
    if gpus:
        if "GPUS" in shape.groups:
            columns.append(equation(_GPUS))
        columns += [load("GPU LOAD", _GPU_LOAD), equation(_GPUMEM)]
    return columns
