"""Slurm's reasons why a job waits, in words."""

from __future__ import annotations

REASONS = {
    "AccountNotAllowed": "its account may not use the partition",
    "AccountingPolicy": "a limit of accounting is reached",
    "AssociationJobLimit": "its account has as many jobs as it may",
    "AssociationResourceLimit": "its account uses as much as it may",
    "AssociationTimeLimit": "its account has used its time",
    "BadConstraints": "no node can ever fulfil what it asks for",
    "BeginTime": "it begins later, as it was submitted to",
    "BurstBufferOperation": "an operation of the burst buffer failed",
    "BurstBufferResources": "the burst buffer is full",
    "BurstBufferStageIn": "its files are copied to the burst buffer",
    "Cleaning": "it was requeued, and its last run is cleaned up",
    "DeadLine": "it cannot end before its deadline",
    "Dependency": "it depends on a job that has not ended",
    "DependencyNeverSatisfied": "a job that it depends on ended otherwise than it demands: it never starts",
    "FedJobLock": "a cluster of the federation decides first",
    "FrontEndDown": "no front end is up",
    "InactiveLimit": "it reached the limit of inactivity",
    "InvalidAccount": "its account does not exist: it never starts",
    "InvalidQOS": "its QOS does not exist: it never starts",
    "JobArrayTaskLimit": "as many elements of its array run as it allows at once",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "its user holds it: scontrol release lets it start",
    "JobHoldMaxRequeue": "it is held, since it was requeued too often",
    "JobLaunchFailure": "its start failed: a file system or the node is unwell",
    "Licenses": "the licenses that it asks for are in use",
    "MaxMemPerLimit": "it asks for more memory for a CPU or node than is allowed",
    "MaxRequeue": "it was requeued too often",
    "NodeDown": "a node that it needs is down",
    "NonZeroExitCode": "it ended with an exit code other than 0",
    "None": "Slurm has not looked at it yet",
    "OutOfMemory": "it had no memory left",
    "PartitionConfig": "the partition's rules do not allow it",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition starts no jobs",
    "PartitionNodeLimit": "it asks for more or fewer nodes than the partition allows",
    "PartitionTimeLimit": "its time limit is above the partition's",
    "Priority": "jobs with a higher priority wait before it",
    "Prolog": "its Prolog runs",
    "QOSJobLimit": "its QOS has as many jobs as it may",
    "QOSMinGRES": "its QOS demands more GPUs, of which a part of a GPU (--share-gpu with -n1) is none: it never starts",
    "QOSNotAllowed": "its QOS may not use the partition",
    "QOSResourceLimit": "its QOS uses as much as it may",
    "QOSTimeLimit": "its QOS has used its time",
    "QOSUsageThreshold": "the use by its QOS is too high",
    "ReqNodeNotAvail": "a node that it needs is not available",
    "RequeuedInHostCertProblem": "its node's certificate failed",
    "Reservation": "its reservation has not begun, or is in use",
    "ReservationDeleted": "its reservation was deleted",
    "Resources": "the nodes, CPUs, GPUs or memory that it asks for are in use",
    "SchedDefer": "Slurm starts nothing at submission; it looks soon",
    "SystemFailure": "Slurm, a file system or the network failed",
    "TimeLimit": "it reached its time limit",
}
"""The common reasons (slurm.h, `enum job_state_reason`; "Job Reason Codes" in squeue's manual)."""

_LIMITED = {"Assoc": "its account", "QOS": "its QOS", "Max": "its QOS or account"}
_OF = (
    ("GrpCpuRunMinutes", "CPU time that its running jobs may have left"), ("GRES", "GPUs"), ("Gres", "GPUs"),
    ("Cpu", "CPUs"), ("CPU", "CPUs"), ("Mem", "memory"), ("Node", "nodes"), ("Job", "jobs"), ("Submit", "jobs"),
    ("Wall", "time"), ("Billing", "billing units"), ("BB", "burst buffer"), ("License", "licenses"),
    ("Energy", "energy"),
)  # fmt: skip


def in_words(reason: str) -> str:
    """Return Slurm's reason in words; empty: it is no word of Slurm's, or one that says enough or is not known.

    Slurm adds to some reasons, as in `ReqNodeNotAvail, UnavailableNodes:n4`; limits of accounting have names made of
    parts, as in `QOSMaxGRESPerUser`.
    """
    word = reason.partition(",")[0].strip()
    if word in REASONS:
        return REASONS[word]
    whose = next((who for begin, who in _LIMITED.items() if word.startswith(begin)), "")
    what = next((what for part, what in _OF if part in word), "")
    if whose and what and ("Max" in word or "Grp" in word or "Min" in word):
        least = "Min" in word and "Minutes" not in word and "Max" not in word
        each = " of its user" if "PerUser" in word else " of its account" if "PerAccount" in word else ""
        return (
            f"it asks for less {what} than {whose} demands"
            if least
            else f"the limit of {whose} on {what}{each} is reached"
        )
    return ""
