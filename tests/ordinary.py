"""Comparison of ordinary jobs with and without slurm-share: see tests/ordinary.sh."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "packaging/demo"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import slurm_testsuite

from localcluster import RELEASES, Cluster, process
from localcluster.records import CURRENT

PLAIN, OBSERVES, SHARES = "without", "observe", "on"
KINDS = (PLAIN, OBSERVES, SHARES)
REPEATS = 3
"""A difference counts if it occurs in the first run and in each of so many further runs."""
CASE_S = 200.0
"""One case waits for a time limit: a minute, and another until slurmctld looks."""
HAS_NO_END = f"it did not end in {CASE_S:g} s"

CASES = Path(__file__).with_name("ordinary.cases")
PRELUDE = "prelude"

_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"
NORMALISED: tuple[tuple[str, str, str], ...] = (
    (rf"{_TIME}(\.\d+)?", "TIME", "moments, as scontrol and sacct write them"),
    (
        r"\b(RunTime|PreemptTime|LastSchedEval|Scheduler)=\S+",
        r"\1=...",
        "how long it ran, and which scheduler was first",
    ),
    (r"\b1[789]\d{8}(\.\d+)?\b", "UNIX", "moments, as Slurm's variables have them"),
    (r"\bs[0-9A-Z]{13}\b", "SLUID", "a job's other number (26.05): made of the time"),
    (r"\bSched(Main|Backfill|Submit)\b", "Sched", "which scheduler was first"),
    (r"\b(SLURM_\w*(?:PORT|PID|_PIDS))=\d+", r"\1=N", "ports and process numbers: the next free ones"),
    (r"\b(SRUN_DEBUG|SLURM_TASK_PID)=\d+", r"\1=N", "process numbers"),
    (r"\bReqS:L:A=\S+|\bSrunHost:Pid=\S+|\bAllocNode:Sid=(\w+):\d+", r"AllocNode \1", "process numbers"),
    (r"\bPriority=\d+|\bPRIORITY\b", "Priority=N", "falls by one with every job that was submitted before"),
    (r"/run/user/\d+|/dev/pts/\d+", "PTS", "the next free terminal"),
    (r"\[\d{3,}\]", "[N]", "numbers of the kernel's pipes and sockets"),
    (r"\b(CPU_IDs|IDX)[=:]", r"\1=", "kept: it is the same where the nodes were empty"),
)
"""Text that differs between two runs of one command on one cluster, its replacement, and the reason."""


BEFORE_A_JOB = (
    *("^job ", "job allocation ", "batch job ", r"\bJobId=", r"\bJOBID=", r"\bJOB_ID=", r"\bArrayJobId=", "StepId="),
    *("^Job ", "for job ", "slurm-", r"JobID.*\n"),
)
"""Text before a job's number wherever Slurm writes it first."""


def read_cases() -> tuple[str, dict[str, str], dict[str, str]]:
    """Return the prelude, the cases that run as a test, and all cases."""
    groups: dict[str, dict[str, str]] = {}
    for part in re.split(r"(?m)^##### ", CASES.read_text()):
        name, _, text = part.partition("\n")
        found = re.findall(r"(?ms)^=== (.*?)\n(.*?)(?=^=== |\Z)", text)
        groups[name if groups else ""] = dict(found)
    prelude = groups[""].pop(PRELUDE)
    return prelude, groups["quick"], {what: script for group in groups.values() for what, script in group.items()}


def normalise(text: str, folder: str) -> str:
    """Return the text of one run with variable parts numbered: job numbers in order of appearance."""
    text = text.replace("\r\n", "\n").replace(folder, "FOLDER")
    for pattern, replacement, _ in NORMALISED:
        text = re.sub(pattern, replacement, text)
    jobs = list(dict.fromkeys(re.findall(rf"(?:{'|'.join(BEFORE_A_JOB)})(\d+)", text, re.MULTILINE)))
    for number, job in enumerate(jobs):
        text = re.sub(rf"(?<![\d.]){job}(?!\d)", f"JOB{number}", text)
    return text


class Site:
    """One of the three clusters."""

    def __init__(self, kind: str, cluster: Cluster) -> None:
        self.kind = kind
        self.cluster = cluster
        self._runs = 0
        self._prelude = read_cases()[0]

    def run(self, script: str) -> str:
        """Run a case in an empty folder; return its output, exit code and the files it left."""
        self._runs += 1
        folder = f"/home/alice/case.{self._runs}"
        whole = f"mkdir {folder}; cd {folder}; {self._prelude}\n{script}"
        env = ["env", "-u", "OLDPWD", "bash", "-c", whole]
        try:
            done = self.cluster.as_user("alice", env, timeout=CASE_S)
            # srun's own lines and its tasks' come in any order
            errors = "\n".join(sorted(done.stderr.splitlines()))
            said = f"{done.stdout}\n-- stderr\n{errors}\n-- code {done.returncode}\n"
        except Exception as error:  # noqa: BLE001 - a case that hangs is a result to compare
            said = f"-- {type(error).__name__}: {HAS_NO_END}\n"
        left = self.cluster.jobs()
        if left:
            self.cluster.cancel_all()
        process.wait_until(lambda: not self.cluster.jobs(), "an empty queue", 60.0, every_s=0.05)
        names = sorted(
            re.sub(r"\d+", "N", path.name) for path in (self.cluster.home / f"alice/case.{self._runs}").iterdir()
        )
        nodes = sorted(self.cluster.status().nodes.items())
        return normalise(f"{said}-- files {' '.join(names)}\n-- nodes {nodes}\n", folder)


