"""llload --watch: in place on a terminal, one screen after another in a pipe."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest
from llload_surveys import survey

from slurm_share.cli import llload_watch
from slurm_share.core.errors import SlurmShareError, UsageError

LLLOAD = [sys.executable, "-m", "slurm_share.cli.llload"]


class Answers:
    """Answers in turn, with errors raised; ends after the last."""

    def __init__(self, *answers):
        self.answers = list(answers)

    @property
    def is_over(self):
        return not self.answers

    def __call__(self, timeout_s):
        found = self.answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


def watch(*answers, for_people=True):
    return llload_watch.watch(
        Answers(*answers),
        lambda looked, width, height, first: [f"{looked.taken} {height} {first}"],
        every_s=0.0,
        timeout_s=1.0,
        for_people=for_people,
    )


def test_a_pipe_gets_one_screen_after_another(capsys):
    """A blank line between them, no escape sequence, no height; for programs without the blank line."""
    one, two = survey(taken=1.0), survey(taken=2.0)
    assert watch(one, two) == 0
    assert capsys.readouterr().out == "1.0 None True\n\n2.0 None False\n"
    assert watch(one, two, for_people=False) == 0
    assert capsys.readouterr().out == "1.0 None True\n2.0 None False\n"


def test_a_look_that_fails_later_is_said_and_tried_again(capsys):
    assert watch(survey(taken=1.0), SlurmShareError("squeue timed out"), survey(taken=2.0)) == 0
    got = capsys.readouterr()
    assert got.out == "1.0 None True\n\n2.0 None False\n"
    assert got.err == "no new figures: squeue timed out\n"


@pytest.mark.parametrize("error", [SlurmShareError("x"), UsageError("x")])
def test_a_first_look_that_fails_ends_it(error):
    with pytest.raises(type(error)):
        watch(error)
    with pytest.raises(UsageError):
        watch(survey(taken=1.0), UsageError("x"))


class Terminal:
    """llload in its own terminal."""

    def __init__(self, *words, columns=80, lines=24):
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm-256color")
            os.environ.pop("NO_COLOR", None)
            os.environ.pop("COLUMNS", None)
            os.environ.pop("LINES", None)
            os.read(0, 1)  # until the size is set
            # Not the environment of C, in which readline may have put the size of pytest's own terminal.
            os.execve(LLLOAD[0], [*LLLOAD, *words], dict(os.environ))
        fcntl.ioctl(self.file, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.before = termios.tcgetattr(self.file)
        os.write(self.file, b"\n")
        self.seen = b""

    def until(self, word, seconds=120.0):
        """Read until it has been written; False: it has not."""
        end = time.monotonic() + seconds
        while word not in self.seen and time.monotonic() < end:
            if select.select([self.file], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.file, 65536)
                except OSError:
                    break  # it has closed the terminal
        return word in self.seen

    def ends(self, seconds=120.0):
        """Return the exit code; None: it did not end, and is killed."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.until(b"never", 0.1)  # who does not read what it writes keeps it from ending
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return None

    def quit(self):
        """Press q, which ends it with 0."""
        os.write(self.file, b"q")
        assert self.ends() == 0
        os.close(self.file)


@pytest.mark.parametrize(
    ("how", "code"),
    [
        (lambda terminal: os.write(terminal.file, b"q"), 0),
        (lambda terminal: os.write(terminal.file, b"\x03"), 130),
        (lambda terminal: os.kill(terminal.pid, signal.SIGTERM), 143),
    ],
)
def test_in_place_until_somebody_ends_it(how, code):
    """The cursor goes home for each round; q ends with 0, Ctrl-C with 130; the terminal is as it was."""
    terminal = Terminal("--demo", "-g", "--watch", "0.5")
    assert terminal.until(b"\x1b[J\x1b[H")  # a second round
    assert b"\x1b[2J" in terminal.seen
    assert b"SIMULATED CLUSTER" in terminal.seen
    how(terminal)
    assert terminal.ends() == code
    assert b"Traceback" not in terminal.seen
    with contextlib.suppress(termios.error):  # gone with its last user, on some kernels
        assert termios.tcgetattr(terminal.file)[3] == terminal.before[3]
    os.close(terminal.file)


def test_no_round_is_taller_or_wider_than_the_terminal():
    terminal = Terminal("--demo", "-g", "--all", "--demo-nodes", "300", "--watch", "0.5", "--no-color")
    assert terminal.until(b"\x1b[J\x1b[H")
    terminal.quit()
    first = terminal.seen.split(b"\x1b[2J")[1].split(b"\x1b[J")[0].decode()
    lines = [line.replace("\x1b[K", "").rstrip("\r") for line in first.splitlines()]
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert any("more nodes" in line for line in lines)


def test_a_reader_who_has_seen_enough_is_no_error():
    first_line = '"$@" | head -1; echo "${PIPESTATUS[0]}"'
    words = ["bash", "-c", first_line, "-", *LLLOAD, "--demo", "--all", "--demo-nodes", "3000"]
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    assert run.stdout.splitlines()[0].startswith("SIMULATED")
    assert run.stdout.splitlines()[-1] == "0"
    assert run.stderr == ""
    words = ["bash", "-c", '"$@" >&-', "-", *LLLOAD, "--demo"]
    closed = subprocess.run(words, capture_output=True, text=True, check=False)
    assert closed.returncode == 2
    assert "standard output is closed" in closed.stderr


def test_after_a_stop_q_ends_it_and_the_screen_is_drawn_anew():
    terminal = Terminal("--demo", "-g", "--watch", "3600")
    assert terminal.until(b"\x1b[J")
    terminal.seen = b""
    os.kill(terminal.pid, signal.SIGSTOP)
    os.waitpid(terminal.pid, os.WUNTRACED)
    termios.tcsetattr(terminal.file, termios.TCSANOW, terminal.before)
    os.kill(terminal.pid, signal.SIGCONT)
    assert terminal.until(b"\x1b[2J")
    assert terminal.until(b"\x1b[J")
    end = time.monotonic() + 120
    while termios.tcgetattr(terminal.file)[3] & termios.ICANON and time.monotonic() < end:
        time.sleep(0.01)  # until it waits for a key again
    terminal.quit()


def test_another_size_is_drawn_at_once():
    terminal = Terminal("--demo", "-g", "--watch", "3600", "--no-color", columns=120)
    assert terminal.until(b"\x1b[J")
    terminal.seen = b""
    fcntl.ioctl(terminal.file, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 60, 0, 0))
    drawn = terminal.until(b"\x1b[J")
    terminal.quit()
    assert drawn, terminal.seen
    lines = terminal.seen.decode().partition("\x1b[2J")[2].partition("\x1b[J")[0].replace("\x1b[K", "").splitlines()
    assert lines[0].startswith("SIMULATED")
    assert max(map(len, lines)) <= 60, max(lines, key=len)
