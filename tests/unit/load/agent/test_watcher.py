"""This node: its agent where that is of use, a sampler of our own where it is not, and nobody else's load."""

from __future__ import annotations

import os
import time

import pytest
from msgspec.structs import replace

from slurm_share.core.errors import StateError, UsageError
from slurm_share.core.settings import Settings
from slurm_share.load.agent import callers, client, watcher
from slurm_share.load.agent.watcher import NodeWatcher, this_node
from slurm_share.load.snapshot import GpuBooking, GpuLoad, JobLoad, OnGpu, ProcessLoad, Snapshot
from slurm_share.load.sources.base import SourceRequest
from slurm_share.load.sources.local import LocalSource
from slurm_share.node import processes as node_processes
from slurm_share.node.progress_figures import RunProgress, TaskProgress
from slurm_share.node.readings import HostNow, ProcessNow

ME = node_processes.read_user_name(os.getuid())
CLOSED = "its environment is for its user and root to read"


def a_process(pid, uid, user, **other):
    return ProcessLoad(pid=pid, start_ticks=7, name="x", uid=uid, user=user, gpus=(OnGpu(uuid="GPU-0"),), **other)


def a_snapshot(**fields):
    """A node with a process of ours and one of somebody else."""
    values = {
        "node": "n1",
        "taken": time.time(),
        "cpus": 1,
        "cores": 1,
        "gpus": (GpuLoad(uuid="GPU-0", index=0, name="A", memory_used_mib=20),),
        "processes": (a_process(1, os.getuid(), ME), a_process(2, os.getuid() + 1, "stranger")),
    }
    return Snapshot(**{**values, **fields})


class FakeSampler:
    def __init__(self, node):
        self.node = node
        self.samples = 0
        self.closed = False

    def sample(self):
        self.samples += 1
        return a_snapshot(measured_s=float(self.samples))

    def close(self):
        self.closed = True


class FakeKernel:
    """Knows some processes, and what their launchers report and have booked."""

    def __init__(self, *processes, runs=(), bookings=None):
        self.processes = processes
        self.runs = runs
        self.bookings = bookings or {}

    def read(self, pids, gpus=()):
        found = tuple(one for one in self.processes if one.pid in pids)
        bookings = {gpu: self.bookings[gpu] for gpu in gpus if gpu in self.bookings}
        return HostNow(
            boot_id="b", taken=1.0, at=1.0, cpus=1, cores=1, processes=found, jobs=(), runs=self.runs, bookings=bookings
        )


@pytest.fixture
def samplers(monkeypatch):
    monkeypatch.setattr(watcher, "BETWEEN_S", 0)
    return []


@pytest.fixture
def node(samplers, tmp_path):
    def new_sampler(name):
        samplers.append(FakeSampler(name))
        return samplers[-1]

    made = NodeWatcher(
        "n1", Settings(agent_socket=str(tmp_path / "socket")), new_sampler=new_sampler, kernel=FakeKernel()
    )
    yield made
    made.close()


@pytest.fixture
def agent(monkeypatch, tmp_path):
    """An agent's socket; what it is asked, and answers."""
    (tmp_path / "socket").touch()
    asked = []

    def ask(path, timeout_s, everybody=False):
        asked.append((everybody, timeout_s))
        if isinstance(agent.answer, Exception):
            raise agent.answer
        return agent.answer

    agent = type("Agent", (), {"asked": asked, "answer": a_snapshot(source="agent")})
    monkeypatch.setattr(client, "ask", ask)
    return agent


def somebody(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 4711)


def test_without_an_agent_this_process_looks_twice_and_shows_what_is_one_s_own(node, samplers):
    seen = node.read(ME)
    (sampler,) = samplers
    assert (sampler.node, sampler.samples) == ("n1", 2)
    assert (seen.source, seen.view, node.agent_problem) == ("local", ME, "")
    assert [process.pid for process in seen.processes] == [1]
    node.read(ME)
    assert sampler.samples == 3
    node.close()
    assert sampler.closed


@pytest.mark.parametrize("user", ["", "stranger"])
def test_somebody_else_s_load_is_refused(node, samplers, monkeypatch, user):
    somebody(monkeypatch)
    with pytest.raises(UsageError, match="load on this node is for root"):
        node.read(user)
    assert samplers == []


def test_root_and_operators_see_everybody(node, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert len(node.read("").processes) == 2
    somebody(monkeypatch)
    monkeypatch.setattr(callers, "is_operator", lambda uid, group: uid == 4711)
    assert len(node.read("").processes) == 2


def test_the_agent_is_asked_where_there_is_one_and_looked_through_once_more(node, samplers, agent):
    seen = node.read(ME)
    assert (seen.source, len(seen.processes), samplers) == ("agent", 1, [])
    assert agent.asked == [(False, watcher.ASK_S)]


def test_an_agent_that_refuses_everybody_s_load_is_final(node, samplers, agent, monkeypatch):
    agent.answer = StateError("socket", "everybody's load is for root; ask without --all")
    somebody(monkeypatch)
    for _ in range(2):
        with pytest.raises(UsageError, match="everybody's load is for root"):
            node.read("")
    assert (len(agent.asked), samplers) == (1, [])


def test_an_agent_that_hangs_costs_two_seconds_once_in_a_while(node, samplers, agent):
    agent.answer = StateError("socket", "the agent did not answer within 2 s")
    for _ in range(3):
        assert node.read(ME, 15.0).source == "local"
        assert node.agent_problem == "the agent did not answer within 2 s"
    assert agent.asked == [(False, 2.0)]
    assert len(samplers) == 1


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"taken": -300.0}, "its newest sample is 300 s old"),
        ({"taken": 300.0}, "its newest sample is -300 s old"),  # a clock that was set back
        ({"node": "n2"}, "it answers for node n2, and this is n1"),
    ],
)
def test_an_agent_that_is_of_no_use_is_passed_over_and_it_is_said(node, samplers, agent, fields, why):
    agent.answer = a_snapshot(**{**fields, **({"taken": time.time() + fields["taken"]} if "taken" in fields else {})})
    assert node.read(ME).node == "n1"
    assert (node.agent_problem, len(samplers)) == (why, 1)


