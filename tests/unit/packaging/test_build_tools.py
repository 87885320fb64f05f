"""packaging/build.sh names what it lacks, installs nothing unasked, and says what it cannot take."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[3] / "packaging/build.sh"
TOOLS = ("bash", "dirname", "sed", "realpath", "python3", "gcc", "make", "dpkg-deb", "dpkg-buildpackage")


def build(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run it where there are neither rpmbuild nor debhelper's dh; apt-get, were it called, would leave a file."""
    for tool in TOOLS:
        (folder / tool).symlink_to(shutil.which(tool) or "/bin/true")
    (folder / "apt-get").write_text(f"#!/bin/sh\ntouch {folder}/asked\n")
    (folder / "apt-get").chmod(0o755)
    argv = [str(folder / "bash"), str(PROGRAM), *words]
    return subprocess.run(argv, env={"PATH": str(folder)}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "lacks"),
    [
        ((), "debhelper rpm"),
        (("--only", "deb"), "debhelper"),
        (("--only=rpm",), "rpm"),
        (("--only=rpm", "--sign", "us"), "rpm gpg"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, words: tuple[str, ...], lacks: str) -> None:
    done = build(tmp_path, *words, "--help")
    assert done.returncode == 2
    assert f"not installed here: {lacks}; as root: apt-get install {lacks}\n" in done.stderr
    assert not (tmp_path / "asked").exists()


def test_help_is_for_everybody(tmp_path: Path) -> None:
    for tool in ("dh", "rpmbuild"):
        (tmp_path / tool).symlink_to("/bin/true")
    done = build(tmp_path, "--help")
    assert done.returncode == 0, done.stderr
    assert "--slurm-include" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--version", "1.2-3"), "'1.2-3' is no version; write it as 1.2.3 or 1.2.3~rc1"),
        (("--version=v1",), "'v1' is no version"),
        (("--version", ""), None),
        (("--version", "1.2~rc1"), None),
        (("--only", "apk"), "--only: 'apk' is neither deb nor rpm"),
        (("--leave-out", "sid"), "--leave-out: 'sid' is neither trixie nor forky"),
        (("--out",), "--out needs a value"),
        (("--sign", ""), "--sign needs a key"),
        (("--fast",), "there is no option --fast"),
    ],
)
def test_words_that_it_cannot_take(tmp_path: Path, words: tuple[str, ...], said: str | None) -> None:
    """A sentence before anything is made. A dash in a version is the packaging's own; rpm refuses it."""
    done = build(tmp_path, *words)
    assert done.returncode == 2
    assert (said or "not installed here") in done.stderr


def test_what_editors_leave_is_not_packaged(tmp_path: Path) -> None:
    text = PROGRAM.read_text()
    [words] = [text[at : text.index(")", at) + 1] for at in [text.index("leave_out=(")]]
    tree = tmp_path / "tree"
    for name in ("x.conf", "x.conf~", ".x.conf.swp", "#x.conf#", ".#x.conf", "x.conf.orig", "x.rej", "__pycache__/x"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch()
    script = f'{words}\ntar -c "${{leave_out[@]/#/--exclude=}}" -C "$0" . | tar -t'
    done = subprocess.run(["bash", "-c", script, tree], capture_output=True, text=True, check=True, env=os.environ)
    assert [line for line in done.stdout.splitlines() if not line.endswith("/")] == ["./x.conf"]


def test_a_key_that_gpg_does_not_have_is_named_before_anything_is_built(tmp_path: Path) -> None:
    for tool in ("dh", "rpmbuild"):
        (tmp_path / tool).symlink_to("/bin/true")
    (tmp_path / "gpg").symlink_to("/bin/false")
    done = build(tmp_path, "--sign", "us@example.org")
    assert done.returncode == 2
    assert done.stderr == "packaging/build.sh: --sign: gpg has no secret key 'us@example.org' here\n"
