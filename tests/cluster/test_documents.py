"""Every command line that README.md and packaging/docs show is run, or excused with the reason."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from bare_site import files, put_back, reconfigure, strip
from clusters import name_for
from documents import CHECKOUT, DOCUMENTS, Line, lines_of

from localcluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("documents")]

EXCUSED = {
    r"maintain\.md: .*": "says by symptom which command to use; the pages of these commands show them",
    r"request-forms\.md: .*": "tests/cluster/test_request_forms.py runs each row and writes what Slurm makes of it",
    r"tools\.md: .*": "needs tools from PyPI: test_tools.py does what the page shows",
    r"slurm-prolog-environment\.md: (SLURM_CONF=|salloc ).*": (
        "needs the plugin that the page shows, and drains a node without slurm-share: test_attacks.py does it with one"
    ),
    r".*: (packaging/build\.sh( .*)?|apt (install|remove) .*|slurm-share-plugin .*)": (
        "of the packages: test_install_page.py runs them as written in clean roots, test_packages.py builds"
    ),
    r".*: (packaging/(demo|screenshots|release)\.sh.*|packaging/demo/cluster .*)": (
        "is of a checkout, not of a cluster; these tests run in what it brings up"
    ),
    r".*: (tests/\S+\.sh( .*)?|\.venv/bin/(pytest|python) .*)": (
        "is of a checkout, not of a cluster; these tests run in what it brings up"
    ),
    r".*: slurm-share (config apply.*|install --apply --with partial)": (
        "needs a file of the reader's, or nodes without the package: test_config_apply.py, test_configless.py"
    ),
    r".*: (systemctl|journalctl) .*": "no systemd runs on the local cluster; the tests of the packages check the units",
    r".*: sysctl .*": "would set the kernel of the machine, which is not the cluster's",
    r".*: install (-m 0640|-d -o slurm-share) .*": (
        "a group or user that not every cluster has; test_agent.py sets them up"
    ),
    r".*: (slurm-share agent.*|llload .*--source (agents|prometheus).*|llload(-tui)? --all.*)": (
        "needs agents, and an operator: test_agent.py and test_sources.py"
    ),
    r".*: slurm-share (archive|report).*": "needs a week of history: test_history.py",
    r".*: slurm-share (status|doctor) --cluster.*": "needs a way to run a command on other hosts: test_modes.py",
    r".*: sacct(mgr)? .*": "needs accounting: test_accounting.py",
    r".*: llload(-tui)? .*--(replay|record) .*": "needs a recording of its own: test_llload.py, test_tui.py",
    r".*: .*(\.\.\.|\bJOB\b|\[JOB\]|4711|\[NNODE|\b77,78\b|LLSUB\.\d).*": (
        "a word stands for the reader's own: a job, a run, a program; test_llsub.py, test_llstat.py, test_share.py"
    ),
    r".*: (llsub (-g \S+|--(resume|pack(=\S+)?|report|spmd|wait|local|spmd --local))|srun --share-gpu)": (
        "names the option alone"
    ),
    r".*: llload-tui --serve.*": "serves until it is ended, with the extra `serve`: test_browser_server.py",
    r"(spmd\.md: (python3 |srun --mpi)|.*: llsub --spmd \S+\.py ).*": (
        "needs a Python with NumPy: test_spmd_page.py runs these programs, test_spmd.py and test_mpi.py such ones"
    ),
    r".*: slurm-share lab( score| simulate( (Venus/|TRACE ).*)?)?": (
        "names the command alone, or a log that is not shipped; tests/packing plays short ones"
    ),
    r".*: .*python3? tests/gpu/.*": "needs an NVIDIA GPU",
    r".*: slurm-share prove.*|security\.md: scontrol update nodename=gpu01 .*": (
        "starts hostile programs on a drained node of the reader's: test_prove.py"
    ),
    r"methods\.md: srun --share-gpu=(3,sm=static|4,sharing=time-slicing,mem=8G|4,mem=8G:20G) .*": (
        "needs a later driver than this cluster's: test_methods_matrix.py"
    ),
    r".*: srun (python|\./).*": "is for inside a script; test_share.py",
}
FOR_EVERY_CHANGE = ("README.md", "install.md", "quickstart.md", "users.md")
"""The pages that are followed line by line. The others are run weekly."""
ROOTS = r"slurm-share (install|doctor|config|on|off|status|sample --all)\b.*|scontrol reconfigure"
"""The user if the document does not say: an administrator."""
ON_A_NODE = r"slurm-share (status|sample|methods)\b.*"
"""The host if the document does not say: a compute node; else root is on the controller, and users on the login node.
"""
CODES = {
    r"slurm-share install --check --with partial": {2},  # no node here has a feature, and it says so
    r"slurm-share install( --json)?( --(check|shards).*)?": {
        0,
        1,
        2,
    },  # 2: config.toml here has shards before --shards is run
    r"llload --advise": {0, 1},  # 1: nobody has watched the job for long enough
    r"grep -s .*": {0, 1, 2},  # 1: there is nothing of the kind; 2: the hooks have not written a line yet
    r"pkill .*": {0, 1},
    r"slurm-share doctor.*": {0, 1, 2},  # what is there to be found on a simulated cluster is test_doctor.py's business
}
WORK = "work"
"""The name of a job of alice's on n1 to n3, for commands that look."""
STAYS = r"llload-tui.*|llload .*--watch.*"
"""Needs a terminal until somebody presses q."""
HOME = {
    "train.sh": "#!/bin/bash\ntrue\n",
    "train.py": "#!/usr/bin/env python3\n",
    "task.sh": "#!/bin/bash\ntrue\n",
    "sim.sh": "#!/bin/bash\ntrue\n",
    "map.sh": '#!/bin/bash\ncp "$1" "$2"\n',
    "reduce.sh": '#!/bin/bash\ncat "$1"/* > "$2"\n',
    "files.txt": "a\nb\nc\n",
    "table.csv": "lr,seed\n1e-3,0\n",
    "mix.txt": "true\n#LLSUB --gpu-mem=2G\nsleep 1\n",
    "IN/one": "1\n",
    "IN/two": "2\n",
}


