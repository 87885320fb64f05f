"""Lines put into a text, and taken out of it again; values in, text out."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from ..conf_text import ConfLine, ConfText, Edit, parse


def put_in(text: str, edits: Sequence[Edit]) -> str:
    """The text with every edit in it. Line numbers are those of `text`, whatever the order of the edits."""
    lines = text.split("\n")
    ends_open = bool(lines[-1])
    body = lines if ends_open else lines[:-1]
    # From the end, so that numbers stay true; what takes a line's place before what goes in front of it.
    for edit in sorted((one for one in edits if one.at), key=lambda one: (-one.at, not one.instead)):
        body[edit.at - 1 : edit.at - 1 + len(edit.instead)] = [edit.add]
    body = [*body, *(edit.add for edit in edits if not edit.at)]
    return "".join(f"{line}\n" for line in body)


def take_out(text: str, now: ConfText, edits: Sequence[Edit]) -> tuple[str, tuple[Edit, ...]]:
    """(the text without our edits, those that somebody has changed by hand). `now` is the same text, taken apart.

    An edit whose word no line says any more has been taken back already. Where one has been changed the text is to be
    left as it is: what it should be is not ours to guess.
    """
    lines = text.split("\n")
    others = []
    for edit in reversed(edits):
        places = [number for number, line in enumerate(lines) if line.rstrip("\r") == edit.add.rstrip("\r")]
        if places:
            # Of several the last: ours was put at the end, or is the one that counts.
            lines[places[-1] : places[-1] + 1] = edit.instead
        else:
            others.append(edit)
    # Of what is left: a line of ours that has just gone says nothing of another one's word.
    left = "\n".join(lines)
    rest = parse(left, now.file)
    return left, tuple(edit for edit in reversed(others) if _says(rest, edit, now))


def _says(lines: Sequence[ConfLine], edit: Edit, whole: ConfText) -> bool:
    if not edit.word:
        return False
    if not edit.key:
        return any(edit.word in line.text for line in lines)
    (ours, *_) = parse(edit.add, whole.file) or (None,)
    if ours is not None and ours.is_block:  # about one node: what stands on another's line is not ours
        lines = [line for line in lines if line.pairs[:1] == ours.pairs[:1]]
    return any(edit.word in value for line in lines for key, value in line.pairs if key.lower() == edit.key.lower())


def difference(name: str, before: str, after: str) -> str:
    """What changes in a file, as a unified diff; empty where nothing does."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, lineterm="", n=1)
    return "".join(f"{line}\n" for line in lines)
