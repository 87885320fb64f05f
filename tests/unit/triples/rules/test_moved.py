"""Recorded paths of a run whose folder was renamed, moved or copied."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_share.core.errors import UsageError
from slurm_share.triples.records import Run, Triple
from slurm_share.triples.rules import moved, submission

RUN = Run(
    id="1f",
    folder="/a/LLSUB.1",
    name="t.sh",
    command=("/a/t.sh", "-v"),
    cwd="/a",
    triple=Triple(1, 2),
    processes=2,
    tasks=2,
)
ARGV = ("sbatch", "--output=/a/LLSUB.1/log-%j", "--comment=/a/LLSUB.1/x", "/a/LLSUB.1/launch.sh")


def test_a_command_has_the_present_folder_where_it_had_the_recorded_one() -> None:
    assert moved.argv_in(ARGV, "/b c/50%") == (
        "sbatch", "--output=/b c/50%%/log-%j", "--comment=/a/LLSUB.1/x", "/b c/50%/launch.sh",
    )  # fmt: skip
    users = ("sbatch", "--output=mine", "/a/50%/launch.sh")
    assert moved.argv_in(users, "/b") == ("sbatch", "--output=mine", "/b/launch.sh")


@pytest.mark.parametrize("old", ["/a/LLSUB.1", "/a b/it's"])
def test_a_script_of_the_moved_run_is_that_of_a_run_made_there(old: str) -> None:
    new = "/b/new one"
    argv = ("sbatch", f"--output={old}/log-%j", f"{old}/launch.sh")
    text = submission.launch_script(RUN, old, "/python", argv)
    expected = submission.launch_script(RUN, new, "/python", moved.argv_in(argv, new))
    assert moved.script_in(text, old, new, argv) == expected
    assert moved.script_in(expected, old, new, argv) == expected
    assert moved.script_in("#!/bin/sh\nfolder=/other\n", old, new) is None


def test_the_files_of_inputs_of_a_map_move_along() -> None:
    run = replace(RUN, kind="llmapreduce")
    lines = ['["/a/LLSUB.1/input_1"]', '["/a/LLSUB.1/x","/out"]', '["/a/LLSUB.10/y"]']
    assert moved.tasks_in(run, lines, "/a/LLSUB.1", "/b") == ('["/b/input_1"]', *lines[1:])
    assert moved.tasks_in(RUN, lines, "/a/LLSUB.1", "/b") == tuple(lines)


@pytest.mark.parametrize(
    ("new", "there", "cwd", "program"),
    [
        ("/a/expA", ["/a", "/a/t.sh"], "/a", "/a/t.sh"),
        ("/archive/LLSUB.1", ["/a", "/a/t.sh"], "/a", "/a/t.sh"),
        ("/b/LLSUB.1", ["/b/t.sh"], "/b", "/b/t.sh"),
        ("/b/expA", ["/a", "/a/t.sh", "/b/t.sh"], "/b", "/b/t.sh"),
    ],
)
def test_tasks_start_where_they_did_unless_that_folder_moved_as_a_whole(
    new: str, there: list[str], cwd: str, program: str
) -> None:
    found = moved.run_in(RUN, "/a/LLSUB.1", new, there.__contains__)
    assert (found.folder, found.cwd, found.command) == (new, cwd, (program, "-v"))


def test_without_the_folder_of_its_tasks_a_run_is_refused() -> None:
    run = replace(RUN, cwd="/else")
    with pytest.raises(UsageError, match=r"start in /else, which does not exist; make it again, or a link .* /else"):
        moved.run_in(run, "/a/LLSUB.1", "/b/LLSUB.1", lambda path: False)


def test_a_run_in_another_place_is_told_where_its_tasks_start() -> None:
    assert moved.moved_text(replace(RUN, folder="/a/expA"), "/a/LLSUB.1") == ""
    assert moved.moved_text(replace(RUN, folder="/b/expA"), "/a/LLSUB.1") == (
        "expA was moved from /a/LLSUB.1; its tasks start in /a"
    )
