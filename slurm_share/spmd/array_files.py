"""Distributed arrays in one .npy file, of which each rank writes and reads its rows.

The file is written under a temporary name in the same folder, and renamed by rank 0 after all ranks have written. If
one rank fails, all ranks raise the same error.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import itertools
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from . import host
from .agreement import agree
from .comm import COMM_WORLD, Comm
from .dmat import Dmat, checked_shape
from .errors import ArrayFileError, UsageError
from .rules.maps import Map

_Result = TypeVar("_Result")
_LONGEST_HEADER = 1 << 20
_ALIGNED = 64
"""Alignment of the first element in a .npy file, in bytes."""


class Header(NamedTuple):
    """Contents of the header of a .npy file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    offset: int
    """Offset of the first element in bytes."""


def rows_map(map: Map) -> Map:
    """Return a map in which each of the same ranks has whole rows: blocks in the first dimension, no overlap."""
    return Map((len(map.ranks), *(1 for _ in map.grid[1:])), "b", map.ranks)


def save(path: str | os.PathLike[str], array: Dmat) -> None:
    """Write the array to `path`, without adding a suffix, as a .npy file that numpy.load reads. Collective.

    An array that is not distributed by rows is redistributed first, which needs memory for a second copy. Rank 0's path
    counts. An older file is replaced once the new one is complete; of a symbolic link, the target is replaced. Raises
    ArrayFileError on all ranks if a rank cannot write; then the older file stays, and the temporary one is removed.
    """
    if not isinstance(array, Dmat):
        raise UsageError(f"save writes a distributed array, not {type(array).__name__}; numpy.save writes a plain one")
    comm = array.comm
    dtype, _ = agree(comm, "save", [array])
    goal = _resolved(comm, "write", path)
    rows = array
    if any(one > 1 for one in array.map.grid[1:]) or array.map.axes[0].same_layout()[0] != "b":
        rows = array.redistribute(rows_map(array.map))
    header = _header(dtype, array.shape)
    total = len(header) + array.size * dtype.itemsize
    name = f".{Path(goal).name[:200]}.{secrets.token_hex(6)}.part"
    mine = str(Path(goal).with_name(name))
    try:
        temporary = _on_rank_0(comm, "write", goal, lambda: _begin(goal, mine, header, total))
        _on_all_ranks(comm, "write", goal, lambda: _write_rows(temporary, rows, dtype, len(header)))
        _on_rank_0(comm, "write", goal, lambda: _finish(temporary, goal))
    except BaseException:
        if comm.rank == 0:
            with contextlib.suppress(OSError, ValueError):
                Path(mine).unlink(missing_ok=True)
        raise


def load(path: str | os.PathLike[str], map: Map, comm: Comm | None = None) -> Dmat:
    """Return the array of a .npy file, distributed by `map`. Collective. Rank 0's path counts.

    Each rank reads its part; if columns are distributed, ranks read rows and redistribute them. Raises ArrayFileError
    on all ranks if the file cannot be read, is no .npy file, or is too short; UsageError if its shape does not match
    the map.
    """
    comm = COMM_WORLD if comm is None else comm
    agree(comm, "load", [], map)
    source = _resolved(comm, "read", path)
    header = _on_rank_0(comm, "read", source, lambda: _read_header(source))
    shape = checked_shape(header.shape, map)
    split = map.grid[:-1] if header.fortran_order else map.grid[1:]
    direct = all(one == 1 for one in split) or len(map.ranks) == 1
    used = map if direct else rows_map(map)
    if not direct and header.fortran_order:
        used = Map(used.grid[::-1], "b", used.ranks)
    local: list[NDArray[Any]] = []
    _on_all_ranks(comm, "read", source, lambda: local.append(_read_part(source, header, used, comm.rank)))
    array = Dmat(shape, used, local[0], comm)
    return array if direct else array.redistribute(map)


def _resolved(comm: Comm, verb: str, path: str | os.PathLike[str]) -> str:
    """Return rank 0's path with all links resolved on all ranks. Raises ArrayFileError on all ranks if that fails."""

    def resolve() -> str:
        try:
            found = str(Path(path).resolve())
            if os.path.islink(found):  # noqa: PTH114 - since Python 3.13 a loop of links is no error
                raise OSError(errno.ELOOP, "a loop of links")
            return found
        except RuntimeError as error:  # a loop of links
            raise ValueError(str(error)) from None

    return _on_rank_0(comm, verb, os.fspath(path), resolve)


def _on_rank_0(comm: Comm, verb: str, path: str, work: Callable[[], _Result]) -> _Result:
    """Call `work` on rank 0 and return its result on all ranks. Raises ArrayFileError on all ranks if it fails."""
    result: _Result = _on_all_ranks(comm, verb, path, lambda: work() if comm.rank == 0 else None)[0]
    return result


