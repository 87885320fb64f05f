"""A second user tries to get on, look into or disturb a node that the first one shares.

alice's job has n2, and bob tries, through Slurm and with a shell on n2. Afterwards her tasks, slots and daemons are
unchanged, the daemons answer, a new task of hers gets a slot, nothing of his is left, and no node is drained.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from subprocess import CompletedProcess

import pytest
from hooked import ALICE, BOB, LOG, STATE, USER, Mps, Node, bobs_daemon, configured, forging_conf, resume, until

from localcluster import Cluster
from slurm_share.core import names

pytestmark = pytest.mark.cluster

SCRIPT = """srun -n{tasks} simgpu-task --memory 1G --seconds 600 &
until [ -e again.$SLURM_JOB_ID ]; do sleep 0.1; done
srun -n1 simgpu-task --seconds 0.1; echo again $?
wait"""
WHOLE_NODE = ["--share-gpu=2"]
ONE_GPU = ["--share-gpu=2", "--gres=gpu:1"]
PLAIN = ["--share-gpu=2", "--gres=gpu:1", "-pplain"]
PART = ["--share-gpu=2", "--gres=gpu:1", "-n1"]
FORMS = pytest.mark.parametrize(
    "shared",
    [
        pytest.param(WHOLE_NODE, id="whole node", marks=pytest.mark.weekly),
        pytest.param(ONE_GPU, id="one GPU", marks=pytest.mark.weekly),
        pytest.param(PLAIN, id="plain"),
        pytest.param(PART, id="part"),
    ],
    indirect=True,
)
WITH_ONE_GPU = pytest.mark.parametrize("shared", [ONE_GPU], ids=["one GPU"], indirect=True)
ALL_IS_CLEARED = 'clean_up = ["gpu_processes", "processes", "shm", "tmp"]'


@dataclass
class Shared:
    """A shared job of alice's on n2, one of whose slots is free, unless it has but one."""

    cluster: Cluster
    node: Node
    job: int
    slots: int
    before: dict[str, object] = field(default_factory=dict)
    is_over: bool = False

    def said(self) -> str:
        return self.cluster.exec("login", ["cat", f"/home/alice/slurm-{self.job}.out"]).stdout

    def why_not_ready(self) -> str:
        """Return what Slurm, the job and the hooks say, for a job whose tasks do not come to their GPUs."""
        job = self.cluster.exec("login", ["scontrol", "show", "job", str(self.job)]).stdout
        steps = self.cluster.exec("login", ["squeue", "--steps"]).stdout
        processes = self.node.run("ps", "-eo", "user:8,pid,ppid,stat,args").stdout
        return "\n".join([job, steps, "output:", self.said(), "hooks:", self.node.log()[-4000:], processes])

    def state(self) -> dict[str, object]:
        folder, plan = f"{STATE}/jobs/{self.job}", self.node.plan(self.job)
        servers = [one for one in self.node.mps("server") if one.pipe in plan]
        status = self.cluster.as_user("alice", ["slurm-share", "status", "--json"], node="n2").stdout
        return {
            "job": self.cluster.exec("ctl", ["squeue", "-h", "-j", str(self.job), "-o", "%T %N %u %l %P %r"]).stdout,
            "processes": processes_of(self.node, "alice", self.job),
            "plan": plan,
            "files": self.node.run("bash", "-c", f"cd {folder} && stat -c '%U %a %n' . plan slots slots/*").stdout,
            "slots": self.node.run("bash", "-c", f"grep -H . {folder}/slots/*").stdout,
            "status": [one for one in json.loads(status)["jobs"] if one["job_id"] == self.job],
            "ledger": [one for one in self.node.ledger()["jobs"] if one["job_id"] == self.job],
            "daemons": [one for one in self.node.mps() if one.pipe in plan] + servers,
            "answers": [self.answer(one) for one in servers],
            "output": self.said(),
        }

    def answer(self, server: Mps) -> str:
        words = f"get_server_list\nget_client_list {server.pid}\nget_default_device_pinned_mem_limit 0\n"
        ask = f"printf '{words}' | CUDA_MPS_PIPE_DIRECTORY={server.pipe} nvidia-cuda-mps-control"
        return self.cluster.as_user("alice", ask, node="n2").stdout

    def unchanged(self) -> None:
        """Check that nobody has changed it. Looks again at a fork that has not yet started its program."""
        for _ in range(5):
            if self.state() == self.before:
                return
        assert self.state() == self.before

    def takes_a_task(self) -> None:
        """Check that a further task of it finds its slot and its server, if a slot is free."""
        if self.slots > 1:
            self.cluster.as_user("alice", ["touch", f"again.{self.job}"], check=True)
            until(lambda: "\nagain " in self.said(), "a fresh task's end")
            assert "\nagain 0\n" in self.said()
            assert self.said().count("mps server") == self.slots

    def end(self) -> None:
        self.cluster.exec("ctl", ["scancel", str(self.job)])
        self.cluster.wait(self.job)
        self.is_over = True


@pytest.fixture
def cleared(cluster: Cluster) -> Iterator[None]:
    """Check what is on the node before alice's job comes."""
    with configured(cluster, ALL_IS_CLEARED, 'exclusive_user_nodes = ["n2"]'):
        yield


