"""Tell the keys that the user pressed from everything else that a terminal sends.

Textual's parser types what it does not know: the letters of an unknown escape sequence, of a late answer to a query,
and of a paste that contains ESC are keys there, and one of them may be `q`. Here a sequence is read to its end first
(ECMA-48). Then Textual's parser gets it alone, and what it does not know is dropped.

A paste is never keys. Between the brackets of bracketed paste it is text whatever is in it. A terminal without
bracketed paste types it: a read that holds what no keyboard sends (colours, titles), or many characters besides an
escape sequence, is a paste too. A paste without ESC from such a terminal cannot be told from keys typed ahead.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from textual import constants, events
from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.message import Message

ESC = "\x1b"
TYPED_MOST = 9
"""Most characters that a person types within one read beside an escape sequence: more are a paste. Keys typed while the
dashboard or the network was stopped come in one read too; of those, at worst some are lost."""
PAUSE_S = 0.2
"""Further reads of a paste without brackets follow within this time, seconds."""
UNFINISHED_S = 1.0
"""Longest wait for the end of a sequence or of a bracketed paste: after that keys are keys again."""
PASTED_MOST = 100_000
"""Most characters kept of one paste."""
SEQUENCE_MOST = 32
"""Longest sequence that Textual's parser takes before it types it."""

_SEQUENCE = re.compile(
    r"""\x1b(?:
        \[(?:
            \[[A-E]                                     # F1 to F5 of the Linux console
          | M[\s\S]{3} | <[-0-9;]++[Mm]                  # the mouse of old terminals, and of others
          | [0-9]++\$                                   # Shift with a key in rxvt
          | [0-?]++[ -/]*+[@-~] | [ -/]*+(?![\[M])[@-~]
          | (?!<)[0-?]*+[ -/]*+(?=[^@-~]) | \[(?=[^A-E])  # broken off
        )
      | O[0-9;]*+[^0-9;\x1b]                            # keys of the key pad
      | \](?=[0-9lL])[^\x07\x1b\x9c]*+(?:\x07|\x1b\\|\x9c|(?=\x1b[^\\]))
      | P(?=[0-9;>=?!|+$])[^\x07\x1b\x9c]*+(?:\x07|\x1b\\|\x9c|(?=\x1b[^\\]))
      | [_^X][^\x07\x1b\x9c]*+(?:\x07|\x1b\\|\x9c|(?=\x1b[^\\]))
      | [()*+][0-9AB]                                   # a character set, as in the output of programs
      | \](?=[^0-9lL]) | P(?=[^0-9;>=?!|+$])            # Alt with such a key
      | [^\[O\]P_^X()*+\x1b] | [()*+](?=[^0-9AB])
      | (?=\x1b)                                        # Esc, before another sequence
    )""",
    re.VERBOSE,
)
_OUTPUT = re.compile(
    r"\x1b(?:\[[0-9;:]*[JKdfghlm]|\[[?>=][0-9;]*[hlJKms]|[()*+][0-9AB]|\](?:0|1|2|7|8|133|1337);.*)", re.S
)
"""Escape sequences that only programs write, and no terminal sends: colours, modes, titles, links."""
_ANSWER = re.compile(r"\x1b(?:\[[?>=]|\[[0-9;]*[Rtcn]|[\]P_^X])")
_SHORT = {0x8F: "\x1bO", 0x90: "\x1bP", 0x9B: "\x1b[", 0x9D: "\x1b]", 0x9E: "\x1b^", 0x9F: "\x1b_"}
"""The one-character forms of the begin of a sequence."""
_NOT_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffd]")


def split(text: str) -> tuple[list[str], str]:
    """Split the text into characters and whole sequences. Return them, and the unfinished sequence at its end."""
    found: list[str] = []
    at = 0
    while at < len(text):
        if text[at] != ESC:
            found.append(text[at])
            at += 1
            continue
        match = _SEQUENCE.match(text, at)
        if match is None:
            return found, text[at:]
        found.append(match[0])
        at = match.end()
    return found, ""


def is_output(sequence: str) -> bool:
    """Return whether programs write this sequence to a terminal, and no terminal sends it."""
    return _OUTPUT.fullmatch(sequence) is not None


def plain(text: str) -> str:
    """Return the text without sequences and control characters, but with its lines."""
    pieces, _ = split(text)
    return _NOT_TEXT.sub("", "".join(one for one in pieces if one[0] != ESC).replace("\r\n", "\n").replace("\r", "\n"))


@dataclass(frozen=True, slots=True)
class _Piece:
    """A character or a sequence, with what Textual's parser makes of it."""

    text: str
    events: tuple[Message, ...] = ()
    is_known: bool = True


@dataclass(slots=True)
class _Paste:
    """A paste that has begun."""

    has_brackets: bool
    last: float
    """When its last part was read."""
    parts: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, text: str) -> None:
        self.parts.append(text[: max(0, PASTED_MOST - self.count)])
        self.count += len(text)


