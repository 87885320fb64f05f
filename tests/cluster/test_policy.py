"""One user at a time on a node, what is cleared after him, and modes, on real daemons."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from clusters import name_for
from hooked import (
    WITHOUT_OURS,
    Node,
    check_empty,
    completed,
    configured,
    end,
    output_of,
    resume,
    rewritten,
    slurm_conf,
    until,
    why_not_idle,
)

from localcluster import RELEASES, Cluster
from localcluster.records import CURRENT
from slurm_share.core import names

pytestmark = pytest.mark.cluster

GUARDED = ('exclusive_user_nodes = ["n[2-3]"]', "exclusive_user_partitions = []")
"""Ordinary jobs concern only the hooks: Slurm lets a second user in."""


ONE_GPU = ("--share-gpu=2", "--gres=gpu:1")


@pytest.fixture
def n2(cluster: Cluster) -> Node:
    return Node(cluster, "n2")


@pytest.fixture(autouse=True)
def nothing_remains(cluster: Cluster) -> Iterator[None]:
    """Check after every test that the nodes are idle and empty."""
    Node(cluster, "n2").forget_log()
    yield
    cluster.cancel_all()
    Node(cluster, "n2").forget_refusals()
    states, why = cluster.status().nodes, why_not_idle(cluster)
    for name in [name for name in states if states[name] != "idle"]:
        cluster.exec("ctl", ["scontrol", "update", f"nodename={name}", "state=resume"])
    check_empty(cluster, "n2", "n3")
    assert set(states.values()) == {"idle"}, why


def start(cluster: Cluster, *options: str, user: str = "alice", script: str = "echo up; sleep 600") -> int:
    job = cluster.sbatch(user, script, "-wn2", *options)
    until(lambda: "up\n" in output_of(cluster, job, user), f"job {job}'s first word")
    return job


@pytest.mark.release
def test_the_second_user_is_refused_in_his_jobs_output_with_node_and_remedy(cluster: Cluster, n2: Node) -> None:
    with configured(cluster, *GUARDED):
        first = start(cluster, "-pplain")
        job = cluster.sbatch("bob", "echo ran", "-pplain", "-wn2")
        assert cluster.wait(job) == "FAILED"
        output = output_of(cluster, job, "bob")
        assert f"job {job} cannot run on n2: slurm-share keeps this node to one user at a time" in output
        assert f"job {first} of alice is still on it" in output
        assert "--exclude=n2" in output
        assert "ran" not in output
        assert f"JobId={first} " in cluster.job(first)
        assert "JobState=RUNNING" in cluster.job(first)
        assert cluster.status().nodes["n2"] in ("mixed", "allocated")
        end(cluster, first)
        assert cluster.wait(cluster.sbatch("bob", "echo ran", "-pplain", "-wn2")) == "COMPLETED"


@pytest.mark.release
def test_sruns_terminal_has_the_refusal(cluster: Cluster, n2: Node) -> None:
    with configured(cluster, *GUARDED):
        start(cluster, "-pplain")
        done = cluster.as_user("bob", ["srun", "-pplain", "-wn2", "-n1", "echo", "ran"])
        assert done.returncode == names.EXIT_REFUSED
        assert "slurm-share keeps this node to one user at a time, and job " in done.stderr
        assert done.stdout == ""
        done = cluster.as_user("bob", "salloc -pplain -wn2", input="echo ran\n")
        assert "slurm-share keeps this node to one user at a time" in done.stderr + done.stdout
        assert "ran" not in done.stdout.replace("Granted", "")


def test_who_else_is_here_is_told_only_where_slurm_would_tell(cluster: Cluster, n2: Node) -> None:
    with configured(cluster, *GUARDED), slurm_conf(cluster, "PrivateData=jobs"):
        first = start(cluster, "-pplain")
        job = cluster.sbatch("bob", "echo ran", "-pplain", "-wn2")
        assert cluster.wait(job) == "FAILED"
        output = output_of(cluster, job, "bob")
    assert "and a job of another user is still on it" in output
    assert "alice" not in output
    assert str(first) not in output.replace(str(job), "")


def test_a_user_who_is_between_two_steps_is_no_proof(cluster: Cluster, n2: Node) -> None:
    """alice's job has no step here, and began long ago: nobody is turned away on a suspicion."""
    with configured(cluster, *GUARDED):
        cluster.as_user("alice", ["salloc", "--no-shell", "-pplain", "-wn2"], check=True)
        n2.run("sed", "-i", r's/"since":[0-9.]*/"since":1.0/', "/run/slurm-share/ledger")
        assert cluster.wait(cluster.sbatch("bob", "echo ran", "-pplain", "-wn2")) == "COMPLETED"