@contextlib.contextmanager
def sites(name: str, release: str, *, accounting: bool, **options: Any) -> Iterator[Sequence[Site]]:
    """Yield the three clusters, alike except for slurm-share. `options`: further ones of the clusters."""
    # Job numbers that are no other number of a case.
    options = {"nodes": 2, "slurm_conf_extra": "FirstJobId=61001", **options}
    with contextlib.ExitStack() as stack:
        found = []
        for kind in KINDS:
            without = ("plugin", "python") if kind == PLAIN else ()
            cluster = Cluster.up(f"{name}-{kind}", release, accounting=accounting, without=without, **options)
            stack.enter_context(cluster)
            # Whole nodes for one user are a choice of the site's for its ordinary jobs, too.
            text = (cluster.site / "config.toml").read_text()
            text = re.sub(r"(?m)^exclusive_user_partitions.*\n", "", text)
            cluster.write_config(text.replace('mode = "on"', f'mode = "{kind}"') if kind != PLAIN else text)
            found.append(Site(kind, cluster))
        yield found


def at_once(sites: Sequence[Site], work: Callable[[Site], str]) -> dict[str, str]:
    """Return the result of `work` for each cluster, all run at the same time."""
    with ThreadPoolExecutor(len(sites)) as pool:
        return {site.kind: said for site, said in zip(sites, pool.map(work, sites), strict=True)}


def differing(sites: Sequence[Site], work: Callable[[Site], str]) -> dict[str, str]:
    """Return the difference to the cluster without slurm-share, by kind, if it was there every time."""
    found = at_once(sites, work)
    if HAS_NO_END in found[PLAIN]:  # then it compares nothing
        return {PLAIN: f"    {HAS_NO_END}"}
    kinds = {kind for kind in found if found[kind] != found[PLAIN]}
    for _ in range(REPEATS):
        if not kinds:
            break
        found = at_once(sites, work)
        kinds = {kind for kind in kinds if found[kind] != found[PLAIN]}
    return {kind: _difference(found[PLAIN], found[kind], kind) for kind in sorted(kinds)}


def _difference(plain: str, other: str, kind: str) -> str:
    lines = difflib.unified_diff(plain.splitlines(), other.splitlines(), PLAIN, kind, lineterm="", n=1)
    return "\n".join(f"    {line}" for line in lines)


def compare(sites: Sequence[Site], cases: Mapping[str, str], say: Callable[[str], None] = print) -> list[str]:
    """Return the cases that differ; print each difference."""
    bad = []
    for what, script in cases.items():
        begin = time.monotonic()
        found = differing(sites, lambda site, script=script: site.run(script))  # type: ignore[misc]
        say(f"{'DIFFERS' if found else 'same'}  {what}  ({time.monotonic() - begin:.1f} s)")
        for kind, text in found.items():
            bad.append(f"{what} [{kind}]")
            say(text)
    return bad


def chosen(cases: Mapping[str, str], words: Iterable[str]) -> dict[str, str]:
    """Return the cases with one of these words in their names; all if there is no word."""
    words = tuple(words)
    return {what: script for what, script in cases.items() if not words or any(word in what for word in words)}


def main() -> int:
    """Return 0 if nothing differs, 1 if something does, 2 if nothing could be compared."""
    parser = argparse.ArgumentParser(prog="tests/ordinary.sh", description=__doc__)
    parser.add_argument(
        "path", nargs="?", type=Path, help="Slurm's own testsuite folder: then its files are run instead"
    )
    parser.add_argument("--quick", action="store_true", help="only the cases that tests/cluster/test_ordinary.py runs")
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="only what has WORD in its name")
    parser.add_argument("--release", default=CURRENT, choices=list(RELEASES), help=f"of Slurm (default: {CURRENT})")
    parser.add_argument("--each", type=float, default=60.0, metavar="SECONDS", help="limit for a file of the testsuite")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no file of the testsuite after so many")
    args = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if os.geteuid() != 0:
        print("tests/ordinary.sh: real clusters need root", file=sys.stderr)
        return 2
    begin = time.monotonic()
    options = slurm_testsuite.OPTIONS if args.path else {}
    with sites(f"ordinary{os.getpid()}", args.release, accounting=not args.quick, **options) as three:
        print(f"Slurm {three[0].cluster.slurm_version}: {', '.join(KINDS)}")
        if args.path is not None:
            bad = slurm_testsuite.compare(three, args.path, args.only, args.each, REPEATS, 60 * args.minutes)
        else:
            _, quick, every = read_cases()
            cases = chosen(quick if args.quick else every, args.only)
            bad = compare(three, cases)
            print(f"{len(cases)} cases, {len(bad)} differences")
    print(f"{time.monotonic() - begin:.0f} s")
    for one in bad:
        print(f"differs: {one}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
