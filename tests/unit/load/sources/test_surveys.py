"""Surveys: Slurm asked rarely, a source each time; who may see what; what is said when one of them is silent."""

from __future__ import annotations

import os
import threading
import time

import pytest
from agents import until
from msgspec.structs import replace

from slurm_share.core.errors import CommandError, SlurmShareError, UsageError
from slurm_share.core.settings import Settings
from slurm_share.load.snapshot import Snapshot
from slurm_share.load.sources import survey_reader
from slurm_share.load.sources.base import SourceAnswer
from slurm_share.load.sources.survey_reader import SurveyReader, open_source
from slurm_share.node import processes
from slurm_share.slurm import jobs as slurm_jobs
from slurm_share.slurm import nodes as slurm_nodes
from slurm_share.slurm.records import ClusterName, QueuedJob, SlurmNode

ME = processes.read_user_name(os.getuid())
WAIT_S = 120.0


def a_node(name, *states, gpus=0, cpus_allocated=0):
    values = {"cpus": 8, "memory_mib": 1, "gpus": gpus, "cpus_allocated": cpus_allocated}
    return SlurmNode(name=name, states=states or ("IDLE",), **values)


def a_job(job_id, nodes, **other):
    values = {"states": ("RUNNING",), "uid": os.getuid(), "user": ME, **other}
    return QueuedJob(job_id=job_id, name="x", partition="gpu", nodes=nodes, **values)


class FakeSlurm:
    """Has nodes and jobs, counts questions, and falls silent or hangs when told."""

    def __init__(self):
        self.nodes = [a_node("n1", gpus=2), a_node("n2", gpus=2), a_node("n3")]
        self.jobs = [a_job(1, "n1"), a_job(2, "n2", user="other", uid=os.getuid() + 1)]
        self.questions = []
        self.silent = False
        self.go_on = threading.Event()
        self.go_on.set()
        self.now = 1000.0

    def view(self, source=None, **other):
        """Return a reader of this Slurm and of a source, which lives by this clock."""
        return SurveyReader(source or FakeSource(), user=other.pop("user", ME), clock=lambda: self.now, **other)

    def read_queue(self, *, users=(), jobs=(), states=(), timeout_s):
        self.answer("squeue" if not jobs else f"squeue {','.join(map(str, jobs))}")
        found = [job for job in self.jobs if not users or job.user in users]
        found = [job for job in found if not jobs or job.job_id in jobs]
        return ClusterName("demo", "26.05.5"), tuple(job for job in found if set(job.states) & set(states))

    def read_waiting(self, users=(), *, timeout_s):
        self.answer("squeue %A")
        return tuple(job.job_id for job in self.jobs if "PENDING" in job.states and (not users or job.user in users))

    def read_places(self, states, *, timeout_s):
        self.answer("squeue %N")
        return frozenset(job.nodes for job in self.jobs)

    def read_nodes(self, nodes="", *, timeout_s):
        self.answer(f"scontrol {nodes}".strip())
        from slurm_share.core import nodelist

        wanted = nodelist.unfold(nodes)
        return tuple(node for node in self.nodes if not wanted or node.name in wanted)

    def answer(self, question):
        self.questions.append(question)
        self.go_on.wait(WAIT_S)
        if self.silent:
            raise CommandError((question,), 1, "Unable to contact slurm controller (connect failure)")


class FakeSource:
    """Answers for the nodes it has."""

    def __init__(self, name="srun", nodes=("n1", "n2")):
        self.name = name
        self.nodes = nodes
        self.asked = []
        self.closed = self.again = 0
        self.all_lines = []

    def get_ready(self, all_lines, timeout_s):
        self.all_lines.append(all_lines)

    def read(self, asked, timeout_s):
        self.asked.append(asked)
        found = {node: Snapshot(node=node, taken=1.0, cpus=1, cores=1) for node in asked.nodes if node in self.nodes}
        return SourceAnswer(snapshots=found, silent={node: "silent" for node in asked.nodes if node not in found})

    def ask_again(self):
        self.again += 1

    def close(self):
        self.closed += 1