class Held:
    """alice's running job, kept from test to test while they leave it unchanged."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.node = Node(cluster, "n2")
        self.options: list[str] = []
        self.one: Shared | None = None

    def started(self, options: list[str]) -> Shared:
        """Return the job that runs, or start one with these options."""
        if self.one is not None and self.options != options:
            self.leave()
        if self.one is None:
            self.node.run("rm", "-f", LOG)
            self.options, self.one = options, start(self.cluster, *options)
        return self.one

    def leave(self) -> None:
        """End the job if it runs; check that nothing is left."""
        one, self.one = self.one, None
        try:
            if one is not None and not one.is_over:
                one.takes_a_task()
                one.end()
            assert self.node.remains() == []
            until(lambda: set(self.cluster.status().nodes.values()) == {"idle"}, "idle nodes")
            assert ".py" not in self.node.log()  # a traceback
        finally:
            self.cluster.cancel_all()
            self.node.forget_refusals()
            clear(self.node)
            if self.node.remains():
                self.cluster.reboot("n2")
            for name in [name for name, state in self.cluster.status().nodes.items() if state.startswith("drain")]:
                resume(self.cluster, name)


@pytest.fixture(autouse=True)
def no_jobs_remain() -> None:
    """Replace the check of other tests: `shared` ends bob's jobs and keeps alice's."""


@pytest.fixture(scope="module")
def held(cluster: Cluster) -> Iterator[Held]:
    held = Held(cluster)
    yield held
    held.leave()


@pytest.fixture
def shared(request: pytest.FixtureRequest, held: Held) -> Iterator[Shared]:
    """Yield alice's running job; check afterwards that it is unchanged, and that nothing is left when it has ended."""
    alone = "cleared" in request.fixturenames  # its settings are those of the moment at which it came
    if alone:
        held.leave()
    one = held.started(getattr(request, "param", WHOLE_NODE))
    try:
        yield one
        if not one.is_over:
            one.unchanged()
        assert held.cluster.exec("ctl", ["squeue", "-h", "-u", "bob"]).stdout == ""
        assert of_bob(held.node) == []
    except BaseException:
        held.leave()
        raise
    if alone or one.is_over:
        held.leave()


def start(cluster: Cluster, *options: str) -> Shared:
    """Start a job of alice's and wait until its tasks are on their GPUs."""
    slots = 4 if list(options) == WHOLE_NODE else 1 if "-n1" in options else 2
    tasks = max(slots - 1, 1)
    job = cluster.sbatch("alice", SCRIPT.format(tasks=tasks), "-wn2", *options)
    one = Shared(cluster, Node(cluster, "n2"), job, slots)
    until(lambda: one.said().count("mps server") == tasks, f"{tasks} tasks on their GPUs", one.why_not_ready)
    one.before = one.state()
    return one


def processes_of(node: Node, user: str, job: int | None = None) -> list[str]:
    """Return PID, start time, stopped or not, and command of a user's processes but `sleep`."""
    of_job = "true" if job is None else f"grep -qz '^SLURM_JOB_ID={job}$' /proc/$pid/environ"
    script = f"""for pid in $(pgrep -u {user}); do
        {of_job} && read -r stat </proc/$pid/stat && set -- ${{stat##*) }} || continue
        echo $pid ${{20}} ${{1/[!T]/-}} $(tr '\\0' ' ' </proc/$pid/cmdline)
    done 2>/dev/null"""
    found = node.run("bash", "-c", script).stdout.splitlines()
    return [line for line in found if " sleep " not in line and len(line.split()) > 3]


def of_bob(node: Node) -> list[str]:
    """Return bob's processes and files on the node, without what `Node.background` needs."""
    node.run("rm", "-f", "/tmp/pid", "/tmp/out")
    files = node.run("find", "/tmp", "/dev/shm", STATE, "/var/log", "-user", "bob").stdout.split()
    return processes_of(node, "bob") + files


def clear(node: Node) -> None:
    node.run("pkill", "-9", "-u", "bob")
    node.run("bash", "-c", "find /tmp /dev/shm -mindepth 1 -maxdepth 1 -exec rm -rf {} +")


def bob(node: Node, command: list[str] | str, **options: object) -> CompletedProcess[str]:
    return node.cluster.as_user("bob", command, node=node.name, **options)  # type: ignore[arg-type]


def python(node: Node, script: str, *words: object) -> str:
    """Run Python code as bob there and return its output."""
    done = bob(node, ["python3", "-c", script, *map(str, words)])
    assert done.returncode == 0, done.stderr
    return done.stdout


