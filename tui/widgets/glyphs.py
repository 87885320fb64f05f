"""Which characters the terminal can show: blocks, braille, arrows and boxes, or only ASCII.

`choose` decides once, before anything is drawn. Code with an ASCII form of its own asks `is_ascii_only`: bars,
sparklines, the plot, slots, names of keys. All other characters, Textual's own borders too, are replaced by `to_ascii`
in the same width (`workarounds.plain_signs`).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping

from rich.cells import cell_len, set_cell_size

BLOCKS = "█▏▁⣿▲↑…─╭"
"""Characters that the encoding must have for block graphics."""
_POOR = re.compile(r"(screen\.)?(linux|vt[0-9]|ansi$|cons[0-9]|sun$|bterm)")
"""Terminals without braille and with few or no blocks."""
ARROWS = {"up": ("↑", "Up"), "down": ("↓", "Down"), "left": ("←", "Left"), "right": ("→", "Right")}
_FORMS = {
    "…": "~", "▲": "^", "▼": "v", "‹": "<", "›": ">", "↑": "^", "↓": "v", "←": "<", "→": ">", "▸": ">", "»": ">",
    "«": "<", "·": ".", "●": "o", "•": "*", "×": "x", "⚠": "!", "–": "-", "—": "-", "▁": "_", "▂": "_", "▃": "_",
    "▄": "_", "▔": "-", "▀": "-", "█": "#", "▇": "#", "▆": "#", "▅": "#", "▓": "#", "▒": "#", "░": ".",
    "▏": "|", "▎": "|", "▍": "|", "▌": "|", "▋": "|", "▊": "|", "▉": "|", "▐": "|", "▕": "|",
    **dict.fromkeys("─╌┄┈╴╶╼╾", "-"), **dict.fromkeys("━═╍┅┉╸╺", "="), **dict.fromkeys("│┃║╎╏┆┇┊┋╵╷╹╻", "|"),
}  # fmt: skip


class _Table(dict[int, str]):
    """The replacement of each character in an encoding, computed on demand."""

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
    """Decide by the configuration (`wanted`; None: not set), the initial environment and the encoding of the output.
    Characters that the encoding lacks are never written."""
    global _is_plain, _table
    charset = charset_of(environ, encoding)
    is_poor = charset != "utf-8" or _POOR.match(environ.get("TERM", "")) is not None
    codec = _codec(encoding)
    can = BLOCKS.encode(codec, "ignore").decode(codec) == BLOCKS
    _is_plain = not can or (is_poor if wanted is None else wanted)
    _table = _Table(charset if wanted is None or not can else codec)


def is_ascii_only() -> bool:
    return _is_plain


def charset_of(environ: Mapping[str, str], encoding: str | None) -> str:
    """Return the encoding of the terminal. In a C locale Python writes UTF-8 whatever the terminal is; without any
    locale its encoding counts."""
    codec = _codec(encoding)
    said = next((value for name in ("LC_ALL", "LC_CTYPE", "LANG") if (value := environ.get(name))), "")
    if codec == "utf-8" and said and not re.search(r"utf-?8", said, re.IGNORECASE):
        return "ascii"
    return codec


def arrow(name: str) -> str:
    """Return an arrow key's name: up, down, left, right."""
    return ARROWS[name][_is_plain]


def to_ascii(text: str) -> str:
    """Return the text for an ASCII terminal, in the same width. Characters that its encoding lacks become question
    marks."""
    if text.isascii():
        return text
    width, drawn = cell_len(text), text.translate(_table)
    return drawn if cell_len(drawn) == width else set_cell_size(drawn, width)


def _codec(encoding: str | None) -> str:
    try:
        return codecs.lookup(encoding or "ascii").name
    except LookupError:
        return "ascii"
