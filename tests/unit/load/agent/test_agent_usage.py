"""The agent's records of jobs, and who may ask for them: files, socket, port, and the agents of other nodes."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
from agents import ALICE, BOB, TOKEN, FakeSampler, RunningAgent, running, until, users
from msgspec.structs import replace

from slurm_share.core import files
from slurm_share.core.errors import StateError
from slurm_share.core.settings import Settings
from slurm_share.load.agent import client, http_client, usage_answers, use_files, use_keeper
from slurm_share.load.agent.client import usage_of
from slurm_share.load.agent.use_files import UseFiles
from slurm_share.load.rules.job_energy import StoredNode
from slurm_share.load.rules.job_totals import JobTotals
from slurm_share.load.rules.job_use import JobRecord, StoredJob
from slurm_share.load.snapshot import Snapshot
from slurm_share.node.readings import DriverNow, GpuNow, HostNow, JobNow, ProcessNow
from slurm_share.node.records import GpuProcess
from slurm_share.slurm.records import SlurmNode
from slurm_share.usage import JobUse, UseSeries

HEADERS = {"authorization": f"Bearer {TOKEN}"}


class Sampler(FakeSampler):
    """Jobs 7 of alice and 8 of bob, each with a process on a GPU of its own, until the test ends some."""

    def __init__(self) -> None:
        super().__init__()
        self.gone: set[int] = set()
        self.node = "n1"

    def sample(self) -> Snapshot:
        seen = super().sample()
        jobs = tuple(one for one in seen.jobs if one.job not in self.gone)
        shown = tuple(one for one in seen.processes if one.job not in self.gone)
        read = tuple(
            ProcessNow(
                pid=one.pid, start_ticks=1, name=one.name, uid=one.uid, user=one.user, cpu_s=1.0, job=one.job,
                step="0", task_key=f"0/{one.pid}",
            )
            for one in shown
        )  # fmt: skip
        there = tuple(
            JobNow(job=one.job, uid=one.uid, user=one.user, cpu_s={"cgroup": float(self.samples)}) for one in jobs
        )
        host = HostNow(
            boot_id="boot", taken=time.time(), at=time.monotonic(), cpus=16, cores=8, processes=read, jobs=there
        )
        gpus = tuple(
            GpuNow(
                uuid=gpu.uuid,
                index=gpu.index,
                name=gpu.name,
                energy_j=10.0 * self.samples,
                processes=tuple(GpuProcess(one.pid, 100) for one in shown if one.gpus[0].uuid == gpu.uuid),
            )
            for gpu in seen.gpus
        )
        self.readings = host, DriverNow(version="550.0-fake", gpus=gpus)
        return replace(seen, node=self.node, interval_s=0.05, jobs=jobs, processes=shown)


@contextlib.contextmanager
def agent_on(folder: Path, **settings: object) -> Iterator[RunningAgent]:
    folder.mkdir(exist_ok=True)
    with running(folder, sampler=Sampler(), operators_group="gpu-ops", **settings) as agent:
        until(lambda: len(asked(agent, ALICE, 7)[0]) == 1)
        yield agent


@pytest.fixture
def agent(tmp_path, monkeypatch):
    users(monkeypatch)
    with agent_on(tmp_path) as agent:
        yield agent


def asked(agent, uid, job, *nodes):
    agent.uid = uid
    return usage_of(job, nodes, agent.settings, 20.0)


# ---- who sees what ----


def test_a_user_gets_their_own_job_while_it_runs_and_after_its_end(agent):
    usage, series, problems = asked(agent, ALICE, 7)
    assert ([(one.job, one.uid, one.node, one.ended) for one in usage], problems) == ([(7, ALICE, "n1", None)], [])
    assert [one.job for one in series] == [7]
    agent.sampler.gone = {7}
    until(lambda: (found := asked(agent, ALICE, 7)[0]) and found[0].ended is not None)
    assert asked(agent, ALICE, 7)[0][0].gpus[0].uuid == "GPU-0"


@pytest.mark.parametrize("uid", [BOB, 4711, 65534])
def test_nobody_else_learns_of_it_more_than_of_a_job_that_never_was(agent, uid):
    until(lambda: asked(agent, BOB, 8)[0])
    usage, series, problems = asked(agent, uid, 7)
    assert (usage, series) == ([], [])
    assert problems == [asked(agent, uid, 999)[2][0].replace("999", "7")]
    assert "alice" not in str(problems)


@pytest.mark.parametrize("uid", [0, 2003])
def test_root_and_operators_get_everybodys(agent, uid):
    assert [one.uid for one in asked(agent, uid, 7)[0]] == [ALICE]
    until(lambda: [one.uid for one in asked(agent, uid, 8)[0]] == [BOB])


def test_the_port_answers_with_the_token_only(agent):
    url = f"{agent.url}/usage/7"
    answer = httpx.get(url, headers=HEADERS, trust_env=False)
    assert [one["uid"] for one in answer.json()["usage"]] == [ALICE]
    for headers in ({}, {"authorization": "Bearer " + "0" * 32}):
        refused = httpx.get(url, headers=headers, trust_env=False)
        assert (refused.status_code, str(ALICE) in refused.text) == (401, False)
    for path in ("/usage/", "/usage/-1", "/usage/7/", "/usage/../7", "/usage/99999999999", "/usage/7?x", "/x/usage/7"):
        assert httpx.get(agent.url + path, headers=HEADERS, trust_env=False).status_code == 404, path


@pytest.mark.parametrize(
    "question",
    [
        b'{"usage": -1}', b'{"usage": "7"}', b'{"usage": 1e400}', b'{"usage": 7, "nodes": ["n1;ls"]}',
        b'{"usage": 7, "nodes": ["../x"]}', b'{"usage": 7, "nodes": "n1"}',
        b'{"usage": 7, "nodes": [%s]}' % b",".join([b'"n"'] * 65), b'{"usage": 7, "nodes": [' + b"[" * 5000,
    ],
)  # fmt: skip
def test_strange_questions_are_refused(agent, question):
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(300)
        link.connect(agent.settings.agent_socket)
        link.sendall(question + b"\n")
        assert "does not know this question" in link.makefile().read()


def test_a_question_without_end_is_cut_off(agent):
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(300)
        link.connect(agent.settings.agent_socket)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            link.sendall(b'{"usage": 7, "nodes": [' + b'"n1", ' * 20_000)
            assert link.recv(100) == b""
    assert asked(agent, ALICE, 7)[0]


def test_an_agent_of_an_older_release_is_named(agent, monkeypatch):
    monkeypatch.setattr(client, "_exchange", lambda *_: b'{"snapshot": {}}')
    assert "older release" in usage_of(7, (), agent.settings)[2][0]
    monkeypatch.setattr(
        client, "_exchange", lambda *_: b'{"usage": [{"version": 99, "job": 7, "uid": 1, "node": "n"}]}'
    )
    assert "newer" in usage_of(7, (), agent.settings)[2][0]


def test_without_an_agent_there_is_a_sentence(tmp_path):
    found = usage_of(7, ("n1",), Settings(agent_socket=str(tmp_path / "none")))
    assert found[:2] == ([], [])
    assert "no agent is there" in found[2][0]


# ---- other nodes ----


@pytest.fixture
def login(agent, tmp_path, monkeypatch):
    """The agent of a login node, which asks that of n1."""
    folder = tmp_path / "login"
    folder.mkdir()
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o640)
    facts = {"cpus": 1, "cpus_allocated": 0, "memory_mib": 1, "memory_allocated_mib": 0, "gpus": 0, "gpus_allocated": 0}
    known = [SlurmNode(name=name, address="127.0.0.1", states=("IDLE",), **facts) for name in ("n1", "n2")]
    monkeypatch.setattr(usage_answers, "read_nodes", lambda timeout_s: tuple(known))
    monkeypatch.setattr(http_client, "FREE_PORTS", 1 << 20)
    monkeypatch.setattr(usage_answers, "FREE_PORTS", 1 << 20)
    sampler = Sampler()
    sampler.node, sampler.gone = "login", {7, 8}
    port = agent.http_server.port
    with running(folder, sampler=sampler, operators_group="gpu-ops", http=False, agents_port=port) as proxy:
        until(lambda: "no record" in asked(proxy, ALICE, 7)[2][0])
        yield proxy


def test_the_login_nodes_agent_passes_on_what_is_the_callers(login):
    usage, series, problems = asked(login, ALICE, 7, "n1")
    assert ([(one.uid, one.node) for one in usage], [one.job for one in series], problems) == ([(ALICE, "n1")], [7], [])
    assert asked(login, BOB, 7, "n1") == ([], [], ["n1: its agent has no record of job 7 for bob"])
    assert [one.uid for one in asked(login, 2003, 7, "n1")[0]] == [ALICE]


def test_only_nodes_of_slurm_get_the_token(login, monkeypatch):
    told = []
    monkeypatch.setattr(http_client.AgentsCaller, "_exchange", lambda *words: told.append(words[2]))
    assert asked(login, ALICE, 7, "evil", "127.0.0.1", "localhost")[2] == [
        f"{name}: Slurm has no such node" for name in ("evil", "127.0.0.1", "localhost")
    ]
    assert told == []


def test_no_token_goes_to_a_port_on_which_users_may_listen(login, monkeypatch):
    monkeypatch.setattr(usage_answers, "FREE_PORTS", 1024)
    usage, _, problems = asked(login, ALICE, 7, "n1")
    assert (usage, "any user may listen on port" in problems[0]) == ([], True)


def test_an_answer_for_another_node_or_job_is_not_passed_on(login):
    assert asked(login, ALICE, 7, "n2")[::2] == ([], ["n2: its agent answers for another node or job"])


def test_a_silent_node_a_silent_slurm_and_a_missing_token_are_sentences(login, agent, monkeypatch, tmp_path):
    agent.stop()
    agent.stop = lambda: None
    assert asked(login, ALICE, 7, "n1")[2] == ["n1: no agent answers there"]
    (tmp_path / "login/token").unlink()
    assert "this host's agent cannot ask it" in asked(login, ALICE, 7, "n1")[2][0]


def test_one_users_many_questions_are_refused_and_others_are_answered(login, monkeypatch):
    monkeypatch.setattr(usage_answers, "MOST_EACH", 0)
    assert "too many questions" in asked(login, ALICE, 7, "n1")[2][0]


# ---- files ----


def test_another_agent_has_the_job_that_ended_before(tmp_path, monkeypatch):
    users(monkeypatch)
    with agent_on(tmp_path) as agent:
        agent.sampler.gone = {7}
        until(lambda: (found := asked(agent, ALICE, 7)[0]) and found[0].ended is not None)
        before = asked(agent, ALICE, 7)
        folder = tmp_path / "usage"
        file = until(lambda: next(iter((folder / "jobs").glob("7.json")), None))
        assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o750, 0o600)
    with running(tmp_path, sampler=FakeSampler()) as agent:
        agent.sampler.readings = None
        until(lambda: asked(agent, ALICE, 999)[2])
        monkeypatch.setattr(use_keeper.UseKeeper, "add", lambda _self, _sampler, snapshot, _ledger: snapshot)
        assert asked(agent, ALICE, 7)[0] == before[0]


def test_a_killed_agents_running_job_goes_on(tmp_path, monkeypatch):
    users(monkeypatch)
    monkeypatch.setattr(use_keeper, "STORE_S", 0.0)
    with agent_on(tmp_path) as agent:
        began = asked(agent, ALICE, 7)[0][0].began
        until(lambda: (tmp_path / f"usage/running/7-{ALICE}.json").exists())
        monkeypatch.setattr(use_keeper.UseKeeper, "close", lambda _self, _timeout_s: None)  # as kill -9
        monkeypatch.setattr(use_files.UseFiles, "_write", lambda *_: True)
    monkeypatch.undo()
    users(monkeypatch)
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if fd.readlink() == tmp_path / "usage/lock":
                os.close(int(fd.name))
    with agent_on(tmp_path) as agent:
        (use,) = asked(agent, ALICE, 7)[0]
        assert use.began == began
        assert use.measured_s is not None


def record(job: int = 7, began: float = 1.0, ended: float | None = 2.0) -> JobRecord:
    use = JobUse(job=job, uid=ALICE, node="n1", began=began, ended=ended)
    return JobRecord(use, UseSeries(job=job, uid=ALICE, node="n1", every_s=5.0))


@pytest.fixture
def store(tmp_path):
    made = UseFiles(str(tmp_path / "state"), 30, 512)
    made.open()
    yield made
    made.close(10.0)


def on_disk(tmp_path, job):
    file = tmp_path / f"state/jobs/{job}.json"
    return file.exists() and msgspec.json.decode(file.read_bytes())["starts"]


def test_each_start_of_a_job_stays_and_a_start_that_went_on_replaces_its_record(store, tmp_path):
    for one in (record(), record(began=10.0, ended=11.0), record(began=10.0, ended=20.0)):
        store.put_ended(one)
    assert [one.use.ended for one in store.read(7)] == [2.0, 20.0]
    until(lambda: len(on_disk(tmp_path, 7) or ()) == 2)
    assert [one.use.ended for one in store.read(7)] == [2.0, 20.0]


def test_a_full_disk_keeps_the_record_in_memory_and_writes_it_later(store, tmp_path, monkeypatch, capfd):
    real = files.write

    def full(*_words, **_options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(use_files, "RETRY_S", 0.05)
    monkeypatch.setattr(files, "write", full)
    store.put_ended(record())
    said = until(lambda: capfd.readouterr().err)
    assert "No space left" in said
    assert [one.use.job for one in store.read(7)] == [7]
    monkeypatch.setattr(files, "write", real)
    until(lambda: on_disk(tmp_path, 7))


def test_damaged_and_foreign_files_are_sentences_and_stop_nothing(store, tmp_path):
    jobs = tmp_path / "state/jobs"
    (jobs / "7.json").write_bytes(b"{half")
    with pytest.raises(StateError, match="is no record of a job"):
        store.read(7)
    (jobs / "8.json").symlink_to("/etc/passwd")
    with pytest.raises(StateError):
        store.read(8)
    (jobs / "9.json").write_bytes(msgspec.json.encode({"version": 99, "starts": []}))
    with pytest.raises(StateError, match="newer"):
        store.read(9)
    store.put_ended(record(7))
    until(lambda: (jobs / "7.json").read_bytes() != b"{half")
    assert [one.use.job for one in store.read(7)] == [7]


def test_a_folder_that_cannot_be_used_is_told_once_and_the_agent_goes_on(tmp_path, monkeypatch, capfd):
    users(monkeypatch)
    (tmp_path / "file").touch()
    with agent_on(tmp_path, usage_folder=str(tmp_path / "file/state")) as agent:
        agent.sampler.gone = {7}
        until(lambda: (found := asked(agent, ALICE, 7)[0]) and found[0].ended is not None)
    assert capfd.readouterr().err.count("keeps no records of jobs") == 1


def test_two_agents_do_not_use_one_folder(store, tmp_path, capfd):
    other = UseFiles(str(tmp_path / "state"), 30, 512)
    assert other.open() == ([], StoredNode())
    other.close(10.0)
    assert "another agent uses it" in capfd.readouterr().err


def test_a_damaged_file_of_a_running_job_is_left_out(tmp_path):
    store = UseFiles(str(tmp_path / "state"), 30, 512)
    store.open()
    totals = JobTotals(number=1, job=7, uid=ALICE, user="alice", node="n1", seen_first=1.0, seen_last=2.0)
    series = UseSeries(job=7, uid=ALICE, node="n1", every_s=5.0)
    store.put_running({(7, ALICE): StoredJob("boot", totals, series)}, StoredNode(boot_id="boot"))
    store.close(10.0)
    (tmp_path / "state/running/8-1.json").write_bytes(b"\0half")
    other = UseFiles(str(tmp_path / "state"), 30, 512)
    jobs, node = other.open()
    other.close(10.0)
    assert ([one.totals.job for one in jobs], node.boot_id) == ([7], "boot")
