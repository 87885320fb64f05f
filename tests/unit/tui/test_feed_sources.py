"""Sources of surveys: live with lines or details, and recordings."""

from __future__ import annotations

import dataclasses
import math

import pytest
from dashboards import NOW, a_survey
from msgspec.structs import replace
from slurm_share_tui import feed_sources
from slurm_share_tui.feed_sources import LiveSource, ReplaySource, lines_only, open_feed_source
from slurm_share_tui.wire import ReadNow, Seek, SetInterval, SetSpeed, ShowDetails, StepReplay

from slurm_share.core.errors import StateError, UsageError
from slurm_share.core.settings import Settings
from slurm_share.load import recording
from slurm_share.load.rules import figures
from slurm_share.load.snapshot import Survey
from slurm_share.load.sources.origin import Origin
from slurm_share.load.sources.survey_reader import SurveyReader


@dataclasses.dataclass
class Cluster:
    """Stands for open_survey_source: a cluster of this size, with a list of what was opened."""

    survey: Survey
    end_lookup: list = dataclasses.field(default_factory=list)
    closed: int = 0

    def __call__(self, origin, settings):
        self.end_lookup.append(origin.details)
        return self

    def read(self, timeout_s):
        return self.survey

    def close(self):
        self.closed += 1


def operator(cluster, **words):
    """Return the origin of an operator who sees everything."""
    return LiveSource(Origin(user="root", everybody=True, source="agents", **words), Settings(), cluster)


def test_a_small_cluster_is_seen_in_detail_at_once():
    live = operator(Cluster(a_survey()))
    assert not live.read(1.0).jobs
    assert not live.details
    assert live.pause_s(0.1) == 0.0
    assert live.read(1.0).jobs
    assert live.details
    assert live.pause_s(0.1) == Settings().agent_interval_s


def test_of_a_large_cluster_there_are_lines_until_more_is_wanted(monkeypatch):
    monkeypatch.setattr(feed_sources, "LARGE_NODES", 5)
    cluster = Cluster(a_survey())
    live = operator(cluster)
    live.read(1.0)
    assert live.pause_s(0.1) > 0.0
    assert live.obey(ShowDetails(True))
    assert live.read(1.0).jobs
    assert not live.obey(ShowDetails(True))
    assert not live.obey(ShowDetails(False))
    assert not live.read(1.0).jobs
    assert live.obey(ShowDetails(True))
    live.read(1.0)
    assert cluster.end_lookup == [False, True]
    live.close()
    assert cluster.closed == 2


@pytest.mark.parametrize(
    "origin",
    [
        Origin(user="alice"),
        Origin(user="root", everybody=True, nodes=("n1",), source="agents"),
        Origin(user="root", everybody=True, jobs=("7",), source="agents"),
        Origin(user="root", everybody=True, source="local"),
        Origin(user="alice", everybody=True, demo=True),
    ],
)
def test_what_cannot_be_large_is_seen_in_detail_from_the_start(origin):
    cluster = Cluster(a_survey())
    live = LiveSource(origin, Settings(), cluster)
    live.read(1.0)
    assert cluster.end_lookup == [True]
    assert live.details


def test_a_look_that_takes_long_is_taken_less_often():
    live = LiveSource(Origin(user="alice", interval_s=2.0), Settings(), Cluster(a_survey()))
    live.read(1.0)
    assert live.pause_s(0.1) == 2.0
    assert live.pause_s(4.0) == 12.0
    assert not live.obey(SetInterval(30.0))
    assert live.pause_s(4.0) == 30.0
    live.obey(SetInterval(0.0))
    assert live.pause_s(0.0) == feed_sources.LEAST_S
    live.obey(SetInterval(math.nan))
    assert live.pause_s(0.0) == feed_sources.LEAST_S


def test_who_looks_now_has_slurm_asked_as_well():
    class Predicate(SurveyReader):
        def __init__(self):
            self.count = 0

        def read(self, timeout_s):
            return a_survey()

        def ask_again(self):
            self.count += 1

    asked = Predicate()
    live = LiveSource(Origin(user="alice"), Settings(), lambda origin, settings: asked)
    live.obey(ReadNow())
    live.read(1.0)
    assert asked.count == 0
    assert not live.obey(ReadNow())
    assert asked.count == 1


def test_lines_are_what_a_line_needs():
    survey = a_survey()
    bare = lines_only(survey)
    assert list(map(figures.figures, bare.nodes)) == [
        replace(one, gpu_load_over_s=figures.figures(node).gpu_load_over_s)
        for one, node in zip(map(figures.figures, survey.nodes), bare.nodes, strict=True)
    ]
    assert not bare.jobs
    seen = [node.snapshot for node in bare.nodes if node.snapshot is not None]
    assert seen
    assert not any((one.gpus, one.processes, one.jobs, one.users) != ((), (), (), ()) for one in seen)
    assert lines_only(bare) == bare


