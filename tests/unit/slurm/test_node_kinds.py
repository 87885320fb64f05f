"""Kinds of nodes, from recorded answers of both Slurm releases."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_share.core.errors import CommandError
from slurm_share.slurm import jobs
from slurm_share.slurm.rules import resources

DATA = Path(__file__).parents[2] / "data"


@pytest.mark.parametrize("release", ["26.05", "24.11"])
def test_the_recorded_cluster_has_three_nodes_in_two_partitions(release: str) -> None:
    kinds = jobs.parse_node_kinds((DATA / f"slurm-{release}" / "sinfo.json").read_text(), "gpu")
    gpu = {kind.nodes: kind for kind in kinds if kind.partition == "gpu"}
    assert {kind.partition: kind.is_default for kind in kinds} == {"gpu": True, "plain": False}
    assert set(gpu) == {("n1",), ("n2",), ("n3",)}
    n1, n3 = gpu[("n1",)], gpu[("n3",)]
    assert (n1.cpus, n1.cores, n1.threads_per_core, n1.memory_mib) == (16, 16, 1, 16000)
    assert (n1.gpus, n1.gpus_allocated, n1.gpu_count) == ((("simulated", 4),), (("simulated", 2),), 4)
    assert (n1.cpus_allocated, n1.cpus_idle, n1.usable) == (11, 5, True)
    assert (n3.states, n3.cpus_idle, n3.usable) == (("MIXED", "DRAIN"), 0, False)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("", ()),
        ("(null)", ()),
        ("gpu:4", (("", 4),)),
        ("gpu:a100:4(S:0-1),gpu:a100_1g.5gb:2,shard:a100:16", (("a100", 4), ("a100_1g.5gb", 2))),
        ("gpu:volta:2(IDX:0,2),shard:volta:0(0/8,0/8)", (("volta", 2),)),
        ("gpu:volta:0(IDX:N/A)", (("volta", 0),)),
        ("shard:gpu:4,lustre:1", ()),
    ],
)
def test_gpus_are_found_among_the_generic_resources(text: str, gpus: tuple[tuple[str, int], ...]) -> None:
    assert resources.parse_gpus(text) == gpus


def test_the_default_partition_is_in_scontrols_words() -> None:
    text = "PartitionName=a AllowGroups=ALL Default=NO\nPartitionName=b AllowGroups=ALL Default=YES QoS=N/A\n"
    assert jobs.parse_default_partition(text) == "b"
    assert jobs.parse_default_partition("PartitionName=a Default=NO\n") is None
    assert jobs.parse_default_partition("") is None


def test_an_answer_that_is_not_sinfos_is_an_error() -> None:
    for text in ("", "{}", "slurm_load_partitions: Unable to contact slurm controller"):
        with pytest.raises(CommandError, match="sinfo"):
            jobs.parse_node_kinds(text)


def test_what_the_user_set_for_sinfo_hides_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    environments = []

    def run(argv: list[str], *, env: dict[str, str], **_: object) -> str:
        environments.append(env)
        return (DATA / "slurm-26.05" / "sinfo.json").read_text() if argv[0] == "sinfo" else ""

    monkeypatch.setattr(jobs, "run", run)
    for name in ("SINFO_PARTITION", "SCONTROL_ALL", "SQUEUE_USERS", "SLURM_JSON"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("SLURM_CONF", "/x")
    assert jobs.read_node_kinds()
    assert len(environments) == 2
    for env in environments:
        assert env["SLURM_CONF"] == "/x"
        assert not [name for name in env if name.startswith(("SINFO_", "SCONTROL_", "SQUEUE_", "SLURM_JSON"))]
