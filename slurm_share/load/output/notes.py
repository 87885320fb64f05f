"""The options of llload's output, and the lines around its table: user, time, silent nodes, the meaning of the letters,
the age of the figures."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...core import terminal
from ...core.text import counted, span_text
from ..rules import flags as flagging
from ..rules import idle
from ..rules.figures import is_used
from ..rules.node_rows import NodeRow
from ..snapshot import CAUSES, VERDICTS, Advice, NodeLoad, Survey
from ..text import UNKNOWN, fold, why_silent, wrapped

SIMULATED = "SIMULATED GPUs: nothing is computed on them"
DEMO = "SIMULATED CLUSTER: a demonstration, nothing of this is real"
STALE_S = 60.0
"""Age from which figures are marked as old: an agent samples every few seconds."""
_WORD = re.compile(r"""(?:[^\s'"\\]|'[^']*'|"[^"]*"|\\.)+""")
"""A word of a shell command, with its quotes."""
_BANNER, _OFF = "\x1b[1m\x1b[7m", "\x1b[0m"


ADVICE_LINES = 3
"""Most lines of advice below the table; --advise has all."""


@dataclass(frozen=True, slots=True)
class View:
    """The parts of a survey that llload prints, and how."""

    gpus: bool = False
    detail: bool = False
    jobs: bool = False
    processes: bool = False
    advice: tuple[Advice, ...] = ()
    advice_lines: int = ADVICE_LINES
    quiet: bool = False
    color: bool = False
    chosen: str = ""
    """Why not every node of the survey has a line, such as: flagged."""
    whole: Survey | None = None
    """The survey before nodes were chosen from it, for the notes about all nodes."""
    more: str = ""
    """A sentence about the nodes for which there is no room."""
    if_empty: tuple[str, ...] = ()
    """The sentences to print if there is no node."""


def is_color_wanted(*, never: bool, terminal: bool) -> bool:
    """Return whether to use colour: not with NO_COLOR (no-color.org), with TERM=dumb or in a pipe."""
    return terminal and not never and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def header(survey: Survey, view: View, width: int) -> list[str]:
    """Return the head: cluster, user, nodes and time as LLSC prints them, and a banner if anything is simulated."""
    where = terminal.safe(survey.cluster) or "this machine"
    running = f" (running slurm {terminal.safe(survey.slurm_version)})" if survey.slurm_version else ""
    who = "all users" if survey.everybody else terminal.safe(survey.user)
    whole = view.whole or survey
    used = f"{len(whole.nodes)}"
    if survey.everybody:
        in_use = sum(map(is_used, whole.nodes))
        asked = any(node.slurm is not None for node in whole.nodes)
        used = f"{in_use if asked else UNKNOWN} of {len(whole.nodes)}"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(survey.taken))
    lines = wrapped([f"LLGrid: {where}{running}", f"Username: {who}, Nodes used: {used}, Time: {when}"], width)
    said = banner(whole)
    if said:
        text = terminal.shortened(said, width)
        lines.insert(0, f"{_BANNER}{text}{_OFF}" if view.color else text)
    return lines


def banner(survey: Survey) -> str:
    """Return the warning that figures are simulated; empty if they are not."""
    is_demo = survey.source == "demo" or survey.slurm_version == "simulated"  # the source of a recording is "replay"
    if is_demo or any(node.snapshot and node.snapshot.source == "demo" for node in survey.nodes):
        return DEMO
    return SIMULATED if survey.simulated else ""


