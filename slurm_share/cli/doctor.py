"""`slurm-share doctor`: find what is wrong with slurm-share, Slurm and this host, with a remedy in one line each."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from ..core import names, terminal
from ..core.command import forget_output
from ..core.errors import SlurmShareError, UsageError, quoted
from ..core.text import did_you_mean

if TYPE_CHECKING:
    from ..doctor import Facts, Finding, FixResult, HostAnswer

SCHEMA = 1
EXIT_NOT_DONE = 3
"""Differs from the codes for warnings (1) and failures (2), so that clush can tell them apart."""
CLUSTER_WORDS = {
    "FAIL": "with failures",
    "WARN": "with warnings",
    "PASS": "as they should be",
    "not examined": "not examined",
}
"""The words of the summary of a cluster, by the worst outcome of a host."""
ROLE_NAMES = ("controller", "login", "compute")
EPILOG = """\
Reads only, unless --fix is given; run it at any time on any host of the cluster. PASS: as it should be. WARN: works,
but not as it should. FAIL: shares are refused or run without MPS, or a node is drained. SKIP: unknown here, with the
reason; some facts are visible to root only.

examples
  slurm-share doctor                                  what is wrong here, what is unknown, and a count
  slurm-share doctor --cluster                        what is wrong on any host: a line for each kind of finding
  slurm-share doctor --except ptrace,clock            without problems that this site accepts
  slurm-share doctor --explain plugin-release         what a check tests, and why
  slurm-share doctor --fix                            repair slurm-share's own state

exit codes
  0 all checks passed, 1 warnings, 2 failures (or wrong usage), 3 doctor could not examine the host; with --cluster:
  the worst of all hosts, 2 before 3 before 1
"""


def add_to(commands: Any) -> None:
    """Add the sub-command `doctor`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor", help="find problems on this host, and print how to repair them", epilog=EPILOG
    )
    parser.add_argument(
        "--role", action="append", choices=ROLE_NAMES, help="role of this host (default: detected); repeatable"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--verbose", action="store_true", help="also print passed checks")
    how.add_argument(
        "--quiet", action="store_true", help="print only what is wrong, one line each; nothing if all is well"
    )
    how.add_argument("--json", action="store_true", help="print JSON")
    how.add_argument(
        "--explain", nargs="?", const="", metavar="CHECK", help="describe a check, or all, without examining the host"
    )
    parser.add_argument(
        "--except", dest="without", action="append", default=[], metavar="CHECK,...", help="leave out checks by name"
    )
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="examine every controller and node through remote_command of config.toml, and print a line for each kind "
        "of finding, with its hosts",
    )
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="HOSTS",
        help="with --cluster: further hosts, such as login nodes",
    )
    parser.add_argument("--fix", action="store_true", help="repair slurm-share's own state, and report what was done")
    parser.set_defaults(run=run_doctor)


