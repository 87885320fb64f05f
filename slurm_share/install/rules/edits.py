"""Lines put into a text, and taken out of it again; values in, text out."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from ...slurm.conf_text import ConfLine, Edit, parse_named
from .values import shortened


def put_in(text: str, edits: Sequence[Edit]) -> str:
    """Return the text with every edit in it. Line numbers are those of `text`, whatever the order of the edits."""
    lines = text.split("\n")
    ends_open = bool(lines[-1])
    body = lines if ends_open else lines[:-1]
    # From the end, so that numbers stay true; what takes a line's place before what goes in front of it.
    for edit in sorted((one for one in edits if one.at), key=lambda one: (-one.at, not one.instead)):
        body[edit.at - 1 : edit.at - 1 + len(edit.instead)] = [edit.add]
    body = [*body, *(edit.add for edit in edits if not edit.at)]
    return "".join(f"{line}\n" for line in body)


def take_out(text: str, edits: Sequence[Edit], file: str, *, force: bool = False) -> tuple[str, tuple[Edit, ...]]:
    """(the text without our edits, those that somebody has changed so that ours is not told from theirs).

    A line as we wrote it goes whole; of one that has been changed since go our words. An edit whose word no line says
    any more has been taken back already. `force`: a changed line goes whole, too.
    """
    lines = text.split("\n")
    others = []
    for edit in reversed(edits):
        size = edit.add.count("\n") + 1  # a file of ours that is one edit
        add = [line.rstrip("\r") for line in edit.add.split("\n")]
        bare = [line.rstrip("\r") for line in lines]
        places = [number for number in range(len(lines)) if bare[number : number + size] == add]
        if places:
            # Of several the last: ours was put at the end, or is the one that counts.
            lines[places[-1] : places[-1] + size] = edit.instead
        else:
            others.append(edit)
    # Of what is left: a line of ours that has just gone says nothing of another one's word.
    left = "\n".join(lines)
    by_hand = []
    for edit in others:
        if not (said := _saying(parse_named(left, file), edit)):
            continue
        without = _whole_line(left, said[-1], edit) if force else _values_out(left, said[-1], edit)
        if without is None:
            by_hand.append(edit)
        else:
            left = without
    return left, tuple(reversed(by_hand))


def _saying(lines: Sequence[ConfLine], edit: Edit) -> list[ConfLine]:
    """The lines that say an edit's word."""
    if not edit.word:
        return []
    if not edit.key:
        return [line for line in lines if edit.word in line.text]
    (ours, *_) = parse_named(edit.add) or (None,)
    if ours is not None and ours.is_block:  # about one node: what stands on another's line is not ours
        lines = [line for line in lines if line.pairs[:1] == ours.pairs[:1]]
    key, marker = edit.key.lower(), edit.word.lower()
    return [line for line in lines if any(marker in value.lower() for name, value in line.pairs if name.lower() == key)]


def _whole_line(text: str, line: ConfLine, edit: Edit) -> str:
    lines = text.split("\n")
    lines[line.number - 1 : line.last] = edit.instead
    return "\n".join(lines)


def _values_out(text: str, line: ConfLine, edit: Edit) -> str | None:
    """The text without our words on a line; None: they are not told from other people's."""
    if edit.key:
        (old, *_) = parse_named("\n".join(edit.instead)) or (None,)
        return shortened(text, line, edit.key, edit.word, (old.get(edit.key) if old is not None else None) or "")
    # A line about our plugin, or about shards that we wrote: all of it belongs to that. Of a script nothing is known.
    is_about_it = line.text.startswith(edit.word) or edit.word in line.text.split()[1:2]
    return _whole_line(text, line, edit) if is_about_it and not edit.file.endswith(".lua") else None


def difference(name: str, before: str, after: str) -> str:
    """What changes in a file, as a unified diff; empty where nothing does."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, lineterm="", n=1)
    return "".join(f"{line}\n" for line in lines)
