"""The table of releases and profiles, from pytest's results (JUnit XML): tests/releases.sh calls it.

Arguments: PAGE RESULTS..., where a test is in several, the last counts. Those named on_v2-* are of tests on a kernel
with cgroup v2 only: they fill that profile's row, and are counted apart.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "packaging/demo"))
from localcluster.records import RELEASES

PROFILES = {
    "cgroup": "cgroup v1: memory and devices confined; `PrologFlags=Contain`",
    "auth": "`auth/slurm` in munge's place, sackd on the login host",
    "uuids": "`AutoDetect=nvidia`: UUIDs in Prolog's `CUDA_VISIBLE_DEVICES` on 26.05, numbers on 24.11",
    "exclusive": "one user on a node by Slurm alone: `Exclusive=USER` on 26.05, `ExclusiveUser=YES` on 24.11",
    "together": "the four above at once",
    "cgroup2": "cgroup v2 only: memory and devices confined; a job's folder is its SLUID on 26.05, its number on 24.11",
}
CHECKS = {
    "share": "a share", "part": "part of a GPU", "triple": "triple", "refusal": "refusal", "llload": "`llload -g`",
    "requeue": "requeue", "itself": "the profile itself",
}  # fmt: skip
HEAD = """\
# Releases of Slurm, and the ways in which sites set it up

For administrators who want to know what was tested on their Slurm.

Made by `tests/releases.sh` from what ran on real daemons, simulated GPUs. A cell names the releases on which the check
passed, at the second attempt at the latest (three clusters at a time, then what failed alone); a release with `!`
failed, one with `?` was not run. The checks are in `tests/cluster/test_matrix.py`. The row of cgroup v2 comes from a
kernel that has nothing else: user-mode Linux, which `tests/kernel.sh` starts.

"""
TAIL = """
Every other cluster test runs on both releases on the plain profile: munge, no cgroups, GPUs by number. Some bring up a
cluster with cgroups besides, v1 where the machine has it:
{confined}.

`tests/run.sh` runs the cluster tests that are not marked `weekly` on the current release; `--slurm all` runs them on
both, and so do `tests/weekly.sh` and `tests/releases.sh`. The profiles above get these checks and no others, and most
of them here only: `tests/weekly.sh` has the four at once on the newest release, without triple and requeue, and
`tests/run.sh` leaves them out, and pyslurm, which has to be built.

## cgroup v2

The kernel has cgroup v2 only, and confines memory, processes and devices: user-mode Linux 7.2 of Debian forky, which
`tests/kernel.sh` starts over the machine's own files. `tests/run.sh` runs there what cgroups decide, on the current
release of Slurm (marked `on_v2`); `tests/weekly.sh` and `tests/releases.sh` the other tests of limits, kills, leftovers
and attacks besides (marked `weekly_on_v2`). They are in:
{files}.

They show a job's memory limit and what follows when the kernel kills for it, the limits of the MPS daemons' group,
devices refused by a BPF program, a cgroup killed as a whole, the job of a process by its place in v2, and the figures
of a job's memory and CPU time. That kernel has one CPU, no cpuset and no AppArmor: `ConstrainCores` in v2 is not
tested.

## Ordinary jobs, by Slurm's own tests

