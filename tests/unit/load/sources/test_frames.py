"""Messages in short lines: whole again, or dropped and counted; never mixed."""

from __future__ import annotations

import itertools
import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.load.sources import frames

MESSAGES = st.one_of(
    st.binary(max_size=8000),
    # Nothing that zlib could make smaller.
    st.integers(0, 20_000).map(lambda count: random.Random(count).randbytes(count)),
    st.text(max_size=4000).map(str.encode),
)
NODES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-._", min_size=1, max_size=60)
NOISE = st.text(st.characters(blacklist_characters="\n"), max_size=80).filter(lambda text: "@slurm-share" not in text)


def joined(lines, joiner=None):
    joiner = joiner or frames.Joiner()
    return [found for line in lines if (found := joiner.feed(line)) is not None]


@given(MESSAGES, NODES)
def test_what_goes_in_comes_out(data, node):
    joiner = frames.Joiner()
    lines = list(frames.split(data, node))
    assert joined(lines, joiner) == [(node, data)]
    assert (joiner.lost, joiner.noise) == (0, 0)


def test_a_message_with_a_line_of_ours_in_it_comes_out_as_it_is():
    """Any user can name a process so, and the message of its node would be another one, or be lost."""
    [forged] = frames.split(b"forged", "n2")
    assert joined(frames.split(forged.encode(), "n1")) == [("n1", forged.encode())]


@given(MESSAGES, NODES)
def test_no_line_is_longer_than_slurmstepd_takes(data, node):
    lines = list(frames.split(data, node))
    assert max(len(line.encode()) for line in lines) < frames.LINE_BYTES
    assert not any(set(line) & set("\r\n") or not line.isascii() for line in lines)


@given(st.lists(st.tuples(st.sampled_from(["n1", "n2", "n3"]), MESSAGES), max_size=6), NOISE, st.randoms())
def test_lines_of_several_nodes_may_follow_one_another_in_any_order(messages, noise, chance):
    """Each node's own lines keep their order; what stands between them and before them does not matter."""
    by_node = {node: [data for name, data in messages if name == node] for node in ("n1", "n2", "n3")}
    lines = {node: [line for data in sent for line in frames.split(data, node)] for node, sent in by_node.items()}
    mixed = []
    while any(lines.values()):
        node = chance.choice([name for name, left in lines.items() if left])
        line = lines[node].pop(0)
        mixed += chance.choice([[line], [noise, line], [noise + line]])
    joiner = frames.Joiner()
    found = joined(mixed, joiner)
    assert {node: [data for name, data in found if name == node] for node in by_node} == by_node
    assert joiner.lost == 0


@given(MESSAGES, MESSAGES, st.data())
def test_a_missing_line_costs_its_own_message_only(first, second, data):
    lines = list(frames.split(first, "n1"))
    lines.pop(data.draw(st.integers(0, len(lines) - 1)))
    joiner = frames.Joiner()
    found = joined([*lines, *frames.split(second, "n1")], joiner)
    assert found == [("n1", second)]
    assert joiner.lost == (1 if lines and first != second else 0)


@given(MESSAGES, st.data())
def test_a_damaged_line_is_never_believed(message, data):
    lines = list(frames.split(message, "n1"))
    number = data.draw(st.integers(0, len(lines) - 1))
    line = lines[number]
    place = data.draw(st.integers(0, len(line) - 1))
    other = data.draw(st.characters(codec="ascii", exclude_characters="\n"))
    lines[number] = data.draw(
        st.sampled_from([line[:place] + other + line[place + 1 :], line[:place], line[:place] + other + line[place:]])
    )
    assert joined(lines) in ([], [("n1", message)])


def test_two_torn_halves_make_no_whole():
    ours = list(frames.split(os.urandom(3000), "n1"))
    theirs = list(frames.split(os.urandom(3000), "n2"))
    joiner = frames.Joiner()
    mixed = [ours[0][:400] + theirs[0], *(line[400:] for line in ours[:1]), *ours[1:], *theirs[1:]]
    assert [node for node, _ in joined(mixed, joiner)] == ["n2"]
    assert joiner.noise == 1


@pytest.mark.parametrize("node", ["", "a b", "n\n1", "knöten", "x" * 256])
def test_names_that_would_tear_a_line_are_refused(node):
    with pytest.raises(ValueError):
        list(frames.split(b"", node))


def test_a_small_line_cannot_ask_for_a_large_memory(monkeypatch):
    bomb = list(frames.split(b"\0" * (1 << 20), "n1"))
    assert len(bomb) == 2
    monkeypatch.setattr(frames, "MESSAGE_BYTES", 1000)
    joiner = frames.Joiner()
    assert joined(bomb, joiner) == []
    assert joiner.lost


def test_noise_is_counted():
    joiner = frames.Joiner()
    lines = ["Welcome to n1!", "", "srun: job 5 queued"]
    assert joined(itertools.chain(lines, frames.split(b"{}", "n1")), joiner) == [("n1", b"{}")]
    assert joiner.noise == 3


def test_a_message_without_end_is_dropped(monkeypatch):
    lines = list(frames.split(bytes(range(32, 127)) * 40, "n1"))
    monkeypatch.setattr(frames, "MESSAGE_BYTES", 500)
    joiner = frames.Joiner()
    assert [joiner.feed(line) for line in lines] == [None] * len(lines)
    assert joiner.lost > 0


def test_names_of_other_nodes_are_noise_and_are_not_kept():
    joiner = frames.Joiner(("n1",))
    for number in range(50):
        assert joiner.feed(next(iter(frames.split(b"x" * 5000 + os.urandom(50), f"other{number}")))) is None
    assert (joiner.noise, joiner.lost, len(joiner._begun)) == (50, 0, 0)
    (whole,) = frames.split(b"hello", "n1")
    assert joiner.feed(whole) == ("n1", b"hello")
