"""Positions along one dimension of an array: a slice if they are evenly spaced, runs, or a vector.

Copies between arrays select positions per dimension. Copies through slices run at memory speed; copies through a vector
of indices take several times as long. So runs of consecutive positions, such as the blocks of a block-cyclic
distribution, are copied through a view that splits the dimension in two: the run, and the position in the run.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Array = NDArray[Any]

MAX_PIECES = 4
"""Limit up to which runs of unequal width or distance are copied one by one; more go through a vector."""


class Piece(NamedTuple):
    """Runs of equal width and equal distance."""

    packed: int
    """Index of the first of these positions among all."""
    first: int
    runs: int
    width: int
    stride: int


class Runs(NamedTuple):
    """Positions that consist of a few pieces."""

    pieces: tuple[Piece, ...]


Positions = slice | Runs | Indices


def count(positions: Positions) -> int:
    """Return the number of positions."""
    if isinstance(positions, slice):
        return len(range(positions.start, positions.stop, positions.step))
    if isinstance(positions, Runs):
        return sum(piece.runs * piece.width for piece in positions.pieces)
    return len(positions)


def vector_of(positions: Positions) -> Indices:
    """Return the positions as a vector."""
    if isinstance(positions, slice):
        return np.arange(positions.start, positions.stop, positions.step, dtype=np.int64)
    if isinstance(positions, Runs):
        parts = []
        for piece in positions.pieces:
            firsts = np.arange(piece.runs, dtype=np.int64) * piece.stride + piece.first
            parts.append((firsts[:, None] + np.arange(piece.width, dtype=np.int64)).reshape(-1))
        return np.concatenate(parts)
    return positions


def from_vector(vector: Indices, length: int) -> Positions:
    """Return ascending positions in a dimension of this length in the form that is fastest to copy."""
    if not len(vector):
        return slice(0, 0, 1)
    begins = np.concatenate(([0], np.flatnonzero(np.diff(vector) != 1) + 1))
    positions = _from_runs(vector[begins], np.diff(begins, append=len(vector)), length)
    return vector if positions is None else positions


def by_owner(owners: Indices) -> list[tuple[int, Positions]]:
    """Return for each owner, ascending, its positions in the vector."""
    length = len(owners)
    if not length:
        return []
    firsts = np.concatenate(([0], np.flatnonzero(owners[1:] != owners[:-1]) + 1))
    widths = np.diff(firsts, append=length)
    of_run = owners[firsts]
    # NumPy sorts 16-bit numbers by their digits, in linear time.
    order = np.argsort(of_run.astype(np.uint16) if of_run.max() < 2**16 else of_run, kind="stable")
    of_run, firsts, widths = of_run[order], firsts[order], widths[order]
    begins = np.concatenate(([0], np.flatnonzero(of_run[1:] != of_run[:-1]) + 1))
    groups = zip(of_run[begins].tolist(), begins.tolist(), [*begins[1:].tolist(), len(of_run)], strict=True)
    # Few runs are quicker to process as plain numbers, many as a vector.
    as_numbers = (firsts.tolist(), widths.tolist()) if len(firsts) <= 32 * len(begins) else (firsts, widths)
    found: list[tuple[int, Positions]] = []
    for owner, begin, end in groups:
        positions = _from_runs(as_numbers[0][begin:end], as_numbers[1][begin:end], length)
        found.append((owner, _expand(firsts[begin:end], widths[begin:end]) if positions is None else positions))
    return found


def take(array: Array, axes: Sequence[Positions], out: Array) -> None:
    """Copy the elements at these positions per dimension into `out`, which has their shape."""
    if all(type(positions) is slice for positions in axes):
        out[...] = array[tuple(axes)]
    elif not any(isinstance(positions, np.ndarray) for positions in axes):
        for chosen, packed in _view_pairs(array, axes, out):
            packed[...] = chosen
    elif not _take_along_one(array, axes, out):
        out[...] = array[np.ix_(*map(vector_of, axes))]


def put(array: Array, axes: Sequence[Positions], block: Array) -> None:
    """Copy a block to these positions per dimension of an array."""
    if all(type(positions) is slice for positions in axes):
        array[tuple(axes)] = block
    elif not any(isinstance(positions, np.ndarray) for positions in axes):
        for chosen, packed in _view_pairs(array, axes, block):
            chosen[...] = packed
    else:
        array[np.ix_(*map(vector_of, axes))] = block


def _take_along_one(array: Array, axes: Sequence[Positions], out: Array) -> bool:
    """Copy with `numpy.take`, the fastest way for one vector. Return whether that was possible."""
    (axis, *more) = [axis for axis, positions in enumerate(axes) if not isinstance(positions, slice)]
    if more or out.dtype != array.dtype or not out.flags.c_contiguous:
        return False
    rest = tuple(slice(None) if number == axis else positions for number, positions in enumerate(axes))
    view = array[rest]
    if not view.flags.c_contiguous:  # numpy.take would copy all of it first
        return False
    np.take(view, vector_of(axes[axis]), axis=axis, out=out, mode="clip")  # "raise" would copy `out`
    return True


def _view_pairs(array: Array, axes: Sequence[Positions], block: Array) -> list[tuple[Array, Array]]:
    """Return pairs of views of equal shape: the elements at the positions, and their counterparts in the block."""
    per_axis: list[list[tuple[slice, slice, Piece | None]]] = []
    for positions in axes:
        if isinstance(positions, slice):
            per_axis.append([(positions, slice(None), None)])
        else:
            assert isinstance(positions, Runs)
            per_axis.append([_slices_of(piece) for piece in positions.pieces])
    pairs = []
    for pieces in itertools.product(*per_axis):
        pairs.append(
            (
                _split(array[tuple(chosen for chosen, _, _ in pieces)], [split for _, _, split in pieces], False),
                _split(block[tuple(packed for _, packed, _ in pieces)], [split for _, _, split in pieces], True),
            )
        )
    return pairs


def _slices_of(piece: Piece) -> tuple[slice, slice, Piece | None]:
    """Return the slices of a piece in the array and in the block, and the piece if both have to be split by runs."""
    packed = slice(piece.packed, piece.packed + piece.runs * piece.width)
    if piece.runs == 1:
        return slice(piece.first, piece.first + piece.width), packed, None
    return slice(piece.first, piece.first + piece.runs * piece.stride), packed, piece


def _split(array: Array, pieces: Sequence[Piece | None], packed: bool) -> Array:
    """Return a view in which each dimension with a piece is split in two: the runs, and the positions in a run."""
    shape: list[int] = []
    inside: list[slice] = []
    for length, piece in zip(array.shape, pieces, strict=True):
        if piece is None:
            shape.append(length)
            inside.append(slice(None))
        else:
            shape += (piece.runs, piece.width if packed else piece.stride)
            inside += (slice(None), slice(piece.width))
    return array.reshape(shape)[tuple(inside)]  # splitting a dimension never copies


def even_runs(
    first: int, first_width: int, second: int, stride: int, width: int, runs: int, last_width: int, length: int
) -> slice | Runs:
    """Return the positions of runs that begin at `first`, at `second`, and every `stride` after that.

    All but the first and the last have `width` elements. `length`: length of the dimension.
    """
    if runs == 1:
        return slice(first, first + first_width, 1)
    last = second + (runs - 2) * stride
    whole_first = second - first == stride and first_width == width
    if whole_first and width == last_width == 1:
        return slice(first, last + 1, stride)
    begin = 0 if whole_first else 1
    # The view of the runs reaches to the end of the last stride.
    end = runs if last_width == width and last + stride <= length else runs - 1
    pieces = [] if whole_first else [Piece(0, first, 1, first_width, first_width)]
    before = 0 if whole_first else first_width
    if end > begin:
        pieces.append(Piece(before, first if whole_first else second, end - begin, width, stride))
    if end < runs:
        pieces.append(Piece(before + (end - begin) * width, last, 1, last_width, last_width))
    return Runs(tuple(pieces))


def _from_runs(firsts: Any, widths: Any, length: int) -> slice | Runs | None:
    """Return the positions of runs with these starts and widths; None: they need a vector."""
    runs = len(firsts)
    first, first_width, last_width = int(firsts[0]), int(widths[0]), int(widths[-1])
    if runs == 1:
        return slice(first, first + first_width, 1)
    second, stride = int(firsts[1]), int(firsts[-1] - firsts[-2])
    width = first_width if runs == 2 else int(widths[1])
    if _all_equal(widths[1:-1], width) and _evenly_spaced(firsts[1:], stride):
        return even_runs(first, first_width, second, stride, width, runs, last_width, length)
    if runs > MAX_PIECES:
        return None
    pieces, packed = [], 0
    for begin, its_width in zip(firsts, widths, strict=True):
        pieces.append(Piece(packed, int(begin), 1, int(its_width), int(its_width)))
        packed += int(its_width)
    return Runs(tuple(pieces))


def _all_equal(values: Any, value: int) -> bool:
    return bool((values == value).all()) if isinstance(values, np.ndarray) else all(one == value for one in values)


def _evenly_spaced(values: Any, step: int) -> bool:
    if isinstance(values, np.ndarray):
        return bool((np.diff(values) == step).all())
    return all(second - first == step for first, second in itertools.pairwise(values))


def _expand(firsts: Indices, widths: Indices) -> Indices:
    """Return the positions of runs as a vector."""
    ends = np.cumsum(widths)
    return np.repeat(firsts - ends + widths, widths) + np.arange(ends[-1], dtype=np.int64)