def run_doctor(arguments: argparse.Namespace) -> int:
    """Read the facts, apply fixes if asked to, read again, print the findings. Raises UsageError. 1 and 2 are
    findings and nothing else: what keeps doctor from its work, a defect of ours too, is a sentence and
    EXIT_NOT_DONE."""
    try:
        code = _examine(arguments)
        sys.stdout.flush()
        return code
    except (UsageError, BrokenPipeError):
        raise
    except (SlurmShareError, OSError) as error:
        why = str(error)
    except (ImportError, SyntaxError) as error:
        file = getattr(error, "filename", None) or getattr(error, "path", None)
        where = f" ({file})" if file and file not in str(error) else ""
        why = f"a Python module cannot be loaded: {error}{where}; install slurm-share on this host anew"
    except Exception as error:  # noqa: BLE001  (the outermost of this command: see above)
        frames = [" ".join(frame.split()) for frame in traceback.format_tb(error.__traceback__)[-3:]]
        why = " | ".join(["a defect of slurm-share", f"{type(error).__name__}: {error}", *frames])
    print(f"slurm-share doctor: {terminal.safe(why)}; nothing can be said of this host", file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:
        forget_output()  # a full disk: buffered text must not fail again with another exit code
    return EXIT_NOT_DONE


def _examine(arguments: argparse.Namespace) -> int:
    # Imported late: all commands of slurm-share load this module, also the launchers on all nodes.
    from ..doctor import every, page

    if arguments.explain is not None:
        terminal.print_lines(page.page(_known([arguments.explain] if arguments.explain else [])).splitlines())
        return names.EXIT_OK
    without = excepted(arguments.without)
    if arguments.cluster:
        return _examine_cluster(arguments, without)
    if arguments.also:
        raise UsageError("--also belongs to --cluster")
    if arguments.fix and os.geteuid() != 0:
        raise UsageError("--fix is for root")
    from ..doctor import examination

    facts, findings, results = examination.examine(tuple(arguments.role or ()), without, fix=arguments.fix)
    if arguments.json:
        print(json.dumps(as_json(facts, findings, results), indent=2))
    else:
        terminal.print_lines(as_lines(facts, findings, results, quiet=arguments.quiet, verbose=arguments.verbose))
    return every.exit_code(findings)


def _examine_cluster(arguments: argparse.Namespace, without: Collection[str]) -> int:
    from ..core import nodelist
    from ..doctor import cluster

    if arguments.fix or arguments.role:
        raise UsageError("--cluster only reads, and each host knows its roles: leave out --fix and --role")
    also = [host for text in arguments.also for host in nodelist.parse(text)]
    answers, off = cluster.read(without, also)
    if arguments.json:
        print(json.dumps(cluster_as_json(answers, off), indent=2))
    else:
        lines = cluster_as_lines(answers, off, quiet=arguments.quiet, verbose=arguments.verbose)
        terminal.print_lines([terminal.safe(line) for line in lines])
    return cluster.exit_code(answers, EXIT_NOT_DONE)


def excepted(given: Iterable[str]) -> tuple[str, ...]:
    """Return the names of checks in values of `--except`. Raises UsageError for an unknown one."""
    return _known(name for value in given for name in value.split(",") if name)


def _known(given: Iterable[str]) -> tuple[str, ...]:
    """Return the names of checks. Raises UsageError for an unknown one, and suggests a similar one."""
    from ..doctor import every

    known, found = [check.name for check in every.ALL], tuple(given)
    for name in found:
        if name not in known:
            hint = did_you_mean(name, known, "`slurm-share doctor --explain` lists them")
            raise UsageError(f"there is no check {quoted(name)}{hint}")
    return found


# --- Output ----------------------------------------------------------------------------------------------------------


def counts(findings: Collection[Finding]) -> dict[str, int]:
    """Count the findings of each outcome."""
    return {outcome: sum(one.outcome == outcome for one in findings) for outcome in ("PASS", "WARN", "FAIL", "SKIP")}


def as_json(facts: Facts, findings: Collection[Finding], results: Iterable[FixResult]) -> dict[str, Any]:
    """Return facts and findings as JSON."""
    version = facts.slurm.version
    return {
        "schema": SCHEMA,
        "host": facts.host,
        "roles": list(facts.roles),
        "root": facts.is_root,
        "slurm": version if isinstance(version, str) else None,
        "counts": counts(findings),
        "fixed": [to_builtins(one) for one in results],
        "findings": [to_builtins(one) for one in findings],
    }


def as_lines(
    facts: Facts, findings: Collection[Finding], results: Iterable[FixResult], *, quiet: bool, verbose: bool
) -> list[str]:
    """Return the findings as text."""
    from ..doctor import every

    lines = [f"fixed  {one.what}" if not one.problem else f"NOT FIXED  {one.what}: {one.problem}" for one in results]
    if quiet:
        wrong = [one for outcome in ("FAIL", "WARN") for one in findings if one.outcome == outcome]
        lines += [f"{one.outcome} {one.check}: {one.what}; fix: {one.fix}" for one in wrong]
        return [terminal.safe(line) for line in lines]
    version = facts.slurm.version
    slurm = f"Slurm {version}" if isinstance(version, str) else "Slurm's release unknown"
    who = "" if facts.is_root else ", not as root"
    lines.append(f"{facts.host}: {' and '.join(facts.roles)} node, {slurm}{who}")
    for one in sorted(findings, key=lambda one: every.ORDER.index(one.outcome)):
        if one.outcome != "PASS" or verbose:
            lines += every.shown(one)
    lines.append(", ".join(f"{number} {outcome}" for outcome, number in counts(findings).items()))
    return [terminal.safe(line) for line in lines]


def cluster_as_json(answers: Collection[HostAnswer], off: Collection[str]) -> dict[str, Any]:
    """Return the findings of all hosts by kind, and the hosts that were not examined, as JSON."""
    from ..doctor import cluster

    return {
        "schema": SCHEMA,
        "hosts": [answer.host for answer in answers],
        "outcomes": dict(cluster.outcomes(answers)),
        "kinds": [to_builtins(one) for one in cluster.kinds(answers)],
        "not_examined": {answer.host: answer.problem for answer in answers if answer.problem},
        "switched_off": list(off),
    }


def cluster_as_lines(answers: Collection[HostAnswer], off: Collection[str], *, quiet: bool, verbose: bool) -> list[str]:
    """Return a line for each kind of finding, with its hosts, and a summary."""
    from ..core.nodelist import fold
    from ..doctor import cluster

    wanted = ("FAIL", "WARN") if quiet else ("FAIL", "WARN", "SKIP", "PASS") if verbose else ("FAIL", "WARN", "SKIP")
    lines = []
    for one, others in cluster.merged(cluster.kinds(answers)):
        if one.outcome in wanted:
            more = f" (and {others} other text{'s' if others > 1 else ''}: --json)" if others else ""
            fix = f"; fix: {one.fix}" if one.fix else ""
            lines.append(f"{one.outcome} {fold(one.hosts)} {one.check}: {one.what}{more}{fix}")
    problems: dict[str, list[str]] = {}
    for answer in answers:
        if answer.problem:
            problems.setdefault(answer.problem, []).append(answer.host)
    lines += [f"NOT EXAMINED {fold(hosts)}: {problem}" for problem, hosts in problems.items()]
    if quiet:
        return lines
    if off:
        lines.append(f"switched off, and not asked: {fold(off)}")
    found = cluster.outcomes(answers)
    words = (f"{found[word]} {text}" for word, text in CLUSTER_WORDS.items() if found[word])
    return [*lines, f"{len(answers)} hosts: {', '.join(words)}"]
