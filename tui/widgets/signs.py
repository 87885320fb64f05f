"""Which signs the terminal can show: blocks, braille, arrows and boxes, or no more than ASCII.

Decided once, before anything is drawn (`choose`). Whoever has another form for a plain terminal asks `are_plain`: bars,
sparklines, the plot, the slots, the names of keys. What is left, Textual's own borders too, is written by `plain` at
the very end, in as many columns (`workarounds.plain_signs`).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping

from rich.cells import cell_len, set_cell_size

BLOCKS = "█▏▁⣿▲↑…─╭"
"""Some of what is drawn where the terminal has it."""
_POOR = re.compile(r"(screen\.)?(linux|vt[0-9]|ansi$|cons[0-9]|sun$|bterm)")
"""Terminals without braille, and with few blocks or none."""
ARROWS = {"up": ("↑", "Up"), "down": ("↓", "Down"), "left": ("←", "Left"), "right": ("→", "Right")}
_FORMS = {
    "…": "~", "▲": "^", "▼": "v", "‹": "<", "›": ">", "↑": "^", "↓": "v", "←": "<", "→": ">", "▸": ">", "»": ">",
    "«": "<", "·": ".", "●": "o", "•": "*", "×": "x", "⚠": "!", "–": "-", "—": "-", "▁": "_", "▂": "_", "▃": "_",
    "▄": "_", "▔": "-", "▀": "-", "█": "#", "▇": "#", "▆": "#", "▅": "#", "▓": "#", "▒": "#", "░": ".",
    "▏": "|", "▎": "|", "▍": "|", "▌": "|", "▋": "|", "▊": "|", "▉": "|", "▐": "|", "▕": "|",
    **dict.fromkeys("─╌┄┈╴╶╼╾", "-"), **dict.fromkeys("━═╍┅┉╸╺", "="), **dict.fromkeys("│┃║╎╏┆┇┊┋╵╷╹╻", "|"),
}  # fmt: skip


class _Table(dict[int, str]):
    """What stands for a character in a terminal of this encoding; learns as it is asked."""

    def __init__(self, charset: str) -> None:
        super().__init__({ord(one): form for one, form in _FORMS.items()})
        self._charset = charset

    def __missing__(self, point: int) -> str:
        self[point] = found = self._form(chr(point))
        return found

    def _form(self, one: str) -> str:
        if "\u2500" <= one <= "\u259f":  # boxes and blocks
            return "+" if one < "\u2580" else "#"
        try:
            one.encode(self._charset)
        except UnicodeError:
            return "?" * cell_len(one)
        return one


_is_plain = False
_table = _Table("utf-8")


def choose(wanted: bool | None, environ: Mapping[str, str], encoding: str | None) -> None:
    """Decide, by what the user wrote (None: nothing), the environment that the program began with, and the encoding of
    what is written to. What that cannot write at all is not written, whatever is wanted."""
    global _is_plain, _table
    charset = charset_of(environ, encoding)
    is_poor = charset != "utf-8" or _POOR.match(environ.get("TERM", "")) is not None
    can = _has(_codec(encoding), BLOCKS)
    _is_plain = not can or (is_poor if wanted is None else wanted)
    _table = _Table(charset if wanted is None or not can else _codec(encoding))


def are_plain() -> bool:
    """Whether the terminal has no more than ASCII."""
    return _is_plain


def charset_of(environ: Mapping[str, str], encoding: str | None) -> str:
    """What the terminal can be sent. Python writes UTF-8 where the locale is C, whatever the terminal is; a locale that
    is not set at all says nothing."""
    codec = _codec(encoding)
    said = next((value for name in ("LC_ALL", "LC_CTYPE", "LANG") if (value := environ.get(name))), "")
    if codec == "utf-8" and said and not re.search(r"utf-?8", said, re.IGNORECASE):
        return "ascii"
    return codec


def arrow(name: str) -> str:
    """An arrow key: up, down, left, right."""
    return ARROWS[name][_is_plain]


def plain(text: str) -> str:
    """The text for a plain terminal, in as many columns. What its encoding does not have is a question mark."""
    if text.isascii():
        return text
    width, drawn = cell_len(text), text.translate(_table)
    return drawn if cell_len(drawn) == width else set_cell_size(drawn, width)


def _codec(encoding: str | None) -> str:
    try:
        return codecs.lookup(encoding or "ascii").name
    except LookupError:
        return "ascii"


def _has(codec: str, text: str) -> bool:
    try:
        text.encode(codec)
    except UnicodeError:
        return False
    return True
