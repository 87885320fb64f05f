"""llfree, from what both Slurm releases really answered."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_share.cli import llfree
from slurm_share.core import terminal
from slurm_share.slurm import jobs as slurm_jobs
from slurm_share.slurm.records import ClusterName, NodeKind
from slurm_share.slurm.rules import free, resources

DATA = Path(__file__).parents[2] / "data"
ALICE = 2001
"""The user who holds nodes in the recordings."""
NODE = NodeKind(
    partition="xeon-g6",
    nodes=("a1", "a2"),
    states=("IDLE",),
    cpus=80,
    cpus_idle=80,
    cores=40,
    threads_per_core=2,
    memory_mib=1,
    gpus=(("volta", 2),),
)


@pytest.fixture(params=["26.05", "24.11"])
def folder(request, monkeypatch):
    """Answer Slurm's commands with the recordings of one release."""
    folder = DATA / f"slurm-{request.param}"

    def run(argv, **_):
        if argv[0] == "sinfo":
            return (folder / "sinfo.json").read_text()
        if argv[0] == "squeue":
            return (folder / "squeue.json").read_text()
        if "ping" in argv:
            return (folder / "scontrol-ping.json").read_text()
        return "PartitionName=gpu Default=YES\nPartitionName=plain Default=NO\n"

    monkeypatch.setattr(slurm_jobs, "run", run)
    monkeypatch.setattr(os, "getuid", lambda: ALICE)
    return folder


