"""`slurm-share doctor` on real clusters: silent where all is well; every fault is named with its fix."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
from clusters import cluster_of
from hooked import LOG, STATE, USER, Node, check_empty, configured, of_release, until

from localcluster import RELEASES, Cluster
from slurm_share.doctor.facts.programs import read_release

pytestmark = pytest.mark.cluster

STALE = 9101
OBJECT = "/usr/lib/slurm-share/share_gpu.so"
KNOWN = {"unlike-nodes", "process-tracking", "confined-devices"}
"""Findings that a local cluster causes on purpose: nodes of two sizes in one partition, and (without --cgroup) no
cgroups.
"""
CANNOT_BE_SEEN = {"remove-ipc", "ptrace", "persistence", "agent", "agent-usage", "agent-token", "agent-tls",
                  "mps-version", "archive"}  # fmt: skip
"""Facts that are unknown here: no systemd, no Yama, no persistence mode and no MPS release in the simulated driver, no
agent.
"""


class DoctorOutput:
    """The output of doctor."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = text
        self.json = json.loads(text) if text.startswith("{") else {}

    def of(self, outcome: str) -> dict[str, list[str]]:
        """Return the sentences with one outcome by check, each with its fix."""
        found: dict[str, list[str]] = {}
        for one in self.json["findings"]:
            if one["outcome"] == outcome:
                found.setdefault(one["check"], []).append(f"{one['what']} [{one['fix']}]")
        return found

    def wrong(self) -> dict[str, list[str]]:
        """Return FAIL and WARN findings, without those that the cluster causes on purpose."""
        fails, warns = self.of("FAIL"), self.of("WARN")
        return {
            check: [*fails.get(check, ()), *warns.get(check, ())] for check in {**fails, **warns} if check not in KNOWN
        }


def doctor(cluster: Cluster, host: str, *words: str, env: Mapping[str, str] | None = None) -> DoctorOutput:
    """Run `slurm-share doctor --json`. Without cgroups it has no finding about limits of daemons, and it does
    not import all modules, which takes longer than all the rest."""
    known = () if cluster.cgroup or cluster.cgroup_v2 else ("--except", "daemon-limits,modules")
    done = cluster.exec(host, ["slurm-share", "doctor", "--json", *known, *words], env=env)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stdout, done.stderr
    return DoctorOutput(done.returncode, done.stdout)


@pytest.fixture(params=list(RELEASES))
def healthy(request: pytest.FixtureRequest, can_make_clusters: None) -> Iterator[Cluster]:
    """Yield a cluster set up as a site's should be: confined, with nodes of one kind."""
    alloc = "PrologFlags=Alloc"
    with cluster_of("doc", request.param, cgroup=True, nodes=1, slurm_conf_extra=alloc) as made:
        yield made


@pytest.mark.weekly
def test_a_healthy_cluster_is_green_on_every_host_and_a_dead_controller_is_a_finding(healthy: Cluster) -> None:
    """Exit 0 on controller, login and compute node; what cannot be seen is said. Then slurmctld is killed."""
    hosts = ("ctl", "login", "n1")
    with ThreadPoolExecutor() as pool:
        said = dict(zip(hosts, pool.map(lambda host: doctor(healthy, host), hosts), strict=True))
    assert {host: one.json["roles"] for host, one in said.items()} == {
        "ctl": ["controller"], "login": ["login"], "n1": ["compute"],
    }  # fmt: skip
    for host, one in said.items():
        assert one.code == 0, (host, one.of("FAIL"), one.of("WARN"))
        assert one.json["slurm"] == healthy.slurm_version
    assert set(said["n1"].of("SKIP")) == CANNOT_BE_SEEN
    assert set(said["ctl"].of("SKIP")) == {"admin-comment", "agent-usage", "archive"}
    assert set(said["login"].of("SKIP")) == {"agent-usage", "archive"}
    assert "SIMULATED" in said["n1"].of("PASS")["simulated-gpus"][0]
    quiet = healthy.exec("n1", ["slurm-share", "doctor", "--quiet"])
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")

    pid = healthy.exec("ctl", ["cat", "/run/slurm/slurmctld.pid"], check=True).stdout.strip()
    healthy.exec("ctl", ["kill", "-9", pid], check=True)
    with ThreadPoolExecutor() as pool:
        dead = dict(zip(hosts, pool.map(lambda host: doctor(healthy, host), hosts), strict=True))
    for host, one in dead.items():
        assert one.code == 2, host
        assert "slurmctld on ctl does not answer [on the host that is named" in one.of("FAIL")["controller"][0]
    assert "slurmctld does not run here" in dead["ctl"].of("FAIL")["daemons"][0]
    # What the files say is checked all the same, and nothing is concluded from silence.
    assert {"run-in-job", "job-submit"} <= set(dead["ctl"].of("PASS"))
    assert {"node-state", "clock", "slurmd-restarted"} <= set(dead["n1"].of("SKIP"))


