"""A journal is decided again."""

from __future__ import annotations

from msgspec.structs import replace

from slurm_share.packing import journal
from slurm_share.packing.simulator import policies, traces
from slurm_share.packing.simulator.records import Assumptions
from slurm_share.packing.simulator.replay import replay
from slurm_share.packing.simulator.world import World


def played(tmp_path, seed):
    """Play a sweep, and return its decisions as they were written to the file and read from it again."""
    world = World(traces.sweep(seed), policies.parse("booked"), Assumptions(), seed)
    notes = journal.Journal(tmp_path, "1", 1e9)
    world.watch(notes.note)
    world.run()
    notes.close()
    return list(journal.read_journal((tmp_path / journal.DECISIONS).read_bytes()))


def test_a_journal_gives_the_same_decisions_byte_for_byte(tmp_path):
    """Of a whole simulation, through the file."""
    entries = played(tmp_path, 3)
    assert sum(len(entry.actions) for entry in entries) > 60
    assert replay(entries) is None
    assert replay([]) is None


def test_the_first_decision_that_differs_is_named(tmp_path):
    """With its time, then and now."""
    entries = played(tmp_path, 4)
    at = next(number for number, entry in enumerate(entries) if number > 3 and entry.actions)
    other = (replace(entries[at].actions[0], why="another"), *entries[at].actions[1:])
    entries[at] = replace(entries[at], actions=other)
    found = replay(entries)
    assert found is not None
    assert (found.index, found.then) == (at, other)
    assert str(found).startswith(f"decision {at}, at {found.view.now_s:.1f} s: then [")