def test_llsc_tools_find_free_cores_and_free_nodes(folder, capsys):
    """pPython's rule: a line with LLGrid in it names cluster, scheduler and version; in the first line that has the
    kind's name, the fifth field is unclaimed cores and the seventh unclaimed nodes."""
    assert llfree.main(["--hide-header"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    words = first.split()
    assert (words[1], words[3]) == ("demo", "slurm")
    assert words[-1][:-1] in ("26.05.5", "24.11.5")
    fields = next(line for line in lines if "gpu" in line).split()
    assert (int(fields[4]), int(fields[6])) == (5, 0)


def test_the_sums_are_sinfos(folder, capsys):
    """Cores, and those that are idle, partition by partition, against sinfo's own text of the same moment."""
    llfree.main(["--json"])
    kinds = json.loads(capsys.readouterr().out)["kinds"]
    said = [line.split("|") for line in (folder / "sinfo.txt").read_text().splitlines()[1:]]
    for partition in ("gpu", "plain"):
        cpus = [line[3].split("/") for line in said if line[0].rstrip("*") == partition]
        mine = [kind for kind in kinds if kind["partition"] == partition]
        assert sum(kind["cores"] for kind in mine) == sum(int(one[3]) for one in cpus)
        assert sum(kind["free_cores"] for kind in mine) == sum(int(one[1]) for one in cpus) == 5
        assert sum(kind["nodes"] for kind in mine) == 3
        assert sum(kind["gpus"] for kind in mine) == 8


def test_headings_and_one_partition(folder, capsys):
    assert llfree.main(["-p", "plain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[4] == "FREE_CORES"
    assert lines[1].split()[6] == "FREE_NODES"
    assert {line.split()[0] for line in lines[2:]} == {"plain"}


@pytest.mark.parametrize("name", ["nosuch", "", "gpu,"])
def test_a_partition_that_is_not_there_gets_a_sentence_and_2(folder, capsys, name):
    assert llfree.main(["-p", name]) == 2
    assert "there are gpu, plain" in capsys.readouterr().err


@pytest.mark.parametrize("gpu", ["volta", "nvidia_a100_80gb_pcie_with_a_long_name"])
def test_a_terminal_of_80_columns_has_whole_lines_and_a_pipe_all_columns(gpu):
    node = replace(NODE, features="xeon-g6,infiniband,opa,skylake", gpus=((gpu, 2),), cpus=100_000)
    kinds = free.summarize([node, replace(node, partition="a-partition-with-a-long-name")])
    cluster = ClusterName("demo", "26.05.5")
    first, headings, *table, note = llfree.as_lines(cluster, kinds, hide_header=False, width=80)
    assert first == "LLGrid: demo (running slurm 26.05.5)"
    assert {"PARTITION", "GPU_TYPE", "FREE_CORES", "FREE_NODES", "FREE_GPUS"} <= set(headings.split())
    assert max(map(len, [headings, *table, note])) <= 80
    assert "GPUS: shown in a wider terminal" in note
    assert table[1].startswith("a-partition")
    assert table[1].split()[0].endswith("…")
    wide = llfree.as_lines(cluster, kinds, hide_header=True, width=terminal.WIDE)
    assert [len(line.split()) for line in wide[1:]] == [9, 9]


def test_an_idle_kind_is_all_free():
    """40 cores with two threads each are 80 CPUs for Slurm, and 40 cores."""
    (kind,) = free.summarize([NODE])
    assert (kind.cores, kind.free_cores, kind.nodes, kind.free_nodes, kind.gpus, kind.free_gpus) == (80, 80, 2, 2, 4, 4)


@pytest.mark.parametrize(
    ("states", "up"),
    [
        (("DOWN",), True),
        (("IDLE", "DRAIN"), True),
        (("IDLE", "RESERVED"), True),
        (("IDLE", "NOT_RESPONDING"), True),
        (("IDLE", "MAINTENANCE"), True),
        (("IDLE",), False),
    ],
)
def test_nothing_is_free_where_no_job_would_be_started(states, up):
    (kind,) = free.summarize([replace(NODE, states=states, partition_is_up=up)])
    assert (kind.free_cores, kind.free_nodes, kind.free_gpus) == (0, 0, 0)
    assert (kind.cores, kind.nodes, kind.gpus) == (80, 2, 4)


def test_a_node_whose_job_is_completing_is_not_free_yet():
    (kind,) = free.summarize([replace(NODE, states=("IDLE", "COMPLETING"))])
    assert kind.free_nodes == 0


def test_taken_gpus_and_gpus_of_which_a_part_is_taken_are_not_free():
    taken = replace(NODE, states=("MIXED",), gpus_allocated=(("volta", 1),))
    (kind,) = free.summarize([taken])
    assert (kind.free_gpus, kind.free_nodes) == (2, 0)
    (kind,) = free.summarize([replace(NODE, states=("MIXED",), gpus_in_parts=1)])
    assert kind.free_gpus == 2


def test_a_core_with_one_thread_taken_is_not_free():
    (kind,) = free.summarize([replace(NODE, nodes=("a1",), states=("MIXED",), cpus_idle=79)])
    assert kind.free_cores == 39


def test_nodes_that_differ_are_kinds_of_their_own():
    others = [
        replace(NODE, features="xeon-g6"),
        replace(NODE, gpus=()),
        replace(NODE, cores=20),
        replace(NODE, states=("ALLOCATED",), cpus_idle=0),
    ]
    kinds = free.summarize([NODE, *others])
    assert len(kinds) == 4
    assert (kinds[0].nodes, kinds[0].free_nodes) == (4, 2)


@pytest.mark.parametrize(
    ("used", "parts"),
    [
        ("gpu:simulated:1(IDX:0),shard:simulated:0(-/720720,0/720720)", 0),
        ("gpu:simulated:0(IDX:N/A),shard:simulated:180180(180180/720720,0/720720)", 1),
        ("gpu:a100:0(IDX:N/A),shard:a100:3(2/8,0/8,1/8)", 2),
        ("gpu:0,shard:2(2/8)", 1),
        ("gpu:a100:4(IDX:0-3)", 0),
        ("", 0),
    ],
)
def test_gpus_in_parts_are_counted(used, parts):
    assert resources.count_gpus_in_parts(used) == parts


def test_nodes_that_another_user_has_alone_are_not_free(folder):
    """alice's shared jobs keep bob off n2 and n3, whatever she leaves idle there; herself they keep off nothing."""
    jobs = slurm_jobs.read_queue()[1]
    assert set(free.held_by_others(jobs, 2002)) == {"n2", "n3"}
    assert set(free.held_by_others(jobs, ALICE)) == set()


def test_of_a_held_node_nothing_counts_as_free():
    (kind,) = free.summarize([NODE], held={"a1"})
    assert (kind.cores, kind.free_cores, kind.nodes, kind.free_nodes, kind.gpus, kind.free_gpus) == (80, 40, 2, 1, 4, 2)


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("gpu", "gpu belongs to no option; write llfree -p gpu for a partition"),
        ("--partitoin=gpu", "there is no option --partitoin=gpu; did you mean --partition?"),
        ("--zzzz", "there is no option --zzzz; see llfree --help"),
    ],
)
def test_an_unknown_word_is_named_with_a_way_out(capsys, word, why):
    with pytest.raises(SystemExit) as ended:
        llfree.main([word])
    assert ended.value.code == 2
    assert why in capsys.readouterr().err
