"""The feed process: when it reads surveys, what it sends, which commands it follows, and how it ends."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections import defaultdict
from itertools import pairwise

import msgspec
import pytest
from dashboards import NOW, a_survey
from msgspec.structs import replace
from slurm_share_tui import feed_process, wire
from slurm_share_tui.feed_process import CommandReader, RecordedReader, Watch
from slurm_share_tui.picture import put_together
from slurm_share_tui.wire import (
    FeedFailure,
    PauseFeed,
    Position,
    ReadNow,
    ReadRecorded,
    RecordedPoints,
    Seek,
    SetInterval,
    SetSpeed,
    ShowDetails,
    StepReplay,
    Subject,
    SurveyBegin,
    SurveyEnd,
    SurveyPart,
)

from slurm_share.core.errors import CommandError, SlurmShareError, UsageError
from slurm_share.load import recording
from slurm_share.load.rules.idle import judged
from slurm_share.load.snapshot import Means
from slurm_share.load.sources.origin import Origin


class ReplaySource:
    """A source of surveys or errors, one every 5 s, the last one again and again."""

    position = None
    file = None
    details = True

    def __init__(self, *looks, costs_s=0.0):
        self.looks, self.told, self.closed, self.count, self.costs_s = list(looks), [], 0, 0, costs_s
        self.desk: Desk | None = None

    def read(self, timeout_s):
        self.count += 1
        self.desk.now += self.costs_s
        one = self.looks[min(self.count, len(self.looks)) - 1]
        if isinstance(one, Exception):
            raise one
        return one

    def obey(self, told):
        self.told.append(told)
        return isinstance(told, StepReplay)

    def earlier(self):
        return ()

    def pause_s(self, took_s):
        return max(5.0, 3 * took_s)

    def close(self):
        self.closed += 1


class Desk(CommandReader):
    """Gives commands at their times on a fake clock, and keeps the messages."""

    def __init__(self, source, *orders, until=12.0):
        """`take`: pairs of time and command."""
        super().__init__()
        self.source, self.script, self.until = source, sorted(orders, key=lambda one: one[0]), until
        source.desk = self
        self.now = 0.0
        self.said = []

    def take(self, timeout_s):
        until = self.until if timeout_s is None else min(self.until, self.now + timeout_s)
        if self.script and self.script[0][0] <= until:
            self.now = max(self.now, self.script[0][0])
            return [self.script.pop(0)[1]]
        self.now = until
        self.is_over = self.now >= self.until
        return []

    def say(self, message):
        self.said.append((self.now, message))

    def run(self):
        """Return the messages."""
        Watch(self, self.say, lambda: self.source, clock=lambda: self.now).run()
        return self.said

    def times(self, kind=SurveyEnd):
        """Return the times of a message."""
        return [at for at, one in self.run() if isinstance(one, kind)]


@pytest.mark.parametrize("count", [0, 1, 12, 300])
def test_a_look_arrives_whole(count):
    survey = a_survey(count=count)
    messages = [one for _, one in Desk(ReplaySource(survey), until=1.0).run()]
    begin, *parts, end = [wire.decode_message(wire.encode(one)) for one in messages]
    assert (type(begin), begin.nodes, type(end)) == (SurveyBegin, count, SurveyEnd)
    assert all(isinstance(part, SurveyPart) and len(part.rows) <= wire.PART_NODES for part in parts)
    picture = put_together(
        begin,
        tuple(row for part in parts for row in part.rows),
        tuple(one for part in parts for one in part.advice),
        jobs=tuple(job for part in parts for job in part.jobs),
        arrived=0.0,
        number=1,
    )
    assert picture.survey == judged(survey)
    assert len(picture.advice) == len(survey.jobs)


def test_it_looks_again_and_again():
    assert Desk(ReplaySource(a_survey())).times() == [0.0, 5.0, 10.0]


def test_a_slow_source_is_given_time():
    assert Desk(ReplaySource(a_survey(), costs_s=3.0)).times() == [3.0, 12.0]


def test_it_looks_when_it_is_told_to():
    assert Desk(ReplaySource(a_survey()), (2.0, ReadNow())).times() == [0.0, 2.0, 7.0]


def test_held_it_looks_only_when_told():
    desk = Desk(
        ReplaySource(a_survey()), (1.0, PauseFeed(True)), (8.0, ReadNow()), (30.0, PauseFeed(False)), until=36.0
    )
    assert desk.times() == [0.0, 8.0, 30.0, 35.0]


def test_what_concerns_the_scene_reaches_it():
    orders = (SetInterval(2.0), ShowDetails(True), Seek(3.0), SetSpeed(2.0))
    source = ReplaySource(a_survey())
    desk = Desk(source, (1.0, PauseFeed(True)), *((2.0, one) for one in orders), (3.0, StepReplay(1)))
    assert desk.times() == [0.0, 3.0]
    assert source.told == [*orders, StepReplay(1)]


def test_what_is_told_before_there_is_a_scene_is_not_lost():
    source = ReplaySource(a_survey())
    Desk(source, (0.0, ShowDetails(True)), (0.0, SetInterval(9.0)), until=1.0).run()
    assert source.told == [ShowDetails(True), SetInterval(9.0)]


def test_a_source_that_dies_and_returns():
    gone = SlurmShareError("Slurm does not answer")
    desk = Desk(ReplaySource(a_survey(), gone, gone, a_survey()), until=17.0)
    kinds = [type(one) for _, one in desk.run() if isinstance(one, SurveyEnd | FeedFailure)]
    assert kinds == [SurveyEnd, FeedFailure, FeedFailure, SurveyEnd]
    assert (5.0, FeedFailure("Slurm does not answer")) in desk.said


def test_what_cannot_be_as_asked_is_the_end():
    source = ReplaySource(UsageError("there is no node x"))
    assert Desk(source).run() == [(0.0, FeedFailure("there is no node x", is_over=True))]
    assert source.closed == 1
    desk = Desk(ReplaySource(a_survey(), UsageError("gone"), a_survey()))
    assert desk.times() == [0.0, 10.0]
    assert (5.0, FeedFailure("gone")) in desk.said


def test_without_slurm_it_says_what_there_is():
    error = CommandError(("squeue",), None, "no such file")
    error.__cause__ = FileNotFoundError()
    ((_, problem),) = Desk(ReplaySource(error)).run()
    assert problem.is_over
    assert "llload-tui --demo" in problem.why
    silent = CommandError(("squeue",), None, "no answer within 30 s")
    assert Desk(ReplaySource(silent, a_survey()), until=6.0).times() == [5.0]


def test_advice_that_cannot_be_given_costs_no_look(monkeypatch):
    def fail(_advisor, _survey):
        raise UsageError("n[1- is no list")

    monkeypatch.setattr(feed_process.Advisor, "__call__", fail)
    messages = [one for _, one in Desk(ReplaySource(a_survey()), until=1.0).run()]
    assert messages[0].survey.notes[-1] == "no advice: n[1- is no list"
    assert isinstance(messages[-1], SurveyEnd)


def test_the_advice_of_the_look_before_is_an_input_of_the_next():
    rng = random.Random(3)
    steady = a_survey()
    looks = [noisy(replace(steady, taken=steady.taken + 5 * location), rng) for location in range(60)]
    said = [one for _, one in Desk(ReplaySource(*looks), until=298.0).run()]
    found = defaultdict(list)
    for one in said:
        for advice in one.advice if isinstance(one, SurveyPart) else ():
            found[advice.job].append((advice.verdict, advice.next))
    assert len(found) > 5
    changes = {job: sum(one != last for last, one in pairwise(heard)) for job, heard in found.items()}
    assert {len(heard) for heard in found.values()} == {60}
    assert max(changes.values()) <= 1, changes


def noisy(survey, rng):
    """Return the survey with every GPU load changed by up to a tenth."""

    def off(means):
        return means and Means(
            *(min(100.0, m * rng.uniform(0.9, 1.1)) for m in (means.m1, means.m5, means.m15)), means.over_s
        )

    def node(one):
        if one.snapshot is None:
            return one
        gpus = tuple(
            replace(
                gpu,
                sm_percent_windows=off(gpu.sm_percent_windows),
                utilization_percent_windows=off(gpu.utilization_percent_windows),
            )
            for gpu in one.snapshot.gpus
        )
        return replace(one, snapshot=replace(one.snapshot, gpus=gpus))

    return replace(survey, nodes=tuple(map(node, survey.nodes)))


def test_nobody_listens_any_more():
    source = ReplaySource(a_survey())
    desk = Desk(source)
    desk.say = lambda _message: (_ for _ in ()).throw(BrokenPipeError)
    desk.run()
    assert (source.count, source.closed) == (1, 1)


def test_of_what_is_not_recorded_there_is_no_past():
    subject = Subject(node="v-1")
    desk = Desk(ReplaySource(a_survey()), (1.0, ReadRecorded(subject)), until=2.0)
    assert (1.0, RecordedPoints(subject, ())) in desk.run()


# --- What a recording has ---------------------------------------------------------------------------------------------


@pytest.fixture
def day(tmp_path):
    """A recording of ten surveys."""
    path = tmp_path / "day.jsonl.gz"
    writer = recording.RecordingWriter(path)
    for number in range(10):
        writer.write(a_survey(now=NOW + 60 * number))
    writer.close()
    return path


def read(file, *subjects):
    """Return the answers about these subjects, asked one after another."""
    said, came = [], threading.Event()

    def say(message):
        said.append(message)
        came.set()

    reader = RecordedReader(file, say)
    for subject in subjects:
        came.clear()
        reader.ask(subject)
        assert came.wait(60)
    reader.close()
    return said


def test_the_past_of_a_node_a_gpu_and_a_user(day):
    wanted = (
        Subject(node="v-1"),
        Subject(node="v-1", gpu="GPU-demo-v-1-0"),
        Subject(user="alice"),
        Subject(user="nobody"),
    )
    found = read(day, *wanted)
    assert tuple(one.subject for one in found) == wanted
    assert [[point.taken for point in one.points] for one in found] == [[NOW + 60 * at for at in range(10)]] * 4
    assert all(point.cpu_load_percent is not None for point in found[0].points)
    assert all(point.gpu_load_percent is not None and point.gpu_memory_percent is not None for point in found[1].points)
    assert all(point.memory_percent is not None for point in found[2].points)
    assert not any(point.cpu_load_percent or point.gpu_load_percent for point in found[3].points)


def test_of_a_long_recording_some_looks_are_read(day, monkeypatch):
    monkeypatch.setattr(feed_process, "POINTS_MOST", 4)
    ((_, points),) = [(one.subject, one.points) for one in read(day, Subject(node="v-1"))]
    assert [point.taken - NOW for point in points] == [0, 180, 360, 540]


# --- The real process -------------------------------------------------------------------------------------------------

PROGRAM = [sys.executable, "-I", "-m", "slurm_share_tui.feed_process"]
DEMO = Origin(user="alice", demo=True, interval_s=0.5)


def start(origin, **words):
    """Start the process with this origin."""
    child = subprocess.Popen(PROGRAM, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **words)
    child.stdin.write(msgspec.json.encode(origin) + b"\n")
    child.stdin.flush()
    return child


def arrived_picture(child):
    """Return its next messages up to the end of a survey or a failure."""
    found = []
    while not (found and isinstance(found[-1], SurveyEnd | FeedFailure)):
        line = child.stdout.readline()
        assert line, child.stderr.read()
        found.append(wire.decode_message(line))
    return found


def test_it_looks_for_whoever_is_at_the_other_end():
    with start(DEMO) as child:
        assert isinstance(arrived_picture(child)[0], SurveyBegin)
        child.stdin.write(
            b"\nno order\n" + wire.encode(PauseFeed(True)) + wire.encode(ReadRecorded(Subject(node="v-1")))
        )
        child.stdin.flush()
        while not isinstance(message := wire.decode_message(child.stdout.readline()), RecordedPoints):
            pass
        assert message.points == ()
        child.stdin.close()
        assert child.wait(60) == 0
        assert child.stderr.read() == b""


def test_it_ends_with_the_one_who_reads():
    with start(Origin(user="alice", demo=True, everybody=True, demo_nodes=900, interval_s=0.5)) as child:
        assert child.stdout.readline()
        child.stdout.close()
        assert child.wait(60) == 0


def test_it_ends_by_itself_where_the_reader_neither_reads_nor_goes():
    with start(Origin(user="alice", demo=True, everybody=True, demo_nodes=900, interval_s=0.5)) as child:
        assert child.stdout.readline()
        child.stdin.close()
        assert child.wait(60) == 0


def test_it_ends_where_there_is_nothing_to_look_at():
    with start(Origin(user="nobody-of-that-name", demo=True)) as child:
        (problem,) = arrived_picture(child)
        assert problem.is_over
        assert child.wait(60) == 0


def test_a_recording_is_played_there(day):
    with start(Origin(user="alice", replay=str(day), interval_s=5.0)) as child:
        assert arrived_picture(child)[0].position == Position(number=1, count=10, first=NOW, last=NOW + 540, speed=1.0)
        child.stdin.write(wire.encode(PauseFeed(True)) + wire.encode(StepReplay(4)))
        child.stdin.flush()
        assert arrived_picture(child)[0].position.number == 5


def test_a_library_that_prints_does_not_come_between(tmp_path):
    script = "import os; from slurm_share_tui import feed_process as f; real = f.open_feed_source\n"
    script += "def loud(*words):\n    os.write(1, b'hello'); print('world', flush=True); return real(*words)\n"
    script += "f.open_feed_source = loud; f.main()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        child.stdin.write(msgspec.json.encode(DEMO) + b"\n")
        child.stdin.flush()
        assert isinstance(arrived_picture(child)[-1], SurveyEnd)
        child.stdin.close()
        child.stdout.read()
        assert child.stderr.read() == b"helloworld\n"


def test_it_is_light():
    """The first picture waits for these imports."""
    code = "import sys, slurm_share_tui.feed_process, slurm_share_tui.feed; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"textual", "rich", "httpx", "asyncio", "pynvml", "argparse"} & set(loaded.split())


def test_an_order_that_is_none_is_passed_over():
    reading, writing = os.pipe()
    lines = [b"{torn", b'{"type": "Dance"}', b'{"type": "ReadNow", "more": ' + b"[" * 5000 + b"]" * 5000 + b"}"]
    with open(writing, "wb") as told:
        told.write(b"\n".join([*lines, wire.encode(PauseFeed(True))]))
    commands = CommandReader()
    commands.read(reading)
    os.close(reading)
    assert commands.take(0) == [PauseFeed(True)]
    assert commands.is_over