SUBMISSIONS = [
    "-wn2", "--exclude=n1,n3", "-wn2 --gres=gpu:1", "-wn2 --gpus=1", "-wn2 -n1 --gpus-per-task=1", "-wn2 -pplain",
    "-wn2 -pgpu,plain", "-wn2 -pplain -n1 --mem=10 --time=1", "-wn2 -pplain --gres=gpu:1",
    "-wn2 -pplain --oversubscribe", "-wn2 -pplain --oversubscribe --overcommit --mem=1",
    "-wn2 -pplain --gres=shard:1", "-wn2 --gres=shard:1", "-wn2 --exclusive", "-wn2 -pplain --exclusive=user",
    "-wn2 --share-gpu=2", "-wn2 --share-gpu=2 --exclusive", "-wn2 --share-gpu=2 --oversubscribe",
    "-wn2 --share-gpu=2 --gres=gpu:1", "-wn2 -pplain --share-gpu=2 --gres=gpu:1",
    "-wn2 --share-gpu=2 --gres=gpu:1 -n1", "-wn2 -pplain --share-gpu=2 --gres=gpu:1 -n1",
    "-wn2 -pplain --share-gpu=2,mps=off --gres=gpu:1 -n1", "-wn2 -pplain --array=1-3",
    "-wn2 --share-gpu=4 --gres=gpu:1 -n1 --array=1-4", "-wn2 -pplain --dependency=after:{job}",
    "-wn2 -pplain : -wn3 -pplain",
]  # fmt: skip
"""sbatch's options; {job} is alice's."""


def submit(shared: Shared, options: Iterable[str]) -> dict[str, int]:
    """Submit jobs of bob's and wait until the scheduler has considered all and started none."""
    lines = {words: words.format(job=shared.job).split() for words in options}
    jobs = {words: shared.cluster.sbatch("bob", "echo landed", *line) for words, line in lines.items()}
    until(lambda: all("LastSchedEval=2" in shared.cluster.job(job) for job in jobs.values()), "a look at every job")
    begun = {words: shared.cluster.job(job) for words, job in jobs.items() if is_begun(shared.cluster, job)}
    assert begun == {}
    return jobs


def is_begun(cluster: Cluster, job: int) -> bool:
    """Return whether a job, or any part of it, is no longer pending."""
    return set(re.findall(r"JobState=(\w+)", cluster.job(job))) != {"PENDING"}


def landed(cluster: Cluster, jobs: Iterable[int]) -> None:
    for job in jobs:
        assert cluster.wait(job) == "COMPLETED", cluster.job(job)
        assert "landed" in cluster.output(job)


@pytest.fixture
def forge(cluster: Cluster) -> Callable[..., int]:
    """Return what submits a job of bob's with any SPANK variables, without our plugin."""
    conf = forging_conf(cluster)

    def submit_forged(name: str, value: str, *options: str) -> int:
        env = {"SLURM_CONF": conf, "FORGED_NAME": name, "FORGED_VALUE": value}
        argv = ["sbatch", "--parsable", "-wn2", "-pplain", *options, "--wrap=echo landed"]
        return int(cluster.as_user("bob", argv, env=env, check=True).stdout)

    return submit_forged


@FORMS
def test_what_bob_submits_waits(cluster: Cluster, shared: Shared, forge: Callable[..., int]) -> None:
    """For the node, a GPU, a part of one, one CPU; shared or not; with forged SPANK variables; whatever alice has of
    the node. It runs when she has gone."""
    forged = [
        ("SHARE_GPU", "off"), ("SHARE_GPU", "2"), ("SHARE_GPU_SRUN", "1"), ("SLURM_JOB_ID", str(shared.job)),
        ("SLURM_JOB_UID", str(ALICE)), ("SLURM_JOB_USER", "alice"),
    ]  # fmt: skip
    jobs = submit(shared, SUBMISSIONS)
    odd = [forge(*one, *more) for one in forged for more in ([], ["--gres=gpu:1", "-n1"], ["--exclusive=user"])]
    every = [*jobs.values(), *odd]
    until(lambda: all("LastSchedEval=2" in cluster.job(job) for job in odd), "a look at every job")
    assert [job for job in every if is_begun(cluster, job)] == []
    shared.unchanged()
    runs = [*(jobs[words] for words in SUBMISSIONS[1::3]), *odd[::4]]
    cluster.as_user("bob", ["scancel", *(str(job) for job in every if job not in runs)], check=True)
    shared.takes_a_task()
    shared.end()
    landed(cluster, runs)
    assert "refused" not in shared.node.log()


@WITH_ONE_GPU
def test_no_terminal_of_bobs_comes_onto_the_node(cluster: Cluster, shared: Shared) -> None:
    """salloc and srun, from the login node and from a shell on n2: none of them waits, none of them gets anything."""
    forms = [
        "srun -wn2 {}",
        "srun -wn2 -pplain -n1 --overlap {}",
        "srun -wn2 -pplain --oversubscribe --gres=shard:1 {}",
        "srun -wn2 -pplain --share-gpu=2 --gres=gpu:1 -n2 {}",
        "salloc -wn2 -pplain srun --overlap {}",
        "salloc -wn2 -pplain --share-gpu=2 --gres=gpu:1 -n1 srun {}",
        "salloc -wn2 -pplain --no-shell && {}",
    ]
    lines = [form.format("echo landed").replace("-wn2", "-wn2 -I1") for form in forms]
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda line: cluster.as_user("bob", line), lines))
        done += pool.map(lambda line: bob(shared.node, line), lines)
    assert {one.returncode == 0 for one in done} == {False}
    assert {one.stdout for one in done} == {""}


