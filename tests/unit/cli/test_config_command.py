"""`slurm-share config print` and the command's manners."""

from __future__ import annotations

import json

import pytest

from slurm_share.cli.main import main


def test_every_setting_is_shown_with_its_source(tmp_path, capsys):
    file = tmp_path / "config.toml"
    file.write_text("max_share = 8\n")
    assert main(["config", "print", "--file", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["max_share", "8", str(file)] in [line.split() for line in lines]
    assert ["operators_group", '""', "default"] in [line.split() for line in lines]


def test_the_same_for_programs(tmp_path, capsys):
    (tmp_path / "empty.toml").touch()
    assert main(["config", "print", "--json", "--file", str(tmp_path / "empty.toml")]) == 0
    assert json.loads(capsys.readouterr().out)["max_share"] == {"value": 60, "source": "default"}


def test_a_wrong_file_is_exit_2_and_a_sentence(tmp_path, capsys):
    file = tmp_path / "config.toml"
    file.write_text("max_shares = 8\n")
    assert main(["config", "print", "--file", str(file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"slurm-share: {file}: max_shares: unknown key; did you mean max_share?\n"


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["config"], ["status", "extra"]])
def test_words_that_are_no_command_are_exit_2(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert "usage: slurm-share" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_no_file_of_defaults(tmp_path, capsys):
    assert main(["config", "print", "--file", str(tmp_path / "typo.toml")]) == 2
    assert "there is no such file" in capsys.readouterr().err
