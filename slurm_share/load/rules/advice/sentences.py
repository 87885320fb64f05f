"""Make the sentences of an advice: what it rests on, what decided, and what to run if there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ....core import nodelist
from ....core.text import counted, rate_text, span_text
from ...snapshot import CAUSES, Advice, Bound, Snapshot, Survey
from .. import thresholds
from . import measured
from .bounds import gib, most_now, nodes_disagree
from .case import Case
from .causes import WAITS, AdviceDraft, libraries_text, named
from .evidence import Evidence
from .unused import UnusedGpus

NO_QUOTES = "Slurm keeps the submit line without its quotes: quote arguments with blanks again"
KEPT = "kept from the survey before, because the change of load or memory is small"


def why_unseen(snapshots: Sequence[Snapshot], silent: Mapping[str, str]) -> str:
    """Return why there is no evidence of a job."""
    if not snapshots and silent:
        node, why = next(iter(silent.items()))
        return f"none of its nodes answers ({node}: {why or 'no reason known'})"
    return "it was not measured on any node" if snapshots else "none of its nodes was read"


def view_options(survey: Survey, load_source: str) -> str | None:
    """Return the options with which llload shows the jobs of a survey again; None: they are recorded. `load_source`:
    the site's setting."""
    if survey.source == "replay":
        return None
    if survey.source == "demo":
        return " --demo"
    source = "agents" if survey.source == "agent" else survey.source
    # A user's own jobs need no option with srun, and with the others none that another user could not write as well.
    whose = " --all" if survey.everybody else "" if source in ("srun", "local") else f" -u {survey.user}"
    return whose + ("" if source == load_source else f" --source {source}")


def unknown(base: Advice, why: str, view: str | None) -> Advice:
    """Return an advice without a number; its sentence says why, and what to run to get one. `view`: further options of
    that line; None: watching the job cannot give one."""
    name = "JOB" if base.job is None else str(base.job)
    run = "" if view is None else f"; to have one, while its tasks work: llload --advise {name}{view} --watch 10, "
    run += "for five minutes" if run else ""
    allows = f"; GPU memory alone allows {allowed(base.memory_allows)}" if base.memory_allows else ""
    return replace(base, verdict="unknown", next=None, sentence=f"no advice: {why}{allows}{run}")


def unused(base: Advice, found: UnusedGpus) -> Advice:
    """Return the advice for a job that has never used its GPUs."""
    return replace(
        base,
        verdict=found.answer.verdict,
        work="idle",
        decided_by=found.answer.decided_by,
        confidence=found.answer.surest,
        unused_gpus=found.gpus,
        unused_since=found.since,
        sentence=found.answer.why,
    )


def known(advice: Advice, case: Case, answer: AdviceDraft, cautions: Sequence[str] = ()) -> Advice:
    """Return the advice with its sentence, which begins with what is wrong, if anything. `cautions`: what is lost or
    risked by it."""
    nodes = case.nodes
    said = "".join(f"; {one}" for one in cautions)
    if answer.rate_windows:
        return replace(advice, sentence=f"measured: {answer.why}{_by_rates(advice)}{said}; {_seen(advice, nodes)}")
    if answer.verdict in CAUSES or (answer.verdict == "stay" and answer.decided_by == WAITS):
        how = f"; submit it with {advice.change[0]}, then look again" if advice.change else ""
        return replace(advice, sentence=f"{answer.why}{how}; {_seen(advice, nodes)}")
    if answer.verdict == "fewer":
        why = _reason(advice, case)
        return replace(advice, sentence=f"{why}: fewer, {advice.next}{_with(advice)}{said}; {_seen(advice, nodes)}")
    return replace(advice, sentence=f"{_seen(advice, nodes)}: {_allowed(advice)}; {_then(advice, case)}{said}")


def _by_rates(advice: Advice) -> str:
    """Return what to do, for an advice that rates decided."""
    if advice.verdict == "more":
        limit = "" if advice.decided_by == measured.RESOURCE else f", as many as {_allows(advice.decided_by)}"
        return f": go on, next {advice.next}{_with(advice)}{limit}, then look again"
    if advice.verdict == "fewer":
        return f": go back to {advice.next}{_with(advice)}"
    return ": stay" if advice.decided_by == measured.RESOURCE else f": stay, {_allows(advice.decided_by)} no more"


def rate_bound(judged: measured.Judgement, answer: AdviceDraft) -> Bound:
    """Return the verdict of the rates as a bound."""
    level = answer.nppn if judged.level is None else judged.level
    return Bound(resource=measured.RESOURCE, nppn=level, hard=False, why=judged.why)


def contradicts(by_load: AdviceDraft, answer: AdviceDraft) -> tuple[str, ...]:
    """Return the sentence about what load alone would have advised, if that is different."""
    if by_load.verdict == answer.verdict:
        return ()
    number = "" if by_load.nppn is None else f" ({by_load.nppn} tasks)"
    return (f"measured rates decided; load alone would say: {by_load.verdict}{number}, by {by_load.decided_by}",)


