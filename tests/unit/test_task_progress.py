"""The progress that a task's program writes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from slurm_share import progress
from slurm_share.triples.rules import result_lines


def run(text: str, file: Path | str | None) -> str:
    """Return what a program prints that uses `progress` so, in a clean interpreter."""
    environ = {"PATH": "/usr/bin:/bin"} | ({} if file is None else {"LLSUB_PROGRESS": str(file)})
    code = "from slurm_share import progress\nimport os, sys, threading\n" + textwrap.dedent(text)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_ticks_add_and_reports_set_the_number(tmp_path: Path) -> None:
    file = tmp_path / "one"
    run("progress.tick(); progress.tick(2); progress.tick(0.5)", file)
    assert float(file.read_text()) == 3.5
    assert file.stat().st_mode & 0o077 == 0
    run("progress.report(1e9); progress.report(12)", file)
    assert float(file.read_text()) == 12


def test_later_program_of_the_same_task_goes_on_from_the_number(tmp_path: Path) -> None:
    file = tmp_path / "one"
    for _ in range(3):
        run("[progress.tick() for _ in range(10)]", file)
    assert float(file.read_text()) == 30


def test_nothing_is_written_without_the_variable() -> None:
    assert run("progress.tick(); progress.report(3); print(progress._file)", None) == "-1\n"


def test_module_loads_nothing_else_of_the_package(tmp_path: Path) -> None:
    said = run("print([name for name in sys.modules if name.startswith('slurm_share') or name == 'msgspec'])", None)
    assert said == "['slurm_share', 'slurm_share.progress']\n"


@pytest.mark.parametrize(
    "words",
    [
        "progress.tick('many')",
        "progress.tick(None)",
        "progress.report(float('nan'))",
        "progress.report(float('inf'))",
        "progress.tick(-5)",
        "progress.tick(10 ** 400)",
        "os.remove(os.environ['LLSUB_PROGRESS']); progress.tick(0)",
    ],
)
def test_mistakes_and_a_file_that_is_gone_raise_nothing_and_change_nothing(tmp_path: Path, words: str) -> None:
    file = tmp_path / "one"
    run(f"progress.tick(7); {words}", file)
    assert not file.exists() or float(file.read_text()) == 7


def test_full_disk_raises_nothing() -> None:
    run("progress.tick(7); progress.report(8)", "/dev/full")


@pytest.mark.parametrize("kind", ["missing folder", "folder", "link", "fifo"])
def test_place_that_is_no_file_raises_nothing(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "one"
    if kind == "missing folder":
        file = tmp_path / "none" / "one"
    elif kind == "folder":
        file.mkdir()
    elif kind == "link":
        (tmp_path / "other").write_text("5")
        file.symlink_to(tmp_path / "other")
    else:
        os.mkfifo(file)
    run("progress.tick(7)", file)
    assert kind != "link" or (tmp_path / "other").read_text() == "5"


def test_threads_lose_no_tick(tmp_path: Path) -> None:
    file = tmp_path / "one"
    text = """
        sys.setswitchinterval(1e-6)
        work = lambda: [progress.tick() for _ in range(2000)]
        threads = [threading.Thread(target=work) for _ in range(8)]
        [one.start() for one in threads]
        [one.join() for one in threads]
    """
    run(text, file)
    assert float(file.read_text()) == 16000


def test_forked_child_does_not_count_while_its_parent_does(tmp_path: Path) -> None:
    file = tmp_path / "one"
    text = """
        progress.tick(10)
        pid = os.fork()
        if pid == 0:
            [progress.tick(1000) for _ in range(10)]
            os._exit(0)
        os.waitpid(pid, 0)
        print(float(open(os.environ["LLSUB_PROGRESS"]).read()))
        progress.tick(10)
    """
    assert run(text, file) == "10.0\n"
    assert float(file.read_text()) == 20


def test_child_forked_while_a_thread_counts_does_not_hang(tmp_path: Path) -> None:
    text = """
        progress.tick()
        progress._lock.acquire()
        pid = os.fork()
        if pid == 0:
            progress.tick()
            os._exit(0)
        os.waitpid(pid, 0)
    """
    run(text, tmp_path / "one")


def test_another_process_has_no_effect_while_the_first_lives(tmp_path: Path) -> None:
    file = tmp_path / "one"
    text = """
        import subprocess
        progress.tick(10)
        more = "from slurm_share import progress; progress.report(5000)"
        subprocess.run([sys.executable, "-c", more], check=True)
        progress.tick(10)
    """
    run(text, file)
    assert float(file.read_text()) == 20


def test_another_file_by_the_number_of_the_closed_one_is_left_alone(tmp_path: Path) -> None:
    said = run(
        """
        progress.tick(5)
        os.closerange(3, 64)
        own = open("own", "w+b", buffering=0)
        own.write(b"a checkpoint")
        progress.tick(5)
        own.seek(0)
        print(own.read())
        if os.fork() == 0:
            os._exit(0 if own.write(b"!") else 1)
        print(os.wait()[1])
        """.replace('"own"', repr(str(tmp_path / "own"))),
        tmp_path / "one",
    )
    assert said == "b'a checkpoint'\n0\n"
    assert float((tmp_path / "one").read_text()) == 10


def test_handler_of_a_signal_may_count_within_a_call(tmp_path: Path) -> None:
    said = run(
        """
        import faulthandler, signal
        faulthandler.dump_traceback_later(30, exit=True)
        left = 300
        def again(*_):
            global left
            progress.tick()
            left -= 1
            if left:
                signal.setitimer(signal.ITIMER_REAL, 0.0005)
        signal.signal(signal.SIGALRM, again)
        signal.setitimer(signal.ITIMER_REAL, 0.0005)
        while left:
            progress.tick()
        print("all")
        """,
        tmp_path / "one",
    )
    assert said == "all\n"


def test_numbers_of_a_short_type_add_up(tmp_path: Path) -> None:
    run(
        """
        class Short:
            def __init__(self, value): self.value = min(value, 2048)
            def __float__(self): return float(self.value)
            def __radd__(self, other): return Short(float(other) + self.value)
            def __add__(self, other): return Short(float(other) + self.value)
            def __sub__(self, other): return self.value - float(other)
            def __ge__(self, other): return self.value >= other
        for _ in range(3):
            progress.tick(Short(1024))
        """,
        tmp_path / "one",
    )
    assert float((tmp_path / "one").read_text()) == 3072


def test_results_are_a_line_that_the_table_of_results_reads(capsys: pytest.CaptureFixture[str]) -> None:
    class Tensor:
        def __float__(self) -> float:
            return 0.5

        def __str__(self) -> str:
            return "tensor(0.5000, device='cuda:0')"

    progress.result(loss=Tensor(), epoch=3, note='two "words"', empty="")
    out = capsys.readouterr().out
    assert out == '\rLLSUB_RESULT loss=0.5 epoch=3 note="two ""words""" empty=""\n'
    found = result_lines.read(f"50%|###{out}".encode(), 0, is_ended=False).of(0, 1)
    assert found == {"loss": "0.5", "epoch": "3", "note": 'two "words"', "empty": ""}