@pytest.fixture
def world(monkeypatch):
    """A Slurm in the place of its commands."""
    fake = FakeSlurm()
    monkeypatch.setattr(slurm_jobs, "read_queue", fake.read_queue)
    monkeypatch.setattr(slurm_jobs, "read_places", fake.read_places)
    monkeypatch.setattr(slurm_jobs, "read_waiting", fake.read_waiting)
    monkeypatch.setattr(slurm_nodes, "read_nodes", fake.read_nodes)
    yield fake
    fake.go_on.set()


def test_a_source_hears_at_once_that_it_will_be_all_nodes(world):
    for wanted, words in (
        (True, {"everybody": True, "details": False}),
        (False, {"everybody": True}),
        (False, {"everybody": True, "details": False, "nodes": ["n1"]}),
        (False, {"everybody": True, "details": False, "jobs": [1]}),
        (False, {"details": False}),
    ):
        source = FakeSource("agent")
        view = world.view(source, refresh_s=0.0, **words)
        view.read(WAIT_S)
        view.read(WAIT_S)
        assert source.all_lines == [wanted]


def test_for_lines_of_all_nodes_the_queue_is_not_read(world):
    world.nodes = [a_node("n1", gpus=2), a_node("n3"), a_node("n4", cpus_allocated=1), a_node("n5", cpus_allocated=1)]
    world.jobs = [a_job(1, "n3"), a_job(2, "n[4,6]", user="other", uid=os.getuid() + 1)]
    seen = []
    for details in (False, True):
        world.questions.clear()
        survey = world.view(FakeSource("agent"), everybody=True, details=details).read(WAIT_S)
        seen.append(([node.name for node in survey.nodes], survey.cluster, survey.notes))
        assert ("squeue %N" in world.questions) == (not survey.jobs) == (not details)
    assert seen[0] == seen[1]
    assert seen[0][0] == ["n1", "n3", "n4", "n5", "n6"]
    assert seen[0][2][0].startswith("n5 has jobs that Slurm does not show you")


def test_a_source_hears_where_nodes_are(world):
    world.nodes[0] = replace(world.nodes[0], address="192.0.2.1")
    source = FakeSource()
    world.view(source).read(WAIT_S)
    assert source.asked[0].addresses == {"n1": "192.0.2.1"}


def test_a_user_sees_the_nodes_where_his_jobs_run(world):
    survey = world.view().read(WAIT_S)
    (node,) = survey.nodes
    assert (node.name, node.slurm.gpus, node.snapshot.node) == ("n1", 2, "n1")
    assert [job.job_id for job in survey.jobs] == [1]
    assert (survey.cluster, survey.slurm_version, survey.user, survey.answered) == ("demo", "26.05.5", ME, 1)
    assert survey.notes == ()


def a_waiting_job(job_id, **other):
    return a_job(job_id, "", **{"states": ("PENDING",), "reason": "Resources", **other})


def test_jobs_that_wait_are_told_where_they_are_wanted_and_no_source_hears_of_them(world):
    """One's own, or everybody's; not where nodes are named, nor where a line of each node is all."""
    other = {"user": "other", "uid": os.getuid() + 1}
    world.jobs += [a_waiting_job(3), a_waiting_job(4, **other), a_waiting_job(5, array=5, waiting="0-19%2")]
    for words, name, numbers in (
        ({}, "srun", [1]),
        ({"waiting": True}, "srun", [1, 3, 5]),
        ({"waiting": True, "everybody": True}, "agent", [1, 2, 3, 4, 5]),
        ({"waiting": True, "everybody": True, "details": False}, "agent", []),
        ({"waiting": True, "nodes": ["n1"]}, "srun", [1]),
        ({"waiting": True, "jobs": ["5"]}, "srun", [5]),
    ):
        source = FakeSource(name)
        survey = world.view(source, **words).read(WAIT_S)
        assert [job.job_id for job in survey.jobs] == numbers, words
        assert all(job.nodes for asked in source.asked for job in asked.jobs)
        assert survey.notes == ()
    with pytest.raises(UsageError, match="job 5 is not a running job of"):
        world.view(jobs=["5"]).read(WAIT_S)
    with pytest.raises(UsageError, match=r"job 6 is not a running job of .* or a waiting one; see llstat"):
        world.view(jobs=["6"], waiting=True).read(WAIT_S)


