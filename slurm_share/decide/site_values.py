"""One value of one line, made longer where it stands: its comment, its blanks and its neighbours stay."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..conf_text import ConfLine, Edit


class Unclear(ValueError):
    """A line that cannot be changed without guessing; the text is a sentence."""


def extended(texts: Mapping[str, str], line: ConfLine, key: str, value: str, word: str) -> Edit:
    """The edit that gives a line's key another value. Raises Unclear where the value is not found as it is read: it
    goes on in the next line, say."""
    file = str(line.file)
    have = line.get(key) or ""
    pattern = re.compile(rf'(?<!\S)({re.escape(key)}\s*=\s*)(?:"{re.escape(have)}"|{re.escape(have)}(?!\S))', re.I)
    written = texts[file].split("\n")[line.number - 1 : line.last]
    places = [(row, match) for row, text in enumerate(written) for match in pattern.finditer(text.split("#", 1)[0])]
    if len(places) != 1:
        raise Unclear(
            f"{file}, line {line.number}: {key}={have} is not on one line, once; write it so, or make it "
            f"{key}={value} by hand, then write this again"
        )
    row, match = places[0]
    text = written[row]
    quoted = f'"{value}"' if text[match.end(1)] == '"' else value
    added = text[: match.start()] + match[1] + quoted + text[match.end() :]
    return Edit(file, added, key, word, instead=(text,), at=line.number + row)


def end_of(text: str) -> int:
    """The number of a text's last line."""
    return text.count("\n") + (0 if text.endswith("\n") or not text else 1)