def rates(known: measured.MeasuredRates, case: Case) -> tuple[str, ...]:
    """Return the sentence about the known rates of the tasks."""
    if known.levels:
        levels = ", ".join(f"{counted(one.level, 'task')} {rate_text(one.per_s)}" for one in known.levels)
        alone = "" if len(known.levels) > 1 else "; there is nothing to compare it with yet"
        return (f"measured on a node, from {known.source}: {levels}{alone}",)
    told = [node.progress for node in case.nodes if node.progress is not None and node.progress.rated]
    if any(one.rate_per_s is None for one in told):
        return ("the rate of its tasks together is not known: not all of them have one, or they count different units",)
    if told:
        return ("the rate of its tasks is not known yet: not all run, one is paused, or too few windows are over",)
    unread = next((node.why_no_progress for node in case.nodes if node.why_no_progress), "")
    if unread and case.is_run:
        return (f"the rate of its tasks is not known: {unread}",)
    return (measured.NOT_KNOWN,) if case.is_run else ()


def _reason(advice: Advice, case: Case) -> str:
    """Return why there are too many tasks."""
    if case.died == "host memory":
        return kernel_text(sum(node.kills for node in case.nodes))
    if case.died == "GPU memory":
        return failure_text(case.memory_failures)
    bound = next((one for one in advice.bounds if one.resource == advice.decided_by), None)
    why = "" if bound is None else f" ({bound.why})"
    return f"{advice.now} tasks are more than {_allows(advice.decided_by)}{why}"


def _allows(resource: object) -> str:
    """Return a resource with its verb: cores allow, GPU memory allows."""
    return f"{resource} {'allow' if str(resource).endswith('s') else 'allows'}"


def kernel_text(kills: int) -> str:
    """Return the sentence that the kernel ended processes of a job."""
    return f"the kernel killed {counted(kills, 'process')} of it because host memory was full"


def failure_text(failures: int) -> str:
    """Return the sentence that tasks of a job ran out of GPU memory."""
    return f"{counted(failures, 'task')} of it ran out of GPU memory, by the run's results"


def _seen(advice: Advice, nodes: Sequence[Evidence]) -> str:
    loads = [node.load / node.gpus for node in nodes if node.load is not None and node.gpus]
    peak = max((node.peak_mib for node in nodes if node.peak_mib), default=None)
    host = max((node.host_peak_mib for node in nodes if node.host_peak_mib), default=None)
    cpu = [node.cpu_cores / node.cpus for node in nodes if node.cpu_cores is not None]
    cpus = min(node.cpus for node in nodes)
    parts = [f"{advice.now} task{'s' * (advice.now != 1)}{' a node' * (len(nodes) > 1)}"]
    if advice.gpus:
        parts += [f"GPU load {advice.gpus * sum(loads) / len(loads):.2f} of {advice.gpus}"] if loads else []
        parts += [f"peak {gib(peak)}"] if peak else []
    else:
        parts += [f"CPU time {cpus * sum(cpu) / len(cpu):.1f} of {counted(cpus, 'CPU')}"] if cpu else []
        parts += [f"peak {gib(host)}"] if host else []
    return ", ".join(parts)


def _allowed(advice: Advice) -> str:
    load = next((bound for bound in advice.bounds if bound.resource in ("GPU load", "CPU load")), None)
    parts = [f"memory allows {allowed(advice.memory_allows)}"] if advice.memory_allows else []
    if load is not None and load.nppn is not None:
        parts.append(f"load {'at least ' * load.why.startswith('at least')}{load.nppn}")
    parts.append(f"decided by {advice.decided_by}")
    return ", ".join(parts)


def _then(advice: Advice, case: Case) -> str:
    if advice.verdict == "more":
        return f"next {advice.next}{_with(advice)}, then look again"
    if case.died is not None:
        return f"stay, with more {case.died} for a task (a larger cap or --mem): some ran out of it"
    upper = "; utilisation is an upper bound of SM activity, so more tasks may still gain"
    caution = upper if advice.decided_by == "GPU load" and not all(node.is_sm for node in case.nodes) else ""
    return f"stay{caution}"


def _with(advice: Advice) -> str:
    return f" with {advice.change[0]}" if advice.change else " tasks on a node"


def allowed(memory: tuple[int, int]) -> str:
    """Return the tasks that memory allows, such as 24-26: with the margin and without it; 26 if both agree."""
    return str(memory[0]) if memory[0] == memory[1] else f"{memory[0]}-{memory[1]}"


def peak_is_the_caps(nodes: Sequence[Evidence]) -> bool:
    """Return whether a task took all that its cap allows."""
    return any(node.is_at_cap for node in nodes)


