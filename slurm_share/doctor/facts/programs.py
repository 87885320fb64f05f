"""Programs, hooks and the plugin's object on this host: paths, owners, and the releases they were built for."""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from ...core.installed import CHOOSER, EPILOG, PLUGIN, PROLOG
from .records import ConfiguredHook, FileFact, Mount, PathOwner, PluginFacts, UnknownFact

_LINKS = 40
"""Most links that are followed; the kernel follows as many."""
_HEAD_BYTES = 64 * 1024
_OBJECT_BYTES = 64 * 1024 * 1024
HOOKS = (PROLOG, EPILOG)


def read_file_fact(
    path: str, root: Path = Path("/"), mounts: Sequence[Mount] = (), names: Sequence[str] = ()
) -> FileFact | None:
    """Return the facts of a file or folder; None: it is missing, or a dangling link.

    names: our programs; a file that is one of them, or mentions one, is `is_ours`.
    """
    found = _walk(path, root)
    if found is None:
        return None
    chain, real = found
    is_file = (root / real.lstrip("/")).is_file()
    head = _head(root / real.lstrip("/")) if is_file else b""
    interpreter = _interpreter(head)
    return FileFact(
        path,
        chain,
        is_file=is_file,
        file_system=_kind(real, mounts),
        interpreter=interpreter,
        interpreter_is_there=interpreter is None or _walk(interpreter, root) is not None,
        is_ours=any(os.path.basename(real) == name or _names(head, name.encode()) for name in names),  # noqa: PTH119
    )


def _walk(path: str, root: Path) -> tuple[tuple[PathOwner, ...], str] | None:
    """Return all folders on the way to a path, links' own folders included, and the path without links. Links are
    followed below `root`, as a process with that root folder would."""
    chain, real, rest, links = [_owned("/", root)], "", path.strip("/").split("/"), 0
    while rest:
        part, *rest = rest
        if part in ("", "."):
            continue
        if part == "..":
            real = real.rpartition("/")[0]
            continue
        here = f"{real}/{part}"
        try:
            target = os.readlink(root / here.lstrip("/"))  # noqa: PTH115
        except OSError:
            if not (root / here.lstrip("/")).exists():
                return None
            real = here
            chain.append(_owned(here, root))
            continue
        links += 1
        if links > _LINKS:
            return None
        real = "" if target.startswith("/") else real
        rest = [*target.strip("/").split("/"), *rest]
    return tuple(chain), real or "/"


def _owned(path: str, root: Path) -> PathOwner:
    seen = (root / path.lstrip("/")).stat()
    return PathOwner(path, seen.st_uid, stat.S_IMODE(seen.st_mode))


def _kind(real: str, mounts: Sequence[Mount]) -> str:
    """Return the file system of the innermost mount above a path; of two mounts at one point, the later one."""
    above = [one for one in mounts if one.point == "/" or real == one.point or real.startswith(one.point + "/")]
    return max(above, key=lambda one: len(one.point)).kind if above else ""


