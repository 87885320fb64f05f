"""llsub and its launchers on real clusters: where tasks run, what is recorded, what is left after a failure."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator

import pytest
from clusters import WITHOUT, by_release, cluster_of
from hooked import PATIENCE_S

from localcluster import Cluster, process
from slurm_share.triples import run_folder

pytestmark = pytest.mark.cluster

SHOW = """#!/bin/bash
echo "rank=$LLSUB_RANK size=$LLSUB_SIZE gpu=$CUDA_VISIBLE_DEVICES index=$SLURM_SHARE_GPU_INDEX mps=$SLURM_SHARE_MPS \
slot=$SLURM_SHARE_SLOT per_gpu=$SLURM_SHARE_PER_GPU \
threads=$OMP_NUM_THREADS ntasks=$SLURM_NTASKS procid=$SLURM_PROCID host=$SLURMD_NODENAME \
cap=$CUDA_MPS_PINNED_DEVICE_MEM_LIMIT mask=$(grep Cpus_allowed_list /proc/self/status | cut -f2)"
"""


class Submitted:
    """One use of llsub by alice, in a folder of its own."""

    program, file, mode = "./task.sh", "task.sh", "755"

    def __init__(
        self, cluster: Cluster, script: str, *words: str, user: str = "alice", files: dict | None = None
    ) -> None:
        self.cluster = cluster
        self.user = user
        self.home = f"/home/{user}/{uuid.uuid4().hex[:10]}"
        for name, text in {self.file: script, **(files or {})}.items():
            put = f"mkdir -p {self.home} && cat >{self.home}/{name} && chmod {self.mode} {self.home}/{name}"
            cluster.as_user(user, put, input=text, check=True)
        line = " ".join(f"'{word}'" for word in words)
        self._submit(f"llsub {self.program} {line}")

    def _submit(self, command: str) -> None:
        self.said = self.cluster.as_user(self.user, f"cd {self.home} && {command}")
        found = re.search(r"^job (\d+):", self.said.stdout, re.MULTILINE)
        assert found, self.said.stdout + self.said.stderr
        self.job = int(found[1])

    @property
    def folder(self) -> str:
        return f"{self.home}/LLSUB.1"

    def read(self, pattern: str) -> str:
        """Return the contents of files in the run's folder, one after another."""
        return self.cluster.as_user(self.user, f"cat {self.folder}/{pattern} 2>/dev/null").stdout

    def wait(self) -> str:
        return self.cluster.wait(self.job)

    def ranks(self) -> dict[int, dict[str, str]]:
        found = {}
        for line in self.read("p*/task.sh.log.*").splitlines():
            if line.startswith("rank="):
                words = dict(word.split("=", 1) for word in line.split(" "))
                found[int(words["rank"])] = words
        return found

    def attempts(self) -> dict[int, list]:
        found: dict[int, list] = {}
        for ended in run_folder.parse_results(self.read("p*/results.jsonl").encode()):
            found.setdefault(ended.task, []).append(ended)
        return {task: sorted(tried, key=lambda one: one.started) for task, tried in found.items()}

    def summary(self) -> dict:
        return json.loads(self.read("summary.json"))

    def log(self) -> str:
        return self.read("llsub-triple-mode-launch.log-*")

    def resume(self) -> None:
        self._submit("llsub --resume LLSUB.1")

    def effects(self) -> Counter:
        """Return how often each task wrote that it ended, from the file `effects`."""
        return Counter(map(int, self.cluster.as_user(self.user, f"cat {self.home}/effects").stdout.split()))

    def wait_for(self, what, timeout: float = PATIENCE_S) -> None:
        process.wait_until(what, "what was waited for", timeout, every_s=0.1, why=lambda: f"the log: {self.log()}")


def processes(cluster: Cluster, node: str, pattern: str) -> list[int]:
    """Return PIDs of a node's processes whose command line matches."""
    return [int(word) for word in cluster.exec(node, ["pgrep", "-f", pattern]).stdout.split()]


def guard_and_loop(cluster: Cluster, node: str) -> tuple[int, int]:
    """Return the two processes of the launcher on a node, parent and child. Others have their command line, too: the
    watchdog, and for a moment each child of the loop, until it runs its program."""
    launcher = r"^ *(\d+) +(\d+) \S+ -I -X utf8 -m slurm_share\.cli\.main launch (?:--run \S+ )?/"
    said = cluster.exec(node, ["ps", "-eo", "pid=,ppid=,args="], check=True).stdout
    parents = {int(pid): int(parent) for pid, parent in re.findall(launcher, said, re.MULTILINE)}
    (found,) = ((one, pid) for pid, one in parents.items() if one in parents and parents[one] not in parents)
    return found


@pytest.fixture(scope="module", params=by_release("bare-"))
def bare(request: pytest.FixtureRequest, can_make_clusters: None) -> Iterator[Cluster]:
    """Yield a cluster with our commands only: no plugin, no hooks. n3 has no GPU."""
    extra = (
        "Prolog=/usr/bin/true\nEpilog=/usr/bin/true\n"
        "NodeName=n3 CPUs=8 Boards=1 SocketsPerBoard=2 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=8000 State=UNKNOWN"
    )
    without = ("plugin", *WITHOUT)
    with cluster_of("bare", request.param, slurm_conf_extra=extra, without=without) as made:
        yield made


