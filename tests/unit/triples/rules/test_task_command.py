"""The program and arguments of a task."""

from __future__ import annotations

import pytest

from slurm_share.triples.records import Run, TaskKind
from slurm_share.triples.rules import task_command


@pytest.mark.parametrize(
    ("kind", "line", "argv"),
    [
        ("command", "a 'b c' | d", ("/bin/sh", "-c", "a 'b c' | d")),
        ("input", "x y", ("/t.sh", "-v", "x y")),
        ("arguments", '["x", "y z"]', ("/t.sh", "-v", "x", "y z")),
        ("rank", "", ("/t.sh", "-v")),
    ],
)
def test_a_line_becomes_a_program_with_arguments(kind: TaskKind, line: str, argv: tuple[str, ...]) -> None:
    run = Run(name="t", command=("/t.sh", "-v"), cwd="/", triple=None, processes=1, tasks=1, task_kind=kind)
    assert task_command.task_argv(run, line) == argv
