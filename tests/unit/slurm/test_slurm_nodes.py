"""Nodes, from what both Slurm releases really answered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_share.core.errors import CommandError
from slurm_share.core.process import Finished
from slurm_share.slurm import jobs as slurm_jobs
from slurm_share.slurm import nodes as slurm_nodes
from slurm_share.slurm.rules import resources

DATA = Path(__file__).parents[2] / "data"
RELEASES = ["26.05", "24.11"]


@pytest.fixture(params=RELEASES)
def folder(request):
    return DATA / f"slurm-{request.param}"


@pytest.fixture
def nodes(folder):
    return {node.name: node for node in slurm_nodes.parse_nodes((folder / "scontrol-nodes.txt").read_text())}


def test_nodes_are_what_scontrol_says_in_json(folder, nodes):
    told = {one["name"]: one for one in json.loads((folder / "scontrol-nodes.json").read_text())["nodes"]}
    assert set(nodes) == set(told) == {"n1", "n2", "n3", "n4", "far"}
    for name, words in told.items():
        node = nodes[name]
        assert list(node.states) == words["state"]
        assert (node.cpus, node.cpus_allocated) == (words["cpus"], words["alloc_cpus"])
        assert (node.memory_mib, node.memory_allocated_mib) == (words["real_memory"], words["alloc_memory"])
        assert list(node.partitions) == words["partitions"]
        assert node.reason == words["reason"].partition("\n")[0]
        assert (node.address or node.name) == words["address"]
        if node.answers:
            assert (node.load5, node.memory_free_mib) == (words["cpu_load"] / 100, words["free_mem"]["number"])


def test_whole_gpus_and_parts_are_both_taken(nodes):
    """n1 has four: one given whole, of another one a quarter."""
    assert {name: (node.gpus, node.gpus_allocated) for name, node in nodes.items()} == {
        "n1": (4, 2),
        "n2": (2, 0),
        "n3": (2, 0),
        "n4": (2, 0),
        "far": (0, 0),
    }


def test_a_silent_node_has_no_load(nodes):
    """Slurm keeps what it heard last, and a 0 for a load; neither is of now."""
    for name in ("n2", "far"):
        assert not nodes[name].answers
        assert (nodes[name].load5, nodes[name].memory_free_mib) == (None, None)
    assert nodes["n3"].answers
    assert nodes["n3"].reason == "a fan is loud"


def test_an_address_is_there_where_it_is_not_the_name(nodes):
    assert {name: node.address for name, node in nodes.items() if node.address} == {"far": "192.0.2.7"}


HEAD = (
    "NodeName=n1 CPUAlloc=1 CPUTot=8 CPULoad=N/A Gres=(null) NodeAddr=n1 RealMemory=1000 AllocMem=0 FreeMem=N/A "
    "State=IDLE+DRAIN Partitions=p"
)
STAMP = "[root@2026-11-21T18:35:34]"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("", ""),
        (f" Reason=two words {STAMP}", "two words"),
        (f"  Reason=two words {STAMP}", "two words"),
        (" Reason=of slurm.conf", "of slurm.conf"),
        (" Reason=of slurm.conf Comment=a b", "of slurm.conf"),
        (f" Reason=x State=DOWN CPUTot=1 Reason=y Comment=z {STAMP}", "x State=DOWN CPUTot=1 Reason=y Comment=z"),
        (f" Reason={STAMP} {STAMP}", STAMP),
        (f" Reason=was {STAMP}; now this {STAMP} Comment=a {STAMP}", f"was {STAMP}; now this"),
        (f" Reason=one {STAMP}        NodeName=n9 CPUTot=3 Comment=c", "one"),
        (f" Reason=\x1b[2J \u2028 é {STAMP}", "\x1b[2J \u2028 é"),
        (" Comment=free State=DOWN Reason=no Extra=e", ""),
        (" Extra=State=DOWN Reason=no", ""),
        (f" Reason=r {STAMP} Comment=a\nNodeName=n9 CPUTot=3 State=IDLE\nb Extra=c", "r"),
    ],
)
def test_what_administrators_write_is_text_and_nothing_else(said, reason):
    (node, other) = slurm_nodes.parse_nodes(f"{HEAD}{said}\n{HEAD.replace('=n1', '=n2')}\n")
    assert (node.name, node.states, node.cpus, node.reason) == ("n1", ("IDLE", "DRAIN"), 8, reason)
    assert other.name == "n2"


def test_a_star_is_a_node_that_does_not_respond():
    (node,) = slurm_nodes.parse_nodes(HEAD.replace("IDLE+DRAIN", "IDLE*+DRAIN"))
    assert node.states == ("IDLE", "NOT_RESPONDING", "DRAIN")
    assert not node.answers


def test_no_nodes_are_no_error():
    assert slurm_nodes.parse_nodes("") == slurm_nodes.parse_nodes("No nodes in the system\n") == ()
    assert slurm_nodes.parse_nodes("Node n9 not found\n") == ()


@pytest.mark.parametrize(
    "text", ["slurm_load_node: Unable to contact slurm controller", "NodeName=n1 CPUs=8 Status=IDLE", "{}", "NodeName="]
)
def test_another_program_s_answer_is_an_error(text):
    with pytest.raises(CommandError):
        slurm_nodes.parse_nodes(text)


def test_nodes_that_slurm_does_not_know_are_left_out(monkeypatch):
    said = Finished(1, f"Node n8 not found\n{HEAD} Reason=r {STAMP}\nNode n9 not found\n", "")
    monkeypatch.setattr(slurm_nodes, "finish", lambda *_args, **_words: said)
    assert [(node.name, node.reason) for node in slurm_nodes.read_nodes("n[1,8-9]")] == [("n1", "r")]
    monkeypatch.setattr(slurm_nodes, "finish", lambda *_args, **_words: Finished(1, "", "slurm_load_node error: down"))
    with pytest.raises(CommandError, match="down"):
        slurm_nodes.read_nodes("n1")


def test_jobs_have_the_gpus_that_squeue_names(folder):
    _, jobs = slurm_jobs.parse_queue((folder / "squeue.json").read_text())
    for job in jobs:
        assert job.gpu_indexes is not None
        if not job.nodes or (job.gpus == 0 and not job.has_shards):
            assert job.gpu_indexes == ()
        elif job.has_shards:
            assert [len(one) for one in job.gpu_indexes] == [1]
        else:
            assert len(job.gpu_indexes) == job.node_count
            assert sum(map(len, job.gpu_indexes)) == job.gpus
    assert any(job.gpus for job in jobs)
    assert {job.script for job in jobs} >= {"/home/alice/hold.sh"}
    assert any(job.has_shards and job.nodes for job in jobs)


def test_jobs_have_what_they_ask_for_as_squeue_has_it(folder):
    """Both releases; the partition's limit is a day."""
    _, jobs = slurm_jobs.parse_queue((folder / "squeue.json").read_text())
    assert {(job.limit_s, job.is_unlimited, job.priority) for job in jobs} == {(86400, False, 1)}
    assert all(job.submitted and (job.start is None or job.submitted <= job.start) for job in jobs)
    assert {job.ends - job.start for job in jobs if job.nodes} == {86400}
    assert {job.ends for job in jobs if not job.nodes} == {None}
    assert [job.dependency for job in jobs if job.dependency] == ["singleton(unfulfilled)"]


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"time_limit": {"set": False, "infinite": True, "number": 0}}, (None, True, None)),
        ({"time_limit": {"set": False, "infinite": False, "number": 0}}, (None, False, None)),
        ({"job_state": ["RUNNING", "SUSPENDED"]}, (86400, False, None)),
    ],
)
def test_a_limit_is_none_or_not_known_or_does_not_run(folder, fields, wanted):
    """The end that Slurm gives for a suspended job is too early, because its time does not run."""
    queue = json.loads((folder / "squeue.json").read_text())
    (job,) = slurm_jobs.parse_queue(json.dumps({**queue, "jobs": [{**queue["jobs"][0], **fields}]}))[1]
    assert (job.limit_s, job.is_unlimited, job.ends) == wanted


