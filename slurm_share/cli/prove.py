"""`slurm-share prove`: let the driver of this node show which promises about shared GPUs hold."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from ..core import names, terminal
from ..core.config import load
from ..core.errors import UsageError

if TYPE_CHECKING:
    from ..prove import Proof, Verdict

EXIT_BROKEN = 1
USER = "nobody"
SIMULATED = "SIMULATED GPU: this says nothing about a real driver"
EPILOG = """\
For root, on a node that is drained or idle. Runs programs that take too much memory, lie about their caps and fault, as
--user, on one GPU, for some minutes; other GPUs and the node's settings are not touched. The promises are those of the
page security.md of the documentation. Everything is removed at the end; after a kill -9, run it again.

examples
  slurm-share prove --yes                              all promises, on the first GPU
  slurm-share prove --gpu 2 --json proof.json --yes    on GPU 2, with a record of what was measured
  slurm-share prove --only total,memory-fork --yes     some of them

exit codes
  0 what is promised of this node holds, 1 a promise does not hold, 2 wrong usage, or the node is in use
"""


def add_to(commands: Any) -> None:
    """Add the sub-command `prove`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "prove", help="test on this node's driver which promises about shared GPUs hold", epilog=EPILOG
    )
    parser.add_argument("--gpu", type=int, metavar="N", help="NVML's index of the GPU (default: the first)")
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON; - for standard output")
    parser.add_argument("--user", default=USER, metavar="NAME", help=f"run the programs as this user ({USER})")
    parser.add_argument("--only", metavar="PROMISE,...", default="", help="test these promises only")
    parser.add_argument("--yes", action="store_true", help="do not ask before it begins")
    parser.set_defaults(run=run_prove)


def run_prove(arguments: argparse.Namespace) -> int:
    """Test the promises and print a line for each. Raises UsageError, and the errors of the package."""
    from .. import prove as package  # imported late: all commands of slurm-share load this module

    if os.geteuid() != 0:
        raise UsageError("prove is for root: it starts programs as another user and limits their memory")
    only = [name for name in arguments.only.split(",") if name]
    if arguments.only and not only:
        raise UsageError("--only needs the names of promises, for example --only total,memory-fork")
    if arguments.json not in (None, "-"):
        _check_writable(Path(arguments.json))  # now, and not after the minutes that the proof takes
    _ask(arguments)
    is_quiet = arguments.json == "-"

    def say(verdict: Verdict) -> None:
        if not is_quiet:
            terminal.print_lines(folded(lines_of(verdict), terminal.width()))
            sys.stdout.flush()

    def begin(proof: Proof) -> None:
        if not is_quiet:
            terminal.print_lines([terminal.safe(line) for line in head(proof)])

    proof = package.prove(load().settings, arguments.gpu, arguments.user, begin, say, only)
    text = json.dumps(to_builtins(proof), indent=2)
    if is_quiet:
        print(text)
    elif arguments.json:
        Path(arguments.json).write_text(text + "\n", encoding="utf-8")
    terminal.print_lines([terminal.safe(line) for line in summary(proof)], sys.stderr if is_quiet else sys.stdout)
    return EXIT_BROKEN if proof.broken else names.EXIT_OK


def _ask(arguments: argparse.Namespace) -> None:
    """Ask whether to begin. Raises UsageError if the answer is no, or nobody can answer."""
    if arguments.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("prove asks before it begins; in a script, write --yes")
    print("prove runs programs that fault and take memory on a GPU of this node. Begin? [y/N] ", end="", flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("not begun")


def lines_of(verdict: Verdict) -> list[str]:
    """Return the lines about one promise."""
    mark = "" if verdict.is_promised else " (not promised)" if verdict.outcome == "does not hold here" else ""
    measured = ", ".join(f"{name} {value}" for name, value in verdict.measured.items() if value != "")
    rest = verdict.why or (f"measured: {measured}" if measured else "")
    lines = [f"{verdict.outcome:<18} {verdict.promise}: {verdict.says}{mark}"]
    return [terminal.safe(line) for line in (*lines, *([f"{'':<18} {rest}"] if rest else []))]


def folded(lines: list[str], width: int) -> list[str]:
    """Return the lines about promises in at most `width` columns, with the text below the text."""
    wrap = textwrap.TextWrapper(max(40, width), subsequent_indent=" " * 19, break_on_hyphens=False).wrap
    return [part for line in lines for part in wrap(line)]


def _check_writable(path: Path) -> None:
    """Raises UsageError if the file cannot be written."""
    try:
        is_new = not path.exists()
        path.open("w" if is_new else "r+", encoding="utf-8").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise UsageError(f"--json {path}: {error.strerror}") from error


def head(proof: Proof) -> list[str]:
    """Return the lines that say where a proof is made, and whether the GPU is simulated."""
    where = f"{proof.node}, GPU {proof.gpu_index} ({proof.gpu_name}), driver {proof.driver}, as {proof.user}"
    return [SIMULATED, where] if proof.simulated else [where]


def summary(proof: Proof) -> list[str]:
    """Return the last lines: where it was, and how many promises hold."""
    from ..prove import promises

    counts = {outcome: sum(one.outcome == outcome for one in proof.verdicts) for outcome in promises.OUTCOMES}
    lines = head(proof)
    lines.append(", ".join(f"{number} {outcome}" for outcome, number in counts.items()))
    if proof.broken:
        lines.append(f"PROMISED, AND NOT HELD: {', '.join(one.promise for one in proof.broken)}")
    return lines