def _head(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            return stream.read(_HEAD_BYTES)
    except OSError:
        return b""


def _names(head: bytes, name: bytes) -> bool:
    """Return whether a script mentions a program outside of comments."""
    return any(name in line for line in head.split(b"\n") if not line.lstrip().startswith(b"#"))


def _interpreter(head: bytes) -> str | None:
    if not head.startswith(b"#!"):
        return None
    # as the kernel reads it (fs/binfmt_script.c): a carriage return belongs to the name
    first = re.split(rb"[ \t]", head.partition(b"\n")[0][2:].strip(b" \t"))[0]
    return os.fsdecode(first) or None


# --- Hooks -----------------------------------------------------------------------------------------------------------


def read_hooks(
    lines: Iterable[str],
    program: str,
    folder: str,
    root: Path = Path("/"),
    mounts: Sequence[Mount] = (),
    coming: Collection[str] = (),
) -> tuple[ConfiguredHook, ...]:
    """Return what Prolog= or Epilog= lines find here, in the order in which slurmd runs it.

    program: name of ours. folder: of slurm.conf, for relative names. coming: our own wrappers that are about to be
    written there.
    """
    return tuple(
        ConfiguredHook(
            line,
            tuple(
                fact
                for path in _matching(line if line.startswith("/") else f"{folder}/{line}", root)
                if (
                    fact := _coming(path, coming)
                    or read_file_fact(path, root, mounts, (program,))
                    or _dangling(path, root)
                )
                is not None
            ),
        )
        for line in lines
    )


def _coming(path: str, coming: Collection[str]) -> FileFact | None:
    return FileFact(path, (PathOwner(path, 0, 0o755),), is_ours=True) if path in coming else None


def _dangling(path: str, root: Path) -> FileFact | None:
    """Return the facts of a link to no file, which slurmd tries to run all the same."""
    if not (root / path.lstrip("/")).is_symlink():
        return None
    return FileFact(path, (PathOwner(path, 0, 0o755),), is_file=False)


def _matching(path: str, root: Path) -> list[str]:
    """Return the files that match, in slurmd's order. glob(3) skips names with a leading dot, and sorts; slurmd starts
    at the end."""
    if not set(path) & set("*?["):
        return [path]
    found = (str(one.relative_to(root)) for one in root.glob(path.lstrip("/")) if not one.name.startswith("."))
    return [f"/{one}" for one in sorted(found, reverse=True)]


# --- The plugin ------------------------------------------------------------------------------------------------------


def read_plugin(path: str = PLUGIN, root: Path = Path("/"), mounts: Sequence[Mount] = ()) -> PluginFacts:
    """Return the plugin's object, and the objects for other releases next to it."""
    place = root / path.lstrip("/")
    folders = ("", "built/") if place.parent.is_dir() else ()
    siblings = [one for folder in folders for one in sorted(place.parent.glob(f"{folder}[0-9]*.[0-9]*/{place.name}"))]
    fit = [one.parent for one in siblings if read_release(one) == one.parent.name]
    releases = tuple(str(folder.relative_to(place.parent)) for folder in fit)
    link = str(place.readlink()) if place.is_symlink() else ""
    file = read_file_fact(path, root, mounts)
    release = UnknownFact("it is not there") if file is None else read_release(root / file.chain[-1].path.lstrip("/"))
    return PluginFacts(path, file, release, link, releases, (root / CHOOSER.lstrip("/")).is_file())


def read_release(file: Path) -> str | UnknownFact:
    """Return the Slurm release that a plugin was built for, from its `plugin_version` (spank.h, SPANK_PLUGIN): 0x1a0505
    is 26.05.5.

    The file is read and not loaded: an object of another release needs symbols that are missing here.
    """
    try:
        if file.stat().st_size > _OBJECT_BYTES:
            return UnknownFact("is no plugin: too large")
        data = file.read_bytes()
    except OSError as error:
        return UnknownFact(f"cannot be read ({error.strerror})")
    try:
        number = _symbol(data, b"plugin_version")
    except (struct.error, IndexError, ValueError):
        return UnknownFact("is no object file that Slurm could load")
    if number is None:
        return UnknownFact("is no Slurm plugin: it has no plugin_version")
    return f"{number >> 16}.{number >> 8 & 0xFF:02d}"


def _symbol(data: bytes, name: bytes) -> int | None:
    """Return the 32-bit value of a symbol that an ELF file exports (elf(5)); None: it does not export it."""
    if data[:4] != b"\x7fELF" or data[4] != 2:
        raise ValueError("no 64-bit ELF file")
    order = "<" if data[5] == 1 else ">"
    table, size, count = *struct.unpack_from(order + "Q", data, 0x28), *struct.unpack_from(order + "HH", data, 0x3A)
    sections = [struct.unpack_from(order + "IIQQQQIIQQ", data, table + place * size) for place in range(count)]
    for _, kind, _, _, start, length, text, _, _, entry in sections:
        if kind != 11 or not entry:  # SHT_DYNSYM
            continue
        for place in range(start, start + length, entry):
            name_offset, _, _, section, value, _ = struct.unpack_from(order + "IBBHQQ", data, place)
            begin = sections[text][4] + name_offset
            if section and data[begin : data.index(b"\0", begin)] == name:
                _, _, _, address, offset, *_ = sections[section]
                return int(struct.unpack_from(order + "I", data, offset + value - address)[0])
    return None