def evidence(case: Case) -> tuple[str, ...]:
    """Return the facts on which the advice rests and those that make it weaker, a sentence each."""
    nodes, unseen = case.nodes, case.unseen
    watched = min(node.measured_s for node in nodes)
    where = nodes[0].node if len(nodes) == 1 else f"{len(nodes)} nodes"
    tasks = sum(node.tasks_measured for node in nodes)
    found = [f"watched for {span_text(watched)} on {where}"]
    if unseen:
        reasons: dict[str, list[str]] = {}
        for name, why in unseen.items():
            reasons.setdefault(why, []).append(name)
        without = "; ".join(f"{nodelist.fold(names)}: {why}" for why, names in reasons.items())
        found.append(f"by {len(nodes)} of its {len(nodes) + len(unseen)} nodes, without {without}")
    if any(node.gpus for node in nodes):
        found.append(f"peaks of {tasks} task{'s' * (tasks != 1)}")
        if all(node.is_sm for node in nodes):
            found.append("GPU load is SM activity, measured by the driver's GPM counters")
        elif any(node.load is not None for node in nodes):
            found.append("GPU load is utilisation, an upper bound of SM activity: bounds by it are lower limits")
    if case.memory_failures:
        found.append(failure_text(case.memory_failures))
    found += _unlike(nodes, are_unlike=case.are_unlike)
    if case.has_unlike_nodes:
        found.append("its nodes have different numbers of GPUs: counted for the fewest")
    for what, on in _unknown(nodes).items():
        found.append(f"not known{on}: {what}, so it sets no bound there")
    found += _doubts(nodes)
    return tuple(found)


def _unlike(nodes: Sequence[Evidence], *, are_unlike: bool) -> tuple[str, ...]:
    """Return the sentence about unlike tasks, for which one number of tasks is not right."""
    by_size = [node for node in nodes if node.has_unlike_sizes]
    if are_unlike:
        what = "its tasks are unlike: those that run fit, as many of the largest would not"
    elif by_size:
        node = max(by_size, key=lambda node: node.peak_mib or 0)
        half, largest = gib(node.median_mib or 0), gib(node.peak_mib or 0)
        what = f"its tasks are unlike: half of them take at most {half} of GPU memory, the largest {largest}"
    else:
        return ()
    if any(node.is_packed for node in nodes):
        return (f"{what}; its run places each by its own size",)
    return (f"{what}; llsub --pack places each by its own size",)


def _unknown(nodes: Sequence[Evidence]) -> dict[str, str]:
    """Return the figures that are not known, each with its nodes."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        for what in node.unknown:
            found.setdefault(what, []).append(node.node)
    return {what: f" on {', '.join(on)}" if len(nodes) > 1 else "" for what, on in found.items()}


def _doubts(nodes: Sequence[Evidence]) -> list[str]:
    found = []
    if min(node.measured_s for node in nodes) < thresholds.SHORT_S:
        found.append("less than five minutes: peaks may grow")
    if not all(node.alone for node in nodes):
        found.append(
            "others' processes are on the same GPUs, and their part of the load is not known: all counts as this job's"
        )
    if peak_is_the_caps(nodes):
        cap = min(node.cap_mib for node in nodes if node.cap_mib)
        full = next((node.largest for node in nodes if node.is_at_cap), None)
        found.append(f"{named(full)}'s peak is at its cap of {gib(cap)}: it may need more, or take all it can get")
    elif holders := [
        node
        for node in nodes
        if node.peak_mib
        and node.rooms
        and node.in_advance != ()
        and (node.busy_percent or 0.0) < thresholds.GPU_FULL
        and 100 * node.peak_mib >= thresholds.PREALLOCATED * max(room.total for room in node.rooms)
    ]:
        holder = "one task" if holders[0].largest is None else named(holders[0].largest)
        libraries = holders[0].in_advance
        who = f"{libraries_text(libraries)} so" if libraries else "JAX and TensorFlow do so"
        begin = "" if libraries else "if it is one of these, "
        found.append(
            f"{holder} holds most of a GPU's memory: {who} at the start; {begin}it may need less, and a share tells it "
            "its part"
        )
    running, now = max(node.running for node in nodes), most_now(nodes)
    if running < now:
        found.append(f"{running} of {now} tasks are on a GPU at this moment")
    for node in nodes:
        free = [f"GPU {card.index}" for card in node.cards if not card.tasks]
        if free and len(free) < len(node.cards):
            where = f" of {node.node}" if len(nodes) > 1 else ""
            verb = "has" if len(free) == 1 else "have"
            found.append(f"{len(free)} of its {len(node.cards)} GPUs{where} {verb} no task now: {', '.join(free)}")
    kills = sum(node.kills for node in nodes)
    if kills:
        found.append(kernel_text(kills))
    if nodes_disagree(nodes):
        by_use = sorted((node.busy_percent, node.node) for node in nodes if node.busy_percent is not None)
        least, most = (f"{percent:.0f} % on {name}" for percent, name in (by_use[0], by_use[-1]))
        found.append(f"its nodes are unlike: a GPU is used to {most}, to {least}")
    disagree = next((node for node in nodes if node.windows_disagree), None)
    if disagree is not None:
        over = ("one minute", "five", "fifteen")
        means = ", ".join(f"{load:.0f} % over {span}" for load, span in zip(disagree.windows, over, strict=False))
        on = f" of {disagree.node}" if len(nodes) > 1 else ""
        found.append(f"the load of its GPUs{on} is not steady: {means}")
    return found
