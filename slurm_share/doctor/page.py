"""Write the page about the checks of `slurm-share doctor`: packaging/docs/doctor.md."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection
from typing import Any

from .checks.every import ALL, FORESEES, THEMES
from .checks.faults import FAULTS, Fault
from .facts.records import Check

WIDTH = 119
_WHOLE: Any = {"break_long_words": False, "break_on_hyphens": False}
HEAD = """\
# slurm-share doctor

For administrators. Printed by `slurm-share doctor --explain`: every check, what is true on a healthy host, the
consequences if it is not, and the remedy. Doctor runs on controllers, login and compute nodes. It changes nothing,
except with `--fix`, which changes only what is slurm-share's own. `slurm-share doctor --help` shows the options.

| outcome | |
|---|---|
| PASS | as it should be |
| WARN | works, but not as it should; exit code 1 |
| FAIL | shares are refused or run without MPS, or a node is drained; exit code 2 |
| SKIP | unknown on this host, or not applicable, with the reason |

Exit code 3: doctor could not examine the host, and prints why.

The checks marked `install --check` need only Slurm's files, config.toml and the scripts that they name. `slurm-share
install` runs them on the controller on the files as they will be after its `--apply`, before Slurm uses them, and
prints the same findings.

## What `--fix` changes

`--fix` completes the clean-up of ended jobs (daemons, leftover processes, folders, lines in the ledger), restores
compute modes that a job changed, stops MPS daemons of slurm-share without a job, runs slurm-share-plugin to choose the
object for the installed Slurm, and removes others' write permission from the state folder and the log. Before it
changes anything of a job, mode or daemon, it checks with Slurm, the kernel and the ledger that no job uses it. If one
of them does not answer, it changes nothing of these. While the ledger lacks a job that runs here, it changes no mode
and no daemon. A daemon that a program uses is not stopped, and the program is named. Problems of Slurm or the system
are only reported.

## On all hosts

`slurm-share doctor --cluster` on a controller runs it on every controller and node through `remote_command` of
config.toml, 32 hosts at once, and prints a line for each kind of finding, with its hosts (`n[1-40]`) and the remedy,
then a count of hosts. `--also login[1-2]` adds hosts that Slurm does not know. Its exit code is that of the worst host;
a host that does not answer within 90 s is named with the reason, and counts as 3. Nodes that Slurm has switched off are
not asked.

## What it asks of Slurm

Five hundred nodes can run it at once. It sends slurmctld two pings and a request for the configuration; from a compute
node one request for nodes and partitions and one for each job that the node knows (for more than four: one for all
jobs); from a controller one request each for nodes and partitions. `--fix` requests all jobs. Login and compute nodes
also ask for the mode of the controller's job_submit.lua with a job that is never queued: `sbatch --test-only` with a
share of no GPU. It is refused before slurmctld searches nodes (two messages, a third of a millisecond) and leaves a
line in slurmctld's log.
"""
FORESEEN = """\
## Failures that it detects

Doctor detects these failures of [failure-modes.md](failure-modes.md) before they affect a job, or while they last. The
others happen to one job at one moment, and nothing shows them before.

| # | checks |
|---|---|
"""

PLANTED = """
## Faults of real sites

A test makes each fault on a cluster, compares doctor's findings with this table, and checks that there are no others
and that all checks pass after the remedy.

| fault | found by | remedy |
|---|---|---|
"""


def page(only: Collection[str] = ()) -> str:
    """Return the page with all checks by topic, or with those named in `only`."""
    if only:
        return "\n".join(_described(check) for check in ALL if check.name in only)
    topics = "".join(
        f"* [{theme}](#{re.sub(r'[^a-z ]', '', theme.lower()).replace(' ', '-')})\n" for theme, _ in THEMES
    )
    parts = [HEAD, f"## The checks by topic\n\n{topics}"]
    for theme, checks in THEMES:
        parts += [f"## {theme}\n", *(_described(check) for check in checks)]
    rows = (f"| {row} | {', '.join(names)} |\n" for row, names in FORESEES.items())
    return "\n".join([*parts, FORESEEN + "".join(rows) + PLANTED + "".join(_row(fault) for fault in FAULTS)])


def _row(fault: Fault) -> str:
    found = ", ".join(fault.checks) or f"exit code {fault.outcome}"
    outcome = f" ({fault.outcome})" if fault.checks else ""
    remedy = fault.remedy.replace("|", "\\|")
    return f"| {fault.what} | {found}{outcome} | {remedy} |\n"


def _described(check: Check) -> str:
    where = "everywhere" if len(check.roles) == 3 else ", ".join(check.roles)
    where += "; also `install --check`" if check.needs == "configuration" else ""
    lines = [f"* If not: {check.why}.", f"* Fix: {check.fix}."]
    body = "\n".join(textwrap.fill(line, WIDTH, subsequent_indent="  ", **_WHOLE) for line in lines)
    return f"### {check.name}\n\n{textwrap.fill(f'{_sentence(check.asks)} ({where})', WIDTH, **_WHOLE)}\n\n{body}\n"


def _sentence(text: str) -> str:
    """Return a sentence with a capital letter, unless it begins with the name of a file or daemon."""
    is_name = "." in text.split()[0] or text.startswith(("slurmd", "slurmctld", "munged", "systemd-logind"))
    return f"{text}." if is_name else f"{text[:1].upper()}{text[1:]}."
