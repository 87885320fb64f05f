"""The command on a terminal: it draws, it ends, and it restores the terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

ALTERNATE, BACK = b"\x1b[?1049h", b"\x1b[?1049l"
XDG = ("XDG_STATE_HOME", "XDG_CONFIG_HOME")
ESCAPE = re.compile(rb"\x1b[\[(][0-9;?<>=$]*[a-zA-Z]")


class Terminal:
    """Runs the command on a terminal of its own and keeps its output."""

    def __init__(self, folder, *words, command=None, **environ):
        self.drawn = b""
        self.file, theirs = pty.openpty()
        fcntl.ioctl(self.file, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", *XDG)}
        self.child = subprocess.Popen(
            command or [sys.executable, "-I", "-m", "slurm_share.cli.llload_tui", *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**inherited, "TERM": "xterm-256color", "HOME": str(folder), **environ},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # the session's own, as a window gives it
        )
        os.close(theirs)

    def read(self, is_it):
        """Read until the text fits or the command has ended, and return the text."""
        until = time.monotonic() + 120
        while not is_it(self.text) and time.monotonic() < until:
            if select.select([self.file], [], [], 0.1)[0]:
                try:
                    data = os.read(self.file, 65536)
                except OSError:  # so a terminal says that nobody writes any more
                    break
                self.drawn += data
        return self.text

    @property
    def text(self):
        """The output without escape sequences."""
        return ESCAPE.sub(b"", self.drawn).decode(errors="replace")

    def wait(self, word):
        """Wait until this word is drawn."""
        assert word in self.read(lambda text: word in text)

    def press(self, keys):
        """Write keys to the terminal."""
        os.write(self.file, keys)

    def end(self):
        """Read to the end and return the exit code."""
        self.read(lambda _: False)
        return self.child.wait(60)

    def quit(self):
        """Press q, and expect success."""
        self.press(b"q")
        assert self.end() == 0

    def close(self):
        """Kill the command and close the terminal."""
        self.child.kill()
        self.child.wait(60)
        os.close(self.file)


def children_of(pid):
    """Return the PIDs of a process's children."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
def terminal(tmp_path):
    """Make terminals, and close them."""
    made = []

    def make(*words, **more):
        made.append(Terminal(tmp_path, *words, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_it_draws_a_cluster_and_q_ends_it(terminal):
    one = terminal("--demo", "--all", "--view", "nodes")
    one.wait("nodes answered")
    assert ALTERNATE in one.drawn
    one.quit()
    assert one.drawn.rindex(BACK) > one.drawn.rindex(ALTERNATE)
    assert one.text.count("Traceback") == 0


def test_a_paste_with_escape_sequences_runs_no_action(terminal):
    """With brackets and without; in the table, the filter and the help; after them bytes that are not UTF-8."""
    coloured = b"load \x1b[31mred q x text\x1b[0m more than thirty-two characters q"
    one = terminal("--demo", "--all", "--view", "nodes")
    one.wait("nodes answered")
    one.press(b"\x1b[200~" + coloured + b"\x1b[201~")
    one.wait("pasted text")
    one.press(b"\xff\xfe\x1b]11;rgb:1e1e/1e1e/2e2e\x1b\\")
    one.press(b"?")
    one.wait("Moving")
    one.press(coloured)
    end = time.monotonic() + 120
    while "v-1q" not in one.text and time.monotonic() < end:  # a pause ends a paste without brackets
        for keys in (b"\x1b", b"/", b"\x1b[200~v\x1b[1m-\x1b[0m1q\x1b[201~"):
            until = time.monotonic() + 0.5
            one.press(keys)
            one.read(lambda _: time.monotonic() > until)  # noqa: B023
        assert one.child.poll() is None
    assert "v-1q" in one.text
    one.press(b"\r")
    one.quit()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_gives_the_terminal_back(terminal, number):
    one = terminal("--demo", "--all")
    one.wait("nodes answered")
    one.child.send_signal(number)
    assert one.end() == 128 + number
    for escape in (BACK, b"\x1b[?25h", b"\x1b[?1003l"):
        assert escape in one.drawn


def test_a_closed_terminal_ends_it(terminal, tmp_path):
    one = terminal("--demo", "--all")
    one.wait("nodes answered")
    os.close(one.file)
    one.file = os.open(os.devnull, os.O_RDONLY)
    assert one.child.wait(60) in (-signal.SIGHUP, 128 + signal.SIGHUP)


def test_keys_in_one_write_are_for_what_they_open(terminal):
    one = terminal("--demo", "--all", "--view", "nodes")
    one.wait("nodes answered")
    one.press(b"/squeue")
    one.wait("squeue")
    one.press(b"\x034")
    assert one.end() == 0
    assert "Traceback" not in one.text
    one = terminal("--demo", "--all", "--view", "nodes")
    one.wait("nodes answered")
    one.press(b"q4")
    assert one.end() == 0
    assert "Traceback" not in one.text


@pytest.mark.parametrize("stops", [signal.SIGSTOP, signal.SIGTSTP, None])
def test_stopped_and_continued_it_draws_everything(terminal, stops):
    begins = f"{sys.executable} -I -m slurm_share.cli.llload_tui --demo --view nodes"
    script = f"set -m; {begins}; echo $? stopped; read x; fg; echo over"
    one = terminal(command=["/bin/bash", "-c", script])
    one.wait("nodes answered")
    (child,) = children_of(one.child.pid)
    if stops is None:
        one.press(b"\x1a")
    else:
        os.kill(child, stops)
    one.wait(" stopped")
    before = len(one.drawn)
    one.press(b"\n")
    one.read(lambda _: b"Advice" in one.drawn[before:] and b"answered" in one.drawn[before:])
    assert b"Advice" in one.drawn[before:]
    one.press(b"q")
    one.wait("over")
    assert one.end() == 0


def test_ctrl_z_without_a_shell_is_answered(terminal):
    one = terminal("--demo", "--all", "--view", "nodes")
    one.wait("nodes answered")
    one.press(b"\x1a")
    one.wait("no shell here")
    one.quit()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (["--demo", "-u", "nobody-of-that-name"], "no user nobody-of-that-name"),
        (["--demo", "-n", "nowhere"], "no node nowhere"),
        (["--demo", "--theme", "plaid"], "no theme plaid"),
        (["--replay", "/nowhere/day.jsonl"], "cannot be read"),
    ],
)
def test_what_cannot_be_as_asked_ends_it(terminal, said, why):
    one = terminal(*said)
    assert one.end() == 2
    assert why in one.text
    assert one.drawn.rfind(BACK) >= one.drawn.rfind(ALTERNATE)


