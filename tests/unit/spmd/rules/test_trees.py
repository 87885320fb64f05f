"""Trees, chains and rounds reach every rank once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.spmd.rules import trees
from slurm_share.spmd.transport import NodePlace

rank_lists = st.lists(st.integers(0, 500), min_size=1, max_size=70, unique=True)


NODES = (NodePlace("n1", 0, 3), NodePlace("n2", 3, 1), NodePlace("n3", 4, 4))


@given(rank_lists, st.data())
def test_a_tree_reaches_every_rank_from_its_parent(ranks: list[int], data: st.DataObject) -> None:
    root = data.draw(st.sampled_from(ranks))
    star_up_to = data.draw(st.sampled_from([0, 16, 1000]))
    branches = {rank: trees.fan(ranks, root, rank, star_up_to) for rank in ranks}
    children = [child for branch in branches.values() for child in branch.children]
    assert sorted([root, *children]) == sorted(ranks)
    assert branches[root].parent is None
    for rank, branch in branches.items():
        assert all(branches[child].parent == rank for child in branch.children)


@given(st.integers(1, 300))
def test_a_binomial_tree_is_as_deep_as_the_number_has_bits(count: int) -> None:
    ranks = range(count)
    for rank in (0, count // 2, count - 1):
        depth, at = 0, rank
        while (parent := trees.binomial(ranks, 0, at).parent) is not None:
            depth, at = depth + 1, parent
        assert depth <= count.bit_length()
    assert len(trees.binomial(ranks, 0, 0).children) == (count - 1).bit_length()


@given(rank_lists)
def test_values_go_up_in_the_order_of_ranks(ranks: list[int]) -> None:
    def up(rank: int, star_up_to: int) -> list[int]:
        branch = trees.fan(ranks, ranks[0], rank, star_up_to)
        return [rank, *(value for child in reversed(branch.children) for value in up(child, star_up_to))]

    assert up(ranks[0], 0) == ranks
    assert up(ranks[0], 1000) == ranks


@given(st.integers(1, 70), st.sampled_from([0, 16, 1000]))
def test_merges_are_those_of_the_tree(count: int, star_up_to: int) -> None:
    def up(rank: int) -> str:
        value = str(rank)
        for child in reversed(trees.fan(range(count), 0, rank, star_up_to).children):
            value = f"({value}+{up(child)})"
        return value

    values = [str(rank) for rank in range(count)]
    for into, other in trees.merges(count, star_up_to):
        values[into] = f"({values[into]}+{values[other]})"
    assert values[0] == up(0)


@given(rank_lists, st.data())
def test_a_chain_is_one_row(ranks: list[int], data: st.DataObject) -> None:
    root = data.draw(st.sampled_from(ranks))
    row, at = [], root
    while at is not None:
        before, after = trees.chain(ranks, root, at)
        assert before == (row[-1] if row else None)
        row.append(at)
        at = after
    assert sorted(row) == sorted(ranks)


@given(rank_lists)
def test_after_dissemination_all_have_heard_of_all(ranks: list[int]) -> None:
    rounds = {rank: trees.dissemination(ranks, rank) for rank in ranks}
    heard = {rank: {rank} for rank in ranks}
    for number in range((len(ranks) - 1).bit_length()):
        for rank in ranks:
            to, source = rounds[rank][number]
            assert rounds[to][number][1] == rank
            assert rounds[source][number][0] == rank
        heard = {rank: heard[rank] | heard[rounds[rank][number][1]] for rank in ranks}
    assert all(known == set(ranks) for known in heard.values())
    assert all(len(of_rank) == (len(ranks) - 1).bit_length() for of_rank in rounds.values())


def test_speakers_and_nodes() -> None:
    assert trees.leaders(NODES) == (0, 3, 4)
    assert trees.leaders(NODES, 6) == (0, 3, 6)
    assert [trees.node_of(NODES, rank) for rank in range(8)] == [0, 0, 0, 1, 2, 2, 2, 2]
    with pytest.raises(LookupError, match="rank 8"):
        trees.node_of(NODES, 8)


def test_rotated() -> None:
    assert trees.rotated(4, 2) == (3, 0, 1)
    assert trees.rotated(1, 0) == ()


@given(st.integers(0, 1000), st.integers(1, 50))
def test_pieces_and_shares_cover_everything_once(size: int, number: int) -> None:
    pieces = trees.pieces(size, number)
    assert [index for start, stop in pieces for index in range(start, stop)] == list(range(size))
    assert all(stop - start <= number for start, stop in pieces)
    shares = [trees.equal_part(size, number, part) for part in range(number)]
    assert [index for start, stop in shares for index in range(start, stop)] == list(range(size))
    lengths = [stop - start for start, stop in shares]
    assert max(lengths) - min(lengths) <= 1