OF_HER_JOB = [
    "srun --jobid={job} --overlap echo landed",
    "srun --jobid={job} --overlap --share-gpu=off -wn2 echo landed",
    "SLURM_JOB_ID={job} SLURM_SHARE_JOB_ID={job} srun --overlap -n1 echo landed",
    "SLURM_JOB_ID={job} SLURM_JOB_USER=alice SLURM_JOB_UID=2001 sbcast --jobid={job} /etc/hosts /tmp/landed",
    "sattach {job}.0",
    "sattach {job}.batch",
    "scancel {job}",
    "scancel -s STOP {job}",
    "scancel --ctld {job}.0",
    "scancel -u alice",
    "scontrol hold {job}",
    "scontrol suspend {job}",
    "scontrol requeue {job}",
    "scontrol notify {job} hello",
    "scontrol write batch_script {job} -",
    "scontrol update jobid={job} timelimit=1",
    "scontrol update jobid={job} oversubscribe=yes",
    "scontrol update jobid={job} userid=2002",
    "scontrol update jobid={job} numnodes=1 nodelist=n3",
    "scontrol update stepid={job}.0 timelimit=1",
    "sbatch -wn2 --dependency=expand:{job} --wrap='echo landed'",
    "sbatch -wn2 --uid=alice --wrap='echo landed'",
    "scontrol update nodename=n2 state=drain reason=bob",
    "scontrol update nodename=n2 gres=gpu:0",
    "scontrol update partitionname=plain oversubscribe=force:4",
    "scontrol create reservation nodes=n2 starttime=now duration=10 users=bob flags=ignore_jobs",
    "scontrol reboot n2",
    "scontrol reconfigure",
    "strigger --set --jobid={job} --fini --program=/bin/true",
]


@pytest.mark.parametrize("where", ["login", "n2"])
def test_her_job_does_not_listen_to_bob(cluster: Cluster, shared: Shared, where: str) -> None:
    """No step in it, no end, no change of it, of its node or of its partition, whatever he says he is."""
    conf = cluster.exec("ctl", ["scontrol", "show", "partition"]).stdout
    for command in OF_HER_JOB:
        done = cluster.as_user("bob", command.format(job=shared.job), node=where)
        assert "landed" not in done.stdout, command
        assert "simgpu" not in done.stdout, command
        said = done.stdout + done.stderr
        assert done.returncode != 0 or "Invalid user id" in said or "no tasks running" in said, (command, said)
    assert cluster.exec("ctl", ["scontrol", "show", "partition"]).stdout == conf
    assert cluster.exec("n2", ["ls", "/tmp/landed"]).returncode != 0


UPDATES = [
    "partition=plain", "partition=gpu,plain", "oversubscribe=yes", "oversubscribe=force", "reqnodelist=n2",
    "excnodelist=n1,n3", "numcpus=1", "numtasks=1", "numnodes=1", "minmemorynode=1", "gres=shard:1",
    "tresPerNode=gres/gpu:1", "timelimit=1", "starttime=now", "nice=-100", "priority=4000000000",
    "dependency=after:{job}", "reservationname=bobs", "userid=2001",
]  # fmt: skip


@WITH_ONE_GPU
def test_a_pending_job_cannot_be_moved_onto_the_node(cluster: Cluster, shared: Shared) -> None:
    """bob rewrites jobs that wait, one held meanwhile, one that was made for another node, one shared."""
    forms = [["-wn2"], ["-wn2", "-pplain"], ["-wn3", "--hold"], ["-wn2", "-pplain", "--share-gpu=2", "--gres=gpu:1"]]
    jobs = [cluster.sbatch("bob", "echo landed", *form) for form in forms]
    for job in jobs:
        for change in UPDATES:  # Slurm takes some of them
            change = f"scontrol update jobid={job} {change.format(job=shared.job)}"
            cluster.as_user("bob", change)
    for change in ("reqnodelist=n2", "excnodelist=n1,n3"):
        cluster.as_user("bob", f"scontrol update jobid={jobs[2]} {change}", check=True)
    cluster.as_user("bob", f"scontrol release {jobs[2]}", check=True)
    moved = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + 1))

    def files_read() -> bool:
        evaluated = [re.search(r"LastSchedEval=(\S+)", cluster.job(job)) for job in jobs]
        return all(one and one[1] >= moved for one in evaluated)

    until(files_read, "a look at every job")
    assert [is_begun(cluster, job) for job in jobs] == [False] * 4
    shared.unchanged()
    shared.takes_a_task()
    shared.end()
    landed(cluster, jobs)


LIST = """import os, socket, sys
for path in sys.argv[1:]:
    for how, flag in (("read", os.O_RDONLY), ("written", os.O_WRONLY)):
        try:
            fd = os.open(path, flag | os.O_NONBLOCK | os.O_NOFOLLOW)
            if how == "read" and not os.path.isdir(path): os.read(fd, 1)
            print(how, path)
        except OSError: pass
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
        try: socket.socket(socket.AF_UNIX, kind).connect(path); print("connected", path)
        except OSError: pass
    try: os.readlink(path); print("link", path)
    except OSError: pass
"""
"""A program that tries to open every path it is given."""


def state_files(node: Node) -> list[str]:
    """Return everything below the state folder, and the hooks' log."""
    found = node.run("find", STATE).stdout.split()
    assert f"{STATE}/ledger" in found
    assert sum(path.endswith("/control") for path in found) == len(node.mps())
    return [*found, LOG]