def check_sixteen(made: Submitted, gpus: int) -> dict[int, dict[str, str]]:
    ranks = made.ranks()
    assert sorted(ranks) == list(range(16)), made.log()
    for words in ranks.values():
        assert words["size"] == "16"
        assert (words["threads"], words["ntasks"], words["procid"]) == ("1", "1", "0")
    for first in (0, 8):
        node = [ranks[rank] for rank in range(first, first + 8)]
        assert len({words["host"] for words in node}) == 1
        assert Counter(words["gpu"] for words in node) == dict.fromkeys({w["gpu"] for w in node}, 8 // gpus)
        assert [words["gpu"] for words in node[:gpus]] == [words["gpu"] for words in node[gpus : 2 * gpus]]
        assert all(words["gpu"].startswith("GPU-") for words in node)
    cores = {ended.rank: ended.cpus for tried in made.attempts().values() for ended in tried}
    assert all(ranks[rank]["mask"] == cores[rank] for rank in range(16))
    assert ranks[0]["host"] != ranks[8]["host"]
    return ranks


@pytest.mark.release
def test_sixteen_ranks_on_two_nodes(cluster: Cluster) -> None:
    """Every rank has its slot of the Prolog's plan, its GPU, its cap, its cores, its log."""
    made = Submitted(cluster, SHOW, "[2,8,1]")
    assert made.wait() == "COMPLETED", made.log()
    ranks = check_sixteen(made, 2)
    assert {words["mps"] for words in ranks.values()} == {"on"}
    for first in (0, 8):
        assert sorted(int(ranks[rank]["slot"]) for rank in range(first, first + 8)) == list(range(8))
    assert all(re.fullmatch(r"0=\d+M", words["cap"]) for words in ranks.values())
    nodes = {ended.node for tried in made.attempts().values() for ended in tried}
    listing = cluster.as_user("alice", f"cd {made.folder} && ls -d p*/*.log.*").stdout.split()
    assert sorted(listing) == sorted(
        f"p{first}-p{first + 7}_{ranks[first]['host']}/task.sh.log.{rank}"
        for first in (0, 8) for rank in range(first, first + 8)
    )  # fmt: skip
    assert len(nodes) == 2
    assert made.summary()["done"] == 16
    assert "16 of 16 ranks done" in made.log()


@pytest.mark.release
@pytest.mark.weekly
def test_the_same_where_administrators_installed_nothing(bare: Cluster) -> None:
    """The launcher deals the GPUs by itself, and starts MPS daemons inside the job; none of them is left."""
    made = Submitted(bare, SHOW, "[2,8,1]", "-g", "2")
    assert made.wait() == "COMPLETED", made.log()
    ranks = check_sixteen(made, 2)
    assert {words["mps"] for words in ranks.values()} == {"on"}, made.log()
    for node in ("n1", "n2"):
        assert processes(bare, node, "nvidia-cuda-mps") == []
        assert bare.exec(node, ["sh", "-c", "ls -d /tmp/slurm-share-*"]).stdout == ""


@pytest.mark.release
@pytest.mark.weekly
def test_four_gpus_and_none(cluster: Cluster, bare: Cluster) -> None:
    """n1 has four: ranks 0 to 3 have one each. A node without a GPU runs a triple of CPU programs."""
    made = Submitted(cluster, SHOW, "[1,8,1]", "-g", "4")
    assert made.wait() == "COMPLETED", made.log()
    ranks = made.ranks()
    assert len({ranks[rank]["gpu"] for rank in range(4)}) == 4
    assert [ranks[rank]["gpu"] for rank in range(4)] == [ranks[rank]["gpu"] for rank in range(4, 8)]
    if bare.slurm_release == cluster.slurm_release:
        made = Submitted(bare, SHOW, "[1,6]", "--options=-w n3")
        assert made.wait() == "COMPLETED", made.log()
        assert {words["gpu"] for words in made.ranks().values()} <= {"", "NoDevFiles"}
        assert len(made.ranks()) == 6


@pytest.mark.parametrize("way", ["named", "not named"])
def test_caps_follow_the_gpus_of_the_node_that_is_granted(cluster: Cluster, way: str) -> None:
    """Two processes a GPU on n1, which has four: computed where n1 is named, else corrected by the launcher."""
    options = ("--options=-wn1",) if way == "named" else ()
    busy = (
        []
        if way == "named"
        else [cluster.sbatch("alice", "sleep 600", "-w", node, "--exclusive") for node in ("n2", "n3")]
    )
    try:
        made = Submitted(cluster, SHOW, "[1,8]", *options)
        assert made.wait() == "COMPLETED", made.log()
    finally:
        for job in busy:
            cluster.as_user("alice", f"scancel {job}", check=True)
            cluster.wait(job)
    ranks = made.ranks()
    assert Counter(words["gpu"] for words in ranks.values()) == dict.fromkeys({w["gpu"] for w in ranks.values()}, 2)
    assert {words["host"] for words in ranks.values()} == {"n1"}
    total = int(cluster.exec("n1", ["sed", "-n", "s/^memory_mib=//p", "/run/simgpu/gpu0"], check=True).stdout)
    half = (int(0.98 * total) - 512) // 2
    assert {words["cap"] for words in ranks.values()} == {f"0={half}M"}
    assert {words["per_gpu"] for words in ranks.values()} == {"2"}
    assert "nodes have" not in made.said.stderr
    assert f"--share-gpu={2 if way == 'named' else 4}" in made.said.stdout
    corrected = "n1 has 4 GPUs, more than --share-gpu=4 was computed for: 2 processes on a GPU" in made.log()
    assert corrected is (way == "not named")


@pytest.mark.release
def test_fewer_gpus_of_a_node_leave_the_rest_to_the_users_next_job(cluster: Cluster) -> None:
    """-g 1 twice: both run on n2 at the same time, each on a GPU of its own, and n1 and n3 are not needed."""
    text = SHOW + "sleep 4\n"
    first = Submitted(cluster, text, "[1,2,1]", "-g", "1", "--options=-w n2")
    second = Submitted(cluster, text, "[1,2,1]", "-g", "1", "--options=-w n2")
    assert (first.wait(), second.wait()) == ("COMPLETED", "COMPLETED")
    gpus = [{words["gpu"] for words in made.ranks().values()} for made in (first, second)]
    assert [len(one) for one in gpus] == [1, 1]
    times = [[one for tried in made.attempts().values() for one in tried] for made in (first, second)]
    ends = [max(one.started + one.seconds for one in made) for made in times]
    starts = [min(one.started for one in made) for made in times]
    if max(starts) < min(ends):  # on a slow day the second begins when the first is over
        assert gpus[0] != gpus[1]


LENET = "#!/bin/bash\nexec simgpu-task --memory 2400M --load 15 --seconds 6\n"
"""A LeNet-4 of the GPU-sharing paper: 2.3 to 2.4 GiB, GPU load 0.35 of 2 together with the other tasks."""


@pytest.fixture
def two_small_gpus(cluster: Cluster) -> Iterator[None]:
    before = cluster.exec("n2", ["sed", "-n", "s/^memory_mib=//p", "/run/simgpu/gpu0"], check=True).stdout.strip()

    def make(size: str) -> None:
        files = ["/run/simgpu/gpu0", "/run/simgpu/gpu1"]
        cluster.exec("n2", ["sed", "-i", f"s/^memory_mib=.*/memory_mib={size}/", *files], check=True)

    make("32768")
    yield
    make(before)


@pytest.mark.weekly
def test_48_lenets_without_caps_die_as_in_the_paper_and_with_retries_all_are_done(
    cluster: Cluster, two_small_gpus: None
) -> None:
    """48 at once on 2 x 32 GB (the paper: 21 fail); the summary says which were tried again."""
    words = ("[1,48,1]", "--share-gpu=24,mps=off", "--options=-w n2")
    lost = Submitted(cluster, LENET, *words)
    assert lost.wait() == "FAILED"
    kinds = Counter(tried[-1].outcome for tried in lost.attempts().values())
    # 13 x 2400 MiB fit into each 32 GiB at a time; on a slow day the last ones begin when the first have ended
    assert 26 <= kinds["done"] < 48, lost.log()
    assert kinds["done"] + kinds["gpu memory"] == 48
    assert "out of GPU memory: " in lost.log()

    made = Submitted(cluster, LENET, *words, "--retries", "2")
    assert made.wait() == "COMPLETED", made.log()
    summary = made.summary()
    assert summary["done"] == 48
    again = {task: [one.outcome for one in tried] for task, tried in made.attempts().items() if len(tried) > 1}
    assert again
    assert all(len(tried) == 2 for tried in again.values()), again  # waiting was no attempt: none failed twice
    assert sorted(again) == summary["tried_again"]
    assert "tried again" in made.log()


@pytest.mark.weekly_on_v2
def test_the_kernel_kills_for_memory(cluster: Cluster) -> None:
    """The rank that the kernel killed is told from one that failed, and tried again when there is room."""
    text = """#!/bin/bash
    [ $LLSUB_RANK = 1 ] && [ $LLSUB_ATTEMPT = 1 ] && exec python3 -c 'bytearray(900 << 20)'
    [ $LLSUB_RANK = 2 ] && [ $LLSUB_ATTEMPT = 1 ] && exit 3
    sleep 1
    """
    with cluster_of("oom", cluster.slurm_release, cgroup=True, nodes=2) as confined:
        made = Submitted(confined, text, "[1,3,1]", "--retries", "1", "--options=-w n2 --mem=500")
        assert made.wait() == "COMPLETED", made.log()
        outcomes = {task: [one.outcome for one in tried] for task, tried in made.attempts().items()}
        assert outcomes == {0: ["done"], 1: ["host memory", "done"], 2: ["failed", "done"]}
        why = made.attempts()[1][0].why
        assert re.search("; the limit of the job on the node was 500 MiB; its largest process used up to [1-9]", why), (
            why
        )


def work(cluster: Cluster, *words: str, seconds: str = "0.2") -> Submitted:
    """Start a dynamic run whose tasks write as their last action that they ended."""
    text = f'#!/bin/bash\nsleep {seconds}\necho $LLSUB_TASK >>"$(dirname "$LLSUB_DIR")"/effects\n'
    return Submitted(cluster, text, *words)


def check_resumed(made: Submitted, tasks: int) -> None:
    """Resume, and find every task done, and none that was recorded as done run twice."""
    done = {task for task, tried in made.attempts().items() if tried[-1].outcome == "done"}
    assert len(done) < tasks
    made.resume()
    assert made.wait() == "COMPLETED", made.log()
    effects = made.effects()
    assert sorted(effects) == list(range(tasks))
    assert {task: effects[task] for task in done if effects[task] != 1} == {}
    assert made.summary()["done"] == tasks


def test_a_launcher_that_is_killed(cluster: Cluster) -> None:
    """Nothing is left there, the other node works on, and resuming runs only what is unfinished."""
    made = work(cluster, "[2,2,1]", "--ntasks", "120", "--distribution", "dynamic")
    made.wait_for(lambda: made.read("p*/results.jsonl").count("done") > 20)
    first, *_ = made.read("p0-*/events.jsonl").splitlines()
    host = json.loads(first)["node"]
    _, loop = guard_and_loop(cluster, host)
    cluster.exec(host, ["kill", "-KILL", str(loop)], check=True)
    assert made.wait() == "FAILED"
    assert "SIGKILL" in made.log()
    assert processes(cluster, host, "task.sh") == []
    assert "unfinished: " in made.log()
    check_resumed(made, 120)


@pytest.mark.release
def test_slurmd_killed_in_the_middle(cluster: Cluster) -> None:
    made = work(cluster, "[1,2,1]", "--ntasks", "40", "--options=-w n2")
    made.wait_for(lambda: made.read("p*/results.jsonl").count("done") > 5)
    # By its pid file: since an `scontrol reconfigure` of another test the process may be called slurmd-wlm.
    cluster.exec("n2", ["bash", "-c", "kill -KILL $(cat /run/slurmd.pid)"], check=True)
    cluster.exec("n2", ["slurmd"], check=True)
    assert made.wait() == "COMPLETED", made.log()
    assert made.effects() == Counter(range(40))


@pytest.mark.release
def test_a_job_that_is_suspended_goes_on(cluster: Cluster) -> None:
    """scontrol suspend stops every process of the job, launcher and all; resume, and nothing was lost."""
    made = work(cluster, "[1,2,1]", "--ntasks", "30", "--options=-w n2")
    made.wait_for(lambda: made.read("p*/results.jsonl").count("done") > 5)
    for _ in range(2):
        cluster.exec("ctl", ["scontrol", "suspend", str(made.job)], check=True)
        time.sleep(1.5)
        cluster.exec("ctl", ["scontrol", "resume", str(made.job)], check=True)
        time.sleep(0.3)
    assert made.wait() == "COMPLETED", made.log()
    assert made.effects() == Counter(range(30))


def test_what_is_sent_to_the_tasks_reaches_them(cluster: Cluster) -> None:
    """scancel -s USR1, as --signal does before the time limit: every task hears it, and none ends of it."""
    text = (
        "#!/bin/bash\ntrap 'echo checkpoint; heard=1' USR1\necho ready\nuntil [ $heard ]; do sleep 0.1; done\nexit 0\n"
    )
    made = Submitted(cluster, text, "[1,3,1]", "--options=-w n2")
    made.wait_for(lambda: made.read("p*/task.sh.log.*").count("ready") == 3)
    cluster.as_user("alice", ["scancel", "-s", "USR1", str(made.job)], check=True)
    assert made.wait() == "COMPLETED", made.log()
    assert made.read("p*/task.sh.log.*").count("checkpoint") >= 3


def test_tasks_that_save_their_state_on_a_signal_are_resumed(cluster: Cluster) -> None:
    """With exit code 0 as with 75, plain and packed: no failure, no retry used, exit code 75 until all are done."""
    text = """#!/bin/bash
    [ -e ../saved.$LLSUB_TASK ] && exit 0
    trap 'touch ../saved.$LLSUB_TASK; exit $((LLSUB_TASK == 0 ? 0 : 75))' USR1
    echo ready
    while :; do sleep 0.1; done
    """
    text = text.replace("..", "$PWD")
    for more in ((), ("--pack",)):
        options = ("--checkpoint-signal", "USR1@60", "--retries", "1", "--max-failures", "1", "--options=-w n2")
        made = Submitted(cluster, text, "[1,2,1]", "--ntasks", "3", *more, *options)
        assert "--signal=USR1@60" in made.read("run.json")
        made.wait_for(lambda made=made: made.read("p*/task.sh.log.*").count("ready") == 2)
        cluster.as_user("alice", ["scancel", "-s", "USR1", str(made.job)], check=True)
        assert made.wait() == "FAILED", made.log()
        assert {one.outcome for tried in made.attempts().values() for one in tried} == {"saved"}, made.log()
        assert "saved, not finished: 0-1" in made.log()
        watched = cluster.as_user("alice", f"cd {made.home} && touch saved.2 && llsub --watch LLSUB.1")
        assert watched.returncode == 75
        assert "0 of 3 tasks are done; 2 saved, not finished" in watched.stdout
        made.resume()
        assert made.wait() == "COMPLETED", made.log()
        assert made.summary()["tries"] == {"0": 2, "1": 2}


def test_tasks_that_are_added_are_done_once(cluster: Cluster) -> None:
    """On two nodes, by two clients at once, while a launcher is killed, and after the job."""
    script = "#!/bin/bash\necho $LLSUB_TASK >>effects\nuntil [ -e go ]; do sleep 0.1; done\n"
    made = Submitted(cluster, script, "[2,2,1]", "--tasks", "f.txt", files={"f.txt": "a\n" * 4, "more.txt": "b\n" * 3})
    made.wait_for(lambda: len(made.effects()) == 4)
    add = "llsub --add LLSUB.1 --tasks more.txt --parsable"
    told = cluster.as_user("alice", f"cd {made.home} && {{ {add} & {add} & wait; }}")
    assert sorted(told.stdout.split()) == ["4-6", "7-9"], told.stderr
    node = re.search(r"p0-p1_(n\d)", cluster.as_user("alice", f"ls {made.folder}").stdout)
    assert node is not None
    cluster.exec(node[1], ["kill", "-9", str(guard_and_loop(cluster, node[1])[1])], check=True)
    cluster.as_user("alice", f"touch {made.home}/go", check=True)
    assert made.wait() == "FAILED", made.log()
    told = cluster.as_user("alice", f"cd {made.home} && {add}")
    assert re.fullmatch(r"10-12 \d+\n", told.stdout), told.stdout + told.stderr
    made.job = int(told.stdout.split()[1])
    assert made.wait() == "COMPLETED", made.log()
    assert "13 of 13 tasks done" in made.log()
    counted = Counter(task for task, tried in made.attempts().items() for one in tried if one.outcome == "done")
    assert counted == Counter(range(13))
    assert all(count == 1 for task, count in made.effects().items() if task >= 4), "none of these ran at the kill"


def test_lines_of_a_pipe_become_tasks_while_the_run_waits_for_them(cluster: Cluster) -> None:
    """On two nodes; a client whose job is cancelled says so and ends."""
    home = f"/home/alice/{uuid.uuid4().hex[:10]}"

    def alice(command: str, code: int = 0) -> str:
        said = cluster.as_user("alice", f"mkdir -p {home} && cd {home} && {command}")
        assert said.returncode == code, said.stdout + said.stderr
        return said.stdout + said.stderr

    alice("printf '#!/bin/bash\\ntouch $1\\n' >t.sh; chmod +x t.sh")
    lines = "echo a; until [ -e a ]; do sleep 0.1; done; echo b; until [ -e b ]; do sleep 0.1; done; printf 'c\\nd'"
    said = alice(f"({lines}) | llsub ./t.sh '[2,1,1]' -g 1 --tasks - --open --wait")
    assert "end of standard input: LLSUB.1 has 4 tasks from standard input" in said
    assert "all 4 tasks are done" in said
    lines = "echo e; until [ -e e ]; do sleep 0.1; done; scancel $(tail -n 1 LLSUB.2/jobs | cut -d' ' -f1); "
    lines += "while squeue -h --me | grep -q .; do sleep 0.1; done; echo f"
    said = alice(f"({lines}) | llsub ./t.sh '[1,auto]' --pack --tasks - --open", 1)
    assert "1 task, packed, at most 1 at once" not in said, "the first line does not limit what runs at once"
    assert "no job of LLSUB.2 runs any more: it has 2 tasks from standard input" in said


@pytest.mark.parametrize(
    "pack", [pytest.param((), id="plain", marks=pytest.mark.weekly), pytest.param(("--pack",), id="packed")]
)
def test_tasks_wait_for_tasks_of_other_nodes(cluster: Cluster, pack: tuple[str, ...]) -> None:
    tasks = [
        {"run": "cat part.* >all", "after": "part"},
        *({"run": f"sleep 1; hostname >part.{number}", "name": "part"} for number in range(4)),
        {"run": "[ -e good ]", "name": "bad"},
        *({"run": f"touch never.{number}", "after": ["bad"], "name": "never"} for number in range(3)),
        {"run": "touch last", "after": ["part", "never"]},
    ]
    files = {"t.jsonl": "".join(json.dumps(task) + "\n" for task in tasks)}
    made = Submitted(cluster, "#!/bin/bash\neval $1\n", "[2,2,1]", "--tasks", "t.jsonl", *pack, files=files)
    assert made.wait() == "FAILED", made.log()
    outcomes = {task: [one.outcome for one in tried] for task, tried in made.attempts().items()}
    assert outcomes == {task: ["done"] for task in range(5)} | {5: ["failed"]} | {
        task: ["given up"] for task in range(6, 10)
    }
    assert len(set(cluster.as_user("alice", f"cat {made.home}/all").stdout.split())) == 2, "all four, of both nodes"
    assert "it needs task 5 (bad), which failed (exit code 1)" in made.log()
    cluster.as_user("alice", f"touch {made.home}/good", check=True)
    made.resume()
    assert made.wait() == "COMPLETED", made.log()


ADDERS = """
cd $1
adder() {
    for number in $(seq $2); do
        echo "$1.$number" >$1.txt
        llsub --add LLSUB.1 --tasks $1.txt --parsable >>told.$1 2>>errors.$1 &
        client=$!
        # every ninth client is killed, at another moment each time
        [ $((number % 9)) -ne 0 ] || { sleep 0.$((number % 7 + 1)); kill -9 $client; }
        wait $client
    done
}
adder a $2 & adder b $2 & wait
touch through
"""


@pytest.mark.weekly
@pytest.mark.timeout(5400)
def test_a_thousand_additions_under_kills_are_done_once(cluster: Cluster) -> None:
    """By two clients at once, of which some are killed, while a launcher is killed; the run is resumed in between."""
    count = 500
    script = "#!/bin/bash\nsleep 0.05\n[ $1 != wait ] || until [ -e go ]; do sleep 0.1; done\n"
    made = Submitted(cluster, script, "[2,4,1]", "--tasks", "f.txt", files={"f.txt": "wait\n", "adders.sh": ADDERS})
    command = f"setsid bash {made.home}/adders.sh {made.home} {count} >/dev/null 2>&1 </dev/null & true"
    cluster.as_user("alice", command, check=True)
    made.wait_for(lambda: len(made.attempts()) > count // 4)
    node = re.search(r"p0-p3_(n\d)", cluster.as_user("alice", f"ls {made.folder}").stdout)
    assert node is not None
    cluster.exec(node[1], ["kill", "-9", str(guard_and_loop(cluster, node[1])[1])], check=True)
    is_through = f"test -e {made.home}/through"
    made.wait_for(lambda: cluster.as_user("alice", is_through).returncode == 0, timeout=3600)
    cluster.as_user("alice", f"touch {made.home}/go", check=True)
    told = cluster.as_user("alice", f"cd {made.home} && cat told.?").stdout.split("\n")
    numbers = [int(line.split()[0]) for line in told if line]
    assert len(set(numbers)) == len(numbers) > 2 * count * 8 // 9 - 10
    made.wait_for(lambda: not cluster.as_user("alice", "squeue -h --me").stdout)
    said = cluster.as_user("alice", f"cd {made.home} && llsub --resume LLSUB.1 --wait")
    assert said.returncode == 0, said.stdout + said.stderr
    done = Counter(task for task, tried in made.attempts().items() for one in tried if one.outcome == "done")
    assert set(numbers) <= done.keys()
    assert done == Counter(range(len(done))), "each task once, without a gap"
    lines = cluster.as_user("alice", f"grep -h '^[ab]' {made.folder}/added/[1-9]*").stdout.split()
    assert len(set(lines)) == len(lines) == len(done) - 1
    assert len(lines) <= 2 * count


def test_a_run_starts_when_the_runs_before_it_are_done(cluster: Cluster) -> None:
    """Also by later jobs of theirs, and if its own job starts too early; a run that failed ends it with a sentence."""
    script = "#!/bin/bash\nuntil [ -e go$1 ]; do sleep 0.1; done; [ -e ok$1 ]\n"
    files = {"1.txt": "1\n", "2.txt": "2\n"}
    made = Submitted(
        cluster, script, "[1,1,1]", "-g", "1", "--share-gpu=4", "--tasks", "1.txt", "--options=-w n1", files=files
    )

    def alice(command: str) -> str:
        said = cluster.as_user("alice", f"cd {made.home} && {command}")
        return said.stdout + said.stderr

    def number(text: str) -> int:
        found = re.search(r"^job (\d+):", text, re.MULTILINE)
        assert found, text
        return int(found[1])

    def dependency(job: int) -> str:
        return alice(f"squeue -h -j {job} -o %E").strip().replace("(unfulfilled)", "")

    options = "'[1,1,1]' -g 1 --share-gpu=4 --options='-w n1'"
    other = number(alice(f"llsub ./task.sh {options} --tasks 2.txt"))
    alice("printf '#!/bin/sh\\necho $LLSUB_TASK >>effects\\n' >last.sh; chmod +x last.sh")
    last = number(alice(f"llsub ./last.sh {options} --after LLSUB.1 --after LLSUB.2"))
    assert dependency(last) == f"afterany:{made.job},afterany:{other}"
    alice("touch go1")
    assert made.wait() == "FAILED"
    alice("rm go1; touch ok1")
    made.job = number(alice("llsub --resume LLSUB.1"))
    assert dependency(last) == f"afterany:{other},afterany:{made.job}", "the resumed run tells the one that waits"
    alice(f"scontrol update JobId={last} Dependency=")
    assert cluster.wait(last) == "FAILED"
    log = alice("cat LLSUB.3/llsub-triple-mode-launch.log-*")
    assert "LLSUB.1 is not done (0 of 1 task; failed: 0), and job" in log
    again = int(alice("tail -n 1 LLSUB.3/jobs").split()[0])
    assert f"job {again} starts after that" in log
    alice("touch go1 go2")
    assert made.wait() == "COMPLETED"
    assert cluster.wait(again) == "FAILED", "the second run has failed"
    log = alice(f"cat LLSUB.3/llsub-triple-mode-launch.log-{again}")
    assert "LLSUB.2 is not done (0 of 1 task; failed: 0) and has no job in the queue" in log
    assert "llsub --resume" in log
    assert "has no job in the queue" in alice("llsub --resume LLSUB.3")
    alice("touch ok2")
    other = number(alice("llsub --resume LLSUB.2"))
    again = number(alice("llsub --resume LLSUB.3"))
    assert cluster.wait(again) == "COMPLETED"
    assert made.effects() == Counter([0])


def test_a_sweep_and_the_table_of_its_results(cluster: Cluster) -> None:
    """Two of six settings fail; the table has what the tasks print while they run, and which setting is best."""
    text = """#!/bin/bash
echo "LLSUB_RESULT loss=9 got=$#"
until [ -e go ]; do sleep 0.1; done
[ $LLSUB_PARAM_LR != 1 ] || exit 3
echo "LLSUB_RESULT loss=0.$((LLSUB_PARAM_LR * 10 + LLSUB_PARAM_SEED))"
"""
    words = ("[1,4,1]", "--sweep", "lr=3,2,1", "--sweep", "seed=0..1", "--options=-w n2")
    made = Submitted(cluster, text, *words)

    def results(*words: str) -> list[str]:
        command = f"cd {made.home} && slurm-share results LLSUB.1 --csv {' '.join(words)}"
        return cluster.as_user("alice", command).stdout.splitlines()

    columns = ("--columns", "lr,loss,got,outcome")
    made.wait_for(lambda: sum(line.endswith(",9,2,running") for line in results(*columns)) == 4)
    cluster.as_user("alice", f"touch {made.home}/go", check=True)
    assert made.wait() == "FAILED"
    assert results("--columns", "task,lr,seed,outcome,code,loss,node") == [
        "task,lr,seed,outcome,code,loss,node",
        "0,3,0,done,0,0.30,n2", "1,3,1,done,0,0.31,n2", "2,2,0,done,0,0.20,n2", "3,2,1,done,0,0.21,n2",
        "4,1,0,failed,3,9,n2", "5,1,1,failed,3,9,n2",
    ]  # fmt: skip
    assert results("--by", "lr", "--min", "loss", "--columns", "lr,done,loss") == ["lr,done,loss", "2,2,0.205"]
    assert re.search(r"task 5: lr=1 seed=1 -> .*task.sh.log.5 \(exit code 3\)", made.log())
    again = cluster.as_user("alice", f"cd {made.home} && llsub --failed LLSUB.1 --lines", check=True).stdout
    assert again == "lr,seed\n1,0\n1,1\n"
    log = cluster.as_user("alice", f"cd {made.home} && llsub --log LLSUB.1 lr=2,seed=1", check=True).stdout
    assert log == "LLSUB_RESULT loss=9 got=2\nLLSUB_RESULT loss=0.21\n"


def test_what_failed_is_named_with_its_line_and_its_log(cluster: Cluster) -> None:
    """In the job's output and at the end of --wait; its bare lines are a tasks file again."""
    lines = "#LLSUB --gpu-mem=1G\necho one\necho two; echo oh no; exit 3\n#LLSUB --gpu-mem=2G\necho three; exit 4\n"
    words = ("--pack", "--tasks", "cmds.txt", "--options=-w n2", "--wait")
    made = Submitted(cluster, "#!/bin/bash\neval $1\n", "[1,2,1]", *words, files={"cmds.txt": lines})
    assert made.said.returncode == 1
    first = f"  task 1, line 3 of cmds.txt: echo two; echo oh no; exit 3 -> {made.folder}/p0-p1_n2/task.sh.log.1"
    assert f"{first} (exit code 3): oh no" in made.said.stdout.splitlines()
    assert f"{first} (exit code 3): oh no" in made.log().splitlines()
    told = cluster.as_user("alice", f"cd {made.home} && llsub --failed LLSUB.1 --lines; llsub --log LLSUB.1 1")
    first_line, *others = told.stdout.splitlines()
    assert first_line.startswith("#LLSUB --gpu-mem=1024M")
    assert others[0] == "echo two; echo oh no; exit 3"
    assert others[-2:] == ["two", "oh no"]


def test_single_tasks_have_a_time_cores_and_a_place_of_their_own(cluster: Cluster) -> None:
    tasks = [
        {"run": "sleep 300", "timeout": "1s", "priority": 1},
        {"run": "echo $OMP_NUM_THREADS $SLURM_SHARE_CORES", "cpus": 2, "mem": "100M"},
        {"run": "true", "priority": 9},
        {"run": "true", "cpus": 16},
    ]
    files = {"t.jsonl": "".join(json.dumps(task) + "\n" for task in tasks)}
    words = ("[1,1,1]", "--tasks", "t.jsonl", "--options=-w n1", "--wait")
    made = Submitted(cluster, "#!/bin/bash\neval $1\n", *words, files=files)
    assert made.said.returncode == 1
    assert "  task 0, line 1 of t.jsonl: sleep 300 -> " in made.said.stdout
    assert "(ran longer than 1s (ended by SIGTERM))" in made.said.stdout
    by_start = sorted((tried[0].started, task, tried[0]) for task, tried in made.attempts().items() if task != 3)
    assert [(task, one.outcome) for _, task, one in by_start] == [(2, "done"), (0, "time limit"), (1, "done")]
    threads, cores = made.read("p*/task.sh.log.1").split()
    assert threads == "2"
    assert cores == by_start[2][2].cpus
    more = cluster.as_user("alice", f"cd {made.home} && llsub task.sh [1,1] --ntasks 3 --task-cpus 4000")
    assert (more.returncode, more.stdout) == (2, "")
    assert more.stderr.startswith("llsub: --task-cpus=4000 is more than the ")


def test_a_stopped_run_that_is_resumed_tells_its_limit_as_written_and_the_time_of_its_jobs(cluster: Cluster) -> None:
    made = Submitted(
        cluster, "#!/bin/bash\n[ -e fixed ] || exit 3\n", "[1,1,1]", "--ntasks", "10", "--max-failures", "20%"
    )
    assert made.wait() == "FAILED"
    assert "2 tasks have failed, and --max-failures 20% (2 of 10 tasks) stops the run" in made.log()
    assert "stopped by --max-failures 20% (2 of 10 tasks)\n" in made.log()
    assert "added up" not in made.log()
    cluster.as_user("alice", f"touch {made.home}/fixed", check=True)
    made.resume()
    assert made.wait() == "COMPLETED", made.log()
    assert "10 of 10 tasks done in " in made.log()
    assert " (2 starts added up, without the time between them)\n" in made.log()
    attempts = [attempt for tried in made.attempts().values() for attempt in tried]
    first, second = (
        [one for one in attempts if one.job == job] for job in sorted({one.job for one in attempts}, key=int)
    )
    between = min(one.started for one in second) - max(one.started + one.seconds for one in first)
    whole = max(one.started + one.seconds for one in attempts) - min(one.started for one in attempts)
    assert made.summary()["seconds"] == pytest.approx(whole - between, abs=0.01)


@pytest.mark.release
def test_sigusr1_from_the_first_moment_on_ends_no_launcher(cluster: Cluster) -> None:
    """To batch shell and launcher until the job is over; tasks that die of it are tried again."""
    text = "#!/bin/bash\ntrap '' USR1\nsleep 2\n"
    made = Submitted(cluster, text, "[1,2,1]", "--retries", "50", "--options=-w n2")
    takes = "grep -qE '^Sig(Ign|Cgt):.*[2367abef]..$' /proc/$(pgrep -u alice -f slurm_script | head -1)/status"
    made.wait_for(lambda: cluster.exec("n2", ["bash", "-c", takes]).returncode == 0)
    storm = (
        f'until [ -z "$(squeue --noheader --jobs={made.job} --states=R,CG,PD 2>/dev/null)" ]; do '
        f"scancel --signal=USR1 --batch {made.job}; scancel --signal=USR1 {made.job}; done 2>/dev/null; true"
    )
    cluster.as_user("alice", storm)
    assert made.wait() == "COMPLETED", made.log()
    assert "2 of 2 ranks done" in made.log()
    assert "no task took a share" not in made.log()


@pytest.mark.release
def test_a_launcher_that_never_began_is_no_program_without_srun(cluster: Cluster) -> None:
    """The log says what became of it, and does not advise to start the program with srun or llsub."""
    made = Submitted(cluster, SHOW, "[1,8,1]", "--options=-w n2 --hold")
    cluster.as_user("alice", f"echo >{made.folder}/run.json && scontrol release {made.job}", check=True)
    assert made.wait() == "FAILED"
    assert "this is not the folder of a run" in made.log()
    assert "no task took a share" not in made.log()


@pytest.mark.release
def test_scancel(cluster: Cluster) -> None:
    made = work(cluster, "[2,2,1]", "--ntasks", "100")
    made.wait_for(lambda: made.read("p*/results.jsonl").count("done") > 10)
    cluster.as_user("alice", ["scancel", str(made.job)], check=True)
    assert made.wait() == "CANCELLED"
    for node in ("n1", "n2", "n3"):
        assert processes(cluster, node, "task.sh") == []
    assert "SIGTERM: no further task starts" in made.log()
    check_resumed(made, 100)


@pytest.mark.slow
@pytest.mark.weekly
def test_the_time_limit(cluster: Cluster) -> None:
    """Its end is set to now (Slurm looks every half minute): finished tasks are recorded, resuming does the rest."""
    made = work(cluster, "[1,2,1]", "--ntasks", "2000", "-T", "1", "--options=-w n2", seconds="0.4")
    made.wait_for(lambda: made.read("p*/results.jsonl").count("done") > 20)
    cluster.exec("ctl", ["scontrol", "update", f"jobid={made.job}", "endtime=now"], check=True)
    assert made.wait() == "TIMEOUT"
    assert processes(cluster, "n2", "task.sh") == []
    done = {task for task, tried in made.attempts().items() if tried[-1].outcome == "done"}
    assert 20 < len(done) < 2000
    assert {task for task in made.effects() if task not in made.attempts()} == set()
    left = 2000 - len(done)
    for said in (
        "no further task starts",
        "This job was told to end.",
        f"{len(done)} of 2000",
        f"runs these {left} again",
    ):
        assert said in made.log()
    made.resume()
    assert f"{left} " in made.said.stdout
    cluster.as_user("alice", ["scancel", str(made.job)], check=True)
    made.wait()


def test_an_mps_daemon_that_dies(cluster: Cluster) -> None:
    """No task starts without its cap: those of that GPU are unfinished, and resuming runs them."""
    made = work(cluster, "[1,4,1]", "--ntasks", "60", "--distribution", "block", "--options=-w n2")
    made.wait_for(lambda: made.read("p*/results.jsonl").count("done") > 8)
    cluster.exec("n2", ["sh", "-c", "kill -KILL $(pgrep -f nvidia-cuda-mps-control | head -1)"], check=True)
    assert made.wait() == "FAILED"
    assert "a task would run without a cap" in made.log()
    done = [tried[-1] for tried in made.attempts().values() if tried[-1].outcome == "done"]
    by_gpu = Counter(one.gpu for one in done)
    assert max(by_gpu.values()) == 30
    assert min(by_gpu.values()) < 30
    check_resumed(made, 60)


@pytest.mark.weekly
def test_watching_a_run_whose_node_loses_power(cluster: Cluster) -> None:
    """The launcher's last figures stay; Slurm's state and reason show that nothing runs any more."""
    made = Submitted(cluster, "#!/bin/bash\nsleep 600\n", "[1,2,1]", "--options=-w n3 --requeue")
    watch = f"(cd {made.home} && exec script -qfc 'llsub --watch LLSUB.1' watched) >/dev/null 2>&1 </dev/null & echo $!"
    watcher = cluster.as_user("alice", watch, check=True).stdout.strip()

    def output_of() -> str:
        return cluster.as_user("alice", f"tail -c 4000 {made.home}/watched | tr '\\r' '\\n'").stdout

    try:
        made.wait_for(lambda: "2 running" in output_of())
        cluster.kill("n3")
        cluster.exec("ctl", ["scontrol", "update", "node=n3", "state=down", "reason=power"], check=True)
        made.wait_for(lambda: f"job {made.job}: pending (" in output_of())
        last = output_of().strip().splitlines()[-1]
        assert re.search(r"pending \([A-Za-z]+\), requeued.*; 0 of 2 done, 2 left", last), last
        cluster.exec("ctl", ["scontrol", "hold", str(made.job)], check=True)
        made.wait_for(lambda: f"scontrol release {made.job} lets it start" in output_of())
    finally:
        cluster.exec("ctl", ["scancel", str(made.job)])
        cluster.exec("login", ["kill", watcher])
        cluster.reboot("n3")
        cluster.exec("ctl", ["scontrol", "update", "node=n3", "state=resume"])
