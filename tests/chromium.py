"""Headless Chromium for tests and pictures: open a page, press keys, look at it.

In a test (the fixture is in tests/conftest.py; it skips, with the reason, where Chromium cannot be had)::

    def test_a_page(chromium, tmp_path):
        with chromium.page((tmp_path / "report.html").as_uri(), width=1280, height=800, scheme="dark") as page:
            page.wait("document.querySelectorAll('svg').length > 2")
            page.press("Escape")
            assert page.run("document.title") == "Job 4711"
            page.save(tmp_path / "report.png")        # full=True: the whole page, not only what is on the screen
            assert page.errors == []                  # of scripts, of the console, and what could not be loaded

At a desk, from a checkout (two pictures a line: `--scheme dark`, a phone)::

    .venv/bin/python tests/chromium.py report.html report.png --scheme dark
    .venv/bin/python tests/chromium.py http://127.0.0.1:8000/ phone.png --phone --full

The program is Debian's chromium-headless-shell. If the host has none, its packages are fetched by apt (95 MB, once) and
unpacked into the cache of the local clusters; nothing is installed on the host. That needs root, as the clusters do.
It is driven through two pipes (--remote-debugging-pipe, DevTools protocol): no port is open, and Chromium ends when
this process does, however it ends. Nothing outside the host is loaded: the page itself must name what it needs.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import fcntl
import json
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "packaging/demo"))
from localcluster import locks, paths

PACKAGES = ("chromium-headless-shell", "fontconfig-config", "fonts-dejavu-core")
PROGRAMS = ("chromium-headless-shell", "chromium")
PHONE = (390, 844)
"""Size of a usual phone in CSS pixels, upright."""
PATIENCE_S = 60.0
"""Longest wait for an answer or a condition, on a busy machine."""
KEYS = {
    "Enter": ("Enter", 13, "\r"), "Escape": ("Escape", 27, ""), "Tab": ("Tab", 9, ""),
    "Backspace": ("Backspace", 8, ""),
    "ArrowUp": ("ArrowUp", 38, ""), "ArrowDown": ("ArrowDown", 40, ""), "ArrowLeft": ("ArrowLeft", 37, ""),
    "ArrowRight": ("ArrowRight", 39, ""), "Home": ("Home", 36, ""), "End": ("End", 35, ""),
    "PageUp": ("PageUp", 33, ""), "PageDown": ("PageDown", 34, ""),
}  # fmt: skip
"""Keys by name: code, number, text."""


class NotHere(Exception):
    """A program is not here and cannot be had; the text says why."""


def program() -> tuple[list[str], dict[str, str]]:
    """Return how to start Chromium, and its additional environment. Raises NotHere."""
    for name in PROGRAMS:
        if found := shutil.which(name):
            return [found], {}
    root = unpacked("chromium", PACKAGES)
    libraries = root / "usr/lib" / f"{platform.machine()}-linux-gnu"
    environ = {"LD_LIBRARY_PATH": f"{libraries}:{libraries}/pulseaudio"}
    return [str(root / "usr/lib/chromium/chromium-headless-shell")], environ


def unpacked(name: str, packages: Sequence[str]) -> Path:
    """Return the folder with the files of Debian packages and of what they need and this host lacks; fetch them once.
    Raises NotHere."""
    home = paths.cache() / name
    if (home / "root").exists():
        return home / "root"
    if os.geteuid() != 0 or not all(map(shutil.which, ("apt-get", "dpkg-deb"))):
        raise NotHere(f"{packages[0]} is not installed, and only root on Debian can fetch it")
    with locks.waiting(paths.cache() / f"{name}.lock"):
        return locks.made_once(home, partial(_fetch, packages)) / "root"


def _fetch(packages: Sequence[str], making: Path) -> None:
    archives = making / "archives"
    (archives / "partial").mkdir(parents=True)
    argv = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "--download-only"]
    argv += ["-o", f"Dir::Cache::archives={archives}", "-o", "Debug::NoLocking=1", *packages]
    if _run(argv) != 0 and (_run(["apt-get", "update", "-qq"]) != 0 or _run(argv) != 0):
        raise NotHere(f"apt-get cannot fetch {packages[0]} here")
    for archive in archives.glob("*.deb"):
        if _run(["dpkg-deb", "-x", str(archive), str(making / "root")]) != 0:
            raise NotHere(f"{archive.name} cannot be unpacked")
    shutil.rmtree(archives)


def _run(argv: list[str]) -> int:
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environ).returncode


def _moved(file: int) -> int:
    """Return the same pipe as a descriptor of two digits, which is neither 3 nor 4."""
    moved = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(file)
    return moved


class Chromium:
    """One browser process. Pages have cookies of their own (incognito contexts), unless they share a context."""

    def __init__(self, scale: int = 1) -> None:
        """Start it. `scale`: pixels of a picture for one CSS pixel. Raises NotHere if there is none here."""
        argv, environ = program()
        self._folder = tempfile.TemporaryDirectory(prefix="chromium-")
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        argv += [
            "--headless", "--remote-debugging-pipe", f"--user-data-dir={self._folder.name}", "--no-first-run",
            "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio", "--disable-breakpad",
            "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-proxy-server",
            "--force-color-profile=srgb", f"--force-device-scale-factor={scale}",
            *(["--no-sandbox"] if os.geteuid() == 0 else []), "about:blank",
        ]  # fmt: skip
        # bash gives the pipes the numbers 3 and 4, which Chromium wants
        theirs_in, theirs_out = (_moved(file) for file in (theirs_in, theirs_out))
        line = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out} {theirs_in}<&- {theirs_out}>&-'
        self.child = subprocess.Popen(
            ["bash", "-c", line, "chromium", *argv],
            pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env={**os.environ, **environ, "HOME": self._folder.name}, start_new_session=True,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._number, self._rest = 0, b""
        self._pages: dict[str, Page] = {}
        self.version = self.call("Browser.getVersion")["product"]

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol and return its result. Raises AssertionError for its errors."""
        self._number += 1
        number = self._number
        asked = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        os.write(self._out, json.dumps(asked).encode() + b"\0")
        end = time.monotonic() + PATIENCE_S
        while True:
            answer = self._read(end)
            assert answer is not None, f"Chromium did not answer {method} within {PATIENCE_S:g} s"
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def listen(self, seconds: float) -> None:
        """Take events until `seconds` are over."""
        end = time.monotonic() + seconds
        while self._read(end) is not None:
            pass

    def _read(self, end: float) -> dict[str, Any] | None:
        """Return the next message; an event is also given to its page. None: there was none until `end`."""
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                return None
            data = os.read(self._in, 1 << 20)
            assert data, f"Chromium has ended with {self.child.wait()}"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if page := self._pages.get(message.get("sessionId", "")):
            page.hear(message)
        return message

    @contextlib.contextmanager
    def page(
        self, url: str, *, width: int = 1280, height: int = 800, scheme: str = "", phone: bool = False,
        context: str | None = None,
    ) -> Iterator[Page]:  # fmt: skip
        """Open a page of this size in CSS pixels, and close it at the end. `scheme`: "light" or "dark", as the user
        prefers; "print": as on paper. `phone`: touch and the viewport of phones; give PHONE as the size.
        `context`: that of another page, to have its cookies."""
        own = context or self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=own)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session, own)
        try:
            for domain in ("Page", "Runtime", "Log", "Network"):
                page.call(f"{domain}.enable")
            page.resize(width, height, phone=phone)
            media = {"media": "print"} if scheme == "print" else {}
            if scheme and not media:
                media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}  # type: ignore[dict-item]
            page.call("Emulation.setEmulatedMedia", **media)
            page.go(url)
            yield page
        finally:
            del self._pages[session]
            with contextlib.suppress(AssertionError, OSError):  # the test may have killed it
                self.call("Target.closeTarget", targetId=target)

    def kill(self) -> None:
        """Kill all its processes at once, as kill -9 does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()

    def close(self) -> None:
        self.kill()
        os.close(self._in)
        os.close(self._out)
        self._folder.cleanup()


class Page:
    """One page. Its `errors`: what scripts and the console complained of, and what could not be loaded."""

    def __init__(self, browser: Chromium, session: str, context: str) -> None:
        self.browser, self.context = browser, context
        self.errors: list[str] = []
        self.answers: list[dict[str, Any]] = []
        """HTTP answers: status, url, headers."""
        self._session = session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, self._session, **parameters)

    def hear(self, event: dict[str, Any]) -> None:
        """Note an event."""
        method, given = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = given["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded" and given["entry"]["level"] == "error":
            self.errors.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and given["type"] in ("error", "assert"):
            self.errors.append(" ".join(str(one.get("value", one.get("description"))) for one in given["args"]))
        elif method == "Network.responseReceived":
            self.answers.append({name: given["response"][name] for name in ("status", "url", "headers")})

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        # 0: the browser's own factor. With another one a canvas has the wrong size (device-pixel-content-box).
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=0, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    def go(self, url: str) -> None:
        """Open a URL and wait until it and what it needs are loaded. What fails is in `errors`."""
        self.call("Page.navigate", url=url)
        self.wait("document.readyState == 'complete'")

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression, or of the promise that it returns."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript expression is true. One that fails, as while a page is loaded, is not."""
        end = time.monotonic() + PATIENCE_S
        script = f"(() => {{ try {{ return Boolean({condition}) }} catch {{ return false }} }})()"
        while not self._is_true(script):
            assert time.monotonic() < end, f"not true within {PATIENCE_S:g} s: {condition}; {self.errors}"
            self.browser.listen(0.05)

    def _is_true(self, script: str) -> bool:
        """Return what the script says; False: the page was left in that moment, for the next one."""
        try:
            return bool(self.run(script))
        except AssertionError as error:
            if "navigated or closed" in str(error) or "context was destroyed" in str(error):
                return False
            raise

    def press(self, *keys: str) -> None:
        """Press keys: a name of KEYS, or one character."""
        for key in keys:
            name, number, text = KEYS.get(key, (key, ord(key[0].upper()), key))
            given = {"key": name, "code": name, "windowsVirtualKeyCode": number}
            self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **given)
            self.call("Input.dispatchKeyEvent", type="keyUp", **given)

    def click(self, x: float, y: float) -> None:
        """Click with the left button at a point of the screen."""
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def save(self, file: Path, *, full: bool = False) -> Path:
        """Write what is on the screen, or the whole page (`full`), as PNG; return the file."""
        given: dict[str, Any] = {}
        if full:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
            given = {"captureBeyondViewport": True, "clip": clip}
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **given)["data"]))
        return file


