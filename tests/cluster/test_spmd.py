"""`llsub --spmd` on a real cluster: ranks on two nodes that send messages, how they end, and what is left."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import users_python
from clusters import WITHOUT, name_for
from hooked import requeue
from test_triples_mode import Submitted, guard_and_loop, processes

from localcluster import Cluster, process
from localcluster.records import CURRENT

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("spmd")]

CONF = "JobRequeue=0\nSlurmdTimeout=300\nPartitionName=together Nodes=n1,n2 DefMemPerCPU=100 MaxTime=1:00:00 State=UP\n"
"""In the second partition, jobs of two users may be on one node. Slurm gives a node up late, as by default."""
HEAD = """import os, signal, sys, time
import numpy as np
from slurm_share.spmd import COMM_WORLD as comm
print("ready", comm.rank, flush=True)
"""
STAY = HEAD + "comm.barrier()\nprint('together', flush=True)\ntime.sleep(3600 * (comm.rank == 0))\ncomm.barrier()\n"
"""Rank 0 computes for long, and the others wait for it."""


@pytest.fixture(scope="module")
def site(can_make_clusters: None) -> Iterator[Cluster]:
    """Yield a cluster of two nodes whose users have NumPy and our package, as after `pip install --user`."""
    if "python" in WITHOUT:
        pytest.skip("NOT TESTED: the cluster is to have no Python of ours")
    with Cluster.up(name_for("spmd"), CURRENT, nodes=2, slurm_conf_extra=CONF, without=WITHOUT) as made:
        for user in ("alice", "bob"):
            users_python.give_or_skip(made, user, "numpy")
        yield made


class Ranks(Submitted):
    """One use of `llsub --spmd`, by default alice's; the program is a file of Python that is not executable."""

    program, file, mode = "--spmd prog.py", "prog.py", "644"

    def rank_log(self, rank: int) -> str:
        return self.read(f"p*/prog.py.log.{rank}")

    def are_all(self, word: str, count: int) -> bool:
        """Return whether so many ranks have printed the word."""
        return self.read("p*/prog.py.log.*").count(word) == count

    def rank_pid(self, node: str, rank: int) -> int:
        find = f"grep -lz '^LLSUB_RANK={rank}$' /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3"
        pids = set(map(int, self.cluster.exec(node, ["/bin/bash", "-c", find]).stdout.split()))
        return next(pid for pid in processes(self.cluster, node, "slurm_share.spmd .*prog.py") if pid in pids)


def traces(cluster: Cluster) -> dict[str, str]:
    """Return what runs may leave on the nodes: files of users, and sockets without a file."""
    # A launcher that was killed cannot remove the folder in which its tasks wrote their progress.
    look = (
        "ls -A /tmp /dev/shm | grep -v '^slurm-share-[0-9]*$'; grep -ao '@slurm-share[^ ]*' /proc/net/unix; "
        "pgrep -af 'spmd|prog.py' | grep -v pgrep"
    )
    return {node: cluster.exec(node, ["/bin/bash", "-c", look]).stdout for node in cluster.compute_nodes}


def check_nothing_is_left(made: Ranks, before: dict[str, str]) -> None:
    """Check that no file, socket, process or key is left on the nodes."""
    process.wait_until(lambda: traces(made.cluster) == before, "nothing left of the ranks", 120, every_s=0.5,
                       why=lambda: f"{traces(made.cluster)}, and before: {before}")  # fmt: skip
    assert made.cluster.as_user(made.user, f"ls {made.folder}/rendezvous").returncode != 0


def test_ranks_on_two_nodes_send_and_sum(site: Cluster) -> None:
    """Small and large messages in both directions between all of them; one job, no key and nothing else left."""
    before = traces(site)
    text = HEAD + (
        "for peer in range(comm.size):\n"
        "    comm.send(np.full(300_000, comm.rank), peer, tag=('to', peer)[1])\n"
        "got = [int(comm.recv(source=peer, tag=comm.rank)[-1]) for peer in range(comm.size)]\n"
        "assert got == list(range(comm.size)), got\n"
        "print('sum', comm.allreduce(comm.rank), comm.node, flush=True)\n"
    )
    made = Ranks(site, text, "[2,4,1]")
    assert made.wait() == "COMPLETED", made.log()
    said = [re.search(r"sum (\d+) (\w+)", made.rank_log(rank)) for rank in range(8)]
    assert [found and (found[1], found[2]) for found in said] == [("28", "n1")] * 4 + [("28", "n2")] * 4
    assert {tried[-1].outcome for tried in made.attempts().values()} == {"done"}
    assert "8 of 8 ranks done" in made.log()
    check_nothing_is_left(made, before)


