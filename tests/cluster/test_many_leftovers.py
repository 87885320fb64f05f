"""A user leaves as many processes as a node takes; the next user's jobs still get their shares."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import cluster_of
from hooked import ALICE, Node, until, why_not_idle

pytestmark = [pytest.mark.cluster, pytest.mark.weekly]

MANY = 15_000
AT_ONCE = min(os.cpu_count() or 1, 8)
"""Jobs that start at the same moment: on a node with GPUs not more than it has cores."""
JOBS = 4 * AT_ONCE
LEAVE = r"""
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    int count = atoi(argv[1]), uid = atoi(argv[2]);
    if (setresgid(uid, uid, uid) || setresuid(uid, uid, uid) || prctl(PR_SET_DUMPABLE, 1))
        return 1;
    while (count--) {
        pid_t pid = fork();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;)
                pause();
        }
        if (pid < 0)
            return 1;
    }
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}
"""
"""A process as small as possible: an interpreter's children would need several gigabytes."""


@pytest.fixture
def node(can_make_clusters: None) -> Iterator[Node]:
    """Yield the node of a cluster with cgroups: without them Slurm itself looks at every process for each step."""
    with cluster_of("many", cgroup=True, nodes=1) as cluster:
        yield Node(cluster, "n1")


def leave_many(node: Node, tmp_path: Path) -> None:
    """Start processes of alice's outside any job and GPU, which the hooks must leave alone."""
    (tmp_path / "many.c").write_text(LEAVE)
    program = node.cluster.root(node.name) / "usr/local/bin/many"
    subprocess.run(["cc", "-O1", "-static", "-o", str(program), str(tmp_path / "many.c")], check=True)
    node.run("bash", "-c", f"setsid -f many {MANY} {ALICE} </dev/null >/tmp/many 2>&1")
    until(lambda: node.run("cat", "/tmp/many").stdout == "ready\n", "the last of alice's processes")


def test_fifteen_thousand_leftover_processes_keep_no_share_from_the_next_user(node: Node, tmp_path: Path) -> None:
    """Each of the next user's jobs has its MPS, and each Epilog ends in time and finds the node well."""
    cluster = node.cluster
    leave_many(node, tmp_path)
    script = "srun -n1 bash -c 'echo pipe=$CUDA_MPS_PIPE_DIRECTORY'"
    options = ("--share-gpu=4", "--gres=gpu:1", "-n1", "--mem=100", f"--array=1-{JOBS}%{AT_ONCE}")
    cluster.sbatch("bob", script, *options, "-o", "/home/bob/many-%a")
    until(lambda: cluster.exec("ctl", ["squeue", "-h"]).stdout == "", "the end of his jobs")
    said = node.run("bash", "-c", "grep -v simulated /home/bob/many-*").stdout
    assert said.count("pipe=/run/slurm-share/user/mps/") == JOBS, said + node.log()
    assert "drain" not in why_not_idle(cluster)
    assert "given up" not in node.log()
    node.run("pkill", "-9", "-u", "alice")
    until(lambda: node.run("pgrep", "-u", "alice").stdout == "", "the end of alice's processes")
    assert node.remains() == []
