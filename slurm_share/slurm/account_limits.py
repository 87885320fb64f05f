"""Read limits in Slurm's accounting: those on gres/gpu, which do not count parts of a GPU (gres/shard), and on CPUs."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from ..core.errors import CommandError
from ..core.numbers import UINT32_MOST, whole
from ..core.process import Finished, run

QOS_LIMITS = {
    "GrpTRES": "GrpTRES",
    "MaxTRES": "MaxTRESPerJob",
    "MaxTRESPerNode": "MaxTRESPerNode",
    "MaxTRESPU": "MaxTRESPerUser",
    "MaxTRESPA": "MaxTRESPerAccount",
    "MinTRES": "MinTRESPerJob",
    "GrpTRESMins": "GrpTRESMins",
    "GrpTRESRunMins": "GrpTRESRunMins",
    "MaxTRESMins": "MaxTRESMinsPerJob",
}
ASSOC_LIMITS = {
    "GrpTRES": "GrpTRES",
    "MaxTRES": "MaxTRESPerJob",
    "MaxTRESPerNode": "MaxTRESPerNode",
    "GrpTRESMins": "GrpTRESMins",
    "GrpTRESRunMins": "GrpTRESRunMins",
    "MaxTRESMins": "MaxTRESMinsPerJob",
}
"""Columns of `sacctmgr show` -> the names that `sacctmgr modify` takes (sacctmgr(1))."""
LEAST = "MinTRESPerJob"
ENFORCED = frozenset({"limits", "safe", "all"})
"""Values of AccountingStorageEnforce with which limits count (slurm.conf(5))."""
_TRES = re.compile(r"(?:^|,)gres/(gpu|shard)=([0-9]+)(?=,|$)")


class GpuLimit(Struct, frozen=True):
    """A limit on gres/gpu of a QOS or an association that has none on gres/shard."""

    holder: str
    """As `sacctmgr modify` names it: `qos normal`, `account where name=lab`, `user where name=alice account=lab`."""
    name: str
    """MaxTRESPerUser."""
    count: int
    """GPUs, or for a limit on time GPU minutes."""


def qos_argv() -> list[str]:
    return ["sacctmgr", "-nP", "show", "qos", f"format=Name,{','.join(QOS_LIMITS)}"]


def assoc_argv(cluster: str) -> list[str]:
    """Return the command for the associations of a cluster, each without what it inherits."""
    columns = f"format=Account,User,Partition,{','.join(ASSOC_LIMITS)}"
    return ["sacctmgr", "-nP", "show", "assoc", "wopl", f"cluster={cluster}", columns]


def parse_qos(text: str) -> Iterator[GpuLimit]:
    """Yield the limits in the output of `qos_argv`."""
    for line in text.splitlines():
        name, *limits = line.split("|")
        yield from _limits(f"qos {name}", QOS_LIMITS.values(), limits)


def parse_assoc(text: str) -> Iterator[GpuLimit]:
    """Yield the limits in the output of `assoc_argv`."""
    for line in text.splitlines():
        account, user, partition, *limits = (*line.split("|"), "", "", "")
        where = f" partition={partition}" if partition else ""
        holder = f"user where name={user} account={account}{where}" if user else f"account where name={account}"
        yield from _limits(holder, ASSOC_LIMITS.values(), limits)


def _limits(holder: str, names: Iterable[str], texts: Sequence[str]) -> Iterator[GpuLimit]:
    for name, text in zip(names, texts, strict=False):
        found = dict(_TRES.findall(text))
        count = whole(found.get("gpu", ""), UINT32_MOST)
        if count is not None and "shard" not in found:
            yield GpuLimit(holder, name, count)


def read_gpu_limits(
    ask: Callable[[Sequence[str]], Finished], cluster: str, enforced: Iterable[str]
) -> tuple[GpuLimit, ...]:
    """Return the limits, none where Slurm does not enforce any. Raises CommandError if sacctmgr does not answer."""
    if not ENFORCED.intersection(enforced):
        return ()
    texts = []
    for argv in (qos_argv(), assoc_argv(cluster)):
        done = ask(argv)
        if done.code:
            raise CommandError(tuple(argv), done.code, done.stderr)
        texts.append(done.stdout)
    return (*parse_qos(texts[0]), *parse_assoc(texts[1]))


def explain(limit: GpuLimit, shards_per_gpu: int) -> tuple[str, str]:
    """Return what a limit does to parts of a GPU, and the command that mends it."""
    whose = limit.holder.replace(" where name=", " ")
    said = f"{limit.name}=gres/gpu={limit.count} of {whose}"
    modify = f"sacctmgr -i modify {limit.holder} set {limit.name}"
    if limit.name == LEAST:
        return (
            f"{said}: a part of a GPU is gres/shard and no gres/gpu, so that it pends for ever (QOSMinGRES)",
            f"give parts a QOS without it (`sbatch --qos`), or take it away: {modify}=gres/gpu=-1",
        )
    return (
        f"{said} lets every number of parts of a GPU pass, which are gres/shard",
        f"{modify}=gres/shard={limit.count * shards_per_gpu}",
    )


_CPUS = re.compile(r"(?:^|,)cpu=([0-9]{1,18})(?=,|$)")


def parse_cpu_limit(text: str, partition: str | None) -> int | None:
    """Return the highest limit of the associations that apply in `partition`; None: one of them has no limit, or there
    is none."""
    limits: list[int] = []
    for line in text.splitlines():
        where, _, tres = line.partition("|")
        if where in ("", partition):
            found = [int(number) for field in tres.split("|") for number in _CPUS.findall(field)]
            if not found:
                return None
            limits.append(min(found))
    return max(limits, default=None)


def read_cpu_limit(partition: str | None) -> int | None:
    """Return the caller's own limit; None as well where there is no accounting, or it does not answer."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
        argv = ["sacctmgr", "-nP", "show", "assoc", f"user={user}", "format=partition,grptres,maxtres"]
        return parse_cpu_limit(run(argv, timeout_s=10), partition)
    except (CommandError, KeyError):
        return None