@pytest.mark.parametrize(
    ("details", "count", "indexes"),
    [
        ([], 2, ()),
        (["gpu:2(IDX:0-1)"], 1, ((0, 1),)),
        (["gpu:simulated:4(IDX:0-3)", "gpu:simulated:1(IDX:0)"], 2, ((0, 1, 2, 3), (0,))),
        (["gpu:a100:1(IDX:0),gpu:v100:3(IDX:1,4-5)"], 1, ((0, 1, 4, 5),)),
        (["shard:a100:4(0/8,4/8,0/8)"], 1, ((1,),)),
        (["gpu:1(IDX:2)", ""], 2, ((2,), ())),
        (["gpu:1(IDX:2)"], 2, None),
        (["gpu:2(IDX:N/A)"], 1, None),
        (["gpu:a100:2(IDX:0-1),gpu:v100:0(IDX:)", "gpu:v100:1(IDX:3),gpu:a100:0(IDX:N/A)"], 2, ((0, 1), (3,))),
        (["gpu:a100:2"], 1, None),
        (["license:matlab:1(IDX:0)"], 1, ((),)),
    ],
)
def test_details_of_a_job_s_gpus(details, count, indexes):
    assert resources.parse_gpu_indexes(details, count) == indexes


def test_jobs_have_the_memory_that_slurm_gave_them(folder):
    """Job 19 asked for --mem=0, all of the node's; 22 for 500 MiB of each of 4 CPUs; 21 waits."""
    _, jobs = slurm_jobs.parse_queue((folder / "squeue.json").read_text())
    found = {job.job_id: (job.memory_mib, job.memory_on_nodes_mib) for job in jobs}
    assert (found[19], found[22], found[21]) == ((0, (8000,)), (500, (2000,)), (100, ()))
    assert found[29] == (300, (300, 300))
