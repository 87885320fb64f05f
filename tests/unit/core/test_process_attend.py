"""A program in the foreground: its exit code is returned, and it does not outlive its starter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_share.core.errors import CommandError
from slurm_share.core.process import attend


def test_its_code_as_a_shell_has_it() -> None:
    assert attend(["/bin/sh", "-c", "exit 3"]) == 3
    assert attend(["/bin/sh", "-c", "kill -KILL $$"]) == 128 + 9
    assert attend(["/bin/sh", "-c", 'exit "$WHAT"'], env={"WHAT": "4"}) == 4
    with pytest.raises(CommandError):
        attend(["/nowhere/at/all"])


def test_handlers_are_as_they_were() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    attend(["/bin/true"])
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_request_to_end_is_passed_on_and_waited_for(tmp_path: Path) -> None:
    """The program has a last word, which a caller that died at once would not have waited for."""
    script = "trap 'sleep 0.3; echo ended > said; exit 0' TERM; echo > up; while :; do sleep 0.05; done"
    caller = f"from slurm_share.core.process import attend; raise SystemExit(attend(['/bin/sh', '-c', {script!r}]))"
    with subprocess.Popen([sys.executable, "-c", caller], cwd=tmp_path) as child:
        for _ in range(500):
            if (tmp_path / "up").exists():
                break
            time.sleep(0.02)
        child.terminate()
        assert child.wait(20) == 128 + 15
    assert (tmp_path / "said").read_text() == "ended\n"


def test_a_request_that_comes_while_the_program_is_started_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    start = subprocess.Popen

    def slowly(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        child = start(*args, **options)
        os.kill(os.getpid(), signal.SIGTERM)
        return child

    monkeypatch.setattr(subprocess, "Popen", slowly)
    begin = time.monotonic()
    assert attend(["/bin/sleep", "600"]) == 128 + 15
    assert time.monotonic() - begin < 300
