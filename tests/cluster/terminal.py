"""Programs in tmux terminals: send keys, read the screen."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import run

PATIENCE_S = 120.0
"""Time limit for what takes a second on an idle machine."""
_OPTIONS = [["status", "off"], ["default-terminal", "screen-256color"]]
_RUN = '"$@"; echo $? >"$0.new"; mv "$0.new" "$0"; exec sleep infinity'
"""Keeps the text on the screen and writes the exit code to a file: tmux 3.3 misses the end of one program in ten that
end together, and then never reports a code.
"""


class Terminal:
    """One terminal, and the program in it."""

    def __init__(self, socket: Path, name: str, code: Path) -> None:
        self._socket, self.name, self._code = socket, name, code

    def _tmux(self, *words: str) -> str:
        return tmux(self._socket, *words)

    def press(self, *keys: str) -> None:
        """Press keys by tmux's names (Enter, Escape, F5); type anything else."""
        self._tmux("send-keys", "-t", self.name, *keys)

    def paste(self, text: str) -> None:
        """Paste a text, in brackets if the program asked for them."""
        self._tmux("set-buffer", "--", text, ";", "paste-buffer", "-p", "-t", self.name)

    def close(self) -> None:
        """End the program that runs in it."""
        self._tmux("kill-session", "-t", self.name)

    def resize(self, width: int, height: int) -> None:
        """Resize the terminal; the program gets SIGWINCH."""
        self._tmux("resize-window", "-t", self.name, "-x", str(width), "-y", str(height))

    @property
    def lines(self) -> list[str]:
        """Return the lines of the screen."""
        return self._tmux("capture-pane", "-p", "-t", self.name).splitlines()

    @property
    def text(self) -> str:
        """Return the text of the screen."""
        return "\n".join(self.lines)

    @property
    def said(self) -> str:
        """Return all that was written, scrolled lines included, with single blanks between words."""
        return " ".join(self._tmux("capture-pane", "-p", "-S", "-", "-t", self.name).split())

    @property
    def styles(self) -> set[str]:
        """Return the SGR numbers on the screen: 1 bold, 7 reverse, 31 or 38;5;... colours."""
        drawn = self._tmux("capture-pane", "-p", "-e", "-t", self.name)
        return {one for found in re.findall(r"\x1b\[([0-9;:]*)m", drawn) for one in found.split(";")}

    @property
    def code(self) -> int | None:
        """Return the program's exit code; None: it runs."""
        return int(self._code.read_text()) if self._code.exists() else None

    def comes_to(self, holds: Callable[[], object], within_s: float = PATIENCE_S) -> bool:
        """Wait until it is so; False: that took too long."""
        end = time.monotonic() + within_s
        while not holds():
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Wait until it is so."""
        if not self.comes_to(holds):
            raise AssertionError(f"{self.name} did not come to {what}; on its screen:\n{self.text}")

    def shows(self, *words: str) -> list[str]:
        """Wait until all of this is on the screen, and return the screen."""
        found: list[str] = []

        def all_there() -> bool:
            found[:] = self.lines
            return all(word in "\n".join(found) for word in words)

        self.until(all_there, f"show {' and '.join(map(repr, words))}")
        return found

    def hides(self, word: str) -> None:
        """Wait until this does not stand on it any more."""
        self.until(lambda: word not in self.text, f"hide {word!r}")

    def row(self, *first: str) -> list[str]:
        """Wait for a line that begins with these words, and return its words."""
        found: list[str] = []

        def there() -> bool:
            rows = [line.split() for line in self.lines]
            found[:] = next((row for row in rows if tuple(row[: len(first)]) == first), [])
            return bool(found)

        self.until(there, f"a line that begins with {' '.join(first)}")
        return found


def tmux(socket: Path, *words: str) -> str:
    """Run a tmux command and return its output."""
    environ = {name: value for name, value in os.environ.items() if name not in ("TMUX", "NO_COLOR", "TMUX_PANE")}
    done = run(
        ["tmux", "-u", "-S", str(socket), "-f", "/dev/null", *words],
        capture_output=True, text=True, check=False, env={**environ, "TERM": "xterm-256color"},
    )  # fmt: skip
    assert done.returncode == 0, f"tmux {' '.join(words)}: {done.stderr}"
    return done.stdout


class Terminals:
    """A tmux server with any number of terminals."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, name: str, argv: Sequence[str], size: tuple[int, int] = (200, 50)) -> Terminal:
        """Start a program in its own terminal."""
        width, height = map(str, size)
        code = self._folder / f"{name}.code"
        code.unlink(missing_ok=True)
        options = [word for option in _OPTIONS for word in (";", "set-option", "-g", *option)]
        command = shlex.join(["sh", "-c", _RUN, str(code), *argv])
        begin = [";", "new-session", "-d", "-s", name, "-x", width, "-y", height, command]
        tmux(self._folder / "tmux", "start-server", *options, *begin)
        return Terminal(self._folder / "tmux", name, code)


@contextmanager
def terminals(folder: Path) -> Iterator[Terminals]:
    """Yield a tmux server; end its programs afterwards."""
    made = Terminals(folder)
    try:
        yield made
    finally:
        environ = {name: value for name, value in os.environ.items() if name != "TMUX"}
        run(["tmux", "-S", str(folder / "tmux"), "kill-server"], capture_output=True, check=False, env=environ)
