"""Examine every host of the cluster for `slurm-share doctor --cluster`, through the site's remote command."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
from msgspec import Struct

from ..core import config, text_files
from ..core.errors import quoted, shown
from ..core.text import natural
from ..slurm import controllers
from ..slurm import nodes as slurm_nodes
from ..slurm.remote_hosts import AT_ONCE, environment, run_on
from .checks import every
from .facts.records import Finding, Outcome

HOST_S = 90.0
"""The time limit of one host: doctor's own limits for a driver and a Slurm that do not answer add up to 60 s."""
COMMAND = ("slurm-share", "doctor", "--json")
OFF_STATES = ("power", "future", "planned_down")
"""Words in Slurm's state of a node that is not there to be asked."""
_MOST_BYTES = 4 * 1024 * 1024
_EXAMPLES = 2
"""The most texts of one check that are shown; further ones differ in figures, most of the time."""


class HostAnswer(Struct, frozen=True):
    """The findings of doctor on one host."""

    host: str
    findings: tuple[Finding, ...] = ()
    problem: str = ""
    """Why the host was not examined; empty: it was."""


class FindingKind(Struct, frozen=True):
    """Findings of one check with one outcome and one text, and the hosts that have them."""

    outcome: Outcome
    check: str
    what: str
    fix: str
    hosts: tuple[str, ...]


class _HostFindings(Struct):
    findings: tuple[Finding, ...]


def read(without: Collection[str], also: Iterable[str] = ()) -> tuple[tuple[HostAnswer, ...], tuple[str, ...]]:
    """Return the answers of all controllers, all of Slurm's nodes and the hosts in `also`, and the nodes that are not
    asked, because Slurm has them switched off.

    Raises ConfigError for a wrong configuration, CommandError if Slurm does not answer.
    """
    environ = environment()
    remote = config.load().settings.remote_command
    states = {name: state for name, (_, state) in slurm_nodes.read_states(environ).items()}
    off = {name for name, state in states.items() if any(word in state.lower() for word in OFF_STATES)}
    hosts = [*controllers.read_controllers(environ), *also, *sorted(set(states) - off, key=natural)]
    words = [*COMMAND, *(["--except", ",".join(without)] if without else [])]
    return read_hosts(remote, list(dict.fromkeys(hosts)), words), tuple(sorted(off, key=natural))


def read_hosts(remote: Sequence[str], hosts: Sequence[str], words: Sequence[str]) -> tuple[HostAnswer, ...]:
    """Return each host's answer, asking AT_ONCE hosts in parallel."""
    if not hosts:
        return ()
    with ThreadPoolExecutor(max_workers=min(AT_ONCE, len(hosts))) as pool:
        return tuple(pool.map(lambda host: _ask(remote, host, words), hosts))


def _ask(remote: Sequence[str], host: str, words: Sequence[str]) -> HostAnswer:
    text, problem = run_on(remote, host, words, HOST_S)
    return HostAnswer(host, problem=problem) if problem else parse(host, text)


def parse(host: str, text: str) -> HostAnswer:
    """Return a host's answer, with a problem if it is not doctor's. Lines before the JSON, such as a login shell's
    greeting, do not count. Its texts are untrusted: escape them before they reach a terminal."""
    begin = f"\n{text}".find("\n{")
    try:
        if len(text) > _MOST_BYTES:
            raise msgspec.DecodeError("more than 4 MiB")
        return HostAnswer(host, msgspec.json.decode(text[max(begin, 0) :], type=_HostFindings).findings)
    except text_files.NOT_JSON as error:
        why = f"{shown(str(error), 200)}; it begins with {quoted(text[:60])}"
        return HostAnswer(host, problem=f"the answer is not that of `slurm-share doctor --json`: {why}")


def kinds(answers: Iterable[HostAnswer]) -> tuple[FindingKind, ...]:
    """Return the findings by kind: failures first, then those on most hosts. A text that differs from another host's
    only in the host's own name is the same."""
    hosts: dict[tuple[Outcome, str, str, str], list[str]] = {}
    for answer in answers:
        for one in answer.findings:
            what, fix = (_without(answer.host, text) for text in (one.what, one.fix))
            where = hosts.setdefault((one.outcome, one.check, what, fix), [])
            if answer.host not in where:
                where.append(answer.host)
    found = [
        FindingKind(outcome, check, *_named(what, fix, where), tuple(where))
        for (outcome, check, what, fix), where in hosts.items()
    ]
    return tuple(sorted(found, key=lambda one: (every.ORDER.index(one.outcome), -len(one.hosts), one.check)))


def _without(host: str, text: str) -> str:
    return re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "NODE", text)


def _named(what: str, fix: str, where: Sequence[str]) -> tuple[str, str]:
    """Return the texts with the name of the only host back in them."""
    if len(where) > 1:
        return what, fix
    return what.replace("NODE", where[0]), fix.replace("NODE", where[0])


def merged(found: Iterable[FindingKind]) -> tuple[tuple[FindingKind, int], ...]:
    """Return the kinds with at most _EXAMPLES texts of each check and outcome; the hosts of the others are added to the
    last of them, with the number of their texts."""
    shown_kinds: dict[tuple[Outcome, str], list[tuple[FindingKind, int]]] = {}
    for one in found:
        listed = shown_kinds.setdefault((one.outcome, one.check), [])
        if len(listed) < _EXAMPLES:
            listed.append((one, 0))
            continue
        last, others = listed[-1]
        hosts = tuple(dict.fromkeys((*last.hosts, *one.hosts)))
        listed[-1] = (msgspec.structs.replace(last, hosts=hosts), others + 1)
    return tuple(entry for listed in shown_kinds.values() for entry in listed)


def outcomes(answers: Iterable[HostAnswer]) -> Mapping[str, int]:
    """Return the number of hosts by their worst outcome: FAIL, WARN, PASS, and "not examined"."""
    found = Counter({"FAIL": 0, "WARN": 0, "PASS": 0, "not examined": 0})
    for answer in answers:
        code = every.exit_code(answer.findings)
        found["not examined" if answer.problem else ("PASS", "WARN", "FAIL")[code]] += 1
    return found


def exit_code(answers: Iterable[HostAnswer], not_done: int) -> int:
    """Return 2 for a failure on a host, else `not_done` if a host was not examined, else 1 for warnings, else 0."""
    found = outcomes(answers)
    if found["FAIL"]:
        return 2
    if found["not examined"]:
        return not_done
    return 1 if found["WARN"] else 0