TOUCHED = ("usr/lib/slurm-share", "opt/slurm-share/bin", "opt/slurm-share/libexec", "etc/pam.d")


@pytest.fixture
def node(cluster: Cluster) -> Iterator[Node]:
    """Yield n1; restore it afterwards."""
    made = Node(cluster, "n1")
    made.run("tar", "-C", "/", "-cf", "/root/before.tar", *TOUCHED)
    yield made
    cluster.cancel_all()
    made.run("rm", "-rf", LOG, *(f"/{folder}" for folder in TOUCHED))
    made.run("bash", "-c", "cd /usr/local/bin && [ ! -e elsewhere ] || mv elsewhere nvidia-cuda-mps-server")
    made.run("tar", "-C", "/", "-xpf", "/root/before.tar")
    made.run("rm", "-f", f"{STATE}/filler")
    made.run("pkill", "-9", "-u", "alice,bob")
    made.run("pkill", "-9", "-f", "nvidia-cuda-mps")
    check_empty(cluster, "n1")


current = pytest.mark.parametrize("cluster", ["26.05"], indirect=True)
"""Marks tests that do not depend on Slurm's release."""


def age_jobs(node: Node) -> None:
    """Give every job in the ledger an early start, so that none is spared for having just begun."""
    node.run("sed", "-i", 's/"since":[0-9.]*/"since":1.0/g', f"{STATE}/ledger")


def other_release(node: Node, place: str) -> None:
    """Put an object for another Slurm there: ours, with another number in it than it was built with."""
    root = node.cluster.root(node.name)
    target = root / place.lstrip("/")
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(of_release((root / OBJECT[1:]).read_bytes(), node.cluster.slurm_version, "20.02.7"))
    assert read_release(target) == "20.02"


