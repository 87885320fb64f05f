"""An invalid configuration is refused; invalid remembered choices are ignored."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from slurm_share_tui import user_config
from slurm_share_tui.user_config import (
    RememberedChoices,
    TableChoice,
    UserChoices,
    UserConfig,
    config_file,
    memory_file,
    parse_config,
    read_config,
    read_remembered,
    write_remembered,
)

from slurm_share.core.errors import ConfigError


@pytest.fixture(autouse=True)
def homes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Set the folders of configuration and state."""
    for name, value in (("HOME", "/h"), ("XDG_CONFIG_HOME", str(tmp_path)), ("XDG_STATE_HOME", "s")):
        monkeypatch.setenv(name, value)


def test_files_are_where_xdg_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert config_file() == tmp_path / "slurm-share/tui.toml"
    assert memory_file() == Path("/h/.local/state/slurm-share/tui.json")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", "/s")
    assert config_file() == Path("/h/.config/slurm-share/tui.toml")
    assert memory_file() == Path("/s/slurm-share/tui.json")


def test_a_configuration_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "tui.toml"
    file.write_text(
        'theme = "light"\ninterval = 2\nreadonly = true\nascii = true\n'
        '[keys]\n"go.down" = "d"\ncancel = "ctrl+x"\ngo.back = "b"\n',
        encoding="utf-8",
    )
    assert read_config(file) == UserConfig(
        theme="light",
        interval=2.0,
        readonly=True,
        ascii=True,
        keys={"go.down": "d", "cancel": "ctrl+x", "go.back": "b"},
    )


def test_no_configuration_is_all_defaults_and_a_named_one_has_to_be_there(tmp_path: Path) -> None:
    assert read_config() == UserConfig()
    with pytest.raises(ConfigError, match="no such file"):
        read_config(tmp_path / "other.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("theme = ", "is not TOML"),
        ("[" * 5000, "is not TOML"),
        ('them = "dark"', "did you mean theme"),
        ("theme = 3", "theme: must be the name of a theme"),
        ("interval = 0.1", "from 0.5 to 86400 seconds"),
        ("interval = nan", "from 0.5 to 86400 seconds"),
        ('interval = "often"', "interval: must be a number of seconds; it says 'often'"),
        ("keys = 3", "keys: must be a table of keys"),
        ("[keys]\ncancel = 3", "keys: must be a table of keys"),
    ],
)
def test_what_is_wrong_is_named_with_its_file(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        parse_config(text, "/h/tui.toml")
    assert "/h/tui.toml" in str(caught.value)


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path)
    file = tmp_path / "tui.toml"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(file)


