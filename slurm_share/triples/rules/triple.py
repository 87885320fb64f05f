"""Parse a triple [NNODE,NPPN,NTPP], and place the processes of one node: cores, GPU, threads.

The arithmetic is LLSC's (blocks of cores, GPUs in turn, two warnings), on the cores and GPUs that the machine reports
instead of a site's table. If NTPP is omitted, it is floor(cores / NPPN), as in Table I of LLSC's paper on GPU sharing
(their launchers use 1).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from ...core import numbers
from ...core.errors import UsageError, shown
from ...core.text import counted
from ...node.records import Core
from ..records import ProcessPlace, Triple

FORM = "[NODES,PROCESSES_PER_NODE] or [NODES,PROCESSES_PER_NODE,THREADS_PER_PROCESS], such as [2,8,5]"
NODES_MAX = 65_536
"""Most nodes, more than any Slurm cluster has."""
PER_NODE_MAX = 4096
"""Most processes per node, several times the cores of the largest nodes."""
THREADS_MAX = 4096

_LONGEST = 40
"""Most characters, more than any triple within the limits has."""
_PARTS = ("number of nodes", "number of processes on a node", "number of threads of a process")
_LIMITS = (NODES_MAX, PER_NODE_MAX, THREADS_MAX)
_DIGITS = re.compile("[0-9]+")
_TASK_COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", re.ASCII)


AUTO = "auto"
"""Value of NPPN for a number that llsub chooses."""


def parse(text: str, *, may_be_auto: bool = False) -> Triple:
    """Return the triple in `[N,P,T]` or `[N,P]`, with or without brackets. Raises UsageError for anything else.

    may_be_auto: P may be `auto`, which sets `is_auto`.
    """
    inside = text[1:-1] if text.startswith("[") and text.endswith("]") and len(text) > 1 else text
    tokens = inside.split(",")
    if len(text) > _LONGEST:
        raise _wrong(text, "it is too long")
    if any(character.isspace() for character in text):
        raise _wrong(text, "it contains a blank")
    if len(text) > 1 and text.startswith("[") and not text.endswith("]"):
        raise _wrong(text, "the ] is missing, perhaps because of a blank, at which the shell divides it")
    if not inside:
        raise _wrong(text, "it is empty")
    if len(text) == 1:
        # For the shell [2,8,1] is a pattern, which it replaces by the name of a file called 2, 8 or 1.
        raise _wrong(text, f"the shell has replaced it by the name of the file {shown(text)}; quote it")
    if len(tokens) not in (2, 3):
        raise _wrong(text, f"it has {counted(len(tokens), 'number')}, not two or three")
    is_auto = may_be_auto and tokens[1] == AUTO
    nodes = _number(text, tokens[0], 0)
    per_node = 1 if is_auto else _number(text, tokens[1], 1)
    return Triple(nodes, per_node, _number(text, tokens[2], 2) if len(tokens) == 3 else None, is_auto)


def with_cores(triple: Triple, nodes: Iterable[tuple[int, int | None]], tasks: int, per_gpu: int) -> Triple:
    """Return an `auto` triple with the number of processes for which the smallest of the nodes has room.

    nodes: (cores, GPUs) of each kind of node, at least one; GPUs None: not known. Each process has as many cores as
    threads, by default one. tasks: an upper limit of the number. per_gpu: most processes on a GPU.
    """
    threads = triple.threads or 1
    fit = min(min(cores // threads, cores if gpus is None else gpus * per_gpu, tasks) for cores, gpus in nodes)
    return replace(triple, per_node=max(1, min(fit, PER_NODE_MAX)))


def _number(text: str, argument: str, place: int) -> int:
    if not _DIGITS.fullmatch(argument):
        raise _wrong(text, f"{shown(argument)} is not a {_PARTS[place]}" if argument else f"it has no {_PARTS[place]}")
    number = numbers.whole(argument, _LIMITS[place])
    if not number:
        raise _wrong(text, f"the {_PARTS[place]} is 1 to {_LIMITS[place]}, not {shown(argument)}")
    return number


def _wrong(text: str, why: str) -> UsageError:
    return UsageError(f"the triple {shown(text, _LONGEST) or repr(text)}: {why}; write {FORM}")


# ---- One node ----


def lay_out(
    per_node: int, threads: int | None, cores: Sequence[Core], gpu_numa: Sequence[int | None]
) -> tuple[ProcessPlace, ...]:
    """Return the places of `per_node` processes on `cores` (at least one, in the machine's order) and GPUs.

    `gpu_numa`: the NUMA node of each GPU. Process i has GPU i mod G and one block of consecutive cores. The blocks
    together contain all cores, even if the processes have fewer threads. If there are more processes than cores, each
    has one core, in turn.

    The blocks are cut within each NUMA node for the processes of its GPUs, if no core then has more processes than with
    plain blocks and no core is idle. Otherwise plain blocks are given to the nearest processes.
    """
    gpus = len(gpu_numa)
    blocks = _blocks_near_gpus(per_node, cores, gpu_numa)
    each = max(1, len(cores) // per_node) if threads is None else threads
    return tuple(
        ProcessPlace(
            local, local % gpus if gpus else None, tuple(sorted(cpu for core in block for cpu in core.cpus)), each
        )
        for local, block in enumerate(blocks)
    )


def _blocks_near_gpus(per_node: int, cores: Sequence[Core], gpu_numa: Sequence[int | None]) -> list[Sequence[Core]]:
    of_node: dict[int, list[Core]] = {}
    for core in cores:
        of_node.setdefault(core.numa, []).append(core)
    if len(of_node) == 1 or not gpu_numa:
        return _blocks(cores, per_node)
    homes = [gpu_numa[local % len(gpu_numa)] for local in range(per_node)]
    wanted = Counter(homes)
    crowd = math.ceil(per_node / len(cores))
    if set(wanted) == set(of_node) and all(math.ceil(wanted[home] / len(of_node[home])) <= crowd for home in of_node):
        dealt = {home: iter(_blocks(of_node[home], wanted[home])) for home in of_node}
        return [next(dealt[home]) for home in homes if home is not None]
    if per_node > len(cores):
        return _blocks(cores, per_node)
    return _nearest(_blocks(cores, per_node), homes, cores)


def _blocks(cores: Sequence[Core], count: int) -> list[Sequence[Core]]:
    """Return blocks at LLSC's int(linspace(0, cores, count + 1)); if count > cores, one core each in turn."""
    size = len(cores)
    if count > size:
        return [cores[position % size : position % size + 1] for position in range(count)]
    return [cores[position * size // count : (position + 1) * size // count] for position in range(count)]


def _nearest(blocks: list[Sequence[Core]], homes: Sequence[int | None], cores: Sequence[Core]) -> list[Sequence[Core]]:
    """Return the blocks ordered so that each process has one near its GPU.

    First each process takes the first free block on the NUMA node of its GPU, then one on the same socket, then any.
    """
    socket_of = {core.numa: core.socket for core in cores}
    tests: tuple[Callable[[Sequence[Core], int | None], bool], ...] = (
        lambda block, home: _most(core.numa for core in block) == home,
        lambda block, home: home in socket_of and _most(core.socket for core in block) == socket_of[home],
        lambda block, home: True,
    )
    left, taken = dict(enumerate(blocks)), dict[int, Sequence[Core]]()
    for is_near in tests:
        for local, home in enumerate(homes):
            if local not in taken:
                found = next((number for number, block in left.items() if is_near(block, home)), None)
                if found is not None:
                    taken[local] = left.pop(found)
    return [taken[local] for local in range(len(homes))]


def _most(numbers: Iterable[int]) -> int:
    return Counter(numbers).most_common(1)[0][0]


def notes(nodes: int, per_node: int, threads: int | None, cores: int) -> tuple[str, ...]:
    """Return LLSC's warnings, with a triple that fits a node with `cores` cores; empty if the triple fits."""
    if threads is None and per_node <= cores:
        return ()
    each = 1 if threads is None else threads
    fits = Triple(nodes, min(per_node, cores), max(1, cores // per_node))
    what = f"{counted(per_node, 'process')} x {counted(each, 'thread')} = {per_node * each}"
    if per_node * each > cores:
        return (f"Oversubscribing the node: {what} on {counted(cores, 'core')}; {fits} would fit",)
    if per_node * each == cores:
        return ()
    if fits.threads == each:
        # More threads do not fit: take the next number of processes that divides the number of cores.
        even = next(count for count in range(per_node, cores + 1) if cores % count == 0)
        fits = Triple(nodes, even, cores // even)
    used = fits.per_node * (fits.threads or 1)
    return (f"Underutilizing the node: {what} of {counted(cores, 'core')}; {fits} would use {used}",)


# ---- A job without a triple ----


def ranks_of(task_counts: str, index: int) -> tuple[int, int]:
    """Return (first rank, number of ranks) of the node with number `index`.

    `task_counts`: SLURM_TASKS_PER_NODE, such as `2(x3),1`. Raises ValueError for another form, or if the node is not in
    it.
    """
    first, node = 0, 0
    for part in task_counts.split(","):
        match = _TASK_COUNT.fullmatch(part)
        if match is None:
            raise ValueError(f"not a list of tasks per node: {shown(task_counts)}")
        count, times = int(match[1]), int(match[2] or 1)
        if index < node + times:
            return first + (index - node) * count, count
        first, node = first + count * times, node + times
    raise ValueError(f"{shown(task_counts)} does not contain node {index}")