def footer(survey: Survey, view: View, rows: Sequence[NodeRow]) -> list[str]:
    """Return the foot: nodes that did not answer, the meaning of the letters, source and age of the figures; advice
    last."""
    whole = view.whole or survey
    said = [f"... {view.more}"] if view.more else []
    if view.chosen and not view.more:
        said.append(f"{len(survey.nodes)} of {len(whole.nodes)} nodes shown: {view.chosen}")
    said += silence(whole)
    hidden = [node.name for node in whole.nodes if node.snapshot is not None and node.snapshot.hidden_gpus]
    if hidden:
        count = sum(node.snapshot.hidden_gpus for node in whole.nodes if node.snapshot is not None)
        verb = "is" if count == 1 else "are"
        said.append(f"{counted(count, 'GPU')} on {fold(hidden)} {verb} used by others only and not shown")
    said += _problems(survey)
    said += _idle_gpus(survey)
    letters = {code for row in rows for code in row.codes}
    if letters:
        meanings = [f"{code}: {meaning}" for code, meaning in flagging.MEANINGS.items() if code in letters]
        said.append("; ".join(meanings))
    if view.gpus or view.detail:
        said += _gpu_load_note(rows)
        said += _gpu_memory_notes(survey)
    said.append(_source_text(whole))
    said += [terminal.safe(note) for note in whole.notes]
    return said + _advice_text(view.advice, view.advice_lines)


def _advice_text(found: Sequence[Advice], most: int) -> list[str]:
    """Return a line for each of the `most` jobs that are most urgent."""
    ordered = in_order(found)
    said = [
        f"advice{'' if advice.job is None else f' for job {advice.job}'}: {terminal.safe(advice.sentence)}"
        for advice in ordered[:most]
    ]
    left = len(found) - most
    return [*said, f"advice for {counted(left, 'more job')}: llload --advise"] if left > 0 else said


def in_order(found: Sequence[Advice]) -> list[Advice]:
    """Return the advice, the most urgent first."""
    return sorted(found, key=lambda advice: VERDICTS.index(advice.verdict))


def silence(survey: Survey) -> list[str]:
    """Return how many nodes answered and why the others are silent; empty if all answered."""
    if survey.answered == len(survey.nodes):
        return []
    why: dict[str, list[str]] = {}
    for node in survey.nodes:
        if node.snapshot is None:
            why.setdefault(why_silent(node), []).append(node.name)
    reasons = [f"{fold(names)}: {reason}" for reason, names in why.items()]
    return [f"{survey.answered} of {len(survey.nodes)} nodes answered; {'; '.join(reasons)}"]


def _problems(survey: Survey) -> list[str]:
    """Return the problems of nodes that answered, each with its nodes."""
    found: dict[str, list[str]] = {}
    for node in survey.nodes:
        if node.snapshot is None:
            continue
        for problem in flagging.problems(node):
            found.setdefault(terminal.safe(problem), []).append(node.name)
        for gpu in node.snapshot.gpus:
            if gpu.problem is not None:
                found.setdefault(f"GPU {gpu.index}: {terminal.safe(gpu.problem)}", []).append(node.name)
        if node.slurm is not None and not node.slurm.answers:
            found.setdefault("answers, but Slurm says that it does not respond", []).append(node.name)
    return [f"{fold(names)}: {problem}" for problem, names in found.items()]


def unknown_processes(nodes: Iterable[NodeLoad]) -> list[str]:
    """Return on which nodes the processes are not known, and why, a sentence for each reason."""
    why: dict[str, list[str]] = {}
    for node in nodes:
        if node.snapshot is not None and not node.snapshot.knows_processes:
            why.setdefault(node.snapshot.unknown["processes"], []).append(node.name)
    return [f"the processes on {fold(names)} are not known: {reason}" for reason, names in why.items()]


IDLE_LINES = 5
"""Most jobs with idle GPUs that are named below the table; --sort gpus_idle, --detail and --json have all."""


def _idle_gpus(survey: Survey) -> list[str]:
    """Return a line for each of the jobs with the most idle GPUs."""
    found = [terminal.safe(said) for said in idle.sentences(survey)]
    left = len(found) - IDLE_LINES
    return [*found[:IDLE_LINES], f"... and {counted(left, 'more job')} with idle GPUs"] if left > 0 else found