def test_choices_come_back_as_they_were(tmp_path: Path) -> None:
    file = tmp_path / "state" / "slurm-share" / "tui.json"
    chosen = UserChoices(
        theme="mono", view="gpus", tables={"nodes": TableChoice(columns=("node", "gpu"), sort="gpu", down=True)}
    )
    assert write_remembered(file, chosen) == ""
    assert read_remembered(file) == (chosen, "")
    assert [one.name for one in file.parent.iterdir()] == ["tui.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"theme": 3}', b"\xff", b"[" * 100_000, b" " * (2 << 20)])
def test_a_broken_memory_is_left_aside_with_a_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "tui.json"
    file.write_bytes(content)
    remembered, problem = read_remembered(file)
    assert remembered == UserChoices()
    assert "left aside" in problem
    assert str(file) in problem


def test_no_memory_yet_and_what_a_newer_version_remembers_are_no_trouble(tmp_path: Path) -> None:
    file = tmp_path / "tui.json"
    assert read_remembered(file) == (UserChoices(), "")
    file.write_text('{"theme": "light", "sounds": true}', encoding="utf-8")
    assert read_remembered(file) == (UserChoices(theme="light"), "")


def test_memory_writes_what_is_new_and_only_that(tmp_path: Path) -> None:
    file = tmp_path / "tui.json"
    memory = RememberedChoices(file)
    assert memory.keep() == ""
    assert not file.exists()
    memory.choose(theme="light")
    memory.choose_table("nodes", TableChoice(sort="gpu", down=True))
    memory.choose(view="jobs")
    assert memory.is_new
    assert memory.keep() == ""
    assert read_remembered(file)[0] == memory.now
    file.unlink()
    assert memory.keep() == ""
    assert not file.exists()


def test_two_dashboards_of_one_person_keep_what_each_of_them_chose(tmp_path: Path) -> None:
    file = tmp_path / "tui.json"
    one, other = RememberedChoices(file), RememberedChoices(file)
    one.choose(theme="light")
    one.choose_table("nodes", TableChoice(sort="gpu"))
    assert one.keep() == ""
    other.choose(view="users")
    other.choose_table("users", TableChoice(sort="cpu"))
    assert other.keep() == ""
    tables = {"nodes": TableChoice(sort="gpu"), "users": TableChoice(sort="cpu")}
    assert read_remembered(file)[0] == UserChoices(theme="light", view="users", tables=tables)


def test_what_was_broken_is_kept_beside(tmp_path: Path) -> None:
    file = tmp_path / "tui.json"
    file.write_text("{mine", encoding="utf-8")
    memory = RememberedChoices(file, read_remembered(file)[0])
    memory.choose(view="users")
    assert memory.keep() == ""
    assert read_remembered(file) == (UserChoices(view="users"), "")
    assert (tmp_path / "tui.json.broken").read_text(encoding="utf-8") == "{mine"


def test_a_link_stays_one(tmp_path: Path) -> None:
    file, kept = tmp_path / "tui.json", tmp_path / "dotfiles.json"
    file.symlink_to(kept)
    assert write_remembered(file, UserChoices(theme="light")) == ""
    assert file.is_symlink()
    assert read_remembered(kept)[0].theme == "light"
    kept.unlink()
    kept.symlink_to(file)
    assert "cannot be kept" in write_remembered(file, UserChoices())


def test_a_memory_that_cannot_be_written_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    memory = RememberedChoices(tmp_path / "file" / "tui.json")
    memory.choose(theme="light")
    assert "cannot be kept" in memory.keep()
    assert memory.keep() == ""


def test_a_choice_during_a_write_is_kept_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = RememberedChoices(tmp_path / "tui.json")
    write = user_config.write_remembered

    def meanwhile(file: Path, remembered: UserChoices) -> str:
        memory.choose(theme="dark")
        memory.choose_table("jobs", TableChoice(sort="gpu"))
        return write(file, remembered)

    memory.choose(theme="light")
    monkeypatch.setattr(user_config, "write_remembered", meanwhile)
    assert memory.keep() == ""
    monkeypatch.setattr(user_config, "write_remembered", write)
    assert memory.is_new
    assert memory.keep() == ""
    assert read_remembered(memory.file)[0] == UserChoices(theme="dark", tables={"jobs": TableChoice(sort="gpu")})


def test_the_way_out_does_not_wait_for_a_write_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = RememberedChoices(tmp_path / "tui.json")
    begun, over = threading.Event(), threading.Event()

    def hangs(file: Path, remembered: UserChoices) -> str:
        begun.set()
        over.wait(120)
        return ""

    monkeypatch.setattr(user_config, "write_remembered", hangs)
    monkeypatch.setattr(user_config, "WAIT_S", 0.01)
    memory.choose(theme="light")
    writer = threading.Thread(target=memory.keep, daemon=True)
    writer.start()
    try:
        assert begun.wait(120)
        memory.choose(theme="dark")
        assert "does not answer" in memory.keep()
    finally:
        over.set()
        writer.join(120)


def test_a_torn_write_leaves_the_old_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tui.json"
    write_remembered(file, UserChoices(theme="light"))

    def fails(*_: object, **__: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(os, "replace", fails)
    assert "no room" in write_remembered(file, UserChoices(theme="mono"))
    assert read_remembered(file)[0].theme == "light"
    assert [one.name for one in tmp_path.iterdir()] == ["tui.json"]