@pytest.fixture(scope="module")
def site(can_make_clusters: None) -> Iterator[Cluster]:
    """Yield a cluster of the current release with what the documents take for granted in alice's home."""
    with Cluster.up(name_for("documents"), nodes=4) as made:
        made.as_user("alice", "mkdir IN", check=True)
        for name, text in HOME.items():
            (made.home / "alice" / name).write_text(text)
            (made.home / "alice" / name).chmod(0o755)
        yield made


@pytest.fixture(scope="module")
def have_run() -> set[str]:
    """Return the lines that have been run, with user and host, for lines that stand in two documents."""
    return set()


@pytest.fixture
def as_before(site: Cluster) -> Iterator[None]:
    """Restore the cluster's files and end its jobs after each document."""
    was = files(site)
    yield
    cancel_others(site)
    put_back(site, was)


def have_work(site: Cluster) -> None:
    """Start a job of alice's on three nodes that runs while the documents are tested."""
    if WORK not in site.exec("ctl", ["squeue", "-h", "-o", "%j"], check=True).stdout.split():
        script = "srun simgpu-task --memory 100M --load 20 --seconds 3600"
        options = ("--share-gpu=1", "--gres=gpu:1", "-N3", "-w", "n[1-3]", "-J", WORK)
        site.wait_running(site.sbatch("alice", script, *options))


def cancel_others(site: Cluster) -> None:
    """End every job but the one that is there to be looked at."""
    script = f"squeue -h -r -o '%A %j' | grep -v ' {WORK}$' | cut -d' ' -f1 | sort -u | xargs -r scancel"
    site.exec("ctl", ["bash", "-c", script], check=True)


def excuse(line: Line) -> str | None:
    name, text = line.document, line.text
    return next((why for pattern, why in EXCUSED.items() if re.fullmatch(pattern, f"{name}: {text}")), None)


def run(site: Cluster, line: Line) -> str | None:
    """Return what is wrong with a line that was run; None: nothing."""
    command = line.text.replace("--array=1-100 ", "--array=1-4 ")  # forty would start at once, to no other end
    root = line.root or bool(re.fullmatch(ROOTS, command))
    host = line.host or ("n1" if re.fullmatch(ON_A_NODE, command) else "ctl" if root else "login")
    if re.fullmatch(STAYS, command):
        command = f"while sleep 0.3; do printf q; done | TERM=xterm script -qec '{command}' /dev/null"
    if re.match(r"salloc|sbatch|llsub .*\[", command):  # it needs nodes, and the tasks of a page need not all run
        cancel_others(site)
        command = f"echo exit | {command}"
    words = ["bash", "-c", command]
    done = site.exec(host, words) if root else site.as_user("alice", words, node=host)
    allowed = next((codes for pattern, codes in CODES.items() if re.fullmatch(pattern, line.text)), {0})
    if done.returncode in allowed and "Traceback" not in done.stderr and "usage:" not in done.stderr:
        return None
    return f"{line} ended with {done.returncode}: {done.stderr.strip()[-600:] or done.stdout.strip()[-600:]}"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(file.name, marks=() if file.name in FOR_EVERY_CHANGE else pytest.mark.weekly)
        for file in DOCUMENTS
    ],
)  # fmt: skip
def test_the_command_lines_of_a_document_work(name: str, site: Cluster, have_run: set[str], as_before: None) -> None:
    said = [line for line in lines_of(next(file for file in DOCUMENTS if file.name == name)) if excuse(line) is None]
    lines = [line for line in said if line.in_order or line.text not in have_run]
    if any(line.in_order and line.text.startswith("slurm-share install --") for line in lines):
        site.cancel_all()
        strip(site)
        reconfigure(site)
        if not any("--apply" in line.text for line in lines):
            site.exec("ctl", ["slurm-share", "install", "--apply", "--shards"], check=True)
            reconfigure(site)
    elif any(line.text.startswith("llload") for line in lines):
        have_work(site)
    if any(re.fullmatch(r"scontrol update .* state=resume", line.text) for line in lines):
        site.exec("ctl", ["scontrol", "update", "nodename=n1", "state=drain", "reason=Prolog error"], check=True)
    wrong = [why for line in dict.fromkeys(lines) if (why := run(site, line)) is not None]
    have_run.update(line.text for line in lines)
    assert wrong == [], "\n".join(wrong)


def test_every_excuse_is_needed() -> None:
    lines = [f"{line.document}: {line.text}" for file in DOCUMENTS for line in lines_of(file)]
    unused = [pattern for pattern in EXCUSED if not any(re.fullmatch(pattern, line) for line in lines)]
    assert unused == []


def test_every_file_and_page_that_is_named_is_there() -> None:
    lost = []
    for file in DOCUMENTS:
        text = file.read_text()
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            if not (file.parent / link).exists():
                lost.append(f"{file.name}: {link}")
        for path in re.findall(r"`((?:slurm_share|plugins|prolog|tui|tests|packaging)/[\w./-]+)`", text):
            if not (CHECKOUT / path).exists() and not path.startswith("tests/gpu/results"):
                lost.append(f"{file.name}: {path}")
    assert lost == []