def test_eight_ranks_on_two_gpus_sum(site: Cluster) -> None:
    text = HEAD + (
        "mine = (os.environ['CUDA_VISIBLE_DEVICES'], os.environ['SLURM_SHARE_SLOT'])\n"
        "print('all', comm.allgather(mine), flush=True)\n"
        "total = np.empty(1000)\n"
        "comm.Allreduce(np.full(1000, comm.rank + 1.0), total)\n"
        "print('sum', total[0], total[-1], flush=True)\n"
    )
    made = Ranks(site, text, "[1,8,1]", "-g", "2")
    assert made.wait() == "COMPLETED", made.log()
    for rank in range(8):
        log = made.rank_log(rank)
        assert "sum 36.0 36.0" in log
        gpus = re.findall(r"\('(GPU-[^']+)', '([0-9:]+)'\)", log)
        assert sorted(Counter(gpu for gpu, _ in gpus).values()) == [4, 4]
    assert Counter(tried[-1].gpu for tried in made.attempts().values()) == {0: 4, 1: 4}


@pytest.mark.weekly
def test_a_killed_rank_ends_the_run_on_both_nodes(site: Cluster) -> None:
    """Every survivor says who it was; one sentence in the job's log; exit code 1; nothing left."""
    before = traces(site)
    made = Ranks(site, STAY, "[2,3,1]")
    made.wait_for(lambda: made.are_all("together", 6))
    site.exec("n2", ["kill", "-9", str(made.rank_pid("n2", 5))], check=True)
    assert made.wait() == "FAILED", made.log()
    assert "ExitCode=1:0" in site.job(made.job)
    for rank in range(1, 5):
        assert "rank 5 on n2 was killed by SIGKILL" in made.rank_log(rank)
    assert made.log().count("slurm-share launch: rank 5 on n2 was killed by SIGKILL; the other 5 were ended\n") == 1
    outcomes = {rank: tried[-1].outcome for rank, tried in made.attempts().items()}
    assert outcomes == {**dict.fromkeys(range(5), "unfinished"), 5: "signal"}
    check_nothing_is_left(made, before)


@pytest.mark.weekly
def test_a_deadlock_is_named_on_both_nodes(site: Cluster) -> None:
    text = HEAD + "comm.recv((comm.rank + 1) % comm.size, 'x')\n"
    made = Ranks(site, text, "[2,2,1]")
    assert made.wait() == "FAILED", made.log()
    for rank in range(4):
        assert all(f"rank {one} waits in recv for ({(one + 1) % 4}, 'x')" in made.rank_log(rank) for one in range(4))
    assert "all ranks wait for each other" in made.log()


@pytest.mark.weekly
def test_who_waits_is_shown_to_who_watches(site: Cluster) -> None:
    made = Ranks(site, HEAD + "if comm.rank:\n    comm.recv(0, 'x')\nelse:\n    time.sleep(3600)\n", "[2,1,1]")
    made.wait_for(lambda: "(0, 'x')" in made.read("p*/events.jsonl"))
    watch = (
        f"cd {made.home}; llsub --watch LLSUB.1 >shown & until grep -q 'rank 1 waits in recv for (0,.* since ' shown"
    )
    site.as_user("alice", f"{watch}; do sleep 0.1; done; kill $!", check=True)
    site.as_user("alice", ["scancel", str(made.job)], check=True)
    assert made.wait() == "CANCELLED", made.log()


@pytest.mark.parametrize("who", ["launcher", "rendezvous"])
def test_a_killed_process_of_ours_leaves_nothing(site: Cluster, who: str) -> None:
    """A launcher: the other node's ranks are told. The rendezvous process: the run goes on to its end."""
    before = traces(site)
    text = HEAD + "comm.barrier()\nprint('together', flush=True)\n"
    text += "time.sleep(5)\n" if who == "rendezvous" else "time.sleep(3600 * comm.rank)\ncomm.barrier()\n"
    made = Ranks(site, text, "[2,2,1]")
    made.wait_for(lambda: made.are_all("together", 4))
    if who == "rendezvous":
        pids = processes(site, "n2", "slurm_share.spmd.rendezvous")
        assert len(pids) == 1
    else:
        pids = guard_and_loop(site, "n2")
    site.exec("n2", ["kill", "-9", *map(str, pids)])
    state = made.wait()
    if who == "rendezvous":
        assert state in ("COMPLETED", "FAILED"), made.log()
        assert "the rendezvous process on n2 has ended" in made.log()
    else:
        assert state == "FAILED", made.log()
        assert "n2" in made.rank_log(0)
    check_nothing_is_left(made, before)