# --- Recordings -------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    """A recording with surveys at 0, 4, 8, 100 and 104 s after NOW."""
    path = tmp_path / "day.jsonl"
    writer = recording.RecordingWriter(path)
    for after in (0, 4, 8, 100, 104):
        writer.write(a_survey(now=NOW + after))
    writer.close()
    return path


def played(file, **words):
    """Return the recording as a source."""
    source = open_feed_source(Origin(user="alice", replay=str(file), interval_s=5.0, **words), Settings())
    assert isinstance(source, ReplaySource)
    return source


def seen(source):
    """Return the time of the next survey, seconds after NOW, and its number."""
    taken = source.read(1.0).taken
    return taken - NOW, source.position.number


def test_a_recording_is_played_as_it_was_taken_and_long_gaps_are_shortened(file):
    source = played(file)
    pauses = []
    for expected in ((0, 1), (4, 2), (8, 3), (100, 4), (104, 5)):
        assert seen(source) == expected
        pauses.append(source.pause_s(0.0))
    assert pauses == [4.0, 4.0, 10.0, 4.0, None]
    assert source.position.is_over
    assert (source.position.count, source.position.first, source.position.last) == (5, NOW, NOW + 104)
    source.close()


def test_it_goes_faster_and_slower(file):
    source = played(file)
    seen(source)
    assert seen(source) == (4, 2)
    assert source.obey(SetSpeed(2.0))
    assert seen(source) == (4, 2)
    assert source.position.speed == 2.0
    assert source.pause_s(0.0) == 2.0
    source.obey(SetSpeed(1e9))
    seen(source)
    assert source.position.speed == feed_sources.SPEEDS[1]
    assert not source.obey(SetSpeed(math.nan))
    assert not source.obey(SetSpeed(-1.0))
    source.close()


def test_played_fast_it_leaves_out_what_would_be_a_flicker(file):
    source = played(file)
    seen(source)
    source.obey(SetSpeed(100.0))
    assert seen(source) == (0, 1)
    assert source.pause_s(0.0) >= feed_sources.FRAME_S
    assert seen(source) == (104, 5)
    source.close()


def test_steps_and_jumps_begin_at_what_is_seen(file):
    source = played(file)
    seen(source)
    for count, expected in ((1, (4, 2)), (-1, (0, 1)), (2, (8, 3)), (-9, (0, 1)), (9, (104, 5)), (-1, (100, 4))):
        assert source.obey(StepReplay(count))
        assert seen(source) == expected
    assert source.obey(Seek(NOW + 50))
    assert seen(source) == (8, 3)
    source.obey(SetSpeed(100.0))
    seen(source)
    source.pause_s(0.0)
    assert source.obey(StepReplay(-1))
    assert seen(source) == (4, 2)
    assert not source.obey(Seek(math.inf))
    source.close()


def test_it_begins_where_it_was_asked_to(file):
    source = played(file, at=str(NOW + 9))
    assert seen(source) == (8, 3)
    source.close()


def test_of_a_recording_some_nodes_are_chosen(file):
    source = played(file, nodes=("v-1",))
    assert [node.name for node in source.read(1.0).nodes] == ["v-1"]
    source.close()
    source = played(file, nodes=("nope",))
    with pytest.raises(UsageError, match=r"no node nope in the recording; there are .*v-"):
        source.read(1.0)
    source.close()


def test_details_of_a_large_recording_are_there_when_wanted(file, monkeypatch):
    monkeypatch.setattr(feed_sources, "LARGE_NODES", 5)
    source = played(file)
    assert not source.read(1.0).jobs
    assert source.obey(ShowDetails(True))
    survey = source.read(1.0)
    assert (survey.taken, bool(survey.jobs), source.details) == (NOW, True, True)
    assert not source.obey(ShowDetails(True))
    source.close()


def test_a_file_that_is_no_recording_cannot_be_asked_for(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        played(tmp_path / "none")
    (tmp_path / "empty").touch()
    with pytest.raises(UsageError, match="holds no survey"):
        played(tmp_path / "empty")


def test_a_recording_that_is_cut_off_meanwhile(file):
    source = played(file)
    seen(source)
    file.write_text("")
    assert seen(source) == (4, 2)  # it had been read already
    with pytest.raises(StateError):
        source.read(1.0)
    source.close()


def test_a_demonstration_has_a_past_and_a_cluster_has_none():
    recorded = list(LiveSource(Origin(user="alice", demo=True), Settings()).earlier())
    assert len(recorded) == 30
    assert 570 < recorded[-1].taken - recorded[0].taken < 590
    assert list(LiveSource(Origin(user="alice", demo=True, demo_nodes=1000), Settings()).earlier()) == []
    assert list(operator(Cluster(a_survey())).earlier()) == []
