"""Random nested communicators and calls on them in a random order, compared with a model. Every rank has the model."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

_MOST = 12


def run_nested(comm: Any, seed: int, steps: int) -> int:
    """Run the calls and compare each result; return how many there were on this rank.

    Every step chooses one set of disjoint communicators, and all its members make the same call. The ranks of one step
    do not wait for the others, so the calls of parts come in any order.
    """
    choice = random.Random(seed)
    me = comm.rank
    families: list[dict[tuple[int, ...], Any]] = [{tuple(range(comm.size)): comm}]
    done = 0
    for step in range(steps):
        family = choice.choice(families)
        kind = choice.randrange(10)
        new: dict[tuple[int, ...], Any] = {}
        for ranks, one in family.items():
            draw = random.Random(choice.random())
            call = _made if kind < 3 else _computed
            told = call(one, ranks, draw, step) if me in ranks else (call(None, ranks, draw, step))
            done += me in ranks
            new.update({} if told is None else told)
        if new:
            families.append(new)
            if len(families) > _MOST:
                families.pop(choice.randrange(1, len(families)))
    return done


def _made(one: Any, ranks: tuple[int, ...], draw: random.Random, step: int) -> dict[tuple[int, ...], Any]:
    """Make new communicators from one; return them by their ranks in the run, None where this rank is not in it."""
    colors = [draw.randrange(3) for _ in ranks]
    keys = [draw.randrange(-2, 3) for _ in ranks]
    how = draw.randrange(4)
    parts: dict[int, list[int]] = {}
    if how == 0:
        made = one.Dup() if one else None
        return {ranks: made}
    if how == 1:
        chosen = draw.sample(range(len(ranks)), draw.randint(1, len(ranks)))
        made = None
        if one:
            group = one.Get_group().Incl(chosen)
            made = one.Create(group) if step % 2 else one.Create_group(group, step)
            assert bool(made) == (one.rank in chosen)
        found = tuple(ranks[place] for place in chosen)
        _check_order(made, found)
        return {found: made}
    for place in sorted(range(len(ranks)), key=lambda place: (keys[place], place)):
        parts.setdefault(colors[place], []).append(ranks[place])
    made = one.Split(colors[one.rank], keys[one.rank]) if one else None
    result: dict[tuple[int, ...], Any] = {}
    for color, members in parts.items():
        is_mine = one is not None and color == colors[one.rank]
        result[tuple(members)] = made if is_mine else None
        if is_mine:
            _check_order(made, tuple(members))
    return result


def _check_order(made: Any, ranks: tuple[int, ...]) -> None:
    if made:
        assert tuple(made.group.members) == ranks


def _computed(one: Any, ranks: tuple[int, ...], draw: random.Random, step: int) -> None:
    """Make one call with values that all ranks can compute, and compare the result."""
    kind, root, size = draw.randrange(9), draw.randrange(len(ranks)), draw.choice((1, 50, 40_000))
    if not one:
        return
    rank, count = one.rank, len(ranks)
    values = [(step, member) for member in ranks]
    arrays = [np.arange(size) * (member + 1) for member in ranks]
    if kind == 0:
        one.barrier()
    elif kind == 1:
        assert one.bcast(values[root] if rank == root else None, root) == values[root]
    elif kind == 2:
        assert one.allgather(values[rank]) == values
    elif kind == 3:
        assert one.gather(values[rank], root) == (values if rank == root else None)
    elif kind == 4:
        room = np.empty(size, int)
        one.Allreduce(arrays[rank], room)
        assert np.array_equal(room, sum(arrays))
    elif kind == 5:
        room = arrays[rank].copy()
        one.Bcast(room, root)
        assert np.array_equal(room, arrays[root])
    elif kind == 6:
        to, source = (rank + 1) % count, (rank - 1) % count
        assert one.sendrecv(values[rank], to, step, None, source, step) == values[source]
    elif kind == 7:
        assert one.alltoall([(rank, other) for other in range(count)]) == [(other, rank) for other in range(count)]
    else:
        assert one.allreduce(ranks[rank]) == sum(ranks)
