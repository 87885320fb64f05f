"""`llload-tui --serve` as a process of its own, for tests, and requests that no browser would send."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

COMMAND = [sys.executable, "-I", "-m", "slurm_share.cli.llload_tui", "--serve"]
DEMO = ("--demo", "--all")
PATIENCE_S = 60.0


def wait_for(condition, what=""):
    """Wait until `condition()` is true, and return it."""
    end = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {PATIENCE_S:g} s: {what or condition}"
        time.sleep(0.02)
    return found


class BrowserServer:
    """The command, started with these words, and its first lines."""

    def __init__(self, folder: Path, *words: str, shows: tuple[str, ...] = DEMO, **environ: str) -> None:
        self.folder = folder
        self.errors_file = folder / "errors"
        with self.errors_file.open("w") as errors:
            self.child = subprocess.Popen(
                [*COMMAND, *shows, *words], stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
                env={**os.environ, "HOME": str(folder), "XDG_STATE_HOME": str(folder / "state"), **environ},
            )  # fmt: skip
        assert self.child.stdout is not None
        self.lines = [self.child.stdout.readline()]
        while self.lines[-1] and not self.lines[-1].startswith("  then") and "--token-file" not in words:
            self.lines.append(self.child.stdout.readline())
        port = re.search(r" port (\d+)", self.lines[0])
        self.port = int(port[1]) if port else 0

    @property
    def link(self) -> str:
        """The link that works next, from the file."""
        (file,) = (self.folder / "state/slurm-share/browser").iterdir()
        return file.read_text().strip()

    @property
    def errors(self) -> str:
        return self.errors_file.read_text()

    def ask(self, path: str, method: str = "GET", body: str | None = None, **headers: str):
        """Send a request; return status, headers and text. `_` in names of headers is `-`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode(errors="replace")
        finally:
            connection.close()

    def log_in(self) -> tuple[str, str]:
        """Use the link; return the cookie and the path of the pages."""
        parts = urlsplit(self.link)
        status, headers, _ = self.ask(f"{parts.path}?{parts.query}")
        assert status == 303
        return headers["Set-Cookie"].split(";")[0], headers["Location"]

    def raw(self, data: bytes) -> bytes:
        """Send bytes, and return what comes until the end."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as opened:
            opened.sendall(data)
            found = b""
            try:
                while more := opened.recv(65536):
                    found += more
            except ConnectionResetError:
                pass
            return found

    def children(self) -> list[int]:
        """Return the dashboards that run."""
        return [int(one) for one in Path(f"/proc/{self.child.pid}/task/{self.child.pid}/children").read_text().split()]

    def close(self) -> None:
        if self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()
        assert self.child.stdout is not None
        self.child.stdout.close()


def descendants(pid: int) -> list[int]:
    """Return all processes below one."""
    found = [pid]
    for one in found:
        try:
            found += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
        except OSError:
            pass
    return found[1:]


def is_running(pid: int) -> bool:
    """Return whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
