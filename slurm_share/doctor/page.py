"""Write the page about the checks of `slurm-share doctor`: packaging/docs/doctor.md."""

from __future__ import annotations

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

Made by `slurm-share doctor --explain`. Every check, what holds on a healthy host, what goes wrong where it does not,
and how to put it right. It runs on controllers, login and compute nodes, looks and changes nothing (but with `--fix`,
which touches only what is slurm-share's own), and asks nothing that takes long. `slurm-share doctor --help` has the
options.

| outcome | |
|---|---|
| PASS | as it should be |
| WARN | works, and not as it should; exit code 1 |
| FAIL | shares are refused, go without MPS, or a node goes down by it; exit code 2 |
| SKIP | not to be seen from here, or nothing to see; the reason is said |

Exit code 3: doctor itself could not do its work, and says why; nothing is known of the host then.

`--fix` does what the Epilog of a job that is over left undone (daemons, leftover processes, folders, its line in the
ledger), puts compute modes back that a job changed, stops MPS daemons of ours that no job has, has slurm-share-plugin
choose the object for the installed Slurm, and takes others' write permission from the state folder and the log. It
proves of jobs, modes and daemons first that no job has them: by Slurm, by the kernel and by the ledger. Where one of
these does not answer it leaves them alone, and modes and daemons as well while a job is here that the ledger does not
know; a daemon that any program uses is left alone, too, and the program is named. What is Slurm's or the system's it
only names.

Five hundred nodes may run it at once. It sends slurmctld two pings and a question for its configuration; from a compute
node one for the nodes and partitions, and for each job that the node knows of (from the fifth on: for all jobs at once)
one more; from a controller one each for nodes and partitions. `--fix` asks for all jobs. From login and compute nodes
it also asks which mode the controller's job_submit.lua is in, by a job that is never queued: `sbatch --test-only` with
a share of no GPU, which is refused before slurmctld looks for nodes (two messages, a third of a millisecond) and leaves
a line in slurmctld's log.
"""
FORESEEN = """\
## What it foresees

Of the failures in [failure-modes.md](failure-modes.md) these are seen before a job meets them, or while they last; the
others befall one job in one moment, and nothing shows them before.

| # | checks |
|---|---|
"""

PLANTED = """
## Faults of real sites

Each is planted on a cluster by a test, which compares what doctor says with this table, that it says nothing else, and
that it is content when the remedy has been applied or the fault taken back.

| fault | found by | remedy |
|---|---|---|
"""


def page(only: Collection[str] = ()) -> str:
    """Return the page with all checks by topic, or with those named in `only`."""
    if only:
        return "\n".join(_described(check) for check in ALL if check.name in only)
    parts = [HEAD]
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
    lines = [f"* If not: {check.why}.", f"* Fix: {check.fix}."]
    body = "\n".join(textwrap.fill(line, WIDTH, subsequent_indent="  ", **_WHOLE) for line in lines)
    return f"### {check.name}\n\n{textwrap.fill(f'{_sentence(check.asks)} ({where})', WIDTH, **_WHOLE)}\n\n{body}\n"


def _sentence(text: str) -> str:
    """Return a sentence with a capital letter, unless it begins with the name of a file or daemon."""
    is_name = "." in text.split()[0] or text.startswith(("slurmd", "slurmctld"))
    return f"{text}." if is_name else f"{text[:1].upper()}{text[1:]}."
