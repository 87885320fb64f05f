"""How a packaged hook starts while its files are being replaced: an exit code would drain the node."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from make_packages import base
from slurm_share_hooks import helper

LONG_S = 60


class Installed:
    """A hook in an environment of its own, whose code is one line that ends with 7."""

    def __init__(self, home: Path) -> None:
        base.environment(home)
        python = Path(sys.executable).resolve()
        (home / "pyvenv.cfg").write_text(f"home = {python.parent}\n")
        (home / "bin/python").symlink_to(python)
        self.code = home / base.SITE_PACKAGES / "thing.py"
        self.works = "import sys\ndef program(): sys.exit(7)\n"
        base.command(Path("/"), str(home).lstrip("/"), base.HOOKS[0], "thing:program")
        self.hook = home / "libexec" / base.HOOKS[0]

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen([self.hook], env={}, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    """The hook, which looks for the mark of an upgrade in this test's folder."""
    monkeypatch.setattr(base, "UNPACKING", str(tmp_path / "unpacking"))
    monkeypatch.setattr(base, "PAUSE_S", 0.02)
    monkeypatch.setattr(base, "TRIES", 5)
    return Installed(tmp_path / "home")


def test_the_helper_knows_the_same_mark_of_an_upgrade() -> None:
    """It runs no hook while files are being replaced."""
    assert (helper.UNPACKING, helper.UNPACKING_S) == (base.UNPACKING, base.UNPACKING_S)


def test_the_code_of_the_hook_is_its_own(installed: Installed) -> None:
    """And an upgrade that was killed holds nobody up."""
    installed.code.write_text(installed.works)
    mark = Path(base.UNPACKING)
    mark.touch()
    os.utime(mark, (1, 1))
    with installed.start() as hook:
        assert hook.wait(LONG_S) == 7


def test_a_hook_waits_for_files_that_fit_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there before they are, and does its work when they are."""
    monkeypatch.setattr(base, "UNPACKING", str(tmp_path / "unpacking"))
    monkeypatch.setattr(base, "PAUSE_S", 0.02)
    monkeypatch.setattr(base, "TRIES", 10000)
    installed = Installed(tmp_path / "home")
    installed.code.write_text("from nowhere import thing\n")
    Path(base.UNPACKING).touch()
    with installed.start() as hook:
        with pytest.raises(subprocess.TimeoutExpired):
            hook.wait(0.3)
        installed.code.write_text(installed.works)
        Path(base.UNPACKING).unlink()
        assert hook.wait(LONG_S) == 7


def test_a_hook_that_cannot_start_at_all_drains_nothing(installed: Installed) -> None:
    """It says so, in slurmd's log and the system's, and ends with 0."""
    installed.code.write_text("from nowhere import thing\n")
    with installed.start() as hook:
        _, said = hook.communicate(timeout=LONG_S)
    assert hook.returncode == 0
    assert "cannot start, the job goes on without it: ModuleNotFoundError: No module named 'nowhere'" in said