def test_of_a_long_queue_the_jobs_of_the_highest_priority_are_read(world, monkeypatch):
    monkeypatch.setattr(survey_reader, "WAITING_MOST", 2)
    world.jobs += [a_waiting_job(number) for number in range(10, 15)]
    survey = world.view(waiting=True).read(WAIT_S)
    assert [job.job_id for job in survey.jobs] == [1, 10, 11]
    assert survey.notes == ("3 more jobs wait; the 2 of the highest priority are shown (llstat)",)
    assert sorted(question for question in world.questions if question.startswith("squeue")) == [
        "squeue",
        "squeue %A",
        "squeue 10,11",
    ]


def test_a_node_that_falls_silent_is_a_reason_to_ask_slurm_more_often(world):
    source = FakeSource()
    view = world.view(source)
    assert view.read(WAIT_S).answered == 1
    asked = len(world.questions)
    world.now += 10
    view.read(WAIT_S)
    assert len(world.questions) == asked
    source.nodes = ()
    view.read(WAIT_S)
    world.jobs = [a_job(5, "n2")]
    world.now += 10
    until(lambda: [job.job_id for job in view.read(WAIT_S).jobs] == [5])
    world.now += 80
    until(lambda: view.read(WAIT_S).jobs_taken and len(world.questions) > asked + 2)
    world.now += 40
    asked = len(world.questions)
    view.read(WAIT_S)
    assert len(world.questions) == asked


def test_somebody_without_a_job_sees_no_node_and_slurm_is_not_asked_for_any(world):
    world.jobs = []
    assert world.view().read(WAIT_S).nodes == ()
    assert world.questions == ["squeue"]


def test_slurm_is_asked_once_a_minute_however_often_one_looks(world):
    view = world.view()
    for _ in range(10):
        view.read(WAIT_S)
        world.now += 5
    assert world.questions == ["squeue", "scontrol n1"]
    world.now += 20
    until(lambda: view.read(WAIT_S) and len(world.questions) == 4)


def test_who_asks_again_waits_for_the_answer_and_has_more_for_a_minute(world):
    source = FakeSource()
    view = world.view(source)
    assert [job.job_id for job in view.read(WAIT_S).jobs] == [1]
    world.jobs = [a_job(5, "n2")]
    view.ask_again()
    world.now += 1
    assert [job.job_id for job in view.read(WAIT_S).jobs] == [1]
    world.now += 1
    assert [job.job_id for job in view.read(WAIT_S).jobs] == [5]
    asked = len(world.questions)
    world.now += 9
    view.read(WAIT_S)
    assert len(world.questions) == asked
    world.jobs = [a_job(6, "n2")]
    world.now += 1
    until(lambda: [job.job_id for job in view.read(WAIT_S).jobs] == [6])
    assert source.again == 1
    world.now += 59
    asked = len(world.questions)
    view.read(WAIT_S)
    assert len(world.questions) == asked


def test_an_answer_that_was_on_its_way_is_not_the_one_that_was_asked_for(world):
    view = world.view()
    view.read(WAIT_S)
    world.go_on.clear()
    world.now += 70
    view.read(0.2)  # asked, and no answer yet
    view.ask_again()
    world.go_on.set()
    until(lambda: view.read(WAIT_S).jobs_taken is not None and len(world.questions) >= 4)
    world.jobs = [a_job(5, "n2")]
    world.now += 2
    until(lambda: [job.job_id for job in view.read(WAIT_S).jobs] == [5])


def test_new_jobs_come_and_ended_ones_go(world):
    source = FakeSource()
    view = world.view(source)
    assert [node.name for node in view.read(WAIT_S).nodes] == ["n1"]
    world.jobs = [a_job(5, "n[2-3]")]
    world.now += 3600  # so old that the look waits for the new ones
    survey = view.read(WAIT_S)
    assert [(node.name, node.why) for node in survey.nodes] == [("n2", ""), ("n3", "silent")]
    assert [job.job_id for job in source.asked[-1].jobs] == [5]


