"""Read and write Slurm's node lists, such as n[1-3,7]."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from .errors import ConfigError, UsageError, shown
from .settings import Configuration

NODES_MAX = 100_000
"""Most nodes in a list: more than the largest clusters have, and few enough for memory (not n[1-999999999])."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,255}")
_PIECE = re.compile(r",(?![^\[]*\])")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_SLURMS = re.compile(r"(?:[A-Za-z0-9._-]|\[[0-9]{1,9}(?:-[0-9]{1,9})?(?:,[0-9]{1,9}(?:-[0-9]{1,9})?)*\])+")
_UNCLEAR = re.compile(r"[0-9]{10}|-[^,]*-")
"""Numbers and ranges that ClusterShell reads in its own way: 1-1-99 is none to us."""
_RANGE = re.compile(r"([0-9]+)-([0-9]+)")


def unfold(text: str) -> tuple[str, ...]:
    """Return the names in a list that Slurm wrote, in its order. Raises UsageError as `parse` does.

    The order is that of `scontrol show hostnames`, which other answers of Slurm follow, such as a job's GPUs by node. A
    number is written with the width of the first one of its range.
    """
    if "[" not in text:
        return tuple(text.split(",")) if text else ()
    pieces = _PIECE.split(text)
    if sum(map(_size, pieces)) > NODES_MAX or not all(map(_SLURMS.fullmatch, pieces)):
        raise _refusal(text)
    return tuple(name for piece in pieces for name in _unfold_piece(piece, text))


def _unfold_piece(piece: str, text: str) -> Iterator[str]:
    """Yield the names of a piece.

    Of several brackets the numbers in the last one change fastest, then those in the first, in the second and so on
    (tried on 26.05 with up to four).
    """
    words = _BRACKET.split(piece)
    literals, lists = words[::2], [_numbers(listed, text) for listed in words[1::2]]
    if not lists:
        yield piece
        return
    *before, last = lists
    for chosen in itertools.product(*reversed(before)):
        head = "".join(map("".join, zip(literals, reversed(chosen), strict=False))) + literals[-2]
        for number in last:
            yield f"{head}{number}{literals[-1]}"


def _numbers(listed: str, text: str) -> list[str]:
    found = []
    for span in listed.split(","):
        first, _, last = span.partition("-")
        if int(last or first) < int(first):
            raise _refusal(text)
        found += [f"{number:0{len(first)}d}" for number in range(int(first), int(last or first) + 1)]
    return found


def parse(text: str) -> tuple[str, ...]:
    """Return the names in a list that a person wrote, sorted, without duplicates. Raises UsageError."""
    found = parse_paths(text)
    if not found or not all(map(_NAME.fullmatch, found)):
        raise _refusal(text)
    return found


def parse_paths(text: str) -> tuple[str, ...]:
    """Return the texts in a list such as /dev/nvidia[0-3], sorted, without duplicates. Raises UsageError.

    ClusterShell refuses some ranges by `assert`.
    """
    if sum(map(_size, _PIECE.split(text))) > NODES_MAX:
        raise _refusal(text)
    try:
        return tuple(NodeSet(text, resolver=RESOLVER_NOGROUP))
    except (NodeSetException, ValueError, ArithmeticError, LookupError, AssertionError) as error:
        raise _refusal(text) from error


def fold(names: Iterable[str]) -> str:
    """Return the names as n[1-3,7], sorted; "" for no names. If any is not a valid node name, join them by commas."""
    wanted = list(names)
    if not all(map(_NAME.fullmatch, wanted)):
        return ",".join(wanted)
    return str(NodeSet.fromlist(wanted, resolver=RESOLVER_NOGROUP))


def _size(piece: str) -> int:
    """Return an upper bound of the number of names in a piece. Brackets multiply: n[1-3]m[1-4]."""
    size = 1
    if re.search(r"[\[,]\s*-|\]\s*[0-9]{6}", piece):  # ClusterShell reads -1, or joins digits to a range
        return NODES_MAX + 1
    for listed in re.findall(r"\[([^\[\]]*)", piece):
        if _UNCLEAR.search(listed):
            return NODES_MAX + 1
        spans = listed.count(",") + 1
        size *= spans + sum(max(0, int(last) - int(first)) for first, last in _RANGE.findall(listed))
    return size


def _refusal(text: str) -> UsageError:
    return UsageError(f"{shown(text) or repr(text)} is no list of nodes; write n1, or n[1-3,7], several with commas")


def check_settings(configuration: Configuration) -> None:
    """Raise ConfigError if the setting `exclusive_user_nodes` is no list of nodes.

    A hook reads it only for an ordinary job, and could then only log the mistake.
    """
    for nodes in configuration.settings.exclusive_user_nodes:
        try:
            parse(nodes)
        except UsageError as error:
            raise ConfigError(configuration.file, str(error), "exclusive_user_nodes") from error