def _on_all_ranks(comm: Comm, verb: str, path: str, work: Callable[[], Any]) -> list[Any]:
    """Call `work` on every rank and return all results. Raises ArrayFileError on all ranks if one fails."""
    result: Any = None
    why: str | None = None
    try:
        result = work()
    except OSError as error:
        why = error.strerror or str(error)
    except ValueError as error:
        why = str(error)
    except MemoryError as error:
        why = f"there is no memory for it: {error}"
    answers = comm.allgather((result, why))
    for rank, (_, reason) in enumerate(answers):
        if reason is not None:
            raise ArrayFileError(f"rank {rank} cannot {verb} {path}: {reason}")
    return [answer for answer, _ in answers]


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the header of a .npy file."""
    text = repr({"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape})
    try:
        content, version = text.encode("latin-1"), 1
    except UnicodeEncodeError:
        content, version = text.encode(), 3
    if version == 1 and len(content) + _ALIGNED > 0xFFFF:
        version = 2
    width = 2 if version == 1 else 4
    padding = -(len(npy.MAGIC_PREFIX) + 2 + width + len(content) + 1) % _ALIGNED
    length = (len(content) + padding + 1).to_bytes(width, "little")
    return npy.MAGIC_PREFIX + bytes((version, 0)) + length + content + b" " * padding + b"\n"


def _begin(goal: str, temporary: str, header: bytes, total: int) -> str:
    """Make the temporary file, with its header and its full length, and return its path."""
    path = Path(goal)
    if path.is_dir():
        raise ValueError("it is a directory")
    if path.exists() and not path.is_file():
        raise ValueError("it is no regular file")
    with open(temporary, "xb") as stream:
        stream.write(header)
        stream.truncate(total)
        stream.flush()
        os.fsync(stream.fileno())
    return temporary


def _write_rows(path: str, rows: Dmat, dtype: np.dtype[Any], offset: int) -> None:
    """Write this rank's rows at their offset, and flush them to disk."""
    mine = np.ascontiguousarray(host.to_host(rows.owned), dtype=dtype)
    if not mine.nbytes:
        return
    row_bytes = mine.nbytes // mine.shape[0]
    first = int(rows.map.owned(rows.shape, rows.comm.rank)[0][0])
    data = mine.reshape(-1).view(np.uint8).data
    file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        done = 0
        while done < len(data):
            done += os.pwrite(file, data[done:], offset + first * row_bytes + done)
        os.fsync(file)
    finally:
        os.close(file)


def _finish(temporary: str, goal: str) -> None:
    """Rename the temporary file, and flush the folder to disk."""
    Path(temporary).replace(goal)
    folder = os.open(Path(goal).parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read_header(path: str) -> Header:
    """Return the header of a file. Raises ValueError if it is no .npy file or is too short."""
    with open(path, "rb") as stream:
        try:
            version = npy.read_magic(stream)
        except ValueError:
            raise ValueError("it is no .npy file") from None
        length = int.from_bytes(stream.read(2 if version == (1, 0) else 4), "little")
        if length > _LONGEST_HEADER:
            raise ValueError(f"its header is {length} bytes long")
        content = stream.read(length)
        try:
            fields = ast.literal_eval(content.decode("utf-8" if version >= (3, 0) else "latin-1").strip())
            dtype = npy.descr_to_dtype(fields["descr"])
            header = Header(dtype, tuple(fields["shape"]), bool(fields["fortran_order"]), stream.tell())
        except (SyntaxError, ValueError, LookupError, TypeError):
            raise ValueError("it has no header of an array") from None
        size = os.fstat(stream.fileno()).st_size
    if dtype.hasobject:
        raise ValueError("it holds Python objects, not numbers")
    needed = header.offset + int(np.prod(header.shape, dtype=np.int64)) * dtype.itemsize
    if size < needed:
        raise ValueError(f"it has {size} bytes, and an array of shape {header.shape} of {dtype} needs {needed}")
    return header


def _read_part(path: str, header: Header, map: Map, rank: int) -> NDArray[Any]:
    """Return a rank's part of the array in a file: whole rows, or whole columns in Fortran order."""
    target = np.empty(map.stored_shape(header.shape, rank), header.dtype, order="F" if header.fortran_order else "C")
    if not target.nbytes:
        return target
    view, slowest = (target.T, -1) if header.fortran_order else (target, 0)
    rows = map.stored(header.shape, rank)[slowest]
    row_bytes = view.nbytes // view.shape[0]
    data = view.reshape(-1).view(np.uint8)
    ends = [0, *(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), rows.size]
    with open(path, "rb", buffering=0) as stream:
        for first, end in itertools.pairwise(ends):
            stream.seek(header.offset + int(rows[first]) * row_bytes)
            _read_into(stream, data[first * row_bytes : end * row_bytes].data)
    return target


def _read_into(stream: IO[bytes], data: memoryview) -> None:
    done = 0
    while done < len(data):
        count = stream.readinto(data[done:])  # type: ignore[attr-defined]  # of a raw stream
        if not count:
            raise ValueError("it ended while it was read")
        done += count
