"""Ctrl-C at any moment of a command: no traceback, and exit code 130 in a shell."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]
HOOKS = ("slurm-share-prolog", "slurm-share-epilog")
INTERRUPTED = (130, -signal.SIGINT)
"""A shell shows 130 for both."""
AT_IMPORT = """
import os, signal, sys
class Count:
    left = int(sys.argv.pop(1))
    def find_spec(self, name, path=None, target=None):
        Count.left -= 1
        if Count.left == 0:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Count())
"""


def targets() -> dict[str, str]:
    """Return every command that a person starts, and its entry point."""
    scripts = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["scripts"]
    return {name: target for name, target in scripts.items() if name not in HOOKS and name == name.lower()}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the commands as the packages install them, on this Python."""
    tree = tmp_path_factory.mktemp("commands")
    template = (CHECKOUT / "packaging/share/command.in").read_text()
    for name, target in targets().items():
        module, _, function = target.partition(":")
        (tree / name).write_text(template.replace("@MODULE@", module).replace("@FUNCTION@", function))
    return {name: tree / name for name in targets()}


def start(script: Path, *words: str, code: str = "") -> subprocess.Popen[str]:
    """Run the command, with `code` between Python's start and its own."""
    text = script.read_text()
    if code:
        text = text.replace("site.main()\n", f"site.main()\n{code}", 1)
    argv = [sys.executable, "-ISB", "-c", text, *words]
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("name", targets())
def test_an_interrupt_at_any_import_leaves_no_traceback(scripts: dict[str, Path], name: str) -> None:
    began = [start(scripts[name], str(number), "--help", code=AT_IMPORT) for number in (2, 8, 40, 80)]
    for process in began:
        out, err = process.communicate(timeout=60)
        assert (process.returncode in INTERRUPTED, out, err) == (True, "", ""), (name, process.returncode)


def test_an_interrupt_at_any_time_leaves_no_traceback(scripts: dict[str, Path]) -> None:
    """Every command, 0 to 300 ms after its start; one that is through by then has done its work. In the
    milliseconds before a script's first line Python itself prints a traceback, which names no file of ours."""
    for name, script in scripts.items():
        for delay_ms in (0, 20, 60, 120, 200, 300):
            process = start(script, "--help")
            time.sleep(delay_ms / 1000)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
            assert "slurm_share" not in err, (name, delay_ms)
            if "KeyboardInterrupt" not in err:
                assert err == "", (name, delay_ms)
                assert process.returncode in INTERRUPTED or "usage" in out, (name, delay_ms)


def test_an_interrupt_while_the_dashboard_is_imported_ends_it_at_once(scripts: dict[str, Path]) -> None:
    """By the signal, and not by KeyboardInterrupt: msgspec 0.22 crashes if that is raised while it makes a decoder."""
    code = AT_IMPORT.replace("int(sys.argv.pop(1))", "1").replace("Count.left -=", "Count.left -= name == MODULE and")
    for module in ("slurm_share_tui.options", "slurm_share.load.snapshot"):
        process = start(scripts["llload-tui"], "--help", code=f"MODULE = {module!r}\n{code}")
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (-signal.SIGINT, "", ""), module


def test_a_command_at_work_ends_with_130(scripts: dict[str, Path]) -> None:
    process = start(scripts["llload"], "--demo", "--watch", "1")
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")


def test_an_interrupt_that_is_ignored_stays_ignored(scripts: dict[str, Path]) -> None:
    argv = ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-ISB", str(scripts["llload"])]
    process = subprocess.Popen([*argv, "--demo", "--watch", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline()
    process.kill()
    process.communicate(timeout=60)


def test_the_dashboard_gives_up_quietly_while_it_loads(scripts: dict[str, Path]) -> None:
    for number in (60, 200, 350):
        code = AT_IMPORT.replace("sys.argv.pop(1)", str(number))
        text = scripts["llload-tui"].read_text().replace("site.main()\n", f"site.main()\n{code}", 1)
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ["TERM"] = "xterm"
            os.execv(sys.executable, [sys.executable, "-ISB", "-c", text, "--demo"])
        said = b""
        while True:
            try:
                data = os.read(terminal, 65536)
            except OSError:
                break
            if not data:
                break
            said += data
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
        assert os.waitstatus_to_exitcode(status) in INTERRUPTED, (number, said.decode())
        assert b"Traceback" not in said, (number, said.decode())
