"""A cluster whose names, numbers and reasons are as long as those of large sites."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from dashboards import NOW, a_survey
from msgspec.structs import replace

from slurm_share.load.rules.idle import judged
from slurm_share.load.snapshot import Survey
from slurm_share.slurm.records import QueuedJob

USER = "alice.van-der-bergh"
LONG = {"alice": USER, "bob": "bob.featherstonehaugh", "carol": "carol.villanueva", "dave": "dave.o-sullivan"}
REASONS = (
    *("Resources", "Priority", "QOSMaxJobsPerUserLimit", "AssocGrpCPURunMinutesLimit", "JobHeldUser", "BeginTime", ""),
    *(
        "DependencyNeverSatisfied",
        "ReqNodeNotAvail, UnavailableNodes:rack17-node-v-[1-8]",
        "launch failed requeued held",
    ),
)


def waiting(number: int, **more: Any) -> QueuedJob:
    """Return a waiting job of the user's."""
    of_all = {"user": USER, "uid": 2001, "partition": "gpu-a100-long", "states": ("PENDING",), "gpus": 8}
    name = f"bert-large-pretraining-seed{number}"
    return QueuedJob(job_id=1_234_500 + number, **{"name": name, **of_all, **more})


def the_waiting() -> tuple[QueuedJob, ...]:
    """Return 20 waiting jobs: ten reasons, expected starts of today and of another day, arrays, a heterogeneous job."""
    starts = (int(NOW) + 1800, int(NOW) + 9 * 86400, None)
    found = [waiting(at, reason=REASONS[at % len(REASONS)], start=starts[at % 3]) for at in range(15)]
    return (
        *found,
        waiting(20, array=1_234_520, waiting="1-99%4", reason="Resources", name="hyper"),
        waiting(21, array=1_234_521, waiting="1-3,5,7-9,11-300:7,401,403-99999%16", reason="Priority"),
        waiting(22, het=(1_234_522, 0), reason="Resources", name=""),
        waiting(23, het=(1_234_522, 1), reason="Resources", partition=""),
        waiting(24, array=1_234_520, element=101, reason="JobArrayTaskLimit"),
    )


def long_survey(*, everybody: bool = True) -> Survey:
    """Return the demonstration with long names, seven digits in the numbers of jobs, a triple of three digits, and the
    waiting jobs."""
    survey = judged(a_survey(everybody=everybody))
    text = msgspec.json.encode(survey).decode()
    text = re.sub(r"(?<!\w)([vhc])-(?=[\[\d])", r"rack17-node-\1-", text)
    for short, name in LONG.items():
        text = re.sub(rf"\b{short}\b", name, text)
    for job in survey.jobs:
        text = re.sub(rf"\b{job.job_id}\b", str(1_300_000 + job.job_id), text)
    text = text.replace('"resnet18"', '"resnet18-imagenet-batch512-lr0.05-seed17"').replace("[1,8,12]", "[16,128,12]")
    found = msgspec.json.decode(text, type=Survey)
    return replace(found, jobs=(*found.jobs, *the_waiting()))