def test_shared_jobs_are_guarded_on_every_node(cluster: Cluster, n2: Node) -> None:
    """No node is listed, and a share came past job_submit.lua, as on a site that does not use it."""
    sites = rewritten(cluster.conf / "job_submit.lua", WITHOUT_OURS)
    with sites, configured(cluster, "exclusive_user_partitions = []", "job_submit = false"):
        start(cluster, "-pplain", *ONE_GPU)
        job = cluster.sbatch("bob", "srun echo ran", "-pplain", "-wn2", *ONE_GPU)
        assert cluster.wait(job) == "FAILED"
        assert "one user at a time" in output_of(cluster, job, "bob")
        assert cluster.wait(cluster.sbatch("bob", "echo ran", "-pplain", "-wn2")) == "COMPLETED"  # no share of his


def test_three_refusals_of_the_nodes_own_drain_it_and_the_queue_is_not_eaten(cluster: Cluster, n2: Node) -> None:
    """Two jobs end with the sentence; the third finds the node drained, and is not lost."""
    with n2.gpu_file(0, "lost=1"):
        array = cluster.sbatch("bob", "srun echo ran", "-wn2", *ONE_GPU, "--array=1-20%1", "--requeue")
        until(lambda: cluster.status().nodes["n2"].startswith("drain"), "a drained node")
        states = re.findall(r"ArrayTaskId=\S+.*?JobState=(\w+)", cluster.job(array).replace("\n", " "))
        assert states.count("FAILED") == 2
        assert "COMPLETED" not in states
        assert "Prolog error" in cluster.exec("ctl", ["scontrol", "-o", "show", "node", "n2"]).stdout
        assert "NODE UNWELL: 3 jobs refused in 10 minutes for a cause of the node's own (gpu-lost)" in n2.log()
        cluster.exec("ctl", ["scancel", str(array)])
        until(lambda: not cluster.jobs(), "an empty queue")
    resume(cluster, "n2")
    assert cluster.wait(cluster.sbatch("alice", "srun echo ran", "-wn2", *ONE_GPU)) == "COMPLETED"


def test_refusals_that_a_user_brings_about_drain_nothing(cluster: Cluster, n2: Node) -> None:
    """Three of bob's on alice's node, three of alice's for what no node gives."""
    with configured(cluster, *GUARDED):
        first = start(cluster, "-pplain")
        jobs = [cluster.sbatch("bob", "echo ran", "-pplain", "-wn2") for _ in range(3)]
        assert [cluster.wait(job) for job in jobs] == ["FAILED"] * 3
        end(cluster, first)
        assert cluster.wait(cluster.sbatch("bob", "echo ran", "-pplain", "-wn2")) == "COMPLETED"
    with configured(cluster, "max_share = 2"):
        jobs = [cluster.sbatch("alice", "srun echo ran", "-wn2", "--share-gpu=3", "--gres=gpu:1") for _ in range(3)]
        assert [cluster.wait(job) for job in jobs] == ["FAILED"] * 3
    assert n2.log().count("refused: ") == 6
    assert cluster.wait(cluster.sbatch("bob", "srun echo ran", "-wn2", *ONE_GPU)) == "COMPLETED"
    assert cluster.status().nodes["n2"] == "idle"