@pytest.mark.weekly
def test_a_lost_node_is_told_to_the_ranks_of_the_other(site: Cluster) -> None:
    made = Ranks(site, STAY, "[2,2,1]")
    made.wait_for(lambda: made.are_all("together", 4))
    site.kill("n2")
    try:
        made.wait_for(lambda: "node n2 with ranks 2 to 3 does not answer any more" in made.rank_log(1))
        made.wait_for(lambda: "node n2 with ranks 2 to 3 does not answer any more" in made.log())
        show = f"squeue --noheader --format=%T --jobs={made.job}"
        process.wait_until(lambda: "RUNNING" not in site.as_user("alice", show).stdout, "the end of the job", 120)
    finally:
        site.as_user("alice", ["scancel", str(made.job)])
        site.reboot("n2")
        made.wait()


@pytest.mark.weekly
def test_a_requeued_run_meets_again_with_a_key_of_its_own(site: Cluster) -> None:
    text = HEAD + (
        "first = not os.path.exists('begun')\n"
        "comm.barrier()\n"
        "open('begun', 'w').close()\n"
        "print('start', os.environ.get('SLURM_RESTART_COUNT', '0'), flush=True)\n"
        "time.sleep(3600 * first)\n"
        "comm.barrier()\n"
    )
    made = Ranks(site, text, "[2,1,1]", "--options=--requeue")
    made.wait_for(lambda: made.are_all("start 0", 2))
    requeue(site, made.job)
    assert made.wait() == "COMPLETED", made.log()
    assert made.are_all("start 1", 2)
    assert "2 of 2 ranks done" in made.log()
    assert site.as_user("alice", f"ls {made.folder}/rendezvous").returncode != 0


@pytest.mark.weekly
def test_two_users_with_two_array_elements_each_on_one_node(site: Cluster) -> None:
    """Four runs at once on one node, none through llsub: each is a run of its own, and sums what its own ranks have."""
    text = HEAD + (
        "mine = os.getuid() * 10 + int(os.environ['SLURM_ARRAY_TASK_ID'])\n"
        "open(f'ready.{mine}.{comm.rank}', 'w').close()\n"
        "while not os.path.exists('/tmp/spmd-go'): time.sleep(0.1)\n"
        "assert comm.allgather(mine) == [mine] * 3\n"
        "print('sum', comm.allreduce(mine), mine, flush=True)\n"
    )
    before = traces(site)
    jobs = {}
    for user in ("alice", "bob"):
        folder = f"/home/{user}/array"
        site.as_user(user, f"mkdir -p {folder} && cat >{folder}/prog.py", input=text, check=True)
        script = (
            f"#!/bin/bash\ncd {folder} && python3 -m slurm_share.spmd -n 3 prog.py >out.$SLURM_ARRAY_TASK_ID 2>&1\n"
        )
        jobs[user] = site.sbatch(user, script, "--array=0-1", "-n1", "-c1", "--mem=100", "-w", "n1", "-p", "together")
    try:
        process.wait_until(
            lambda: len([*site.home.glob("*/array/ready.*")]) == 12,
            "twelve ranks on one node", 120, every_s=0.5, why=lambda: site.exec("ctl", ["squeue", "-a"]).stdout,
        )  # fmt: skip
        site.exec("n1", ["touch", "/tmp/spmd-go"], check=True)
        assert [site.wait(job, 120) for job in jobs.values()] == ["COMPLETED"] * 2
    finally:
        site.exec("n1", ["rm", "-f", "/tmp/spmd-go"])
        for user, job in jobs.items():
            site.as_user(user, ["scancel", str(job)])
    for user in jobs:
        for element in (0, 1):
            said = (site.home / user / "array" / f"out.{element}").read_text()
            found = {tuple(map(int, pair)) for pair in re.findall(r"sum (\d+) (\d+)", said)}
            assert said.count("sum ") == 3, said
            assert [(total % 30 == element * 3, total == 3 * mine) for total, mine in found] == [(True, True)]
    process.wait_until(lambda: traces(site) == before, "nothing left of the runs", 120, every_s=0.5)