def test_what_stands_in_one_s_own_tasks_environments_is_read_here(node, samplers, agent, tmp_path):
    """The agent may not; its windows and peaks are kept. Of a process that has another's number by now, nothing."""
    progress = TaskProgress(task=2, rate_per_s=51.0, rate_source="log", family="f")
    closed = {"slot": CLOSED, "cap_mib": CLOSED, "gpus.sm_time_percent": "one sample so far"}
    mine = [a_process(pid, os.getuid(), ME, job=5, unknown=closed) for pid in (1, 3)]
    job = JobLoad(job=5, uid=os.getuid(), user=ME, task_peak_mib=3072, unknown={"share": CLOSED, "slots": CLOSED})
    agent.answer = a_snapshot(source="agent", measured_s=900.0, processes=tuple(mine), jobs=(job,))
    said = ProcessNow(
        pid=1, start_ticks=7, name="x", uid=os.getuid(), user=ME, cpu_s=0, job=5, task=2, slot=1, slots=4, share=2,
        connections=8, progress=progress, unknown={"cap_mib": "not understood"},
    )  # fmt: skip
    runs = (RunProgress(uid=os.getuid(), job=5, tasks=(progress,)),)
    booking = GpuBooking(uid=os.getuid(), job=5, booked_mib=2048)
    other = replace(said, pid=3, start_ticks=8, slot=9)
    kernel = FakeKernel(said, other, runs=runs, bookings={"GPU-0": [booking]})
    seen = NodeWatcher("n1", Settings(agent_socket=str(tmp_path / "socket")), kernel=kernel).read(ME)
    first, other = seen.processes
    assert (first.slot, first.task, first.connections, first.progress) == (1, 2, 8, progress)
    assert first.unknown == {"cap_mib": "not understood", "gpus.sm_time_percent": "one sample so far"}
    assert (other.slot, other.unknown) == (None, closed)
    assert (seen.jobs[0].share, seen.jobs[0].slots, seen.jobs[0].task_peak_mib) == (2, 4, 3072)
    assert (seen.jobs[0].unknown, seen.measured_s) == ({}, 900.0)
    assert (seen.jobs[0].progress.rate_per_s, seen.gpus[0].booked_mib, seen.gpus[0].bookings) == (
        51.0,
        2048,
        (booking,),
    )


@pytest.mark.parametrize(
    ("job", "is_hidden", "used"),
    [("5", True, "agent"), ("6", True, "local"), ("6", False, "agent"), ("", True, "agent")],
)
def test_an_agent_that_does_not_see_the_caller_s_job_is_passed_over(
    samplers, agent, monkeypatch, tmp_path, job, is_hidden, used
):
    """With hidepid it sees no user's processes: all figures of the job would be missing."""
    monkeypatch.setenv("SLURM_JOB_ID", job)
    agent.answer = a_snapshot(source="agent", jobs=(JobLoad(job=5, uid=os.getuid(), user=ME),))
    node = NodeWatcher(
        "n1", Settings(agent_socket=str(tmp_path / "socket")), new_sampler=FakeSampler, kernel=FakeKernel(),
        hides_processes=lambda: is_hidden,
    )  # fmt: skip
    assert node.read(ME).source == used
    assert ("it does not see job 6 (hidepid" in node.agent_problem) == (used == "local")


def test_the_node_s_name_is_what_was_said():
    assert this_node("gpu-7", {"SLURMD_NODENAME": "n1"}) == "gpu-7"
    assert this_node(None, {"SLURMD_NODENAME": "n1"}) == "n1"
    assert this_node(None, {"SLURM_CONF": "/nowhere/slurm.conf"}) == os.uname().nodename.split(".")[0]
    with pytest.raises(UsageError, match="is no node's name"):
        this_node(None, {"SLURMD_NODENAME": "n1\x1b[2J"})


def test_as_a_source_it_has_this_node_and_no_other(node, agent, monkeypatch):
    source = LocalSource(Settings(), watcher=node)
    answer = source.read(SourceRequest(nodes=("n1", "n2"), user=ME), 5)
    assert (set(answer.snapshots), answer.silent, answer.notes) == ({"n1"}, {"n2": "another node"}, [])
    assert answer.snapshots["n1"].source == "local"
    assert source.read(SourceRequest(nodes=("n2",), user=ME), 5).silent == {"n2": "another node"}
    assert len(agent.asked) == 1
    agent.answer = a_snapshot(node="n2")
    answer = source.read(SourceRequest(nodes=("n1",), user=ME), 5)
    assert answer.notes == ["n1: sampled without the agent: it answers for node n2, and this is n1"]
    source.close()
    monkeypatch.setenv("SLURMD_NODENAME", "n1\x1b[2J")
    with pytest.raises(UsageError, match="is no node's name"):
        LocalSource(Settings())