@pytest.mark.release
def test_a_users_own_jobs_come_and_go_beside_each_other_on_a_listed_node(cluster: Cluster, n2: Node) -> None:
    """Ordinary and shared ones; the ledger knows them all and forgets them one by one."""
    with configured(cluster, *GUARDED):
        jobs = [start(cluster, "-pplain"), start(cluster, "--share-gpu=2", "--gres=gpu:1"), start(cluster, "-pgpu")]
        assert n2.jobs() == jobs
        assert re.search(rf"{jobs[0]}\s+alice\s+-\s+-\s+-\s+-", n2.run("slurm-share", "status").stdout)
        for job in jobs:
            end(cluster, job)
        assert n2.jobs() == []


def shm(node: Node) -> str:
    """Return the files in /dev/shm and /tmp with their owners, without those of other tests' launchers."""
    script = "cd /; stat -c '%U %n' dev/shm/* tmp/* 2>/dev/null | grep -v ' tmp/slurm-share-[0-9]*$' | sort"
    return node.run("bash", "-c", script).stdout


LITTER = "mkdir -p /dev/shm/d; touch /dev/shm/f /dev/shm/d/x /tmp/f; ln -sfn /home/bob /dev/shm/l; echo up; sleep 600"


def test_the_last_job_of_a_user_takes_his_shared_memory_along(cluster: Cluster, n2: Node) -> None:
    """Other users' files stay, and his in /tmp, which the site did not name; before his last job nothing goes."""
    cluster.as_user("bob", "touch /dev/shm/bobs /home/bob/kept", node="n2", check=True)
    with configured(cluster, *GUARDED):
        first = start(cluster, "--share-gpu=2", "--gres=gpu:1", script=LITTER)
        second = start(cluster, "--share-gpu=2", "--gres=gpu:1")
        end(cluster, first)
        assert "alice dev/shm/d\nalice dev/shm/f\nalice dev/shm/l\n" in shm(n2)
        end(cluster, second)
    assert shm(n2).splitlines()[:2] == ["alice tmp/f", "bob dev/shm/bobs"]
    assert cluster.exec("login", ["ls", "/home/bob/kept"]).returncode == 0
    assert "removed 3 files of uid 2001 in /dev/shm" in n2.log()
    n2.run("rm", "-f", "/dev/shm/bobs", "/tmp/f")


def test_what_a_site_wants_cleared_is_cleared_and_no_more(cluster: Cluster, n2: Node) -> None:
    """First nothing; then files in /tmp and every process of the user's, on a listed node after an ordinary job."""
    with configured(cluster, "clean_up = []"):
        end(cluster, start(cluster, "--share-gpu=2", script=LITTER))
    assert shm(n2).count("alice ") == 4
    away = "setsid sleep 4242 & disown; echo up; sleep 600"
    with configured(cluster, 'clean_up = ["processes", "shm", "tmp"]', *GUARDED):
        stray = n2.background(["sleep", "4243"], "alice")
        others = n2.background(["sleep", "4244"], "bob")
        end(cluster, start(cluster, "-pplain", script=away))
        assert not n2.alive(stray)
        assert n2.alive(others)
        n2.run("kill", "-9", str(others))
    assert "alice" not in shm(n2)
    assert n2.run("pgrep", "-fx", "sleep 4242").returncode != 0
    n2.run("rm", "-f", "/tmp/pid", "/tmp/out")


MANY_FILES = 60_000
"""More files than a hook can set aside within its time here."""
CROWD = """python3 - <<'END'
import os
for number in range({count}):
    os.close(os.open(f"{folder}/{name}{{number}}", os.O_CREAT | os.O_WRONLY))
END"""