def test_a_sick_node_is_told_all_that_is_wrong_and_what_is_ours_is_mended(cluster: Cluster, node: Node) -> None:
    """Fourteen things broken at once; then --fix mends ours, twice, and leaves the rest and running work alone."""
    job = cluster.sbatch("alice", "srun -n1 simgpu-task --memory 100M --seconds 600", "-wn2", "--share-gpu=2")
    running = Node(cluster, "n2")
    until(running.mps, "a job on n2 with its MPS daemons")
    release = ".".join(cluster.slurm_version.split(".")[:2])
    folder = OBJECT.rpartition("/")[0]
    node.prolog(STALE)  # its Epilog never comes
    age_jobs(node)
    node.run("mkdir", f"{STATE}/jobs/9102")
    node.run("touch", "-d", "@1000", f"{STATE}/jobs/9102")
    node.run("install", "-d", "/tmp/operator", "/tmp/operator/logs")
    theirs = ["env", "CUDA_MPS_PIPE_DIRECTORY=/tmp/operator", "CUDA_MPS_LOG_DIRECTORY=/tmp/operator/logs"]
    node.run(*theirs, "nvidia-cuda-mps-control", "-d")
    other_release(node, f"{folder}/20.02/share_gpu.so")
    node.run("mkdir", "-p", f"{folder}/{release}")
    node.run("mv", OBJECT, f"{folder}/{release}/share_gpu.so")
    node.run("ln", "-s", "20.02/share_gpu.so", OBJECT)
    node.run("chmod", "777", STATE)
    node.run("install", "-m", "666", "/dev/null", LOG)
    node.run("chmod", "a-x", "/opt/slurm-share/bin/slurm-share-epilog")
    node.run("mv", "/usr/local/bin/nvidia-cuda-mps-server", "/usr/local/bin/elsewhere")
    node.run("install", "-m", "644", "/dev/stdin", "/etc/pam.d/sshd")
    (cluster.root("n1") / "etc/pam.d/sshd").write_text("account required pam_slurm_adopt.so\n")
    stranger = node.on_gpu("bob", {"CUDA_VISIBLE_DEVICES": node.uuid(3)})
    with configured(cluster, 'agent_http = ":594"'), node.gpu_file(1, "compute_mode=3"), node.gpu_file(2, "lost=1"):
        said = doctor(cluster, "n1")
        alice = cluster.as_user("alice", ["slurm-share", "doctor"], node="n1")
    wrong = said.wrong()
    assert set(wrong) == {
        "ledger", "plugin-release", "state-folder", "log", "hook-files", "hook-programs", "foreign-mps", "compute-mode",
        "gpu-health", "gpu-processes", "mps-program", "pam-adopt", "agent", "agent-token",
    }, wrong  # fmt: skip
    for check in ("ledger", "plugin-release", "state-folder", "log"):
        assert "[slurm-share doctor --fix" in "\n".join(wrong[check]), wrong[check]
    assert f"process {stranger} " in wrong["gpu-processes"][0]
    assert "folders of jobs that are over: 9102" in "\n".join(wrong["ledger"])
    assert said.code == 2
    assert (alice.returncode, "Traceback" in alice.stderr) == (2, False)

    node.run("chmod", "a+x", "/opt/slurm-share/bin/slurm-share-epilog")
    node.run("mv", "/usr/local/bin/elsewhere", "/usr/local/bin/nvidia-cuda-mps-server")
    age_jobs(running)
    fixed = doctor(cluster, "n1", "--fix")
    assert {one["problem"] for one in fixed.json["fixed"]} == {""}, fixed.json["fixed"]
    # The stranger, the operator's daemon and PAM are not ours to touch.
    assert set(fixed.wrong()) == {"foreign-mps", "gpu-processes", "pam-adopt"}, fixed.wrong()
    assert node.alive(stranger)
    assert [one.pipe for one in node.mps()] == ["/tmp/operator"]
    assert (node.jobs(), node.run("ls", f"{STATE}/jobs").stdout) == ([], "")
    assert node.run("readlink", OBJECT).stdout.strip() == f"{release}/share_gpu.so"
    again = doctor(cluster, "n1", "--fix")
    assert (again.json["fixed"], again.wrong()) == ([], fixed.wrong())

    before = running.mps(), running.ledger(), running.plan(job)
    step_argv = doctor(cluster, "n2", "--fix")
    assert (step_argv.code, step_argv.json["fixed"], step_argv.wrong()) == (0, [], {})
    assert (running.mps(), running.ledger(), running.plan(job)) == before


@current
def test_what_a_killed_hook_left_is_mended(cluster: Cluster, node: Node) -> None:
    """A compute mode and a daemon that the ledger and the folder tell of, and no job at all."""
    with configured(cluster, 'compute_mode = "exclusive_process"'):
        node.prolog(STALE)
    assert node.compute_mode(0) == "3"
    node.run("sed", "-i", 's/"jobs":\\[[^]]*\\(\\[[^]]*\\][^]]*\\)*\\]/"jobs":[]/', f"{STATE}/ledger")
    assert (node.jobs(), len(node.mps())) == ([], 1), node.ledger()
    node.run("rm", "-r", f"{STATE}/jobs/{STALE}")
    node.run("touch", "-d", "@1000", f"{USER}/mps/2001/jobs/{STALE}")
    wrong = doctor(cluster, "n1").wrong()
    assert "left by a job; it was Default [slurm-share doctor --fix]" in wrong["compute-mode"][0]
    assert "a daemon of uid 2001, who has no job on it [slurm-share doctor --fix]" in wrong["mps-daemons"][0]
    fixed = doctor(cluster, "n1", "--fix")
    assert (fixed.code, fixed.wrong()) == (0, {})
    assert (node.mps(), node.compute_mode(0)) == ([], "0")


