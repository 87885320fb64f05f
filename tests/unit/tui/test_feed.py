"""The dashboard's end of the feed: pictures arrive whatever the feed process does."""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import slurm_share_tui.feed
from dashboards import NOW, a_survey
from slurm_share_tui import wire
from slurm_share_tui.feed import Feed
from slurm_share_tui.picture import SurveyPicture
from slurm_share_tui.wire import (
    FeedFailure,
    PauseFeed,
    ReadRecorded,
    Seek,
    SetInterval,
    ShowDetails,
    StepReplay,
    Subject,
)

from slurm_share.core.errors import CommandError
from slurm_share.load import recording
from slurm_share.load.sources.origin import Origin

DEMO = Origin(user="alice", everybody=True, demo=True, interval_s=0.5)
ECHO = """
import json, sys
from slurm_share_tui import wire
from slurm_share.load.snapshot import Survey
def say(message):
    sys.stdout.buffer.write(wire.encode(message)); sys.stdout.buffer.flush()
def look(count=0, *notes):
    survey = Survey(taken=float(count), user="alice", source="demo", nodes=(), notes=notes)
    say(wire.SurveyBegin(survey=survey, nodes=0, took_s=0.1)); say(wire.SurveyEnd())
sys.stdin.readline()
"""
"""The program of a process that prints what a test wants."""


class App:
    """Receives messages and waits for them."""

    def __init__(self):
        self.messages = []
        self.came = threading.Condition()

    def post(self, message):
        with self.came:
            self.messages.append(message)
            self.came.notify()
        return True

    def wait(self, kind, is_it=lambda _: True):
        """Return the first message of this kind that fits."""
        with self.came:
            assert self.came.wait_for(lambda: any(isinstance(one, kind) and is_it(one) for one in self.messages), 600)
            return next(one for one in self.messages if isinstance(one, kind) and is_it(one))

    def forget(self):
        with self.came:
            self.messages.clear()


@pytest.fixture
def app():
    """An app without a screen."""
    return App()


@pytest.fixture
def feed(app, request):
    """Make feeds that post to the app, and close them."""
    made = []

    def make(origin=DEMO, script=None, attached=True, **words):
        if script is not None:
            words["program"] = [sys.executable, "-I", "-c", ECHO + script]
        one = Feed(origin, app.post if attached else None, pauses_s=words.pop("pauses_s", [0.01]), **words)
        made.append(one)
        one.start()
        return one

    yield make
    for one in made:
        one.close()


def soon(holds):
    """Return whether the condition holds within two minutes."""
    until = time.monotonic() + 120
    while not holds() and time.monotonic() < until:
        time.sleep(0.01)
    return holds()