class TerminalInput(XTermParser):
    """Takes the place of Textual's parser in its driver."""

    def __init__(self, debug: bool = False, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: monotonic, seconds."""
        super().__init__(debug)
        self._clock = clock
        self._unfinished, self._since = "", 0.0
        """The begin of a sequence, and when it was read."""
        self._paste: _Paste | None = None

    def feed(self, data: str) -> Iterable[Message]:
        """Yield the messages of one read. The empty string is the end of the input."""
        if not data:
            yield from super().feed(data)
            return
        if self._paste is not None and not self._paste.has_brackets:
            yield from self.tick()
        begun, self._unfinished = self._unfinished, ""
        text = begun + data.translate(_SHORT)
        if self._paste is not None:
            self._paste.last = self._clock()
            if not self._paste.has_brackets:
                self._paste.add(text)
                return
            text = yield from self._bracketed(text)
        while text:
            before, start, after = text.partition(BRACKETED_PASTE_START)
            if (end := before.rfind(BRACKETED_PASTE_END)) >= 0:
                # An end without a start: the pasted text had one in it, and this is the paste's own.
                yield from _pasted(before[:end])
                before = before[end + len(BRACKETED_PASTE_END) :]
            pieces, rest = split(before)
            if rest and not start:
                self._unfinished = rest
                if pieces or not begun:
                    self._since = self._clock()
            yield from self._typed(before, [self._parsed(one) for one in pieces])
            if not start:
                return
            self._paste = _Paste(has_brackets=True, last=self._clock())
            text = yield from self._bracketed(after)

    def tick(self) -> Iterable[Message]:
        """Yield what has become certain by waiting: a lone Esc, the end of a paste."""
        now = self._clock()
        if self._paste is not None:
            if now - self._paste.last > (UNFINISHED_S if self._paste.has_brackets else PAUSE_S):
                yield from self._end_paste()
        elif self._unfinished == ESC and now - self._since >= constants.ESCAPE_DELAY:
            self._unfinished = ""
            yield events.Key("escape", ESC)
        elif self._unfinished and now - self._since > UNFINISHED_S:
            self._unfinished = ""

    def _bracketed(self, text: str) -> Generator[Message, None, str]:
        """Take the text of a bracketed paste, and yield the paste at its end. Return what follows it."""
        assert self._paste is not None
        inside, end, after = text.partition(BRACKETED_PASTE_END)
        if not end:
            most = len(BRACKETED_PASTE_END) - 1  # the end of the read may cut it
            cut = next((count for count in range(most, 0, -1) if text.endswith(BRACKETED_PASTE_END[:count])), 0)
            kept = len(text) - cut
            self._paste.add(text[:kept])
            self._unfinished = text[kept:]
            return ""
        self._paste.add(inside)
        yield from self._end_paste()
        return after

    def _end_paste(self) -> Iterator[Message]:
        assert self._paste is not None
        text, self._paste, self._unfinished = "".join(self._paste.parts), None, ""
        yield from _pasted(text)

    def _typed(self, text: str, pieces: Sequence[_Piece]) -> Iterator[Message]:
        """Yield the keys and other messages of one read, or begin a paste."""
        characters = sum(one.text[0] != ESC for one in pieces)
        others = sum(one.text[0] == ESC and _is_key(one) for one in pieces)
        if any(not one.events and is_output(one.text) for one in pieces) or (characters > TYPED_MOST and others):
            self._paste = _Paste(has_brackets=False, last=self._clock())
            self._paste.add(text)
            self._unfinished = ""
            return
        for one in pieces:
            yield from one.events

    def _parsed(self, text: str) -> _Piece:
        """Return what Textual's parser makes of a character or of a whole sequence."""
        if text == ESC:
            return _Piece(text, (events.Key("escape", ESC),))
        if _NOT_TEXT.fullmatch(text) and ord(text) >= 0x80:
            return _Piece(text, is_known=False)
        if len(text) <= SEQUENCE_MOST:
            found = tuple(super().feed(text))
            if self._awaiting.timeout is None:
                return _Piece(text, found)
            self._begin_again()
        if len(text) == 2:
            return _Piece(text, tuple(self._sequence_to_key_events(text[1], alt=True)))
        return _Piece(text, is_known=False)

    def _begin_again(self) -> None:
        """Let Textual's parser forget the sequence that it has not understood."""
        self._gen.close()
        self._tokens.clear()
        self._gen = self.parse(self._tokens.append)
        self._awaiting, self._timeout_time = next(self._gen), None


def _is_key(piece: _Piece) -> bool:
    if piece.is_known:
        return any(isinstance(one, events.Key) for one in piece.events)
    return _ANSWER.match(piece.text) is None


def _pasted(text: str) -> Iterator[Message]:
    if found := plain(text):
        yield events.Paste(found)
