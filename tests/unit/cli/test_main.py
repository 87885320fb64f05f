"""`slurm-share COMMAND` loads the module of that command only."""

from __future__ import annotations

import subprocess
import sys

import pytest

from slurm_share.cli import main


def names_of(parser: object) -> list[str]:
    (commands,) = parser._subparsers._group_actions  # type: ignore[attr-defined]
    return list(commands.choices)


def test_every_sub_command_has_its_module() -> None:
    assert names_of(main.parser()) == list(main.MODULES)


@pytest.mark.parametrize("command", main.MODULES)
def test_a_sub_command_is_known_to_the_parser_made_for_it(command: str) -> None:
    assert command in names_of(main.parser(command))


def test_a_launcher_loads_no_other_command() -> None:
    code = (
        "import sys; from slurm_share.cli import main; main.parser('launch'); "
        "print(*(name.rpartition('.')[2] for name in sys.modules if name.startswith('slurm_share.cli.')))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert set(said.split()) & set(main.MODULES.values()) == {"launch"}


def test_a_word_that_is_no_command_is_answered_with_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["doctr"])
    assert "'doctor'" in capsys.readouterr().err