def test_while_slurm_hangs_the_last_facts_count_and_nobody_waits_long(world):
    view = world.view()
    view.read(WAIT_S)
    world.go_on.clear()
    world.now += 80
    assert view.read(0.2).answered == 1
    world.now += 100
    survey = view.read(0.2)
    assert survey.answered == 1
    assert survey.notes == ("Slurm's figures are 3 min old",)


def test_a_slurm_that_refuses_is_named_with_the_age_of_what_is_shown(world):
    view = world.view()
    view.read(WAIT_S)
    world.silent = True
    world.now += 180
    (note,) = view.read(WAIT_S).notes
    assert "Unable to contact slurm controller" in note
    assert note.endswith("its figures are 3 min old")


def test_a_clock_that_is_set_back_stops_no_question(world, monkeypatch):
    """The wall's: ages and pauses are on another one. What is shown with its time is on the wall's."""
    wall = [1e9]
    monkeypatch.setattr(time, "time", lambda: wall[0])
    view = world.view()
    first = view.read(WAIT_S)
    assert (first.taken, first.jobs_taken) == (1e9, 1e9)
    wall[0] -= 3600
    world.now += 200
    assert view.read(WAIT_S).jobs_taken == 1e9 - 3600
    assert view.read(WAIT_S).notes == ()


def test_a_fault_of_ours_is_a_sentence_and_the_last_facts_stay(world, monkeypatch):
    view = world.view()
    view.read(WAIT_S)

    def broken(**_):
        raise KeyError("node_count")

    monkeypatch.setattr(slurm_jobs, "read_queue", broken)
    world.now += 180
    survey = view.read(WAIT_S)
    assert survey.answered == 1
    assert "a fault of slurm-share: KeyError('node_count')" in survey.notes[0]
    with pytest.raises(SlurmShareError, match="KeyError"):
        world.view().read(WAIT_S)


def test_without_any_answer_of_slurm_there_is_nothing_to_look_at(world):
    world.silent = True
    with pytest.raises(CommandError):
        world.view().read(WAIT_S)
    world.go_on.clear()
    with pytest.raises(SlurmShareError, match="Slurm does not answer"):
        world.view().read(0.1)


def test_this_node_needs_no_slurm(world):
    world.silent = True
    source = FakeSource("local", nodes=("n7",))
    source.node = "n7"
    survey = world.view(source).read(WAIT_S)
    assert [(node.name, node.slurm, node.snapshot is None) for node in survey.nodes] == [("n7", None, False)]
    assert "Slurm does not answer" in survey.notes[0]


def test_nodes_that_are_down_are_not_asked(world):
    world.nodes = [a_node("n1", "DOWN", "NOT_RESPONDING"), a_node("n2", "IDLE", "NOT_RESPONDING"), a_node("n3")]
    world.jobs = [a_job(1, "n[1-3]")]
    source = FakeSource(nodes=("n1", "n2", "n3"))
    survey = world.view(source).read(WAIT_S)
    assert [(node.name, node.why) for node in survey.nodes] == [("n1", "down"), ("n2", "not responding"), ("n3", "")]
    assert source.asked[0].nodes == ("n3",)


# ---- What was named --------------------------------------------------------------------------------------------------


def test_named_nodes_with_one_s_own_jobs_and_without(world):
    survey = world.view(nodes=("n1", "n3")).read(WAIT_S)
    assert [node.name for node in survey.nodes] == ["n1", "n3"]
    assert world.questions.count("scontrol n[1,3]") == 1


def test_a_node_where_only_others_have_jobs_is_refused_with_what_is_needed(world):
    with pytest.raises(UsageError, match=r"you have no job on n2; .* operators and needs slurm-share-agent"):
        world.view(nodes=("n2",)).read(WAIT_S)


def test_named_jobs_and_all_their_nodes(world):
    world.jobs += [a_job(7, "n2", array=6, element=1), a_job(8, "n3", array=6, element=2)]
    assert [node.name for node in world.view(jobs=(6,)).read(WAIT_S).nodes] == ["n2", "n3"]
    assert [node.name for node in world.view(jobs=(8,)).read(WAIT_S).nodes] == ["n3"]
    assert [node.name for node in world.view(jobs=("6_2",)).read(WAIT_S).nodes] == ["n3"]
    assert [node.name for node in world.view(jobs=(6,), nodes=("n2",)).read(WAIT_S).nodes] == ["n2"]
    with pytest.raises(UsageError, match="job 6_3 is not a running job of"):
        world.view(jobs=("6_3",)).read(WAIT_S)