def may_be_seen(shared: Shared) -> list[str]:
    """Return the names in the state folder and the target of the link to a job's slots, the same for all jobs."""
    return [f"read {STATE}", f"link {STATE}/jobs/{shared.job}/slots"]


def test_nothing_of_hers_can_be_opened(shared: Shared) -> None:
    """bob sees only the names in the state folder itself, which are always the same."""
    paths = state_files(shared.node)
    assert len(paths) > 20
    assert python(shared.node, LIST, *paths).splitlines() == may_be_seen(shared)
    always = {"jobs", "ledger", "ledger.lock", "no-mps", "usage", "user"}
    # Two folders stay once they have been needed: for jobs that asked to share and ran unshared, and for exporters.
    assert always <= set(bob(shared.node, ["ls", "-A", STATE]).stdout.split()) <= always | {"unshared", "gpu-jobs"}
    assert shared.node.run("stat", "-c", "%U:%G %a", LOG).stdout == "root:root 640\n"


def test_nothing_of_her_processes_can_be_read(shared: Shared) -> None:
    """Environment, memory, open files, folder: of her tasks, her daemons and her job's slurmstepds."""
    steps = shared.node.run("pgrep", "slurmstepd").stdout.split()
    pids = [line.split()[0] for line in processes_of(shared.node, "alice")] + steps
    parts = ("environ", "mem", "maps", "fd", "cwd", "exe", "root", "io", "stack", "map_files", "ns/mnt")
    assert len(pids) >= 8
    assert python(shared.node, LIST, *(f"/proc/{pid}/{part}" for pid in pids for part in parts)) == ""


@pytest.mark.parametrize("claim", [{}, {"SLURM_JOB_ID": "{job}", "SLURM_JOB_USER": "alice", "USER": "alice"}])
def test_status_tells_bob_of_no_job(shared: Shared, claim: dict[str, str]) -> None:
    env = {name: value.format(job=shared.job) for name, value in claim.items()}
    text = bob(shared.node, ["slurm-share", "status"], env=env)
    assert (text.returncode, text.stdout, text.stderr) == (0, "n2: no shared job of yours\n", "")
    status = json.loads(bob(shared.node, ["slurm-share", "status", "--json"], env=env).stdout)
    assert (status["jobs"], status["gpus"], status["everything"]) == ([], [], False)


TOUCH = """import fcntl, os, sys
for path in sys.argv[1:]:
    for what, do in (
        ("locked", lambda: fcntl.flock(os.open(path, os.O_RDONLY | os.O_NONBLOCK), fcntl.LOCK_EX | fcntl.LOCK_NB)),
        ("locked", lambda: fcntl.lockf(os.open(path, os.O_RDWR | os.O_NONBLOCK), fcntl.LOCK_EX | fcntl.LOCK_NB)),
        ("emptied", lambda: os.truncate(path, 0)),
        ("mode", lambda: os.chmod(path, 0o777)),
        ("owner", lambda: os.chown(path, os.getuid(), -1)),
        ("time", lambda: os.utime(path)),
        ("attribute", lambda: os.setxattr(path, "user.bob", b"x")),
        ("linked", lambda: os.link(path, f"{path}.bob")),
        ("moved", lambda: os.rename(path, f"{path}.bob")),
        ("removed", lambda: os.unlink(path)),
        ("removed", lambda: os.rmdir(path)),
        ("folder", lambda: os.mkdir(f"{path}/bob")),
        ("file", lambda: os.close(os.open(f"{path}/bob", os.O_CREAT | os.O_WRONLY))),
        ("link", lambda: os.symlink("/home/bob", f"{path}/bob")),
        ("fifo", lambda: os.mkfifo(f"{path}/bob")),
    ):
        try: do(); print(what, path)
        except OSError: pass
"""
"""A program that tries to lock, change and move every path it is given, and to put something into it."""


def test_nothing_of_hers_can_be_locked_changed_or_moved(shared: Shared) -> None:
    """A lock of his would keep hooks waiting. He can lock the state folder itself, which nobody does."""
    assert python(shared.node, TOUCH, *state_files(shared.node)).splitlines() == [f"locked {STATE}"]


def test_no_folder_can_be_planted(shared: Shared) -> None:
    places = [f"{USER}/mps/{BOB}", f"{USER}/mps/{ALICE}/x", f"{USER}/jobs/x", f"{USER}/x"]
    places += [f"{STATE}/jobs/{shared.job + 1}", f"{STATE}/jobs/x"]
    places += [f"{STATE}/.ledger.1", f"{STATE}/ledger.lock", "/run/slurm-share.d", "/etc/slurm-share/x", f"{LOG}.1"]
    for place in places:
        assert bob(shared.node, ["mkdir", "-p", place]).returncode != 0
        assert bob(shared.node, ["ln", "-sfn", "/home/bob", place]).returncode != 0


