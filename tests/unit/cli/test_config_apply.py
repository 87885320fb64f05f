"""`slurm-share config apply`: a new config.toml and its settings for job_submit.lua, in one command that may run
again."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from slurm_share.cli import config
from slurm_share.cli.main import main
from slurm_share.core.command import EXIT_FAILED
from slurm_share.share import lua_settings, switch

NEW = b'mode = "on"\nmax_share = 8\n'


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the site's config.toml, which is not there yet; `new.toml` beside it has NEW."""
    (tmp_path / "etc").mkdir()
    file = tmp_path / "etc/config.toml"
    monkeypatch.setattr(config, "CONFIG_FILE", file)
    monkeypatch.chdir(tmp_path)
    Path("new.toml").write_bytes(NEW)
    return file


def state_of(site: Path) -> dict[str, tuple[bytes, int]]:
    return {file.name: (file.read_bytes(), file.stat().st_ino) for file in site.parent.iterdir()}


def test_it_writes_both_files_and_then_nothing(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "apply", "new.toml"]) == 0
    lua = site.with_name(lua_settings.NAME)
    assert capsys.readouterr().out == f"{site} is written\n{lua} is written, for job_submit.lua\n"
    assert site.read_bytes() == NEW
    assert lua_settings.problem(site) == ""
    before = state_of(site)
    assert main(["config", "apply", "new.toml"]) == 0
    assert capsys.readouterr().out == f"{site} and {lua} are as they should be\n"
    assert state_of(site) == before


@pytest.mark.parametrize("text", [b"", b"\n \n", b"\xef\xbb\xbf"])
def test_an_empty_text_switches_nothing_off(site: Path, text: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    """As of a command in a pipe that failed."""
    assert main(["config", "apply", "new.toml"]) == 0
    before = state_of(site)
    Path("new.toml").write_bytes(text)
    assert main(["config", "apply", "new.toml"]) == 2
    assert "new.toml: is empty, and nothing was written" in capsys.readouterr().err
    assert state_of(site) == before


def test_a_config_that_another_tool_has_copied_gets_its_settings(site: Path) -> None:
    assert main(["config", "apply", "new.toml"]) == 0
    newer = NEW.replace(b"8", b"4")
    site.write_bytes(newer)
    Path("new.toml").write_bytes(newer)
    assert lua_settings.problem(site) != ""
    assert main(["config", "apply", "new.toml"]) == 0
    assert lua_settings.problem(site) == ""


def test_check_shows_the_change_and_changes_nothing(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site.write_text('mode = "observe"\n')
    before = state_of(site)
    assert main(["config", "apply", "--check", "new.toml"]) == 1
    said = capsys.readouterr().out
    assert '-mode = "observe"\n+mode = "on"\n+max_share = 8\n' in said
    assert f"{site} would be written" in said
    assert state_of(site) == before


def test_as_json(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(site), str(site.with_name(lua_settings.NAME))]
    for argv, code, expected in (
        (["--check"], 1, ("check", False, files)),
        ([], 0, ("apply", True, files)),
        ([], 0, ("apply", False, [])),
        (["--check"], 0, ("check", False, [])),
    ):
        assert main(["config", "apply", "--json", *argv, "new.toml"]) == code
        found = json.loads(capsys.readouterr().out)
        assert (found["action"], found["changed"], found["differ"]) == expected


@pytest.mark.parametrize("present", [switch.LINE, f"{switch.LINE}broken = [\n"])
def test_what_an_admin_has_switched_off_stays_off(site: Path, present: str, capsys: pytest.CaptureFixture[str]) -> None:
    site.write_text(present)
    for _ in range(2):
        assert main(["config", "apply", "new.toml"]) == 0
        assert "stays switched off on this host" in capsys.readouterr().out
        assert site.read_bytes() == switch.LINE.encode() + NEW
    assert lua_settings.problem(site) == ""
    site.write_bytes(NEW)
    assert main(["config", "apply", "--check", "new.toml"]) == 1  # the settings still say off


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b'mode = "onn"\n', "mode"),
        (b"max_shares = 8\n", "did you mean max_share"),
        (b"\xff\n", "cannot be read"),
        (b'exclusive_user_nodes = ["n[1-"]\n', "exclusive_user_nodes"),
    ],
)
def test_a_wrong_file_changes_nothing(
    site: Path, text: bytes, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("new.toml").write_bytes(text)
    assert main(["config", "apply", "new.toml"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("slurm-share: new.toml: ")
    assert sentence in said
    assert list(site.parent.iterdir()) == []


def test_from_standard_input(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(NEW)))
    assert main(["config", "apply", "-"]) == 0
    assert site.read_bytes() == NEW


def test_a_file_that_is_not_there(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "apply", "nothing.toml"]) == 2
    assert capsys.readouterr().err == "slurm-share: nothing.toml cannot be read: No such file or directory\n"


def test_a_folder_that_is_not_there(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site.parent.rmdir()
    assert main(["config", "apply", "new.toml"]) == EXIT_FAILED
    assert capsys.readouterr().err.startswith(f"slurm-share: {site.parent}: ")
