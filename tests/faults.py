"""Plants the faults of tests/faults.toml in a copy of the tree, one at a time, and runs the tests: tests/faults.sh.

A fault is a piece of text that occurs exactly once in the product, and its replacement. It is caught if every test that
it names fails; before any fault is planted, all those tests must pass. Text that is no longer in the product is an
error: the check has moved, and the table must follow.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests/faults.toml"
PAGE = ROOT / "packaging/docs/maintain.md"
BLOCK = re.compile(r"(<!-- invariants -->\n).*?(\n<!-- end -->)", re.DOTALL)
"""The part of the page that is made from the table."""
INVARIANTS = {
    "node": "No node is drained, and slurmd and slurmctld start, whatever a user does",
    "data": "A user reads and changes nothing of another user's, and root nothing through a user's names",
    "foreign": "No signal, stop or removal reaches anything but what it is meant for",
    "gpu": "Two users are never on one GPU, and a job uses only GPUs that Slurm gave it",
    "once": "A slot, a claim or a call is given once, and nothing runs twice",
    "results": "No result line, task or saved work is lost, and nothing counts as done that is not",
    "asked": "A job shares as it asked and as the site allows, or ends with a sentence",
    "memory": "No memory is booked twice, and a size that was too small grows",
    "gone": "What a job leaves on a node goes, and keeps nobody waiting",
    "input": "What users write is read strictly, in bounded time and memory",
    "figures": "No figure, advice or history says what was not measured",
    "pays": "Tasks wait or make way only where that pays",
}
"""Word of a fault's `keeps` -> the invariant. The first ones come first: where two of them conflict, the earlier one
holds."""
SHOWN = 4
"""Faults of an invariant that the maintainer's page names, each of another file of the product."""
HANG_S = 300
"""Time limit of one test with a fault planted, in seconds. A test that reaches it counts as failed."""
PYTEST_S = 600.0
"""Time limit for the tests of one fault; for all tests without a fault it is twice as long."""


@dataclass(frozen=True)
class Fault:
    """A fault: one line of tests/faults.toml."""

    what: str
    keeps: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def needs_root(self) -> bool:
        """Return whether one of its tests brings up a cluster."""
        return any(test.startswith("tests/cluster/") for test in self.tests)


def parse(text: str) -> tuple[Fault, ...]:
    """Read the table. Raises ValueError for one that has the same fault twice or lacks something."""
    faults = []
    for number, one in enumerate(tomllib.loads(text)["fault"], start=1):
        if set(one) != {"what", "keeps", "file", "old", "new", "tests"} or not one["tests"] or one["old"] == one["new"]:
            raise ValueError(f"fault {number} ({one.get('what')}) wants what, keeps, file, old, new and tests")
        if one["keeps"] not in INVARIANTS:
            raise ValueError(f"fault {number} ({one['what']}): keeps is one of {', '.join(INVARIANTS)}")
        faults.append(Fault(one["what"], one["keeps"], one["file"], one["old"], one["new"], tuple(one["tests"])))
    for key in ([one.what for one in faults], [(one.file, one.old, one.new) for one in faults]):
        if twice := [one for one in key if key.count(one) > 1]:
            raise ValueError(f"more than once: {twice[0]}")
    return tuple(faults)


def invariants(faults: Sequence[Fault], shown: int | None = None) -> str:
    """Return the invariants in their order as a table in Markdown: what would be wrong, and the test that notices it.
    `shown`: only so many faults of each, of unlike files; None: all."""
    lines = ["| what would be wrong | test that notices it |", "|---|---|"]
    for number, (word, sentence) in enumerate(INVARIANTS.items(), start=1):
        own = [one for one in faults if one.keeps == word]
        files = [one.file for one in own]
        unlike = [one for at, one in enumerate(own) if files.index(one.file) == at]
        count = "" if shown else f"{len(own)} faults"  # on the page it would change with every fault
        lines.append(f"| **{number}. {sentence}** | {count} |")
        for one in own if shown is None else unlike[:shown]:
            file, _, name = one.tests[0].partition("::")
            lines.append(f"| {one.what} | `{name.partition('[')[0] or file}` |")
    return "\n".join(lines)


def problem(fault: Fault, root: Path) -> str | None:
    """Say why the fault cannot be planted or noticed in this tree; None: it can."""
    file = root / fault.file
    if not file.is_file():
        return f"there is no {fault.file}"
    count = file.read_text().count(fault.old)
    if count != 1:
        return f"its text is {count} times in {fault.file}, not once: {fault.old!r}"
    for test in fault.tests:
        name, _, function = test.partition("::")
        function = function.partition("[")[0]
        if not (root / name).is_file() or (function and f"def {function}(" not in (root / name).read_text()):
            return f"there is no test {test}"
    return None


