from __future__ import annotations

from msgspec.structs import replace
from packing_values import is_replayable

from slurm_share.packing import journal
from slurm_share.packing.simulator import policies, traces
from slurm_share.packing.simulator.records import Assumptions
from slurm_share.packing.simulator.world import World


def test_a_journal_of_a_whole_simulation_gives_the_same_decisions_byte_for_byte(tmp_path):
    world = World(traces.sweep(3), policies.parse("booked"), Assumptions(), 3)
    notes = journal.Journal(tmp_path, "1", 1e9)
    world.watch(notes.note)
    world.run()
    notes.close()
    entries = list(journal.read_journal((tmp_path / journal.DECISIONS).read_bytes()))
    assert sum(len(entry.actions) for entry in entries) > 60
    assert is_replayable(entries)
    at = next(number for number, entry in enumerate(entries) if number > 3 and entry.actions)
    entries[at] = replace(entries[at], actions=(replace(entries[at].actions[0], why="another"),))
    assert not is_replayable(entries)