def _gpu_load_note(rows: Sequence[NodeRow]) -> list[str]:
    """Return which counter GPU load rests on, and over what time."""
    known = [row.figures for row in rows if row.figures.gpu_load_by]
    if not known:
        return []
    by = {one.gpu_load_by for one in known}
    spans = [one.gpu_load_over_s for one in known]
    shortest, longest = span_text(min(spans)), span_text(max(spans))
    over = f"mean over {shortest if shortest == longest else f'{shortest} to {longest}'}"
    if by == {"util"}:
        return [f"GPU LOAD: utilisation (an upper bound of SM activity), {over}"]
    rest = "" if by == {"sm"} else "; util: utilisation, an upper bound of it"
    return [f"GPU LOAD: SM activity, {over}{rest}"]


def _gpu_memory_notes(survey: Survey) -> list[str]:
    """Return on which nodes the driver does not report the memory of GPUs, and whose memory is shown instead."""
    of_node, unknown = set(), set()
    for node in survey.nodes:
        for gpu in () if node.snapshot is None else node.snapshot.gpus:
            if gpu.is_host_memory:
                of_node.add(node.name)
            elif gpu.memory_total_mib is None and gpu.problem is None:
                unknown.add(node.name)
    said = [f"GPU memory on {fold(sorted(of_node))}: the node's (MemTotal), which its GPUs use"] if of_node else []
    return [*said, f"GPU memory on {fold(sorted(unknown))}: the driver does not report it"] if unknown else said


def _source_text(survey: Survey) -> str:
    said = [f"source: {survey.source}"]
    ages = [survey.taken - node.snapshot.taken for node in survey.nodes if node.snapshot is not None]
    if ages:
        oldest = max(ages)
        said.append(f"figures up to {span_text(max(0.0, oldest))} old{' (OLD)' if oldest > STALE_S else ''}")
        if min(ages) < -STALE_S:
            said.append(f"a node's clock is {span_text(-min(ages))} ahead")
    if survey.jobs_taken is not None:
        since = max(0.0, survey.taken - survey.jobs_taken)
        said.append(f"Slurm asked {span_text(since)} ago" + (" (OLD)" if since > 3 * STALE_S else ""))
    else:
        said.append("without Slurm")
    return "; ".join(said)


def advice_lines(found: Sequence[Advice], width: int) -> list[str]:
    """Return the advice in full: its sentence, the bounds with their arithmetic, and the lines to submit again."""
    said: list[str] = []
    for advice in found:
        lines: list[str] = []
        job = "no job" if advice.job is None else f"job {advice.job}"
        lines += [""] if said else []
        where = f" on {fold(advice.nodes)}" if advice.nodes else ""
        lines += [f"{job} of {advice.user}{where}: {advice.work}", advice.sentence]
        for bound in advice.bounds:
            allows = "no bound" if bound.nppn is None else str(bound.nppn)
            decides = bound.resource == advice.decided_by and advice.verdict not in CAUSES
            sign = "  <- decides" if decides else ""
            lines.append(f"  {bound.resource}: {allows} ({bound.why}){sign}")
        if advice.memory_allows is not None:
            least, most = advice.memory_allows
            lines.append(f"  by GPU memory alone: {least if least == most else f'{least} to {most}'}")
        lines.append(
            f"  confidence: {advice.confidence}" + (f" ({'; '.join(advice.evidence)})" if advice.evidence else "")
        )
        lines += [f"  {resubmit_head(advice)}"] if advice.change else []
        said += wrapped(map(terminal.safe, lines), width)
        for line in advice.resubmit:
            said += shell_lines(terminal.safe(line), width)
    return said


def resubmit_head(advice: Advice) -> str:
    """Return the heading of the lines that submit a job again; without such lines, the options to change."""
    if not advice.resubmit:
        ways = ", or ".join(advice.change)
        return f"submit it as before, but with {ways} (how it was submitted is not known here)"
    return "submit it again:" if len(advice.resubmit) == 1 else "submit it again, with one of:"


def shell_lines(line: str, width: int) -> list[str]:
    """Return a shell command, broken with backslashes to fit the width, so that it can be copied."""
    words, said = _WORD.findall(line), "   "
    lines = []
    for word in words:
        if said.strip() and len(said) + len(word) + 3 > width:
            lines.append(f"{said} \\")
            said = "     "
        said += f" {word}"
    return [*lines, said]