@current
def test_a_host_that_has_nothing_of_slurm_is_told_so(cluster: Cluster) -> None:
    done = cluster.exec("login", ["unshare", "-m", "sh", "-c", "umount /etc/slurm; slurm-share doctor"])
    assert done.returncode == 2
    assert "there is no slurm.conf on this host" in done.stderr


def test_what_hangs_or_is_full_on_a_node_is_named(cluster: Cluster, node: Node) -> None:
    """A stopped hook with the ledger's lock; MPS that is stopped, silent or in FAULT; full /dev/shm and log disk."""
    assert doctor(cluster, "n1").wrong() == {}
    holder = node.background(["flock", "--no-fork", f"{STATE}/ledger.lock", "sleep", "600"])
    until(lambda: "FLOCK" in node.run("cat", "/proc/locks").stdout, "a lock")
    node.run("kill", "-STOP", str(holder))
    wrong = doctor(cluster, "n1").wrong()
    node.run("kill", "-KILL", str(holder))
    assert set(wrong) == {"ledger-lock"}, wrong
    assert re.search(rf"process {holder} \(sleep, uid 0, stopped\) has held it", wrong["ledger-lock"][0]), wrong

    job = cluster.sbatch("alice", "srun -n1 simgpu-task --memory 100M --seconds 600; sleep 600", "-wn1",
                         "--share-gpu=2")  # fmt: skip
    until(lambda: node.mps("server"), "a job on n1 with its MPS servers")
    until(lambda: doctor(cluster, "n1").wrong() == {}, "a healthy node with a job")
    first = node.mps()[0]
    node.run("kill", "-STOP", str(first.pid))
    wrong = doctor(cluster, "n1").wrong()
    node.run("kill", "-CONT", str(first.pid))
    assert set(wrong) == {"mps-health"}, wrong
    assert wrong["mps-health"] == [f"{first.pipe}: its daemon, process {first.pid}, is stopped (SIGSTOP) "
                                   f"[kill -CONT {first.pid}]"]  # fmt: skip
    with node.fault("mps_hang"):
        wrong = doctor(cluster, "n1").wrong()
    assert len(wrong["mps-health"]) == len(node.mps())
    assert "its daemon does not answer" in wrong["mps-health"][0]

    node.run("bash", "-c", "mount -t tmpfs -o size=1M,mode=1777 t /dev/shm && mount -t tmpfs -o size=1M t /var/log"
             " && head -c 1000K /dev/zero >/dev/shm/x; head -c 1000K /dev/zero >/var/log/x")  # fmt: skip
    wrong = doctor(cluster, "n1").wrong()
    node.run("umount", "/dev/shm", "/var/log")
    assert set(wrong) == {"shared-memory", "log"}, wrong
    assert re.search(r"/dev/shm has \d % left \[ls -lS /dev/shm", wrong["shared-memory"][0])
    assert f"the file system of {LOG} has " in wrong["log"][0]
    assert node.jobs() == [job]
    with node.fault("mps_fault", first.gpu):
        wrong = doctor(cluster, "n1").wrong()
    assert [line.split(": ")[0] for line in wrong["mps-health"]] == [first.pipe]
    assert "is in FAULT" in wrong["mps-health"][0]


