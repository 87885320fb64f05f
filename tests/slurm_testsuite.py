"""Slurm's own tests (testsuite/expect of its sources, to 25.05) on the three clusters of tests/ordinary.py.

They are under the GPL and never copied into this repository: they are copied from a given folder into the clusters'
homes. Only verdicts are compared. A test that needs what these clusters lack fails or skips on all three.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localcluster import process

if TYPE_CHECKING:
    from ordinary import Site

SERIES = {
    1: "srun", 2: "scontrol", 4: "sinfo", 5: "squeue", 6: "scancel", 14: "sbcast", 15: "salloc", 16: "sattach",
    17: "sbatch", 28: "arrays", 38: "heterogeneous jobs", 39: "GPUs",
}  # fmt: skip
"""Its folders of tests that need no right beyond a user's."""
PACKAGES = ("expect", "tcl-expect", "libtcl8.6")
FOLDER, EXPECT = "expect", ".expect"
SAID = {"SUCCESS": "passes", "FAILURE": "fails", "SKIPPED": "is skipped"}
"""The test's own verdict: expect ends with 0 after an error in a script."""
RUN = """\
cd ~/{folder} || exit 2
export SLURM_LOCAL_GLOBALS_FILE=$PWD/globals.local TCL_LIBRARY=$HOME/{expect}/usr/share/tcltk/tcl8.6
export TCL8_6_TM_PATH=$TCL_LIBRARY/tcl8
timeout -k 2 {limit:g} /lib64/ld-linux-x86-64.so.2 --library-path $HOME/{expect}/usr/lib/x86_64-linux-gnu \
    ~/{expect}/usr/bin/expect ./{test} >~/{test}.log 2>&1 </dev/null
"""
LOCAL = """\
set slurm_dir /usr
set testsuite_cleanup_on_failure true
set bin_cc $env(HOME)/cc
"""
CC = '#!/bin/sh\nexec gcc -fpermissive "$@"\n'
"""Its programs in C declare less than today's gcc demands."""
CONF = "SlurmInstallDir=/usr\nSlurmConfigDir=/etc/slurm\n"
OPTIONS: dict[str, Any] = {
    "nodes": 4,
    "alike": True,
    "slurm_conf_extra": "FirstJobId=61001\nAccountingStorageEnforce=limits\nSchedulerParameters=enable_user_top,"
    "batch_sched_delay=0,sched_min_interval=0,sched_interval=1,default_queue_depth=10000,bf_interval=2",
}
"""Further needs of its files: nodes, limits that hold, and users who may order their own jobs."""


def tests_in(path: Path, only: Sequence[str]) -> tuple[str, ...]:
    """Return the files of the series in order of their numbers; `only`: names or beginnings of names."""
    found = []
    for file in path.glob("test*.*"):
        match = re.fullmatch(r"test(\d+)\.(\d+)", file.name)
        if match and (any(file.name.startswith(word) for word in only) or (not only and int(match[1]) in SERIES)):
            found.append((int(match[1]), int(match[2]), file.name))
    return tuple(name for _, _, name in sorted(found))


def compare(
    sites: Sequence[Site],
    path: Path,
    only: Sequence[str],
    limit_s: float,
    repeats: int,
    most_s: float,
    say: Callable[[str], None] = print,
) -> list[str]:
    """Return the files whose verdicts differ every time."""
    from ordinary import PLAIN, at_once

    folder = path / "expect" if (path / "expect").is_dir() else path
    tests = tests_in(folder, only)
    if not tests:
        raise SystemExit(
            f"tests/ordinary.sh: {folder} has no files like test1.1 of the series {', '.join(map(str, SERIES))}"
        )
    with tempfile.TemporaryDirectory() as made:
        _take_expect(Path(made))
        for site in sites:
            _install(site, folder, Path(made))
    bad, verdicts, started = [], Counter[str](), time.monotonic()
    for number, test in enumerate(tests):
        begin = time.monotonic()
        if begin - started > most_s:
            say(f"not tried, for want of time: {len(tests) - number} files from {test} on")
            break
        found: dict[str, str] = {}
        for _ in range(1 + repeats):
            found = at_once(sites, lambda site, test=test: _verdict(site, test, limit_s))  # type: ignore[misc]
            if len(set(found.values())) == 1:
                break
        is_same = len(set(found.values())) == 1
        verdicts[found[PLAIN]] += 1
        verdict = found[PLAIN] if is_same else str(found)
        say(f"{'same' if is_same else 'DIFFERS'}  {test}: {verdict}  ({time.monotonic() - begin:.0f} s)")
        if not is_same:
            bad.append(f"{test}: {found}")
    counted = ", ".join(f"{count} {what}" for what, count in sorted(verdicts.items()))
    say(f"{verdicts.total()} files; without slurm-share: {counted}")
    return bad


def _take_expect(into: Path) -> None:
    done = subprocess.run(
        ["apt-get", "download", "-q", *PACKAGES], cwd=into, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"tests/ordinary.sh: expect cannot be had from Debian's packages: {done.stderr.strip()}")
    for package in into.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(into / "root")], check=True)


def _install(site: Site, folder: Path, made: Path) -> None:
    home = site.cluster.home / "alice"
    shutil.copytree(made / "root", home / EXPECT, symlinks=True)
    shutil.copytree(folder, home / FOLDER, symlinks=True)
    (home / FOLDER / "globals.local").write_text(LOCAL)
    (home / "testsuite.conf").write_text(CONF)
    (home / "cc").write_text(CC)
    (home / "cc").chmod(0o755)
    site.cluster.exec("login", ["chown", "-R", "alice:", "/home/alice"], check=True)
    # what only an operator may ask of the accounts
    site.cluster.exec("ctl", ["sacctmgr", "-i", "modify", "user", "alice", "set", "admin=operator"], check=True)


def _verdict(site: Site, test: str, limit_s: float) -> str:
    """Return the test's result; the cluster is emptied before and after."""
    script = RUN.format(folder=FOLDER, expect=EXPECT, test=test, limit=limit_s)
    code = site.cluster.as_user("alice", script, timeout=limit_s + 30).returncode
    text = (site.cluster.home / f"alice/{test}.log").read_text(errors="replace")
    if site.cluster.jobs():
        site.cluster.cancel_all()
    process.wait_until(lambda: not site.cluster.jobs(), "an empty queue", 120.0, every_s=0.05)
    if code == 124:  # its own verdict is then of the signal that ended it
        return f"has no end in {limit_s:g} s"
    said = re.findall(rf"^(\w+)\s+: {re.escape(test)}\b", text, re.MULTILINE)
    if not said:
        return "says no verdict"
    return SAID.get(said[-1], said[-1])
