"""A short run of the fuzzing over the plugin's parsers in C, with sanitizers, and over job_submit.lua."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import in_c
import running
from in_lua import SEEDS, Controller
from target import Target

EXECUTIONS = 5_000
"""Inputs for each parser in C."""
PARSERS = ("option", "plan", "gres", "holding", "cores", "srun words", "job")
JOBS = 500
BOTH = 500
"""Texts for each reader that there is in Python and in C."""


def test_the_plugins_parsers_take_whatever_comes(c_program: Callable[[str], Path], tmp_path: Path) -> None:
    """No sanitizer speaks; and the inputs find ways through the code that the good examples do not take."""
    argv = [c_program("fuzz_parsers"), "0", str(EXECUTIONS), "1", tmp_path / "input"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{(tmp_path / 'input').read_bytes()!r}\n{done.stderr[-4000:]}"
    rows = [line.split(",") for line in done.stdout.splitlines()]
    assert tuple(row[0] for row in rows) == PARSERS
    assert {int(row[1]) for row in rows} == {EXECUTIONS}
    assert all(int(row[2]) > 6 for row in rows), rows  # no parser has more than six examples


@pytest.mark.skipif(shutil.which("lua5.1") is None, reason="NOT TESTED: lua5.1 is not installed")
def test_job_submit_takes_whatever_a_user_submits(tmp_path: Path) -> None:
    """A Lua error in slurmctld would refuse the job with words that nobody understands."""
    controller = Controller(tmp_path / "config.toml")
    try:
        _, crashes = running.run(Target("job_submit.lua", "slurmctld", SEEDS, controller.try_job), "short", JOBS)
    finally:
        controller.close()
    assert not crashes, "\n\n".join(f"{crash.data!r}\n{crash.error}" for crash in crashes)


@pytest.fixture(scope="module")
def readers(c_program: Callable[[str], Path]) -> Iterator[in_c.Readers]:
    (folder,) = {c_program(name).parent for name in in_c.PROGRAMS}
    found = in_c.Readers(folder)
    yield found
    found.close()


@pytest.mark.parametrize("number", range(3))
def test_python_and_c_say_the_same_of_every_text(readers: in_c.Readers, number: int) -> None:
    """A plan that a hook takes and the plugin refuses, or the reverse, would be half a share."""
    target = readers.targets()[number]
    for data in target.seeds:
        target.call(data)
    _, crashes = running.run(target, "short", BOTH)
    assert not crashes, "\n\n".join(f"{crash.data!r}\n{crash.error}" for crash in crashes)