def test_folders_that_went_under_a_running_job_are_named(cluster: Cluster, node: Node) -> None:
    """The pipe folder of one GPU, then the whole folder of the job, and a folder of root's that is the user's."""
    job = cluster.sbatch("alice", "srun -n1 simgpu-task --memory 100M --seconds 600", "-wn1", "--share-gpu=2")
    until(lambda: node.mps("server"), "a job on n1 with its MPS servers")
    age_jobs(node)
    assert doctor(cluster, "n1").wrong() == {}
    pipe = node.mps()[0].pipe
    node.run("chown", "alice", f"{USER}/mps/2001")
    node.run("rm", "-rf", pipe)
    wrong = doctor(cluster, "n1").wrong()
    node.run("chown", "root", f"{USER}/mps/2001")
    assert set(wrong) == {"job-folders", "mps-daemons"}, wrong  # nobody can tell that its daemon lives on, unreached
    text = "\n".join(wrong["job-folders"])
    assert f"{pipe} of job {job} of uid 2001 is gone while the job is here [scontrol requeue {job};" in text
    assert f"{USER}/mps/2001 belongs to uid 2001 [chown root" in text
    node.run("rm", "-rf", f"{STATE}/jobs/{job}")
    assert f"{STATE}/jobs/{job}/plan of job {job}" in "\n".join(doctor(cluster, "n1").wrong()["job-folders"])
    # An Epilog without the job's folder takes it for a job without a share: --fix is what ends it.
    cluster.cancel_all()
    until(lambda: cluster.status().nodes["n1"] == "idle", "the end of the job")
    assert node.jobs() == [job]
    fixed = doctor(cluster, "n1", "--fix")
    assert (fixed.code, fixed.wrong(), node.jobs(), node.mps()) == (0, {}, [], [])


@current
def test_a_daemon_that_a_program_uses_is_not_stopped_by_fix(cluster: Cluster, node: Node) -> None:
    """The ledger was lost, Slurm and the kernel know of no job: the program itself is the proof."""
    node.prolog(STALE)
    user = node.task(STALE)
    node.run("sed", "-i", 's/"jobs":\\[[^]]*\\(\\[[^]]*\\][^]]*\\)*\\]/"jobs":[]/', f"{STATE}/ledger")
    node.run("rm", "-r", f"{STATE}/jobs/{STALE}", f"{USER}/mps/2001/jobs/{STALE}")
    pipe = node.mps()[0].pipe
    assert node.jobs() == []
    fixed = doctor(cluster, "n1", "--fix")
    assert [one.pipe for one in node.mps()] == [pipe]
    assert node.alive(user)
    (one,) = [one for one in fixed.json["fixed"] if pipe in one["what"]]
    assert "is left alone: process " in one["problem"], one
    assert "of uid 2001 uses it" in one["problem"], one
    node.run("kill", "-9", str(user))
    until(lambda: not node.alive(user), "the end of the program")
    assert {one["problem"] for one in doctor(cluster, "n1", "--fix").json["fixed"]} == {""}
    assert node.mps() == []
    with node.job(STALE + 1):
        pass  # the user's file system goes with the next hook


@current
@pytest.mark.weekly
def test_what_one_doctor_costs_the_controller(cluster: Cluster) -> None:
    """Messages to slurmctld, as it counts them itself: five hundred nodes may ask at once."""

    def cost(host: str) -> dict[str, int]:
        cluster.exec("ctl", ["sdiag", "-r"], check=True)
        doctor(cluster, host)
        text = cluster.exec("ctl", ["sdiag"], check=True).stdout.partition("by user")[0]
        found = {name: int(count) for name, count in re.findall(r"(REQUEST_\w+)\s+\(\s*\d+\)\s+count:(\d+)", text)}
        known = ("REQUEST_STATS_INFO", "MESSAGE_NODE_REGISTRATION_STATUS", "REQUEST_STATS_RESET")
        return {name: count for name, count in found.items() if name not in known}

    least = {"REQUEST_PING": 2, "REQUEST_BUILD_INFO": 1}
    mode = {"REQUEST_FED_INFO": 1, "REQUEST_JOB_WILL_RUN": 1}
    assert cost("login") == {**least, **mode}
    assert cost("n1") == {**least, **mode, "REQUEST_NODE_INFO": 1, "REQUEST_PARTITION_INFO": 1}
    job = cluster.sbatch("alice", "srun -n1 sleep 600", "-wn1", "--share-gpu=2")
    n1 = Node(cluster, "n1")
    until(lambda: n1.jobs() == [job], "a job on n1")
    assert "REQUEST_JOB_INFO" not in cost("n1")
    cluster.cancel_all()
    until(lambda: not n1.remains(), "an empty node")
