"""Start of a packaged hook while its files are replaced: an exit code would drain the node."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from slurm_share_hooks import helper

LONG_S = 60
TEMPLATE = (Path(__file__).resolve().parents[3] / "packaging/share/hook.in").read_text()
MARK = '"/run/slurm-share.unpacking", 60'
PATIENCE = "PAUSE_S, TRIES = 0.5, 12"


class Installed:
    """A hook in its own environment, whose code is one line that ends with 7."""

    def __init__(self, home: Path, mark: Path, tries: int) -> None:
        python = Path(sys.executable).resolve()
        self.code = home / "lib/python3/site-packages/thing.py"
        self.code.parent.mkdir(parents=True)
        (home / "bin").mkdir()
        (home / "pyvenv.cfg").write_text(f"home = {python.parent}\n")
        (home / "bin/python").symlink_to(python)
        self.mark = mark
        self.works = "import sys\ndef program(): sys.exit(7)\n"
        self.hook = home / "slurm-share-prolog"
        assert TEMPLATE.count(MARK) == TEMPLATE.count(PATIENCE) == 1
        text = TEMPLATE.replace(MARK, f'"{mark}", 60').replace(PATIENCE, f"PAUSE_S, TRIES = 0.02, {tries}")
        for word, value in (("@HOME@", str(home)), ("@MODULE@", "thing"), ("@FUNCTION@", "program")):
            text = text.replace(word, value)
        self.hook.write_text(text)
        self.hook.chmod(0o755)

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen([self.hook], env={}, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    """Return the hook, which looks for the mark of an upgrade in this test's folder."""
    return Installed(tmp_path / "home", tmp_path / "unpacking", 5)


def test_the_helper_knows_the_same_mark_of_an_upgrade() -> None:
    assert f'"{helper.UNPACKING}", {helper.UNPACKING_S:g}' == MARK


def test_the_code_of_the_hook_is_its_own(installed: Installed) -> None:
    installed.code.write_text(installed.works)
    installed.mark.touch()
    os.utime(installed.mark, (1, 1))
    with installed.start() as hook:
        assert hook.wait(LONG_S) == 7


def test_a_hook_waits_for_files_that_fit_each_other(tmp_path: Path) -> None:
    installed = Installed(tmp_path / "home", tmp_path / "unpacking", 10000)
    installed.code.write_text("from nowhere import thing\n")
    installed.mark.touch()
    with installed.start() as hook:
        with pytest.raises(subprocess.TimeoutExpired):
            hook.wait(0.3)
        installed.code.write_text(installed.works)
        installed.mark.unlink()
        assert hook.wait(LONG_S) == 7


def test_a_hook_that_cannot_start_at_all_drains_nothing(installed: Installed) -> None:
    installed.code.write_text("from nowhere import thing\n")
    with installed.start() as hook:
        _, said = hook.communicate(timeout=LONG_S)
    assert hook.returncode == 0
    assert "cannot start, the job goes on without it: ModuleNotFoundError: No module named 'nowhere'" in said
