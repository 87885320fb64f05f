"""Slurm as sites configure it: each record of site_configurations.toml on one real cluster that is reconfigured.

An ordinary job must be as ever and a shared job as the record says; doctor must name what it names. tests/run.sh runs
the records with `daily`; SLURM_SHARE_MATRIX=full (tests/releases.sh) runs all.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from bare_site import slurmd_pids
from clusters import FULL, ON_V2, by_release, cluster_of
from configurations import TABLE, Configuration, read
from hooked import Node, until, why_not_idle
from job_outcome import TASK, sentences, tasks

from localcluster import Cluster, conf
from slurm_share.doctor.checks.every import ALL

pytestmark = [pytest.mark.cluster, pytest.mark.weekly, pytest.mark.weekly]

ROWS = [row for row in read(TABLE.read_text()) if row.runs and (row.daily or FULL)]
BASE = "PrologFlags=Alloc"
HELD = f"""#!/bin/bash
{TASK}
place=slot.$SLURM_SHARE_GPU_INDEX.$SLURM_SHARE_SLOT
mkdir $place || echo "task $SLURM_PROCID $SLURMD_NODENAME 2/in-one slot"
sleep 0.5
rmdir $place
"""
ORDINARY = """\
env | grep -E 'SLURM_SHARE|CUDA_MPS'
[[ $CUDA_VISIBLE_DEVICES =~ ^[0-9]$ ]] || echo "GPU $CUDA_VISIBLE_DEVICES"
"""
AGAIN_S = 5.0
"""A slurmd that is just putting a new process in its place misses the next reconfigure."""
UNREGISTERED = "submit it again: jobs get no GPUs on a node that has not registered"
LAUNCH = "launch_failed_requeued_held"
ENDED = "COMPLETED|FAILED|CANCELLED|TIMEOUT|OUT_OF_MEMORY|NODE_FAIL"
DOCTORS = {
    "ctl": ("ctl", "doctor"),
    "n2": ("n2", "doctor"),
    "install --check": ("ctl", "install", "--check"),
}
CONFIGURED = {check.name for check in ALL if check.needs == "configuration"}
"""Checks that `install --check` runs, too."""
FILES = ("slurm.conf", "gres.conf", "cgroup.conf")


class Site:
    """A cluster whose Slurm is configured anew for each record."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.texts = {name: (cluster.conf / name).read_text() for name in FILES}
        self.first: dict[str, set[str]] = {}
        """The finding of doctor on each host without any record: the nodes have unlike GPUs."""
        if FULL:
            self.first = self.doctors()

    def configure(self, row: Configuration | None) -> str:
        """Give Slurm the record's lines, or its own again; return what `scontrol reconfigure` says against them."""
        lines = self.texts["slurm.conf"].splitlines()
        gres = self.texts["gres.conf"].splitlines()
        if row is not None:
            lines = [line for line in lines if line.partition("=")[0] not in row.without]
            lines = conf.override(lines, row.slurm.split("\n"))
            named = {line.split()[0] for line in row.gres.split("\n") if line}
            gres = [line for line in gres if line.split()[0] not in named] + row.gres.split("\n")
            for name, text in row.files.items():
                file = self.cluster.conf / name
                file.write_text(self.texts.get(name, "") + text)
        (self.cluster.conf / "slurm.conf").write_text("\n".join(lines) + "\n")
        (self.cluster.conf / "gres.conf").write_text("\n".join(gres) + "\n")
        if row is not None:
            self.root(row.before)
        before = slurmd_pids(self.cluster)
        done = self.cluster.exec("ctl", ["scontrol", "reconfigure"])
        if done.returncode:  # then no program of Slurm reads its files
            return done.stdout + done.stderr
        asked = time.monotonic()

        def are_new() -> bool:
            nonlocal asked
            if time.monotonic() - asked > AGAIN_S:
                self.cluster.exec("ctl", ["scontrol", "reconfigure"])
                asked = time.monotonic()
            return all(pid not in ("", before[name]) for name, pid in slurmd_pids(self.cluster).items())

        until(are_new, "new slurmds")
        states = self.cluster.status
        until(lambda: set(states().nodes.values()) == {"idle"}, "idle nodes", lambda: why_not_idle(self.cluster))
        return ""

    def restore(self, name: str) -> None:
        """Write a file of /etc/slurm as the cluster had it, or remove it."""
        file = self.cluster.conf / name
        file.write_text(self.texts[name]) if name in self.texts else file.unlink(missing_ok=True)

    def root(self, script: str) -> None:
        """Run a script of root on the controller."""
        if script:
            self.cluster.exec("ctl", ["bash", "-ec", script], check=True)

    def doctors(self) -> dict[str, set[str]]:
        """Return the names of the checks that warn or fail: of doctor by host, and of `install --check`."""
        with ThreadPoolExecutor() as pool:
            return dict(zip(DOCTORS, pool.map(self._doctor, DOCTORS.values()), strict=True))

    def _doctor(self, words: tuple[str, ...]) -> set[str]:
        host, *command = words
        said = self.cluster.exec(host, ["/usr/local/bin/slurm-share", *command, "--json"]).stdout
        return {one["check"] for one in json.loads(said)["findings"] if one["outcome"] in ("FAIL", "WARN")}

    def submit(self, row: Configuration) -> tuple[int, str]:
        """Submit the record's shared job; return its number (0: refused) and what sbatch says."""
        for name, text in (("task.sh", f"#!/bin/bash\n{TASK}"), ("held.sh", HELD), ("job.sh", script_of(row))):
            file = self.cluster.home / "alice" / name
            file.write_text(text)
            file.chmod(0o755)
        done = self.cluster.as_user("alice", f"rm -rf *.out slot.*; sbatch --parsable {row.options} job.sh")
        return int(done.stdout.split(";")[0] or 0) if done.returncode == 0 else 0, done.stderr

    def shared(self, row: Configuration) -> str:
        """Return what the shared job and sbatch say. A job that must wait is cancelled when Slurm gives the reason."""
        output = ""

        def is_told() -> bool:
            nonlocal output
            job, said = self.submit(row)
            if job and self._is_held(job, row.pending):
                return False
            output = said + self.cluster.as_user("alice", "cat slurm-*.out 2>/dev/null").stdout
            return UNREGISTERED not in output

        until(is_told, "a shared job", lambda: output)
        return output

    def ordinary(self) -> str:
        """Return the state of an ordinary job with a GPU, and what is wrong in its environment."""
        options = ("-p", "plain", "-w", "n2", "--gres=gpu:1", "-n1", "-t5")
        while self._is_held(job := self.cluster.sbatch("alice", ORDINARY, *options)):
            pass
        return f"{self.cluster.wait(job)}{self.cluster.output(job)}"

    def _is_held(self, job: int, pending: str = "") -> bool:
        """Wait for the job's end, or for Slurm's reason `pending`. Return whether it did not start at all.

        namespace/linux of 26.05.5 does so now and then where another job begins or ends on the node, without
        slurm-share too: "_create_ns: ns mnt mount failed: Invalid argument".
        """
        text = ""

        def settled() -> bool:
            nonlocal text
            text = self.cluster.job(job)
            return bool(re.search(f"Reason=({LAUNCH}|{pending or 'nothing'}) |JobState=({ENDED})", text))

        until(settled, f"the end of job {job}", lambda: text)
        if not re.search(ENDED, text):
            self.cluster.exec("ctl", ["scancel", str(job)])
        self.cluster.wait(job)
        return LAUNCH in text