def test_a_clean_up_that_takes_too_long_is_gone_on_with_and_drains_nothing(cluster: Cluster, n2: Node) -> None:
    """The hooks that come clear the rest; files of bob's with the names of set-aside ones stay."""
    crowd = CROWD.format(count=5000, folder="/tmp", name=".slurm-share-leftovers-1.1.")
    cluster.as_user("bob", crowd, node="n2", check=True)
    files = CROWD.format(count=MANY_FILES, folder="/dev/shm", name="hers")
    with configured(cluster, *GUARDED, "release_deadline_s = 0.5", 'clean_up = ["shm"]'):
        job = cluster.sbatch("alice", files, "-wn2", *ONE_GPU)
        assert cluster.wait(job) == "COMPLETED"
        assert f"job {job} of uid 2001: its share is removed, but not all that it left" in n2.log()
        assert [entry["job"]["job_id"] for entry in n2.ledger()["leaving"]] == [job]  # type: ignore[index]
        assert "was not all cleared up after: " in n2.run("slurm-share", "doctor").stdout
        assert cluster.wait(cluster.sbatch("bob", "srun echo ran", "-wn2", *ONE_GPU)) == "COMPLETED"
    while n2.ledger()["leaving"]:
        assert cluster.wait(cluster.sbatch("bob", "srun echo ran", "-wn2", *ONE_GPU)) == "COMPLETED"
    assert "NODE UNWELL" not in n2.log()
    assert f"job {job} of uid 2001: what it left is removed now" in n2.log()
    names = n2.run("bash", "-c", "ls -A /tmp | grep -c ^.slurm-share-leftovers-; rm -rf /tmp/.slurm-share-leftovers-*")
    assert names.stdout == "5000\n"


def test_a_users_last_two_jobs_that_leave_at_once_clear_up_once(cluster: Cluster, n2: Node) -> None:
    """Whichever Epilog comes last; the other one takes nothing that is still the sibling's."""
    for _ in range(3):
        with configured(cluster, *GUARDED):
            jobs = [start(cluster, "--share-gpu=2", "--gres=gpu:1", script=LITTER) for _ in range(2)]
        cluster.exec("ctl", ["scancel", *map(str, jobs)])
        for job in jobs:
            cluster.wait(job)
        assert "alice dev/shm" not in shm(n2)
        assert "leftover" not in n2.log()
    assert len(re.findall(r"removed \d+ files of uid \d+ in /dev/shm", n2.log())) == 3
    n2.run("rm", "-f", "/tmp/f")


def test_the_files_of_a_job_between_two_steps_stay(cluster: Cluster, n2: Node) -> None:
    """An ordinary job on a node that is not listed shows in nothing at all; a share of the same user ends beside it."""
    done = cluster.as_user("alice", ["salloc", "--no-shell", "-pplain", "-wn2", "-n1"], check=True)
    (quiet,) = re.findall(r"allocation (\d+)", done.stderr)
    cluster.as_user("alice", ["srun", f"--jobid={quiet}", "touch", "/dev/shm/dataset"], check=True)
    end(cluster, start(cluster, "--share-gpu=2", "--gres=gpu:1"))
    assert "alice dev/shm/dataset" in shm(n2)
    end(cluster, start(cluster, "--share-gpu=2", "--gres=gpu:1", "-n1"))
    assert "alice dev/shm/dataset" in shm(n2)
    end(cluster, int(quiet))
    end(cluster, start(cluster, "--share-gpu=2"))
    # 26.05 tells a hook that the job had the whole node, 24.11 does not
    assert ("alice dev/shm/dataset" in shm(n2)) is (cluster.slurm_release == "24.11")
    n2.run("rm", "-f", "/dev/shm/dataset")


@pytest.mark.release
def test_a_share_is_not_changed_by_its_user(cluster: Cluster) -> None:
    """A part that would become a whole GPU for the price of a shard, or come to a node past job_submit.lua."""
    job = cluster.sbatch("alice", "true", "-H", "-wn2", "-pgpu", "--share-gpu=4", "--gres=gpu:1", "-n1")
    for change in ("NumTasks=4", "Gres=shard:1", "Partition=plain"):
        done = cluster.as_user("alice", ["scontrol", "update", f"jobid={job}", change])
        assert done.returncode != 0, change
        assert "cancel it and submit it again" in done.stderr, change
    assert cluster.as_user("alice", ["scontrol", "update", f"jobid={job}", "TimeLimit=5"]).returncode == 0


