"""The promises of the documents about tasks that share a GPU, and whether a measurement confirms each.

packaging/docs/security.md lists PROMISES in the same words. Each has a probe (prove/probes.py) that tries to break it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from ...core.typed import Literal
from ...share import drivers, methods

Outcome = Literal["holds", "does not hold here", "not on this driver", "not on this node"]
HOLDS: Outcome = "holds"
FAILS: Outcome = "does not hold here"
ABSENT: Outcome = "not on this driver"
ELSEWHERE: Outcome = "not on this node"
"""The driver has it. The node's kernel, GPU, programs or settings do not."""
OUTCOMES = (HOLDS, FAILS, ABSENT, ELSEWHERE)
METHOD_SINCE = {
    methods.STATIC: drivers.STATIC_PARTITIONS,
    methods.HARD: drivers.MEMORY_LIMITS,
    methods.ELASTIC: drivers.MEMORY_LIMITS,
    methods.V3: drivers.MPS_V3,
}
"""The release of the driver from which on a method exists; 0 for the others."""
TOLERANCE = 1.02
"""How much more than its cap a task may get: allocations have a granularity of up to 2 MiB, and a small cap has few."""
TOO_LITTLE = 0.4
"""A task that gets less than this part of its cap proves nothing: the rest is its context, or something is wrong."""

Value = str | int | float | bool | None
Measured = Mapping[str, Value]
"""The results of a probe, by name; `error` is there if it could not be carried out."""
Rule = Callable[[Measured], str]
"""Return why the measurement breaks the promise; empty: it does not."""


class Promise(Struct, frozen=True, kw_only=True):
    """One promise, or one limit that is known not to hold, with the probe that shows it."""

    name: str
    says: str
    method: str
    """The method of sharing (share/rules/methods.py) that it is about."""
    since: int | None = None
    """The release of the driver from which on it is promised; None: any that has the method. Below it the same probe
    runs, and shows what happens there."""
    probe: str
    rule: Rule
    is_promised: bool = True
    """False: the documents say that this does not hold, and it is shown as what it is."""


class Verdict(Struct, frozen=True, kw_only=True):
    """The result of one promise on one GPU."""

    promise: str
    says: str
    outcome: Outcome
    is_promised: bool
    """Whether the documents promise it of this driver and node."""
    why: str = ""
    measured: dict[str, Value] = {}


def _bounded(found: Measured) -> str:
    got, cap = _number(found, "got_mib"), _number(found, "cap_mib")
    if got > cap * TOLERANCE:
        return f"got {got:.0f} MiB with a cap of {cap:.0f} MiB"
    return f"could not be examined: got {got:.0f} MiB only, of {cap:.0f}" if got < cap * TOO_LITTLE else ""


def _refused(found: Measured) -> str:
    return "" if found.get("refused") else "it was served"


def _alive(found: Measured) -> str:
    if not found.get("ended"):
        return "could not be examined: the task that was to fail did not"
    return "" if found.get("neighbour") == "" else f"its neighbour ended with {found.get('neighbour')}"


def _ended(found: Measured) -> str:
    return "" if found.get("ended") else "the task went on"


def _total(found: Measured) -> str:
    total, cap = _number(found, "total_mib"), _number(found, "cap_mib")
    return "" if cap / TOLERANCE <= total <= cap * TOLERANCE else f"it sees {total:.0f} MiB with a cap of {cap:.0f} MiB"


def _sms(found: Measured) -> str:
    some, whole, percent = _number(found, "sms"), _number(found, "all_sms"), _number(found, "percent")
    return "" if 0 < some <= whole * percent / 100 else f"it sees {some:.0f} of {whole:.0f} SM at {percent:.0f} %"


def _guaranteed(found: Measured) -> str:
    if not found.get("is_above"):
        return "could not be examined: no task got more than its first size"
    return "" if found.get("within") == "" else f"the task within its first size ended with {found.get('within')}"


def _number(found: Measured, name: str) -> float:
    value = found.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _memory(name: str, says: str, probe: str, *, is_promised: bool = True) -> Promise:
    """Return a promise about the driver's limit of memory."""
    return Promise(
        name=name,
        says=says,
        method=methods.HARD,
        since=drivers.MEMORY_LIMITS,
        probe=probe,
        rule=_bounded,
        is_promised=is_promised,
    )


