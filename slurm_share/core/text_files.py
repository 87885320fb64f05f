"""Lines of text files that users write: lists of tasks and inputs, scripts, traces.

A line ends with LF or CRLF. `str.splitlines` and files that Python opens as text end a line at a lone CR too, and the
first also at VT, FF, U+0085, U+2028 and others. That shifts the numbers of all later lines, so neither is used here.
"""

from __future__ import annotations

import codecs
import os
import sys

import msgspec

BOM = b"\xef\xbb\xbf"
"""UTF-8's byte order mark, which editors on Windows write."""
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
"""Byte order marks of UTF-16, which PowerShell writes."""
NOT_JSON = (msgspec.DecodeError, UnicodeError, RecursionError)
"""Exceptions of msgspec for bytes that are not JSON of the wanted type; the last one for nesting that is too deep."""
OLD_MAC = "the line ends of an old Mac, write: tr '\\r' '\\n' < FILE > NEW"


def split_lines(data: bytes) -> list[bytes]:
    """Return the lines of a file without line ends and byte order mark. A CR inside a line stays in it."""
    lines = data.removeprefix(BOM).split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [line.rstrip(b"\r") for line in lines]


def decode(line: bytes) -> str:
    """Return a line as text. Bytes that are not UTF-8 are kept as surrogates."""
    return line.decode("utf-8", "surrogateescape")


def why_not_text(data: bytes) -> str | None:
    """Return why a file cannot be read as lines of text; None: it can."""
    if data.startswith(_UTF16):
        return "is UTF-16, as PowerShell writes it; convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW"
    return None


def why_no_line(line: bytes) -> str | None:
    """Return why a line cannot be one entry of a list; None: it can."""
    if b"\0" in line:
        return "contains a NUL byte; this is not a text file"
    if b"\r" in line:
        return f"contains a carriage return (CR); remove it, or, if the file has {OLD_MAC}"
    return None


def why_not_utf8(text: str) -> str | None:
    """Return why an argument or a name cannot be written into a file in UTF-8; None: it can.

    With another character set, as with PYTHONUTF8=0 LC_ALL=C, Python reads names in UTF-8 wrong.
    """
    if text.isascii():
        return None
    encoding = sys.getfilesystemencoding()
    if codecs.lookup(encoding).name != "utf-8":
        locale = next((name for name in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(name)), "")
        found = [f"{name}={os.environ[name]}" for name in ("PYTHONUTF8", locale) if os.environ.get(name)]
        because = f" ({' '.join(found)})" if found else ""
        return (
            f"is not ASCII, but the locale of this shell is not UTF-8{because}: Python reads names as {encoding}; "
            "write: unset PYTHONUTF8; export LC_ALL=C.UTF-8"
        )
    if text != text.encode("utf-8", "replace").decode():
        return "is not UTF-8, which the files of a run require; rename it"
    return None
