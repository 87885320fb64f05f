"""The copy of the settings for job_submit.lua: written by commands, compared by doctor, status and install."""

from __future__ import annotations

import pytest

from slurm_share.cli import config as config_command
from slurm_share.cli.main import main
from slurm_share.core import config
from slurm_share.core.errors import ConfigError
from slurm_share.share import lua_settings


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "config.toml"
    path.write_text('mode = "on"\n')
    monkeypatch.setattr(config, "CONFIG_FILE", path)
    monkeypatch.setattr(config_command, "CONFIG_FILE", path)
    return path


def test_the_command_writes_what_was_missing_or_changed(file, capsys):
    assert lua_settings.problem(file) == f"{file.with_name(lua_settings.NAME)} is missing"
    assert main(["config", "write-lua"]) == 0
    written = file.with_name(lua_settings.NAME)
    assert capsys.readouterr().out == f"wrote {written}: mode on, from the next job on\n"
    assert written.stat().st_mode & 0o777 == 0o644
    assert lua_settings.problem(file) == ""
    file.write_text('mode = "on"\n[partition.gpu]\nmode = "off"\n')
    assert "is not what" in lua_settings.problem(file)
    assert main(["config", "write-lua"]) == 0
    assert "mode on, gpu: off, from the next job on" in capsys.readouterr().out
    assert lua_settings.problem(file) == ""


def test_a_wrong_file_is_not_written(file, capsys):
    assert main(["config", "write-lua"]) == 0
    before = file.with_name(lua_settings.NAME).read_text()
    file.write_text('mode = "maybe"\n')
    assert main(["config", "write-lua"]) == 2
    assert "config.toml: mode: " in capsys.readouterr().err
    assert file.with_name(lua_settings.NAME).read_text() == before
    assert lua_settings.problem(file) == f"{file} cannot be understood"
    file.write_bytes(b"mode = '\xff'")
    with pytest.raises(ConfigError, match="cannot be read"):
        lua_settings.expected(file)


def test_without_a_file_the_defaults_hold_and_nothing_is_written(file, capsys):
    file.unlink()
    assert lua_settings.problem(file) == ""
    assert main(["config", "write-lua"]) == 0
    assert "nothing is written" in capsys.readouterr().out
    assert not file.with_name(lua_settings.NAME).exists()
    file.with_name(lua_settings.NAME).write_text("return {}")
    assert "is not what" in lua_settings.problem(file)
    assert main(["config", "write-lua"]) == 0
    assert lua_settings.problem(file) == ""


def test_hosts_without_the_copy_have_no_problem_to_show(file):
    """Compute nodes have none: only a controller reads it."""
    assert lua_settings.outdated(config.load()) == ""
    file.with_name(lua_settings.NAME).write_text("return {}")
    assert lua_settings.outdated(config.load()).endswith("; run `slurm-share config write-lua`")


@pytest.mark.parametrize("word", ["off", "on"])
def test_switching_writes_the_copy_where_there_is_one(file, word):
    file.write_text(f'{"switched_off = true" if word == "on" else ""}\nmode = "on"\n')
    main([word])
    assert not file.with_name(lua_settings.NAME).exists()
    main(["config", "write-lua"])
    main(["off" if word == "on" else "on"])
    main([word])
    assert lua_settings.problem(file) == ""


def test_a_copy_that_cannot_be_written_does_not_keep_sharing_on(file, capsys):
    """config.toml says off, so that the copy differs from it."""
    main(["config", "write-lua"])
    file.with_name(lua_settings.NAME).unlink()
    file.with_name(lua_settings.NAME).mkdir()
    assert main(["off"]) == 1
    assert "sharing is switched off all the same; run `slurm-share config write-lua`" in capsys.readouterr().err
    assert config.load().settings.switched_off
