"""Insertion of edits into a text, and their removal."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from ...slurm.conf_text import ConfLine, Edit, parse_named
from .values import shortened


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
