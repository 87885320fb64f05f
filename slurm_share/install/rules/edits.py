"""Insertion of edits into a text, their removal, and edits of one value on one line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence

from ...slurm.conf_text import ConfLine, Edit, parse_named


def put_in(text: str, edits: Sequence[Edit]) -> str:
    """Return the text with every edit applied. Line numbers refer to `text`, whatever the order of the edits."""
    lines = text.split("\n")
    ends_open = bool(lines[-1])
    body = lines if ends_open else lines[:-1]
    # bottom up, so that line numbers stay valid; a replacement comes before an insertion at the same line
    for edit in sorted((one for one in edits if one.at), key=lambda one: (-one.at, not one.instead)):
        body[edit.at - 1 : edit.at - 1 + len(edit.instead)] = [edit.add]
    body = [*body, *(edit.add for edit in edits if not edit.at)]
    return "".join(f"{line}\n" for line in body)


def take_out(text: str, edits: Sequence[Edit], file: str, *, force: bool = False) -> tuple[str, tuple[Edit, ...]]:
    """Return (the text without our edits, the edits that cannot be removed because the line was changed).

    An unchanged line is removed whole; from a changed line only our values are removed. An edit whose value is no
    longer there counts as removed. `force`: remove changed lines whole.
    """
    lines = text.split("\n")
    others = []
    for edit in reversed(edits):
        size = edit.add.count("\n") + 1  # one edit may be a whole file
        add = [line.rstrip("\r") for line in edit.add.split("\n")]
        bare = [line.rstrip("\r") for line in lines]
        places = [number for number in range(len(lines)) if bare[number : number + size] == add]
        if places:
            # of several equal lines take the last: ours was appended, or is the effective one
            lines[places[-1] : places[-1] + size] = edit.instead
        else:
            others.append(edit)
    # search only what is left, so that one edit does not match another edit's line
    left = "\n".join(lines)
    by_hand = []
    for edit in others:
        if not (said := _lines_with(parse_named(left, file), edit)):
            continue
        without = _whole_line(left, said[-1], edit) if force else _without_values(left, said[-1], edit)
        if without is None:
            by_hand.append(edit)
        else:
            left = without
    return left, tuple(reversed(by_hand))


def _lines_with(lines: Sequence[ConfLine], edit: Edit) -> list[ConfLine]:
    """Return the lines that contain an edit's value."""
    if not edit.word:
        return []
    if not edit.key:
        return [line for line in lines if edit.word in line.text]
    (ours, *_) = parse_named(edit.add) or (None,)
    if ours is not None and ours.is_block:  # an edit of one node: ignore lines of other nodes
        lines = [line for line in lines if line.pairs[:1] == ours.pairs[:1]]
    key, marker = edit.key.lower(), edit.word.lower()
    return [line for line in lines if any(marker in value.lower() for name, value in line.pairs if name.lower() == key)]


def _whole_line(text: str, line: ConfLine, edit: Edit) -> str:
    lines = text.split("\n")
    lines[line.number - 1 : line.last] = edit.instead
    return "\n".join(lines)


def _without_values(text: str, line: ConfLine, edit: Edit) -> str | None:
    """Return the text without our values on a line; None: they cannot be separated from others."""
    if edit.key:
        (old, *_) = parse_named("\n".join(edit.instead)) or (None,)
        return shortened(text, line, edit.key, edit.word, (old.get(edit.key) if old is not None else None) or "")
    # a line about our plugin, or about our shards, is entirely ours; for a script that cannot be decided
    is_about_it = line.text.startswith(edit.word) or edit.word in line.text.split()[1:2]
    return _whole_line(text, line, edit) if is_about_it and not edit.file.endswith(".lua") else None


def difference(name: str, before: str, after: str) -> str:
    """Return the change of a file as a unified diff; empty if there is none."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, lineterm="", n=1)
    return "".join(f"{line}\n" for line in lines)


# --- One value on one line, whose comment, blanks and other values stay -----------------------------------------------


class UnclearLine(ValueError):
    """A line that cannot be edited safely; the text is a sentence."""


def extended(texts: Mapping[str, str], line: ConfLine, key: str, value: str, marker: str) -> Edit:
    """Return the edit that sets a line's key to another value. Raises Unclear if the value is not found exactly once on
    one line, for example because it continues on the next line."""
    file, have = str(line.file), line.get(key) or ""
    places = list(_places(texts[file].split("\n"), line, key, have))
    if len(places) != 1:
        raise UnclearLine(
            f"{file}, line {line.number}: {key}={have} is not on one line, once; write it so, or make it "
            f"{key}={value} by hand, then run this again"
        )
    number, match = places[0]
    text = texts[file].split("\n")[number]
    return Edit(file, _with_value(text, match, value), key, marker, instead=(text,), at=number + 1)


def shortened(text: str, line: ConfLine, key: str, markers: str, otherwise: str = "") -> str | None:
    """Return the text with values (comma-separated) removed from a line's key; None: some are missing, or the text
    differs from what was parsed. If no value is left, write `otherwise`, or remove the key if that is empty."""
    have = next((value for name, value in reversed(line.pairs) if name.lower() == key.lower()), None) or ""
    kept = have.split(",")
    for marker in markers.split(","):
        same = [place for place, one in enumerate(kept) if one.strip().lower() == marker.lower()]
        if not same:
            return None
        del kept[same[-1]]
    value = ",".join(kept) or otherwise
    rows = text.split("\n")
    places = list(_places(rows, line, key, have))
    if not places:
        return None
    number, match = places[-1]
    row = rows[number]
    if value:
        rows[number] = _with_value(row, match, value)
    else:
        rest = row[: match.start()] + row[match.end() :].lstrip(" \t")
        rows[number : number + 1] = [rest.rstrip()] if rest.strip() else []
    return "\n".join(rows)


def without_values(text: str, file: str, key: str, markers: str) -> str | None:
    """Return the text with values removed from every line of a key; None: no line has them."""
    left = None
    while True:
        now = text if left is None else left
        found = (shortened(now, line, key, markers) for line in reversed(parse_named(now, file)) if line.get(key))
        fewer = next((one for one in found if one is not None), None)
        if fewer is None:
            return left
        left = fewer


def _places(rows: Sequence[str], line: ConfLine, key: str, value: str) -> Iterator[tuple[int, re.Match[str]]]:
    """Yield the rows (from 0) of a logical line in which the key has this value outside of a comment, and the match."""
    pattern = rf'(?<!\S)({re.escape(key)}\s*=\s*)(?:"{re.escape(value)}"|{re.escape(value)}(?!\S))'
    for number in range(line.number - 1, line.last):
        for match in re.finditer(pattern, rows[number].split("#", 1)[0], re.IGNORECASE):
            yield number, match


def _with_value(row: str, match: re.Match[str], value: str) -> str:
    """Return a row with another value, in quotes where the old one is."""
    quoted = f'"{value}"' if row[match.end(1)] == '"' else value
    return row[: match.start()] + match[1] + quoted + row[match.end() :]


def end_of(text: str) -> int:
    """Return the number of a text's last line."""
    return text.count("\n") + (0 if text.endswith("\n") or not text else 1)