SIGNAL = """import os, resource, signal, sys
for pid in map(int, sys.argv[1:]):
    for what, do in (
        *((str(number), lambda number=number: os.kill(pid, number)) for number in (0, 19, 18, 15, 9)),
        ("group", lambda: os.killpg(os.getpgid(pid), 9)),
        ("pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(pid), 9)),
        ("nice", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19)),
        ("cores", lambda: os.sched_setaffinity(pid, {0})),
        ("limit", lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (1, 1))),
    ):
        try: do(); print(what, pid)
        except OSError: pass
"""


@pytest.mark.weekly_on_v2
def test_none_of_her_processes_takes_a_signal_from_bob(shared: Shared) -> None:
    of_slurm = shared.node.run("pgrep", "^slurm").stdout.split()
    pids = [line.split()[0] for line in processes_of(shared.node, "alice")] + of_slurm
    assert len(pids) >= 8
    assert python(shared.node, SIGNAL, *pids) == ""
    bob(shared.node, "kill -9 -1")


def test_her_daemons_do_not_answer_bob(shared: Shared) -> None:
    """Nor a front end that stays and says nothing, nor a daemon of his own in her folder."""
    server = shared.node.mps("server")[0]
    client = shared.answer(server).split()[1]
    commands = ["get_server_list", "ps", f"get_client_list {server.pid}", f"terminate_client {server.pid} {client}"]
    commands += [f"shutdown_server {server.pid} -f", "quit -t 0", "quit", "set_default_device_pinned_mem_limit 0 1M"]
    for command in commands:
        line = f"echo {command} | CUDA_MPS_PIPE_DIRECTORY={server.pipe} timeout 60 nvidia-cuda-mps-control"
        said = bob(shared.node, line)
        assert said.stdout == ""
        assert "Cannot find MPS control daemon process" in said.stderr
    shared.node.background(
        ["env", f"CUDA_MPS_PIPE_DIRECTORY={server.pipe}", "bash", "-c", "sleep 600 | nvidia-cuda-mps-control"], "bob"
    )
    assert bob(shared.node, f"CUDA_MPS_PIPE_DIRECTORY={server.pipe} nvidia-cuda-mps-control -d").returncode != 0
    shared.unchanged()
    bob(shared.node, "kill -9 -1")


def test_bob_is_no_client_of_hers(shared: Shared) -> None:
    """A program of his with all of a slot's environment: her server does not take it, nor count it."""
    slot = shared.node.slot(shared.job, shared.slots - 1)
    done = bob(shared.node, ["simgpu-task", "--seconds", "0.5"], env={**slot, "SLURM_JOB_ID": str(shared.job)})
    assert "mps server" not in done.stdout
    assert "mps off" in done.stdout + done.stderr


@WITH_ONE_GPU
def test_a_daemon_of_bobs_own_changes_nothing(cluster: Cluster, shared: Shared) -> None:
    """It is nobody's business: not taken for the operators', not ended, and no further job of hers goes without MPS."""
    with bobs_daemon(shared.node) as pid:
        second = start(cluster, *ONE_GPU)
        second.unchanged()
        second.takes_a_task()
        second.end()
        assert shared.node.alive(pid)
    assert "operators" not in shared.node.log()


PLANT = """import os, sys
how, target = sys.argv[1:]
first = int(open("/proc/loadavg").read().split()[-1])
for folder in ("/tmp", "/dev/shm"):
    os.makedirs(f"{folder}/bobs", exist_ok=True)
    names = [f".slurm-share-leftovers-{pid}" for pid in range(first, first + 2000)]
    names += [f".slurm-share-leftovers-{words}" for words in ("", "bobs", "1.1.abcdefgh", "99999.1.abcdefgh")]
    for name in (f"{folder}/{name}" for name in names):
        if how == "folder":
            os.mkdir(name)
            os.chmod(name, 0o777)
            open(f"{name}/kept", "w").close()
        elif how == "link":
            os.symlink(target.format(folder=folder), name)
        else:
            open(name, "w").close()
"""
"""A program that takes every name which a hook started soon could use for its folder."""
LITTER = "touch /tmp/hers /dev/shm/hers; mkdir -p /tmp/d /dev/shm/d /home/alice/kept; touch /tmp/d/x /home/alice/kept/x"


def contents(node: Node, user: str) -> list[str]:
    """Return what a user has in the folders open to everybody."""
    node.run("rm", "-f", "/tmp/pid", "/tmp/out")
    return node.run("bash", "-c", f"find /tmp /dev/shm -user {user} | sort").stdout.splitlines()


@pytest.mark.usefixtures("cleared")
@pytest.mark.parametrize(
    ("how", "target"),
    [
        pytest.param("folder", "-", id="folders"),
        pytest.param("link", "{folder}/bobs", id="links to a folder of his", marks=pytest.mark.weekly),
        pytest.param("link", "/home/alice/kept", id="links to a folder of hers"),
        pytest.param("link", "/home/bob", id="links to his home", marks=pytest.mark.weekly),
        pytest.param("file", "-", id="files", marks=pytest.mark.weekly),
    ],
)
def test_a_hook_clears_up_whatever_bob_put_in_its_way(cluster: Cluster, shared: Shared, how: str, target: str) -> None:
    """alice's files in /dev/shm and /tmp go with her last job; his stay, and hers elsewhere."""
    cluster.as_user("alice", LITTER, node="n2", check=True)
    node = shared.node
    with configured(cluster, ALL_IS_CLEARED):
        python(node, PLANT, how, target)
        before = contents(node, "bob")
        shared.end()
        hers, his = contents(node, "alice"), contents(node, "bob")
    clear(node)
    assert len(before) > 4000
    assert hers == []
    assert his == before
    assert cluster.exec("login", ["ls", "-A", "/home/alice/kept"]).stdout == "x\n"
    assert node.ledger()["leaving"] == []
    assert f"epilog: job {shared.job} of uid {ALICE}: its share is removed\n" in node.log()


