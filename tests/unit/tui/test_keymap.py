"""The list of keys: one action for each key, and configured keys by id."""

from __future__ import annotations

from pathlib import Path

import pytest
from slurm_share_tui import keymap

from slurm_share.core.errors import UsageError


def test_every_id_is_there_once_and_no_key_does_two_things() -> None:
    assert len(keymap.BY_ID) == len(keymap.KEYS)
    taken = [key for id in keymap.BY_ID for key in keymap.keys_of(id, {})]
    assert sorted(taken) == sorted(set(taken))
    assert keymap.checked({}) == {}
    assert all(key.label and key.help and key.group in keymap.GROUPS for key in keymap.KEYS)


def test_a_key_is_given_by_id_and_the_old_ones_are_free() -> None:
    keys = keymap.checked({"go.down": "n,ctrl+d", "cancel": "l"})
    assert keymap.keys_of("go.down", keys) == ("n", "ctrl+d")
    assert keymap.keys_of("cancel", keys) == ("l",)
    assert keymap.keys_of("quit", keys) == ("q",)


def test_characters_may_be_written_as_they_are() -> None:
    assert keymap.checked({"filter": ","}) == {"filter": "comma"}
    assert keymap.checked({"help": "/", "filter": "ctrl+f"})["help"] == "slash"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"go.dwn": "d"}, "did you mean go.down"),
        ({"cancel": "q"}, "q is assigned to cancel and to quit"),
        ({"go.down": "n", "cancel": "n"}, "n is assigned to go.down and to cancel"),
        ({"cancel": "nokey"}, "there is no key nokey"),
        ({"cancel": "hyper5+x"}, "there is no key"),
        ({"cancel": "ctrl+"}, "there is no key"),
        ({"cancel": ""}, "at least one key"),
        ({"cancel": " , , "}, "at least one key"),
        ({"x" * 5000: "d"}, "there is no id"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(keys: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        keymap.checked(keys)
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize(
    ("key", "written"),
    [
        ("enter", "Enter"), ("slash", "/"), ("plus", "+"), ("minus", "-"), ("question_mark", "?"), ("f1", "F1"),
        ("ctrl+p", "^p"), ("shift+tab", "Shift+Tab"), ("G", "G"), ("left_square_bracket", "["), ("+", "+"),
    ],
)  # fmt: skip
def test_a_key_is_written_as_people_write_it(key: str, written: str) -> None:
    assert keymap.key_text(key) == written


def test_the_manual_has_every_key() -> None:
    manual = (Path(__file__).parents[3] / "packaging" / "docs" / "tui.md").read_text(encoding="utf-8")
    for key in keymap.KEYS:
        signs = " ".join(f"`{keymap.key_text(one)}`" for one in keymap.keys_of(key.id, {}))
        assert f"| {signs} | {key.id} | {key.help} |" in manual