def has_ended(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return True


def test_pictures_come_and_the_history_has_them_first(app, feed):
    one = feed()
    picture = app.wait(SurveyPicture)
    assert picture.number == 1
    recorded = one.history.points(Subject(node="v-1"), None)
    assert len(recorded) >= 30  # ten minutes that nobody was shown
    assert picture.nodes
    assert picture.survey.nodes == tuple(row.node for row in picture.nodes)
    assert len(picture.advice) == len(picture.survey.jobs) > 0
    assert picture.arrived <= time.monotonic()
    assert one.history.newest is not None
    assert one.history.newest >= picture.survey.taken
    assert app.wait(SurveyPicture, lambda picture: picture.number == 2)
    assert one.has_seen
    assert not one.failure


def test_what_came_before_there_was_an_app_is_kept(app, feed):
    one = feed(
        attached=False, script="look(1); look(2, 'newest'); say(wire.FeedFailure('then this', False)); sys.stdin.read()"
    )
    assert soon(lambda: len(one._kept) == 2)
    one.attach(app.post)
    assert [type(message) for message in app.messages] == [SurveyPicture, FeedFailure]
    assert app.messages[0].survey.notes == ("newest",)


@pytest.mark.parametrize("count", [1, pytest.param(10_000, marks=pytest.mark.weekly)])
def test_one_node_and_ten_thousand(app, feed, count):
    one = feed(Origin(user="alice", demo=True, everybody=True, demo_nodes=count, interval_s=1.0))
    picture = app.wait(SurveyPicture)
    assert len(picture.nodes) == count
    assert picture.details == (count == 1)
    one.tell(ShowDetails(True))
    picture = app.wait(SurveyPicture, lambda picture: picture.details)
    assert len(picture.nodes) == count


def test_a_process_that_is_killed_is_started_again(app, feed):
    one = feed()
    app.wait(SurveyPicture)
    one.tell(PauseFeed(True))
    pid = one._child.pid
    os.kill(pid, signal.SIGKILL)
    problem = app.wait(FeedFailure)
    assert "ended by signal 9" in problem.why
    assert "starts again" in problem.why
    assert not problem.is_over
    app.forget()
    assert app.wait(SurveyPicture)  # one, held as it is: a process that has just begun looks once
    assert one._child.pid != pid


def test_a_new_process_is_told_what_still_holds(app, feed):
    script = """
heard = []
look(0)
for line in sys.stdin:
    if line.strip(): heard.append(json.loads(line))
    if heard and heard[-1]["type"] == "ReadNow": sys.exit(3)
    look(len(heard), json.dumps(heard))
"""
    one = feed(script=script)
    app.wait(SurveyPicture)
    for told in (
        SetInterval(9.0),
        SetInterval(2.0),
        ShowDetails(True),
        StepReplay(3),
        ReadRecorded(Subject(node="n1")),
        wire.ReadNow(),
    ):
        one.tell(told)
    assert "ended with 3" in app.wait(FeedFailure).why
    app.forget()
    said = app.wait(SurveyPicture, lambda picture: picture.survey.taken == 3).survey.notes[0]
    every, details, recorded = json.loads(said)
    assert (every, details) == ({"type": "SetInterval", "seconds": 2.0}, {"type": "ShowDetails", "wanted": True})
    assert recorded == {"type": "ReadRecorded", "subject": {"node": "n1", "gpu": "", "user": "", "job": 0}}


def test_a_replay_goes_on_where_it_was(app, feed, tmp_path):
    writer = recording.RecordingWriter(tmp_path / "day.jsonl")
    for number in range(5):
        writer.write(a_survey(now=NOW + 60 * number))
    writer.close()
    one = feed(Origin(user="alice", replay=str(tmp_path / "day.jsonl"), interval_s=5.0))
    app.wait(SurveyPicture)
    one.tell(PauseFeed(True))
    one.tell(Seek(NOW + 70))
    app.wait(SurveyPicture, lambda picture: picture.position.number == 2)
    one.tell(StepReplay(2))
    app.wait(SurveyPicture, lambda picture: picture.position.number == 4)
    app.forget()
    os.kill(one._child.pid, signal.SIGKILL)
    app.wait(SurveyPicture, lambda picture: picture.position.number == 4)
    one.tell(ReadRecorded(Subject(node="v-1")))
    assert soon(lambda: one.history.has_recorded(Subject(node="v-1")))
    assert len(one.history.points(Subject(node="v-1"), None)) == 5


def test_one_that_never_comes_up_is_tried_less_and_less(app, feed):
    feed(script="print('\\x1b[31mwhy\\n', file=sys.stderr); sys.exit(7)", pauses_s=[0.01, 0.02, 0.03])
    for pause in ("0.01", "0.02", "0.03"):
        problem = app.wait(FeedFailure, lambda message, pause=pause: f"again in {pause} s" in message.why)
        assert "ended with 7" in problem.why
        assert "why" in problem.why
        assert "\x1b" not in problem.why


def test_what_cannot_be_as_asked_is_not_tried_again(app, feed):
    one = feed(Origin(user="nobody-of-that-name", demo=True))
    problem = app.wait(FeedFailure)
    assert problem.is_over
    assert "nobody-of-that-name" in problem.why
    assert one.failure == problem.why
    assert not one.has_seen
    one._reader.join(60)
    assert not one._reader.is_alive()


def test_a_look_that_breaks_off_is_none(app, feed):
    script = """
begin = wire.SurveyBegin(survey=Survey(taken=1.0, user="alice", source="demo", nodes=()), nodes=3, took_s=0.1)
say(begin); say(wire.SurveyEnd())
say(begin); sys.stdout.buffer.write(b"{torn" + bytes(range(128, 255)) + b"\\n")
say(wire.SurveyEnd()); say(begin)
look(2, "whole")
sys.stdin.read()
"""
    feed(script=script)
    picture = app.wait(SurveyPicture)
    assert picture.survey.notes == ("whole",)
    assert picture.number == 1
    assert [type(message) for message in app.messages] == [FeedFailure, SurveyPicture]
    assert "was not understood" in app.messages[0].why
    assert not app.messages[0].is_over


def test_one_that_does_not_read_what_it_is_told_is_replaced(app, feed, tmp_path):
    script = """
import os, time
if os.path.exists(FLAG): look(2, sys.stdin.readline()); sys.stdin.read()
open(FLAG, "w").close()
look(1)
time.sleep(600)
"""
    one = feed(script=script.replace("FLAG", repr(str(tmp_path / "flag"))))
    app.wait(SurveyPicture)
    said = ShowDetails(True)
    for _ in range(70_000 // len(wire.encode(said)) + 1):
        one.tell(said)
    assert "ended by signal 9" in app.wait(FeedFailure).why
    picture = app.wait(SurveyPicture, lambda picture: picture.survey.taken == 2)
    assert picture.survey.notes == (wire.encode(said).decode(),)


def test_an_order_does_not_wait_for_a_process_that_is_being_started(app, feed, monkeypatch):
    one = feed()
    app.wait(SurveyPicture)
    begun, told = threading.Event(), threading.Event()
    start = slurm_share_tui.feed.stream

    def slowly(*words, **more):
        begun.set()
        assert told.wait(120)
        return start(*words, **more)

    monkeypatch.setattr(slurm_share_tui.feed, "stream", slowly)
    os.kill(one._child.pid, signal.SIGKILL)
    assert begun.wait(120)
    teller = threading.Thread(target=lambda: (one.tell(PauseFeed(True)), told.set()), daemon=True)
    teller.start()
    teller.join(60)
    is_free = told.is_set()
    told.set()
    assert is_free


def test_closing_ends_the_process(app, feed):
    one = feed()
    app.wait(SurveyPicture)
    pid = one._child.pid
    one.close()
    assert soon(lambda: has_ended(pid))
    one.close()
    one.tell(PauseFeed(True))


def test_one_that_does_not_end_by_itself_is_ended(app, feed, monkeypatch):
    monkeypatch.setattr("slurm_share_tui.feed.CLOSE_S", 0.4)
    one = feed(script="import signal, time; signal.signal(15, signal.SIG_IGN); look(1); time.sleep(600)")
    app.wait(SurveyPicture)
    pid = one._child.pid
    one.close()
    assert soon(lambda: has_ended(pid))


def test_an_app_that_is_gone_stops_nothing(app, feed):
    one = feed(attached=False, script="look(1); sys.stdin.readline(); look(2); sys.stdin.read()")
    assert soon(lambda: one.has_seen)

    def refuse(_message):
        raise RuntimeError("Event loop is closed")

    one._kept.clear()
    one.attach(refuse)
    one.tell(wire.ReadNow())
    assert soon(lambda: one._number == 2)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_of_our_own_is_not_silent(app, feed, monkeypatch):
    one = feed(attached=False, script="sys.stdin.readline(); look(1); sys.stdin.read()")
    monkeypatch.setattr(one.history, "take", lambda _picture: 1 / 0)
    one.attach(app.post)
    one.tell(wire.ReadNow())
    problem = app.wait(FeedFailure)
    assert problem.is_over
    assert "start it again" in problem.why


def test_the_collector_does_not_walk_through_pictures(app, feed):
    """Half a million records would delay the keys, and values form no cycles."""
    feed()
    picture = app.wait(SurveyPicture)
    snapshot = next(row.node.snapshot for row in picture.nodes if row.node.snapshot and row.node.snapshot.processes)
    records = [picture.survey, picture.nodes[0], picture.nodes[0].node, picture.nodes[0].figures, picture.advice[0]]
    records += [picture.advice[0].bounds[0], picture.survey.jobs[0], snapshot, snapshot.jobs[0], snapshot.users[0]]
    gpu, process = snapshot.gpus[0], snapshot.processes[0]
    records += [gpu, gpu.utilization_percent_windows, process, process.gpus[0]]
    assert not [type(one).__name__ for one in records if gc.is_tracked(one)]


def test_a_process_that_cannot_be_started_is_an_error():
    one = Feed(DEMO, program=["/nowhere/at/all"])
    with pytest.raises(CommandError):
        one.start()
    one.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_dashboard_that_is_killed_leaves_no_process(number):
    script = """import time
from slurm_share_tui.feed import Feed
from slurm_share.load.sources.origin import Origin
one = Feed(Origin(user="alice", demo=True, everybody=True, demo_nodes=900, interval_s=0.5))
one.start()
until = time.monotonic() + 120
while not one.has_seen and time.monotonic() < until: time.sleep(0.01)
print(one._child.pid, flush=True)
time.sleep(600)"""
    with subprocess.Popen([sys.executable, "-I", "-c", script], stdout=subprocess.PIPE) as parent:
        with selectors.DefaultSelector() as waits:
            waits.register(parent.stdout, selectors.EVENT_READ)
            assert waits.select(240)
        pid = int(parent.stdout.readline())
        parent.send_signal(number)
        parent.wait(60)
    assert soon(lambda: has_ended(pid))
