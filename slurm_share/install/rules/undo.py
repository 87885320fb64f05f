"""Decides what `slurm-share install --undo` writes: our values go, the site's stay, and Slurm still starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from ...share import site
from ...slurm.conf_text import ConfLine, Edit, parse_named
from . import lua as rule_lua
from . import shards as rule_shards
from .edits import UnclearLine, take_out, without_values


class FilesWithoutLines(Struct, frozen=True):
    """A site's files without our lines."""

    texts: Mapping[str, str]
    """New text of each file that had our lines, and of files that depend on them."""
    by_hand: tuple[Edit, ...]
    """Lines changed so that our values cannot be separated from the site's; nothing is written then."""
    notes: tuple[str, ...]
    """Sentences about lines that stay, and why."""


def undone(
    done: Mapping[str, Sequence[Edit]],
    texts: Mapping[str, str],
    slurm_files: Sequence[str],
    lua_file: str,
    *,
    force: bool = False,
) -> FilesWithoutLines:
    """Remove the edits `done` (by file) from `texts`. `slurm_files`: slurm.conf and its includes.

    `force`: remove our lines whole, even if they were changed.
    """
    notes: list[str] = []
    kept = dict(done)
    lua_after, changed = take_out(texts.get(lua_file, ""), done.get(lua_file, ()), lua_file)
    is_sites = bool(site.code_of(lua_after).strip())
    if is_sites and lua_file in done and (changed or not rule_lua.stands_alone(lua_after)):
        # without our line the script would lack a function that slurmctld needs or that its own code calls
        kept.pop(lua_file)
        lua_after = texts.get(lua_file, "")
    if is_sites and not force:
        keeps = [edit for edit in _all(kept) if edit.key == "JobSubmitPlugins"]
        if keeps:
            notes.append(f"JobSubmitPlugins keeps lua: {lua_file} has code of the site's own; --force removes it")
        kept = _without(kept, keeps)
    after, by_hand = _taken(kept, texts, force)
    shards = [line for line in _lines({**texts, **after}) if _names_shards(line)]
    held = [edit for edit in _all(kept) if shards and (edit.key == "GresTypes" or _is_of(edit, shards))]
    if held:
        where = f"{shards[0].file}, line {shards[0].number}"
        notes.append(
            f"GresTypes keeps shard, and gres.conf the lines of the same nodes: {where}, still has shards, and without "
            "those slurmctld would not start, or would drain the nodes"
        )
        kept = _without(kept, held)
        after, by_hand = _taken(kept, texts, force)
    if lua_file in after and not lua_after.strip():
        # the value was moved to another line by hand; only our script used it
        for file in slurm_files:
            text = after.get(file, texts.get(file, ""))
            fewer = without_values(text, file, "JobSubmitPlugins", "lua")
            if fewer is not None:
                after[file] = fewer
                notes.append(
                    f"{file}: lua is removed from JobSubmitPlugins, because {lua_file} was entirely ours and is removed"
                )
    notes += _script_notes(lua_file, lua_after)
    return FilesWithoutLines(after, tuple(by_hand), tuple(notes))


def _taken(
    done: Mapping[str, Sequence[Edit]], texts: Mapping[str, str], force: bool
) -> tuple[dict[str, str], list[Edit]]:
    after: dict[str, str] = {}
    by_hand: list[Edit] = []
    for file, edits in done.items():
        after[file], changed = take_out(texts.get(file, ""), edits, file, force=force)
        by_hand += changed
    return after, by_hand


def _script_notes(name: str, lua: str) -> Iterator[str]:
    """Yield what the administrator has to remove from a script of the site's own."""
    found = rule_lua.calls(lua)
    if not found:
        return
    lines = "\n".join(f"    {call.number}: {call.text}" for call in found)
    if rule_lua.survives(lua):
        yield f"{name} calls ours where that is there, and works without it; these lines may stay:\n{lines}"
        return
    yield (
        f"{name} still calls ours, and slurmctld does not start with it when the package is gone: before you remove "
        f"slurm-share-spank take out\n{lines}\n  or write them so that they work without it:\n"
        f"    {rule_lua.LOAD}\n"
        + "".join(f"    {line}\n" for line in rule_lua.IN_SUBMIT)
        + "  then: scontrol reconfigure"
    )


def _all(done: Mapping[str, Sequence[Edit]]) -> list[Edit]:
    return [edit for edits in done.values() for edit in edits]


def _without(done: Mapping[str, Sequence[Edit]], edits: Sequence[Edit]) -> dict[str, Sequence[Edit]]:
    return {file: [edit for edit in of if edit not in edits] for file, of in done.items()}


def _lines(texts: Mapping[str, str]) -> Iterator[ConfLine]:
    for name, text in texts.items():
        if not name.endswith(".lua"):
            yield from parse_named(text, name)


def _is_of(edit: Edit, shards: Sequence[ConfLine]) -> bool:
    """Return whether an edit of gres.conf gives shards to nodes that still have some in slurm.conf."""
    (line, *_) = parse_named(edit.add) or (None,)
    if line is None or (line.get("Name") or "").lower() != "shard":
        return False
    try:
        return any(
            rule_shards.overlap(line.get("NodeName") or "", one.pairs[0][1])
            for one in shards
            if one.pairs[0][0].lower() == "nodename" and one.get("Gres")
        )
    except UnclearLine:  # a list that cannot be parsed may contain those nodes
        return True


def _names_shards(line: ConfLine) -> bool:
    if (line.get("Name") or "").lower() == "shard":
        return True
    return any(one.name == "shard" for one in site.parse_gres(line.get("Gres") or ""))
