"""A program in the background: its output is read as it comes, and it ends with its starter."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_share.core.errors import CommandError
from slurm_share.core.process import Deadline, Stream, stream


def until(stream: Stream, enough: int) -> list[str]:
    found: list[str] = []
    while len(found) < enough and stream.files:
        assert select.select(list(stream.files), [], [], 20)[0]
        found += stream.lines()
    return found


Shell = Callable[..., Stream]


@pytest.fixture
def shell() -> Iterator[Shell]:
    """Yield a function that starts a script; stop all of them afterwards."""
    started: list[Stream] = []

    def start(script: str, **words: int) -> Stream:
        started.append(stream(["/bin/sh", "-c", script], **words))
        return started[-1]

    yield start
    for one in started:
        one.stop(Deadline.after(1))


def test_its_lines_come_whole_and_its_last_words_are_kept(shell: Shell) -> None:
    one = shell("printf 'a\\nb'; printf 'c\\n\\377\\nrest'; echo why >&2; exit 3")
    assert until(one, 99) == ["a", "bc", "\ufffd"]
    assert one.wait(120) == 3
    assert one.said == "why\n"
    assert one.files == frozenset()


def test_nothing_to_read_is_no_wait(shell: Shell) -> None:
    one = shell("cat")
    assert one.lines() == []
    assert one.code is None
    one.stop(Deadline.after(20))
    assert one.code == 0


def test_a_program_that_reads_its_input_ends_without_a_signal(shell: Shell) -> None:
    one = shell("trap 'exit 9' TERM; cat; exit 4")
    one.stop(Deadline.after(60))
    assert one.code == 4


@pytest.mark.parametrize(
    ("script", "code"),
    [("sleep 600", -signal.SIGTERM), ("trap '' TERM; echo; sleep 600 & wait; wait", -signal.SIGKILL)],
)
def test_one_that_does_not_is_made_to(shell: Shell, script: str, code: int) -> None:
    one = shell(script)
    if "echo" in script:
        until(one, 1)
    one.stop(Deadline.after(0.4 if code == -signal.SIGKILL else 3.0))  # half of it to end after SIGTERM
    assert one.code == code


def test_what_it_still_writes_at_its_end_does_not_hold_it_up(shell: Shell) -> None:
    one = shell("cat; head -c 1000000 /dev/zero; exit 5")
    one.stop(Deadline.after(60))
    assert one.code == 5


def test_a_line_without_end_fills_no_memory(shell: Shell) -> None:
    one = shell("head -c 3000000 /dev/zero; echo; echo after")
    assert until(one, 99)[-1] == "after"


def test_kill_9_of_the_one_who_reads_ends_it(tmp_path: Path) -> None:
    script = "cat; echo > ended"
    reader = f"""import time
from slurm_share.core.process import stream
beside = stream(['/bin/sh', '-c', {script!r}])
print(beside.pid, flush=True)
time.sleep(600)"""
    with subprocess.Popen([sys.executable, "-c", reader], cwd=tmp_path, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline()
        child.kill()
    for _ in range(1000):
        if (tmp_path / "ended").exists():
            break
        time.sleep(0.02)
    assert (tmp_path / "ended").exists()


def test_ctrl_c_is_not_for_it(shell: Shell) -> None:
    one = shell("echo; cat")
    until(one, 1)
    assert os.getpgid(one.pid) == one.pid != os.getpgrp()


def test_one_that_is_not_there() -> None:
    with pytest.raises(CommandError) as said:
        stream(["/nowhere/at/all"])
    assert isinstance(said.value.__cause__, FileNotFoundError)


def test_what_is_said_arrives(shell: Shell) -> None:
    one = shell("read go; wc -c")
    assert one.say(b"go\n")
    assert one.say(1000 * b"a")
    one.hang_up()
    assert until(one, 1) == ["1000"]


def test_one_that_never_reads_is_not_told_without_end_and_can_be_killed(shell: Shell) -> None:
    """Input beyond the pipe's size is refused, signs of life do not fail, and nobody has to wait for its end."""
    one = shell("trap '' TERM; sleep 600")
    assert not one.say(200_000 * b"a")
    assert not one.say(b"b")
    one.beat()
    one.kill()
    assert one.wait(120) == -signal.SIGKILL
    one.kill()
    one.stop(Deadline.after(0.2))
    assert not one.say(b"c")


def test_to_one_that_has_ended_nothing_is_said(shell: Shell) -> None:
    one = shell("exit 0")
    assert one.wait(120) == 0
    assert not one.say(b"hello\n")


def test_of_one_that_writes_without_end_some_is_taken_at_a_time(shell: Shell) -> None:
    one = shell("while echo 0123456789; do :; done")
    until(one, 1)
    for _ in range(3):
        assert select.select(list(one.files), [], [], 20)[0]
        lines = one.take_lines(1)
        assert len(lines) * 11 <= 65536
        assert set(lines[1:-1]) <= {b"0123456789"}


def test_a_line_as_long_as_was_allowed(shell: Shell) -> None:
    one = shell("head -c 2000000 /dev/zero | tr '\\0' a; echo; echo b", line_most=3_000_000)
    found = until(one, 2)
    assert [len(line) for line in found] == [2_000_000, 1]
