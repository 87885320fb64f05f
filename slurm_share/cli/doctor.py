"""`slurm-share doctor`: what is wrong with slurm-share, Slurm and this host, and the one line that puts it right."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
import traceback
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from ..core import names, terminal
from ..core.command import forget_output
from ..core.errors import SlurmShareError, UsageError

if TYPE_CHECKING:
    from ..doctor import Facts, Finding, FixResult

SCHEMA = 1
EXIT_NOT_DONE = 3
"""clush tells it from warnings (1) and failures (2)."""
ROLE_NAMES = ("controller", "login", "compute")
EPILOG = """\
It looks and changes nothing, at any time, on any host of the cluster. PASS: as it should be. WARN: works, and not as
it should. FAIL: shares are refused, go without MPS, or a node goes down by it. SKIP: not to be seen from here, with
the reason; some things are for root's eyes alone.

examples
  slurm-share doctor                                  what is wrong here, what was not seen, and a count
  clush -a slurm-share doctor --quiet                 of 500 nodes, what is wrong: a line each
  slurm-share doctor --except ptrace,clock            without what this site has decided to live with
  slurm-share doctor --explain plugin-release         what a check looks at, and why
  slurm-share doctor --fix                            put right what is slurm-share's own

exit codes
  0 all well, 1 warnings, 2 something fails (or the command line is wrong), 3 doctor itself could not do its work
"""


def add_to(commands: Any) -> None:
    """Add `doctor`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="what is wrong on this host, and how to put it right",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--role", action="append", choices=ROLE_NAMES, help="what this host is (default: it is found out); repeatable"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--verbose", action="store_true", help="also what is as it should be")
    how.add_argument(
        "--quiet", action="store_true", help="only what is wrong, one line each; nothing where all is well"
    )
    how.add_argument("--json", action="store_true", help="for programs")
    how.add_argument(
        "--explain", nargs="?", const="", metavar="CHECK", help="describe a check, or all of them, and look at nothing"
    )
    parser.add_argument(
        "--except", dest="without", action="append", default=[], metavar="CHECK,...", help="leave out checks by name"
    )
    parser.add_argument("--fix", action="store_true", help="put right what is slurm-share's own, and say what was done")
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
        forget_output()  # a full disk: what was not written must not fail once more, with another exit code
    return EXIT_NOT_DONE


def _examine(arguments: argparse.Namespace) -> int:
    # Here and not above: every command of slurm-share passes this module, the launchers' on all nodes, too.
    from ..doctor import every, page

    if arguments.explain is not None:
        terminal.print_lines(page.page(_known([arguments.explain] if arguments.explain else [])).splitlines())
        return names.EXIT_OK
    without = _known(name for given in arguments.without for name in given.split(",") if name)
    if arguments.fix and os.geteuid() != 0:
        raise UsageError("--fix is for root")
    from ..doctor import examination

    facts, findings, results = examination.examine(tuple(arguments.role or ()), without, fix=arguments.fix)
    if arguments.json:
        print(json.dumps(as_json(facts, findings, results), indent=2))
    else:
        terminal.print_lines(as_lines(facts, findings, results, quiet=arguments.quiet, verbose=arguments.verbose))
    return every.exit_code(findings)


def _known(given: Iterable[str]) -> tuple[str, ...]:
    """Return the names of checks. Raises UsageError for an unknown one, with the one that may have been meant."""
    from ..doctor import every

    known = [check.name for check in every.ALL]
    found = tuple(given)
    for name in found:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "`slurm-share doctor --explain` lists them"
            raise UsageError(f"there is no check {name!r}; {hint}")
    return found


# --- For programs and for people -------------------------------------------------------------------------------------


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
        "fixed": [{"what": one.what, "problem": one.problem} for one in results],
        "findings": [
            {"check": one.check, "outcome": one.outcome, "what": one.what, "fix": one.fix} for one in findings
        ],
    }


def as_lines(
    facts: Facts, findings: Collection[Finding], results: Iterable[FixResult], *, quiet: bool, verbose: bool
) -> list[str]:
    """Return the findings as text."""
    from ..doctor import every

    lines = [f"fixed  {one.what}" if not one.problem else f"NOT FIXED  {one.what}: {one.problem}" for one in results]
    if quiet:
        wrong = [one for outcome in ("FAIL", "WARN") for one in findings if one.outcome == outcome]
        return [terminal.safe(line) for line in lines + [f"{one.outcome} {_said(one)}; {one.fix}" for one in wrong]]
    version = facts.slurm.version
    slurm = f"Slurm {version}" if isinstance(version, str) else "Slurm's release unknown"
    who = "" if facts.is_root else ", not as root"
    lines.append(f"{facts.host}: {' and '.join(facts.roles)} node, {slurm}{who}")
    for outcome in every.ORDER:
        if outcome == "PASS" and not verbose:
            continue
        for one in findings:
            if one.outcome == outcome:
                lines += [f"{outcome}  {_said(one)}", *([f"      fix: {one.fix}"] if one.fix else [])]
    lines.append(", ".join(f"{number} {outcome}" for outcome, number in counts(findings).items()))
    return [terminal.safe(line) for line in lines]


def _said(one: Finding) -> str:
    return f"{one.check}: {one.what}"