ENVIRONMENT = "env -0 | sort -z | tr '\\0\\n' '\\n '; echo; srun -l env | sort"
SEEN = (
    "find / -xdev \\( -path /proc -o -path /sys -o -path /var/log -o -path /var/spool -o -path /dev/pts \\) -prune -o \
    -newer /mark -printf '%p %T@ %s\\n'; ls -lA /run /run/slurm-share /tmp /dev/shm /run/simgpu 2>/dev/null"
)


def environment(cluster: Cluster, *options: str) -> set[str]:
    """Return the variables of a job's batch shell and task, without those that differ between any two jobs."""
    output = completed(cluster, ENVIRONMENT, "-pplain", "-wn2", *options, user="bob")
    odd = r"SLUID|JOB_?ID|_TIME|_PID|PORT|CLUSTER|_HOST|ADDR|KEY|HOSTNAME|SLURMD_DEBUG|TMPDIR"
    lines = output.splitlines()
    found = {line for line in lines if re.match(r"([0-9]+: )?\w+=", line)}
    return {line for line in found if not re.search(odd, line.split("=")[0])}


@pytest.mark.release
@pytest.mark.parametrize("cluster", [one for one in RELEASES if one != CURRENT], indirect=True)
def test_an_ordinary_job_of_an_older_release_has_the_environment_of_a_cluster_without_us(cluster: Cluster) -> None:
    """The mode is on; test_ordinary.py compares more, on the current release."""
    with Cluster.up(name_for("bare"), cluster.slurm_release, without=("python", "plugin")) as bare:
        assert environment(cluster, "--gres=gpu:1", "-n2") == environment(bare, "--gres=gpu:1", "-n2")


@pytest.mark.weekly
def test_observing_changes_no_environment_and_writes_nothing_but_its_log(cluster: Cluster) -> None:
    """Jobs that ask for a share against ordinary ones, which test_ordinary.py compares with a cluster without us."""
    forms = [[], ["--gres=gpu:1", "-n2"], ["--exclusive"], ["--gres=gpu:1", "-n1"]]
    with Cluster.up(name_for("watch"), cluster.slurm_release) as watched:
        lines = (watched.site / "config.toml").read_text().replace('mode = "on"', 'mode = "observe"')
        watched.write_config(lines + 'exclusive_user_nodes = ["n2"]\nclean_up = ["processes", "shm", "tmp"]\n')
        node = Node(watched, "n2")
        watched.as_user("bob", "touch /dev/shm/bobs /tmp/bobs", node="n2", check=True)
        environment(watched, "--share-gpu=4")  # whatever is made once, such as bytecode, is made now
        node.run("touch", "-d", "1 minute", "/mark")
        before = node.run("bash", "-c", SEEN).stdout
        node.run("touch", "/mark")
        for form in forms:
            assert environment(watched, *form, "--share-gpu=4") == environment(watched, *form)
        assert node.run("bash", "-c", SEEN).stdout == before
        log = node.log()
        assert log.count("observe: would be shared: job ") >= 3
        assert re.search(r"would be shared: .* ([0-9]+) slots, \1 under MPS, on GPU-", log)
        assert "was the last of uid 2002 here: would clear away 1 in /dev/shm, 1 in /tmp" in log
        assert not re.search(r"^\S+ (prolog|epilog):", log, re.MULTILINE)


def test_observing_tells_of_a_second_user_and_lets_him_in(cluster: Cluster, n2: Node) -> None:
    with configured(cluster, 'mode = "observe"', *GUARDED):
        first = start(cluster, "-pplain")
        assert cluster.wait(cluster.sbatch("bob", "echo ran", "-pplain", "-wn2")) == "COMPLETED"
    assert "observe: would be refused: job " in n2.log()
    assert f"job {first} of alice" in n2.log()
    assert cluster.status().nodes["n2"] == "mixed"


