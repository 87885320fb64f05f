"""Lines of text files that users write: lists of tasks and inputs, scripts, traces.

A line ends with LF or CRLF. `str.splitlines` and files that Python opens as text end a line at a lone CR too, and the
first also at VT, FF, U+0085, U+2028 and others. That shifts the numbers of all later lines, so neither is used here.
"""

from __future__ import annotations

BOM = b"\xef\xbb\xbf"
"""UTF-8's byte order mark, which editors on Windows write."""
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
"""Byte order marks of UTF-16, which PowerShell writes."""
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
