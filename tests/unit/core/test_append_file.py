"""Every line that was written is read back, whatever happened to another write of the file."""

from __future__ import annotations

import ast
import errno
import multiprocessing
import os
import re
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.core import append_file
from slurm_share.core.append_file import AppendFile

ROOT = Path(__file__).parents[3]
ALLOWED = {
    "core/append_file.py": "it is the writer",
    "triples/launcher/task_process.py": "a task writes its own output there, in pieces of its choice",
}
LINES = st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"_")), min_size=1, max_size=3)


class Killed(BaseException):
    """Ends a write as SIGKILL does: nothing after it runs."""


class Writes:
    """os.write that takes so many bytes more, and then fails."""

    def __init__(self, most: int, failure: BaseException) -> None:
        self.left, self.failure = most, failure

    def __call__(self, fd: int, data: bytes) -> int:
        if self.left == 0:
            raise self.failure
        taken = os.pwrite(fd, data[: min(self.left, 3)], 0)  # O_APPEND: the offset does not count (pwrite(2))
        self.left -= taken
        return taken


def full():
    return OSError(errno.ENOSPC, "No space left on device")


def failing(most, failure, write):
    """Call `write`, which fails after `most` bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(append_file.os, "write", Writes(most, failure))
        with pytest.raises(type(failure)):
            write()


def joined(lines):
    return b"".join(line + b"\n" for line in lines)


@given(
    before=LINES,
    torn=LINES,
    after=LINES,
    most=st.integers(0, 40),
    is_killed=st.booleans(),
    is_open=st.booleans(),
    is_held=st.booleans(),
    rule=st.sampled_from(["end", "cut"]),
)
def test_lines_before_and_after_a_broken_write_are_read_back(
    tmp_path_factory, before, torn, after, most, is_killed, is_open, is_held, rule
):
    file = tmp_path_factory.mktemp("append") / "lines"
    writer = AppendFile(file, is_held=is_held, torn=rule)
    writer.append(joined(before))
    data = joined(torn)
    most = min(most, len(data) - 1)
    failing(most, Killed() if is_killed else full(), lambda: writer.append(data))
    if not is_open:
        writer.close()
        writer = AppendFile(file, is_held=is_held, torn=rule)
    cut = writer.append(joined(after))
    writer.close()
    whole = data[:most].split(b"\n")[:-1] if is_killed else []
    half = data[:most].rpartition(b"\n")[2] if is_killed else b""
    kept = [half] if half and rule == "end" else []
    assert file.read_bytes() == joined([*before, *whole, *kept, *after])
    assert cut == (len(half) if rule == "cut" else 0)


def test_a_guard_begins_a_line_after_the_half_line_of_its_killed_loop(tmp_path):
    writer = AppendFile(tmp_path / "lines", is_held=True)
    pid = os.fork()
    if pid == 0:
        writer.append(b"one\n")
        os.write(writer.fd, b"tw")
        os._exit(0)
    os.waitpid(pid, 0)
    writer.append(b"three\n")
    assert (tmp_path / "lines").read_bytes() == b"one\ntw\nthree\n"


def test_a_full_disk_leaves_nothing_of_the_data(tmp_path):
    writer = AppendFile(tmp_path / "lines")
    writer.append(b"one\n")
    failing(4, full(), lambda: writer.append(b"two\nthree\n"))
    assert (tmp_path / "lines").read_bytes() == b"one\n"
    writer.append(b"four\n")
    assert (tmp_path / "lines").read_bytes() == b"one\nfour\n"


def test_without_a_lock_a_part_stays_since_the_end_may_be_anothers(tmp_path):
    writer = AppendFile(tmp_path / "lines", lock_s=None, torn="cut")
    failing(4, full(), lambda: writer.append(b"two\nthree\n"))
    writer.append(b"four\n")
    assert (tmp_path / "lines").read_bytes() == b"two\nfour\n"
    failing(2, full(), lambda: writer.append(b"five\n"))
    writer.append(b"six\n")
    assert (tmp_path / "lines").read_bytes() == b"two\nfour\nfi\nsix\n"


def test_a_file_system_without_locks_is_written(tmp_path, monkeypatch):
    def refuse(fd, what):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(append_file.fcntl, "flock", refuse)
    AppendFile(tmp_path / "lines", is_held=True).append(b"one\n")
    append_file.append(tmp_path / "lines", b"two\n")
    assert (tmp_path / "lines").read_bytes() == b"one\ntwo\n"


def test_a_full_file_takes_no_more_and_keeps_what_it_has(tmp_path):
    append_file.append(tmp_path / "lines", b"12345\n", most_bytes=8)
    with pytest.raises(OSError, match="it would have more than") as caught:
        append_file.append(tmp_path / "lines", b"678\n", most_bytes=8)
    assert caught.value.errno == errno.EFBIG
    assert (tmp_path / "lines").read_bytes() == b"12345\n"


def test_a_held_file_has_one_writer(tmp_path):
    holder = AppendFile(tmp_path / "lines", is_held=True)
    with pytest.raises(BlockingIOError):
        AppendFile(tmp_path / "lines", is_held=True)
    with pytest.raises(BlockingIOError, match=r"another process has held it for 0\.01 s"):
        append_file.append(tmp_path / "lines", b"two\n", lock_s=0.01)
    holder.append(b"one\n")
    holder.close()
    append_file.append(tmp_path / "lines", b"two\n")
    assert (tmp_path / "lines").read_bytes() == b"one\ntwo\n"


def test_a_file_that_is_replaced_while_a_writer_waits_gets_the_line(tmp_path):
    file = tmp_path / "lines"
    file.write_bytes(b"old\n")
    real = append_file.AppendFile

    class Replaced(real):
        def __init__(self, *args, **given):
            super().__init__(*args, **given)
            if not (tmp_path / "kept").exists():
                file.rename(tmp_path / "kept")
                file.write_bytes(b"new\n")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(append_file, "AppendFile", Replaced)
        append_file.append(file, b"line\n")
    assert file.read_bytes() == b"new\nline\n"
    assert (tmp_path / "kept").read_bytes() == b"old\n"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("elsewhere")])
def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path, make):
    make(tmp_path / "lines")
    with pytest.raises(OSError, match=r"regular|directory|symbolic"):
        AppendFile(tmp_path / "lines")
    assert not (tmp_path / "elsewhere").exists()


def _write_for_ever(file, name):
    with append_file.opened(file) as out:
        out.append(b"begin\n")
    writer, number = AppendFile(file, lock_s=60.0), 0
    while True:
        writer.append(b"".join(b"%s %d %s\n" % (name, number + one, b"x" * 5000) for one in range(2)))
        number += 2


def test_lines_of_writers_that_are_killed_at_work_do_not_mix(tmp_path):
    file = tmp_path / "lines"
    file.touch()
    for generation in range(2):
        writers = [
            multiprocessing.get_context("fork").Process(
                target=_write_for_ever, args=(file, b"%d%s" % (generation, name))
            )
            for name in (b"a", b"b")
        ]
        size = file.stat().st_size
        for one in writers:
            one.start()
        while file.stat().st_size < size + 500_000:
            time.sleep(0.001)
        for one in writers:
            os.kill(one.pid, signal.SIGKILL)
            one.join()
    append_file.append(file, b"end\n")
    lines = file.read_bytes().split(b"\n")
    assert lines[-2:] == [b"end", b""]
    whole = [line.split(b" ") for line in lines if line.endswith(b" " + b"x" * 5000)]
    rest = [line for line in lines[:-2] if line != b"begin" and not line.endswith(b" " + b"x" * 5000)]
    assert len(rest) <= 4  # at most one half line for each writer that was killed
    for name in (b"0a", b"0b", b"1a", b"1b"):
        numbers = [int(number) for one, number, _ in whole if one == name]
        assert numbers == list(range(len(numbers)))


MAY_APPEND = re.compile(r"O_APPEND|[\"']a[bt+]{0,2}[\"']")
"""Text of all files that `_appends` may find something in. Parsing the others takes most of the time."""


def _appends(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "O_APPEND":
            yield node.lineno
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            modes = [*node.args[:2], *(word.value for word in node.keywords if word.arg == "mode")]
            texts = [mode.value for mode in modes if isinstance(mode, ast.Constant) and isinstance(mode.value, str)]
            if name in ("open", "fdopen", "GzipFile") and any(text[:1] == "a" and len(text) <= 3 for text in texts):
                yield node.lineno


def test_nothing_else_opens_a_file_for_appending():
    found = set()
    for package in ("slurm_share", "prolog", "tui"):
        for file in sorted((ROOT / package).rglob("*.py")):
            name = str(file.relative_to(ROOT)).removeprefix("slurm_share/")
            text = file.read_text(encoding="utf-8")
            if MAY_APPEND.search(text):
                found |= {f"{name}:{line}" for line in _appends(ast.parse(text))}
    assert {one.partition(":")[0] for one in found} <= set(ALLOWED), sorted(found)