def copy_tree(target: Path) -> None:
    """Copy what git knows or would take, with a virtual environment whose `slurm_share` is the copy's."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    ).stdout
    for name in listed.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    ours = next((ROOT / ".venv/lib").glob("python3*/site-packages"))
    site = target / ".venv" / ours.relative_to(ROOT / ".venv")
    site.mkdir(parents=True)
    for entry in ours.iterdir():
        # How an editable installation says where the packages are.
        if entry.name.startswith("__editable__") and entry.is_file():
            (site / entry.name).write_text(entry.read_text().replace(str(ROOT), str(target)))
        elif entry.name != "__pycache__":
            (site / entry.name).symlink_to(entry)
    shutil.copy2(ROOT / ".venv/pyvenv.cfg", target / ".venv/pyvenv.cfg")
    (target / ".venv/installed").touch()
    (target / ".venv/bin").mkdir()
    for entry in (ROOT / ".venv/bin").iterdir():
        copy = target / ".venv/bin" / entry.name
        if entry.is_symlink():
            copy.symlink_to(entry.readlink())
        elif entry.is_file():
            copy.write_bytes(entry.read_bytes().replace(os.fsencode(ROOT), os.fsencode(target)))
            copy.chmod(0o755)


def forget_compiled(file: Path) -> None:
    """Remove what Python compiled of a file: a fault may have the same length and second as what it replaces."""
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink()


def run_tests(
    tree: Path, tests: Sequence[str], seconds: float, jobs: int = 0, *words: str
) -> tuple[int, dict[str, bool], str]:
    """Run the tests of a tree. Answers with pytest's exit code, which tests ran and
    whether each passed, and the text."""
    results = tree / ".results.xml"
    results.unlink(missing_ok=True)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment |= {"PATH": f"{tree}/.venv/bin:{os.environ['PATH']}", "SLURM_SHARE_TEST_RELEASE": "usual"}
    argv = [f"{tree}/.venv/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(jobs)]
    argv += ["--dist", "loadgroup", "--tb=line", f"--junitxml={results}", "-o", "junit_family=xunit1", *words, *tests]
    try:
        done = subprocess.run(
            argv,
            cwd=tree,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, {}, f"not over after {seconds:g} s"
    passed: dict[str, bool] = {}
    if results.exists():
        for case in ElementTree.parse(results).iter("testcase"):
            name = f"{file_of(case, tree)}::{case.get('name', '').partition('@')[0]}"
            passed[name] = passed.get(name, True) and not {child.tag for child in case} & {
                "failure",
                "error",
                "skipped",
            }
    return done.returncode, passed, done.stdout.decode(errors="replace")


def file_of(case: ElementTree.Element, tree: Path) -> str:
    """Return the file that has a test. `file` is that of its code: a helper's for a decorated test. `classname`
    is made of the test's own address."""
    own = case.get("classname", "").replace(".", "/") + ".py"
    return own if (tree / own).is_file() else case.get("file", "")


def verdict(fault: Fault, code: int, passed: dict[str, bool], text: str) -> str:
    """Say `caught`, or why not."""
    if code not in (0, 1):
        last = text.strip().splitlines()[-1:] or [""]
        return f"NOT RUN: pytest ended with {code}: {last[0][:160]}"
    blind = [test for test in fault.tests if not any(not well for name, well in passed.items() if covers(test, name))]
    return f"NOT CAUGHT by {', '.join(blind)}" if blind else "caught"


def covers(test: str, name: str) -> bool:
    """Return whether a test name of the table means this test: with its parameters, or all of them."""
    return name == test or name.startswith((f"{test}[", f"{test}::"))


def main() -> int:
    """Plant the faults that the options choose; return 1 if a test does not notice one."""
    parser = argparse.ArgumentParser(prog="tests/faults.sh", description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="TEXT", default="", help="faults with this in their name or file")
    parser.add_argument("--check", action="store_true", help="only see whether the table fits the product")
    parser.add_argument("--invariants", action="store_true", help="only print what the faults break, by importance")
    parser.add_argument("--page", action="store_true", help="only compare maintain.md with the table")
    parser.add_argument("--write", action="store_true", help="with --page: write them there")
    args = parser.parse_args()
    faults = [one for one in parse(TABLE.read_text()) if args.only in one.what or args.only in one.file]
    if not faults:
        parser.error(f"no fault has {args.only!r} in its name or file")
    if args.invariants:
        print(invariants(faults))
        return 0
    if args.page:
        text = PAGE.read_text()
        new = BLOCK.sub(lambda found: f"{found[1]}{invariants(faults, SHOWN)}{found[2]}", text)
        if args.write:
            PAGE.write_text(new)
        return 0 if args.write or new == text else 1
    misfits = [(one, why) for one in faults if (why := problem(one, ROOT)) is not None]
    for one, why in misfits:
        print(f"ERROR: {one.what}: {why}")
    if misfits or args.check:
        return 1 if misfits else 0
    if os.geteuid() != 0 and any(one.needs_root for one in faults):
        parser.error("some of these faults are noticed by cluster tests, which need root")
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        Path(folder).chmod(0o755)  # some tests look at the tree as another user
        tree = Path(folder).resolve() / "tree"
        copy_tree(tree)
        tests = sorted({test for one in faults for test in one.tests})
        code, _, text = run_tests(tree, tests, 2 * PYTEST_S, jobs=2)
        if code != 0:
            print(text)
            print("ERROR: without a fault not all of these tests pass, so they would prove nothing")
            return 1
        return 1 if sum(not is_caught(one, tree) for one in faults) else 0


def is_caught(fault: Fault, tree: Path) -> bool:
    """Plant the fault, run its tests, take it out; a line of the table is printed."""
    file = tree / fault.file
    text, info = file.read_text(), file.stat()
    began = time.monotonic()
    try:
        file.write_text(text.replace(fault.old, fault.new))
        forget_compiled(file)
        said = verdict(fault, *run_tests(tree, fault.tests, PYTEST_S, 0, f"--timeout={HANG_S}"))
    finally:
        file.write_text(text)
        os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns))
        forget_compiled(file)
    print(
        f"{said if said == 'caught' else 'MISSED':7} {time.monotonic() - began:5.1f} s  {fault.file}: {fault.what}",
        flush=True,
    )
    if said != "caught":
        print(f"        {said}", flush=True)
    return said == "caught"


if __name__ == "__main__":
    sys.exit(main())