def main() -> int:
    parser = argparse.ArgumentParser(description="Write a picture of a page.")
    parser.add_argument("page", help="a URL, or an HTML file")
    parser.add_argument("picture", type=Path, help="the PNG file")
    parser.add_argument("--size", default="1280x800", help="in CSS pixels (default: 1280x800)")
    parser.add_argument("--phone", action="store_true", help="a phone of {}x{}".format(*PHONE))
    parser.add_argument("--scheme", choices=("light", "dark", "print"), default="")
    parser.add_argument("--full", action="store_true", help="the whole page, not only the screen")
    parser.add_argument("--wait", default="true", metavar="SCRIPT", help="wait until this is true")
    given = parser.parse_args()
    width, height = PHONE if given.phone else map(int, given.size.split("x"))
    url = given.page if "://" in given.page else Path(given.page).resolve().as_uri()
    try:
        browser = Chromium(2 if given.phone else 1)
    except NotHere as error:
        sys.stderr.write(f"tests/chromium.py: {error}\n")
        return 1
    try:
        with browser.page(url, width=width, height=height, scheme=given.scheme, phone=given.phone) as page:
            page.wait(given.wait)
            browser.listen(0.5)  # drawing that scripts began
            page.save(given.picture, full=given.full)
            for error in page.errors:
                sys.stderr.write(f"{error}\n")
    finally:
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