@pytest.mark.parametrize(
    ("mode", "after"),
    [
        ("on", "off"),
        *(pytest.param(*one, marks=pytest.mark.weekly) for one in (("on", "observe"), ("off", "on"))),
        ("observe", "on"),
    ],
)
def test_the_mode_may_change_with_jobs_running(cluster: Cluster, n2: Node, mode: str, after: str) -> None:
    """Running jobs keep and return what they were given; the next job has the new mode."""
    slots = "srun bash -c 'echo slot ${SLURM_SHARE_SLOT-none}'"
    script = f"echo up; until [ -e go ]; do sleep .1; done; {slots}; env | grep -c MPS"
    cluster.as_user("alice", "rm -f go", check=True)
    with configured(cluster, f'mode = "{mode}"'):
        job = start(cluster, "--share-gpu=2", "--gres=gpu:1", script=script)
    with configured(cluster, f'mode = "{after}"'):
        cluster.as_user("alice", "touch go", check=True)
        cluster.wait(job)
        assert n2.jobs() == []
        assert n2.mps() == []
        nxt = cluster.sbatch("alice", slots, "-wn2", "--share-gpu=2", "--gres=gpu:1")
        cluster.wait(nxt)
    for number, its in ((job, mode), (nxt, after)):
        expected = ["slot 0", "slot 1"] if its == "on" else ["slot none"]
        assert sorted(re.findall("slot .*", output_of(cluster, number)))[: len(expected)] == expected
    assert n2.run("ls", "-A", "/run/slurm-share/jobs").stdout == ""


@pytest.mark.release
def test_a_partition_may_have_a_mode_of_its_own(cluster: Cluster, n2: Node) -> None:
    slots = "srun bash -c 'echo slot ${SLURM_SHARE_SLOT-none}'"
    with configured(cluster, 'mode = "observe"', '[partition.gpu]\nmode = "on"\nmax_share = 3'):
        on, observed, many = (
            cluster.sbatch("alice", slots, "-wn2", "--gres=gpu:1", *options)
            for options in (["-pgpu", "--share-gpu=2"], ["-pplain", "--share-gpu=2"], ["-pgpu", "--share-gpu=4"])
        )
        assert [cluster.wait(job) for job in (on, observed, many)] == ["COMPLETED", "COMPLETED", "FAILED"]
        status = json.loads(n2.run("slurm-share", "status", "--json").stdout)
    assert sorted(re.findall("slot .*", output_of(cluster, on))) == ["slot 0", "slot 1"]
    assert "slot none" in output_of(cluster, observed)
    assert "at most 3 tasks (max_share)" in output_of(cluster, many)
    assert (status["mode"], status["partition_modes"]) == ("observe", {"gpu": "on"})


def test_exporters_find_the_jobs_of_each_gpu_until_their_epilog(cluster: Cluster, n2: Node) -> None:
    """Two parts of a GPU, and an ordinary job on another one; the slurmd of a real cluster runs the hooks."""

    def read(folder: str) -> dict[str, str]:
        return dict(line.split(":", 1) for line in n2.run("grep", "-r", "", folder).stdout.splitlines())

    with configured(cluster, 'job_mapping_folder = "/run/dcgm-job-map"', 'gpustat_folder = "/run/gpustat"'):
        shared = start(cluster, *ONE_GPU)
        ordinary = start(cluster, "--gres=gpu:1")
        uid = int(cluster.exec("n2", ["id", "-u", "alice"]).stdout)
        of_gpus = read("/run/dcgm-job-map")
        assert set(of_gpus.values()) == {str(shared), str(ordinary)}
        indices = {of_gpus[file]: file.rsplit("/", 1)[1] for file in of_gpus}
        said = read("/run/gpustat")
        for job in (shared, ordinary):
            index = indices[str(job)]
            assert said[f"/run/gpustat/{index}"] == said[f"/run/gpustat/{n2.uuid(int(index))}"] == f"{job} {uid}"
        end(cluster, shared)
        until(lambda: set(read("/run/dcgm-job-map").values()) == {str(ordinary)}, "the shared job's line gone")
        end(cluster, ordinary)
        until(lambda: read("/run/dcgm-job-map") == read("/run/gpustat") == {}, "all lines gone")
