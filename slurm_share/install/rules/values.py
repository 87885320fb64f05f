"""Edits of one value on one line that keep its comment, blanks and other values."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...slurm.conf_text import ConfLine, Edit, parse_named


class Unclear(ValueError):
    """A line that cannot be edited safely; the text is a sentence."""


def extended(texts: Mapping[str, str], line: ConfLine, key: str, value: str, marker: str) -> Edit:
    """Return the edit that sets a line's key to another value. Raises Unclear if the value is not found exactly once on
    one line, for example because it continues on the next line."""
    file = str(line.file)
    have = line.get(key) or ""
    pattern = _value(key, have)
    written = texts[file].split("\n")[line.number - 1 : line.last]
    places = [(row, match) for row, text in enumerate(written) for match in pattern.finditer(text.split("#", 1)[0])]
    if len(places) != 1:
        raise Unclear(
            f"{file}, line {line.number}: {key}={have} is not on one line, once; write it so, or make it "
            f"{key}={value} by hand, then run this again"
        )
    row, match = places[0]
    text = written[row]
    quoted = f'"{value}"' if text[match.end(1)] == '"' else value
    added = text[: match.start()] + match[1] + quoted + text[match.end() :]
    return Edit(file, added, key, marker, instead=(text,), at=line.number + row)


def shortened(text: str, line: ConfLine, key: str, markers: str, otherwise: str = "") -> str | None:
    """Return the text with values (comma-separated) removed from a line's key; None: some are missing, or the text
    differs from what was parsed. If no value is left, write `otherwise`, or remove the key if that is empty."""
    have = next((value for name, value in reversed(line.pairs) if name.lower() == key.lower()), None)
    kept = (have or "").split(",")
    for marker in markers.split(","):
        same = [place for place, one in enumerate(kept) if one.strip().lower() == marker.lower()]
        if not same:
            return None
        del kept[same[-1]]
    value = ",".join(kept) or otherwise
    rows = text.split("\n")
    pattern = _value(key, have or "")
    places = [
        (number, match)
        for number in range(line.number - 1, line.last)
        for match in pattern.finditer(rows[number].split("#", 1)[0])
    ]
    if not places:
        return None
    number, match = places[-1]
    row = rows[number]
    if value:
        quoted = f'"{value}"' if row[match.end(1)] == '"' else value
        rows[number] = row[: match.start()] + match[1] + quoted + row[match.end() :]
    else:
        rest = row[: match.start()] + row[match.end() :].lstrip(" \t")
        rows[number : number + 1] = [rest.rstrip()] if rest.strip() else []
    return "\n".join(rows)


def without_values(text: str, file: str, key: str, markers: str) -> str | None:
    """Return the text with values removed from every line of a key; None: no line has them."""
    left = None
    while True:
        lines = parse_named(text if left is None else left, file)
        found = (
            shortened(text if left is None else left, line, key, markers) for line in reversed(lines) if line.get(key)
        )
        fewer = next((one for one in found if one is not None), None)
        if fewer is None:
            return left
        left = fewer


def _value(key: str, value: str) -> re.Pattern[str]:
    return re.compile(rf'(?<!\S)({re.escape(key)}\s*=\s*)(?:"{re.escape(value)}"|{re.escape(value)}(?!\S))', re.I)


def end_of(text: str) -> int:
    """Return the number of a text's last line."""
    return text.count("\n") + (0 if text.endswith("\n") or not text else 1)
