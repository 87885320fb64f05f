"""The GPUs of a job on a node of several types: what slurm.conf says of the node, and the controller of the job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_share.core import process
from slurm_share.core.errors import CommandError
from slurm_share.core.process import Deadline
from slurm_share.slurm import job_gpus
from slurm_share.slurm.job_gpus import NodeGpus

TYPED = "NodeName=n[1-4] Gres=gpu:a100:2,gpu:v100:2\n"


@pytest.mark.parametrize(
    ("gres", "types", "count"),
    [
        ("gpu", 1, 1),
        ("gpu:4", 1, 4),
        ("gpu:a100", 1, 1),
        ("gpu:1080:2", 1, 2),
        ("gpu:a100:2,gpu:v100:2,shard:a100:16,shard:v100:16", 2, 4),
        ("gpu:a100:no_consume:2(S:0,1),gpu:3g.20gb:2(S:0-1)", 2, 4),
        ("nic:2,mps:400", 0, 0),
        ("", 0, 0),
    ],
)
def test_a_gres_has_so_many_types_and_gpus(gres: str, types: int, count: int) -> None:
    assert job_gpus.parse_gres(gres) == NodeGpus(types, count)


@pytest.mark.parametrize(
    ("text", "node", "expected"),
    [
        ("NodeName=n1 Gres=gpu:4\nNodeName=n2 gres=gpu:a100:2,shard:64\n", "n1", NodeGpus(1)),
        ("AccountingStorageTRES=gres/gpu,gres/gpu:a100\nNodeName=n1 Gres=gpu:4\n", "n1", NodeGpus(1)),
        (TYPED, "n3", NodeGpus(2, 4)),
        (TYPED + "NodeName=m1 Gres=gpu:2\n", "m1", NodeGpus(1, 2)),
        ("NodeName=DEFAULT Gres = gpu:a100:2,gpu:v100:1\nNodeName=n1,n2\n", "n2", NodeGpus(2, 3)),
        (TYPED, "m1", NodeGpus(None)),
        ("MaxNodeCount=9\nNodeName=n1 Gres=gpu:4\n", "dynamic1", NodeGpus(None)),
        ("MaxNodeCount=9\nNodeName=n1 Gres=gpu:4\n", "n1", NodeGpus(1, 4)),
        ("Include nodes.conf\n", "n1", NodeGpus(2, 4)),
        ("include missing.conf\nNodeName=n1 Gres=gpu:4\n", "n1", NodeGpus(None)),
        ("NodeName=n[1- Gres=gpu:a:1,gpu:b:1\n", "n1", NodeGpus(None)),
    ],
)
def test_the_types_of_a_node_are_read_from_slurm_conf(tmp_path: Path, text: str, node: str, expected: NodeGpus) -> None:
    (tmp_path / "nodes.conf").write_text(TYPED)
    (tmp_path / "slurm.conf").write_text(text)
    assert job_gpus.read_node_gpus(tmp_path / "slurm.conf", node) == expected


def test_nothing_is_known_of_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert job_gpus.read_node_gpus(tmp_path / "none", "n1") == NodeGpus(None)
    assert job_gpus.read_node_gpus(tmp_path / "a\0b", "n1") == NodeGpus(None)


def answer(*jobs: tuple[int, str, list[str]]) -> str:
    return json.dumps({"jobs": [{"job_id": job, "nodes": nodes, "gres_detail": gres} for job, nodes, gres in jobs]})


def test_the_gpus_of_all_types_are_the_jobs() -> None:
    both = "gpu:a100:2(IDX:0-1),gpu:v100:1(IDX:3)"
    text = answer((7, "n[1-2]", [both, "gpu:a100:0(IDX:),gpu:v100:1(IDX:2)"]), (8, "n1", ["gpu:1(IDX:1)"]))
    assert job_gpus.parse_answer(text, 7, "n1") == (0, 1, 3)
    assert job_gpus.parse_answer(text, 7, "n2") == (2,)
    assert job_gpus.parse_answer(text, 8, "n1") == (1,)
    part = answer((7, "n1", ["shard:a100:0(0/8,0/8,0/8,0/8),shard:v100:4(0/8,0/8,4/8,0/8)"]))
    assert job_gpus.parse_answer(part, 7, "n1") == (2,)


@pytest.mark.parametrize(
    "text",
    [
        "", "JobId=7 Nodes=n1 GRES=gpu:1(IDX:0)", "[]", '{"jobs": [{"job_id": "7"}]}',
        answer(), answer((8, "n1", ["gpu:1(IDX:1)"])), answer((7, "n2", ["gpu:1(IDX:1)"])),
        answer((7, "n1", ["gpu:2"])), answer((7, "n1", [])), answer((7, "n1", ["gpu:1(IDX:0)"] * 2)),
        answer((7, "n[1-", ["gpu:1(IDX:0)"])),
    ],
)  # fmt: skip
def test_another_answer_names_no_gpus(text: str) -> None:
    with pytest.raises(CommandError):
        job_gpus.parse_answer(text, 7, "n1")


def test_the_controller_is_asked_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, object] = {}

    def finish(argv: list[str], **options: object) -> process.Finished:
        seen.update(argv=argv, **options)
        return process.Finished(0, answer((7, "n1", ["gpu:1(IDX:1)"])), "")

    monkeypatch.setattr(process, "finish", finish)
    assert job_gpus.ask(7, "n1", "/etc/slurm/slurm.conf", Deadline.after(60)) == (1,)
    assert seen["argv"] == ["scontrol", "--json=v0.0.42", "show", "job", "7"]
    assert 0 < float(str(seen["timeout_s"])) <= job_gpus.ASK_S
    assert set(dict(seen["env"])) == {"PATH", "LC_ALL", "SLURM_CONF"}  # type: ignore[call-overload]


@pytest.mark.parametrize(("text", "numbers"), [("0,2", (0, 2)), ("", ()), ("GPU-1", ()), ("1,x", ())])
def test_numbers_are_those_of_slurms_own_variable(text: str, numbers: tuple[int, ...]) -> None:
    assert job_gpus.read_numbers({"SLURM_JOB_GPUS": text}) == numbers
    assert job_gpus.read_numbers({}) == ()