def test_a_job_that_is_on_none_of_the_named_nodes(world):
    world.jobs.append(a_job(8, "n3"))
    with pytest.raises(UsageError, match="you have no job on n1"):
        world.view(jobs=(8,), nodes=("n1",)).read(WAIT_S)


@pytest.mark.parametrize("number", [2, 99])
def test_a_job_of_somebody_else_is_like_one_that_is_not_there(world, number):
    with pytest.raises(UsageError, match=f"job {number} is not a running job of"):
        world.view(jobs=(number,)).read(WAIT_S)


def test_a_named_job_that_ends_later_is_no_mistake(world):
    view = world.view(jobs=(1,))
    assert view.read(WAIT_S).answered == 1
    world.jobs = []
    world.now += 3600
    assert view.read(WAIT_S).nodes == ()


# ---- Who may see what ------------------------------------------------------------------------------------------------


def test_other_users_and_everybody_are_refused_by_srun_with_what_is_needed(world):
    for view in ({"user": "somebody-else"}, {"everybody": True}):
        with pytest.raises(UsageError, match=r"srun shows you your own jobs; .*slurm-share-agent .*--source agents"):
            world.view(**view)
    with pytest.raises(UsageError, match="https://cluster/docs"):
        world.view(everybody=True, settings=Settings(documentation_url="https://cluster/docs"))
    assert world.questions == []


def test_everybody_is_all_nodes_with_gpus_or_jobs(world):
    world.nodes += [a_node("n4", cpus_allocated=4), a_node("n10", gpus=1)]
    world.jobs.append(a_job(3, "n4"))
    source = FakeSource("agent")
    survey = world.view(source, everybody=True).read(WAIT_S)
    assert [node.name for node in survey.nodes] == ["n1", "n2", "n4", "n10"]
    assert source.asked[0].user == ""
    assert sorted(world.questions) == ["scontrol", "squeue"]
    assert len(survey.jobs) == 3


def test_jobs_that_slurm_hides_are_told(world):
    world.nodes[1] = a_node("n2", "ALLOCATED", gpus=2, cpus_allocated=8)
    world.jobs = [a_job(1, "n1")]
    (note,) = world.view(FakeSource("agent"), everybody=True).read(WAIT_S).notes
    assert note.startswith("n2 has jobs that Slurm does not show you (PrivateData)")


def test_the_source_is_closed_with_the_view(world):
    source = FakeSource()
    world.view(source).close()
    assert source.closed == 1


def test_sources_by_name():
    for name, kind in {"srun": "SrunSource", "local": "LocalSource"}.items():
        source = open_source(name, Settings())
        assert type(source).__name__ == kind
        source.close()
    with pytest.raises(UsageError, match="srun, local, agents and prometheus"):
        open_source("ganglia", Settings())


def test_the_interval_of_a_stream_stays_within_what_a_sampler_takes():
    for wanted, taken in {0.01: survey_reader.LEAST_INTERVAL_S, 2.0: 2.0, 1e9: survey_reader.MOST_INTERVAL_S}.items():
        source = open_source("srun", Settings(), interval_s=wanted)
        assert source._interval_s == taken
        source.close()


def test_a_node_that_is_none_is_answered_with_those_that_are(world):
    with pytest.raises(UsageError, match=r"no node n22; did you mean n2\? There are n\[1-3\]$"):
        world.view(nodes=("n22",)).read(WAIT_S)
    with pytest.raises(UsageError, match=r"Slurm has no node n\[8-9\]; there are n\[1-3\]$"):
        world.view(nodes=("n1", "n8", "n9")).read(WAIT_S)
    world.nodes = [a_node(f"x{number}y") for number in range(1, 900, 2)]
    with pytest.raises(UsageError) as refused:
        world.view(nodes=("gpu-7",)).read(WAIT_S)
    assert str(refused.value).endswith(", ... (see llfree)")
    assert len(str(refused.value)) < 300