FILL = """import itertools, os
try:
    for number in itertools.count():
        with open(f"/dev/shm/bobs-{number}", "wb") as file: file.write(bytes(65536))
except OSError: pass
try:
    for number in itertools.count(): os.mknod(f"/dev/shm/bobs--{number}")
except OSError: pass
"""


@pytest.mark.usefixtures("cleared")
def test_a_full_dev_shm_keeps_no_epilog_from_its_work(cluster: Cluster, shared: Shared) -> None:
    """No byte and no inode is left in it: alice's files are removed anyway, which makes room."""
    node = shared.node
    node.run("mount", "-t", "tmpfs", "-o", "size=4m,nr_inodes=500,mode=1777", "tmpfs", "/dev/shm")
    try:
        cluster.as_user("alice", LITTER, node="n2", check=True)
        python(node, FILL)
        before = contents(node, "bob")
        with configured(cluster, ALL_IS_CLEARED):
            stray = node.background(["sleep", "4242"], "alice")
            shared.end()
        hers, his = contents(node, "alice"), contents(node, "bob")
    finally:
        node.run("umount", "/dev/shm")
        clear(node)
    assert len(before) > 400
    assert hers == []
    assert his == before
    assert not node.alive(stray)
    assert node.ledger()["leaving"] == []


@pytest.mark.usefixtures("cleared")
def test_twenty_thousand_files_of_bobs_stay_and_hide_none_of_alices(cluster: Cluster, shared: Shared) -> None:
    script = """import os
os.mkdir("/tmp/bobs")
for number in range(20000): os.mknod(f"/tmp/bobs-{number}")
for name in ("-rf", "*", "a b", "$(touch x)", "\\nx", "\\x1b[2J", "\\udcff", "x" * 255): os.mknod(f"/tmp/{name}")
"""
    cluster.as_user("alice", LITTER, node="n2", check=True)
    python(shared.node, script)
    with configured(cluster, ALL_IS_CLEARED):
        shared.end()
    assert contents(shared.node, "alice") == []
    assert int(shared.node.run("bash", "-c", "find /tmp -user bob -printf . | wc -c").stdout) == 20009
    clear(shared.node)


SET_UID = "/usr/local/bin/as-root"
AS_ROOT = "import os, time; os.setresuid(0, 0, 0); time.sleep(600)"


@pytest.mark.usefixtures("cleared")
@WITH_ONE_GPU
@pytest.mark.weekly_on_v2
def test_a_process_that_calls_itself_slurmstepd_is_no_job(cluster: Cluster, shared: Shared) -> None:
    """By name, title and real uid: neither a live job of bob's nor one of hers. A set-uid program that takes root's
    real uid, as sudo does, stands for those of sites."""
    node = shared.node
    bob(node, "cp /bin/sleep slurmstepd", check=True)
    node.run("bash", "-ec", f"cp $(realpath /usr/bin/python3) {SET_UID}; chmod 4755 {SET_UID}")
    bob(node, f"mkdir set-uid; ln -s {SET_UID} set-uid/slurmstepd", check=True)
    titles = [f"slurmstepd: [{shared.job + more}.{step}]" for more in range(4) for step in ("0", "batch", "extern")]
    titles += ["slurmstepd: [1.0]", "slurmstepd: [4000000000.0]"]
    for title in titles:
        bob(node, f"(sleep 600 & exec -a '{title}' ./slurmstepd 600) >/dev/null 2>&1 &", check=True)
        bob(node, f"(sleep 600 & exec -a '{title}' set-uid/slurmstepd -ISc '{AS_ROOT}') >/dev/null 2>&1 &", check=True)
    assert len(node.run("pgrep", "-x", "-u", "bob", "slurmstepd").stdout.split()) == len(titles)
    of_root = ("-U", "root", "-f", "^slurmstepd: .* -ISc ")
    until(lambda: len(node.run("pgrep", *of_root).stdout.split()) == len(titles), "root's real uid")
    with configured(cluster, ALL_IS_CLEARED):
        second = start(cluster, *ONE_GPU)
        cluster.as_user("alice", LITTER, node="n2", check=True)
        second.end()
        assert node.jobs() == [shared.job]
        shared.end()
        assert node.mps() + node.mps("server") == []
        assert contents(node, "alice") == []
    assert "refused" not in node.log()
    assert len(processes_of(node, "bob")) == len(titles)  # the sleeps are not counted
    node.run("pkill", "-9", "-u", "bob")
    node.run("pkill", "-9", *of_root)
    node.run("rm", SET_UID)


CLAIMS = {"nothing": {}, "her other job": {"SLURM_JOB_ID": "{job}"}, "her MPS": {"CUDA_MPS_PIPE_DIRECTORY": "{pipe}"}}