PROMISES = (
    Promise(
        name="cap-under-mps",
        says="under MPS a task that allocates in the usual way gets at most its cap",
        method=methods.MPS, probe="device_under_mps", rule=_bounded,
    ),
    Promise(
        name="sm-percentage",
        says="under MPS a task with sm=25 sees at most a quarter of the SM",
        method=methods.SM_CAP, probe="percentage", rule=_sms,
    ),
    Promise(
        name="fault-alone",
        says="without MPS a task's fault ends that task only",
        method=methods.TIME_SLICING, probe="fault_without_mps", rule=_alive,
    ),
    Promise(
        name="kill-alone",
        says="a task that is killed while its kernel runs ends alone, also under MPS",
        method=methods.MPS, probe="killed_in_kernel", rule=_alive,
    ),
    Promise(
        name="daemon-gone",
        says="a task whose MPS daemon and server are killed ends; it does not go on without its cap",
        method=methods.MPS, probe="daemon_killed", rule=_ended,
    ),
    _memory(
        "memory-without-mps",
        "the driver refuses a task without MPS what exceeds its cap",
        "device_without_mps",
    ),
    _memory(
        "memory-unset",
        "the driver's cap holds if the task removes all variables from its environment",
        "unset",
    ),
    _memory(
        "memory-mangled",
        "the driver's cap holds if the task writes another one into its environment",
        "mangled",
    ),
    _memory(
        "memory-wrong-pipe",
        "the driver's cap holds if the task names a folder without an MPS daemon",
        "wrong_pipe",
    ),
    _memory(
        "memory-unseen-gpu",
        "the driver's cap holds if the task adds a cap for a GPU that it does not see, which voids those of MPS",
        "unseen_gpu",
    ),
    _memory(
        "memory-fork",
        "the driver's cap holds for all processes of a task together",
        "forked",
    ),
    _memory(
        "memory-second-context",
        "the driver's cap holds for all contexts of a process together",
        "second_context",
    ),
    _memory(
        "memory-async",
        "the driver's cap holds for memory of pools (cuMemAllocAsync)",
        "asynchronous",
    ),
    _memory(
        "memory-vmm",
        "the driver's cap holds for memory that is created without an address (cuMemCreate)",
        "created",
    ),
    _memory(
        "memory-managed",
        "managed memory counts against the cap (it does not: the driver moves it to the host)",
        "managed", is_promised=False,
    ),
    Promise(
        name="total",
        says="a task sees its cap as the size of the GPU's memory",
        method=methods.HARD, since=drivers.MEMORY_LIMITS, probe="total", rule=_total,
    ),
    Promise(
        name="elastic",
        says="a task within the first size of mem=8G:20G goes on while its neighbour has more than its own",
        method=methods.ELASTIC, since=drivers.MEMORY_LIMITS, probe="elastic", rule=_guaranteed,
    ),
    Promise(
        name="namespace-memory",
        says="under protocol 3 of MPS a task's environment cannot raise its memory cap",
        method=methods.V3, probe="namespace_memory", rule=_bounded,
    ),
    Promise(
        name="namespace-sm",
        says="under protocol 3 of MPS a task's environment cannot raise its part of the SM",
        method=methods.V3, probe="namespace_percentage", rule=_sms,
    ),
    Promise(
        name="partition-needed",
        says="a daemon with static partitions serves no task without one",
        method=methods.STATIC, probe="without_partition", rule=_refused,
    ),
    Promise(
        name="partition-known",
        says="a daemon with static partitions serves no task with a partition that it does not have",
        method=methods.STATIC, probe="wrong_partition", rule=_refused,
    ),
    Promise(
        name="partition-fault",
        says="a fault in a kernel ends the tasks of its own static partition only",
        method=methods.STATIC, since=drivers.PARTITIONED_FAULTS, probe="fault_in_partition", rule=_alive,
    ),
)  # fmt: skip


def why_absent(promise: Promise, offer: methods.NodeOffer) -> str:
    """Return why the documents do not promise this of the node's driver, kernel and settings; empty: they do."""
    here = next(one for one in methods.judge(offer) if one.name == promise.method)
    if promise.since is not None and not drivers.offers(offer.driver, promise.since):
        return drivers.needs(offer.driver, promise.since)
    return "" if here.is_here else here.why


def _since(promise: Promise) -> int:
    return max(promise.since or 0, METHOD_SINCE.get(promise.method, 0))


def judge(promise: Promise, offer: methods.NodeOffer, measured: Measured | None) -> Verdict:
    """Return the verdict for a measurement; None: the probe was not run, as the node has not what it needs."""
    absent = why_absent(promise, offer)
    values = dict(measured or {})
    error = values.pop("error", None)
    broken = "" if measured is None else f"could not be examined: {error}" if error else promise.rule(values)
    outcome: Outcome = HOLDS
    why = broken
    if absent or measured is None:
        outcome = ELSEWHERE if drivers.offers(offer.driver, _since(promise)) else ABSENT
        why = "; ".join(filter(None, (absent, f"here {broken}" if broken and not error else "")))
    elif broken:
        outcome = FAILS
    return Verdict(
        promise=promise.name,
        says=promise.says,
        outcome=outcome,
        is_promised=promise.is_promised and not absent,
        why=why,
        measured=values,
    )


def is_broken(verdict: Verdict) -> bool:
    """Return whether a promise of this node fails."""
    return verdict.is_promised and verdict.outcome == FAILS


def needs_of_probe(promise: Promise, offer: methods.NodeOffer) -> str:
    """Return why the probe cannot run at all on this node; empty: it can, also where nothing is promised.

    The memory probes run below 615, too: they show the escapes of the caps of MPS. Partitions and elastic memory do
    not exist there.
    """
    method = {methods.HARD: methods.MPS}.get(promise.method, promise.method)
    here = next(one for one in methods.judge(offer) if one.name == method)
    return "" if here.is_here else here.why


def why_not_now(states: tuple[str, ...] | None, jobs: tuple[int, ...], pids: tuple[int, ...]) -> str:
    """Return why the node may not be used for a proof now; empty: it may.

    states: Slurm's words for the node; None: this host is no node of Slurm. jobs: those with a step here. pids:
    processes on the GPU.
    """
    if jobs:
        return f"job {', '.join(map(str, jobs))} runs here"
    busy = {"ALLOCATED", "MIXED", "COMPLETING"} & set(states or ())
    if busy:
        return f"Slurm says that the node is {'+'.join(states or ())}: drain it, and wait until its jobs have ended"
    return f"process {', '.join(map(str, pids))} is on the GPU" if pids else ""
