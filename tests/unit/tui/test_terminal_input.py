"""Only keys that the user pressed are keys; a paste is text, whatever is in it."""

from __future__ import annotations

import re

import pytest
from slurm_share_tui.terminal_input import ESC, PAUSE_S, TYPED_MOST, UNFINISHED_S, TerminalInput
from textual import constants, events
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS

START, END = "\x1b[200~", "\x1b[201~"
COLOURED = "12:00 \x1b[31mfailed\x1b[0m: q x s kill 4711, cancel it\r\nand more of it"


class Typed:
    """A terminal whose reads and pauses a test chooses."""

    def __init__(self):
        self.now = 0.0
        self.input = TerminalInput(clock=lambda: self.now)
        self.seen = []

    def send(self, *reads):
        for one in reads:
            self.seen += self.input.feed(one)
            self.seen += self.input.tick()
        return self

    def wait(self, seconds):
        self.now += seconds
        self.seen += self.input.tick()
        return self

    @property
    def keys(self):
        return [one.key for one in self.seen if isinstance(one, events.Key)]

    @property
    def pastes(self):
        return [one.text for one in self.seen if isinstance(one, events.Paste)]


def test_every_key_that_textual_knows_is_that_key_in_one_read_and_in_many():
    for sequence in ANSI_SEQUENCES_KEYS:
        if sequence in (ESC, "\x9b") or sequence.startswith(2 * ESC):
            continue  # Esc, then a key; the begin of a sequence
        if re.fullmatch(r"\x1b\[1;[0-9]+R", sequence):
            continue  # Textual takes it as the position of the cursor
        whole = Typed().send(sequence).wait(2 * UNFINISHED_S)
        parts = Typed().send(*sequence).wait(2 * UNFINISHED_S)
        alone = list(TerminalInput._sequence_to_key_events(whole.input, sequence))
        wanted = [one.key for one in alone if one.key != "<ignore>"]
        assert (whole.keys, parts.keys) == (wanted, wanted), repr(sequence)


def test_esc_alone_is_esc_after_the_delay():
    one = Typed().send(ESC)
    assert one.keys == []
    assert one.wait(constants.ESCAPE_DELAY).keys == ["escape"]
    assert Typed().send("\x1b\x1b[Aq").keys == ["escape", "up", "q"]


def test_a_short_line_typed_ahead_stays_keys():
    assert Typed().send("c\x1b[Aab").keys == ["c", "up", "a", "b"]
    assert Typed().send("/alice and bob\r").keys[-1] == "enter"


@pytest.mark.parametrize(
    "answer",
    [
        "\x1b]11;rgb:1e1e/1e1e/2e2e\x1b\\",
        "\x1b]11;rgb:1e1e/1e1e/2e2e\x07",
        "\x1b]10;rgb:q/x/s\x9c",
        "\x1b[?62;22;52c",
        "\x1b[>41;370;0c",
        "\x1bP>|tmux 3.3a\x1b\\",
        "\x1bP1+r544e=787465726d\x1b\\",
        "\x1b_Gi=31;OK\x1b\\",
        "\x1b[?0u",
        "\x1b[?997;1n",
        "\x1b[0n",
        "\x1b[8;50;200t",
        "\x1b[Mqxs",
        "\x1b[96;33;33M",
        "\x1b[<0;-3;5M",
        "\x9b?62;22c",
        "\x1b[7777777777777777777777777777777777777777777777777777q",
    ],
)
def test_answers_of_the_terminal_and_old_mice_are_not_keys(answer):
    """They come late, after the program that asked has ended, in one read or cut anywhere."""
    for cut in range(len(answer)):
        one = Typed().send(answer[:cut], answer[cut:]) if cut else Typed().send(answer)
        assert (one.keys, one.pastes) == ([], []), cut
        assert one.send("q").keys == ["q"], cut


@pytest.mark.parametrize(
    "inside", [COLOURED, "a\x1b", "\x1bq\x1b\x1bx", "\x1b]0;a title\x07q", "\x03\x11", "x" * 40 + ESC + "y" * 40]
)
def test_a_paste_with_brackets_is_one_text_wherever_it_is_cut(inside):
    whole = START + inside + END
    for cut in range(len(whole)):
        one = Typed().send(whole[:cut], whole[cut:]) if cut else Typed().send(whole)
        assert one.keys == [], cut
        assert len(one.pastes) == (1 if inside.strip("\x03\x11\x1bqx") else 0), cut
        assert not set("".join(one.pastes)) & {ESC, "\x03", "\x07", "\r"}
        assert one.send("q").keys == ["q"], cut


def test_the_lines_of_a_paste_stay_without_its_colours():
    assert Typed().send(START + COLOURED + END).pastes == ["12:00 failed: q x s kill 4711, cancel it\nand more of it"]


def test_an_end_within_the_paste_opens_no_way_to_the_keys():
    one = Typed().send(START + "job" + END + "q" + END)
    assert (one.keys, one.pastes) == ([], ["job", "q"])


def test_a_paste_whose_end_is_lost_ends_after_a_while():
    one = Typed().send(START + "job").wait(1.1 * UNFINISHED_S)
    assert (one.pastes, one.send("\x03").keys) == (["job"], ["ctrl+c"])


@pytest.mark.parametrize(
    "text",
    [
        COLOURED,
        "\x1b[31mq",
        "\x1b(B\x1b[mx",
        "\x1b]8;;http://host/\x07q",
        "\x1b[?25lq",
        "a" * (TYPED_MOST + 1) + "\x1b[Aq",
    ],
)
def test_without_brackets_what_no_keyboard_sends_is_a_paste_with_all_that_follows_at_once(text):
    one = Typed().send(text, "q", "x\x03").wait(1.1 * PAUSE_S)
    assert one.keys == []
    assert len(one.pastes) == 1
    assert one.pastes[0].endswith("qx")
    assert one.send("q").keys == ["q"]


def test_a_sequence_that_never_ends_holds_no_key_for_long():
    for begun in ("\x1b[", "\x1b[12", "\x1b]11;rgb", "\x1bP1+r", "\x1bO"):
        assert Typed().send(begun).wait(1.1 * UNFINISHED_S).send("q").keys == ["q"], repr(begun)


def test_what_is_not_utf_8_is_no_key():
    assert Typed().send("\ufffd\ufffdq").keys == ["q"]
