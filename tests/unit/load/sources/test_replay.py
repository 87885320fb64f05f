"""A recording in the place of a cluster."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_share.core.errors import StateError
from slurm_share.load import recording
from slurm_share.load.output import notes
from slurm_share.load.snapshot import Survey
from slurm_share.load.sources.demo import Demo
from slurm_share.load.sources.replay import Replay


@pytest.fixture
def path(tmp_path):
    """Three surveys, of 10, 20 and 30 s."""
    path = tmp_path / "day.jsonl"
    writer = recording.RecordingWriter(path)
    for taken in (10.0, 20.0, 30.0):
        writer.write(Survey(taken=taken, user="alice", source="srun", nodes=(), notes=("kept",)))
    writer.close()
    return path


def test_one_survey_after_another(path):
    replay = Replay(path)
    looked = [replay.read(), replay.read()]
    assert [one.taken for one in looked] == [10.0, 20.0]
    assert looked[1].source == "replay"
    assert looked[1].notes == ("kept", "recorded from srun: survey 2 of 3")
    assert not replay.is_over
    assert replay.read().taken == 30.0
    assert replay.is_over
    assert replay.read().taken == 30.0
    replay.close()


@pytest.mark.parametrize(("to", "taken"), [(0, 10.0), (10, 10.0), (19.9, 10.0), (20, 20.0), (99, 30.0)])
def test_seeking_finds_the_newest_that_is_not_younger(path, to, taken):
    replay = Replay(path)
    replay.seek(to)
    assert replay.read().taken == taken
    replay.close()


def test_steps_stop_at_both_ends(path):
    replay = Replay(path)
    replay.step(5)
    assert replay.read().taken == 30.0
    replay.step(-2)
    assert replay.read().taken == 20.0
    replay.step(-50)
    assert (replay.position, replay.first, replay.last) == (0, 10.0, 30.0)
    replay.close()


def test_lines_that_were_left_out_are_said(path):
    path.write_bytes(path.read_bytes() + b"half a li")
    replay = Replay(path)
    assert "day.jsonl has 1 line that is none, left out" in replay.read().notes
    replay.close()


def test_what_a_shorter_file_has_lost_is_said(path):
    writer = recording.RecordingWriter(path)
    for taken in (40.0, 50.0):  # more than a reader has in memory
        writer.write(Survey(taken=taken, user="alice", source="srun", nodes=(), notes=("x" * 300_000,)))
    writer.close()
    replay = Replay(path)
    replay.seek(40.0)
    path.write_bytes(b"")
    assert replay.read().notes[-1] == "day.jsonl has become shorter: 1 survey of it cannot be read any more"
    assert replay.is_over
    replay.seek(0.0)
    with pytest.raises(StateError, match="has become shorter: 5 surveys of it cannot be read any more"):
        replay.read()
    replay.close()


def test_a_recording_of_a_demonstration_without_a_node_is_one_still(tmp_path):
    writer = recording.RecordingWriter(tmp_path / "demo.jsonl")
    writer.write(replace(Demo().read(), nodes=()))
    writer.close()
    replay = Replay(tmp_path / "demo.jsonl")
    assert notes.banner(replay.read()) == notes.DEMO
    replay.close()


def test_a_file_without_a_survey_is_a_sentence(tmp_path):
    (tmp_path / "a").write_bytes(b"")
    (tmp_path / "b").write_bytes(b"x\ny\n")
    with pytest.raises(StateError, match=r"holds no survey$"):
        Replay(tmp_path / "a")
    with pytest.raises(StateError, match="holds no survey and 2 lines that are none"):
        Replay(tmp_path / "b")


BAD = b'{"taken": %s, "schema": 1, "user": "alice", "source": "of tomorrow", "nodes": [1]}\n'
"""Its head is a survey's, and the rest is not."""


@pytest.mark.parametrize(("at", "times"), [(0, [10.0, 20.0, 30.0]), (15, [10.0, 20.0, 30.0]), (99, [10.0, 20.0, 30.0])])
def test_a_bad_line_is_left_out_when_it_is_its_turn(path, at, times):
    """At the beginning, in the middle, at the end: the others come once each, and then it is over."""
    path.write_bytes(path.read_bytes() + BAD % str(at).encode())
    replay = Replay(path)
    looked = []
    while not replay.is_over and len(looked) < 9:
        looked.append(replay.read())
    assert [one.taken for one in looked] == times
    assert "day.jsonl has 1 line that is none, left out" in looked[-1].notes
    replay.seek(at)
    assert replay.read().taken == max([time for time in times if time <= at], default=10.0)
    replay.close()


def test_seeking_passes_over_a_bad_line(path):
    path.write_bytes(path.read_bytes() + BAD % b"25" + BAD % b"40")
    replay = Replay(path)
    replay.seek(26.0)
    assert replay.read().taken == 20.0
    replay.seek(replay.last)
    assert replay.read().taken == 30.0
    replay.close()


def test_a_file_of_bad_lines_alone_is_a_sentence(tmp_path):
    (tmp_path / "a").write_bytes(BAD % b"1" + BAD % b"2")
    replay = Replay(tmp_path / "a")
    with pytest.raises(StateError, match="holds no survey and 2 lines that are none"):
        replay.read()
    replay.close()