PAGE = Path(__file__).parents[2] / "packaging/docs/spmd.md"
RESTART = re.findall(r"`restart.py`:\n\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]


def test_the_program_of_the_page_is_saved_and_goes_on_in_the_next_job_and_with_fewer_ranks(site: Cluster) -> None:
    """The first job is told by hand, since Slurm tells it within the minute before the time. The second one ends."""
    before = traces(site)
    wait = "print('begun', flush=True)\n    time.sleep(0 if os.path.exists('state.npy') else 0.5)\n    X += 1"
    text = RESTART.replace("X += 1", wait).replace(", sys", ", sys, time", 1)
    made = Ranks(site, text, "[2,2,1]", "-T", "10", "--checkpoint-signal", "USR1@60", "--until-done=3")
    made.wait_for(lambda: all("begun" in made.rank_log(rank) for rank in range(4)))
    site.as_user("alice", ["scancel", "--signal=USR1", str(made.job)], check=True)
    assert made.wait() == "FAILED", made.log()
    assert "ExitCode=75:0" in site.job(made.job)
    said = made.log()
    assert "4 ranks done" in said
    assert "saved, not finished: 0-3" in said
    found = re.search(r"job (\d+) is submitted and goes on with what is left: job 2 of at most 3", said)
    assert found, said
    made.job = int(found[1])
    assert made.wait() == "COMPLETED", made.log()
    steps = re.search(r"60 steps, (\d+) of them in this job", made.rank_log(0))
    assert steps, made.log()
    assert 0 < int(steps[1]) < 60
    assert [tried[-1].outcome for tried in made.attempts().values()] == ["done"] * 4
    assert "no further job is needed" in made.log()
    check_nothing_is_left(made, before)
    fewer = site.as_user("alice", f"cd {made.home} && llsub --spmd --wait prog.py '[1,2,1]'")
    assert fewer.returncode == 0, fewer.stdout + fewer.stderr
    logs = site.as_user("alice", f"cat {made.home}/LLSUB.2/p*/prog.py.log.0").stdout
    assert f"60 steps, {steps[1]} of them in this job" in logs  # from the file that the first job saved


BOMBER = """
import itertools, os, pickle, re, socket, sys
class Bomb:
    def __reduce__(self):
        return os.mkdir, ("/tmp/fire",)
uid = int(sys.argv[1])
ends = [(socket.AF_UNIX, "\\0" + name) for name in sorted(set(re.findall("@(slurm-share[^ \\n]*)",
    open("/proc/net/unix").read())))]
for line in open("/proc/net/tcp").readlines()[1:]:
    words = line.split()
    if words[3] == "0A" and int(words[7]) == uid:
        address, port = words[1].split(":")
        ends.append((socket.AF_INET, (socket.inet_ntoa(bytes.fromhex(address)[::-1]), int(port, 16))))
payloads = [b'{"kind": "Hello", "rank": 0, "pid": 1, "port": 0, "version": 1}\\n', pickle.dumps(Bomb()) + bytes(200)]
for (family, end), payload in itertools.product(ends, payloads):
    link = socket.socket(family)
    link.settimeout(3)
    try:
        link.connect(end)
        link.sendall(payload)
        got = b""
        while more := link.recv(4096):
            got += more
        print(family.name, len(got))
    except ConnectionError:
        print(family.name, 0)
    except TimeoutError:
        print(family.name, len(got))  # a rank that computes looks at who connects when it waits for a message
"""


def test_what_another_user_sends_to_every_socket_of_a_run_is_not_unpickled(site: Cluster) -> None:
    """A rank's first message and a pickled program, to every abstract name and TCP port that /proc/net shows. A port
    sends its nonce first, and nothing else."""
    text = HEAD + "comm.barrier()\nprint('together', flush=True)\n"
    text += "while not os.path.exists('go'): comm.barrier(); time.sleep(0.2)\nprint('sum', comm.rank, flush=True)\n"
    text = text.replace("while not os.path.exists('go')", "while not comm.bcast(os.path.exists('go'))")
    made = Ranks(site, text, "[2,2,1]")
    made.wait_for(lambda: made.are_all("together", 4))
    uid = site.as_user("alice", ["id", "-u"]).stdout.strip()
    for node in site.compute_nodes:
        heard = site.as_user("bob", ["python3", "-c", BOMBER, uid], node=node, check=True)
        tried = Counter(line.split()[0] for line in heard.stdout.splitlines())
        assert tried["AF_UNIX"] >= 6, "two ranks and a rendezvous process, and two payloads"
        assert tried["AF_INET"] >= 4, "two ranks"
        assert all(int(line.split()[1]) <= 32 * line.startswith("AF_INET") for line in heard.stdout.splitlines())
        assert site.exec(node, ["ls", "-d", "/tmp/fire"]).returncode != 0
    site.as_user("alice", f"touch {made.home}/go", check=True)
    assert made.wait() == "COMPLETED", made.log()