def test_what_cannot_be_as_asked_ends_a_dashboard_that_is_drawn_already(terminal):
    one = terminal("--replay", "/nowhere/day.jsonl")
    feed, until = 0, time.monotonic() + 60
    while not feed and time.monotonic() < until:
        for child in children_of(one.child.pid):
            if (
                b"feed_process" in Path(f"/proc/{child}/cmdline").read_bytes()
            ):  # not before its exec: Popen waits for it
                os.kill(child, signal.SIGSTOP)
                feed = child
    one.read(lambda _: ALTERNATE in one.drawn)
    os.kill(feed, signal.SIGCONT)
    assert ALTERNATE in one.drawn
    assert one.end() == 2
    assert "cannot be read" in one.text
    assert one.drawn.rfind(BACK) > one.drawn.rfind(ALTERNATE)


def test_standard_error_need_not_be_a_terminal(terminal, tmp_path):
    script = f"{sys.executable} -I -m slurm_share.cli.llload_tui --demo 2> {tmp_path}/errors"
    one = terminal(command=["/bin/sh", "-c", script])
    one.wait("nodes answered")
    one.quit()
    assert (tmp_path / "errors").read_bytes() == b""


@pytest.mark.parametrize("how", [{"words": ["--no-color"]}, {"words": [], "NO_COLOR": "1"}])
def test_without_colours_there_are_none(terminal, how):
    words = how.pop("words")
    one = terminal("--demo", "--all", *words, **how)
    one.wait("nodes answered")
    one.quit()
    codes = {code for found in re.findall(rb"\x1b\[([0-9;]*)m", one.drawn) for code in found.split(b";")}
    assert not {code for code in codes if code.isdigit() and 30 <= int(code) < 108} - {b"39", b"49"}


def test_words_go_before_the_configuration(terminal, tmp_path):
    (tmp_path / "mine.toml").write_text("interval = 30.0\n")
    one = terminal("--demo", "--all", "--config", str(tmp_path / "mine.toml"))
    one.wait("every 30 s")
    one.quit()
    one = terminal("--demo", "--all", "--config", str(tmp_path / "mine.toml"), "--interval", "2")
    one.wait("every 2 s")
    one.quit()
    (tmp_path / "mine.toml").write_text("interval = fast\n")
    one = terminal("--demo", "--all", "--config", str(tmp_path / "mine.toml"))
    assert one.end() == 2
    assert "is not TOML" in one.text


def test_remembered_choices_that_are_broken_are_left_aside(terminal, tmp_path):
    folder = tmp_path / ".local/state/slurm-share"
    folder.mkdir(parents=True)
    (folder / "tui.json").write_text("{")
    one = terminal("--demo", "--all")
    one.wait("nodes answered")
    one.quit()
    assert "what was remembered cannot be read" in one.text


@pytest.mark.parametrize("switches", [{}, {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}])
def test_a_locale_without_utf8_gets_ascii(terminal, switches):
    command = [sys.executable, "-m", "slurm_share.cli.llload_tui", "--demo", "--all"]
    one = terminal(command=command, LANG="C", LC_ALL="", LC_CTYPE="", **switches)
    one.wait("nodes answered")
    one.quit()
    assert one.drawn.isascii()
    assert re.search(r"##[#.-]", one.text)  # a bar; how full, the time of day decides
    assert "\\u2" not in one.text
