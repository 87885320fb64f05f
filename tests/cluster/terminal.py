"""Programs in terminals that nobody sees: a tmux server of one's own, keys in, the screen out."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import run

PATIENCE_S = 30.0
"""For what comes in a second on a machine that has nothing else to do."""
_OPTIONS = [["status", "off"], ["default-terminal", "screen-256color"]]
_RUN = '"$@"; echo $? >"$0.new"; mv "$0.new" "$0"; exec sleep infinity'
"""What has been written stays on the screen, and what it ended with is in a file: tmux 3.3 misses the end of one in ten
that end together, and then never says a code."""


class Terminal:
    """One terminal, and the program in it."""

    def __init__(self, socket: Path, name: str, code: Path) -> None:
        self._socket, self.name, self._code = socket, name, code

    def _tmux(self, *words: str) -> str:
        return tmux(self._socket, *words)

    def press(self, *keys: str) -> None:
        """Keys as tmux calls them: Enter, Escape, F5; what has no such name is typed."""
        self._tmux("send-keys", "-t", self.name, *keys)

    def close(self) -> None:
        """Whatever runs in it ends."""
        self._tmux("kill-session", "-t", self.name)

    def resize(self, width: int, height: int) -> None:
        """Another size, as if somebody had pulled at the window."""
        self._tmux("resize-window", "-t", self.name, "-x", str(width), "-y", str(height))

    @property
    def lines(self) -> list[str]:
        """What stands on the screen."""
        return self._tmux("capture-pane", "-p", "-t", self.name).splitlines()

    @property
    def text(self) -> str:
        """The same, in one piece."""
        return "\n".join(self.lines)

    @property
    def said(self) -> str:
        """All that was written, what has gone over the upper edge as well: words, with one blank between."""
        return " ".join(self._tmux("capture-pane", "-p", "-S", "-", "-t", self.name).split())

    @property
    def styles(self) -> set[str]:
        """The numbers that the screen's text is dressed with (SGR): 1 bold, 7 reverse, 31 or 38;5;... colours."""
        drawn = self._tmux("capture-pane", "-p", "-e", "-t", self.name)
        return {one for found in re.findall(r"\x1b\[([0-9;:]*)m", drawn) for one in found.split(";")}

    @property
    def code(self) -> int | None:
        """What the program has ended with; None: it runs."""
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
        """The screen, as soon as all of this stands on it."""
        found: list[str] = []

        def all_there() -> bool:
            found[:] = self.lines
            text = "\n".join(found)
            return all(word in text for word in words)

        self.until(all_there, f"show {' and '.join(map(repr, words))}")
        return found

    def hides(self, word: str) -> None:
        """Wait until this does not stand on it any more."""
        self.until(lambda: word not in self.text, f"hide {word!r}")

    def row(self, *first: str) -> list[str]:
        """The words of the line that begins with these, as soon as there is one."""
        found: list[str] = []

        def there() -> bool:
            rows = [line.split() for line in self.lines]
            found[:] = next((row for row in rows if tuple(row[: len(first)]) == first), [])
            return bool(found)

        self.until(there, f"a line that begins with {' '.join(first)}")
        return found


def tmux(socket: Path, *words: str) -> str:
    """What tmux answers."""
    environ = {name: value for name, value in os.environ.items() if name not in ("TMUX", "NO_COLOR", "TMUX_PANE")}
    done = run(
        ["tmux", "-u", "-S", str(socket), "-f", "/dev/null", *words],
        capture_output=True, text=True, check=False, env={**environ, "TERM": "xterm-256color"},
    )  # fmt: skip
    assert done.returncode == 0, f"tmux {' '.join(words)}: {done.stderr}"
    return done.stdout


class Terminals:
    """As many as are wanted, in one tmux server."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, name: str, argv: Sequence[str], size: tuple[int, int] = (200, 50)) -> Terminal:
        """A program in a terminal of its own."""
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
    """A tmux server; its programs end with it."""
    made = Terminals(folder)
    try:
        yield made
    finally:
        environ = {name: value for name, value in os.environ.items() if name != "TMUX"}
        run(["tmux", "-S", str(folder / "tmux"), "kill-server"], capture_output=True, check=False, env=environ)