`tests/ordinary.sh PATH` ran 325 files of the testsuite of Slurm 25.05 (later ones are in Python) on three clusters of
26.05.5 at once: without slurm-share, observing, and on. The verdict is the same in all 325: 226 pass, 64 are skipped
(most want to be SlurmUser, or MPI), 23 fail (nine of these since Debian's Slurm calls itself slurm-wlm) and 12 take
longer than the limit of 45 s. The log: [testsuite.log](../../tests/bench/results/testsuite.log).

## Releases that were not run

25.05 and 25.11: no suite of Debian has them today (trixie 24.11; forky and sid 26.05). `slurm-share-plugin --build`
makes their plugin. From 25.11 on Slurm names GPUs by UUID in the Prolog and logs a plugin that it leaves out only with
`SlurmdDebug=verbose`; both are as in 26.05, which is tested.

26.11: read in Slurm's sources of 2026-08-20. spank.h and the order of SPANK's callbacks are those of 26.05.
`DefRuntimePlugin` and `--runtime` (runtime/oci, runtime/none) start a task after them, with the environment that they
made. Slurm's JSON begins with v0.0.43, which a test reads on 26.05. `SLURM_RESTART_COUNT` is set in every batch job, 0
too. sinfo writes a dash for the shards of a GPU that is taken whole; our reader takes it. 24.11 cannot be upgraded to
it directly.

## Packages

Every week (`tests/cluster/test_packages*.py`, `test_install_page.py`): the commands of install.md as
written in a clean root of Debian 12, 13 and forky, upgrades, removals and purges; the `.spec` built by rpmbuild on
Debian, its files, scripts and dependencies compared with the `.deb`'s, installed, upgraded and erased by rpm in a
root of Debian; lintian by hand. Not run anywhere here: rpmbuild, dnf and the packages on Rocky, Alma or RHEL 8 and 9;
SELinux, which may keep slurmd or systemd from files in `/opt`; Ubuntu and DGX OS. Debian 12 carries Slurm 22.05,
which slurm-share refuses: there the packages are installed and removed, and nothing of them runs in a job.

On a whole machine with systemd, Slurm 26.05 and cgroup v2 only (`tests/systemd.sh`, every week and before a release;
user-mode Linux, ten minutes): every line of quickstart.md, install.md and of the removal as written; doctor, units,
journal; the limits of MPS daemons as the kernel keeps them; jobs beyond their memory; slurmd restarted, killed, and
with fewer capabilities; helper, hooks and MPS killed; `daemon-reexec`, a reboot and a power cut with a shared job. The
log of one run: [systemd.log](../../tests/bench/results/systemd.log). `--qemu` starts the same machine on Debian's own
kernel, which has cpusets, two CPUs and AppArmor; the tests have not run there to the end yet.
"""


def outcomes(results: list[Path]) -> dict[str, str]:
    """Return passed, failed or skipped for each test, by `file::name`."""
    found = {}
    for case in (case for file in results for case in ElementTree.parse(file).iter("testcase")):
        word = "passed"
        for child in case:
            word = {"failure": "failed", "error": "failed", "skipped": "skipped"}.get(child.tag, word)
        file = case.get("classname", "").rpartition(".")[2]
        name = case.get("name", "").rpartition("@")  # xdist adds @ and the group
        found[f"{file}::{name[0] or name[2]}"] = word
    return found


def cell(found: dict[str, str], check: str, profile: str) -> str:
    """Return the releases, each with its mark."""
    marks = {"passed": "", "failed": "!", "skipped": "?", None: "?"}
    words = (f"{release}{marks[found.get(_name(check, release, profile))]}" for release in RELEASES)
    return " ".join(words)


def unknown(found: dict[str, str]) -> list[str]:
    """Return tests of the matrix that would be in no cell."""
    known = {_name(check, release, profile) for check in CHECKS for release in RELEASES for profile in PROFILES}
    return [name for name in found if name.startswith("test_matrix::") and name not in known]


def _name(check: str, release: str, profile: str) -> str:
    return f"test_matrix::test_{check}[{release}-{profile}]"


def page(found: dict[str, str], on_v2: dict[str, str]) -> str:
    """Return the page. `on_v2`: outcomes on a kernel with cgroup v2 only, `found`: those on this machine's own."""
    found = {**found, **{name: word for name, word in on_v2.items() if name.startswith("test_matrix::")}}
    lines = [f"| profile | {' | '.join(CHECKS.values())} |", "|---" * (len(CHECKS) + 1) + "|"]
    for name, text in PROFILES.items():
        lines.append(f"| {text} | {' | '.join(cell(found, check, name) for check in CHECKS)} |")
    lines += ["", "| beside it | |", "|---|---|"]
    for file, text in (
        ("test_rolling_upgrade", "rolling upgrade 24.11 to 26.05 under shared jobs, both plugin objects installed"),
        (
            "test_pyslurm",
            "jobs, nodes and the hooks in force through pyslurm, the same records as through Slurm's commands (26.05)",
        ),
    ):
        counts = Counter(word for name, word in found.items() if name.startswith(f"{file}::"))
        lines.append(f"| {text} | {_counted(counts)} |")
    plain = {
        name: word for name, word in found.items() if not re.match("test_(matrix|rolling_upgrade|pyslurm)::", name)
    }
    for release in RELEASES:
        counts = Counter(word for name, word in plain.items() if release in name)
        if counts:
            lines.append(f"| the whole cluster suite on {release}, plain profile | {_counted(counts)} |")
    beside = (word for name, word in on_v2.items() if not name.startswith("test_matrix::"))
    lines.append(f"| other tests on a kernel with cgroup v2 only | {_counted(Counter(beside))} |")
    confined = (file.name for file in _test_files() if re.search("cgroup=True|[*]CONFINED", file.read_text()))
    listed = {"confined": confined, "files": (file.name for file in _test_files() if "on_v2" in file.read_text())}
    texts = {key: ", ".join(f"`{name}`" for name in sorted(names)) for key, names in listed.items()}
    return HEAD + "\n".join(lines) + "\n" + TAIL.format(**texts)


def _test_files() -> list[Path]:
    return list((Path(__file__).parent / "cluster").glob("test_*.py"))


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[word]} {word}" for word in ("passed", "failed", "skipped") if counts[word]) or "not run"


if __name__ == "__main__":
    files = [Path(name) for name in sys.argv[2:]]
    on_v2 = outcomes([file for file in files if file.name.startswith("on_v2-")])
    ran = outcomes([file for file in files if not file.name.startswith("on_v2-")])
    if strange := unknown({**ran, **on_v2}):
        sys.exit(f"tests/releases.py: no cell of the page is for {', '.join(strange)}")
    Path(sys.argv[1]).write_text(page(ran, on_v2))
