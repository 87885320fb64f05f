"""Limits on gres/gpu that parts of a GPU pass by, as sacctmgr of 26.05.5 and 24.11.5 prints them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from slurm_share.core.errors import CommandError
from slurm_share.core.process import Finished
from slurm_share.slurm.account_limits import GpuLimit, explain, parse_assoc, parse_qos, read_gpu_limits

QOS = """normal||||cpu=100,gres/gpu=2||gres/gpu=1|||
both|gres/gpu=8,gres/shard=9|gres/gpu=2,gres/shard=0|||||gres/gpu=600||
cpus|cpu=4|node=2|||||||
typed||||gres/gpu:a100=2|||||
"""
ASSOC = """root||||||||
lab||||gres/gpu=3||||
lab|alice||gres/gpu=0|||||
lab|alice|fine|||||gres/gpu=77|
lab|bob|||||||
"""
FOUND = (
    GpuLimit("qos normal", "MaxTRESPerUser", 2),
    GpuLimit("qos normal", "MinTRESPerJob", 1),
    GpuLimit("qos both", "GrpTRESMins", 600),
    GpuLimit("account where name=lab", "MaxTRESPerJob", 3),
    GpuLimit("user where name=alice account=lab", "GrpTRES", 0),
    GpuLimit("user where name=alice account=lab partition=fine", "GrpTRESRunMins", 77),
)


def ask(argv: Sequence[str]) -> Finished:
    return Finished(0, QOS if "qos" in argv else ASSOC, "")


def test_limits_on_gpus_without_one_on_shards_are_found() -> None:
    assert (*parse_qos(QOS), *parse_assoc(ASSOC)) == FOUND
    assert tuple(parse_assoc("\n|\nlab|alice\n")) == ()


@pytest.mark.parametrize(("enforced", "found"), [(["limits", "qos"], FOUND), (["safe"], FOUND), (["associations"], ())])
def test_limits_that_slurm_does_not_enforce_do_not_count(enforced: list[str], found: tuple[GpuLimit, ...]) -> None:
    assert read_gpu_limits(ask, "demo", enforced) == found


def test_a_database_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(CommandError, match="no slurmdbd"):
        read_gpu_limits(lambda _: Finished(1, "", "no slurmdbd"), "demo", ["limits"])


def test_the_command_has_the_number_for_shards() -> None:
    said, fix = explain(FOUND[0], 720720)
    assert (
        said == "MaxTRESPerUser=gres/gpu=2 of qos normal lets every number of parts of a GPU pass, which are gres/shard"
    )
    assert fix == "sacctmgr -i modify qos normal set MaxTRESPerUser=gres/shard=1441440"
    assert "pends for ever (QOSMinGRES)" in explain(FOUND[1], 720720)[0]
    assert explain(FOUND[3], 12)[1] == "sacctmgr -i modify account where name=lab set MaxTRESPerJob=gres/shard=36"
    assert explain(FOUND[4], 12)[0].startswith("GrpTRES=gres/gpu=0 of user alice account=lab lets")