@WITH_ONE_GPU
@pytest.mark.parametrize(
    "claim", ["her MPS", *(pytest.param(claim, marks=pytest.mark.weekly) for claim in ("nothing", "her other job"))]
)
@pytest.mark.weekly_on_v2
def test_a_program_of_bobs_on_her_gpu_is_ended_when_she_leaves_it(cluster: Cluster, shared: Shared, claim: str) -> None:
    """Whatever its environment and name say; her tasks go on beside it, and the node stays in service."""
    node = shared.node
    second = start(cluster, *ONE_GPU)
    words = {"job": second.job, "pipe": node.slot(second.job, 0)["CUDA_MPS_PIPE_DIRECTORY"]}
    env = {name: value.format(**words) for name, value in CLAIMS[claim].items()}
    env["CUDA_VISIBLE_DEVICES"] = node.slot(shared.job, 0)["CUDA_VISIBLE_DEVICES"]
    program = "nvidia-cuda-mps-server" if claim == "her MPS" else "program"
    bob(node, f"ln -sf /usr/local/bin/simgpu-task {program}", check=True)
    argv = ["env", *(f"{name}={value}" for name, value in env.items()), f"/home/bob/{program}", "--seconds", "600"]
    pid = node.background(argv, "bob")
    until(lambda: "simgpu-task: host" in node.run("cat", "/tmp/out").stdout, "bob's program on the GPU")
    shared.end()
    alive, log, state = node.alive(pid), node.log(), cluster.status().nodes["n2"]
    node.run("kill", "-9", str(pid))
    second.unchanged()
    second.takes_a_task()
    if state.startswith("drain"):
        resume(cluster, "n2")
    second.end()
    assert not alive
    assert f"leftover process {pid} ({program[:15]}) of uid {BOB} on a GPU that no job has: ended" in log
    assert not state.startswith("drain")


@pytest.mark.parametrize("which", ["prolog", "epilog"])
def test_a_hook_that_is_told_her_job_is_bobs_does_not_believe_it(shared: Shared, which: str) -> None:
    """Her job has a step here under her own uid: nothing of it becomes his or is removed."""
    claims = {"SLURM_JOB_USER": "alice", "SLURM_JOB_GID": str(ALICE)}
    assert shared.node.hook(which, shared.job, uid=BOB, gpus="0,1", **claims).returncode == 0
    shared.unchanged()
    assert python(shared.node, LIST, *state_files(shared.node)).splitlines() == may_be_seen(shared)


def test_a_hook_for_another_job_gives_bob_nothing_of_hers(shared: Shared) -> None:
    """bob's uid, and alice's name in every other variable: he has no slot on a GPU of hers."""
    node = shared.node
    claims = {"SLURM_JOB_USER": "alice", "SLURM_JOB_GID": str(ALICE), "SPANK_SLURM_JOB_UID": str(ALICE)}
    with node.job(9001, uid=BOB, gpus="0,1", **claims):
        assert re.findall(r"^(uid .*|refused|slot .*)", node.plan(9001), re.MULTILINE) == [f"uid {BOB}", "refused"]
    assert node.jobs() == [shared.job]


BROKEN = [
    {"SLURM_JOB_ID": "{job}/../{job}"},
    {"SLURM_JOB_ID": "../jobs/{job}"},
    {"SLURM_JOB_ID": "{job}\n"},
    {"SLURM_JOB_ID": "-{job}"},
    {"SLURM_JOB_ID": ""},
    {"SLURM_JOB_UID": "0"},
    {"SLURM_JOB_UID": "2001 "},
    {"SLURM_JOB_UID": "99999999999"},
    {"SLURMD_NODENAME": "n2;id"},
    {"CUDA_VISIBLE_DEVICES": "0,$(id)"},
    {"PATH": "/home/bob", "HOME": "/home/bob", "TMPDIR": "/home/bob", "SLURM_CONF": "/home/bob/slurm.conf"},
    {names.HOOK_VARIABLE: "2\nSLURM_JOB_UID=2001"},
]


def test_a_hook_with_a_broken_environment_touches_nothing(shared: Shared) -> None:
    """Prolog and Epilog of a job of bob's exit with 0 and without a traceback; alice's job and plan are unchanged."""
    programs = "nvidia-cuda-mps-control rm id sh"
    bob(shared.node, f"printf '#!/bin/sh\\n>/tmp/hacked\\n' | tee {programs}; chmod +x {programs}", check=True)
    for broken in BROKEN:
        environ = {"SLURM_JOB_ID": "9001", **{name: value.format(job=shared.job) for name, value in broken.items()}}
        for which in ("prolog", "epilog"):
            done = shared.node.hook(which, 9001, uid=BOB, gpus="0,1", **environ)
            assert done.returncode == 0, done.stderr
        assert shared.node.jobs() == [shared.job], broken
        assert shared.node.run("ls", f"{STATE}/jobs").stdout == f"{shared.job}\n", broken
    bob(shared.node, f"rm -f {programs}", check=True)
    assert shared.node.run("ls", "/tmp/hacked").returncode != 0
    assert max(map(len, shared.node.log().splitlines())) < 2100