def script_of(row: Configuration) -> str:
    return f"#!/bin/bash\n{row.script}\n"


@pytest.fixture(scope="module", params=by_release("configurations"))
def site(request: pytest.FixtureRequest, can_make_clusters: None) -> Iterator[Site]:
    options = {"nodes": 2, "cgroup": True, "accounting": FULL and not ON_V2, "slurm_conf_extra": BASE}
    with cluster_of("conf", request.param, **options) as made:
        yield Site(made)


@pytest.fixture
def configured(site: Site, row: Configuration) -> Iterator[str]:
    """Configure Slurm as the record says; yield Slurm's objection. At the end nothing of it or of its job is left."""
    if row.release and row.release > site.cluster.slurm_release:
        pytest.skip(f"NOT TESTED on Slurm {site.cluster.slurm_release}: it is of {row.release}")
    if row.on_v2 and not site.cluster.cgroup_v2:
        pytest.skip("NOT TESTED here: it concerns cgroup v2 only (tests/kernel.sh)")
    try:
        yield site.configure(row)
    finally:
        for name in row.files:
            site.restore(name)
        site.configure(None)
        site.cluster.cancel_all()
        site.root(row.after)


def marked(row: Configuration) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.on_v2] if row.on_v2 and FULL else []
    return marks + ([pytest.mark.xfail(reason=row.wrong, strict=False)] if row.wrong else [])


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name, marks=marked(row)) for row in ROWS])
def test_a_configuration_of_a_site(site: Site, row: Configuration, configured: str) -> None:
    if row.ordinary != "COMPLETED":
        assert row.ordinary in configured
        return
    assert configured == ""
    assert site.ordinary() == row.ordinary
    said = site.shared(row)
    found = tasks(said)
    assert "unshared" not in found, said
    assert found == row.tasks, said
    assert re.search(row.said, said) if row.said else sentences(said) == "-", said
    if FULL:
        more = {where: names - site.first[where] for where, names in site.doctors().items()}
        assert more["install --check"] == set(row.doctor) & CONFIGURED, more
        assert more["ctl"] | more["n2"] == set(row.doctor), more
    until(
        lambda: Node(site.cluster, "n2").remains() == [],
        "an empty node",
        lambda: str(Node(site.cluster, "n2").remains()),
    )
